#!/bin/sh
# shellcheck source=/dev/null
type getargbool >/dev/null 2>&1 || . /lib/dracut-lib.sh

# What CoreOS does when it leaves the initramfs of a first boot.
to=/sysroot/etc/NetworkManager/system-connections
if getargbool 0 ignition.firstboot && [ -d "$to" ]; then
    cp /run/NetworkManager/system-connections/* "$to/"
fi

mkdir -p /run/boot-test
boot-test-report >/run/boot-test/report

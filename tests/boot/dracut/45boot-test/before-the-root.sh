#!/bin/sh
# shellcheck source=/dev/null
type getargbool >/dev/null 2>&1 || . /lib/dracut-lib.sh

# The steps of CoreOS when the first boot leaves the initramfs.
to=/sysroot/etc/NetworkManager/system-connections
if getargbool 0 ignition.firstboot && [ -d "$to" ]; then
    cp /run/NetworkManager/system-connections/* "$to/"
fi

mkdir -p /run/boot-test
boot-test-report >/run/boot-test/report

#!/bin/bash
# Strict mode on CoreOS: the shipped drop-in, and a unit that needs the default arguments of afterburn's drop-in when the
# boot leaves the initramfs, as a program of CoreOS does.
#
# shellcheck disable=SC2154 # dracutbasedir, moddir, initdir and the directories of systemd come from dracut

check() {
    return 255
}

install() {
    inst_simple "$dracutbasedir/modules.d/50glowplug/strict.conf" \
        "$systemdsystemunitdir/glowplug-network-kargs.service.d/90-strict.conf" || exit 1
    inst_script "$moddir/teardown.sh" /usr/sbin/boot-test-teardown
    inst_simple "$moddir/teardown.service" "$systemdsystemunitdir/teardown.service"
    inst_multiple grep
    $SYSTEMCTL -q --root "$initdir" add-requires initrd.target teardown.service || exit 1
}

#!/bin/bash
# Stands for NetworkManager 1.54 and later with a dracut that has no drop-in for NetworkManager's unit: this unit makes
# the profiles from /proc/cmdline only, and no hook of dracut makes profiles.
#
# shellcheck disable=SC2154 # moddir, initdir and the directories of systemd come from dracut

check() {
    return 255
}

depends() {
    echo network-manager
}

install() {
    local unit=NetworkManager-config-initrd.service

    find "$initdir/" -path '*/hooks/cmdline/*nm-config.sh' -delete
    inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
    inst_simple "$moddir/nm-initrd.conf" "$systemdsystemunitdir/nm-initrd.service.d/50-units.conf"
    $SYSTEMCTL -q --root "$initdir" add-wants initrd.target "$unit" || exit 1
}

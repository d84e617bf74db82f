#!/bin/bash
# NetworkManager as from 1.54 on, with a dracut that does not mend it: a unit makes the profiles, of /proc/cmdline alone, and no
# hook of dracut does.
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

#!/bin/bash
# Installs the program afterburn of a stock image, for an image without our module. AFTERBURN is the path of the
# program.
#
# shellcheck disable=SC2154 # moddir, initdir and the directories of systemd come from dracut

check() {
    return 255
}

depends() {
    echo systemd
}

installkernel() {
    hostonly='' instmods virtio_pci virtio_blk isofs
}

install() {
    local unit=stock-afterburn.service

    # inst_binary also installs the libraries that the program is linked to.
    inst_binary "$AFTERBURN" /usr/bin/afterburn || exit 1
    inst_multiple blkid modprobe udevadm || exit 1
    inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
    mkdir -p "$initdir/etc/cmdline.d" "$initdir$systemdsystemunitdir/ignition-complete.target.requires"
    ln -s "../$unit" "$initdir$systemdsystemunitdir/ignition-complete.target.requires/$unit"
}

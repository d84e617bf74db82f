#!/bin/bash
# A stand-in for afterburn: units of the same names that say that they ran.
#
# shellcheck disable=SC2154 # moddir and initdir come from dracut

check() {
    return 255
}

install() {
    local unit

    inst_simple "$moddir/default.conf" \
        "$systemdsystemunitdir/afterburn-network-kargs.service.d/50-afterburn-network-kargs-default.conf"
    # By hand, as afterburn: Ignition's module, which brings the target, comes later.
    mkdir -p "$initdir$systemdsystemunitdir/ignition-complete.target.requires"
    for unit in afterburn-hostname.service afterburn-network-kargs.service; do
        inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
        ln -s "../$unit" "$initdir$systemdsystemunitdir/ignition-complete.target.requires/$unit"
    done
}

#!/bin/bash
# Replaces afterburn by units with the same names. Each of these units only records that it ran.
#
# shellcheck disable=SC2154 # moddir and initdir come from dracut

check() {
    return 255
}

install() {
    local unit

    inst_simple "$moddir/default.conf" \
        "$systemdsystemunitdir/afterburn-network-kargs.service.d/50-afterburn-network-kargs-default.conf"
    # Enable the units by links, as afterburn does, because Ignition's module installs the target later.
    mkdir -p "$initdir$systemdsystemunitdir/ignition-complete.target.requires"
    for unit in afterburn-hostname.service afterburn-network-kargs.service; do
        inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
        ln -s "../$unit" "$initdir$systemdsystemunitdir/ignition-complete.target.requires/$unit"
    done
}

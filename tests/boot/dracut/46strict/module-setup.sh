#!/bin/bash
# Installs the drop-in for strict mode from our dracut module.
#
# shellcheck disable=SC2154 # dracutbasedir and the directories of systemd come from dracut

check() {
    return 255
}

install() {
    inst_simple "$dracutbasedir/modules.d/50glowplug/strict.conf" \
        "$systemdsystemunitdir/glowplug-network-kargs.service.d/90-strict.conf" || exit 1
}

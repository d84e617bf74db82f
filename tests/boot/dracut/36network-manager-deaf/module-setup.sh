#!/bin/bash
# A dracut that has NetworkManager and nothing that tells it of the arguments.
#
# shellcheck disable=SC2154 # initdir comes from dracut

check() {
    return 255
}

depends() {
    echo network-manager
}

install() {
    find "$initdir/" -path '*/hooks/cmdline/*nm-config.sh' -delete
}

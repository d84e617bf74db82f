#!/bin/bash
# A dracut with NetworkManager, but without a hook or unit that passes it the arguments.
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

#!/bin/bash
# Removes the hook of dracut that passes the kernel arguments to NetworkManager.
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

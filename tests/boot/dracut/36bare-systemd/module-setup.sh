#!/bin/bash
# Removes modprobe@.service, as in an image of dracut 057, which does not install this unit.
#
# shellcheck disable=SC2154 # initdir and the directories of systemd come from dracut

check() {
    return 255
}

depends() {
    echo systemd
}

install() {
    rm -f "$initdir$systemdsystemunitdir/modprobe@.service"
}

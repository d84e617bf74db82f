#!/bin/bash
# A dracut that does not install modprobe@.service, such as dracut 057.
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

#!/bin/bash
# Installs a unit that ends the first boot as CoreOS does.
#
# shellcheck disable=SC2154 # moddir, initdir and the directories of systemd come from dracut

check() {
    return 255
}

install() {
    inst_multiple basename diff ip ls mkdir rm sed
    inst_script "$moddir/teardown.sh" /usr/sbin/boot-test-teardown
    inst_simple "$moddir/teardown.service" "$systemdsystemunitdir/teardown.service"
    # Enable the unit by a link, because Ignition's module may install the target later.
    mkdir -p "$initdir$systemdsystemunitdir/ignition-complete.target.requires"
    ln -s ../teardown.service "$initdir$systemdsystemunitdir/ignition-complete.target.requires/teardown.service"
}

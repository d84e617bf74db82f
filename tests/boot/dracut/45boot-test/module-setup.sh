#!/bin/bash
# What the boot tests need in the initramfs beside what is tested: nothing of it configures a NIC or touches a drive.
#
# shellcheck disable=SC2154 # moddir, initdir and the directories of systemd come from dracut

check() {
    return 255
}

install() {
    inst_multiple cat cp journalctl ls poweroff sed stty systemctl
    inst_script "$moddir/report.sh" /usr/bin/boot-test-report
    inst_hook pre-pivot 99 "$moddir/before-the-root.sh"
    # dracut-emergency runs it when there is to be no shell.
    inst_hook shutdown-emergency 50 "$moddir/emergency.sh"

    # What a distribution does: its default arguments, in its own drop-in or, as Fedora CoreOS, in afterburn's.
    dracut_module_included afterburn || inst_simple "$moddir/default.conf" \
        "$systemdsystemunitdir/glowplug-network-kargs.service.d/30-default.conf"

    # What Fedora CoreOS does: NetworkManager is started once Ignition has found that it needs the network.
    if dracut_module_included ignition; then
        if dracut_module_included network-manager; then
            inst_script "$moddir/enable-network.sh" /usr/sbin/enable-network
            inst_simple "$moddir/enable-network.service" "$systemdsystemunitdir/enable-network.service"
            $SYSTEMCTL -q --root "$initdir" add-requires initrd.target enable-network.service || exit 1
        fi
        # Debian's Ignition calls it, whether or not there is SELinux.
        inst_script "$moddir/setfiles.sh" /usr/sbin/setfiles
    fi
}

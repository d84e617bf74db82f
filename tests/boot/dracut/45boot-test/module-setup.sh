#!/bin/bash
# Installs the files that the boot tests need in the initramfs. None of these files reads a drive.
#
# shellcheck disable=SC2154 # moddir, initdir and the directories of systemd come from dracut

check() {
    return 255
}

install() {
    inst_multiple cat cp journalctl ls poweroff sed stty systemctl
    inst_script "$moddir/report.sh" /usr/bin/boot-test-report
    inst_hook pre-pivot 99 "$moddir/before-the-root.sh"
    # dracut-emergency runs this hook if there is no shell.
    inst_hook shutdown-emergency 50 "$moddir/emergency.sh"

    # Install a drop-in with default arguments, as a distribution does. In an image with afterburn, as in Fedora CoreOS,
    # glowplug uses the default arguments in afterburn's drop-in instead.
    dracut_module_included afterburn || inst_simple "$moddir/default.conf" \
        "$systemdsystemunitdir/glowplug-network-kargs.service.d/30-default.conf"

    # As in Fedora CoreOS, NetworkManager starts after Ignition has detected that Ignition needs the network.
    if dracut_module_included ignition; then
        if dracut_module_included network-manager; then
            inst_script "$moddir/enable-network.sh" /usr/sbin/enable-network
            inst_simple "$moddir/enable-network.service" "$systemdsystemunitdir/enable-network.service"
            $SYSTEMCTL -q --root "$initdir" add-requires initrd.target enable-network.service || exit 1
        fi
        # Debian's Ignition calls setfiles even without SELinux.
        inst_script "$moddir/setfiles.sh" /usr/sbin/setfiles
    fi
}

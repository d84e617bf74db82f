#!/bin/bash
# Installs glowplug in an initramfs. There, glowplug configures the network of a KubeVirt machine from the config drive,
# before any program uses the network.
#
# shellcheck disable=SC2154 # moddir, initdir, srcmods and the directories of udev and systemd come from dracut

_glowplug_unit=glowplug-network-kargs.service
_glowplug_variable=GLOWPLUG_NETWORK_KARGS_DEFAULT

# A crash kernel only saves the memory of the crashed machine, so this module does nothing there. kdump builds its image
# with the same configuration, which names this module, and dracut fails if check() declines a named module. So check()
# accepts, and the other functions do nothing.
_glowplug_in_kdump() {
    # shellcheck disable=SC2154 # mkdumprd sets it
    [[ $IN_KDUMP == 1 ]]
}

check() {
    _glowplug_in_kdump && return 255
    require_binaries glowplug modprobe || return 1
    # Include the module only if the configuration names it. An image that never boots on KubeVirt does not need the
    # module, and an image that boots on KubeVirt must also set default arguments.
    return 255
}

depends() {
    _glowplug_in_kdump && return 0
    # The module `network` brings the program that reads the arguments, and the udev rules for ifname=.
    echo systemd network
}

installkernel() {
    _glowplug_in_kdump && return 0
    # Do not select drivers by the hardware of this machine: this machine only builds the image, and another machine
    # boots the image.
    # shellcheck disable=SC2034 # instmods reads it
    local hostonly=''
    local -a drivers=(
        # Drivers of KubeVirt's buses: virtio, SATA (the default on amd64), SCSI, USB.
        virtio_pci virtio_mmio virtio_blk virtio_scsi
        ahci sd_mod sr_mod
        xhci_pci usb-storage uas
        # Drivers of the file systems. glowplug can read ISO 9660 without a driver, but FAT needs vfat.
        isofs vfat nls_cp437 nls_ascii nls_iso8859-1 nls_utf8
    )
    instmods "${drivers[@]}"
    # A missing driver is only a warning, because some kernels lack a driver on purpose, for example virtio_mmio. The warning
    # also shows a driver that the package of the kernel lacks by mistake. In the lists of the kernel, the name of a driver
    # has dashes or underscores.
    local driver
    for driver in "${drivers[@]}"; do
        grep -qs "/${driver//[-_]/[-_]}\.ko" "$srcmods/modules.dep" "$srcmods/modules.builtin" \
            || dwarn "glowplug: this kernel has no driver $driver"
    done
}

# Lists the drop-ins of the unit that are already in the image.
_glowplug_drop_ins() {
    find "$initdir$systemdsystemunitdir/$_glowplug_unit.d" "$initdir$systemdsystemconfdir/$_glowplug_unit.d" \
        -name '*.conf' 2>/dev/null
}

_glowplug_fail() {
    dfatal "glowplug: $*"
    exit 1
}

# Prints the network program of the image. If the image has several, the first of this list is used, as in the module
# `network` of dracut 057 and 059. Newer versions of dracut try network-legacy last.
_glowplug_renderer() {
    local module
    for module in network-manager network-legacy systemd-networkd; do
        if dracut_module_included "$module"; then
            echo "$module"
            return
        fi
    done
    return 1
}

# Makes NetworkManager read our arguments. NetworkManager 1.54 and newer has a unit instead of dracut's hook, and this
# unit reads only /proc/cmdline.
_glowplug_network_manager() {
    local unit=NetworkManager-config-initrd.service generator command
    local unit_dir="$initdir$systemdsystemunitdir"
    if [[ ! -e $unit_dir/$unit ]]; then
        # Older versions use a hook of dracut. The hook passes the output of getcmdline, which includes our file, to the
        # generator.
        grep -qsr nm_generate_connections "$initdir"/{usr/lib,var/lib,lib}/dracut/hooks/cmdline \
            || _glowplug_fail "neither $unit nor a hook of dracut would read our arguments"
        return
    fi
    # NetworkManager's own unit (1.58) starts NetworkManager in the background. systemd then regards the unit as ended,
    # and does not stop NetworkManager when the boot leaves the initramfs. In that step, NetworkManager would undo the
    # changes of CoreOS, and the real root would have addresses without routes.
    command=$(sed -n 's/^ExecStart=//p' "$unit_dir/NetworkManager-initrd.service" 2>/dev/null)
    if [[ $command && $command != *[[:space:]]* ]]; then
        mkdir -p "$unit_dir/NetworkManager-initrd.service.d"
        printf '[Service]\nExecStart=\nExecStart=%s --no-daemon\n' "$command" \
            >"$unit_dir/NetworkManager-initrd.service.d/50-glowplug.conf" \
            || _glowplug_fail "cannot write a drop-in for NetworkManager-initrd.service"
    fi
    # Versions of dracut that know the unit have a drop-in with the same effect as our drop-in.
    if cat "$unit_dir/$unit.d"/*.conf 2>/dev/null | grep -q getcmdline; then
        return
    fi
    for generator in /usr/libexec /usr/lib/NetworkManager /usr/lib /usr/libexec/NetworkManager; do
        generator+=/nm-initrd-generator
        [[ -x $initdir$generator ]] && break
        generator=
    done
    [[ $generator ]] || _glowplug_fail "the image has $unit and no nm-initrd-generator"
    # The module base installs dracut-lib.sh, but only after this module.
    dracut_module_included base || _glowplug_fail "the image has $unit but no dracut-lib.sh, which passes our arguments to the unit"
    mkdir -p "$unit_dir/$unit.d"
    sed "s,@GENERATOR@,$generator," "$moddir/NetworkManager-config-initrd.conf" >"$unit_dir/$unit.d/50-glowplug.conf" \
        || _glowplug_fail "cannot write a drop-in for $unit"
}

# Makes networkd's generator read the default arguments. Without the drop-in, the generator reads only /proc/cmdline,
# which lacks these arguments.
_glowplug_networkd() {
    local unit=systemd-network-generator.service generator="$systemdutildir/systemd-network-generator"
    [[ -e $initdir$systemdsystemunitdir/$unit && -x $initdir$generator ]] \
        || _glowplug_fail "there is no $unit, which would read the default arguments"
    dracut_module_included base || _glowplug_fail "the image has $unit but no dracut-lib.sh, which passes our arguments to the unit"
    mkdir -p "$initdir$systemdsystemunitdir/$unit.d"
    sed "s,@GENERATOR@,$generator," "$moddir/systemd-network-generator.conf" \
        >"$initdir$systemdsystemunitdir/$unit.d/50-glowplug.conf" || _glowplug_fail "cannot write a drop-in for $unit"
    dracut_module_included systemd-resolved \
        || dwarn "glowplug: without the dracut module systemd-resolved no program in the initramfs queries the name servers"
}

# Copies the default arguments of afterburn into a drop-in of our unit, unless another drop-in sets our default
# arguments or, for strict mode, unsets them. Warns if afterburn has no default arguments either. Fedora CoreOS has its
# default arguments in a drop-in of afterburn, and later reads this drop-in to distinguish the default network from a
# network that a person requested. So glowplug must use the same default.
_glowplug_default() {
    local drop_ins value
    mapfile -t drop_ins < <(_glowplug_drop_ins)
    if ((${#drop_ins[@]})) \
        && grep -qE "$_glowplug_variable=|^UnsetEnvironment=(.* )?$_glowplug_variable( |\$)" "${drop_ins[@]}"; then
        return
    fi
    value=$(sed -n 's/^Environment=\(["'\'']\{0,1\}\)AFTERBURN_NETWORK_KARGS_DEFAULT=\(.*\)$/\1'$_glowplug_variable'=\2/p' \
        "$initdir$systemdsystemunitdir"/afterburn-network-kargs.service.d/*.conf 2>/dev/null | tail -n 1)
    if [[ $value ]]; then
        printf '[Service]\nEnvironment=%s\n' "$value" \
            >"$initdir$systemdsystemunitdir/$_glowplug_unit.d/20-default-of-afterburn.conf"
    else
        dwarn "glowplug: no drop-in of $_glowplug_unit sets $_glowplug_variable (an empty value means no arguments):" \
            "a KubeVirt machine that needs a default will not boot"
    fi
}

# Warns if the arguments that dracut's configuration adds to every image configure the network: glowplug would ignore all
# drives.
_glowplug_arguments() {
    if [[ " ${kernel_cmdline-}" =~ [[:space:]](ip|bond|vlan|bridge|team)= ]]; then
        dwarn "glowplug: kernel_cmdline configures the network, so no machine gets the network of its drive:" \
            "set the default arguments with $_glowplug_variable"
    fi
}

# Prints the target that starts the unit, for the network program of the image. Only the first boot of an image with
# Ignition reaches ignition-complete.target. Later boots of such an image use the profiles of NetworkManager that CoreOS has
# copied to the real root. No program keeps what the unit writes for another network program, so each boot needs it. The
# boot loader may choose another program than NetworkManager if the image has it.
_glowplug_target() {
    if [[ $1 == network-manager ]] && dracut_module_included ignition && ! dracut_module_included systemd-networkd; then
        echo ignition-complete.target
    else
        echo initrd.target
    fi
}

# Disables a unit of afterburn for machines on KubeVirt. The drop-in has no effect if the image does not have the unit.
_glowplug_stand_back() {
    inst_simple "$moddir/$1.conf" "$systemdsystemunitdir/$1.service.d/50-glowplug.conf" || exit 1
}

install() {
    _glowplug_in_kdump && return 0
    local program renderer unit_dir
    renderer=$(_glowplug_renderer) \
        || _glowplug_fail "the image has no network program:" \
            "add the dracut module network-manager, systemd-networkd or network-legacy"

    # The unit expects the program at this path, even if the program is at another path on this machine.
    program=$(find_binary glowplug) || _glowplug_fail "there is no glowplug"
    # inst_binary also installs the libraries that the program is linked to.
    inst_binary "$program" /usr/bin/glowplug || exit 1
    inst_multiple modprobe || exit 1
    # dracut 057 does not install this unit of systemd; RHEL 9 has installed it since August 2025.
    inst_multiple -o "$systemdsystemunitdir/modprobe@.service"
    [[ -e $initdir$systemdsystemunitdir/modprobe@.service ]] \
        || _glowplug_fail "the image has no modprobe@.service, so no driver would be there in time"

    # This udev rule creates the symbolic link with the label of a drive that is attached as a CD-ROM. Ignition uses
    # this link to find the drive.
    inst_rules 60-cdrom_id.rules
    [[ -e $initdir$udevdir/rules.d/60-cdrom_id.rules ]] || _glowplug_fail "there is no 60-cdrom_id.rules"

    unit_dir="$initdir$systemdsystemunitdir/$_glowplug_unit.d"
    inst_simple "$moddir/$_glowplug_unit" "$systemdsystemunitdir/$_glowplug_unit" || exit 1
    mkdir -p "$unit_dir"
    printf '[Service]\nEnvironment=GLOWPLUG_RENDERER=%s\n' "$renderer" >"$unit_dir/10-renderer.conf" || exit 1
    # Install the drop-ins of the distribution, too.
    inst_multiple -o "$systemdsystemunitdir/$_glowplug_unit.d/*.conf" "$systemdsystemconfdir/$_glowplug_unit.d/*.conf"
    _glowplug_default
    _glowplug_arguments
    case $renderer in
        network-manager) _glowplug_network_manager ;;
        systemd-networkd) _glowplug_networkd ;;
    esac

    # afterburn supports KubeVirt too. If both programs configured the NICs of one machine, each program would rename
    # the NICs that the other program has named.
    _glowplug_stand_back afterburn-network-kargs

    # This unit copies profiles of NetworkManager. The unit does nothing if kernel arguments configure the network.
    if [[ $renderer == network-manager ]]; then
        inst_multiple cp mkdir || exit 1
        inst_simple "$moddir/glowplug-network-profiles.service" "$systemdsystemunitdir/glowplug-network-profiles.service" \
            || exit 1
        $SYSTEMCTL -q --root "$initdir" add-requires initrd.target glowplug-network-profiles.service || exit 1
    fi

    $SYSTEMCTL -q --root "$initdir" add-requires "$(_glowplug_target "$renderer")" "$_glowplug_unit" || exit 1
    if dracut_module_included ignition; then
        # The hostname is written only on the first boot. Without Ignition there is no first boot, and each boot would overwrite a
        # hostname that a person has changed.
        inst_multiple mkdir || exit 1
        inst_simple "$moddir/glowplug-hostname.service" "$systemdsystemunitdir/glowplug-hostname.service" || exit 1
        _glowplug_stand_back afterburn-hostname
        $SYSTEMCTL -q --root "$initdir" add-wants ignition-complete.target glowplug-hostname.service || exit 1
    fi

    # Make the directory of the arguments, because dracut does not make this directory in every image.
    mkdir -p "$initdir/etc/cmdline.d" || exit 1
}

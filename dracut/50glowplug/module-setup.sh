#!/bin/bash
# The network of a KubeVirt machine from its config drive, before anything fetches over it.
#
# shellcheck disable=SC2154 # moddir, initdir, srcmods and the directories of udev and systemd come from dracut

_glowplug_unit=glowplug-network-kargs.service
_glowplug_variable=GLOWPLUG_NETWORK_KARGS_DEFAULT

# A crash kernel has to save the memory of the machine that crashed, and nothing else. kdump makes its image with the same
# configuration, which asks for this module by name. dracut fails when a module that was asked for declines in check(), so
# the module is there and does nothing.
_glowplug_in_kdump() {
    # shellcheck disable=SC2154 # mkdumprd sets it
    [[ $IN_KDUMP == 1 ]]
}

check() {
    _glowplug_in_kdump && return 255
    require_binaries glowplug modprobe || return 1
    # Only where it is asked for by name: an image that never boots on KubeVirt has no use for it, and one that does needs
    # to decide about its default arguments.
    return 255
}

depends() {
    _glowplug_in_kdump && return 0
    # network: whatever reads the arguments, and the udev rules for ifname=.
    # systemd, systemd-modules-load: our unit, and in one or the other, by dracut's version, modprobe@.service.
    echo systemd systemd-modules-load network
}

installkernel() {
    _glowplug_in_kdump && return 0
    # Whatever the machine has on which this image is built: the drive is that of another one.
    # shellcheck disable=SC2034 # instmods reads it
    local hostonly=''
    local -a drivers=(
        # KubeVirt's buses: virtio, SATA (its default on amd64), SCSI, USB.
        virtio_pci virtio_mmio virtio_blk virtio_scsi
        ahci sd_mod sr_mod
        xhci_pci usb-storage uas
        # The file systems. glowplug also reads ISO 9660 without its driver; FAT needs vfat.
        isofs vfat nls_cp437 nls_ascii nls_iso8859-1 nls_utf8
    )
    instmods "${drivers[@]}"
    # One that is missing may be missing on purpose, as virtio_mmio on some kernels. One that was forgotten is found here.
    # It is looked for in the kernel's own lists, with either spelling of a dash.
    local driver
    for driver in "${drivers[@]}"; do
            grep -qs "/${driver//[-_]/[-_]}\.ko" "$srcmods/modules.dep" "$srcmods/modules.builtin" \
            || dwarn "glowplug: this kernel has no driver $driver"
    done
}

# Every drop-in of the unit that is in the image so far.
_glowplug_drop_ins() {
    find "$initdir$systemdsystemunitdir/$_glowplug_unit.d" "$initdir$systemdsystemconfdir/$_glowplug_unit.d" \
        -name '*.conf' 2>/dev/null
}

_glowplug_fail() {
    dfatal "glowplug: $*"
    exit 1
}

# Who will bring the network up: where there are several, the one that dracut's module `network` takes.
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

# NetworkManager from 1.54 on has a unit for what dracut's hook did before, and reads /proc/cmdline there.
_glowplug_network_manager() {
    local unit=NetworkManager-config-initrd.service generator
    local unit_dir="$initdir$systemdsystemunitdir"
    if [[ ! -e $unit_dir/$unit ]]; then
        # dracut's own way: a hook that hands the generator what getcmdline reads, our file among it.
        grep -qsr nm_generate_connections "$initdir"/{usr/lib,var/lib,lib}/dracut/hooks/cmdline \
            || _glowplug_fail "neither $unit nor a hook of dracut would read our arguments"
        return
    fi
    # dracut brings a drop-in that mends it, in versions that know the unit.
    if cat "$unit_dir/$unit.d"/*.conf 2>/dev/null | grep -q getcmdline; then
        return
    fi
    for generator in /usr/libexec /usr/lib/NetworkManager /usr/lib /usr/libexec/NetworkManager; do
        generator+=/nm-initrd-generator
        [[ -x $initdir$generator ]] && break
        generator=
    done
    [[ $generator ]] || _glowplug_fail "the image has $unit and no nm-initrd-generator"
    # It brings dracut-lib.sh, later than we run.
    dracut_module_included base || _glowplug_fail "the image has $unit and no dracut-lib.sh to tell it of our arguments"
    mkdir -p "$unit_dir/$unit.d"
    sed "s,@GENERATOR@,$generator," "$moddir/NetworkManager-config-initrd.conf" >"$unit_dir/$unit.d/50-glowplug.conf" \
        || _glowplug_fail "cannot write a drop-in for $unit"
}

# networkd's generator reads /proc/cmdline alone. The default arguments of a machine are not there.
_glowplug_networkd() {
    local unit=systemd-network-generator.service generator="$systemdutildir/systemd-network-generator"
    [[ -e $initdir$systemdsystemunitdir/$unit && -x $initdir$generator ]] \
        || _glowplug_fail "there is no $unit, which would read the default arguments"
    dracut_module_included base || _glowplug_fail "the image has $unit and no dracut-lib.sh to tell it of our arguments"
    mkdir -p "$initdir$systemdsystemunitdir/$unit.d"
    sed "s,@GENERATOR@,$generator," "$moddir/systemd-network-generator.conf" \
        >"$initdir$systemdsystemunitdir/$unit.d/50-glowplug.conf" || _glowplug_fail "cannot write a drop-in for $unit"
    dracut_module_included systemd-resolved \
        || dwarn "glowplug: without the dracut module systemd-resolved nobody in the initramfs asks the name servers"
}

# Fedora CoreOS says its default in afterburn's drop-in, and later reads it there to tell a default network from one that
# somebody asked for. It must be the same here.
_glowplug_default() {
    local drop_ins value
    mapfile -t drop_ins < <(_glowplug_drop_ins)
    if ((${#drop_ins[@]})) && grep -q "$_glowplug_variable=" "${drop_ins[@]}"; then
        return
    fi
    value=$(sed -n 's/^Environment=\(["'\'']\{0,1\}\)AFTERBURN_NETWORK_KARGS_DEFAULT=\(.*\)$/\1'$_glowplug_variable'=\2/p' \
        "$initdir$systemdsystemunitdir"/afterburn-network-kargs.service.d/*.conf 2>/dev/null | tail -n 1)
    if [[ $value ]]; then
        printf '[Service]\nEnvironment=%s\n' "$value" \
            >"$initdir$systemdsystemunitdir/$_glowplug_unit.d/20-default-of-afterburn.conf"
    else
        dwarn "glowplug: no drop-in of $_glowplug_unit sets $_glowplug_variable (to nothing for none):" \
            "a KubeVirt machine that needs a default will not boot"
    fi
}

# Has a unit of afterburn leave KubeVirt to ours, whether or not the unit is in this image.
_glowplug_stand_back() {
    inst_simple "$moddir/$1.conf" "$systemdsystemunitdir/$1.service.d/50-glowplug.conf" || exit 1
}

install() {
    _glowplug_in_kdump && return 0
    local program renderer unit_dir
    renderer=$(_glowplug_renderer) \
        || _glowplug_fail "nobody would bring the network up:" \
            "add the dracut module network-manager, systemd-networkd or network-legacy"

    # Wherever it was found, the unit expects it there.
    program=$(find_binary glowplug) || _glowplug_fail "there is no glowplug"
    # With its libraries, where a distribution has linked it to any.
    inst_binary "$program" /usr/bin/glowplug || exit 1
    inst_multiple modprobe || exit 1
    [[ -e $initdir$systemdsystemunitdir/modprobe@.service ]] \
        || _glowplug_fail "the image has no modprobe@.service, so no driver would be there in time"

    # The link by label of a drive on a CD-ROM, by which Ignition finds it.
    inst_rules 60-cdrom_id.rules
    [[ -e $initdir$udevdir/rules.d/60-cdrom_id.rules ]] || _glowplug_fail "there is no 60-cdrom_id.rules"

    unit_dir="$initdir$systemdsystemunitdir/$_glowplug_unit.d"
    inst_simple "$moddir/$_glowplug_unit" "$systemdsystemunitdir/$_glowplug_unit" || exit 1
    mkdir -p "$unit_dir"
    printf '[Service]\nEnvironment=GLOWPLUG_RENDERER=%s\n' "$renderer" >"$unit_dir/10-renderer.conf" || exit 1
    # The distribution's.
    inst_multiple -o "$systemdsystemunitdir/$_glowplug_unit.d/*.conf" "$systemdsystemconfdir/$_glowplug_unit.d/*.conf"
    _glowplug_default
    case $renderer in
        network-manager) _glowplug_network_manager ;;
        systemd-networkd) _glowplug_networkd ;;
    esac

    # afterburn knows KubeVirt as well. Two who name the cards of one machine undo each other.
    _glowplug_stand_back afterburn-network-kargs

    # With Ignition on the first boot alone, which is when its target is asked for: NetworkManager's profiles carry the
    # network on. Without it on every boot.
    if dracut_module_included ignition; then
        $SYSTEMCTL -q --root "$initdir" add-requires ignition-complete.target "$_glowplug_unit" || exit 1

        # The hostname is written once. In an image without a first boot it would undo, on every boot, what somebody changed.
        inst_multiple mkdir || exit 1
        inst_simple "$moddir/glowplug-hostname.service" "$systemdsystemunitdir/glowplug-hostname.service" || exit 1
        _glowplug_stand_back afterburn-hostname
        $SYSTEMCTL -q --root "$initdir" add-wants ignition-complete.target glowplug-hostname.service || exit 1
    else
        $SYSTEMCTL -q --root "$initdir" add-requires initrd.target "$_glowplug_unit" || exit 1
    fi

    # Where the arguments go. dracut does not make it in every image.
    mkdir -p "$initdir/etc/cmdline.d" || exit 1
}

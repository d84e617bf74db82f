#!/bin/bash
# Copies the network profiles of the initramfs to the real root, by the rules of CoreOS, and removes the network from
# the initramfs. The script writes what it did to /run/boot-test/teardown.
set -eu
profiles=NetworkManager/system-connections
drop_in=/usr/lib/systemd/system/afterburn-network-kargs.service.d/50-afterburn-network-kargs-default.conf
compared=/run/boot-test/compared
mkdir -p /run/boot-test $compared/{found,default,data}
say() { echo "$*" >>/run/boot-test/teardown; }

# Succeeds if the profiles are the profiles of the default arguments. UUIDs and the wait for a device are not compared.
is_default() {
    local generator default
    # As in CoreOS, the first boot fails without this file or without this variable.
    default=$(sed -n "s/^Environment=AFTERBURN_NETWORK_KARGS_DEFAULT='\(.*\)'$/\1/p" $drop_in)
    [[ $default ]] || { say "no default"; exit 1; }
    for generator in /usr/libexec/nm-initrd-generator /usr/lib/NetworkManager/nm-initrd-generator; do
        [[ -x $generator ]] && break
    done
    cp /run/$profiles/* $compared/found/
    # shellcheck disable=SC2086 # several arguments
    $generator -c $compared/default -i $compared/data -- $default
    rm -f $compared/*/lo.nmconnection
    sed -i '/^uuid=/d; /^wait-device-timeout=/d' $compared/{found,default}/*
    diff -r $compared/found $compared/default >/dev/null
}

carry() {
    if [[ -d /sysroot/etc/$profiles && $(ls -A /sysroot/etc/$profiles) ]]; then
        say "the real root has a network"
    elif ! [[ $(ls -A /run/$profiles 2>/dev/null) ]]; then
        say "no profiles"
    elif is_default; then
        say "left out the default"
    else
        for profile in "/run/$profiles"/*; do
            name=$(basename "$profile")
            [[ $name == lo.nmconnection ]] && continue
            say "copied $name"
            [[ ! -d /sysroot/etc/$profiles ]] || cp "$profile" /sysroot/etc/$profiles/
        done
    fi
    rules=/etc/udev/rules.d/80-ifname.rules
    if [[ -e $rules && -d /sysroot/etc/udev/rules.d ]]; then
        say "copied $rules"
        cp $rules /sysroot/etc/udev/rules.d/
    fi
    if [[ -s /run/NetworkManager/initrd/hostname && ! -e /sysroot/etc/hostname ]]; then
        say "copied the hostname"
        cp /run/NetworkManager/initrd/hostname /sysroot/etc/hostname
    fi
}

carry
# Remove the network only if the real root has NetworkManager. The small root has no NetworkManager and reports the
# network of the initramfs.
if [[ -d /sysroot/etc/$profiles ]]; then
    for interface in /sys/class/net/*; do
        name=$(basename "$interface")
        case $name in lo | bonding_masters) continue ;; esac
        # Deleting a virtual interface also deletes the interfaces on top of it, so a later interface of this loop may
        # be gone.
        [[ ! -e $interface ]] || ip link delete "$name" 2>/dev/null || { ip link set "$name" down; ip addr flush dev "$name"; }
    done
    ip route flush table main
    rm -rf /run/NetworkManager
fi

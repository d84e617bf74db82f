#!/bin/sh
# Prints the state that exists only in the initramfs.
show() { # title units
    title=$1
    shift
    echo "== $title"
    systemctl show -p Id,Result,ActiveState,ConditionResult,ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic,InactiveExitTimestampMonotonic,ActiveEnterTimestampMonotonic "$@"
}
show units glowplug-network-kargs.service modprobe@virtio_blk.service afterburn-network-kargs.service nm-initrd.service nm-wait-online-initrd.service NetworkManager-config-initrd.service NetworkManager-initrd.service NetworkManager-wait-online-initrd.service dracut-cmdline.service teardown.service glowplug-network-profiles.service
echo '== fragment'
cat /etc/cmdline.d/50-glowplug-network-kargs.conf 2>/dev/null
echo '== files of networkd'
ls /run/systemd/network 2>/dev/null
echo '== name servers of the initramfs'
# Print the name servers of dracut's own scripts, and the name servers that networkd would pass to systemd-resolved.
sed -n 's/^nameserver //p' /etc/resolv.conf 2>/dev/null
cat /run/systemd/netif/links/* 2>/dev/null | sed -n 's/^DNS=//p'
echo '== network of the initramfs'
# An image with networkd does not contain the program `ip`.
ip -o address show 2>/dev/null
echo '== profiles of the initramfs'
ls /run/NetworkManager/system-connections 2>/dev/null
echo '== afterburn'
cat /run/afterburn-acted 2>/dev/null
echo '== journal'
journalctl -b -o short-monotonic --no-hostname -u glowplug-network-kargs.service

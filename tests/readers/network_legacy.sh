#!/bin/sh
# Prints how the scripts of dracut's module network-legacy understand the kernel arguments in LINE. Each setting is a
# line, with fields separated by bars. SCRATCH is an empty directory. SCRIPTS has dracut's own functions and scripts;
# this script prints them when it runs with an argument. MODULES is dracut's directory of modules.
#
# The scripts of dracut write below /tmp and /etc. Here SCRATCH replaces these directories. Other functions replace the
# functions of dracut's library that would change the machine. dracut's own code splits the line into arguments.
#
# shellcheck disable=SC2154 # what the scripts set
if [ $# -gt 0 ]; then
    functions() { # file names
        file=$1
        shift
        for name in "$@"; do
            sed -n "/^$name()/,/^}/p" "$file" | grep . || exit 1
        done
    }
    legacy=$(echo "$MODULES"/*network-legacy)
    functions "$MODULES"/*base/dracut-dev-lib.sh str_replace
    functions "$MODULES"/*base/dracut-lib.sh strglob strglobin str_starts strstr
    functions "$MODULES"/*network/net-lib.sh ip_to_var route_to_var parse_ifname_opts fix_bootif
    functions "$legacy/ifup.sh" get_vid
    for script in parse-vlan parse-bond parse-bridge parse-ip-opts; do
        # shellcheck disable=SC2016 # for the scripts
        sed 's,/tmp/,$SCRATCH/tmp/,g; s,/etc/cmdline.d/,$SCRATCH/etc/cmdline.d/,g' "$legacy/$script.sh" || exit 1
    done
    exit
fi

mkdir -p "$SCRATCH/tmp" "$SCRATCH/etc/cmdline.d" "$SCRATCH/bin"
ln -s "$MODULES/../dracut-util" "$SCRATCH/bin/dracut-getarg"
ln -s "$MODULES/../dracut-util" "$SCRATCH/bin/dracut-getargs"
die() {
    echo "die|$*"
    exit 1
}
warn() { echo "warn|$*"; }
info() { :; }
getarg() { CMDLINE="$LINE" "$SCRATCH/bin/dracut-getarg" "$1"; }
getargs() { CMDLINE="$LINE" "$SCRATCH/bin/dracut-getargs" "$1"; }
getargbool() { [ "$1" = 1 ]; }
eval "$SCRIPTS"

for i in "$SCRATCH"/tmp/vlan.*; do
    case "$i" in *.phy | *'*') continue ;; esac
    # shellcheck source=/dev/null
    . "$i"
    echo "vlan|$vlanname|$phydevice|$(get_vid "$vlanname")"
done
for i in "$SCRATCH"/tmp/bond.*.info; do
    [ -e "$i" ] || continue
    # shellcheck source=/dev/null
    . "$i"
    echo "bond|$bondname|$bondslaves|$bondoptions|$bondmtu"
done
for i in "$SCRATCH"/tmp/bridge.*.info; do
    [ -e "$i" ] || continue
    # shellcheck source=/dev/null
    . "$i"
    echo "bridge|$bridgename|$bridgeslaves"
done
for i in $(getargs ifname=); do
    parse_ifname_opts "$i"
    echo "ifname|$ifname_if|$ifname_mac"
done
for i in $(getargs ip=); do
    ip_to_var "$i"
    echo "ip|$ip|$srv|$gw|$mask|$hostname|$dev|$autoconf|$mtu|$macaddr|$dns1$dns2"
done
for i in $(getargs rd.route); do
    route_to_var "$i" || die "no route: $i"
    echo "route|$route_mask|$route_gw|$route_dev"
done
for i in $(getargs nameserver); do
    echo "nameserver|$i"
done
for i in $(getargs rd.peerdns=); do
    echo "peerdns|$i"
done

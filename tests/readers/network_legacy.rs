//! Runs dracut's own scripts on kernel arguments, and reduces expected profiles to the features of these scripts.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::process::Command;
use std::sync::OnceLock;

use super::networks::OnLink;
use crate::support::documents::DefaultRoute;
use crate::support::profiles::{Cidr, DeviceKey, Family, Method, Profile, Profiles};

/// Directory of dracut's modules.
const MODULES: &str = "/usr/lib/dracut/modules.d";

/// Path of the script that runs dracut's own scripts.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/readers/network_legacy.sh");

/// Whether a warning only means that this machine lacks the NIC of the argument.
fn is_about_this_machine(warning: &str) -> bool {
    warning.starts_with("Network interface '") && warning.ends_with("' does not exist")
}

/// Names of the devices that arguments create, and of the NICs that arguments rename.
#[derive(Default)]
struct Names<'a> {
    nics: BTreeMap<&'a str, &'a str>,
    bonds: BTreeMap<&'a str, Vec<&'a str>>,
    bridges: BTreeMap<&'a str, Vec<&'a str>>,
    vlans: BTreeMap<&'a str, (&'a str, u16)>,
}

/// Runs the scripts on a line of arguments, and returns the profiles that the scripts read from the line.
///
/// # Errors
///
/// Fails if a script stops the boot or prints a warning, or if an interface has a second argument.
pub(crate) fn read(line: &str) -> Result<Profiles, String> {
    static SCRIPTS: OnceLock<Result<String, String>> = OnceLock::new();
    let scripts = SCRIPTS.get_or_init(|| {
        let answer = Command::new(SCRIPT).arg("collect").env("MODULES", MODULES).output();
        let answer = answer.map_err(|e| format!("running {SCRIPT}: {e}"))?;
        let missing =
            || format!("{MODULES} lacks a function or script of dracut: install the Debian package dracut-network");
        let text = String::from_utf8(answer.stdout).map_err(|e| e.to_string())?;
        answer.status.success().then_some(text).ok_or_else(missing)
    });
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    let answer = Command::new(SCRIPT)
        .env("LINE", line)
        .env("SCRATCH", directory.path())
        .env("SCRIPTS", scripts.as_ref()?)
        .env("MODULES", MODULES)
        .output()
        .map_err(|e| format!("running {SCRIPT}: {e}"))?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&answer.stderr);
    if !answer.status.success() || !complaints.is_empty() {
        return Err(format!("{SCRIPT} ended with {} and printed: {complaints}{text}", answer.status));
    }
    understand(&text)
}

fn understand(text: &str) -> Result<Profiles, String> {
    let lines = || text.lines().map(|line| line.split('|').collect::<Vec<_>>());
    let mut names = Names::default();
    for line in lines() {
        match line[..] {
            ["ifname", name, mac] => _ = names.nics.insert(name, mac),
            ["bond", name, ports, ..] => _ = names.bonds.insert(name, ports.split(' ').collect()),
            ["bridge", name, ports] => _ = names.bridges.insert(name, ports.split(' ').collect()),
            ["vlan", name, parent, id] => _ = names.vlans.insert(name, (parent, parsed(id)?)),
            ["warn", warning] if !is_about_this_machine(warning) => return Err(warning.to_owned()),
            _ => {}
        }
    }
    let mut profiles = Profiles::default();
    for name in names.vlans.keys().chain(names.bonds.keys()).chain(names.bridges.keys()) {
        profiles.0.entry(names.key(name)).or_default();
    }
    let mut nameservers = Vec::new();
    let mut addressed = Vec::new();
    let mut takes_no_servers = false;
    for line in lines() {
        match line[..] {
            ["bond", name, ports, options, mtu] => {
                let key = names.key(name);
                for port in ports.split(' ') {
                    profiles.0.entry(names.key(port)).or_default().port_of = Some(key.clone());
                }
                let bond = profiles.0.entry(key).or_default();
                bond.name = Some(name.to_owned());
                bond.mtu = optional(mtu)?;
                for option in options.split(' ') {
                    let (option, value) = option.split_once('=').ok_or_else(|| format!("option {option:?}"))?;
                    let nic = names.nics.get(value).filter(|_| option == "primary").copied();
                    bond.bond_options.insert(option.to_owned(), nic.unwrap_or(value).to_owned());
                }
            }
            ["bridge", name, ports] => {
                let key = names.key(name);
                for port in ports.split(' ') {
                    profiles.0.entry(names.key(port)).or_default().port_of = Some(key.clone());
                }
                profiles.0.entry(key).or_default().name = Some(name.to_owned());
            }
            ["ip", address, "", gateway, mask, "", device, method, mtu, mac, ""] => {
                let key = names.key(device);
                let profile = profiles.0.entry(key.clone()).or_default();
                ip(profile, address, gateway, mask, method).map_err(|e| format!("{key}: {e}"))?;
                profile.mtu = profile.mtu.or(optional(mtu)?);
                profile.cloned_mac = Some(mac.to_owned()).filter(|mac| !mac.is_empty());
                addressed.push(key);
            }
            ["route", destination, gateway, device] => {
                let destination: Cidr = destination.parse()?;
                let key = names.key(device);
                // `setup_net` compares this field with the name of the interface, so the field must be a name.
                if device.contains(':') {
                    return Err(format!(
                        "route {destination} names its NIC by {device}, which is not the name of an interface"
                    ));
                }
                let profile = profiles.0.get_mut(&key).ok_or_else(|| format!("{key} has a route and nothing else"))?;
                let family = if destination.address.is_ipv4() { &mut profile.ipv4 } else { &mut profile.ipv6 };
                family.routes.insert((destination, optional(gateway)?));
            }
            ["nameserver", server] => nameservers.push(parsed::<IpAddr>(server)?),
            ["peerdns", "0"] => takes_no_servers = true,
            ["ifname" | "vlan" | "warn", ..] => {}
            _ => return Err(format!("unknown line {line:?}")),
        }
    }
    for key in addressed {
        let profile = profiles.0.entry(key).or_default();
        for (family, is_ipv4) in [(&mut profile.ipv4, true), (&mut profile.ipv6, false)] {
            if !matches!(family.method, Method::Disabled | Method::LinkLocal) {
                family.dns = nameservers.iter().copied().filter(|server| server.is_ipv4() == is_ipv4).collect();
            }
            family.ignores_dns = takes_no_servers && family.method == Method::Auto;
        }
    }
    Ok(profiles)
}

/// Applies an `ip=` argument to a profile, as `ifup` does.
fn ip(profile: &mut Profile, address: &str, gateway: &str, mask: &str, method: &str) -> Result<(), String> {
    let auto = |family: &mut Family| family.method = Method::Auto;
    match (method, address) {
        ("none", address) => {
            let address = Cidr { address: parsed(address)?, length: parsed(mask)? };
            let family = if address.address.is_ipv4() { &mut profile.ipv4 } else { &mut profile.ipv6 };
            *family = Family { method: Method::Manual, gateway: optional(gateway)?, ..Family::default() };
            family.addresses.insert(address);
        }
        ("dhcp", "") => auto(&mut profile.ipv4),
        ("dhcp6" | "auto6", "") => auto(&mut profile.ipv6),
        ("link6", "") => profile.ipv6.method = Method::LinkLocal,
        ("dhcp,dhcp6", "") => {
            auto(&mut profile.ipv4);
            auto(&mut profile.ipv6);
        }
        other => return Err(format!("unknown method {other:?}")),
    }
    Ok(())
}

/// Reduces expected profiles to the features of network-legacy, by the rule of `glowplug::render::network_legacy`. The
/// profiles do not say which of several addresses is first, so `read` decides this. If network-legacy does not support
/// a default route, the next best route of `defaults` replaces this route.
pub(crate) fn reduced(truth: &Profiles, defaults: &[DefaultRoute], on_link: &OnLink, read: &Profiles) -> Profiles {
    let none = Profile::default();
    let profiles = truth
        .0
        .iter()
        .map(|(key, profile)| (key.clone(), reduced_profile(key, profile, on_link, read.0.get(key).unwrap_or(&none))));
    let mut reduced = Profiles(profiles.collect());
    for ipv4 in [true, false] {
        let has_default = |profiles: &Profiles| {
            let family = |profile: &Profile| family(profile, ipv4).clone();
            let mut families = profiles.0.values().map(family);
            families.any(|it| it.gateway.is_some() || it.routes.iter().any(|(to, _)| to.length == 0))
        };
        if !has_default(truth) || has_default(&reduced) {
            continue;
        }
        let mut left: Vec<_> = defaults.iter().filter(|it| it.ipv4 == ipv4 && is_left(it, truth, &reduced)).collect();
        // The expected profiles do not say which of several equal routes is first.
        let metric = left.first().map(|it| it.metric);
        left.retain(|it| Some(it.metric) == metric);
        let is_read = |it: &&&DefaultRoute| {
            let read = read.0.get(&it.key).map(|profile| family(profile, ipv4));
            read.is_some_and(|read| read.gateway == it.via || read.routes.contains(&(everything(ipv4), it.via)))
        };
        let next = left.iter().find(is_read).or(left.first()).copied();
        if let Some(DefaultRoute { key, via, .. }) = next
            && let Some(profile) = reduced.0.get_mut(key)
        {
            let family = if ipv4 { &mut profile.ipv4 } else { &mut profile.ipv6 };
            match via {
                Some(via) if family.method == Method::Manual => family.gateway = Some(*via),
                via => _ = family.routes.insert((everything(ipv4), *via)),
            }
            add_routes_to_gateways(family, on_link);
        }
    }
    reduced.agree_on_name_servers();
    // The arguments do not mention a NIC that only carries other links.
    reduced.0.retain(|key, profile| !matches!(key, DeviceKey::Nic(_) | DeviceKey::Any) || *profile != none);
    reduced
}

/// Whether the reduced profiles still allow this default route.
fn is_left(default: &DefaultRoute, truth: &Profiles, reduced: &Profiles) -> bool {
    let (Some(kept), Some(meant)) = (reduced.0.get(&default.key), truth.0.get(&default.key)) else { return false };
    let (kept, meant) = (family(kept, default.ipv4), family(meant, default.ipv4));
    kept.method != Method::Disabled && is_expressible(kept, meant, default.via)
}

fn family(profile: &Profile, ipv4: bool) -> &Family {
    if ipv4 { &profile.ipv4 } else { &profile.ipv6 }
}

fn everything(ipv4: bool) -> Cidr {
    let address = if ipv4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    Cidr { address, length: 0 }
}

/// Whether the gateway can be used without the addresses that the reduction removed.
fn is_expressible(kept: &Family, meant: &Family, via: Option<IpAddr>) -> bool {
    let reaches = |family: &Family, via| family.addresses.iter().any(|address| has(address, via));
    via.is_none_or(|via| reaches(kept, via) || !reaches(meant, via))
}

fn reduced_profile(key: &DeviceKey, profile: &Profile, on_link: &OnLink, read: &Profile) -> Profile {
    let Profile { ipv4, ipv6, .. } = profile;
    let is_sure = |family: &Family| family.gateway.is_some() && !family.addresses.is_empty();
    let keeps_ipv4 = ipv4.method != Method::Disabled && (is_sure(ipv4) || !is_sure(ipv6));
    // A profile with required DHCPv4 also accepts IPv6, but does not request IPv6.
    let asks_both = !ipv4.required
        && ipv4.method == Method::Auto
        && ipv6.method == Method::Auto
        && ipv4.addresses.is_empty()
        && ipv6.addresses.is_empty();
    let (kept, read_kept) = if keeps_ipv4 { (ipv4, &read.ipv4) } else { (ipv6, &read.ipv6) };
    let mut family = reduced_family(kept, on_link, read_kept);
    family.required = false;
    let is_static = family.method == Method::Manual;
    let is_used = family.method != Method::Disabled;
    let mut reduced = Profile { name: profile.name.clone(), ..Profile::default() };
    // network-legacy finds the VLAN id in another part of the name than NetworkManager.
    if matches!(key, DeviceKey::Vlan(..)) {
        reduced.name = None;
    }
    let has_mtu = matches!(key, DeviceKey::Bond(_)) || is_static || (keeps_ipv4 && is_used);
    reduced.mtu = profile.mtu.filter(|_| has_mtu);
    reduced.cloned_mac = profile.cloned_mac.clone().filter(|_| is_static);
    reduced.bond_options = profile.bond_options.clone();
    reduced.port_of = profile.port_of.clone();
    if keeps_ipv4 {
        reduced.ipv4 = family;
        if asks_both {
            reduced.ipv6 = Family { required: false, ..ipv6.clone() };
        }
    } else {
        reduced.ipv6 = family;
    }
    reduced
}

fn reduced_family(family: &Family, on_link: &OnLink, read: &Family) -> Family {
    let mut kept = family.clone();
    let near = |address: &&Cidr| family.gateway.is_some_and(|gateway| has(address, gateway));
    let mut near: Vec<Cidr> = family.addresses.iter().filter(near).copied().collect();
    if near.is_empty() {
        near.extend(&family.addresses);
    }
    let chosen = near.iter().find(|address| read.addresses.contains(address)).or_else(|| near.first()).copied();
    let Some(chosen) = chosen else {
        add_routes_to_gateways(&mut kept, on_link);
        return kept;
    };
    kept.method = Method::Manual;
    kept.addresses = [chosen].into();
    let before = kept.clone();
    kept.routes.retain(|(_, via)| is_expressible(&before, family, *via));
    add_routes_to_gateways(&mut kept, on_link);
    kept
}

/// Adds a route to each gateway outside all subnets.
fn add_routes_to_gateways(family: &mut Family, on_link: &OnLink) {
    let is_link_local = |gateway: IpAddr| matches!(gateway, IpAddr::V6(it) if it.is_unicast_link_local());
    let routes = family.routes.iter().filter_map(|(destination, via)| Some((*destination, (*via)?)));
    let gateway = family.gateway.map(|gateway| (everything(gateway.is_ipv4()), gateway));
    for route in routes.chain(gateway).collect::<Vec<_>>() {
        let gateway = route.1;
        let is_reached = |(destination, via): &(Cidr, Option<IpAddr>)| {
            via.is_none() && destination.length > 0 && has(destination, gateway)
        };
        let is_unknown = family.addresses.is_empty() && !on_link.contains(&route);
        let is_near = is_unknown || family.addresses.iter().any(|address| has(address, gateway));
        if !is_near && !is_link_local(gateway) && !family.routes.iter().any(is_reached) {
            let host = Cidr { address: gateway, length: Cidr::bits(gateway) };
            family.routes.insert((host, None));
        }
    }
}

/// Whether a subnet contains an address.
fn has(network: &Cidr, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    };
    let differs = bits(network.address) ^ bits(address);
    network.address.is_ipv4() == address.is_ipv4()
        && differs.checked_shr(128 - u32::from(network.length)).unwrap_or(0) == 0
}

fn optional<T: std::str::FromStr<Err: Display>>(text: &str) -> Result<Option<T>, String> {
    if text.is_empty() { Ok(None) } else { parsed(text).map(Some) }
}

fn parsed<T: std::str::FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e| format!("reading {text:?}: {e}"))
}

// === impl Names ===

impl Names<'_> {
    fn key(&self, name: &str) -> DeviceKey {
        let sorted = |ports: &[&str]| {
            let mut ports: Vec<String> = ports.iter().map(|port| self.key(port).bare()).collect();
            ports.sort_unstable();
            ports
        };
        if let Some((parent, id)) = self.vlans.get(name) {
            DeviceKey::Vlan(Box::new(self.key(parent)), *id)
        } else if let Some(ports) = self.bonds.get(name) {
            DeviceKey::Bond(sorted(ports))
        } else if let Some(ports) = self.bridges.get(name) {
            DeviceKey::Bridge(sorted(ports))
        } else if name.is_empty() {
            DeviceKey::Any
        } else {
            DeviceKey::Nic(self.nics.get(name).copied().unwrap_or(name).to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_argument_for_a_nic_stops_the_boot() {
        let error = read("ip=10.0.0.5:::24::eno1:none ip=eno1:dhcp").unwrap_err();
        assert_eq!(error.lines().last(), Some("Duplication configurations for 'eno1'"));
    }

    #[test]
    fn a_route_that_names_its_nic_by_a_mac_address_is_an_error() {
        let error = read("ip=[52:54:00:12:34:56]:dhcp rd.route=10.0.0.0/8:10.0.0.1:[52:54:00:12:34:56]").unwrap_err();
        assert_eq!(error, "route 10.0.0.0/8 names its NIC by 52:54:00:12:34:56, which is not the name of an interface");
    }

    #[test]
    fn the_arguments_of_a_bond_a_bridge_and_a_vlan_are_read_with_all_their_fields() {
        let read = read(
            "ifname=kv0:52:54:00:12:34:01 ifname=kv1:52:54:00:12:34:02 bond=bond0:kv0,kv1:mode=active-backup:1400 \
             vlan=bond0.5:bond0 bridge=br0:bond0.5 ip=10.0.0.5::10.0.0.1:24::br0:none:9000 nameserver=1.1.1.1",
        );
        let read = read.unwrap();
        assert_eq!(
            read.to_string(),
            "NIC 52:54:00:12:34:01\n  port of bond of 52:54:00:12:34:01 and 52:54:00:12:34:02\n  \
             ipv4 disabled\n  ipv6 disabled\n\
             NIC 52:54:00:12:34:02\n  port of bond of 52:54:00:12:34:01 and 52:54:00:12:34:02\n  \
             ipv4 disabled\n  ipv6 disabled\n\
             bond of 52:54:00:12:34:01 and 52:54:00:12:34:02\n  name bond0\n  mtu 1400\n  mode active-backup\n  \
             ipv4 disabled\n  ipv6 disabled\n\
             bridge of vlan 5 on bond of 52:54:00:12:34:01 and 52:54:00:12:34:02\n  name br0\n  mtu 9000\n  \
             ipv4 manual\n    address 10.0.0.5/24\n    gateway 10.0.0.1\n    dns 1.1.1.1\n  ipv6 disabled\n\
             vlan 5 on bond of 52:54:00:12:34:01 and 52:54:00:12:34:02\n  \
             port of bridge of vlan 5 on bond of 52:54:00:12:34:01 and 52:54:00:12:34:02\n  \
             ipv4 disabled\n  ipv6 disabled\n"
        );
    }
}

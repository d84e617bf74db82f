//! Generates networks that no OpenStack document can describe.

use glowplug::network::{
    BondMode, BondOptions, BridgeOptions, BridgePort, DhcpOverrides, Family, Ipv6Dynamic, Link, LinkIndex, LinkKind,
    Located, Mtu, NetworkConfig, Nic, Route, RoutingRule, VlanId,
};
use pnet_base::MacAddr;

use super::random::Random;

/// Generates the network of a seed. A seed always gives the same network.
pub(crate) fn model(seed: u64) -> NetworkConfig {
    let mut random = Random(seed ^ 0x6e65_7477_6f72_6b64);
    let mut links: Vec<Link> = Vec::new();
    for at in 0..random.between(2, 6) as usize {
        let nic = match random.between(0, 9) {
            0 => Nic::Name(format!("named{at}").parse().unwrap()),
            1 => pattern(at, &links, &mut random),
            kind => {
                let mac_address =
                    MacAddr::new(0x52, 0x54, random.next() as u8, random.next() as u8, random.next() as u8, at as u8);
                let name = (kind == 2).then(|| format!("lan{at}").parse().unwrap());
                Nic::MacAddress { mac_address, name }
            }
        };
        links.push(link(at, LinkKind::Nic(nic)));
    }
    let mut free: Vec<usize> = (0..links.len()).collect();
    if random.chance(1, 3) {
        let ports = take_ports(&mut free, &links, 2, &mut random);
        if !ports.is_empty() {
            let options = bond_options(&ports, &mut random);
            free.push(links.len());
            links.push(link(links.len(), LinkKind::Bond { name: "bond7".parse().unwrap(), ports, options }));
        }
    }
    if random.chance(1, 4) {
        let (at, parent) = (links.len(), LinkIndex::new(*random.pick(&free)));
        let id = VlanId::try_from(random.between(1, 4094) as i64).unwrap();
        let name = random.chance(1, 2).then(|| "storage".parse().unwrap());
        free.push(at);
        links.push(link(at, LinkKind::Vlan { name, parent, id }));
    }
    for nth in 0..random.between(0, 2) {
        let count = random.between(0, 2) as usize;
        let ports: Vec<LinkIndex> = take_ports(&mut free, &links, count, &mut random);
        let options = bridge_options(&ports, &mut random);
        free.push(links.len());
        let name = format!("br{nth}").parse().unwrap();
        links.push(link(links.len(), LinkKind::Bridge { name, ports, options }));
    }
    for at in free {
        // Some links get no addresses, for example parents of VLANs.
        match &links[at].kind {
            // A bridge without ports may have a carrier for a moment, so whether it requests an address depends on timing.
            LinkKind::Bridge { ports, .. } if ports.is_empty() => {
                links[at].ipv4.addresses.push(format!("10.{at}.0.5/24").parse().unwrap());
            }
            _ if random.chance(5, 6) => address(&mut links[at], at, &mut random),
            _ => {}
        }
    }
    // The kernel gives a bridge the smallest MTU of its ports.
    let of_bridge = |link: &Link| matches!(link.kind, LinkKind::Bridge { .. }).then(|| link.kind.made_of().to_vec());
    let ports: Vec<LinkIndex> = links.iter().filter_map(of_bridge).flatten().collect();
    for (at, link) in links.iter_mut().enumerate() {
        if random.chance(1, 5) && !ports.contains(&LinkIndex::new(at)) {
            link.mtu = Some(Mtu::try_from(*random.pick(&[1400, 1450, 1500])).unwrap());
        }
        if random.chance(1, 12) && !matches!(link.kind, LinkKind::Nic(Nic::Pattern { .. })) {
            link.cloned_mac_address = Some(MacAddr::new(2, 0, 0, 0xcc, random.next() as u8, at as u8));
        }
    }
    let mut network = NetworkConfig::new(links).unwrap();
    network.dns.nameservers = some(&["1.1.1.1", "2606:4700:4700::1111", "9.9.9.9"], &mut random);
    network.dns.search = some(&["example.com", "corp.example.org"], &mut random);
    network
}

/// Returns a network that is changed so that it fits the NICs and bridges of the tests.
pub(crate) fn fitted(network: &NetworkConfig) -> NetworkConfig {
    let mut links = network.links().to_vec();
    let of_bridge = |at: usize| {
        let controller = network.controller_of(LinkIndex::new(at)).map(|controller| &network.link(controller).kind);
        matches!(controller, Some(LinkKind::Bridge { .. }))
    };
    for (at, link) in links.iter_mut().enumerate() {
        // The kernel gives a bridge the smallest MTU of its ports, and rejects an MTU of a VLAN above the MTU of its
        // parent.
        if of_bridge(at) || matches!(link.kind, LinkKind::Vlan { .. }) {
            link.mtu = None;
        }
        match &mut link.kind {
            LinkKind::Nic(Nic::Pattern { names, drivers, .. }) => {
                *names = vec![format!("p?t{at}").parse().unwrap()];
                drivers.clear();
            }
            // A bridge without ports may have a carrier for a moment, so whether it requests an address depends on timing.
            LinkKind::Bridge { ports, .. } if ports.is_empty() => {
                link.ipv4.dhcp = false;
                (link.ipv6.dynamic, link.ipv6.accept_ra, link.ipv6.link_local) = (None, None, None);
            }
            // With STP a bridge has no carrier until its ports forward, after half a minute.
            LinkKind::Bridge { options, .. } => options.stp = None,
            _ => {}
        }
    }
    let mut same = NetworkConfig::new(links).unwrap();
    same.dns = network.dns.clone();
    same
}

/// Returns the network with the MAC addresses of the ten NICs of `networkd/machine`. `None`: the network has more NICs.
pub(crate) fn with_real_nics(network: &NetworkConfig) -> Option<NetworkConfig> {
    let mut links = network.links().to_vec();
    let mut next = 0;
    for link in &mut links {
        if let LinkKind::Nic(Nic::MacAddress { mac_address, .. }) = &mut link.kind {
            *mac_address = MacAddr::new(0x52, 0x54, 0, 0, 0, next);
            next += 1;
        }
    }
    let mut same = NetworkConfig::new(links).unwrap();
    same.dns = network.dns.clone();
    (next <= 10).then_some(same)
}

fn link(at: usize, kind: LinkKind) -> Link {
    Link::new(format!("link{at}"), format!("links[{at}]"), kind)
}

/// Returns a pattern that matches only the NIC `pat` with this number. Only the first pattern of a network can have
/// drivers, too.
fn pattern(at: usize, links: &[Link], random: &mut Random) -> Nic {
    let is_there = links.iter().any(|link| matches!(link.kind, LinkKind::Nic(Nic::Pattern { .. })));
    if !is_there && random.chance(1, 2) {
        let drivers = vec!["virtio_*".parse().unwrap(), "veth".parse().unwrap()];
        return Nic::Pattern { names: vec![format!("pa?{at}").parse().unwrap()], drivers, name: None };
    }
    let names = vec!["none*".parse().unwrap(), format!("p[a]t{at}*").parse().unwrap()];
    Nic::Pattern { names, drivers: Vec::new(), name: None }
}

fn take_ports(free: &mut Vec<usize>, links: &[Link], count: usize, random: &mut Random) -> Vec<LinkIndex> {
    let mut ports = Vec::new();
    for _ in 0..count {
        let nics: Vec<usize> = free
            .iter()
            .copied()
            .filter(|at| matches!(links[*at].kind, LinkKind::Nic(Nic::MacAddress { .. } | Nic::Name(_))))
            .collect();
        if nics.is_empty() {
            break;
        }
        let port = *random.pick(&nics);
        free.retain(|at| *at != port);
        ports.push(LinkIndex::new(port));
    }
    ports
}

fn bond_options(ports: &[LinkIndex], random: &mut Random) -> BondOptions {
    let modes = ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];
    let mut options = BondOptions::new(BondMode::parse(random.pick::<&str>(&modes)).unwrap());
    let all = [
        ("ad_actor_sys_prio", "100"),
        ("ad_select", "bandwidth"),
        ("ad_user_port_key", "7"),
        ("all_slaves_active", "1"),
        ("arp_all_targets", "all"),
        ("arp_interval", "1000"),
        ("arp_validate", "none"),
        ("downdelay", "200"),
        ("fail_over_mac", "none"),
        ("lacp_rate", "fast"),
        ("lp_interval", "3"),
        ("miimon", "100"),
        ("min_links", "1"),
        ("num_grat_arp", "3"),
        ("packets_per_slave", "2"),
        ("primary_reselect", "better"),
        ("resend_igmp", "4"),
        ("updelay", "400"),
        ("xmit_hash_policy", "layer3+4"),
        ("xmit_hash_policy", "encap2+3"),
    ];
    for (name, value) in all {
        let watches = matches!(name, "arp_interval" | "miimon" | "updelay" | "downdelay");
        if random.chance(1, 3) && !(watches && options.get("arp_interval").is_some()) {
            // This call rejects an option that the mode of the bond does not use.
            let _ = options.set(name, value);
        }
    }
    if options.get("arp_interval").is_some() {
        options.set_arp_ip_target(vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()]);
    }
    let primary = ports.last().copied().filter(|_| options.mode().has_primary() && random.chance(1, 2));
    options.set_primary(primary);
    options.reconcile();
    options
}

fn bridge_options(ports: &[LinkIndex], random: &mut Random) -> BridgeOptions {
    // With STP a bridge has no carrier until its ports forward, after half a minute.
    let stp = random.maybe(2, 0, 1).map(|on| on == 1 && ports.is_empty());
    let mut options = BridgeOptions { stp, ..BridgeOptions::default() };
    options.ageing_time = random.maybe(3, 0, 600).map(|seconds| seconds as u32);
    options.forward_delay = random.maybe(3, 2, 30).map(|seconds| seconds as u32);
    options.hello_time = random.maybe(3, 1, 10).map(|seconds| seconds as u32);
    options.max_age = random.maybe(3, 6, 40).map(|seconds| seconds as u32);
    options.priority = random.maybe(3, 1, 65_535).map(|priority| priority as u16);
    for port in ports {
        if random.chance(1, 2) {
            let path_cost = random.maybe(2, 1, 65_535).map(|cost| cost as u16);
            let priority = random.maybe(2, 0, 63).map(|priority| priority as u8);
            options.ports.push(BridgePort { port: *port, path_cost, priority });
        }
    }
    options
}

fn address(link: &mut Link, at: usize, random: &mut Random) {
    if random.chance(2, 3) {
        for nth in 0..random.between(1, 2) {
            let address = format!("10.{at}.{nth}.5/{}", random.pick(&[8, 24, 30, 32]));
            link.ipv4.addresses.push(address.parse().unwrap());
        }
    }
    if random.chance(1, 2) {
        let address = format!("2001:db8:{at}::5/{}", random.pick(&[48, 64, 128]));
        link.ipv6.addresses.push(address.parse().unwrap());
    }
    link.ipv4.dhcp = random.chance(1, 4);
    let dynamics = [Ipv6Dynamic::Slaac, Ipv6Dynamic::StatelessDhcp, Ipv6Dynamic::StatefulDhcp];
    link.ipv6.dynamic = random.chance(1, 3).then(|| *random.pick(&dynamics));
    if random.chance(1, 5) {
        link.ipv6.link_local = Some(random.chance(2, 3));
    }
    if link.ipv6.is_used() && random.chance(1, 4) {
        link.ipv6.accept_ra = Some(random.chance(1, 2));
    }
    for options in [&mut link.ipv4.dhcp_overrides, &mut link.ipv6.dhcp_overrides] {
        if random.chance(1, 2) {
            let mut switch = || random.maybe(3, 0, 1).map(|on| on == 1);
            *options = DhcpOverrides {
                route_metric: None,
                use_routes: switch(),
                use_dns: switch(),
                use_domains: switch(),
                use_hostname: switch(),
                send_hostname: switch(),
                use_mtu: switch(),
                use_ntp: switch(),
            };
            options.route_metric = random.maybe(3, 0, u64::from(u32::MAX)).map(|metric| (metric as u32).into());
        }
    }
    if link.has_addresses() {
        link.dns.nameservers = some(&["10.0.0.53", "1.1.1.1", "2001:db8::53"], random);
        link.dns.search = some(&["example.net", "example.com"], random);
    }
    if link.ipv4.is_used() {
        for _ in 0..random.between(0, 3) {
            let destination = *random.pick(&["0.0.0.0/0", "0.0.0.0/0", "172.16.0.0/12", "192.0.2.7/32"]);
            let via = format!("10.{at}.{}.1", random.pick(&[0, 0, 9]));
            route(link, destination, &via, random);
        }
    }
    if link.ipv6.is_used() {
        for _ in 0..random.between(0, 3) {
            let destination = *random.pick(&["::/0", "::/0", "2001:db8:ffff::/48", "2001:db8:eeee::1/128"]);
            let via = format!("2001:db8:{at}::1");
            let via = *random.pick(&["fe80::1", via.as_str(), "2001:db8:aaaa::1"]);
            route(link, destination, via, random);
        }
    }
    rules(link, at, random);
}

/// Adds routing rules for the addresses of a link. No two rules have the same priority.
fn rules(link: &mut Link, at: usize, random: &mut Random) {
    let ipv4 = [format!("10.{at}.0.5/32"), "10.0.0.0/8".to_owned(), "192.0.2.0/24".to_owned()];
    let ipv6 = [format!("2001:db8:{at}::5/128"), "2001:db8::/32".to_owned(), "fd00::/8".to_owned()];
    for (networks, is_used) in [(ipv4, link.ipv4.is_used()), (ipv6, link.ipv6.is_used())] {
        for nth in 0..random.maybe(3, 1, 2).filter(|_| is_used).unwrap_or(0) {
            let from = random.chance(2, 3).then(|| random.pick(&networks).parse().unwrap());
            let to = (from.is_none() || random.chance(1, 3)).then(|| random.pick(&networks).parse().unwrap());
            let mut rule = RoutingRule::new(from, to).unwrap();
            rule.table = random.chance(3, 4).then(|| *random.pick(&[100, 1000, 4_000_000_000]));
            let number = 10 * at as u32 + 2 * nth as u32 + u32::from(rule.family() == Family::Ipv6);
            rule.priority = random.chance(1, 2).then(|| random.pick(&[100, 40_000]) + number);
            rule.mark = random.chance(1, 4).then(|| *random.pick(&[1, 4_000_000_000]));
            rule.type_of_service = random.chance(1, 4).then(|| *random.pick(&[4, 8, 16]));
            link.routing_policy.push(rule);
        }
    }
}

fn route(link: &mut Link, destination: &str, via: &str, random: &mut Random) {
    let via = random.chance(5, 6).then(|| via.parse().unwrap());
    let metric = random.chance(1, 2).then(|| *random.pick(&[0, 1, 2, 100, 100, 1024]));
    let mut route = Route::new(destination.parse().unwrap(), via, metric).unwrap();
    route.on_link = via.is_some() && random.chance(1, 5);
    route.table = random.chance(1, 5).then(|| *random.pick(&[100, 1000, 4_000_000_000]));
    link.routes.push(route);
}

/// Returns random elements of a list, in the order of the list.
fn some<T: std::str::FromStr>(of: &[&str], random: &mut Random) -> Vec<Located<T>> {
    of.iter().filter(|_| random.chance(1, 3)).filter_map(|text| Some(text.parse::<T>().ok()?.into())).collect()
}

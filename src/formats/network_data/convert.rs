//! What a `network_data.json` means.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::IpNetwork;
use pnet_base::MacAddr;

use super::{Link, Network, NetworkData, Route, Scalar, Service, Value};
use crate::finding::{Finding, Findings, Place, Severity};
use crate::formats::address::{self, Family, MASK_EXPECTED, Wrong};
use crate::network::{self, BondMode, BondOptionError, BondOptions, Card, Contradiction, DomainName, InterfaceName};
use crate::network::{Ipv4Config, Ipv6Config, Ipv6Dynamic, LinkIndex, LinkKind, MAC_ADDRESS_EXPECTED};
use crate::network::{Mtu, NetworkConfig, VlanId, parse_mac_address};

static LINKS: Place<'static> = Place::Field(&Place::Document, "links");
static NETWORKS: Place<'static> = Place::Field(&Place::Document, "networks");

/// The words of the schema for a plain card.
const CARDS: [&str; 9] = ["phy", "bridge", "dvs", "hw_veb", "hyperv", "ovs", "tap", "vhostuser", "vif"];

/// What an entry of `links` is, by its `type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Card,
    Bond,
    Vlan,
}

/// What an entry of `networks` asks for, by its `type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Method {
    /// Of this family, or of either.
    Static(Option<Family>),
    Dhcp4,
    Dynamic6(Ipv6Dynamic),
    Unknown,
}

struct Converter<'d, 'f> {
    document: &'d NetworkData,
    findings: &'f mut Findings,
    by_id: BTreeMap<Cow<'d, str>, usize>,
    kinds: Vec<Kind>,
    /// Where the link of each entry of `links` is in the model. `None`: nobody asks for it.
    model: Vec<Option<LinkIndex>>,
    /// The entry that each link of the model came from.
    origin: Vec<usize>,
    links: Vec<network::Link>,
    /// Whether an entry of `links` could not be read, and another link stands in its place.
    broken: bool,
    /// For every link of the model, the bond of which it is a port.
    bond_of: Vec<Option<LinkIndex>>,
    nameservers: Distinct<IpAddr>,
    search: Distinct<DomainName>,
}

/// Values in the order in which they came, each once.
struct Distinct<T> {
    seen: BTreeSet<T>,
    order: Vec<T>,
}

// === impl NetworkData ===

impl NetworkData {
    /// Decides what the document means. Whatever it cannot mean becomes a finding with its consequence; a document
    /// without errors has a meaning, which may be that there is nothing to configure.
    pub fn convert(&self, findings: &mut Findings) -> NetworkConfig {
        let mut converter = Converter {
            document: self,
            findings,
            by_id: BTreeMap::new(),
            kinds: Vec::new(),
            model: Vec::new(),
            origin: Vec::new(),
            links: Vec::new(),
            broken: false,
            bond_of: Vec::new(),
            nameservers: Distinct::default(),
            search: Distinct::default(),
        };
        converter.index_links();
        converter.choose_links();
        converter.make_links();
        converter.read_networks();
        converter.read_services(&self.services, &Place::Document);
        converter.finish()
    }
}

// === impl Converter ===

impl<'d> Converter<'d, '_> {
    fn index_links(&mut self) {
        let document = self.document;
        for (index, link) in document.links.iter().enumerate() {
            if let Some(id) = &link.id
                && self.by_id.insert(id.text(), index).is_some()
            {
                self.error(&LINKS.index(index), "id", "repeated id", id, "one link of that id");
            }
        }
        self.kinds = document.links.iter().map(Kind::of).collect();
    }

    /// A link is wanted when a network uses it, when it asks for something itself, or when a wanted link is made of it.
    fn choose_links(&mut self) {
        let document = self.document;
        let mut wanted = vec![false; document.links.len()];
        let mut ask: Vec<usize> =
            document.networks.iter().filter_map(|network| self.find(network.link.as_ref())).collect();
        let asks_itself =
            |(index, link): (usize, &Link)| (self.kinds[index] != Kind::Card || link.mtu.is_some()).then_some(index);
        ask.extend(document.links.iter().enumerate().filter_map(asks_itself));
        while let Some(index) = ask.pop() {
            if std::mem::replace(&mut wanted[index], true) {
                continue;
            }
            let link = &document.links[index];
            match self.kinds[index] {
                Kind::Card => {}
                Kind::Bond => ask.extend(link.bond_links.iter().filter_map(|port| self.find(Some(port)))),
                Kind::Vlan => ask.extend(self.find(link.vlan_link.as_ref())),
            }
        }

        let mut cards = BTreeMap::new();
        for (index, link) in document.links.iter().enumerate() {
            let mut place = None;
            if wanted[index] {
                let next = LinkIndex(self.origin.len());
                let known = if self.kinds[index] == Kind::Card { card_key(link) } else { None };
                let at = known.map_or(next, |key| *cards.entry(key).or_insert(next));
                if at == next {
                    self.origin.push(index);
                } else {
                    let value = link.id.as_ref().map_or_else(String::new, Scalar::to_string);
                    let first = format!("one link for the card of links[{}]", self.origin[at.0]);
                    let same = Finding::warning(LINKS.index(index), "repeated card", value, &first);
                    self.findings.push(same);
                }
                place = Some(at);
            }
            self.model.push(place);
        }
    }

    fn make_links(&mut self) {
        let mut bonds = self.bond_names().into_iter();
        let mut taken = BTreeSet::new();
        for at in 0..self.origin.len() {
            let index = self.origin[at];
            let link = &self.document.links[index];
            let kind = match self.kinds[index] {
                Kind::Card => self.card(index, link),
                Kind::Bond => self.bond(index, link, bonds.next().flatten()),
                Kind::Vlan => self.vlan(index, link),
            };
            if let Some(LinkKind::Bond { name, .. } | LinkKind::Card(Card::Name(name))) = &kind
                && !taken.insert(name.clone())
            {
                self.error(&LINKS.index(index), "name", "repeated name", name, "one link of that name");
            }
            let id = link.id.as_ref().map_or_else(|| format!("links[{index}]"), Scalar::to_string);
            let mtu = link.mtu.as_ref().and_then(|mtu| self.mtu(index, mtu));
            // An error has been reported: the configuration is refused, but the others want to be looked at, too.
            self.broken |= kind.is_none();
            let kind = kind.unwrap_or(LinkKind::Card(Card::MacAddress { mac_address: MacAddr::zero(), name: None }));
            let (ipv4, ipv6, routes) = (Ipv4Config::default(), Ipv6Config::default(), Vec::new());
            self.links.push(network::Link { id, kind, mtu, ipv4, ipv6, routes });
        }
        self.bond_of = vec![None; self.links.len()];
        for (at, link) in self.links.iter().enumerate() {
            if let LinkKind::Bond { ports, .. } = &link.kind {
                ports.iter().for_each(|port| self.bond_of[port.0] = Some(LinkIndex(at)));
            }
        }
        for at in 0..self.links.len() {
            self.drop_inherited_mac_address(at);
        }
        for (index, link) in self.document.links.iter().enumerate() {
            self.merge_mtu(index, link);
        }
    }

    fn card(&mut self, index: usize, link: &Link) -> Option<LinkKind> {
        let kind = link.kind.as_ref().map(Scalar::text);
        if !kind.as_deref().is_some_and(|kind| CARDS.contains(&kind)) {
            let kind = kind.unwrap_or(Cow::Borrowed("null"));
            let finding = Finding::warning(
                LINKS.index(index).field("type"),
                "unknown link type",
                kind,
                "phy, bond, vlan or another word of the schema",
            );
            self.findings.push(finding);
        }
        let place = LINKS.index(index);
        let mac_address = self.mac_address(&place, "ethernet_mac_address", link.ethernet_mac_address.as_ref())?;
        let named = link.name.as_ref().filter(|name| !name.text().is_empty());
        let name = named.map(|name| (name, name.text().parse::<InterfaceName>()));
        match (mac_address, name) {
            (Some(mac_address), Some((name, Err(_)))) => {
                // The name is a wish, and the address serves as well; but where VLANs hang on it the name is needed.
                let needed = self.carries_vlans(index);
                let severity = if needed { Severity::Error } else { Severity::Warning };
                let place = place.field("name");
                self.findings.push(Finding::new(
                    severity,
                    place,
                    "invalid interface name",
                    name,
                    InterfaceName::EXPECTED,
                ));
                Some(LinkKind::Card(Card::MacAddress { mac_address, name: None }))
            }
            (Some(mac_address), name) => {
                let name = name.and_then(|(_, name)| name.ok());
                Some(LinkKind::Card(Card::MacAddress { mac_address, name }))
            }
            (None, Some((name, Err(_)))) => {
                self.error(&place, "name", "invalid interface name", name, InterfaceName::EXPECTED);
                None
            }
            (None, Some((_, Ok(name)))) => Some(LinkKind::Card(Card::Name(name))),
            (None, None) => {
                let id = link.id.as_ref().map_or(Cow::Borrowed(""), Scalar::text);
                if let Ok(name) = id.parse() {
                    return Some(LinkKind::Card(Card::Name(name)));
                }
                let expected = "an ethernet_mac_address or a name beside it, or an id that is an interface name";
                self.error(&place, "id", "card that cannot be known", id, expected);
                None
            }
        }
    }

    /// cloud-init's names: the one that is given, else `bond` and the number of the bond among all bonds. A number that
    /// is taken is passed over.
    fn bond_names(&mut self) -> Vec<Option<InterfaceName>> {
        let given = |link: &'d Link| link.name.as_ref().map(Scalar::text).filter(|name| !name.is_empty());
        let taken: BTreeSet<Cow<'_, str>> = self.document.links.iter().filter_map(given).collect();
        let mut names = Vec::new();
        let mut next = 0;
        for index in &self.origin {
            if self.kinds[*index] != Kind::Bond {
                continue;
            }
            names.push(match given(&self.document.links[*index]) {
                Some(name) => {
                    let legal = name.parse().ok();
                    if legal.is_none() {
                        let place = LINKS.index(*index);
                        let place = place.field("name");
                        let finding = Finding::error(place, "invalid interface name", name, InterfaceName::EXPECTED);
                        self.findings.push(finding);
                    }
                    legal
                }
                None => {
                    let mut name = format!("bond{next}");
                    while taken.contains(name.as_str()) {
                        next += 1;
                        name = format!("bond{next}");
                    }
                    name.parse().ok()
                }
            });
            next += 1;
        }
        names
    }

    fn bond(&mut self, index: usize, link: &Link, name: Option<InterfaceName>) -> Option<LinkKind> {
        let place = LINKS.index(index);
        let mut ports: Vec<LinkIndex> = Vec::new();
        for (position, port) in link.bond_links.iter().enumerate() {
            match self.find(Some(port)).and_then(|port| self.model[port]) {
                Some(port) => ports.push(port),
                None => {
                    let list = place.field("bond_links");
                    let finding = Finding::warning(list.index(position), "unknown link", port, "the id of a link");
                    self.findings.push(finding);
                }
            }
        }
        if ports.is_empty() {
            self.findings.push(Finding::missing(place.field("bond_links"), "the ids of the bond's ports"));
        }
        let mac_address = self.mac_address(&place, "ethernet_mac_address", link.ethernet_mac_address.as_ref())?;
        let options = self.bond_options(index, link, &ports)?;
        if ports.is_empty() {
            return None;
        }
        Some(LinkKind::Bond { name: name?, ports, options, mac_address })
    }

    fn bond_options(&mut self, index: usize, link: &Link, ports: &[LinkIndex]) -> Option<BondOptions> {
        let place = LINKS.index(index);
        // `bond_xmit_hash_policy` and `bond-xmit-hash-policy` are one option.
        let kernels = |name: &str| name[5..].replace('-', "_");
        let option = |wanted: &str| link.bond_options.iter().rfind(|(name, _)| kernels(name) == wanted);
        let mode = match option("mode") {
            None => {
                let expected = BondMode::EXPECTED;
                self.findings.push(Finding::warning(place.field("bond_mode"), "unsaid mode", "null", expected));
                BondMode::default()
            }
            Some((name, value)) => match BondMode::parse(&value.to_string()) {
                Some(mode) => mode,
                None => {
                    let finding = Finding::error(place.field(name), "invalid mode", value, BondMode::EXPECTED);
                    self.findings.push(finding);
                    return None;
                }
            },
        };
        let mut options = BondOptions::new(mode);
        for (name, value) in &link.bond_options {
            let place = place.field(name);
            let text = value.to_string();
            match kernels(name).as_str() {
                "mode" => {}
                "primary" => {
                    let is_it = |link: &Link| [&link.id, &link.name].into_iter().flatten().any(|id| id.text() == text);
                    options.primary =
                        ports.iter().copied().find(|port| is_it(&self.document.links[self.origin[port.0]]));
                    if options.primary.is_none() {
                        self.findings.push(Finding::warning(place, "unknown port", text, "the id of one of its links"));
                    }
                }
                "arp_ip_target" => match arp_ip_targets(value) {
                    Some(targets) => options.arp_ip_target = targets,
                    None => {
                        self.findings.push(Finding::warning(place, "invalid value", text, "IPv4 addresses"));
                    }
                },
                kernels => {
                    if let Err(error) = options.set(kernels, &text) {
                        self.findings.push(bond_option_finding(place, &text, &error));
                    }
                }
            }
        }
        for (name, error) in options.reconcile() {
            let (written, value) = option(name).map_or((name, &Value::Null), |(name, value)| (name, value));
            let finding = bond_option_finding(place.field(written), &value.to_string(), &error);
            self.findings.push(finding);
        }
        Some(options)
    }

    fn vlan(&mut self, index: usize, link: &Link) -> Option<LinkKind> {
        let place = LINKS.index(index);
        let named = link.name.as_ref().filter(|name| !name.text().is_empty());
        let name = named.and_then(|name| name.text().parse::<InterfaceName>().ok());
        if let (Some(named), None) = (named, &name) {
            // It is a wish: every VLAN can be named after its parent and its id.
            let place = place.field("name");
            let finding = Finding::warning(place, "invalid interface name", named, InterfaceName::EXPECTED);
            self.findings.push(finding);
        }
        let parent = match &link.vlan_link {
            None => {
                self.findings.push(Finding::missing(place.field("vlan_link"), "the id of a link"));
                None
            }
            Some(id) => {
                let parent = self.find(Some(id)).and_then(|parent| self.model[parent]);
                if parent.is_none() {
                    self.error(&place, "vlan_link", "unknown link", id, "the id of a link");
                }
                parent
            }
        };
        let id = match &link.vlan_id {
            None => {
                self.findings.push(Finding::missing(place.field("vlan_id"), VlanId::EXPECTED));
                None
            }
            Some(written) => {
                let id = written.integer().and_then(|id| VlanId::try_from(id).ok());
                if id.is_none() {
                    self.error(&place, "vlan_id", "invalid VLAN id", written, VlanId::EXPECTED);
                }
                id
            }
        };
        let mac_address = self.mac_address(&place, "vlan_mac_address", link.vlan_mac_address.as_ref())?;
        Some(LinkKind::Vlan { name, parent: parent?, id: id?, mac_address })
    }

    /// The kernel gives a bond its first port's address and a VLAN its parent's, so that need not be said.
    fn drop_inherited_mac_address(&mut self, at: usize) {
        let mut inherited = match &self.links[at].kind {
            LinkKind::Card(_) => return,
            LinkKind::Bond { ports, .. } => ports.first().copied(),
            LinkKind::Vlan { parent, .. } => Some(*parent),
        };
        let mut address = None;
        // Bounded, since loops are found later.
        for _ in 0..self.links.len() {
            let Some(from) = inherited else { break };
            address = self.links[from.0].mac_address();
            inherited = match &self.links[from.0].kind {
                LinkKind::Bond { ports, .. } if address.is_none() => ports.first().copied(),
                LinkKind::Vlan { parent, .. } if address.is_none() => Some(*parent),
                _ => None,
            };
        }
        if let LinkKind::Bond { mac_address, .. } | LinkKind::Vlan { mac_address, .. } = &mut self.links[at].kind
            && *mac_address == address
        {
            *mac_address = None;
        }
    }

    fn mtu(&mut self, index: usize, written: &Scalar) -> Option<Mtu> {
        let mtu = written.integer().and_then(|mtu| Mtu::try_from(mtu).ok());
        if mtu.is_none() {
            let place = LINKS.index(index);
            self.findings.push(Finding::warning(place.field("mtu"), "invalid MTU", written, Mtu::EXPECTED));
        }
        mtu
    }

    /// Two entries for one card: the first MTU that is given counts.
    fn merge_mtu(&mut self, index: usize, link: &Link) {
        let Some(at) = self.model[index].filter(|at| self.origin[at.0] != index) else { return };
        let Some(written) = &link.mtu else { return };
        let mtu = self.mtu(index, written);
        match (self.links[at.0].mtu, mtu) {
            (None, mtu) => self.links[at.0].mtu = mtu,
            (Some(first), Some(other)) if first != other => {
                let expected = format!("the card's other MTU, {first}");
                let place = LINKS.index(index);
                self.findings.push(Finding::warning(place.field("mtu"), "second MTU", written, &expected));
            }
            _ => {}
        }
    }

    fn read_networks(&mut self) {
        let document = self.document;
        let mut routes = Vec::new();
        let mut unknown = Vec::new();
        for (index, network) in document.networks.iter().enumerate() {
            let place = NETWORKS.index(index);
            let method = Method::of(network);
            let link = self.find(network.link.as_ref()).and_then(|link| self.model[link]);
            let Some(link) = link.filter(|link| self.may_have_addresses(*link, network, method, &place)) else {
                if network.link.as_ref().is_none_or(|id| self.find(Some(id)).is_none()) {
                    self.lost_network(network, method, &place);
                }
                continue;
            };
            let family = match method {
                Method::Static(family) => self.read_static(network, family, link, &place),
                Method::Dhcp4 => {
                    self.links[link.0].ipv4.dhcp = true;
                    Some(Family::V4)
                }
                Method::Dynamic6(dynamic) => {
                    let ipv6 = &mut self.links[link.0].ipv6;
                    ipv6.dynamic = ipv6.dynamic.max(Some(dynamic));
                    Some(Family::V6)
                }
                Method::Unknown => {
                    unknown.push((index, link));
                    None
                }
            };
            self.read_routes(network, family, link, &place, &mut routes);
            self.read_services(&network.services, &place);
            self.read_words(&network.dns_nameservers, &place, "dns_nameservers", Converter::nameserver);
            self.read_words(&network.dns_search, &place, "dns_search", Converter::search_domain);
        }
        for (index, link) in unknown {
            // What is not understood costs only itself as long as the link has something else.
            let works = self.links[link.0].has_addresses();
            let severity = if works { Severity::Warning } else { Severity::Error };
            let written = document.networks[index].kind.as_ref().map_or(Cow::Borrowed("null"), Scalar::text);
            let place = NETWORKS.index(index);
            let place = place.field("type");
            self.findings.push(Finding::new(severity, place, "unknown network type", written, Method::EXPECTED));
        }
        for (place, link, route) in routes {
            let link = &mut self.links[link.0];
            let used = if route.destination().is_ipv4() { link.ipv4.is_used() } else { link.ipv6.is_used() };
            if used {
                link.routes.push(route);
            } else {
                let expected = "an address of its family on the link";
                let finding = Finding::warning(place, "unreachable route", route.destination(), expected);
                self.findings.push(finding);
            }
        }
    }

    /// A bond's ports have no addresses of their own.
    fn may_have_addresses(&mut self, link: LinkIndex, network: &Network, method: Method, place: &Place<'_>) -> bool {
        let Some(bond) = self.bond_of[link.0].map(|bond| &self.links[bond.0]) else { return true };
        let (severity, expected) = (method.cost_of_its_loss(), format!("the link of its bond, {:?}", bond.id));
        let value = network.link.as_ref().map_or(Cow::Borrowed(""), Scalar::text);
        self.findings.push(Finding::new(severity, place.field("link"), "network on a bond's port", value, &expected));
        false
    }

    fn lost_network(&mut self, network: &Network, method: Method, place: &Place<'_>) {
        let severity = method.cost_of_its_loss();
        let value = network.link.as_ref().map_or(Cow::Borrowed("null"), Scalar::text);
        self.findings.push(Finding::new(severity, place.field("link"), "unknown link", value, "the id of a link"));
    }

    fn read_static(
        &mut self,
        network: &Network,
        wanted: Option<Family>,
        link: LinkIndex,
        place: &Place<'_>,
    ) -> Option<Family> {
        let expected = match wanted {
            Some(Family::V4) => "an IPv4 address of a machine",
            Some(Family::V6) => "an IPv6 address of a machine",
            None => "an IP address of a machine",
        };
        let Some(written) = &network.ip_address else {
            self.findings.push(Finding::missing(place.field("ip_address"), expected));
            return wanted;
        };
        let mask = network.netmask.as_ref().map(Scalar::text);
        match address::interface_address(&written.text(), mask.as_deref()) {
            Ok(address) if wanted.is_none_or(|family| family == Family::of(address.ip())) => {
                let link = &mut self.links[link.0];
                match address {
                    IpNetwork::V4(address) if !link.ipv4.addresses.contains(&address) => {
                        link.ipv4.addresses.push(address);
                    }
                    IpNetwork::V6(address) if !link.ipv6.addresses.contains(&address) => {
                        link.ipv6.addresses.push(address);
                    }
                    _ => {}
                }
                Some(Family::of(address.ip()))
            }
            Err(Wrong::Mask) => {
                let mask = mask.unwrap_or_default();
                self.findings.push(Finding::error(place.field("netmask"), "invalid netmask", mask, MASK_EXPECTED));
                wanted
            }
            Ok(_) | Err(Wrong::Address) => {
                let place = place.field("ip_address");
                self.findings.push(Finding::error(place, "invalid address", written, expected));
                wanted
            }
        }
    }

    fn read_routes(
        &mut self,
        network: &Network,
        family: Option<Family>,
        link: LinkIndex,
        place: &Place<'_>,
        routes: &mut Vec<(String, LinkIndex, network::Route)>,
    ) {
        if let Some(gateway) = self.gateway(network.gateway.as_ref(), family, place)
            && let Ok(route) = network::Route::new(Family::of(gateway).everywhere(), Some(gateway), None)
        {
            routes.push((place.field("gateway").to_string(), link, route));
        }
        for (index, route) in network.routes.iter().enumerate() {
            let list = place.field("routes");
            let place = list.index(index);
            if let Some(route) = self.route(route, family, &place) {
                routes.push((place.to_string(), link, route));
            }
            self.read_services(&route.services, &place);
        }
    }

    fn route(&mut self, route: &Route, family: Option<Family>, place: &Place<'_>) -> Option<network::Route> {
        let Some(written) = &route.network else {
            self.findings.push(Finding::missing(place.field("network"), "a network or default"));
            return None;
        };
        let gateway = match &route.gateway {
            Some(gateway) if !gateway.text().is_empty() => Some(gateway),
            _ => None,
        };
        // `default` is of the gateway's family, and of the network's when that says nothing.
        let gateway_family = gateway.and_then(|gateway| address::address(&gateway.text())).map(Family::of);
        let mask = route.netmask.as_ref().map(Scalar::text);
        let said = gateway_family.or(family).unwrap_or(Family::V4);
        let destination = match address::destination(&written.text(), mask.as_deref(), said) {
            Ok(destination) => Some(destination),
            Err(Wrong::Mask) => {
                let mask = mask.unwrap_or_default();
                self.findings.push(Finding::error(place.field("netmask"), "invalid netmask", mask, MASK_EXPECTED));
                None
            }
            Err(Wrong::Address) => {
                self.error(place, "network", "invalid network", written, "an address, a CIDR or default");
                None
            }
        };
        let metric = route.metric.as_ref().and_then(|written| {
            let metric = written.integer().and_then(|metric| u32::try_from(metric).ok());
            if metric.is_none() {
                let place = place.field("metric");
                self.findings.push(Finding::warning(place, "invalid metric", written, "a number of 0 to 4294967295"));
            }
            metric
        });
        let destination_family = destination.map(|destination| Family::of(destination.ip()));
        let gateway = match gateway.map(|gateway| address::address(&gateway.text())) {
            // An unspecified gateway is the older way to say that there is none.
            Some(Some(gateway)) if gateway.is_unspecified() => None,
            Some(_) => Some(self.gateway(route.gateway.as_ref(), destination_family, place)?),
            None => None,
        };
        network::Route::new(destination?, gateway, metric).ok()
    }

    /// A next hop, of this family where one is given. An empty text is none.
    fn gateway(&mut self, written: Option<&Scalar>, family: Option<Family>, place: &Place<'_>) -> Option<IpAddr> {
        let written = written.filter(|gateway| !gateway.text().is_empty())?;
        let gateway = address::host_address(&written.text());
        match gateway {
            Some(gateway) if family.is_none_or(|family| family == Family::of(gateway)) => Some(gateway),
            _ => {
                let expected = match family {
                    Some(Family::V4) => "the IPv4 address of a router",
                    Some(Family::V6) => "the IPv6 address of a router",
                    None => "the IP address of a router",
                };
                self.error(place, "gateway", "invalid gateway", written, expected);
                None
            }
        }
    }

    fn read_services(&mut self, services: &[Service], place: &Place<'_>) {
        for (index, service) in services.iter().enumerate() {
            let list = place.field("services");
            let place = list.index(index);
            match (service.kind.as_ref().map(Scalar::text).as_deref(), &service.address) {
                (Some("dns"), Some(address)) => self.nameserver(address, &place.field("address")),
                (Some("dns"), None) if service.search.is_empty() => {
                    let place = place.field("address");
                    self.findings.push(Finding::warning(place, "invalid nameserver", "null", "an IP address"));
                }
                (Some("dns"), None) | (None, None) => {}
                (kind, _) => {
                    let kind = kind.unwrap_or("null");
                    self.findings.push(Finding::warning(place.field("type"), "unknown service", kind, "dns"));
                }
            }
            self.read_words(&service.search, &place, "search", Converter::search_domain);
        }
    }

    fn read_words(
        &mut self,
        words: &[Scalar],
        place: &Place<'_>,
        name: &str,
        read: fn(&mut Self, &Scalar, &Place<'_>),
    ) {
        let list = place.field(name);
        for (index, word) in words.iter().enumerate() {
            read(self, word, &list.index(index));
        }
    }

    fn nameserver(&mut self, written: &Scalar, place: &Place<'_>) {
        match written.text().parse::<IpAddr>() {
            Ok(server) if !server.is_unspecified() && !server.is_multicast() => {
                self.nameservers.insert(server);
            }
            _ => self.findings.push(Finding::warning(place, "invalid nameserver", written, "an IP address")),
        }
    }

    fn search_domain(&mut self, written: &Scalar, place: &Place<'_>) {
        match written.text().parse::<DomainName>() {
            Ok(domain) => self.search.insert(domain),
            Err(_) => {
                self.findings.push(Finding::warning(place, "invalid search domain", written, DomainName::EXPECTED));
            }
        }
    }

    fn finish(mut self) -> NetworkConfig {
        for (at, link) in self.links.iter_mut().enumerate() {
            if let Some(mtu) = link.mtu
                && link.ipv6.is_used()
                && mtu < Mtu::LEAST_FOR_IPV6
            {
                let place = LINKS.index(self.origin[at]);
                self.findings.push(Finding::warning(place.field("mtu"), "invalid MTU", mtu, Mtu::EXPECTED));
                link.mtu = None;
            }
        }
        // What stands for a broken entry would contradict the others for no reason of theirs.
        let links = if self.broken { Vec::new() } else { self.links };
        match NetworkConfig::new(links) {
            Ok(mut config) => {
                config.nameservers = self.nameservers.order;
                config.search = self.search.order;
                config
            }
            Err(contradictions) => {
                for contradiction in contradictions {
                    self.findings.push(contradiction_finding(self.document, &self.origin, contradiction));
                }
                NetworkConfig::default()
            }
        }
    }

    fn mac_address(&mut self, place: &Place<'_>, name: &str, written: Option<&Scalar>) -> Option<Option<MacAddr>> {
        let Some(written) = written.filter(|address| !address.text().is_empty()) else { return Some(None) };
        let address = parse_mac_address(&written.text());
        if address.is_none() {
            self.error(place, name, "invalid MAC address", written, MAC_ADDRESS_EXPECTED);
        }
        address.map(Some)
    }

    fn carries_vlans(&self, index: usize) -> bool {
        let on_it = |(other, link): (usize, &Link)| {
            self.kinds[other] == Kind::Vlan && self.find(link.vlan_link.as_ref()) == Some(index)
        };
        self.document.links.iter().enumerate().any(on_it)
    }

    fn find(&self, id: Option<&Scalar>) -> Option<usize> {
        self.by_id.get(id?.text().as_ref()).copied()
    }

    fn error(&mut self, place: &Place<'_>, name: &str, problem: &str, value: impl std::fmt::Display, expected: &str) {
        self.findings.push(Finding::error(place.field(name), problem, value, expected));
    }
}

// === impl Distinct ===

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Self { seen: BTreeSet::new(), order: Vec::new() }
    }
}

impl<T: Clone + Ord> Distinct<T> {
    fn insert(&mut self, value: T) {
        if self.seen.insert(value.clone()) {
            self.order.push(value);
        }
    }
}

// === impl Kind, Method ===

impl Kind {
    fn of(link: &Link) -> Self {
        match link.kind.as_ref().map(Scalar::text).as_deref() {
            Some("bond") => Self::Bond,
            Some("vlan") => Self::Vlan,
            _ => Self::Card,
        }
    }
}

impl Method {
    const EXPECTED: &'static str = "ipv4, ipv6, ipv4_dhcp, ipv6_dhcp, ipv6_slaac or another word of the schema";

    fn of(network: &Network) -> Self {
        match network.kind.as_ref().map(Scalar::text).as_deref() {
            Some("ipv4") => Self::Static(Some(Family::V4)),
            Some("ipv6" | "static6") => Self::Static(Some(Family::V6)),
            Some("static") => Self::Static(None),
            Some("ipv4_dhcp") => Self::Dhcp4,
            // What is older than the words for the kinds of DHCPv6 has the address from the server.
            Some("ipv6_dhcp" | "ipv6_dhcpv6-stateful") => Self::Dynamic6(Ipv6Dynamic::StatefulDhcp),
            Some("ipv6_dhcpv6-stateless") => Self::Dynamic6(Ipv6Dynamic::StatelessDhcp),
            Some("ipv6_slaac") => Self::Dynamic6(Ipv6Dynamic::Slaac),
            _ => Self::Unknown,
        }
    }

    /// A machine that misses a static address is unreachable; one that misses a dynamic one has others, or none anyway.
    fn cost_of_its_loss(self) -> Severity {
        match self {
            Self::Static(_) => Severity::Error,
            _ => Severity::Warning,
        }
    }
}

/// What makes two entries of `links` one card.
fn card_key(link: &Link) -> Option<String> {
    let given = |scalar: &Option<Scalar>| scalar.as_ref().map(Scalar::to_string).filter(|text| !text.is_empty());
    match given(&link.ethernet_mac_address) {
        Some(address) => parse_mac_address(&address).map(|address| address.to_string()),
        None => given(&link.name),
    }
}

fn arp_ip_targets(value: &Value) -> Option<Vec<Ipv4Addr>> {
    let parse = |text: &str| text.trim().parse::<Ipv4Addr>().ok();
    match value {
        Value::Array(targets) => targets.iter().map(|target| parse(&target.to_string())).collect(),
        other => other.to_string().split([',', ';', ' ']).filter(|text| !text.is_empty()).map(parse).collect(),
    }
}

fn bond_option_finding(place: Place<'_>, value: &str, error: &BondOptionError) -> Finding {
    match error {
        BondOptionError::Unknown => Finding::warning(place, "unknown bond option", value, "an option of the kernel's"),
        BondOptionError::Value { expected } => Finding::warning(place, "invalid value", value, expected),
        BondOptionError::Useless { expected } => Finding::warning(place, "useless bond option", value, expected),
    }
}

fn contradiction_finding(document: &NetworkData, origin: &[usize], contradiction: Contradiction) -> Finding {
    let (at, field, problem, expected) = match contradiction {
        Contradiction::NoSuchLink(at) => (at, "id", "link that refers to none", "a link of the document"),
        Contradiction::VlanLoop(at) => (at, "vlan_link", "VLAN on itself", "a link that is not on this VLAN"),
        Contradiction::PortIsNoCard(at) => (at, "type", "port of a bond", "a card"),
        Contradiction::PortTwice(at) => (at, "id", "port of several bonds", "a port of one bond"),
        Contradiction::VlanTwice(at) => (at, "vlan_id", "repeated VLAN id", "one VLAN of that id on a link"),
    };
    let link = &document.links[origin[at.0]];
    let value = match field {
        "vlan_link" => &link.vlan_link,
        "type" => &link.kind,
        "vlan_id" => &link.vlan_id,
        _ => &link.id,
    };
    let value = value.as_ref().map_or(Cow::Borrowed("null"), Scalar::text);
    Finding::error(LINKS.index(origin[at.0]).field(field), problem, value, expected)
}

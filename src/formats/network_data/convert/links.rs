//! `links`: which of them the machine needs, and what each one is.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use pnet_base::MacAddr;

use super::{Converter, Kind, LINKS};
use crate::finding::{Finding, Place, Severity};
use crate::formats::network_data::{Link, Scalar};
use crate::formats::value::Value;
use crate::network::{self, BondMode, BondOptionError, BondOptions, Card, InterfaceName, Ipv4Config, Ipv6Config};
use crate::network::{LinkIndex, LinkKind, MAC_ADDRESS_EXPECTED, Mtu, VlanId, parse_mac_address};

/// The words of the schema for a plain card.
const CARDS: [&str; 9] = ["phy", "bridge", "dvs", "hw_veb", "hyperv", "ovs", "tap", "vhostuser", "vif"];

pub(super) const LINK_EXPECTED: &str = "the id of one of the links";

/// A value, or the knowledge that it was wrong and has been reported.
type Reported<T> = Result<T, ()>;

impl<'d> Converter<'d, '_> {
    pub(super) fn index_links(&mut self) {
        let document = self.document;
        for (index, link) in document.links.iter().enumerate() {
            if let Some(id) = &link.id
                && self.by_id.insert(id.text(), index).is_some()
            {
                self.error(&LINKS.index(index), "id", "repeated id", id, "an id that no other link has");
            }
        }
        self.kinds = document.links.iter().map(Kind::of).collect();
        for (index, link) in document.links.iter().enumerate() {
            let mtu = link.mtu.as_ref().and_then(|written| {
                let mtu = written.integer().and_then(|mtu| Mtu::try_from(mtu).ok());
                if mtu.is_none() {
                    self.warning(&LINKS.index(index), "mtu", "invalid MTU", written, Mtu::EXPECTED);
                }
                mtu
            });
            self.mtus.push(mtu);
        }
    }

    /// A link is wanted when a network uses it, when it asks for something itself, or when a wanted link is made of it.
    pub(super) fn choose_links(&mut self) {
        let document = self.document;
        let mut wanted = vec![false; document.links.len()];
        let mut ask: Vec<usize> =
            document.networks.iter().filter_map(|network| self.find(network.link.as_ref())).collect();
        let asks_itself = |index: &usize| self.kinds[*index] != Kind::Card || self.mtus[*index].is_some();
        ask.extend((0..document.links.len()).filter(asks_itself));
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
                    let id = link.id.as_ref().map_or(Cow::Borrowed(""), Scalar::text);
                    let problem = format!("same card as links[{}]", self.origin[at.0]);
                    self.findings.push(Finding::warning(LINKS.index(index), &problem, id, "one link for each card"));
                }
                place = Some(at);
            }
            self.model.push(place);
        }
    }

    pub(super) fn make_links(&mut self) {
        let document = self.document;
        let mut parents = vec![false; document.links.len()];
        for (link, kind) in document.links.iter().zip(&self.kinds) {
            if *kind == Kind::Vlan
                && let Some(parent) = self.find(link.vlan_link.as_ref())
            {
                parents[parent] = true;
            }
        }
        let mut bonds = self.bond_names().into_iter();
        let mut taken = BTreeSet::new();
        for at in 0..self.origin.len() {
            let index = self.origin[at];
            let link = &document.links[index];
            let kind = match self.kinds[index] {
                Kind::Card => self.card(index, link, parents[index]),
                Kind::Bond => self.bond(index, link, bonds.next().flatten()),
                Kind::Vlan => self.vlan(index, link),
            };
            if let Ok(LinkKind::Bond { name, .. } | LinkKind::Card(Card::Name(name))) = &kind
                && !taken.insert(name.clone())
            {
                self.error(&LINKS.index(index), "name", "repeated name", name, "a name that no other link has");
            }
            let place = LINKS.index(index).to_string();
            let id = link.id.as_ref().map_or_else(|| place.clone(), Scalar::to_string);
            // What was wrong has been reported and costs the document; the other links want to be looked at, too.
            let kind = kind.unwrap_or(LinkKind::Card(Card::MacAddress { mac_address: MacAddr::zero(), name: None }));
            let (ipv4, ipv6, routes) = (Ipv4Config::default(), Ipv6Config::default(), Vec::new());
            self.links.push(network::Link { id, place, kind, mtu: self.mtus[index], ipv4, ipv6, routes });
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
        for index in 0..document.links.len() {
            self.merge_mtu(index);
        }
    }

    fn card(&mut self, index: usize, link: &Link, carries_vlans: bool) -> Reported<LinkKind> {
        let place = LINKS.index(index);
        if !link.kind.as_ref().is_some_and(|kind| CARDS.contains(&kind.text().as_ref())) {
            let expected = "phy, bond, vlan or another word of the schema";
            let (severity, place) = (Severity::Warning, place.field("type"));
            self.unknown(severity, place, "unknown link type", link.kind.as_ref(), expected);
        }
        let mac_address = self.mac_address(&place, "ethernet_mac_address", link.ethernet_mac_address.as_ref());
        let name = match said(&link.name).map(|name| (name, name.text().parse::<InterfaceName>())) {
            None => Ok(None),
            Some((_, Ok(name))) => Ok(Some(name)),
            Some((name, Err(_))) => {
                // Beside a MAC address a name is a wish; but VLANs hang on the name.
                let needed = carries_vlans || mac_address == Ok(None);
                let severity = if needed { Severity::Error } else { Severity::Warning };
                let expected = InterfaceName::EXPECTED;
                self.findings.push(Finding::new(
                    severity,
                    place.field("name"),
                    "invalid interface name",
                    name,
                    expected,
                ));
                if needed { Err(()) } else { Ok(None) }
            }
        };
        let card = match (mac_address?, name?) {
            (Some(mac_address), name) => Card::MacAddress { mac_address, name },
            (None, Some(name)) => Card::Name(name),
            (None, None) => {
                let id = link.id.as_ref().map_or(Cow::Borrowed(""), Scalar::text);
                let Ok(name) = id.parse() else {
                    let expected = "an ethernet_mac_address or a name beside it, or an id that is an interface name";
                    self.error(&place, "id", "card without a MAC address or a name", id, expected);
                    return Err(());
                };
                Card::Name(name)
            }
        };
        Ok(LinkKind::Card(card))
    }

    /// cloud-init's names: the one that is given, else `bond` and the number of the bond among all bonds. A number that
    /// is taken is passed over.
    fn bond_names(&mut self) -> Vec<Option<InterfaceName>> {
        let document = self.document;
        let taken: BTreeSet<Cow<'_, str>> = document.links.iter().filter_map(own_name).map(Scalar::text).collect();
        let mut names = Vec::new();
        let mut next = 0;
        for at in 0..self.origin.len() {
            let index = self.origin[at];
            if self.kinds[index] != Kind::Bond {
                continue;
            }
            names.push(match said(&document.links[index].name) {
                Some(name) => {
                    let legal = name.text().parse().ok();
                    if legal.is_none() {
                        let expected = InterfaceName::EXPECTED;
                        self.error(&LINKS.index(index), "name", "invalid interface name", name, expected);
                    }
                    legal
                }
                None => {
                    while taken.contains(format!("bond{next}").as_str()) {
                        next += 1;
                    }
                    format!("bond{next}").parse().ok()
                }
            });
            next += 1;
        }
        names
    }

    fn bond(&mut self, index: usize, link: &Link, name: Option<InterfaceName>) -> Reported<LinkKind> {
        let place = LINKS.index(index);
        let mut ports: Vec<LinkIndex> = Vec::new();
        for (position, port) in link.bond_links.iter().enumerate() {
            match self.find(Some(port)).and_then(|port| self.model[port]) {
                Some(port) => ports.push(port),
                None => {
                    let list = place.field("bond_links");
                    let finding = Finding::warning(list.index(position), "unknown link", port, LINK_EXPECTED);
                    self.findings.push(finding);
                }
            }
        }
        if ports.is_empty() {
            let place = place.field("bond_links");
            let finding = Finding::without_value(Severity::Error, place, "bond without a port", "the ids of its links");
            self.findings.push(finding);
        }
        let mac_address = self.mac_address(&place, "ethernet_mac_address", link.ethernet_mac_address.as_ref());
        let options = self.bond_options(&place, link, &ports);
        if ports.is_empty() {
            return Err(());
        }
        Ok(LinkKind::Bond { name: name.ok_or(())?, ports, options: options?, mac_address: mac_address? })
    }

    fn bond_options(&mut self, place: &Place<'_>, link: &Link, ports: &[LinkIndex]) -> Reported<BondOptions> {
        // `bond_xmit_hash_policy` and `bond-xmit-hash-policy` are one option.
        let kernels = |name: &str| name.get(5..).unwrap_or_default().replace('-', "_");
        let option = |wanted: &str| link.bond_options.iter().rfind(|(name, _)| kernels(name) == wanted);
        let mode = match option("mode") {
            None => {
                let (severity, place) = (Severity::Warning, place.field("bond_mode"));
                self.findings.push(Finding::without_value(severity, place, "missing", BondMode::EXPECTED));
                Ok(BondMode::default())
            }
            Some((name, value)) => BondMode::parse(&value.to_string()).ok_or_else(|| {
                self.error(place, name, "invalid mode", value, BondMode::EXPECTED);
            }),
        };
        let mut options = BondOptions::new(mode.unwrap_or_default());
        for (name, value) in &link.bond_options {
            let text = value.to_string();
            match kernels(name).as_str() {
                "mode" => {}
                "primary" => {
                    options.primary = self.port(&text, ports);
                    if options.primary.is_none() {
                        self.warning(place, name, "unknown port", text, "the id of one of its links");
                    }
                }
                "arp_ip_target" => match arp_ip_targets(value) {
                    Some(targets) => options.arp_ip_target = targets,
                    None => self.warning(place, name, "invalid value", text, "IPv4 addresses"),
                },
                kernels => match options.set(kernels, &text) {
                    Ok(()) => {}
                    // Whether it is of use is not known when the mode is not.
                    Err(BondOptionError::Useless { .. }) if mode.is_err() => {}
                    Err(error) => self.findings.push(bond_option_finding(place.field(name), &text, &error)),
                },
            }
        }
        mode?;
        for (name, error) in options.reconcile() {
            let (written, value) = option(name).map_or((name, &Value::Null), |(name, value)| (name, value));
            self.findings.push(bond_option_finding(place.field(written), &value.to_string(), &error));
        }
        Ok(options)
    }

    /// The port of that id, or of that name.
    fn port(&self, wanted: &str, ports: &[LinkIndex]) -> Option<LinkIndex> {
        let by_id = self.by_id.get(wanted).and_then(|link| self.model[*link]).filter(|port| ports.contains(port));
        let is_named = |port: &&LinkIndex| {
            said(&self.document.links[self.origin[port.0]].name).is_some_and(|name| name.text() == wanted)
        };
        by_id.or_else(|| ports.iter().find(is_named).copied())
    }

    fn vlan(&mut self, index: usize, link: &Link) -> Reported<LinkKind> {
        let place = LINKS.index(index);
        let named = said(&link.name);
        let name = named.and_then(|name| name.text().parse::<InterfaceName>().ok());
        if let (Some(named), None) = (named, &name) {
            // It is a wish: every VLAN can be named after its parent and its id.
            self.warning(&place, "name", "invalid interface name", named, InterfaceName::EXPECTED);
        }
        let parent = self.find(link.vlan_link.as_ref()).and_then(|parent| self.model[parent]);
        match (&link.vlan_link, parent) {
            (None, _) => self.missing(&place, "vlan_link", LINK_EXPECTED),
            (Some(id), None) => self.error(&place, "vlan_link", "unknown link", id, LINK_EXPECTED),
            (Some(_), Some(_)) => {}
        }
        let id = link.vlan_id.as_ref().and_then(Scalar::integer).and_then(|id| VlanId::try_from(id).ok());
        match (&link.vlan_id, id) {
            (None, _) => self.missing(&place, "vlan_id", VlanId::EXPECTED),
            (Some(written), None) => self.error(&place, "vlan_id", "invalid VLAN id", written, VlanId::EXPECTED),
            (Some(_), Some(_)) => {}
        }
        let mac_address = self.mac_address(&place, "vlan_mac_address", link.vlan_mac_address.as_ref())?;
        Ok(LinkKind::Vlan { name, parent: parent.ok_or(())?, id: id.ok_or(())?, mac_address })
    }

    /// The kernel gives a bond its first port's address and a VLAN its parent's, so that need not be said.
    fn drop_inherited_mac_address(&mut self, at: usize) {
        if self.links[at].mac_address().is_none() {
            return;
        }
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

    /// Two entries for one card: the first MTU that is given counts.
    fn merge_mtu(&mut self, index: usize) {
        let Some(at) = self.model[index].filter(|at| self.origin[at.0] != index) else { return };
        let Some(mtu) = self.mtus[index] else { return };
        let first = *self.links[at.0].mtu.get_or_insert(mtu);
        if first != mtu {
            let expected = format!("the card's other MTU, {first}");
            self.warning(&LINKS.index(index), "mtu", "second MTU", mtu, &expected);
        }
    }

    fn mac_address(&mut self, place: &Place<'_>, name: &str, written: Option<&Scalar>) -> Reported<Option<MacAddr>> {
        let Some(written) = written.filter(|address| !address.text().is_empty()) else { return Ok(None) };
        let address = parse_mac_address(&written.text());
        if address.is_none() {
            self.error(place, name, "invalid MAC address", written, MAC_ADDRESS_EXPECTED);
        }
        address.map(Some).ok_or(())
    }
}

/// A field that has a value. An empty text is none.
fn said(field: &Option<Scalar>) -> Option<&Scalar> {
    field.as_ref().filter(|value| !value.text().is_empty())
}

/// What the document would have a link named: a card's id only where nothing else is given.
fn own_name(link: &Link) -> Option<&Scalar> {
    let id_serves = Kind::of(link) == Kind::Card && said(&link.ethernet_mac_address).is_none();
    said(&link.name).or(said(&link.id).filter(|_| id_serves))
}

/// What makes two entries of `links` one card: the MAC address, or the name where there is none.
fn card_key(link: &Link) -> Option<String> {
    match said(&link.ethernet_mac_address) {
        Some(address) => parse_mac_address(&address.text()).map(|address| address.to_string()),
        None => own_name(link).map(Scalar::to_string),
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
        BondOptionError::Unknown => {
            Finding::warning(place, "unknown bond option", value, "an option of the kernel's bonding driver")
        }
        BondOptionError::Value { expected } => Finding::warning(place, "invalid value", value, expected),
        BondOptionError::Useless { expected } => Finding::warning(place, "useless bond option", value, expected),
    }
}

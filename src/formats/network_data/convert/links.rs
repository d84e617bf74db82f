//! Converts `links`: chooses the links that the machine needs, and determines the kind of each chosen link.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use pnet_base::MacAddr;

use super::{Converter, LINKS, LinkType};
use crate::diagnostic::{Diagnostic, FieldPath, Severity};
use crate::formats::convert::{self, Reported, WrittenOption, given};
use crate::formats::network_data::{Link, Scalar};
use crate::formats::value::Value;
use crate::network::{self, BondMode, BondOptions, InterfaceName, LinkIndex, LinkKind, Nic, Pairs, parse_mac_address};

/// Values of `type` that the schema has for a NIC.
const NICS: [&str; 9] = ["phy", "bridge", "dvs", "hw_veb", "hyperv", "ovs", "tap", "vhostuser", "vif"];

pub(super) const LINK_EXPECTED: &str = "the id of one of the links";

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
        self.kinds = document.links.iter().map(LinkType::of).collect();
        for (index, link) in document.links.iter().enumerate() {
            let path = LINKS.index(index);
            self.mtus.push(convert::mtu(self.diagnostics, path.field("mtu"), link.mtu.as_ref()));
        }
    }

    /// Chooses the links of the model: first the links that the machine needs, then the NICs that get no address. The
    /// machine needs each link that a network refers to, each bond, each VLAN and each NIC with an MTU. It also needs
    /// the links that these links consist of.
    pub(super) fn choose_links(&mut self) {
        let document = self.document;
        let mut wanted = vec![false; document.links.len()];
        let mut ask: Vec<usize> =
            document.networks.iter().filter_map(|network| self.find(network.link.as_ref())).collect();
        let asks_itself = |index: &usize| self.kinds[*index] != LinkType::Nic || self.mtus[*index].is_some();
        ask.extend((0..document.links.len()).filter(asks_itself));
        if ask.is_empty() && document.networks.is_empty() {
            // A document with links but without networks states that no link gets an address.
            ask.extend(0..document.links.len());
        }
        while let Some(index) = ask.pop() {
            if std::mem::replace(&mut wanted[index], true) {
                continue;
            }
            let link = &document.links[index];
            match self.kinds[index] {
                LinkType::Nic => {}
                LinkType::Bond => ask.extend(link.bond_links.iter().filter_map(|port| self.find(Some(port)))),
                LinkType::Vlan => ask.extend(self.find(link.vlan_link.as_ref())),
            }
        }

        let mut nics = BTreeMap::new();
        for (index, link) in document.links.iter().enumerate() {
            let mut path = None;
            if wanted[index] {
                let next = LinkIndex(self.origin.len());
                let known = if self.kinds[index] == LinkType::Nic { nic_key(link) } else { None };
                let at = known.map_or(next, |key| *nics.entry(key).or_insert(next));
                if at == next {
                    self.origin.push(index);
                } else {
                    let id = link.id.as_ref().map_or(Cow::Borrowed(""), Scalar::text);
                    let problem = format!("same NIC as links[{}]", self.origin[at.0]);
                    self.diagnostics.push(Diagnostic::warning(
                        LINKS.index(index),
                        &problem,
                        id,
                        "one link for each NIC",
                    ));
                }
                path = Some(at);
            }
            self.model.push(path);
        }
        // The NICs without a network come last. These NICs are in the model because a network program may use DHCP on a
        // NIC without a configuration. An entry is left out if its MAC address is missing or invalid, if its name is
        // invalid, or if its NIC is already chosen.
        self.needed = self.origin.len();
        for (index, link) in document.links.iter().enumerate() {
            let next = LinkIndex(self.origin.len());
            let has_mac_address = given(link.ethernet_mac_address.as_ref()).is_some();
            if !wanted[index]
                && self.kinds[index] == LinkType::Nic
                && has_mac_address
                && own_name(link).is_none_or(|name| name.text().parse::<InterfaceName>().is_ok())
                && nic_key(link).is_some_and(|key| *nics.entry(key).or_insert(next) == next)
            {
                self.model[index] = Some(next);
                self.origin.push(index);
            }
        }
    }

    pub(super) fn make_links(&mut self) {
        let document = self.document;
        let mut parents = vec![false; document.links.len()];
        for (link, kind) in document.links.iter().zip(&self.kinds) {
            if *kind == LinkType::Vlan
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
                LinkType::Nic => self.nic(index, link, parents[index]),
                LinkType::Bond => self.bond(index, link, bonds.next().flatten()),
                LinkType::Vlan => self.vlan(index, link),
            };
            if let Ok(LinkKind::Bond { name, .. } | LinkKind::Nic(Nic::Name(name))) = &kind
                && !taken.insert(*name)
            {
                self.error(&LINKS.index(index), "name", "repeated name", name, "a name that no other link has");
            }
            let path = LINKS.index(index).path();
            let id = link.id.as_ref().map_or_else(|| path.clone(), Scalar::to_string);
            // The error has been reported, and the document will be rejected. A placeholder allows a check of the other
            // links.
            let kind = kind.unwrap_or(LinkKind::Nic(Nic::MacAddress { mac_address: MacAddr::zero(), name: None }));
            let (mtu, cloned_mac_address) = (self.mtus[index], self.cloned_mac_address(index, link));
            let without_addresses = document.networks.is_empty() || at >= self.needed;
            let link = network::Link::new(id, path, kind);
            self.links.push(network::Link { mtu, cloned_mac_address, without_addresses, ..link });
        }
        self.bond_of = vec![None; self.links.len()];
        for (at, link) in self.links.iter().enumerate() {
            if let LinkKind::Bond { ports, .. } = &link.kind {
                ports.iter().for_each(|port| self.bond_of[port.0] = Some(LinkIndex(at)));
            }
        }
        // Merge entries that describe the same NIC.
        for index in 0..document.links.len() {
            if let Some(at) = self.model[index].filter(|at| self.origin[at.0] != index) {
                let path = LINKS.index(index);
                convert::merge_mtu(self.diagnostics, path.field("mtu"), &mut self.links[at.0], self.mtus[index]);
                if let LinkKind::Nic(Nic::MacAddress { name: name @ None, .. }) = &mut self.links[at.0].kind {
                    *name = given(document.links[index].name.as_ref()).and_then(|name| name.text().parse().ok());
                }
            }
        }
    }

    fn nic(&mut self, index: usize, link: &Link, carries_vlans: bool) -> Reported<LinkKind> {
        let path = LINKS.index(index);
        let is_known = link.kind.as_ref().is_some_and(|kind| NICS.contains(&kind.text().as_ref()));
        // The type of a NIC without a network has no effect.
        if !is_known && self.model[index].is_some_and(|at| at.0 < self.needed) {
            let expected = "phy, bond, vlan or another word of the schema";
            let (severity, path) = (Severity::Warning, path.field("type"));
            convert::unknown(self.diagnostics, severity, path, "unknown link type", link.kind.as_ref(), expected);
        }
        let field = path.field("ethernet_mac_address");
        let mac_address = convert::mac_address(self.diagnostics, field, link.ethernet_mac_address.as_ref());
        let name = match given(link.name.as_ref()).map(|name| (name, name.text().parse::<InterfaceName>())) {
            None => Ok(None),
            Some((_, Ok(name))) => Ok(Some(name)),
            Some((name, Err(_))) => {
                // A NIC with a MAC address works without its requested name, unless a VLAN needs the name of its
                // parent.
                let needed = carries_vlans || mac_address == Ok(None);
                let severity = if needed { Severity::Error } else { Severity::Warning };
                let expected = InterfaceName::EXPECTED;
                self.diagnostics.push(Diagnostic::new(
                    severity,
                    path.field("name"),
                    "invalid interface name",
                    name,
                    expected,
                ));
                if needed { Err(()) } else { Ok(None) }
            }
        };
        let nic = match (mac_address?, name?) {
            (Some(mac_address), name) => Nic::MacAddress { mac_address, name },
            (None, Some(name)) => Nic::Name(name),
            (None, None) => {
                let id = link.id.as_ref().map_or(Cow::Borrowed(""), Scalar::text);
                let Ok(name) = id.parse() else {
                    let expected = "also an ethernet_mac_address or a name, or an id that is an interface name";
                    self.error(&path, "id", "NIC without a MAC address or a name", id, expected);
                    return Err(());
                };
                Nic::Name(name)
            }
        };
        Ok(LinkKind::Nic(nic))
    }

    /// The name of each bond, as in cloud-init: the name in the document, else `bond` and the number of the bond among
    /// all bonds. Numbers whose name is taken are skipped.
    fn bond_names(&mut self) -> Vec<Option<InterfaceName>> {
        let document = self.document;
        let taken: BTreeSet<Cow<'_, str>> = document.links.iter().filter_map(own_name).map(Scalar::text).collect();
        let mut names = Vec::new();
        let mut next = 0;
        for at in 0..self.origin.len() {
            let index = self.origin[at];
            if self.kinds[index] != LinkType::Bond {
                continue;
            }
            names.push(match given(document.links[index].name.as_ref()) {
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

    fn bond(&mut self, index: usize, link: &'d Link, name: Option<InterfaceName>) -> Reported<LinkKind> {
        let path = LINKS.index(index);
        let mut ports: Vec<LinkIndex> = Vec::new();
        for (position, port) in link.bond_links.iter().enumerate() {
            match self.find(Some(port)).and_then(|port| self.model[port]) {
                Some(port) => ports.push(port),
                None => {
                    let list = path.field("bond_links");
                    let diagnostic = Diagnostic::warning(list.index(position), "unknown link", port, LINK_EXPECTED);
                    self.diagnostics.push(diagnostic);
                }
            }
        }
        if ports.is_empty() {
            let path = path.field("bond_links");
            let diagnostic =
                Diagnostic::without_value(Severity::Error, path, "bond without a member", "the ids of its links");
            self.diagnostics.push(diagnostic);
        }
        let options = self.bond_options(&path, link, &ports);
        if ports.is_empty() {
            return Err(());
        }
        Ok(LinkKind::Bond { name: name.ok_or(())?, ports, options: options? })
    }

    fn bond_options(&mut self, path: &FieldPath<'_>, link: &'d Link, ports: &[LinkIndex]) -> Reported<BondOptions> {
        let option = |(written, value): &'d (String, Value)| {
            // `bond_xmit_hash_policy` and `bond-xmit-hash-policy` are the same option.
            let name = written.get(5..).unwrap_or_default().replace('-', "_").into();
            WrittenOption { written, name, value: Cow::Borrowed(value) }
        };
        let options: Vec<WrittenOption<'_>> = link.bond_options.iter().map(option).collect();
        if !options.iter().any(|option| option.name == "mode") {
            let path = path.field("bond_mode");
            let diagnostic = Diagnostic::without_value(Severity::Warning, path, "missing", BondMode::EXPECTED);
            self.diagnostics.push(diagnostic);
        }
        let (document, by_id, model, origin) = (self.document, &self.by_id, &self.model, &self.origin);
        convert::bond_options(self.diagnostics, path, &options, &|wanted| {
            // The document refers to a bond member by id or by name.
            let by_id = by_id.get(wanted).and_then(|link| model[*link]).filter(|port| ports.contains(port));
            let name = |port: &LinkIndex| given(document.links[origin[port.0]].name.as_ref());
            let is_named = |port: &&LinkIndex| name(port).is_some_and(|name| name.text() == wanted);
            by_id.or_else(|| ports.iter().find(is_named).copied())
        })
    }

    fn vlan(&mut self, index: usize, link: &Link) -> Reported<LinkKind> {
        let path = LINKS.index(index);
        let named = given(link.name.as_ref());
        let name = named.and_then(|name| name.text().parse::<InterfaceName>().ok());
        if let (Some(named), None) = (named, &name) {
            // An invalid name is only a warning, because a renderer can name any VLAN after its parent and its id.
            self.warning(&path, "name", "invalid interface name", named, InterfaceName::EXPECTED);
        }
        let parent = self.find(link.vlan_link.as_ref()).and_then(|parent| self.model[parent]);
        if parent.is_none() {
            let (path, written) = (path.field("vlan_link"), link.vlan_link.as_ref());
            convert::unknown(self.diagnostics, Severity::Error, path, "unknown link", written, LINK_EXPECTED);
        }
        let id = convert::vlan_id(self.diagnostics, path.field("vlan_id"), link.vlan_id.as_ref());
        Ok(LinkKind::Vlan { name, parent: parent.ok_or(())?, id: id? })
    }

    /// The MAC address to set on a bond or a VLAN. `None` if there is no address, or an invalid address that has
    /// already been reported.
    fn cloned_mac_address(&mut self, index: usize, link: &Link) -> Option<MacAddr> {
        let (name, written) = match self.kinds[index] {
            LinkType::Nic => return None,
            LinkType::Bond => ("ethernet_mac_address", &link.ethernet_mac_address),
            LinkType::Vlan => ("vlan_mac_address", &link.vlan_mac_address),
        };
        convert::mac_address(self.diagnostics, LINKS.index(index).field(name), written.as_ref()).ok().flatten()
    }
}

/// The name that the document requests for a link. The id of a NIC counts as its name only if the NIC has neither a
/// name nor a MAC address.
fn own_name(link: &Link) -> Option<&Scalar> {
    let id_serves = LinkType::of(link) == LinkType::Nic && given(link.ethernet_mac_address.as_ref()).is_none();
    given(link.name.as_ref()).or(given(link.id.as_ref()).filter(|_| id_serves))
}

/// The key that is the same for all entries of one NIC: the MAC address, or the name of a NIC without a MAC address.
fn nic_key(link: &Link) -> Option<String> {
    match given(link.ethernet_mac_address.as_ref()) {
        Some(address) => parse_mac_address(&address.text()).map(|address| Pairs(address, b':').to_string()),
        None => own_name(link).map(Scalar::to_string),
    }
}

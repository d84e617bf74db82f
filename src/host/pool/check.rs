//! The check of a specification: [`Pool::new`] makes a pool from the specification, or reports every mistake with its
//! path.
//!
//! This file has the order of the checks, and the checks of names, addresses and subnets. Its submodules check the
//! members that need more rules.

mod pre_allocations;
mod prefix_length;
mod routers;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::settings::{self, Router, Settings};
use super::{Namespaces, Pool, PoolSpec, Space, Subnet, TemplateFacts};
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::host::address::{AddressRange, AddressSet, Entry};
use crate::host::claim::{OBJECT_NAME, is_object_name};
use crate::host::members::SUBNET;
use crate::network::{Family, InterfaceName};

/// A specification during its check, with the diagnostics so far.
struct Check<'a> {
    spec: &'a PoolSpec,
    diagnostics: &'a mut Diagnostics,
}

/// A part of a specification during its check: one of its `subnets`, or the whole pool if it has no `subnets`.
struct Part<'s> {
    spec: &'s PoolSpec,
    entries: BTreeMap<Family, Entries>,
    // `None` after an error.
    networks: Option<BTreeMap<Family, (usize, Entry)>>,
    settings: Settings,
    routers: Vec<Router>,
    excluded: Vec<AddressRange>,
    prefix: Result<Option<u8>, ()>,
}

/// The entries of a family, each with its index in the list.
type Entries = Vec<(usize, Entry)>;

// === impl Pool ===

impl Pool {
    /// Makes a pool from a specification. Reports all errors at once.
    ///
    /// `template` has the settings of the machines' template for the pool's interface: prefix lengths, and addresses to
    /// reserve.
    ///
    /// - The prefix length is that of `prefix`, else that of `machineNetwork`, else that of the template. Otherwise the
    ///   prefix length is that of the CIDRs among the pool's own addresses, if these CIDRs agree and contain all other
    ///   addresses. No other value is used as the prefix length.
    /// - A pool without `subnets` has one prefix length of each family, because its machines are on one network.
    /// - A gateway must be link-local or in the subnet of every machine, unless [`PoolSpec::on_link_gateway`] is set.
    ///
    /// `None` when the pool has an error. An error that was found while the document was read counts, too. The other
    /// pools of the document stay usable.
    ///
    /// ```
    /// use glowplug::network::Family;
    /// use glowplug::host::pool::{Pool, TemplateFacts};
    /// use glowplug::host::pools_file::read_pools;
    ///
    /// let (specs, mut diagnostics) = read_pools(b"{name: workers, network: vlan10, addresses: [10.0.0.0/24], gateway: [10.0.0.1]}");
    /// let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics).unwrap();
    /// assert_eq!(pool.count(Family::Ipv4).unwrap().allocatable, 253);
    ///
    /// let (specs, mut diagnostics) = read_pools(b"{name: workers, network: vlan10, addresses: [10.0.0.5/24]}");
    /// assert_eq!(Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics), None);
    /// assert_eq!(
    ///     diagnostics.kept()[0].to_string(),
    ///     "addresses[0]: host bits are set \"10.0.0.5/24\", expected no bits after the prefix length: \
    ///      did you mean 10.0.0.0/24 or 10.0.0.5/32"
    /// );
    /// ```
    #[must_use]
    #[doc(hidden)]
    pub fn new(spec: &PoolSpec, template: &TemplateFacts, diagnostics: &mut Diagnostics) -> Option<Self> {
        let errors = diagnostics.errors();
        let mut check = Check { spec, diagnostics };
        check.names();
        let interface = check.interface();
        let of_subnets: Vec<PoolSpec> = spec.subnets.iter().map(|subnet| spec.subnet(subnet)).collect();
        let parts = if of_subnets.is_empty() { std::slice::from_ref(spec) } else { of_subnets.as_slice() };
        let mut parts: Vec<Part<'_>> = parts.iter().map(|part| Part::read(part, check.diagnostics)).collect();
        let entries = Part::merged(&parts);
        let (of_pool, excluded) = check.of_all_subnets(&entries);
        parts.iter_mut().for_each(|part| part.settings = std::mem::take(&mut part.settings).or(&of_pool));
        check.distinct(&parts);
        let excluded: Vec<AddressRange> =
            parts.iter().flat_map(|part| &part.excluded).chain(&excluded).copied().collect();
        let all = || parts.iter().map(|part| &part.settings).chain([&of_pool]);
        let servers = all().flat_map(|settings| settings.routers().chain(settings.nameservers.iter().copied()));
        let named = servers.chain(template.all()).map(|address| AddressRange::subnet(address, u8::MAX));
        let mut reserved: Vec<AddressRange> = named.collect();
        let pre_allocations = check.pre_allocations(&entries, &excluded, &reserved);
        let kept = || pre_allocations.values().flatten().copied();
        reserved.extend(kept().map(|address| AddressRange::subnet(address, u8::MAX)).chain(excluded.iter().copied()));
        let mut subnets: Vec<Subnet> =
            parts.iter().flat_map(|part| part.subnets(template, check.diagnostics)).collect();
        check.pre_allocated_subnets(&subnets, &pre_allocations);
        for address in kept() {
            if let Some(at) = Subnet::position(&subnets, address) {
                subnets[at].insert(address);
            }
        }
        let mut spaces = Vec::new();
        for family in [Family::Ipv4, Family::Ipv6] {
            let (own, others) = subnets.into_iter().partition(|subnet| subnet.family() == Some(family));
            subnets = others;
            if !Vec::is_empty(&own) {
                spaces.push(Space::new(family, own, reserved.clone(), !spec.allocate_reserved_ip_addresses));
            }
        }
        let settings = if spec.subnets.is_empty() { parts.swap_remove(0).settings } else { of_pool };
        if diagnostics.errors() > errors || spec.has_errors {
            return None;
        }
        for space in spaces.iter().filter(|space| space.allocatable() == 0) {
            let problem = format!("no allocatable {} address", space.family());
            let expected = "more addresses than are reserved";
            let member = if spec.subnets.is_empty() { "addresses" } else { "subnets" };
            diagnostics.push(Diagnostic::without_value(Severity::Warning, spec.at(member), &problem, expected));
        }
        for unread in &template.unread {
            let path = spec.at(format_args!("template.{}", unread.path));
            diagnostics.push(Diagnostic { path, ..unread.clone() });
        }
        let pool = Self::from_spaces(spec.full_name(), spec.full_network(), interface?, settings, spaces);
        let reuse_delay = Duration::from_secs(spec.address_reuse_grace_period_seconds.into());
        let template = TemplateFacts { unread: Vec::new(), ..template.clone() };
        let excluded = excluded.into_iter().collect();
        let (cluster, is_external) = (spec.cluster_name.clone(), spec.is_external);
        let pool = match spec.is_global && !spec.selects_machines {
            true => pool.with_namespaces(Namespaces::only(None::<String>), Namespaces::every()),
            false => pool,
        };
        Some(Self { cluster, reuse_delay, template, excluded, pre_allocations, is_external, ..pool })
    }
}

// === impl Part ===

impl<'s> Part<'s> {
    fn read(spec: &'s PoolSpec, diagnostics: &mut Diagnostics) -> Self {
        let mut check = Check { spec, diagnostics };
        let entries = check.addresses();
        let networks = check.machine_network();
        let (settings, routers) = check.settings(&entries);
        let excluded = check.excluded(&entries);
        let prefix = check.written_prefix(&entries);
        if let Some(networks) = networks.as_ref().filter(|_| spec.is_external) {
            check.external_routers(networks, &routers);
        }
        Self { spec, entries, networks, settings, routers, excluded, prefix }
    }

    /// The entries of all parts. Empty if a part has no entries.
    fn merged(parts: &[Self]) -> BTreeMap<Family, Entries> {
        let mut merged: BTreeMap<Family, Entries> = BTreeMap::new();
        if parts.iter().all(|part| !part.entries.is_empty()) {
            for (family, entries) in parts.iter().flat_map(|part| &part.entries) {
                merged.entry(*family).or_default().extend(entries);
            }
        }
        merged
    }

    /// The addresses of all families.
    fn addresses(&self) -> AddressSet {
        self.entries.values().flatten().map(|(_, entry)| entry.range()).collect()
    }

    /// The subnets of the part: one for each family with a valid prefix length.
    fn subnets(&self, template: &TemplateFacts, diagnostics: &mut Diagnostics) -> Vec<Subnet> {
        let mut check = Check { spec: self.spec, diagnostics };
        let (Some(networks), Ok(written)) = (&self.networks, self.prefix) else { return Vec::new() };
        let mut subnets = Vec::new();
        for (family, entries) in &self.entries {
            let others = (networks.get(family).copied(), template.prefixes.get(family).copied());
            let of_family = || self.routers.iter().filter(|(_, router)| Family::of(*router) == *family);
            let first = of_family().next().map(|(_, router)| *router);
            let Some(prefix) = check.prefix(entries, written, others, first) else { continue };
            for (member, router) in of_family() {
                check.router(entries, prefix, member, *router);
            }
            for gateway in template.gateways.iter().filter(|gateway| Family::of(**gateway) == *family) {
                check.template_gateway(entries, prefix, *gateway);
            }
            let ranges = entries.iter().map(|(_, entry)| entry.range());
            subnets.push(Subnet::new(prefix.min(family.bits()), ranges, self.settings.clone()));
        }
        subnets
    }
}

// === impl Check ===

impl Check<'_> {
    fn error(&mut self, member: impl fmt::Display, problem: &str, value: impl fmt::Display, expected: &str) {
        self.diagnostics.push(Diagnostic::error(self.spec.at(member), problem, value, expected));
    }

    fn warning(&mut self, member: impl fmt::Display, problem: &str, value: impl fmt::Display, expected: &str) {
        self.diagnostics.push(Diagnostic::warning(self.spec.at(member), problem, value, expected));
    }

    fn missing(&mut self, member: &str, expected: &str) {
        let path = self.spec.at(member);
        // The reader of the file has already reported a value of another type.
        if !self.diagnostics.kept().iter().any(|diagnostic| diagnostic.path == path) {
            self.diagnostics.push(Diagnostic::without_value(Severity::Error, path, "missing", expected));
        }
    }

    /// The settings and exclusions that apply to each subnet of a pool with subnets.
    fn of_all_subnets(&mut self, entries: &BTreeMap<Family, Entries>) -> (Settings, Vec<AddressRange>) {
        let spec = self.spec;
        if spec.subnets.is_empty() {
            return (Settings::default(), Vec::new());
        }
        let members = [
            ("addresses", spec.addresses.as_ref().is_some_and(|addresses| !addresses.is_empty())),
            ("gateway", !spec.settings.gateway.is_empty()),
            ("routes", !spec.settings.routes.is_empty()),
            ("machineNetwork", !spec.machine_network.is_empty()),
            ("prefix", spec.prefix.is_some()),
        ];
        for (member, _) in members.into_iter().filter(|(_, is_set)| *is_set) {
            let expected = format!("{member} inside the subnets instead");
            let (at, problem) = (self.spec.at(member), "set together with subnets");
            self.diagnostics.push(Diagnostic::without_value(Severity::Error, at, problem, &expected));
        }
        (self.settings(entries).0, self.excluded(entries))
    }

    /// Reports addresses that two subnets have.
    fn distinct(&mut self, parts: &[Part<'_>]) {
        for (at, part) in parts.iter().enumerate() {
            for (before, other) in parts.iter().take(at).enumerate() {
                let both = part.addresses().intersection(&other.addresses());
                if let Some(range) = both.ranges().first() {
                    let problem = format!("addresses of subnets[{before}]");
                    let member = format_args!("subnets[{at}].addresses");
                    self.error(member, &problem, range, "each address in one subnet");
                }
            }
        }
    }

    fn names(&mut self) {
        let spec = self.spec;
        if spec.name.is_empty() {
            self.missing("name", "the name of the NodePool");
        } else if !is_object_name(&spec.name) {
            self.error("name", "invalid name", &spec.name, OBJECT_NAME);
        }
        let others = [("namespace", &spec.namespace), ("clusterName", &spec.cluster_name)];
        for (member, name) in others {
            if let Some(name) = name.as_ref().filter(|name| !is_object_name(name)) {
                self.error(member, "invalid name", name, OBJECT_NAME);
            }
        }
        if spec.network.is_empty() {
            self.missing("network", "the network attachment definition, namespace/name or a name");
        }
        for network in [&spec.network].into_iter().chain(&spec.attachment).filter(|network| !network.is_empty()) {
            if !network.splitn(2, '/').all(is_object_name) {
                let expected = format!("namespace/name or a name: {OBJECT_NAME}");
                self.error("network", "invalid network", network, &expected);
            }
        }
    }

    fn interface(&mut self) -> Option<InterfaceName> {
        let text = self.spec.interface.as_deref().unwrap_or(Pool::DEFAULT_INTERFACE);
        let name = text.parse().ok();
        if name.is_none() {
            self.error("interface", "invalid interface name", text, InterfaceName::EXPECTED);
        }
        name
    }

    fn entries(&mut self, texts: &[String], member: impl Fn(usize) -> String) -> Entries {
        let mut entries = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            match text.parse::<Entry>() {
                Ok(entry) => entries.push((at, entry)),
                Err(error) => self.diagnostics.push(error.at(self.spec.at(member(at)))),
            }
        }
        entries
    }

    /// The entries of each family. Empty when an entry is invalid, because the later checks need all entries.
    fn addresses(&mut self) -> BTreeMap<Family, Entries> {
        if self.spec.is_external {
            return BTreeMap::new();
        }
        let none = Vec::new();
        let texts = self.spec.addresses.as_ref().unwrap_or(&none);
        if texts.is_empty() {
            let (member, problem, expected) = match &self.spec.addresses {
                _ if self.spec.has_no_subnet => ("subnets", "empty list", "at least one subnet, or addresses"),
                Some(_) => ("addresses", "empty list", "at least one address"),
                None => ("addresses", "missing", "the addresses of the pool"),
            };
            let path = self.spec.at(member);
            self.diagnostics.push(Diagnostic::without_value(Severity::Error, path, problem, expected));
        }
        let entries = self.entries(texts, |at| format!("addresses[{at}]"));
        let mut families: BTreeMap<Family, Entries> = BTreeMap::new();
        if entries.len() == texts.len() {
            for (at, entry) in entries {
                families.entry(entry.range().family()).or_default().push((at, entry));
            }
        }
        families
    }

    /// The network of each family, with its index in `machineNetwork`. `None` after an error.
    fn machine_network(&mut self) -> Option<BTreeMap<Family, (usize, Entry)>> {
        let errors = self.diagnostics.errors();
        let mut networks = BTreeMap::new();
        let member = |at: usize| format!("machineNetwork[{at}].cidr");
        for (at, entry) in self.entries(&self.spec.machine_network, member) {
            let member = member(at);
            let family = entry.range().family();
            if entry.length().is_none() {
                self.error(member, "no subnet", entry, SUBNET);
            } else if networks.insert(family, (at, entry)).is_some() {
                self.error(member, &format!("second {family} network"), entry, "at most one of each family");
            }
        }
        (self.diagnostics.errors() == errors).then_some(networks)
    }

    /// The settings, and the routers among them.
    fn settings(&mut self, entries: &BTreeMap<Family, Entries>) -> (Settings, Vec<Router>) {
        let spec = self.spec;
        let at = |member: &str| spec.at(member);
        let families = entries.keys().copied().collect();
        settings::Check { at: &at, families, diagnostics: self.diagnostics }.settings(&spec.settings)
    }

    fn excluded(&mut self, entries: &BTreeMap<Family, Entries>) -> Vec<AddressRange> {
        let all: AddressSet = entries.values().flatten().map(|(_, entry)| entry.range()).collect();
        let member = |at: usize| format!("excludedAddresses[{at}]");
        let excluded = self.entries(&self.spec.excluded_addresses, member);
        for (at, entry) in &excluded {
            let is_kept = |address: IpAddr| entry.range().contains(address);
            if !entries.is_empty() && !all.meets(&entry.range()) && !self.spec.kept_addresses().any(is_kept) {
                self.warning(member(*at), "exclusion outside the pool", entry, "addresses of the pool");
            }
        }
        excluded.into_iter().map(|(_, entry)| entry.range()).collect()
    }
}

//! The specification of a pool as users write it, and its validation.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;

use super::settings::{self, Router, Settings, SettingsSpec};
use super::{Namespaces, Pool, Reserved, Space, Subnet, TemplateFacts};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::host::address::{AddressRange, AddressSet, Entry, is_link_local, parse_address};
use crate::host::claim::{OBJECT_NAME, is_object_name};
use crate::host::members::{Members, SUBNET};
use crate::network::{Family, InterfaceName};

/// A pool as users write it, not checked yet. [`Pool::new`] checks it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[doc(hidden)]
pub struct PoolSpec {
    /// Path in the document, such as `pools[0]`; empty for the document itself. For messages only.
    pub path: String,
    /// Name of the NodePool.
    pub name: String,
    /// Namespace of the NodePool. `None` means `default`.
    pub namespace: Option<String>,
    /// Name of the hosted cluster of the NodePool. Key in a document: `clusterName`.
    pub cluster_name: Option<String>,
    /// Network: `namespace/name` of its network attachment definition, or a name in the pool's own namespace. `default`
    /// without a namespace is the network of pods.
    pub network: String,
    /// The network behind the name, if a NodePool specifies the attachments of its machines. It has the form of
    /// [`Pool::network`] and takes precedence over [`Self::network`].
    pub attachment: Option<String>,
    /// Interface on which machines configure the addresses. `None` means [`Pool::DEFAULT_INTERFACE`].
    pub interface: Option<String>,
    /// Addresses of the pool, each string an [`Entry`]. `None` when the document has no such list.
    pub addresses: Option<Vec<String>>,
    /// Addresses that are never allocated, each string an [`Entry`].
    pub excluded_addresses: Vec<String>,
    /// Names of machines or claims, or `namespace/name`, each with its addresses: one address, or one of each family
    /// with a comma between them. Key in a document: `preAllocations`, the name in metal3's address manager.
    pub pre_allocations: Vec<(String, String)>,
    /// Settings of the machines' documents.
    pub settings: SettingsSpec,
    /// Subnets of the machines, at most one of each family, as in a HostedCluster. Form in a document: a list of
    /// `cidr: …`.
    pub machine_network: Vec<String>,
    /// The subnets of the pool, in the order in which their addresses are allocated: their addresses, exclusions, settings and
    /// prefix lengths. Empty: the pool itself is its only subnet.
    pub subnets: Vec<PoolSpec>,
    /// Whether the document has an empty list of subnets.
    pub has_no_subnet: bool,
    /// Prefix length of the addresses, in a pool of one family. 0: the addresses have no common subnet. `None`: the prefix
    /// length comes from the subnets or the template.
    pub prefix: Option<i64>,
    /// Whether the ends of subnets are allocated, too. Key in a document: `allocateReservedIPAddresses`.
    pub allocate_reserved_ip_addresses: bool,
    /// Whether a gateway may be outside the subnet of the machines. Machines then reach the gateway on the link,
    /// without a route.
    pub on_link_gateway: bool,
    /// Seconds after a release in which no other machine gets the address. Key in a document:
    /// `addressReuseGracePeriodSeconds`, the name in the in-cluster provider of Cluster API.
    pub address_reuse_grace_period_seconds: u32,
    /// Whether another program chooses the addresses, see [`Pool::is_external`]: a StaticIPPool with `addressesFrom`.
    pub is_external: bool,
    /// Whether the pool serves the IPAddressClaims of Cluster API alone.
    pub serves_claims_only: bool,
    /// Whether the pool belongs to no namespace: a GlobalStaticIPPool.
    pub is_global: bool,
    /// Whether the object of the pool says which machines get addresses without a claim. A GlobalStaticIPPool that does not,
    /// serves the claims of every namespace and no machine.
    pub selects_machines: bool,
    /// The own template of the machines of a StaticIPPool. `None`: the pool has no template.
    pub template: Option<String>,
    /// Creation time of the NodePool. `None` when unknown. If two pools overlap, the younger
    /// pool allocates no address.
    pub created: Option<Timestamp>,
    /// Whether the object of the pool is being deleted. Such a pool allocates no address.
    pub is_deleted: bool,
    /// Whether the document has an error in this pool. Such a pool is not usable.
    pub has_errors: bool,
}

/// A specification during its check, with the diagnostics so far.
struct Check<'a> {
    spec: &'a PoolSpec,
    diagnostics: &'a mut Diagnostics,
}

/// A subnet of a pool during its check. A pool without subnets is one part.
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

// === impl PoolSpec ===

impl PoolSpec {
    /// Reads the members that pools and NodePools have.
    pub(crate) fn read(members: &mut Members<'_>, diagnostics: &mut Diagnostics) -> Self {
        Self {
            path: match members.path {
                FieldPath::Document => String::new(),
                path => path.to_string(),
            },
            network: members.text("network", diagnostics).unwrap_or_default(),
            interface: members.text("interface", diagnostics),
            addresses: members.has("addresses").then(|| members.texts("addresses", diagnostics)),
            excluded_addresses: members.texts("excludedAddresses", diagnostics),
            pre_allocations: members.text_map("preAllocations", diagnostics),
            settings: SettingsSpec::read(members, diagnostics),
            machine_network: members.machine_network(diagnostics),
            allocate_reserved_ip_addresses: members.switch("allocateReservedIPAddresses", diagnostics),
            on_link_gateway: members.switch("onLinkGateway", diagnostics),
            address_reuse_grace_period_seconds: members.seconds("addressReuseGracePeriodSeconds", diagnostics),
            ..Self::default()
        }
    }

    /// Reads the members of a pool that NodePools do not have.
    pub(crate) fn read_further(self, members: &mut Members<'_>, diagnostics: &mut Diagnostics) -> Self {
        let settings = self.settings.read_further(members, diagnostics);
        let prefix = members.number("prefix", "a prefix length", diagnostics);
        let mut subnets = Vec::new();
        let path = members.path;
        for (at, element) in members.objects("subnets", diagnostics) {
            let list = path.field("subnets");
            let mut members = Members::new(element, list.index(at));
            subnets.push(Self::read_subnet(&mut members, at, diagnostics));
            members.finish(Severity::Error, diagnostics);
        }
        let has_no_subnet = members.has("subnets") && subnets.is_empty();
        Self { settings, prefix, subnets, has_no_subnet, ..self }
    }

    /// Reads a subnet of a pool. Its path begins in the pool.
    fn read_subnet(members: &mut Members<'_>, at: usize, diagnostics: &mut Diagnostics) -> Self {
        Self {
            path: format!("subnets[{at}]"),
            addresses: members.has("addresses").then(|| members.texts("addresses", diagnostics)),
            excluded_addresses: members.texts("excludedAddresses", diagnostics),
            settings: SettingsSpec::read(members, diagnostics).read_further(members, diagnostics),
            machine_network: members.machine_network(diagnostics),
            prefix: members.number("prefix", "a prefix length", diagnostics),
            ..Self::default()
        }
    }

    /// A subnet of this pool with the members of the pool that hold for each subnet.
    fn subnet(&self, subnet: &Self) -> Self {
        Self {
            path: self.at(&subnet.path),
            pre_allocations: self.pre_allocations.clone(),
            allocate_reserved_ip_addresses: self.allocate_reserved_ip_addresses,
            on_link_gateway: self.on_link_gateway,
            serves_claims_only: self.serves_claims_only,
            ..subnet.clone()
        }
    }

    /// Name of the pool with its namespace. A global pool has its name alone, so that it has the name of no other pool.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.is_global { self.name.clone() } else { format!("{}/{}", self.namespace(), self.name) }
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// Network with its namespace. Pools with the same result share the network.
    fn full_network(&self) -> String {
        if let Some(attachment) = &self.attachment {
            attachment.clone()
        } else if self.network == Pool::DEFAULT_NETWORK || self.network.contains('/') {
            self.network.clone()
        } else {
            format!("{}/{}", self.namespace(), self.network)
        }
    }

    /// The valid addresses of `preAllocations`.
    fn kept_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let texts = self.pre_allocations.iter().flat_map(|(_, text)| text.split(','));
        texts.filter_map(|text| parse_address(text.trim()).ok())
    }

    /// The path of a member of the pool.
    pub(crate) fn at(&self, member: impl fmt::Display) -> String {
        if self.path.is_empty() { member.to_string() } else { format!("{}.{member}", self.path) }
    }
}

// === impl Pool ===

impl Pool {
    /// Makes a pool from a specification. Reports all errors at once.
    ///
    /// `template` has the settings of the machines' template for the pool's interface: prefix lengths, and addresses to
    /// reserve.
    ///
    /// - The prefix length is that of `prefix`, else that of `machineNetwork`, else that of the template. Otherwise it is that of
    ///   the CIDRs among the pool's own addresses, if these CIDRs agree and contain all other addresses. No other value
    ///   is used as the prefix length.
    /// - A pool has one prefix length of each family, because its machines are on one network.
    /// - A gateway must be in the subnet of every machine, unless [`PoolSpec::on_link_gateway`] is set.
    ///
    /// `None` when the pool has an error, also an error from reading the document. The other pools of the document stay
    /// usable.
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
    ///     "addresses[0]: host bits are set \"10.0.0.5/24\", expected no bits behind the length: \
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

    /// The entries of all parts. Empty if a part has none.
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

    /// The subnet of each family with a valid prefix length.
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
        self.diagnostics.push(Diagnostic::without_value(Severity::Error, self.spec.at(member), "missing", expected));
    }

    /// The settings and exclusions that hold for each subnet of a pool with subnets.
    fn of_all_subnets(&mut self, entries: &BTreeMap<Family, Entries>) -> (Settings, Vec<AddressRange>) {
        let spec = self.spec;
        if spec.subnets.is_empty() {
            return (Settings::default(), Vec::new());
        }
        let routes = spec.settings.routes.iter().map(|route| format!("{} via {}", route.to, route.via));
        let members = [
            ("addresses", spec.addresses.clone().unwrap_or_default()),
            ("gateway", spec.settings.gateway.clone()),
            ("routes", routes.collect()),
            ("machineNetwork", spec.machine_network.clone()),
            ("prefix", spec.prefix.iter().map(ToString::to_string).collect()),
        ];
        for (member, values) in members.into_iter().filter(|(_, values)| !values.is_empty()) {
            let expected = "none, or the member in each subnet";
            self.error(member, "set together with subnets", values.join(", "), expected);
        }
        (self.settings(entries).0, self.excluded(entries))
    }

    /// Reports addresses of two subnets.
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

    /// The network of each family, with its path. `None` after an error.
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

    /// The pre-allocated addresses of each name, IPv4 first. `reserved` are the gateways, the name servers and the
    /// addresses in the template.
    fn pre_allocations(
        &mut self,
        entries: &BTreeMap<Family, Entries>,
        excluded: &[AddressRange],
        reserved: &[AddressRange],
    ) -> BTreeMap<String, Vec<IpAddr>> {
        let all = entries.values().flatten().map(|(_, entry)| entry.range());
        let all: AddressSet = all.chain(excluded.iter().copied()).collect();
        let mut pre_allocations: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        let mut names: BTreeMap<IpAddr, &str> = BTreeMap::new();
        if self.spec.is_external && !self.spec.pre_allocations.is_empty() {
            let path = self.spec.at("preAllocations");
            let expected = "none, because another program chooses the addresses of the pool";
            self.diagnostics.push(Diagnostic::without_value(Severity::Error, path, "not allowed", expected));
        }
        for (name, text) in &self.spec.pre_allocations {
            let member = pre_allocation(name);
            if !name.splitn(2, '/').all(is_object_name) {
                let expected = format!("the name of a machine or claim, or namespace/name: {OBJECT_NAME}");
                self.error(&member, "invalid name", name, &expected);
                continue;
            }
            let mut addresses: Vec<IpAddr> = Vec::new();
            for text in text.split(',') {
                let address = match parse_address(text.trim()) {
                    Ok(address) => address,
                    Err(error) => {
                        self.diagnostics.push(error.at(self.spec.at(&member)));
                        continue;
                    }
                };
                let family = Family::of(address);
                let is_within = |ranges: &[AddressRange]| ranges.iter().any(|range| range.contains(address));
                if let Some(other) = names.insert(address, name) {
                    self.error(
                        &member,
                        "repeated address",
                        address,
                        &format!("an address that {other:?} does not have"),
                    );
                } else if addresses.iter().any(|other| Family::of(*other) == family) {
                    self.error(&member, &format!("second {family} address"), address, "at most one of each family");
                } else if is_within(reserved) {
                    let expected = "neither a gateway, a name server nor an address in the template";
                    self.error(&member, "reserved address", address, expected);
                } else if !(entries.is_empty() || entries.contains_key(&family) && all.contains(address)) {
                    let expected = "one of addresses or excludedAddresses, of a family in addresses";
                    self.error(&member, "address outside the pool", address, expected);
                }
                addresses.push(address);
            }
            addresses.sort_unstable();
            pre_allocations.insert(name.clone(), addresses);
        }
        for name in pre_allocations.keys() {
            let own = name.split_once('/').map(|(_, own)| own);
            if let Some(own) = own.filter(|own| pre_allocations.contains_key(*own)) {
                let expected = format!("no entry for {own:?}, which is the same name in each namespace");
                self.error(pre_allocation(name), "second entry of a name", name, &expected);
            }
        }
        pre_allocations
    }

    /// Reports pre-allocated addresses that are in no subnet of the pool, or at an end of a subnet.
    fn pre_allocated_subnets(&mut self, subnets: &[Subnet], pre_allocations: &BTreeMap<String, Vec<IpAddr>>) {
        for (name, addresses) in pre_allocations {
            for address in addresses {
                let (family, number) = Family::split(*address);
                let Some(first) = subnets.iter().find(|subnet| subnet.family() == Some(family)) else { continue };
                let subnet = Subnet::position(subnets, *address).map(|at| &subnets[at]);
                let end = subnet.and_then(|subnet| Reserved::end(family, subnet.prefix(), number));
                if subnet.is_none() {
                    let expected = format!("an address in a /{} subnet of addresses", first.prefix());
                    self.error(pre_allocation(name), "address outside the subnets", address, &expected);
                } else if let Some(end) = end.filter(|_| !self.spec.allocate_reserved_ip_addresses) {
                    let problem = format!("{end} of its subnet");
                    let expected = "another address, or allocateReservedIPAddresses";
                    self.error(pre_allocation(name), &problem, address, expected);
                }
            }
        }
    }

    /// The member `prefix`. `Ok(None)`: the pool does not have it. `Err`: a reported error.
    fn written_prefix(&mut self, entries: &BTreeMap<Family, Entries>) -> Result<Option<u8>, ()> {
        let Some(written) = self.spec.prefix else { return Ok(None) };
        let mut families = entries.keys();
        let Some(family) = families.next() else { return Ok(None) };
        if families.next().is_some() {
            let expected = "machineNetwork with a subnet of each family, or a pool of one family";
            self.error("prefix", "prefix length of two families", written, expected);
            return Err(());
        }
        let bits = family.bits();
        match u8::try_from(written).ok().filter(|length| *length <= bits) {
            Some(0) if !self.spec.serves_claims_only => {
                let expected =
                    format!("1 to {bits}: a machine needs a subnet, and the smallest one is {bits} with onLinkGateway");
                self.error("prefix", "no prefix length for machines", written, &expected);
            }
            Some(length) => return Ok(Some(length)),
            None => self.error("prefix", "invalid prefix length", written, &format!("0 to {bits}")),
        }
        Err(())
    }

    /// The prefix length of a family, `None` after an error. `written` is the member `prefix`.
    fn prefix(
        &mut self,
        entries: &Entries,
        written: Option<u8>,
        (network, template): (Option<(usize, Entry)>, Option<u8>),
        gateway: Option<IpAddr>,
    ) -> Option<u8> {
        if let Some(written) = written {
            let of_network = network.and_then(|(_, network)| network.length());
            let others = [("machineNetwork", of_network), ("the template's netmask", template)];
            let other = others.into_iter().find_map(|(of, length)| Some((of, length.filter(|it| *it != written)?)));
            if let Some((of, length)) = other {
                self.error("prefix", "other prefix length", written, &format!("the length of {of}, {length}"));
                return None;
            }
            if network.is_none() {
                return Some(written);
            }
        }
        if let Some((at, network)) = network {
            let length = network.length()?;
            if let Some(template) = template.filter(|template| *template != length) {
                let expected = format!("the length of the template's netmask, {template}");
                self.error(
                    format_args!("machineNetwork[{at}].cidr"),
                    "other subnet than the template's",
                    network,
                    &expected,
                );
                return None;
            }
            let subnet = network.range();
            let outside: Entries =
                entries.iter().filter(|(_, entry)| !subnet.covers(&entry.range())).copied().collect();
            for (at, entry) in &outside {
                let expected = format!("addresses of {network}");
                self.error(format_args!("addresses[{at}]"), "outside the machine network", entry, &expected);
            }
            return outside.is_empty().then_some(length);
        }
        if template.is_some() {
            return template;
        }
        let line = || format!("the line {:?} with the subnet of the machines", machine_network_of(entries, gateway));
        let mut cidrs = entries.iter().filter_map(|(at, entry)| Some((at, entry, entry.length()?)));
        let common = cidrs.next().map(|(_, _, length)| length);
        if let Some((at, entry, _)) = cidrs.find(|(_, _, length)| Some(*length) != common) {
            self.error(format_args!("addresses[{at}]"), "second prefix length", entry, &line());
            return None;
        }
        let cidrs = entries.iter().filter(|(_, entry)| entry.length().is_some());
        let cidrs: AddressSet = cidrs.map(|(_, entry)| entry.range()).collect();
        if let Some((at, entry)) = entries.iter().find(|(_, entry)| !cidrs.covers(&entry.range())) {
            self.error(format_args!("addresses[{at}]"), "no prefix length for", entry, &line());
            return None;
        }
        common
    }

    /// Reports a gateway or another router that a machine cannot reach. This check finds most wrong prefix lengths.
    fn router(&mut self, entries: &Entries, prefix: u8, member: &str, gateway: IpAddr) {
        if is_link_local(gateway) {
            return;
        }
        let (family, outside_subnet) = (Family::of(gateway), outside_subnet(member));
        let subnet = AddressRange::subnet(gateway, prefix);
        let outside = entries.iter().find(|(_, entry)| !subnet.covers(&entry.range()));
        if prefix == family.bits() && !self.spec.on_link_gateway {
            let expected =
                format!("onLinkGateway: true, because no machine with a /{prefix} has a router in its subnet");
            self.error(member, outside_subnet, gateway, &expected);
        } else if let Some((at, entry)) = outside.filter(|_| !self.spec.on_link_gateway) {
            let far = if subnet.contains(family.address(entry.range().first())) {
                entry.range().last()
            } else {
                entry.range().first()
            };
            let far = AddressRange::subnet(family.address(far), prefix);
            let network = family.address(far.first());
            let expected = format!("an address of {network}/{prefix} as addresses[{at}] has, or onLinkGateway: true");
            self.error(member, outside_subnet, gateway, &expected);
        } else if family == Family::Ipv4 && Reserved::end(family, prefix, Family::number(gateway)).is_some() {
            let problem =
                if is_of_route(member) { "router" } else { "gateway" }.to_owned() + " at the end of its subnet";
            self.error(member, &problem, gateway, "neither its first nor its last address");
        }
    }

    /// Reports routers that the machines of an external pool cannot reach, as far as the pool has their subnets.
    fn external_routers(&mut self, networks: &BTreeMap<Family, (usize, Entry)>, routers: &[Router]) {
        for (member, router) in routers {
            let Some((_, network)) = networks.get(&Family::of(*router)) else { continue };
            let is_outside = !network.range().contains(*router) && !is_link_local(*router);
            if is_outside && !self.spec.on_link_gateway {
                let expected = format!("an address of {network}, or onLinkGateway: true");
                self.error(member, outside_subnet(member), router, &expected);
            }
        }
    }

    /// Reports a gateway of the template alone that a machine cannot reach.
    fn template_gateway(&mut self, entries: &Entries, prefix: u8, gateway: IpAddr) {
        let subnet = AddressRange::subnet(gateway, prefix);
        let outside = entries.iter().find(|(_, entry)| !subnet.covers(&entry.range()));
        if let Some((at, entry)) = outside.filter(|_| !self.spec.on_link_gateway && !is_link_local(gateway)) {
            let network = subnet.family().address(subnet.first());
            let expected = format!("addresses of {network}/{prefix} as gateway {gateway} is, or onLinkGateway: true");
            self.error(
                format_args!("addresses[{at}]"),
                "outside the subnet of the template's gateway",
                entry,
                &expected,
            );
        }
    }
}

/// Whether a router is the router of a route, by its member.
fn is_of_route(member: &str) -> bool {
    member.starts_with("routes")
}

/// The problem of a router that the machines cannot reach, by its member.
fn outside_subnet(member: &str) -> &'static str {
    if is_of_route(member) { "router outside the subnet" } else { "gateway outside the subnet" }
}

/// The path of an entry of `preAllocations` in its pool.
fn pre_allocation(name: &str) -> String {
    FieldPath::Document.field("preAllocations").field(name).to_string()
}

/// Suggests a `machineNetwork` line with which the entries make a valid pool: the usual subnet, or a larger subnet if
/// necessary.
fn machine_network_of(entries: &Entries, gateway: Option<IpAddr>) -> String {
    let ranges = entries.iter().map(|(_, entry)| entry.range());
    let ranges: Vec<AddressRange> =
        ranges.chain(gateway.map(|gateway| AddressRange::subnet(gateway, u8::MAX))).collect();
    let Some(any) = ranges.first() else { return String::new() };
    let family = any.family();
    let longest = match family {
        Family::Ipv4 => 24,
        Family::Ipv6 => 64,
    };
    let first = family.address(any.first());
    let mut subnets = (1..=longest).rev().map(|length| (length, AddressRange::subnet(first, length)));
    let found = subnets.find(|(_, subnet)| ranges.iter().all(|range| subnet.covers(range)));
    let cidr = found.map(|(length, subnet)| format!("{}/{length}", family.address(subnet.first())));
    // Without a common subnet, the user must change the entries.
    let cidr = cidr.filter(|cidr| cidr.parse::<Entry>().is_ok()).unwrap_or_else(|| "SUBNET".to_owned());
    format!("machineNetwork: [{{cidr: {cidr}}}]")
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::*;
    use crate::host::pools_file::read_pools;

    /// Returns the prefix lengths of the pool, empty without a pool, and all diagnostics.
    fn check(members: &str, template: &[(Family, u8)]) -> (Vec<u8>, Vec<String>) {
        let document = format!("{{name: workers, network: vlan10, {members}}}");
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let template = TemplateFacts { prefixes: template.iter().copied().collect(), ..TemplateFacts::default() };
        let pool = Pool::new(&specs[0], &template, &mut diagnostics);
        let prefixes = pool.iter().flat_map(Pool::spaces).flat_map(Space::subnets).map(Subnet::prefix).collect();
        (prefixes, diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    macro_rules! accepts {
        ($($name:ident: $members:expr, $template:expr => $prefixes:expr, [$($warning:expr),*];)*) => {
            $(#[test] fn $name() {
                let warnings: &[&str] = &[$($warning),*];
                assert_eq!(check($members, &$template), ($prefixes.to_vec(), warnings.iter().map(|w| (*w).to_owned()).collect()));
            })*
        };
    }

    const NONE: [(Family, u8); 0] = [];

    accepts! {
        a_range_has_the_prefix_of_the_machine_network:
            "addresses: [192.168.1.10-192.168.1.50], machineNetwork: [{cidr: 192.168.1.0/24}]", NONE => [24], [];
        a_range_has_the_prefix_of_the_template:
            "addresses: [192.168.1.10-192.168.1.50]", [(Family::Ipv4, 24)] => [24], [];
        a_range_has_the_prefix_of_the_network_that_holds_it:
            "addresses: [10.0.0.0/23, 10.0.0.10-10.0.1.50, 10.0.0.7]", NONE => [23], [];
        a_range_over_two_networks_has_the_prefix_of_both:
            "addresses: [10.0.0.0/24, 10.0.1.0/24, 10.0.0.200-10.0.1.50]", NONE => [24], [];
        the_template_says_how_large_the_subnets_of_a_network_are:
            "addresses: [10.0.0.0/16]", [(Family::Ipv4, 24)] => [24], [];
        the_machine_network_counts_when_the_template_agrees:
            "addresses: [10.0.0.16/28], machineNetwork: [{cidr: 10.0.0.0/24}]", [(Family::Ipv4, 24)] => [24], [];
        both_families_have_their_own_prefix:
            "addresses: ['fd00::10-fd00::50', 10.0.0.0/24], machineNetwork: [{cidr: 'fd00::/64'}]", NONE => [24, 64], [];
        a_machine_network_without_addresses_is_no_matter:
            "addresses: [10.0.0.0/24], machineNetwork: [{cidr: 'fd00::/64'}, {cidr: 10.0.0.0/16}]", NONE => [16], [];
        pre_allocations_may_be_excluded_addresses_outside_the_list:
            "addresses: [10.0.0.16/28], machineNetwork: [{cidr: 10.0.0.0/24}], excludedAddresses: [10.0.0.5, 10.0.0.17], \
             preAllocations: {db: 10.0.0.5, web: 10.0.0.17, n/mail: 10.0.0.18}", NONE => [24], [];
        a_gateway_on_the_link_is_asked_for_by_name:
            "addresses: [10.0.0.0/24], gateway: [192.168.0.1], onLinkGateway: true", NONE => [24], [];
        a_link_local_gateway_is_on_every_link:
            "addresses: ['fd00::/64', 'fd00:1::/64'], gateway: ['fe80::1']", NONE => [64], [];
        a_gateway_that_is_the_anycast_address_is_a_router:
            "addresses: ['fd00::/64'], gateway: ['fd00::']", NONE => [64], [];
        a_router_outside_the_subnet_is_on_the_link_by_name:
            "addresses: [10.0.0.0/24], routes: [{to: 10.9.0.0/16, via: 10.1.0.1}, {to: 10.8.0.1, via: 10.0.0.9}], \
             onLinkGateway: true", NONE => [24], [];
        each_address_is_its_own_subnet: "addresses: [10.0.0.0/24], prefix: 32, gateway: [169.254.1.1], onLinkGateway: true", NONE
            => [32], [];
        each_address_is_its_own_subnet_in_ipv6: "addresses: ['fd00::/64'], prefix: 128, gateway: ['fe80::1']", NONE => [128], [];
        a_prefix_length_replaces_the_machine_network: "addresses: [10.0.0.5-10.0.0.9], prefix: 24, gateway: [10.0.0.1]", NONE => [24], [];
        a_prefix_length_and_the_machine_network_may_agree:
            "addresses: [10.0.0.5], prefix: 24, machineNetwork: [{cidr: 10.0.0.0/24}]", [(Family::Ipv4, 24)] => [24], [];
        subnets_have_their_own_prefix_lengths_and_gateways:
            "subnets: [{addresses: [10.0.0.0/24], gateway: [10.0.0.1]}, {addresses: [10.1.0.5-10.1.0.9], prefix: 23, gateway: [10.1.1.1]}, \
             {addresses: ['fd00::/64', 10.2.0.7], machineNetwork: [{cidr: 10.2.0.0/16}]}], nameservers: [10.0.0.53], \
             excludedAddresses: [10.0.0.7], preAllocations: {db: 10.0.0.7, web: 10.1.0.6}", NONE => [24, 23, 16, 64], [];
        settings_that_some_readers_do_not_know_are_reported:
            "addresses: [10.0.0.0/24], mtu: 1279, searchDomains: [example.com, b.example.com, Example.com.]", NONE => [24],
            [r#"mtu: not read by afterburn "1279", expected an image with glowplug or cloud-init"#,
             r#"searchDomains[0]: in no kernel argument "example.com", expected an image with cloud-init, or with glowplug and its renderer network-manager-profiles"#,
             r#"searchDomains[2]: repeated search domain "example.com", expected each domain once"#];
        an_exclusion_outside_the_pool_is_reported:
            "addresses: [10.0.0.0/24], excludedAddresses: [10.0.0.7, 10.0.1.0-10.0.1.9, 'fd00::1']", NONE => [24],
            [r#"excludedAddresses[1]: exclusion outside the pool "10.0.1.0-10.0.1.9", expected addresses of the pool"#,
             r#"excludedAddresses[2]: exclusion outside the pool "fd00::1/128", expected addresses of the pool"#];
        an_exclusion_that_is_partly_in_the_pool_is_none_outside:
            "addresses: [10.0.0.0/24], excludedAddresses: [10.0.0.250-10.0.1.9]", NONE => [24], [];
        a_name_server_that_no_machine_reaches_is_reported:
            "addresses: [10.0.0.0/24], nameservers: [8.8.8.8, '2001:4860:4860::8888', 8.8.8.8]", NONE => [24],
            [r#"nameservers[1]: name server of a family without addresses "2001:4860:4860::8888", expected IPv6 addresses in the pool"#,
             r#"nameservers[2]: repeated address "8.8.8.8", expected each address once"#];
        a_pool_with_nothing_left_is_reported:
            "addresses: [10.0.0.4/30], excludedAddresses: [10.0.0.5-10.0.0.6]", NONE => [30],
            ["addresses: no allocatable IPv4 address, expected more addresses than are reserved"];
    }

    macro_rules! rejects {
        ($($name:ident: $members:expr, $template:expr => [$($error:expr),*];)*) => {
            $(#[test] fn $name() {
                assert_eq!(check($members, &$template), (Vec::new(), vec![$($error.to_owned()),*]));
            })*
        };
    }

    rejects! {
        a_range_alone: "addresses: [192.168.1.10-192.168.1.50, '2620:0:860:2::10-2620:0:860:2::50'], \
                        gateway: [192.168.1.1, '2620:0:860:2::1']", NONE
            => ["addresses[0]: no prefix length for \"192.168.1.10-192.168.1.50\", expected the line \
                 \"machineNetwork: [{cidr: 192.168.1.0/24}]\" with the subnet of the machines",
                "addresses[1]: no prefix length for \"2620:0:860:2::10-2620:0:860:2::50\", expected the line \
                 \"machineNetwork: [{cidr: 2620:0:860:2::/64}]\" with the subnet of the machines"];
        a_single_address_alone: "addresses: [10.0.0.5/32]", NONE
            => ["addresses[0]: no prefix length for \"10.0.0.5/32\", expected the line \
                 \"machineNetwork: [{cidr: 10.0.0.0/24}]\" with the subnet of the machines"];
        addresses_that_are_far_apart: "addresses: [10.0.0.5, 192.168.0.5]", NONE
            => ["addresses[0]: no prefix length for \"10.0.0.5/32\", expected the line \
                 \"machineNetwork: [{cidr: SUBNET}]\" with the subnet of the machines"];
        a_range_that_no_network_holds: "addresses: [10.0.0.0/24, 10.0.0.250-10.0.1.5]", NONE
            => ["addresses[1]: no prefix length for \"10.0.0.250-10.0.1.5\", expected the line \
                 \"machineNetwork: [{cidr: 10.0.0.0/23}]\" with the subnet of the machines"];
        two_lengths: "addresses: [10.0.0.0/24, 10.0.1.0/25]", NONE
            => ["addresses[1]: second prefix length \"10.0.1.0/25\", expected the line \
                 \"machineNetwork: [{cidr: 10.0.0.0/23}]\" with the subnet of the machines"];
        a_template_of_another_subnet: "addresses: [10.0.0.16/28], machineNetwork: [{cidr: 10.0.0.0/24}]", [(Family::Ipv4, 23)]
            => ["machineNetwork[0].cidr: other subnet than the template's \"10.0.0.0/24\", \
                 expected the length of the template's netmask, 23"];
        addresses_outside_the_machine_network:
            "addresses: [10.0.0.16/28, 10.0.1.0/24, 10.0.0.250-10.0.1.5], machineNetwork: [{cidr: 10.0.0.0/24}]", NONE
            => [r#"addresses[1]: outside the machine network "10.0.1.0/24", expected addresses of 10.0.0.0/24"#,
                r#"addresses[2]: outside the machine network "10.0.0.250-10.0.1.5", expected addresses of 10.0.0.0/24"#];
        a_machine_network_of_one: "addresses: [10.0.0.5], machineNetwork: [{cidr: 10.0.0.5/32}]", NONE
            => [r#"machineNetwork[0].cidr: no subnet "10.0.0.5/32", expected the CIDR of a subnet, such as 10.0.0.0/24"#];
        a_second_machine_network: "addresses: [10.0.0.5], machineNetwork: [{cidr: 10.0.0.0/24}, {cidr: 10.0.0.0/23}]", NONE
            => [r#"machineNetwork[1].cidr: second IPv4 network "10.0.0.0/23", expected at most one of each family"#];
        a_machine_network_without_a_cidr: "addresses: [10.0.0.0/24], machineNetwork: [{}, 10.0.0.0/24, {cdir: 1}]", NONE
            => ["machineNetwork[0].cidr: missing, expected the CIDR of a subnet, such as 10.0.0.0/24",
                r#"machineNetwork[1]: invalid item "10.0.0.0/24", expected an object with a cidr"#,
                "machineNetwork[2].cdir: unknown key, expected one of cidr",
                "machineNetwork[2].cidr: missing, expected the CIDR of a subnet, such as 10.0.0.0/24"];
        a_gateway_outside_the_subnet: "addresses: [10.0.1.0/24], gateway: [10.0.0.1]", NONE
            => ["gateway[0]: gateway outside the subnet \"10.0.0.1\", \
                 expected an address of 10.0.1.0/24 as addresses[0] has, or onLinkGateway: true"];
        a_gateway_of_the_first_subnet_alone: "addresses: [10.0.0.0/24, 10.0.1.0/24], gateway: [10.0.0.1]", NONE
            => ["gateway[0]: gateway outside the subnet \"10.0.0.1\", \
                 expected an address of 10.0.1.0/24 as addresses[1] has, or onLinkGateway: true"];
        a_gateway_that_is_the_network_itself: "addresses: [10.0.0.0/24], gateway: [10.0.0.0]", NONE
            => ["gateway[0]: gateway at the end of its subnet \"10.0.0.0\", \
                 expected neither its first nor its last address"];
        a_second_gateway: "addresses: [10.0.0.0/24], gateway: [10.0.0.1, 10.0.0.2]", NONE
            => [r#"gateway[1]: second IPv4 gateway "10.0.0.2", expected at most one of each family"#];
        a_gateway_of_the_other_family: "addresses: [10.0.0.0/24], gateway: ['fd00::1']", NONE
            => [r#"gateway[0]: gateway of a family without addresses "fd00::1", expected IPv6 addresses in the pool"#];
        a_gateway_that_no_machine_may_have: "addresses: ['fd00::/64'], gateway: ['ff02::1']", NONE
            => [r#"gateway[0]: multicast address "ff02::1", expected an address outside ff00::/8"#];
        settings_with_mistakes:
            "addresses: [10.0.0.0/24], searchDomains: ['a b'], mtu: 67, \
             routes: [{to: 10.9.0.1/16, via: 10.0.0.254}, {to: 10.9.0.0-10.9.0.9, via: x}, {to: 'fd09::/48', via: 10.0.0.254}, \
             {to: 'fd09::/48', via: 'fd00::1'}, {to: default, via: 10.0.0.1}, {to: 10.8.0.0/16, via: 10.1.0.254}, \
             {to: 10.7.0.0/16, via: 10.0.0.9}, {to: 10.7.0.0/16, via: 10.0.0.8}, {to: 10.6.0.0/16, via: 10.0.0.255}]", NONE
            => ["mtu: invalid MTU \"67\", expected 68 to 65535 bytes",
                "routes[0].to: host bits are set \"10.9.0.1/16\", expected no bits behind the length: \
                 did you mean 10.9.0.0/16 or 10.9.0.1/32",
                r#"routes[1].to: no destination "10.9.0.0-10.9.0.9", expected a CIDR or one address"#,
                r#"routes[1].via: invalid address "x", expected an IPv4 or IPv6 address"#,
                r#"routes[2].via: router of the other family "10.0.0.254", expected an IPv6 address"#,
                r#"routes[3].to: route of a family without addresses "fd09::/48", expected IPv6 addresses in the pool"#,
                r#"routes[4].to: default route "default", expected the member gateway for a default route"#,
                "routes[5].via: router outside the subnet \"10.1.0.254\", \
                 expected an address of 10.0.0.0/24 as addresses[0] has, or onLinkGateway: true",
                r#"routes[7].to: second route "10.7.0.0/16", expected each destination once"#,
                "routes[8].via: router at the end of its subnet \"10.0.0.255\", \
                 expected neither its first nor its last address",
                r#"searchDomains[0]: invalid search domain "a b", expected a domain name"#];
        a_prefix_length_of_two_families: "addresses: [10.0.0.0/24, 'fd00::/64'], prefix: 32", NONE
            => ["prefix: prefix length of two families \"32\", \
                 expected machineNetwork with a subnet of each family, or a pool of one family"];
        a_prefix_length_that_no_address_has: "addresses: [10.0.0.0/24], prefix: 33", NONE
            => [r#"prefix: invalid prefix length "33", expected 0 to 32"#];
        a_negative_prefix_length: "addresses: ['fd00::/64'], prefix: -1", NONE
            => [r#"prefix: invalid prefix length "-1", expected 0 to 128"#];
        machines_without_a_subnet: "addresses: [10.0.0.0/24], prefix: 0", NONE
            => ["prefix: no prefix length for machines \"0\", \
                 expected 1 to 32: a machine needs a subnet, and the smallest one is 32 with onLinkGateway"];
        another_prefix_length_than_the_subnet_has: "addresses: [10.0.0.5], prefix: 32, machineNetwork: [{cidr: 10.0.0.0/24}]", NONE
            => [r#"prefix: other prefix length "32", expected the length of machineNetwork, 24"#];
        another_prefix_length_than_the_template_has: "addresses: [10.0.0.5], prefix: 32", [(Family::Ipv4, 24)]
            => [r#"prefix: other prefix length "32", expected the length of the template's netmask, 24"#];
        a_gateway_of_an_address_that_is_its_own_subnet: "addresses: [10.0.0.0/24], prefix: 32, gateway: [10.0.0.1]", NONE
            => ["gateway[0]: gateway outside the subnet \"10.0.0.1\", \
                 expected onLinkGateway: true, because no machine with a /32 has a router in its subnet"];
        subnets_with_mistakes:
            "addresses: [10.0.0.0/24], gateway: [10.0.0.1], prefix: 24, subnets: [{addresses: [10.0.1.0/24], gateway: [10.0.0.1]}, \
             {addresses: [10.0.1.9], prefix: 24, network: b}, {}, 10.0.9.0/24, {addresses: [10.0.3.0], prefix: 0}]", NONE
            => [r#"addresses: set together with subnets "10.0.0.0/24", expected none, or the member in each subnet"#,
                r#"gateway: set together with subnets "10.0.0.1", expected none, or the member in each subnet"#,
                r#"prefix: set together with subnets "24", expected none, or the member in each subnet"#,
                "subnets[0].gateway[0]: gateway outside the subnet \"10.0.0.1\", \
                 expected an address of 10.0.1.0/24 as addresses[0] has, or onLinkGateway: true",
                r#"subnets[1].addresses: addresses of subnets[0] "10.0.1.9", expected each address in one subnet"#,
                "subnets[1].network: unknown key, expected one of addresses, excludedAddresses, gateway, nameservers, \
                 searchDomains, mtu, routes, machineNetwork, prefix",
                "subnets[2].addresses: missing, expected the addresses of the pool",
                r#"subnets[3]: invalid item "10.0.9.0/24", expected an object"#,
                "subnets[4].prefix: no prefix length for machines \"0\", \
                 expected 1 to 32: a machine needs a subnet, and the smallest one is 32 with onLinkGateway"];
        an_mtu_of_the_pool_that_a_subnet_does_not_support:
            "subnets: [{addresses: [10.0.0.0/24]}, {addresses: ['fd00::/64']}], mtu: 1279", NONE
            => [r#"mtu: MTU too small for IPv6 "1279", expected at least 1280 bytes"#];
        a_pre_allocation_outside_all_subnets:
            "subnets: [{addresses: [10.0.0.0/24]}, {addresses: [10.1.0.0/24]}], excludedAddresses: [10.2.0.5, 10.1.0.255], \
             preAllocations: {db: 10.2.0.5, web: 10.1.0.255}", NONE
            => [r#"preAllocations.db: address outside the subnets "10.2.0.5", expected an address in a /24 subnet of addresses"#,
                "preAllocations.web: broadcast address of its subnet \"10.1.0.255\", \
                 expected another address, or allocateReservedIPAddresses"];
        settings_of_another_type: "addresses: [10.0.0.0/24], mtu: 9k, routes: [10.9.0.0/16, {to: 10.9.0.0/16, gateway: 10.0.0.9}]", NONE
            => [r#"mtu: invalid value "9k", expected a number of bytes"#,
                r#"routes[0]: invalid item "10.9.0.0/16", expected an object"#,
                "routes[1].gateway: unknown key, expected one of to, via",
                "routes[1].via: missing, expected the address of a router"];
        an_mtu_that_ipv6_does_not_support: "addresses: ['fd00::/64'], mtu: 1279", NONE
            => [r#"mtu: MTU too small for IPv6 "1279", expected at least 1280 bytes"#];
        a_pre_allocation_of_a_router:
            "addresses: [10.0.0.0/24], routes: [{to: 10.9.0.0/16, via: 10.0.0.9}], preAllocations: {db: 10.0.0.9}", NONE
            => ["preAllocations.db: reserved address \"10.0.0.9\", \
                 expected neither a gateway, a name server nor an address in the template"];
        a_pre_allocation_with_an_invalid_name_or_address:
            "addresses: [10.0.0.0/24], preAllocations: {Db: 10.0.0.5, a/b/c: 10.0.0.5, db: 10.0.0.05, web: [10.0.0.6]}", NONE
            => ["preAllocations.\"a/b/c\": invalid name \"a/b/c\", expected the name of a machine or claim, or namespace/name: at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
                "preAllocations.Db: invalid name \"Db\", expected the name of a machine or claim, or namespace/name: at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
                r#"preAllocations.db: leading zero in an address "10.0.0.05", expected 10.0.0.5"#,
                r#"preAllocations.web: invalid address "[10.0.0.6]", expected an IPv4 or IPv6 address"#];
        a_pre_allocation_that_another_name_has: "addresses: [10.0.0.0/24], preAllocations: {db: 10.0.0.5, web: 10.0.0.5}", NONE
            => [r#"preAllocations.web: repeated address "10.0.0.5", expected an address that "db" does not have"#];
        two_pre_allocations_of_one_family: "addresses: [10.0.0.0/24], preAllocations: {db: '10.0.0.5, 10.0.0.6'}", NONE
            => [r#"preAllocations.db: second IPv4 address "10.0.0.6", expected at most one of each family"#];
        a_pre_allocation_of_a_gateway: "addresses: [10.0.0.0/24], gateway: [10.0.0.1], preAllocations: {db: 10.0.0.1}", NONE
            => ["preAllocations.db: reserved address \"10.0.0.1\", \
                 expected neither a gateway, a name server nor an address in the template"];
        a_pre_allocation_outside_the_pool:
            "addresses: [10.0.0.0/24], preAllocations: {db: 10.0.1.5, web: 'fd00::5'}", NONE
            => ["preAllocations.db: address outside the pool \"10.0.1.5\", \
                 expected one of addresses or excludedAddresses, of a family in addresses",
                r#"preAllocations.db: address outside the subnets "10.0.1.5", expected an address in a /24 subnet of addresses"#,
                "preAllocations.web: address outside the pool \"fd00::5\", \
                 expected one of addresses or excludedAddresses, of a family in addresses"];
        a_pre_allocation_of_a_network_address:
            "addresses: [10.0.0.0/24], preAllocations: {db: 10.0.0.0, web: 10.0.0.255}", NONE
            => ["preAllocations.db: network address of its subnet \"10.0.0.0\", \
                 expected another address, or allocateReservedIPAddresses",
                "preAllocations.web: broadcast address of its subnet \"10.0.0.255\", \
                 expected another address, or allocateReservedIPAddresses"];
        a_pre_allocation_for_a_name_of_each_namespace_and_of_one:
            "addresses: [10.0.0.0/24], preAllocations: {db: 10.0.0.5, n/db: 10.0.0.6}", NONE
            => ["preAllocations.\"n/db\": second entry of a name \"n/db\", \
                 expected no entry for \"db\", which is the same name in each namespace"];
        pre_allocations_that_are_no_object: "addresses: [10.0.0.0/24], preAllocations: [10.0.0.5]", NONE
            => [r#"preAllocations: invalid value "[10.0.0.5]", expected an object with names and their addresses"#];
        a_reuse_delay_that_is_no_number: "addresses: [10.0.0.0/24], addressReuseGracePeriodSeconds: 5m", NONE
            => ["addressReuseGracePeriodSeconds: invalid value \"5m\", expected a number of seconds, 0 to 4294967295"];
        a_reuse_delay_before_the_release: "addresses: [10.0.0.0/24], addressReuseGracePeriodSeconds: -1", NONE
            => ["addressReuseGracePeriodSeconds: invalid value \"-1\", expected a number of seconds, 0 to 4294967295"];
        a_name_server_that_no_machine_may_have: "addresses: [10.0.0.0/24], nameservers: [127.0.0.53]", NONE
            => [r#"nameservers[0]: loopback address "127.0.0.53", expected an address outside 127.0.0.0/8"#];
        an_empty_list: "addresses: []", NONE => ["addresses: empty list, expected at least one address"];
        no_list: "interface: eno102", NONE => ["addresses: missing, expected the addresses of the pool"];
        one_text_for_a_list: "addresses: 10.0.0.0/24", NONE
            => [r#"addresses: invalid list "10.0.0.0/24", expected an array"#,
                "addresses: empty list, expected at least one address"];
        elements_that_are_no_texts: "addresses: [10.0.0.0/24, 10, null, [], {}]", NONE
            => ["addresses[1]: invalid address \"10\", expected an address, a CIDR or a range, \
                 such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
                "addresses[2]: invalid address \"null\", expected an address, a CIDR or a range, \
                 such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
                "addresses[3]: invalid address \"[]\", expected an address, a CIDR or a range, \
                 such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
                "addresses[4]: invalid address \"{}\", expected an address, a CIDR or a range, \
                 such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9"];
        everything_at_once:
            "addresses: [10.0.0.9-10.0.0.5, 10.0.0.5/24], excludedAddresses: [x], gateway: [1.2.3], nameservers: [y], \
             interface: 'a b', allocateReservedIPAddresses: 1", NONE
            => ["addresses[0]: reversed range \"10.0.0.9-10.0.0.5\", expected 10.0.0.5-10.0.0.9",
                "addresses[1]: host bits are set \"10.0.0.5/24\", expected no bits behind the length: \
                 did you mean 10.0.0.0/24 or 10.0.0.5/32",
                r#"allocateReservedIPAddresses: invalid value "1", expected true or false"#,
                "excludedAddresses[0]: invalid address \"x\", expected an address, a CIDR or a range, \
                 such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
                r#"gateway[0]: invalid address "1.2.3", expected an IPv4 or IPv6 address"#,
                "interface: invalid interface name \"a b\", expected 1 to 15 letters, digits, '.', '_' or '-', \
                 not digits alone, nor all, default or lo",
                "nameservers[0]: invalid address \"true\", expected an IPv4 or IPv6 address"];
    }

    #[test]
    fn addresses_that_the_template_names_are_reserved() {
        let document = "{name: w, network: 'n', addresses: [192.168.1.0/29]}";
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        let set = |addresses: &[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect();
        let template = TemplateFacts {
            prefixes: BTreeMap::new(),
            gateways: set(&["192.168.1.1"]),
            nameservers: set(&["192.168.1.2", "192.168.1.1", "8.8.8.8"]),
            addresses: set(&["192.168.1.3", "192.168.1.2"]),
            unread: Vec::new(),
        };
        let pool = Pool::new(&specs[0], &template, &mut diagnostics).unwrap();
        let why = |last: u8| pool.why_reserved(IpAddr::from([192, 168, 1, last]));
        assert_eq!(
            [1, 2, 3, 4].map(why),
            [Some(Reserved::Gateway), Some(Reserved::Nameserver), Some(Reserved::Template), None]
        );
        let count = pool.count(Family::Ipv4).unwrap();
        let reserved = [
            Reserved::Gateway,
            Reserved::Nameserver,
            Reserved::Template,
            Reserved::NetworkAddress,
            Reserved::Broadcast,
        ];
        assert_eq!((count.reserved, count.allocatable), (reserved.into_iter().map(|why| (why, 1)).collect(), 3));
    }

    #[test]
    fn a_pool_reports_the_warnings_about_its_template_and_does_not_keep_them() {
        let (specs, mut diagnostics) = read_pools(b"{name: w, network: 'n', addresses: [192.168.1.0/29]}");
        let mtu = Diagnostic::warning("links[0].mtu", "not read by afterburn", 9000, "another image");
        let template = TemplateFacts { unread: vec![mtu], ..TemplateFacts::default() };
        let pool = Pool::new(&specs[0], &template, &mut diagnostics);
        assert_eq!(
            diagnostics.kept(),
            [Diagnostic::warning("template.links[0].mtu", "not read by afterburn", 9000, "another image")]
        );
        assert_eq!(pool, Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics));
    }

    #[test]
    fn addresses_outside_the_subnet_of_the_templates_gateway_are_refused() {
        let check = |members: &str, gateway: &str| {
            let document = format!("{{name: w, network: 'n', {members}}}");
            let (specs, mut diagnostics) = read_pools(document.as_bytes());
            let gateways = std::collections::BTreeSet::from([gateway.parse().unwrap()]);
            let _ = Pool::new(&specs[0], &TemplateFacts { gateways, ..TemplateFacts::default() }, &mut diagnostics);
            diagnostics.kept().iter().map(ToString::to_string).collect::<Vec<String>>()
        };
        assert_eq!(
            check("addresses: [10.0.0.0/24, 10.0.1.0/24]", "10.0.0.1"),
            ["addresses[1]: outside the subnet of the template's gateway \"10.0.1.0/24\", \
              expected addresses of 10.0.0.0/24 as gateway 10.0.0.1 is, or onLinkGateway: true"]
        );
        assert_eq!(check("addresses: [10.0.1.0/24], onLinkGateway: true", "10.0.0.1"), [""; 0]);
        assert_eq!(check("addresses: ['fd00::/64']", "fe80::1"), [""; 0]);
        assert_eq!(check("addresses: ['fd00::/64']", "10.0.0.1"), [""; 0]);
    }

    #[test]
    fn a_reuse_delay_is_in_seconds() {
        let pool = super::super::tests::pool(
            "{name: w, network: 'n', addresses: [10.0.0.0/24], addressReuseGracePeriodSeconds: 300}",
        );
        assert_eq!(pool.reuse_delay, Duration::from_secs(300));
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        let document = "{name: Workers, namespace: a_b, clusterName: '-', network: a/b/c, addresses: [10.0.0.0/24]}";
        let (specs, mut diagnostics) = read_pools(document.as_bytes());
        assert_eq!(Pool::new(&specs[0], &TemplateFacts::default(), &mut diagnostics), None);
        let found: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "clusterName: invalid name \"-\", expected at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
                "name: invalid name \"Workers\", expected at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
                "namespace: invalid name \"a_b\", expected at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
                "network: invalid network \"a/b/c\", expected namespace/name or a name: at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
            ]
        );
    }

    #[test]
    fn a_network_without_a_namespace_belongs_to_the_pools_namespace() {
        let network = |members: &str| {
            let document = format!("{{name: a, addresses: [10.0.0.0/24], {members}}}");
            super::super::tests::pool(&document).network
        };
        assert_eq!(network("network: vlan10"), "default/vlan10");
        assert_eq!(network("network: vlan10, namespace: clusters"), "clusters/vlan10");
        assert_eq!(network("network: infra/vlan10, namespace: clusters"), "infra/vlan10");
        assert_eq!(network("network: default, namespace: clusters"), "default");
    }
}

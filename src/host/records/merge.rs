//! Merges the records of several objects into one record for each interface of a machine.

use std::borrow::Cow;
use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::hold::Hold;
use super::labels::{Labels, Name};
use super::object::{Doubt, Object, ObjectDiagnostic, ObjectKind, Reported};
use crate::diagnostic::Diagnostic;
use crate::host::claim::{Claimant, Machine, Record};
use crate::network::{Family, InterfaceName};

/// The combined content of the objects of all lists.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Inventory {
    /// Records, sorted by namespace, name and UID of the machine, then by interface. A machine has at most one record
    /// for each interface. Each record has at least one address, IPv4 first, without repeats.
    ///
    /// The UID is the UID of the KubevirtMachine. In two cases the UID of the VirtualMachine replaces it, because the
    /// UID of the KubevirtMachine is no longer known: the KubevirtMachine is gone, or a newer KubevirtMachine has its
    /// name while the old guest still holds the addresses. A VirtualMachine that belongs to no KubevirtMachine is a
    /// machine with its own namespace, name and UID.
    pub records: Vec<Record>,
    /// Diagnostics in the order of the lists, then diagnostics about objects that contradict each other.
    pub diagnostics: Vec<ObjectDiagnostic>,
    /// Addresses that running guests report, in the order of their machines.
    pub reports: Vec<Report>,
    /// Machines without a record that are not being deleted: each KubevirtMachine, and each VirtualMachine without a
    /// KubevirtMachine if its objects list a network and its guest reports no address. An unreadable record counts as a
    /// record if the name of its interface is known.
    pub without_record: Vec<Unrecorded>,
    /// Number of objects whose machine cannot be identified. Each of them may belong to any machine of the ledger.
    pub unidentified: usize,
    /// The claims of the cluster. `None`: the lists have no claims. [`Objects`](super::Objects) reads no claims, so the
    /// caller adds the claims and their records.
    #[doc(hidden)]
    pub claims: Option<BTreeSet<Machine>>,
    /// Kinds of the objects in the lists, by namespace.
    kinds: BTreeMap<String, BTreeSet<ObjectKind>>,
    /// Namespace of the VirtualMachine of each KubevirtMachine, by namespace and name of the KubevirtMachine. `None`:
    /// unknown, or in another cluster.
    vm_namespaces: BTreeMap<(String, String), Option<String>>,
    /// Namespace and name of machines that have, or may have, a VirtualMachine or an instance in the lists.
    guests: BTreeSet<(String, String)>,
    /// Namespace and name of machines that have an instance in the lists.
    instances: BTreeSet<(String, String)>,
    /// Objects of the lists, and the machines of guests in the lists, as strings of [`identity`], sorted.
    present: Vec<String>,
    /// Machines, as namespace and name: a guest is in the lists without its own KubevirtMachine, or only labels name
    /// the machine.
    orphans: BTreeSet<(String, String)>,
}

/// An address that a running guest reports.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The machine whose guest reports the address.
    pub machine: Machine,
    /// Network of the interface, spelled as [`Pool::network`](crate::host::pool::Pool::network). `None` if it is
    /// unknown.
    pub network: Option<String>,
    /// The reported address.
    pub address: IpAddr,
    /// Where the address was read: the list, and the path in the list.
    pub source: String,
}

/// A machine without a record.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Unrecorded {
    /// The machine without a record.
    pub machine: Machine,
    /// The same as [`Record::node_pool`].
    pub node_pool: Option<String>,
    /// The same as [`Record::attachments`].
    pub attachments: Vec<String>,
}

/// An object and its machine. After sorting, the objects of machines with the same name are next to each other.
#[derive(Clone, Copy)]
struct Part<'o> {
    /// Namespace and name of the machine.
    machine: Name<'o>,
    /// UID of the VirtualMachine, for a VirtualMachine and its instance. `None` for a KubevirtMachine.
    guest: Option<&'o str>,
    object: &'o Object,
}

/// Records of one machine by interface.
type Held<'o> = BTreeMap<&'o InterfaceName, Stated<'o>>;

/// The merged record of one interface.
struct Stated<'o> {
    addresses: Cow<'o, [IpNetwork]>,
    network: Option<&'o str>,
    /// The record that was read first.
    hold: &'o Hold,
}

/// NodePool and networks of a machine, merged from its objects.
#[derive(Default)]
struct Origin<'o> {
    node_pool: Option<&'o str>,
    attachments: BTreeSet<&'o str>,
}

struct Merge<'o> {
    sources: &'o [String],
    inventory: Inventory,
    /// Buffer for the path of a record, reused for each record.
    path: String,
}

pub(super) fn merge(objects: Vec<Object>, sources: &[String], diagnostics: Vec<ObjectDiagnostic>) -> Inventory {
    let objects = join_repeated(objects);
    let kinds: BTreeSet<(&str, ObjectKind)> =
        objects.iter().map(|object| (object.namespace.as_str(), object.kind)).collect();
    let mut inventory = Inventory { diagnostics, ..Inventory::default() };
    for (namespace, kind) in kinds {
        inventory.kinds.entry(namespace.to_owned()).or_default().insert(kind);
    }
    let mut merge = Merge { sources, inventory, path: String::new() };
    let labels = Labels::of(&objects);
    let parts = parts(&objects, &labels);
    for part in &parts {
        merge.object(part, &labels);
    }
    for namesakes in parts.chunk_by(|a, b| a.machine == b.machine) {
        merge.machine(namesakes);
    }
    merge.inventory.records.sort_by(|a, b| a.claimant.cmp(&b.claimant));
    merge.inventory.present.sort();
    merge.inventory.present.dedup();
    merge.inventory
}

/// Joins objects with the same UID into one object, so that a list that is read twice counts once.
fn join_repeated(mut objects: Vec<Object>) -> Vec<Object> {
    let mut first = HashMap::with_capacity(objects.len());
    let repeated = objects.iter().enumerate().map(|(at, object)| *first.entry(object.uid.as_str()).or_insert(at));
    let first: Vec<usize> = repeated.collect();
    for (at, first) in first.iter().enumerate().filter(|(at, first)| at != *first) {
        let (before, repeated) = objects.split_at_mut(at);
        before[*first].join(&mut repeated[0]);
    }
    let mut is_first = first.iter().enumerate().map(|(at, first)| at == *first);
    objects.retain(|_| is_first.next().unwrap_or(true));
    objects
}

fn parts<'o>(objects: &'o [Object], labels: &Labels<'o>) -> Vec<Part<'o>> {
    let machines = objects.iter().filter(|object| object.kind == ObjectKind::VirtualMachine);
    // An instance is in the namespace of its VirtualMachine. Users can name any owner, so an owner in another namespace
    // does not count.
    let machines: HashMap<(&str, &str), Name<'o>> = machines
        .map(|object| ((object.namespace.as_str(), object.uid.as_str()), labels.machine(object, object.name())))
        .collect();
    let parts = objects.iter().map(|object| {
        let (machine, guest) = match (object.kind, object.owner.as_deref()) {
            (ObjectKind::Machine, _) => (object.name(), None),
            (ObjectKind::Instance, Some((uid, name))) => {
                let machine = machines.get(&(object.namespace.as_str(), uid.as_str())).copied();
                let machine = machine.unwrap_or_else(|| labels.machine(object, (&object.namespace, name)));
                (machine, Some(uid.as_str()))
            }
            _ => (labels.machine(object, object.name()), Some(object.uid.as_str())),
        };
        Part { machine, guest, object }
    });
    let mut parts: Vec<Part<'_>> = parts.collect();
    // The VirtualMachine of a guest sorts before its instance.
    parts.sort_by_key(|part| (part.machine, part.guest, part.object.kind));
    parts
}

// === impl Merge ===

impl<'o> Merge<'o> {
    /// Notes the machines that are not missing, because there is this object: the object itself, for an instance also
    /// its VirtualMachine, and for a guest also its machine. If the labels of a guest name another machine without a
    /// confirmation, the named machine is not missing either: the guest may belong to the named machine although its
    /// KubevirtMachine is gone.
    fn object(&mut self, part: &Part<'_>, labels: &Labels<'_>) {
        let Part { machine, guest, object } = part;
        let present = &mut self.inventory.present;
        present.push(identity(&object.namespace, &object.name, &object.uid));
        if let Some((uid, name)) = object.owner.as_deref().filter(|_| object.kind == ObjectKind::Instance) {
            present.push(identity(&object.namespace, name, uid));
        }
        // A ledger that was rebuilt without the KubevirtMachine identifies the machine by the UID of its guest.
        present.extend(guest.map(|uid| identity(machine.0, machine.1, uid)));
        if let Some(named) = object.labelled().filter(|named| named != machine) {
            self.orphan(named.0, named.1);
            if labels.may_have_another(named) {
                self.inventory.guests.insert((named.0.to_owned(), named.1.to_owned()));
            }
        }
    }

    /// Merges the objects of all machines with the same namespace and name.
    fn machine(&mut self, namesakes: &[Part<'o>]) {
        let Some((namespace, name)) = namesakes.first().map(|part| part.machine) else { return };
        let named = |uid: &str| Machine::new(namespace, name, uid);
        let guests = namesakes.iter().position(|part| part.guest.is_some()).unwrap_or(namesakes.len());
        let (own, guests) = namesakes.split_at(guests);
        let mut machines: Vec<(&Object, Held<'o>, Origin<'o>, bool)> = Vec::with_capacity(own.len());
        for part in own {
            let (held, doubts) = self.held(std::slice::from_ref(part));
            let has_doubts = !doubts.is_empty();
            self.tell_whose(|| named(&part.object.uid), doubts);
            machines.push((part.object, held, Origin::default().with(part.object), has_doubts));
        }
        self.vm_namespace(namespace, name, own);
        // The last machine is the current machine. Several machines of one name appear if the lists were fetched at
        // different times.
        machines.sort_by_key(|(machine, ..)| machine.created);
        if !guests.is_empty() {
            self.inventory.guests.insert((namespace.to_owned(), name.to_owned()));
        }
        if guests.iter().any(|part| part.object.kind == ObjectKind::Instance) {
            self.inventory.instances.insert((namespace.to_owned(), name.to_owned()));
        }
        for guest in guests.chunk_by(|a, b| a.guest == b.guest) {
            let Some(uid) = guest.first().and_then(|part| part.guest) else { continue };
            let (held, mut doubts) = self.held(guest);
            let created = guest.iter().filter_map(|part| part.object.created).min();
            let origin = guest.iter().fold(Origin::default(), |origin, part| origin.with(part.object));
            let Some((machine, own, about, has_doubts)) = machines.last_mut() else {
                self.orphan(namespace, name);
                let is_machine =
                    |part: &Part<'_>| part.object.kind == ObjectKind::VirtualMachine && !part.object.is_being_deleted;
                let is_known =
                    !held.is_empty() || !doubts.is_empty() || guest.iter().any(|part| !part.object.reports.is_empty());
                if guest.iter().any(is_machine) && !is_known && !origin.attachments.is_empty() {
                    self.inventory.without_record.push(origin.unrecorded(named(uid)));
                }
                self.tell_whose(|| named(uid), doubts);
                self.report(|| named(uid), guest);
                self.add(|| named(uid), held, &origin);
                continue;
            };
            let ages = machine.created.zip(created);
            let is_predecessors = ages.is_some_and(|(machine, guest)| guest < machine);
            if ages.is_none() {
                // The guest may be that of an earlier machine, so no machine of this name counts as missing.
                self.orphan(namespace, name);
            }
            let mut predecessors = Held::new();
            for (interface, stated) in held {
                match own.entry(interface) {
                    Entry::Vacant(unknown) if !is_predecessors => drop(unknown.insert(stated)),
                    Entry::Occupied(mut known) => {
                        if known.get_mut().agrees(&stated) {
                            continue;
                        }
                        if is_predecessors {
                            predecessors.insert(interface, stated);
                        } else {
                            doubts.push(self.contradiction(known.get(), &stated));
                        }
                    }
                    Entry::Vacant(_) => drop(predecessors.insert(interface, stated)),
                }
            }
            if is_predecessors {
                self.orphan(namespace, name);
                self.tell_whose(|| named(uid), doubts);
                self.report(|| named(uid), guest);
            } else {
                *has_doubts |= !doubts.is_empty();
                self.tell_whose(|| named(&machine.uid), doubts);
                self.report(|| named(&machine.uid), guest);
                about.extend(&origin);
            }
            self.add(|| named(uid), predecessors, &origin);
        }
        for (machine, held, origin, has_doubts) in machines {
            if held.is_empty() && !has_doubts && !machine.is_being_deleted {
                self.inventory.without_record.push(origin.unrecorded(named(&machine.uid)));
            }
            self.add(|| named(&machine.uid), held, &origin);
        }
    }

    /// Notes where the VirtualMachine of KubevirtMachines with the same namespace and name is.
    fn vm_namespace(&mut self, namespace: &str, name: &str, machines: &[Part<'o>]) {
        let known = |part: &Part<'o>| part.object.vm_namespace.as_deref().filter(|_| !part.object.is_in_infra_cluster);
        let mut vms = machines.iter().map(known);
        if let Some(first) = vms.next() {
            let vm = first.filter(|_| vms.all(|vm| vm == first));
            self.inventory.vm_namespaces.insert((namespace.to_owned(), name.to_owned()), vm.map(str::to_owned));
        }
    }

    /// Merges the records of objects of one machine. If two records contradict each other, the first record counts.
    fn held(&mut self, parts: &[Part<'o>]) -> (Held<'o>, Vec<Doubt>) {
        let mut held = Held::new();
        let mut doubts: Vec<Doubt> = parts.iter().flat_map(|part| &part.object.doubts).cloned().collect();
        for hold in parts.iter().flat_map(|part| &part.object.holds) {
            let (addresses, network) = (Cow::Borrowed(hold.addresses.as_slice()), hold.network.as_deref());
            let stated = Stated { addresses, network, hold };
            match held.entry(&hold.interface) {
                Entry::Vacant(unknown) => drop(unknown.insert(stated)),
                Entry::Occupied(mut known) => {
                    if !known.get_mut().agrees(&stated) {
                        doubts.push(self.contradiction(known.get(), &stated));
                    }
                }
            }
        }
        (held, doubts)
    }

    fn tell_whose(&mut self, machine: impl Fn() -> Machine, doubts: Vec<Doubt>) {
        for Doubt { diagnostic, interface } in doubts {
            if let Some(diagnostic) = self.inventory.diagnostics.get_mut(diagnostic) {
                diagnostic.claimant = Some(Claimant { machine: machine(), interface });
            }
        }
    }

    fn contradiction(&mut self, known: &Stated<'_>, stated: &Stated<'_>) -> Doubt {
        let expected = format!("{known} as in {}", self.source(known.hold));
        let diagnostic = Diagnostic::error(stated.hold.path(), "contradicting record", stated, &expected);
        // The same number on another network is another address.
        let is_elsewhere = known.network.is_some() && stated.network.is_some() && known.network != stated.network;
        let is_new = |address: &IpAddr| is_elsewhere || !known.addresses.iter().any(|known| known.ip() == *address);
        let addresses = stated.addresses.iter().map(IpNetwork::ip).filter(is_new).collect();
        let doubt = Doubt { diagnostic: self.inventory.diagnostics.len(), interface: stated.hold.interface };
        let source = self.sources[stated.hold.spot.source].clone();
        self.inventory.diagnostics.push(ObjectDiagnostic { source, diagnostic, claimant: None, addresses });
        doubt
    }

    /// Where a record was read, as list and path.
    fn source(&mut self, hold: &Hold) -> String {
        self.path.clear();
        hold.push_path_onto(&mut self.path);
        [&self.sources[hold.spot.source], ": ", &self.path].concat()
    }

    fn orphan(&mut self, namespace: &str, name: &str) {
        self.inventory.orphans.insert((namespace.to_owned(), name.to_owned()));
    }

    fn add(&mut self, machine: impl Fn() -> Machine, held: Held<'o>, origin: &Origin<'_>) {
        for (interface, Stated { addresses, network, hold }) in held {
            let source = self.source(hold);
            self.inventory.records.push(Record {
                claimant: Claimant { machine: machine(), interface: *interface },
                node_pool: origin.node_pool.map(str::to_owned),
                attachments: origin.attachments.iter().map(|it| (*it).to_owned()).collect(),
                network: network.map(str::to_owned),
                addresses: addresses.into_owned(),
                source,
                kind: hold.kind(),
            });
        }
    }

    fn report(&mut self, machine: impl Fn() -> Machine, guest: &[Part<'_>]) {
        for reported in guest.iter().flat_map(|part| &part.object.reports) {
            let Reported { network, addresses, source, path } = reported;
            self.inventory.reports.extend(addresses.iter().map(|address| Report {
                machine: machine(),
                network: network.clone(),
                address: *address,
                source: format!("{}: {path}", self.sources[*source]),
            }));
        }
    }
}

// === impl Origin ===

impl<'o> Origin<'o> {
    fn with(mut self, object: &'o Object) -> Self {
        self.node_pool = self.node_pool.or(object.node_pool.as_deref());
        self.attachments.extend(object.attachments.iter().map(String::as_str));
        self
    }

    fn extend(&mut self, other: &Self) {
        self.node_pool = self.node_pool.or(other.node_pool);
        self.attachments.extend(&other.attachments);
    }

    fn unrecorded(&self, machine: Machine) -> Unrecorded {
        let attachments = self.attachments.iter().map(|it| (*it).to_owned()).collect();
        Unrecorded { machine, node_pool: self.node_pool.map(str::to_owned), attachments }
    }
}

// === impl Stated ===

impl<'o> Stated<'o> {
    /// Whether two records have the same addresses on the same network. If one record leaves out a prefix length or the
    /// network, the value of the other record counts. `self` then gets the values that it left out.
    fn agrees(&mut self, stated: &Stated<'o>) -> bool {
        let is_left_out = |address: &IpNetwork| address.prefix() == Family::of(address.ip()).bits();
        let agree = |(a, b): (&IpNetwork, &IpNetwork)| a.ip() == b.ip() && (a == b || is_left_out(a) || is_left_out(b));
        let (known, other) = (&mut self.addresses, &stated.addresses);
        let is_elsewhere = self.network.zip(stated.network).is_some_and(|(known, stated)| known != stated);
        if is_elsewhere || known.len() != other.len() || !known.iter().zip(other.iter()).all(agree) {
            return false;
        }
        if known.iter().any(is_left_out) {
            for (known, stated) in known.to_mut().iter_mut().zip(other.iter()).filter(|(known, _)| is_left_out(known)) {
                *known = *stated;
            }
        }
        self.network = self.network.or(stated.network);
        true
    }
}

impl fmt::Display for Stated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { "" } else { ", " })?;
        }
        self.network.map_or(Ok(()), |network| write!(f, " of network {network}"))
    }
}

/// A unique string for a machine: namespace, name and UID. None of these parts can contain a slash.
fn identity(namespace: &str, name: &str, uid: &str) -> String {
    [namespace, "/", name, "/", uid].concat()
}

// === impl Report ===

impl Report {
    /// Whether the address may be on a network: the report names this network, or no network.
    pub(crate) fn is_on(&self, network: &str) -> bool {
        self.network.as_ref().is_none_or(|name| name == network)
    }
}

// === impl Inventory ===

impl Inventory {
    /// Changes each machine of the records, the diagnostics, the reports and the list of machines without a record, for
    /// callers that know more about the object of a machine.
    #[doc(hidden)]
    pub fn each_machine(&mut self, change: impl FnMut(&mut Machine)) {
        let records = self.records.iter_mut().map(|record| &mut record.claimant.machine);
        let diagnostics = self.diagnostics.iter_mut().filter_map(|it| Some(&mut it.claimant.as_mut()?.machine));
        let reports = self.reports.iter_mut().map(|report| &mut report.machine);
        let unrecorded = self.without_record.iter_mut().map(|unrecorded| &mut unrecorded.machine);
        records.chain(diagnostics).chain(reports).chain(unrecorded).for_each(change);
    }

    /// The part of this content that is about these addresses: the records, the reports and the diagnostics that name
    /// one of them. A record or a diagnostic keeps only these addresses.
    pub(crate) fn about(&self, addresses: &BTreeSet<IpAddr>) -> Self {
        let mut about = self.clone();
        about.records.iter_mut().for_each(|record| record.addresses.retain(|own| addresses.contains(&own.ip())));
        about.records.retain(|record| !record.addresses.is_empty());
        about.diagnostics.iter_mut().for_each(|diagnostic| diagnostic.addresses.retain(|own| addresses.contains(own)));
        about.diagnostics.retain(|diagnostic| !diagnostic.addresses.is_empty());
        about.reports.retain(|report| addresses.contains(&report.address));
        about
    }

    /// Whether the lists have an object of a machine: its KubevirtMachine, or a guest that may belong to the machine.
    /// A guest counts for every machine that its labels name. For a claim: whether the lists have the claim.
    ///
    /// A machine without such an object may be missing, but only if the lists were complete: all three kinds of all
    /// namespaces.
    #[must_use]
    pub fn is_there(&self, machine: &Machine) -> bool {
        let Machine { namespace, name, uid, kind, .. } = machine;
        if kind.is_claim() {
            return self.claims.as_ref().is_some_and(|claims| claims.contains(machine));
        }
        self.present.binary_search(&identity(namespace, name, uid)).is_ok()
            || self.orphans.contains(&(namespace.clone(), name.clone()))
    }

    /// Whether the lists have, or may have, a VirtualMachine or an instance of a machine with the same namespace and
    /// name. A VirtualMachine of this name that is where the KubevirtMachine has its own counts even without labels.
    #[must_use]
    pub fn has_guest(&self, machine: &Machine) -> bool {
        let is_in = |namespace: &String| self.guests.contains(&(namespace.clone(), machine.name.clone()));
        is_in(&machine.namespace) || self.vm_namespace_of(machine).is_some_and(is_in)
    }

    /// Why a guest of a KubevirtMachine may run although [`Inventory::has_guest`] is `false`, with what was expected.
    /// `None`: the lists show the guests of the place where the VirtualMachine of the machine is.
    #[must_use]
    pub fn why_guest_is_unknown(&self, machine: &Machine) -> Option<String> {
        let Some(namespace) = self.vm_namespace_of(machine) else {
            let expected = "expected spec.virtualMachineTemplate, and no infraClusterSecretRef";
            return Some(format!("its VirtualMachine may be in another namespace or cluster, {expected}"));
        };
        // If the lists have no object of a kind, the list of this kind and namespace is probably missing.
        let kinds = self.kinds.get(namespace);
        let is_absent = |kind: &ObjectKind| !kinds.is_some_and(|kinds| kinds.contains(kind));
        let absent = [ObjectKind::VirtualMachine, ObjectKind::Instance].into_iter().filter(is_absent);
        let absent: Vec<&str> = absent.map(ObjectKind::name).collect();
        if !absent.is_empty() {
            let absent = absent.join(" and no ");
            return Some(format!(
                "no {absent} of namespace {namespace} in the lists, expected all objects of each kind"
            ));
        }
        let expected = "expected namespace, name and UID of each";
        (self.unidentified > 0)
            .then(|| format!("{} objects of unknown machines in the lists, {expected}", self.unidentified))
    }

    /// Whether the lists have an instance of a machine with the same namespace and name.
    pub(crate) fn has_instance(&self, machine: &Machine) -> bool {
        self.instances.contains(&(machine.namespace.clone(), machine.name.clone()))
    }

    /// Whether the lists have an object of the namespace.
    #[must_use]
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.kinds.contains_key(namespace)
    }

    fn vm_namespace_of(&self, machine: &Machine) -> Option<&String> {
        self.vm_namespaces.get(&(machine.namespace.clone(), machine.name.clone()))?.as_ref()
    }

    /// The namespaces in which KubevirtMachines of the lists have their VirtualMachines.
    pub(crate) fn vm_namespaces(&self) -> impl Iterator<Item = &str> {
        self.vm_namespaces.values().flatten().map(String::as_str)
    }

    /// The kinds without any object in the lists.
    #[must_use]
    pub fn absent_kinds(&self) -> Vec<&'static str> {
        let is_absent = |kind: &ObjectKind| !self.kinds.values().any(|kinds| kinds.contains(kind));
        let kinds = [ObjectKind::Machine, ObjectKind::VirtualMachine, ObjectKind::Instance];
        kinds.into_iter().filter(is_absent).map(ObjectKind::name).collect()
    }
}

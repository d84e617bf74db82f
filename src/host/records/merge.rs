//! What several objects say of one machine.

use std::borrow::Cow;
use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::object::{Doubt, Hold, Kind, Object};
use crate::finding::Finding;
use crate::host::claim::{Claimant, Machine, Record};
use crate::network::{Family, InterfaceName};

/// Something odd about an object or a record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ObjectFinding {
    /// Which list it was in.
    pub source: String,
    /// What it is.
    pub finding: Finding,
    /// Whose record it is, where that can be told.
    pub claimant: Option<Claimant>,
    /// The addresses that it speaks of, and that are in none of [`Inventory::records`] because of it. Somebody may use them.
    pub addresses: Vec<IpAddr>,
}

/// What the objects of all lists say together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Inventory {
    /// By namespace, name and UID of the machine, then by interface. No machine has two for one interface. In each there are
    /// addresses, IPv4 first and each once; the network is not said.
    ///
    /// The UID is the KubevirtMachine's, unless that is gone, or is the successor of the one whose guest still holds the
    /// addresses: its UID is not known any more then, and the VirtualMachine's stands for it.
    pub records: Vec<Record>,
    /// In the order of the lists, then those about objects that contradict each other.
    pub findings: Vec<ObjectFinding>,
    /// The machines that are there, or of which a guest is, as [`identity`] names them, sorted.
    present: Vec<String>,
    /// Namespace and name of machines of which a guest is there, but not its KubevirtMachine.
    orphans: BTreeSet<(String, String)>,
}

/// An object, and of what it is a part. Those of one machine come together, its namesakes next.
#[derive(Clone, Copy)]
struct Part<'o> {
    /// Namespace and name.
    machine: (&'o str, &'o str),
    /// Nothing for the machine itself; for a VirtualMachine and its instance the UID of the VirtualMachine.
    guest: Option<&'o str>,
    object: &'o Object,
}

/// What the interfaces of one machine hold.
type Held<'o> = BTreeMap<&'o InterfaceName, Said<'o>>;

/// What an interface holds, and where that was read first.
type Said<'o> = (Cow<'o, [IpNetwork]>, &'o Hold);

struct Merge<'o> {
    sources: &'o [String],
    inventory: Inventory,
    /// Room for the place of a record.
    place: String,
}

pub(super) fn merge(objects: Vec<Object>, sources: &[String], findings: Vec<ObjectFinding>) -> Inventory {
    let objects = join_repeated(objects);
    let inventory = Inventory { findings, ..Inventory::default() };
    let mut merge = Merge { sources, inventory, place: String::new() };
    for namesakes in parts(&objects).chunk_by(|a, b| a.machine == b.machine) {
        merge.machine(namesakes);
    }
    merge.inventory.records.sort_by(|a, b| a.claimant.cmp(&b.claimant));
    merge.inventory.present.sort();
    merge.inventory
}

/// Makes one object of those that have one UID: a list that is read twice says nothing twice.
fn join_repeated(mut objects: Vec<Object>) -> Vec<Object> {
    let mut first = HashMap::with_capacity(objects.len());
    let repeated = objects.iter().enumerate().map(|(at, object)| *first.entry(object.uid.as_str()).or_insert(at));
    let first: Vec<usize> = repeated.collect();
    for (at, first) in first.iter().enumerate().filter(|(at, first)| at != *first) {
        let Object { holds, doubts, .. } = &mut objects[at];
        let (holds, doubts) = (std::mem::take(holds), std::mem::take(doubts));
        objects[*first].holds.extend(holds);
        objects[*first].doubts.extend(doubts);
    }
    let mut is_first = first.iter().enumerate().map(|(at, first)| at == *first);
    objects.retain(|_| is_first.next().unwrap_or(true));
    objects
}

fn parts(objects: &[Object]) -> Vec<Part<'_>> {
    fn named(object: &Object) -> (&str, &str) {
        let labelled = object.machine.as_deref().map(|(namespace, name)| (namespace.as_str(), name.as_str()));
        labelled.unwrap_or((&object.namespace, &object.name))
    }
    let machines = objects.iter().filter(|object| object.kind == Kind::VirtualMachine);
    let machines: HashMap<&str, (&str, &str)> = machines.map(|object| (object.uid.as_str(), named(object))).collect();
    let parts = objects.iter().map(|object| {
        let (machine, guest) = match (object.kind, object.owner.as_deref()) {
            (Kind::Machine, _) => ((object.namespace.as_str(), object.name.as_str()), None),
            (Kind::Instance, Some((uid, name))) => {
                let machine = machines.get(uid.as_str()).copied();
                let machine = machine.unwrap_or_else(|| match &object.machine {
                    Some(_) => named(object),
                    None => (&object.namespace, name),
                });
                (machine, Some(uid.as_str()))
            }
            _ => (named(object), Some(object.uid.as_str())),
        };
        Part { machine, guest, object }
    });
    let mut parts: Vec<Part<'_>> = parts.collect();
    // Of one guest the VirtualMachine comes first.
    parts.sort_by_key(|part| (part.machine, part.guest, part.object.kind));
    parts
}

// === impl Merge ===

impl<'o> Merge<'o> {
    /// All machines that have one name, one after the other.
    fn machine(&mut self, namesakes: &[Part<'o>]) {
        let Some((namespace, name)) = namesakes.first().map(|part| part.machine) else { return };
        let named = |uid: &str| Machine { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() };
        let present = |uid: &str| identity(namespace, name, uid);
        let guests = namesakes.iter().position(|part| part.guest.is_some()).unwrap_or(namesakes.len());
        let (own, guests) = namesakes.split_at(guests);
        let mut machines: Vec<(&Object, Held<'o>)> = Vec::with_capacity(own.len());
        for part in own {
            let (held, doubts) = self.held(std::slice::from_ref(part));
            self.tell_whose(|| named(&part.object.uid), doubts);
            self.inventory.present.push(present(&part.object.uid));
            machines.push((part.object, held));
        }
        // The one that is there now; more than one come from lists of several times.
        machines.sort_by_key(|(machine, _)| machine.created);
        for guest in guests.chunk_by(|a, b| a.guest == b.guest) {
            let Some(uid) = guest.first().and_then(|part| part.guest) else { continue };
            let (held, mut doubts) = self.held(guest);
            let created = guest.iter().filter_map(|part| part.object.created).min();
            let Some((machine, own)) = machines.last_mut() else {
                self.orphan(namespace, name);
                self.tell_whose(|| named(uid), doubts);
                self.add(|| named(uid), held);
                self.inventory.present.push(present(uid));
                continue;
            };
            let is_predecessors = machine.created.zip(created).is_some_and(|(machine, guest)| guest < machine);
            let mut predecessors = Held::new();
            for (interface, said) in held {
                match own.entry(interface) {
                    Entry::Vacant(unknown) if !is_predecessors => drop(unknown.insert(said)),
                    Entry::Occupied(mut known) => {
                        if agrees(&mut known.get_mut().0, &said.0) {
                            continue;
                        }
                        if is_predecessors {
                            predecessors.insert(interface, said);
                        } else {
                            doubts.push(self.contradiction(known.get(), &said));
                        }
                    }
                    Entry::Vacant(_) => drop(predecessors.insert(interface, said)),
                }
            }
            if is_predecessors {
                self.orphan(namespace, name);
                self.tell_whose(|| named(uid), doubts);
                self.inventory.present.push(present(uid));
            } else {
                self.tell_whose(|| named(&machine.uid), doubts);
            }
            self.add(|| named(uid), predecessors);
        }
        for (machine, held) in machines {
            self.add(|| named(&machine.uid), held);
        }
    }

    /// What the objects of one machine say, the first one in doubt.
    fn held(&mut self, parts: &[Part<'o>]) -> (Held<'o>, Vec<Doubt>) {
        let mut held = Held::new();
        let mut doubts: Vec<Doubt> = parts.iter().flat_map(|part| &part.object.doubts).cloned().collect();
        for hold in parts.iter().flat_map(|part| &part.object.holds) {
            let said = (Cow::Borrowed(hold.addresses.as_slice()), hold);
            match held.entry(&hold.interface) {
                Entry::Vacant(unknown) => drop(unknown.insert(said)),
                Entry::Occupied(mut known) => {
                    if !agrees(&mut known.get_mut().0, &said.0) {
                        doubts.push(self.contradiction(known.get(), &said));
                    }
                }
            }
        }
        (held, doubts)
    }

    fn tell_whose(&mut self, machine: impl Fn() -> Machine, doubts: Vec<Doubt>) {
        for Doubt { finding, interface } in doubts {
            if let Some(finding) = self.inventory.findings.get_mut(finding) {
                finding.claimant = Some(Claimant { machine: machine(), interface });
            }
        }
    }

    fn contradiction(&mut self, known: &Said<'_>, said: &Said<'_>) -> Doubt {
        let expected = format!("{} as in {}", Addresses(&known.0), self.source(known.1));
        let finding = Finding::error(said.1.place(), "contradicting record", Addresses(&said.0), &expected);
        let is_new = |address: &IpAddr| !known.0.iter().any(|known| known.ip() == *address);
        let addresses = said.0.iter().map(IpNetwork::ip).filter(is_new).collect();
        let doubt = Doubt { finding: self.inventory.findings.len(), interface: said.1.interface };
        let source = self.sources[said.1.spot.source].clone();
        self.inventory.findings.push(ObjectFinding { source, finding, claimant: None, addresses });
        doubt
    }

    /// Where a record was read.
    fn source(&mut self, hold: &Hold) -> String {
        self.place.clear();
        hold.push_place_onto(&mut self.place);
        [&self.sources[hold.spot.source], ": ", &self.place].concat()
    }

    fn orphan(&mut self, namespace: &str, name: &str) {
        self.inventory.orphans.insert((namespace.to_owned(), name.to_owned()));
    }

    fn add(&mut self, machine: impl Fn() -> Machine, held: Held<'o>) {
        for (interface, (addresses, hold)) in held {
            let claimant = Claimant { machine: machine(), interface: *interface };
            let (addresses, source) = (addresses.into_owned(), self.source(hold));
            self.inventory.records.push(Record {
                claimant,
                node_pool: None,
                attachments: Vec::new(),
                network: None,
                addresses,
                source,
            });
        }
    }
}

/// Whether both are the same addresses. A prefix length that one of them does not say is the other's.
fn agrees(known: &mut Cow<'_, [IpNetwork]>, said: &[IpNetwork]) -> bool {
    let unsaid = |address: &IpNetwork| address.prefix() == Family::of(address.ip()).bits();
    let agree = |(a, b): (&IpNetwork, &IpNetwork)| a.ip() == b.ip() && (a == b || unsaid(a) || unsaid(b));
    if known.len() != said.len() || !known.iter().zip(said).all(agree) {
        return false;
    }
    if known.iter().any(unsaid) {
        for (known, said) in known.to_mut().iter_mut().zip(said).filter(|(known, _)| unsaid(known)) {
            *known = *said;
        }
    }
    true
}

/// A text that no two machines have: there is no slash in any of the three.
fn identity(namespace: &str, name: &str, uid: &str) -> String {
    [namespace, "/", name, "/", uid].concat()
}

struct Addresses<'a>(&'a [IpNetwork]);

impl fmt::Display for Addresses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.0.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

// === impl Inventory ===

impl Inventory {
    /// Whether anything of a machine is there: its KubevirtMachine, or a guest that may be its own.
    ///
    /// Only whoever is not there may be missing, if the lists were complete: all three kinds of all namespaces.
    #[must_use]
    pub fn is_there(&self, machine: &Machine) -> bool {
        let Machine { namespace, name, uid } = machine;
        self.present.binary_search(&identity(namespace, name, uid)).is_ok()
            || self.orphans.contains(&(namespace.clone(), name.clone()))
    }
}

// === impl ObjectFinding ===

impl fmt::Display for ObjectFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.finding)?;
        self.claimant.as_ref().map_or(Ok(()), |claimant| write!(f, ", in the record of {claimant}"))
    }
}

//! What several objects say of one machine.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map};
use std::fmt;
use std::iter::repeat_n;
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
    /// The machines that are there, or of which a guest is.
    present: BTreeSet<Machine>,
    /// Namespace and name of machines of which a guest is there, but not its KubevirtMachine.
    orphans: BTreeSet<(String, String)>,
}

/// The objects of all machines that have one name, one after the other.
#[derive(Default)]
struct Namesakes<'o> {
    machines: Vec<&'o Object>,
    /// A VirtualMachine and its instance, by the UID of the VirtualMachine.
    guests: BTreeMap<&'o str, Vec<&'o Object>>,
}

/// What the interfaces of one machine hold, and where that was read first.
type Held<'o> = BTreeMap<&'o InterfaceName, (Vec<IpNetwork>, &'o Hold)>;

struct Merge<'o> {
    sources: &'o [String],
    inventory: Inventory,
}

pub(super) fn merge(objects: Vec<Object>, sources: &[String], findings: Vec<ObjectFinding>) -> Inventory {
    let objects = join_repeated(objects);
    let mut merge = Merge { sources, inventory: Inventory { findings, ..Inventory::default() } };
    for ((namespace, name), namesakes) in group(&objects) {
        merge.machine(namespace, name, &namesakes);
    }
    merge.inventory.records.sort_by(|a, b| a.claimant.cmp(&b.claimant));
    merge.inventory
}

/// Makes one object of those that have one UID: a list that is read twice says nothing twice.
fn join_repeated(objects: Vec<Object>) -> Vec<Object> {
    let mut first = HashMap::with_capacity(objects.len());
    let mut joined: Vec<Object> = Vec::with_capacity(objects.len());
    for object in objects {
        match first.entry(object.uid.clone()) {
            hash_map::Entry::Vacant(unknown) => {
                unknown.insert(joined.len());
                joined.push(object);
            }
            hash_map::Entry::Occupied(known) => {
                let first = &mut joined[*known.get()];
                first.holds.extend(object.holds);
                first.doubts.extend(object.doubts);
            }
        }
    }
    joined
}

fn group(objects: &[Object]) -> BTreeMap<(&str, &str), Namesakes<'_>> {
    fn of(object: &Object) -> (&str, &str) {
        let labelled = object.machine.as_ref().map(|(namespace, name)| (namespace.as_str(), name.as_str()));
        labelled.unwrap_or((&object.namespace, &object.name))
    }
    let mut groups: BTreeMap<(&str, &str), Namesakes<'_>> = BTreeMap::new();
    let mut machines = BTreeMap::new();
    for object in objects {
        match object.kind {
            Kind::Machine => {
                groups.entry((&object.namespace, &object.name)).or_default().machines.push(object);
            }
            Kind::VirtualMachine => {
                machines.insert(object.uid.as_str(), of(object));
                groups.entry(of(object)).or_default().guests.entry(&object.uid).or_default().push(object);
            }
            Kind::Instance => {}
        }
    }
    for object in objects.iter().filter(|object| object.kind == Kind::Instance) {
        let owner = object.owner.as_ref().map(|(uid, name)| (uid.as_str(), name.as_str()));
        let key = match owner {
            Some((uid, name)) => machines.get(uid).copied().unwrap_or_else(|| match &object.machine {
                Some(_) => of(object),
                None => (&object.namespace, name),
            }),
            None => of(object),
        };
        let uid = owner.map_or(object.uid.as_str(), |(uid, _)| uid);
        groups.entry(key).or_default().guests.entry(uid).or_default().push(object);
    }
    groups
}

// === impl Merge ===

impl<'o> Merge<'o> {
    fn machine(&mut self, namespace: &str, name: &str, namesakes: &Namesakes<'o>) {
        let named = |uid: &str| Machine { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() };
        let mut machines: Vec<(&Object, Held<'o>)> = Vec::new();
        for machine in &namesakes.machines {
            let (held, doubts) = self.held(&[machine]);
            let whose = named(&machine.uid);
            self.tell_whose(&whose, doubts);
            self.inventory.present.insert(whose);
            machines.push((machine, held));
        }
        // The one that is there now; more than one come from lists of several times.
        machines.sort_by_key(|(machine, _)| machine.created);
        for (uid, guest) in &namesakes.guests {
            let (held, mut doubts) = self.held(guest);
            let created = guest.iter().filter_map(|object| object.created).min();
            let Some((machine, own)) = machines.last_mut() else {
                self.orphan(namespace, name);
                let whose = named(uid);
                self.tell_whose(&whose, doubts);
                self.add(whose.clone(), held);
                self.inventory.present.insert(whose);
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
                let whose = named(uid);
                self.tell_whose(&whose, doubts);
                self.inventory.present.insert(whose);
            } else {
                self.tell_whose(&named(&machine.uid), doubts);
            }
            self.add(named(uid), predecessors);
        }
        for (machine, held) in machines {
            self.add(named(&machine.uid), held);
        }
    }

    /// What the objects of one machine say, the first one in doubt.
    fn held(&mut self, objects: &[&'o Object]) -> (Held<'o>, Vec<Doubt>) {
        let mut held = Held::new();
        let mut doubts: Vec<Doubt> = objects.iter().flat_map(|object| &object.doubts).cloned().collect();
        for hold in objects.iter().flat_map(|object| &object.holds) {
            let said = (hold.addresses.clone(), hold);
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

    fn tell_whose(&mut self, machine: &Machine, doubts: Vec<Doubt>) {
        for Doubt { finding, interface } in doubts {
            if let Some(finding) = self.inventory.findings.get_mut(finding) {
                finding.claimant = Some(Claimant { machine: machine.clone(), interface });
            }
        }
    }

    fn contradiction(&mut self, known: &(Vec<IpNetwork>, &Hold), said: &(Vec<IpNetwork>, &Hold)) -> Doubt {
        let expected = format!("{} as in {}", Addresses(&known.0), source(self.sources, known.1));
        let finding = Finding::error(said.1.place(), "contradicting record", Addresses(&said.0), &expected);
        let is_new = |address: &IpAddr| !known.0.iter().any(|known| known.ip() == *address);
        let addresses = said.0.iter().map(IpNetwork::ip).filter(is_new).collect();
        let doubt = Doubt { finding: self.inventory.findings.len(), interface: said.1.interface };
        let source = self.sources[said.1.spot.source].clone();
        self.inventory.findings.push(ObjectFinding { source, finding, claimant: None, addresses });
        doubt
    }

    fn orphan(&mut self, namespace: &str, name: &str) {
        self.inventory.orphans.insert((namespace.to_owned(), name.to_owned()));
    }

    fn add(&mut self, machine: Machine, held: Held<'o>) {
        let machines = repeat_n(machine, held.len());
        for ((interface, (addresses, hold)), machine) in held.into_iter().zip(machines) {
            let claimant = Claimant { machine, interface: *interface };
            let source = source(self.sources, hold);
            self.inventory.records.push(Record { claimant, network: None, addresses, source });
        }
    }
}

/// Whether both are the same addresses. A prefix length that one of them does not say is the other's.
fn agrees(known: &mut [IpNetwork], said: &[IpNetwork]) -> bool {
    let unsaid = |address: &IpNetwork| address.prefix() == Family::of(address.ip()).bits();
    let agree = |(a, b): (&IpNetwork, &IpNetwork)| a.ip() == b.ip() && (a == b || unsaid(a) || unsaid(b));
    if known.len() != said.len() || !known.iter().zip(said).all(agree) {
        return false;
    }
    for (known, said) in known.iter_mut().zip(said).filter(|(known, _)| unsaid(known)) {
        *known = *said;
    }
    true
}

fn source(sources: &[String], hold: &Hold) -> String {
    [&sources[hold.spot.source], ": ", &hold.place()].concat()
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
        let name = || (machine.namespace.clone(), machine.name.clone());
        self.present.contains(machine) || self.orphans.contains(&name())
    }
}

// === impl ObjectFinding ===

impl fmt::Display for ObjectFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.finding)?;
        self.claimant.as_ref().map_or(Ok(()), |claimant| write!(f, ", in the record of {claimant}"))
    }
}

//! Collects the machines that the status of their pools counts: machines in a [`State`], machines that the webhook
//! rejects, and the number of machines that each pool selects.

use std::collections::{BTreeMap, BTreeSet};

use glowplug::host::allocator::Allocator;
use glowplug::host::claim::{Claim, HolderKind, Request};
use glowplug::network::Family;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use crate::cluster::key::Key;
use crate::kinds::pool::MOST_WAITING;

/// A state of a machine that the status of its pools counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// The guest runs with earlier network data.
    Outdated,
    /// The guest was already running when its pools first selected the machine, and the machine keeps its own network.
    /// Or an interface keeps its network, because a pool selected the interface after the Secret was written.
    LeftAlone,
    /// The guest runs in another cluster, and the ledger will not hold its addresses after the machine is deleted.
    NotHeld,
}

/// Numbers of machines of a pool.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Number of machines in [`State::Outdated`].
    pub outdated: u32,
    /// Number of machines in [`State::LeftAlone`].
    pub left_alone: u32,
    /// Number of machines in [`State::NotHeld`].
    pub not_held: u32,
    /// Number of machines that the pool selects, in any state.
    pub selected: u32,
}

/// The state of a machine, and the names of its pools.
type Noted = (State, BTreeSet<String>);

/// A KubevirtMachine whose VirtualMachine the webhook rejects, because pools have no free address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// Time of the creation of the KubevirtMachine.
    pub created: Timestamp,
    /// Names of the pools that have no free address.
    pub pools: BTreeSet<String>,
}

/// The KubevirtMachines whose VirtualMachines the webhook rejects because of one pool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Refusals {
    /// Number of these KubevirtMachines.
    pub count: usize,
    /// The oldest of these machines, with the times of their creation: for each namespace, at most as many as the
    /// status of a pool lists. They include the first machines of the whole pool, because the machines of a namespace
    /// are served in the order of their creation.
    pub first: Vec<(Timestamp, Key)>,
}

/// The known machines in a [`State`], the machines that the webhook rejects, and the number of machines that each pool
/// selects. The passes of machines note them here. The status of each pool counts them.
#[derive(Debug, Default)]
pub struct MachineStates(watch::Sender<Known>);

/// The content of [`MachineStates`].
#[derive(Debug, Default)]
pub struct Known {
    noted: BTreeMap<Key, Vec<Noted>>,
    refused: BTreeMap<Key, Refused>,
    selected: BTreeMap<String, u32>,
}

// === impl MachineStates ===

impl MachineStates {
    /// Notes the states of a machine, each with its pools. Empty: the machine is in none of the states.
    pub fn note(&self, vm: &Key, noted: Vec<Noted>) {
        self.0.send_if_modified(|Known { noted: machines, .. }| match noted.is_empty() {
            true => machines.remove(vm).is_some(),
            false => machines.insert(vm.clone(), noted.clone()) != Some(noted),
        });
    }

    /// Notes whether the webhook rejects the VirtualMachine of a KubevirtMachine because of pools. `None`: the webhook
    /// does not reject the VirtualMachine for this reason.
    pub fn note_refused(&self, machine: &Key, refused: Option<Refused>) {
        self.0.send_if_modified(|Known { refused: machines, .. }| match refused {
            None => machines.remove(machine).is_some(),
            Some(refused) => machines.insert(machine.clone(), refused.clone()) != Some(refused),
        });
    }

    /// Returns the KubevirtMachines whose VirtualMachines the webhook rejects, grouped by the name of the pool that is
    /// the reason.
    #[must_use]
    pub fn refusals(&self) -> BTreeMap<String, Refusals> {
        let mut all: BTreeMap<&str, Vec<(Timestamp, &Key)>> = BTreeMap::new();
        let known = self.0.borrow();
        for (machine, Refused { created, pools }) in &known.refused {
            for pool in pools {
                all.entry(pool).or_default().push((*created, machine));
            }
        }
        let refusals = |mut machines: Vec<(Timestamp, &Key)>| {
            machines.sort();
            let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
            let mut first = Vec::new();
            for &(created, machine) in &machines {
                let number = numbers.entry(&machine.namespace).or_default();
                *number += 1;
                first.extend((*number <= MOST_WAITING).then(|| (created, machine.clone())));
            }
            Refusals { count: machines.len(), first }
        };
        all.into_iter().map(|(pool, machines)| (pool.to_owned(), refusals(machines))).collect()
    }

    /// Forgets all machines, because they are listed again.
    pub fn forget(&self) {
        self.0.send_replace(Known::default());
    }

    /// Sets the number of machines that each pool selects, by the name of the pool.
    pub fn set_selected(&self, numbers: BTreeMap<String, u32>) {
        self.0.send_if_modified(|known| {
            let before = std::mem::replace(&mut known.selected, numbers);
            before != known.selected
        });
    }

    /// Returns the numbers of machines of each pool, by the name of the pool.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, Counts> {
        let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
        let known = self.0.borrow();
        for (pool, number) in &known.selected {
            counts.entry(pool.clone()).or_default().selected = *number;
        }
        for (state, pools) in known.noted.values().flatten() {
            for pool in pools {
                let counts = counts.entry(pool.clone()).or_default();
                match state {
                    State::Outdated => counts.outdated += 1,
                    State::LeftAlone => counts.left_alone += 1,
                    State::NotHeld => counts.not_held += 1,
                }
            }
        }
        counts
    }

    /// Returns a receiver that is notified of every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Known> {
        self.0.subscribe()
    }
}

// === impl Refusals ===

impl Refusals {
    /// Returns the first of these machines, in the order in which the pool would serve their claims after its wait
    /// queue. `family` is the family without a free address.
    #[must_use]
    pub fn in_order(&self, allocator: &Allocator, pool: &str, family: Option<Family>) -> Vec<(Timestamp, Key)> {
        let claim = |(created, machine): &(Timestamp, Key)| Claim {
            machine: machine.holder(HolderKind::KubevirtMachine, ""),
            created: *created,
            requests: vec![Request::of(pool)],
            sticky: false,
            secret: None,
        };
        let refused: Vec<Claim> = self.first.iter().map(claim).collect();
        let waiting = allocator.waiting().filter_map(|(claim, queue)| {
            let is_of_pool = claim.requests.iter().flat_map(Request::pools).any(|of| of == pool);
            let family = queue.iter().find(|(of, _)| **of == *pool).map(|(_, family)| *family);
            is_of_pool.then_some((claim, family))
        });
        let all = allocator.in_order(waiting.chain(refused.iter().map(|claim| (claim, family))));
        // The claims of the rejected machines come after the claims in the wait queue.
        let queued = all.len().saturating_sub(refused.len());
        all.into_iter()
            .skip(queued)
            .take(MOST_WAITING)
            .map(|(claim, _)| (claim.created, Key::of_machine(&claim.machine)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use glowplug::host::ledger::MemoryLedger;
    use glowplug::host::pool::{Namespaces, Pool};
    use glowplug::host::registry::Registry;

    use super::*;

    #[test]
    fn the_machines_in_each_state_are_counted_by_pool() {
        let machines = MachineStates::default();
        let noted = |state, names: &[&str]| vec![(state, names.iter().map(|it| (*it).to_owned()).collect())];
        machines.note(&("n", "a").into(), noted(State::Outdated, &["n/p", "n/q"]));
        machines.note(&("n", "b").into(), noted(State::Outdated, &["n/p"]));
        machines.note(&("n", "c").into(), noted(State::LeftAlone, &["n/p"]));
        machines.set_selected([("n/p".to_owned(), 5)].into());
        let counts = |outdated, left_alone, selected| Counts { outdated, left_alone, not_held: 0, selected };
        assert_eq!(
            machines.counts(),
            [("n/p".to_owned(), counts(2, 1, 5)), ("n/q".to_owned(), counts(1, 0, 0))].into()
        );
        let changes = machines.changes();
        machines.note(&("n", "b").into(), noted(State::Outdated, &["n/p"]));
        assert!(!changes.has_changed().unwrap());
        machines.note(&("n", "a").into(), vec![]);
        assert!(changes.has_changed().unwrap());
        machines.note(&("n", "b").into(), noted(State::LeftAlone, &["n/p"]));
        machines.note(&("n", "d").into(), noted(State::NotHeld, &["n/r"]));
        assert_eq!(machines.counts()["n/r"], Counts { not_held: 1, ..Counts::default() });
        machines.note(&("n", "d").into(), vec![]);
        assert_eq!(machines.counts(), [("n/p".to_owned(), counts(0, 2, 5))].into());
        let both = [noted(State::Outdated, &["n/p"]), noted(State::LeftAlone, &["n/q"])].concat();
        machines.note(&("n", "b").into(), both);
        assert_eq!(
            machines.counts(),
            [("n/p".to_owned(), counts(1, 1, 5)), ("n/q".to_owned(), counts(0, 1, 0))].into()
        );
    }

    #[test]
    fn the_refused_machines_of_a_pool_include_the_oldest_of_each_namespace() {
        let machines = MachineStates::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let refused = |second, pools: &[&str]| {
            Some(Refused { created: at(second), pools: pools.iter().map(|it| (*it).to_owned()).collect() })
        };
        for number in 0..12 {
            machines.note_refused(&("n", &*format!("m-{number}")).into(), refused(20 - number, &["n/p"]));
        }
        machines.note_refused(&("n", "both").into(), refused(30, &["n/p", "n/q"]));
        machines.note_refused(&("other", "young").into(), refused(40, &["n/p"]));
        let first = |count: i64| -> Vec<_> {
            (0..count).map(|it| (at(9 + it), Key::from(("n", &*format!("m-{}", 11 - it))))).collect()
        };
        let of_p = || [first(10), vec![(at(40), Key::from(("other", "young")))]].concat();
        let both = (at(30), Key::from(("n", "both")));
        let expected = |count, first| Refusals { count, first };
        assert_eq!(
            machines.refusals(),
            [("n/p".to_owned(), expected(14, of_p())), ("n/q".to_owned(), expected(1, vec![both]))].into()
        );
        let changes = machines.changes();
        machines.note_refused(&("n", "both").into(), refused(30, &["n/p", "n/q"]));
        assert!(!changes.has_changed().unwrap());
        machines.note_refused(&("n", "both").into(), None);
        assert!(changes.has_changed().unwrap());
        assert_eq!(machines.refusals(), [("n/p".to_owned(), expected(13, of_p()))].into());
    }

    #[test]
    fn refused_machines_of_a_shared_pool_are_in_the_order_of_its_wait_queue() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let pool = br#"{"name": "p", "network": "n/vlan10", "addresses": ["10.0.0.10-10.0.0.12"], "machineNetwork": [{"cidr": "10.0.0.0/24"}]}"#;
        let of = || Namespaces::only(["a", "b", "c"]);
        let pool = Pool::parse(pool).unwrap().remove(0).with_namespaces(of(), of());
        let name = pool.name().to_owned();
        let mut registry = Registry::open(MemoryLedger::default()).unwrap();
        registry.resize(vec![pool], &[], at(1)).unwrap();
        registry.open_addresses(at(1)).unwrap();
        let claim = |namespace: &str, machine: &str, second| Claim {
            machine: Key::from((namespace, machine)).holder(HolderKind::KubevirtMachine, "u"),
            created: at(second),
            requests: vec![Request::of(&name)],
            sticky: false,
            secret: None,
        };
        for (namespace, machine) in [("a", "0"), ("a", "1"), ("b", "0")] {
            registry.claim(&claim(namespace, machine, 1), at(1)).unwrap();
        }
        // A machine of `c` is in the wait queue. When it is served, `c` has as many addresses as `b`.
        registry.claim(&claim("c", "0", 5), at(5)).unwrap_err();
        let refused = [(1, "a", "2"), (2, "b", "1"), (3, "b", "2"), (4, "c", "1"), (6, "c", "2")];
        let first = refused.map(|(second, namespace, machine)| (at(second), Key::from((namespace, machine)))).to_vec();
        let refusals = Refusals { count: first.len(), first };
        let order = refusals.in_order(registry.state().unwrap(), &name, Some(Family::Ipv4));
        let names: Vec<String> = order.into_iter().map(|(_, key)| key.to_string()).collect();
        assert_eq!(names, ["b/1", "c/1", "a/2", "b/2", "c/2"]);
    }
}

//! The machines whose guests do not have what their pools would give them now, and those that are not created yet.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use crate::cluster::key::Key;
use crate::kinds::pool::MOST_WAITING;

/// How the guest of a machine differs from what its pools would give it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// The guest runs with earlier network data.
    Outdated,
    /// The guest was already running when its pools first selected the machine, and the machine keeps its own network.
    LeftAlone,
    /// The guest runs in another cluster, and its addresses are not held after the deletion of the machine.
    NotHeld,
}

/// Number of machines of a pool in each state.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Machines in [`State::Outdated`].
    pub outdated: u32,
    /// Machines in [`State::LeftAlone`].
    pub left_alone: u32,
    /// Machines in [`State::NotHeld`].
    pub not_held: u32,
    /// Machines that the pool selects, in any state.
    pub selected: u32,
}

/// A machine in one of these states, with the names of its pools.
type Noted = (State, BTreeSet<String>);

/// A KubevirtMachine whose VirtualMachine the webhook rejects, because pools have no free address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// Time of the creation of the KubevirtMachine.
    pub created: Timestamp,
    /// Names of the pools without a free address.
    pub pools: BTreeSet<String>,
}

/// The KubevirtMachines whose VirtualMachines the webhook rejects because of a pool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Refusals {
    /// Number of all of them.
    pub count: usize,
    /// The oldest of them, as many as the status of a pool has, each with the time of its creation.
    pub first: Vec<(Timestamp, Key)>,
}

/// The machines in one of these states, those that are not created yet, and the number of machines that each pool selects. The passes
/// of machines note them, and the status of each pool counts them.
#[derive(Debug, Default)]
pub struct MachineStates(watch::Sender<Known>);

/// What is known about machines.
#[derive(Debug, Default)]
pub struct Known {
    noted: BTreeMap<Key, Noted>,
    refused: BTreeMap<Key, Refused>,
    selected: BTreeMap<String, u32>,
}

// === impl MachineStates ===

impl MachineStates {
    /// Notes the state of a machine. `None`: the machine is in none of these states.
    pub fn note(&self, vm: &Key, noted: Option<Noted>) {
        self.0.send_if_modified(|Known { noted: machines, .. }| match noted {
            None => machines.remove(vm).is_some(),
            Some(noted) => machines.insert(vm.clone(), noted.clone()) != Some(noted),
        });
    }

    /// Notes whether the webhook rejects the VirtualMachine of a KubevirtMachine. `None`: no pool is the reason.
    pub fn note_refused(&self, machine: &Key, refused: Option<Refused>) {
        self.0.send_if_modified(|Known { refused: machines, .. }| match refused {
            None => machines.remove(machine).is_some(),
            Some(refused) => machines.insert(machine.clone(), refused.clone()) != Some(refused),
        });
    }

    /// Returns the KubevirtMachines whose VirtualMachines the webhook rejects, by the name of the pool that is the reason.
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
            let first = machines.iter().take(MOST_WAITING).map(|(created, machine)| (*created, (*machine).clone()));
            Refusals { count: machines.len(), first: first.collect() }
        };
        all.into_iter().map(|(pool, machines)| (pool.to_owned(), refusals(machines))).collect()
    }

    /// Forgets all machines: they are listed again.
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

    /// Returns the number of machines of each pool.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, Counts> {
        let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
        let known = self.0.borrow();
        for (pool, number) in &known.selected {
            counts.entry(pool.clone()).or_default().selected = *number;
        }
        for (state, pools) in known.noted.values() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_counts_its_machines() {
        let machines = MachineStates::default();
        let noted = |state, names: &[&str]| Some((state, names.iter().map(|it| (*it).to_owned()).collect()));
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
        machines.note(&("n", "a").into(), None);
        assert!(changes.has_changed().unwrap());
        machines.note(&("n", "b").into(), noted(State::LeftAlone, &["n/p"]));
        machines.note(&("n", "d").into(), noted(State::NotHeld, &["n/r"]));
        assert_eq!(machines.counts()["n/r"], Counts { not_held: 1, ..Counts::default() });
        machines.note(&("n", "d").into(), None);
        assert_eq!(machines.counts(), [("n/p".to_owned(), counts(0, 2, 5))].into());
    }

    #[test]
    fn each_pool_knows_its_refused_machines_the_oldest_first() {
        let machines = MachineStates::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let refused = |second, pools: &[&str]| {
            Some(Refused { created: at(second), pools: pools.iter().map(|it| (*it).to_owned()).collect() })
        };
        for number in 0..12 {
            machines.note_refused(&("n", &*format!("m-{number}")).into(), refused(20 - number, &["n/p"]));
        }
        machines.note_refused(&("n", "both").into(), refused(30, &["n/p", "n/q"]));
        let first =
            |count: i64| (0..count).map(|it| (at(9 + it), Key::from(("n", &*format!("m-{}", 11 - it))))).collect();
        let both = (at(30), Key::from(("n", "both")));
        let expected = |count, first| Refusals { count, first };
        assert_eq!(
            machines.refusals(),
            [("n/p".to_owned(), expected(13, first(10))), ("n/q".to_owned(), expected(1, vec![both]))].into()
        );
        let changes = machines.changes();
        machines.note_refused(&("n", "both").into(), refused(30, &["n/p", "n/q"]));
        assert!(!changes.has_changed().unwrap());
        machines.note_refused(&("n", "both").into(), None);
        assert!(changes.has_changed().unwrap());
        assert_eq!(machines.refusals(), [("n/p".to_owned(), expected(12, first(10)))].into());
    }
}

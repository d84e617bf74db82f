//! Tests of the registry, with ledgers that lose answers or refuse leases.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::host::change::{Change, Update};
use crate::host::claim::{HolderKind, Request};
use crate::host::ledger::{MemoryLedger, RefusedWrite, Transaction};
use crate::host::may_record::Source;
use crate::host::pool::tests::pool;
use crate::host::records::Objects;

pub(in crate::host) fn at(milliseconds: u64) -> Timestamp {
    Timestamp::from_millisecond(milliseconds.try_into().unwrap()).unwrap()
}

/// A registry in memory with these pools.
pub(in crate::host) fn registry(pools: impl IntoIterator<Item = Pool>) -> Registry<MemoryLedger> {
    let mut registry = Registry::open(MemoryLedger::default()).unwrap();
    registry.resize(pools, &[], at(0)).unwrap();
    registry.open_addresses(at(0)).unwrap();
    registry
}

#[test]
fn a_released_machine_gets_no_address_of_another_machine_in_the_same_release() {
    let one = pool("{name: one, network: 'n', addresses: [10.0.0.8/32], machineNetwork: [{cidr: 10.0.0.0/24}]}");
    let mut registry = registry([one]);
    let [holds, waits, waits_too] = [0, 1, 2].map(|created| Claim {
        machine: Machine::new("n", created.to_string(), "u"),
        created: at(created),
        requests: vec![Request::of("default/one")],
        sticky: false,
        secret: None,
    });
    let held = registry.claim(&holds, at(1)).unwrap();
    let refused = [&waits, &waits_too].map(|claim| registry.claim(claim, at(1)).unwrap_err().to_string());
    assert_eq!(refused, ["No available IPs in pool for interface eno101"; 2]);
    let released = registry.release_all([&holds.machine, &waits.machine], at(2)).unwrap();
    assert_eq!(released.held, held);
    assert_eq!(released.served[0].claimant.machine, waits_too.machine);
    assert_eq!(registry.state().unwrap().waiters(), [] as [&Claim; 0]);
}

#[test]
fn an_object_of_another_kind_with_the_same_uid_is_another_machine() {
    let mut registry = registry([one_address("one", "10.0.0.8/31")]);
    let own = registry.claim(&claim("a", 0), at(1)).unwrap();
    let mut fake = claim("a", 0);
    fake.machine = fake.machine.of_kind(HolderKind::IpamClaim);
    assert_eq!(registry.release(&fake.machine, at(2)).unwrap(), Released::default());
    let mut named = fake.clone();
    named.requests[0].addresses = vec!["10.0.0.8".parse().unwrap()];
    let refused = registry.claim(&named, at(2)).unwrap_err().to_string();
    assert_eq!(refused, "10.0.0.8: taken by eno101 of n/a (u)");
    assert_eq!(registry.claim(&fake, at(3)).unwrap()[0].addresses[0].to_string(), "10.0.0.9/24");
    assert_eq!(registry.release(&claim("a", 0).machine, at(4)).unwrap().held, own);
}

fn one_address(name: &str, address: &str) -> Pool {
    pool(&format!("{{name: {name}, network: 'n', addresses: [{address}], machineNetwork: [{{cidr: 10.0.0.0/24}}]}}"))
}

fn claim(name: &str, created: u64) -> Claim {
    let machine = Machine::new("n", name, "u");
    Claim { machine, created: at(created), requests: vec![Request::of("default/one")], sticky: false, secret: None }
}

fn names(allocations: &[Allocation]) -> Vec<&str> {
    allocations.iter().map(|allocation| allocation.claimant.machine.name.as_str()).collect()
}

#[test]
fn waiting_machines_are_served_before_new_claims_and_are_in_the_result() {
    let mut delayed = one_address("one", "10.0.0.8/32");
    delayed.reuse_delay = Duration::from_millis(10);
    let mut registry = registry([delayed]);
    registry.claim(&claim("a", 0), at(1)).unwrap();
    registry.claim(&claim("b", 0), at(1)).unwrap_err();
    assert_eq!(registry.release(&claim("a", 0).machine, at(2)).unwrap().served, []);
    let claimed = registry.claim_all(&[claim("c", 0)], at(12)).unwrap();
    assert_eq!(names(&claimed.served), ["b"]);
    assert_eq!(claimed.answers[0].as_ref().unwrap_err().to_string(), "No available IPs in pool for interface eno101");
}

#[test]
fn a_restarted_registry_serves_no_machine_before_the_records_and_reports_are_adopted() {
    const GUEST: &str = r#"{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"namespace": "default", "name": "a", "uid": "i"},
        "spec": {"networks": [{"name": "lan", "multus": {"networkName": "infra/vlan10"}}]},
        "status": {"phase": "Running", "interfaces": [{"name": "lan", "ipAddresses": ["10.0.0.8"]}]}}"#;
    let text = "{name: one, network: infra/vlan10, addresses: [10.0.0.8/32], machineNetwork: [{cidr: 10.0.0.0/24}]}";
    let mut delayed = pool(text);
    delayed.reuse_delay = Duration::from_millis(10);
    let mut registry = registry([delayed]);
    registry.claim(&claim("a", 0), at(1)).unwrap();
    registry.claim(&claim("b", 0), at(1)).unwrap_err();
    assert_eq!(registry.release(&claim("a", 0).machine, at(2)).unwrap().served, []);
    let ledger = registry.into_ledger();
    // The reuse delay ends while no process runs.
    let served = |objects: &[&str]| {
        let mut registry = Registry::open(ledger.clone().reopened()).unwrap();
        assert_eq!(registry.serve(at(20)).unwrap(), []);
        match registry.claim(&claim("c", 0), at(20)) {
            Err(RegistryError::Refused(error)) => assert_eq!(error, ClaimError::Closed("default/one".to_owned())),
            other => panic!("{other:?}"),
        }
        let mut read = Objects::default();
        for object in objects {
            read.read("object", object.as_bytes()).unwrap();
        }
        let served = registry.rebuild(&read.inventory(), at(20)).unwrap().served;
        served.iter().map(|it| format!("{} {}", it.claimant.machine.name, it.addresses[0])).collect::<Vec<_>>()
    };
    assert_eq!(served(&[]), ["b 10.0.0.8/24"]);
    assert_eq!(served(&[GUEST]), [""; 0]);
}

#[test]
fn a_suspended_pool_allocates_nothing_and_keeps_its_holders_and_its_queue() {
    let mut registry = registry([one_address("one", "10.0.0.8/31")]);
    let held = registry.claim(&claim("a", 0), at(1)).unwrap();
    registry.claim(&claim("b", 0), at(1)).unwrap();
    for (name, created) in [("late", 2), ("early", 1)] {
        registry.claim(&claim(name, created), at(1)).unwrap_err();
    }
    registry.suspend(["default/one".to_owned()].into());
    assert_eq!(registry.release(&claim("b", 0).machine, at(2)).unwrap().served, []);
    assert_eq!(registry.claim(&claim("a", 0), at(3)).unwrap(), held);
    for name in ["late", "new"] {
        match registry.claim(&claim(name, 0), at(3)) {
            Err(RegistryError::Refused(error)) => assert_eq!(error, ClaimError::Suspended("default/one".into())),
            other => panic!("{other:?}"),
        }
    }
    registry.suspend(BTreeSet::new());
    assert_eq!(names(&registry.open_addresses(at(4)).unwrap()), ["early"]);
}

/// A ledger that can lose the answer to one commit: it stores the changes, but returns an error. Its next update
/// reports the leases of this commit.
#[derive(Debug, Default)]
struct LosesAnswer {
    stored: MemoryLedger,
    loses: Rc<Cell<bool>>,
    recorded: Vec<Change>,
}

impl Ledger for LosesAnswer {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        if self.recorded.is_empty() {
            return Ledger::catch_up(&mut self.stored);
        }
        Ok(Update::Delta(std::mem::take(&mut self.recorded)))
    }

    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        Ok(Box::new(self))
    }
}

impl Transaction for &mut LosesAnswer {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        Ledger::catch_up(*self)
    }

    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError> {
        Box::new(&mut self.stored).commit(changes)?;
        if self.loses.take() {
            let leases = changes.iter().filter(|change| matches!(change, Change::Lease { .. }));
            self.recorded = leases.cloned().collect();
            return Err(LedgerError::Damaged("the answer is lost".into()));
        }
        Ok(())
    }
}

#[test]
fn a_later_release_reports_a_waiting_machine_whose_lease_the_ledger_stored_without_an_answer() {
    let loses = Rc::default();
    let ledger = LosesAnswer { loses: Rc::clone(&loses), ..LosesAnswer::default() };
    let mut registry = Registry::open(ledger).unwrap();
    registry.resize([one_address("one", "10.0.0.8/32")], &[], at(0)).unwrap();
    registry.open_addresses(at(0)).unwrap();
    registry.claim(&claim("a", 0), at(1)).unwrap();
    registry.claim(&claim("b", 0), at(1)).unwrap_err();
    loses.set(true);
    registry.release(&claim("a", 0).machine, at(2)).unwrap_err();
    let served = registry.release(&claim("a", 0).machine, at(3)).unwrap().served;
    assert_eq!(names(&served), ["b"]);
    assert_eq!(served[0].addresses[0].to_string(), "10.0.0.8/24");
    assert_eq!(registry.state().unwrap().waiters(), [] as [&Claim; 0]);
}

/// Decides whether a ledger refuses a lease of an address.
type Rule = Rc<Cell<fn(IpAddr, &Lease) -> bool>>;

/// A ledger that refuses leases by a rule. If it refuses one lease of a commit, it stores nothing of this commit.
#[derive(Debug)]
struct Refuses {
    stored: MemoryLedger,
    known: BTreeSet<IpAddr>,
    rule: Rule,
}

impl Refuses {
    fn registry(pool: Pool) -> (Registry<Self>, Rule) {
        let rule: Rule = Rc::new(Cell::new(|_, _| false));
        let ledger = Self { stored: MemoryLedger::default(), known: BTreeSet::new(), rule: Rc::clone(&rule) };
        let mut registry = Registry::open(ledger).unwrap();
        registry.resize([pool], &[], at(0)).unwrap();
        registry.open_addresses(at(0)).unwrap();
        (registry, rule)
    }
}

impl Ledger for Refuses {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        Ledger::catch_up(&mut self.stored)
    }

    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        Ok(Box::new(self))
    }
}

impl Transaction for &mut Refuses {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        Ledger::catch_up(*self)
    }

    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError> {
        let mut refused = Vec::new();
        for change in changes {
            if let Change::Lease { network, address, lease: Some(lease) } = change
                && self.rule.get()(*address, lease)
            {
                let (network, is_new) = (Arc::clone(network), !self.known.contains(address));
                refused.push(RefusedWrite { network, address: *address, is_new, reason: "denied".to_owned() });
            }
        }
        if !refused.is_empty() {
            return Err(LedgerError::Refused(refused));
        }
        for change in changes {
            if let Change::Lease { address, .. } = change {
                self.known.insert(*address);
            }
        }
        Box::new(&mut self.stored).commit(changes)
    }
}

fn texts(claimed: &Claimed) -> Vec<String> {
    let text = |answer: &Result<Vec<Allocation>, ClaimError>| match answer {
        Ok(allocations) => allocations[0].addresses[0].to_string(),
        Err(error) => error.to_string(),
    };
    claimed.answers.iter().map(text).collect()
}

#[test]
fn a_machine_whose_lease_is_refused_is_tried_again_and_delays_no_other_machine() {
    let (mut registry, rule) = Refuses::registry(one_address("one", "10.0.0.8/30"));
    rule.set(|_, lease| lease.claimant.machine.name == "a");
    let group = ["a", "b", "c"].map(|name| claim(name, 0));
    let denied = "the lease cannot be recorded: denied";
    let answers = registry.claim_all(&group, at(1)).unwrap();
    assert_eq!(texts(&answers), [denied, "10.0.0.8/24", "10.0.0.9/24"]);
    rule.set(|_, _| false);
    // The ledger is not asked during the pause.
    assert_eq!(texts(&registry.claim_all(&group[..1], at(2000)).unwrap()), [denied]);
    assert_eq!(texts(&registry.claim_all(&group[..1], at(2001)).unwrap()), ["10.0.0.10/24"]);
}

#[test]
fn the_pause_of_a_refused_machine_grows_to_five_minutes() {
    let (mut registry, rule) = Refuses::registry(one_address("one", "10.0.0.8/30"));
    rule.set(|_, lease| lease.claimant.machine.name == "a");
    let (mut now, mut pauses) = (0, Vec::new());
    for _ in 0..10 {
        registry.claim(&claim("a", 0), at(now)).unwrap_err();
        let machine = claim("a", 0).machine;
        let until = registry.allocator.denied_until(&machine).unwrap().as_second();
        pauses.push(until - i64::try_from(now).unwrap() / 1000);
        now = u64::try_from(until).unwrap() * 1000;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
}

#[test]
fn a_clock_that_was_ahead_at_a_refusal_causes_no_delay_after_it_is_corrected() {
    let (mut registry, rule) = Refuses::registry(one_address("one", "10.0.0.8/30"));
    let ahead = 2 * 86_400_000;
    let [held, denied] = ["held", "denied"].map(|name| claim(name, 0));
    registry.claim(&held, at(1)).unwrap();
    rule.set(|_, lease| lease.released.is_some() || lease.claimant.machine.name == "denied");
    registry.release(&held.machine, at(ahead)).unwrap();
    registry.claim(&denied, at(ahead)).unwrap_err();
    rule.set(|_, _| false);
    assert_eq!(registry.release(&held.machine, at(1000)).unwrap().held.len(), 1);
    assert_eq!(texts(&registry.claim_all(&[denied], at(1000)).unwrap()), ["10.0.0.8/24"]);
}

#[test]
fn an_address_whose_lease_cannot_change_is_set_aside_for_five_minutes() {
    let (mut registry, rule) = Refuses::registry(one_address("one", "10.0.0.8/30"));
    registry.claim(&claim("a", 0), at(1)).unwrap();
    registry.release(&claim("a", 0).machine, at(2)).unwrap();
    rule.set(|address, _| address.to_string() == "10.0.0.8");
    assert_eq!(texts(&registry.claim_all(&[claim("b", 0)], at(3)).unwrap()), ["10.0.0.9/24"]);
    rule.set(|_, _| false);
    assert_eq!(texts(&registry.claim_all(&[claim("c", 0)], at(300_002)).unwrap()), ["10.0.0.10/24"]);
    assert_eq!(texts(&registry.claim_all(&[claim("d", 0)], at(300_003)).unwrap()), ["10.0.0.8/24"]);
}

#[test]
fn the_refusal_of_a_machine_sets_no_address_aside() {
    let (mut registry, rule) = Refuses::registry(one_address("one", "10.0.0.8/29"));
    for name in ["a", "b", "c"] {
        registry.claim(&claim(name, 0), at(1)).unwrap();
    }
    for name in ["a", "b", "c"] {
        registry.release(&claim(name, 0).machine, at(2)).unwrap();
    }
    rule.set(|_, lease| lease.claimant.machine.name == "denied" && lease.released.is_none());
    let group = ["denied", "e", "f"].map(|name| claim(name, 0));
    let answers = registry.claim_all(&group, at(3)).unwrap();
    assert_eq!(texts(&answers), ["the lease cannot be recorded: denied", "10.0.0.8/24", "10.0.0.9/24"]);
}

#[test]
fn a_record_whose_lease_the_ledger_refuses_is_reported_until_a_later_adoption_adds_the_lease() {
    let (mut registry, rule) = Refuses::registry(one_address("one", "10.0.0.8/31"));
    let claimant = |name: &str| Claimant { machine: claim(name, 0).machine, interface: "eno101".parse().unwrap() };
    let adopt = |registry: &mut Registry<Refuses>, name: &str, now| {
        let record = Record {
            claimant: claimant(name),
            node_pool: None,
            attachments: Vec::new(),
            network: Some("default/n".to_owned()),
            addresses: vec!["10.0.0.8/24".parse().unwrap()],
            source: "Secret n/s".to_owned(),
            kind: Source::Secret,
        };
        let Adoption { adopted, known, reserved, mismatches } = registry.adopt([record], at(now)).unwrap();
        assert_eq!((known, reserved), (0, Vec::new()));
        (adopted, mismatches.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    rule.set(|_, lease| lease.claimant.machine.name == "a");
    let refused = |name: &str, why: &str| {
        let text =
            format!("Secret n/s: 10.0.0.8 of {} is reserved: the lease cannot be recorded: {why}", claimant(name));
        (0, vec![text])
    };
    assert_eq!(adopt(&mut registry, "a", 1), refused("a", "denied"));
    assert_eq!(texts(&registry.claim_all(&[claim("b", 0)], at(1)).unwrap()), ["10.0.0.9/24"]);
    rule.set(|_, _| false);
    // The ledger is not asked during the pause.
    assert_eq!(adopt(&mut registry, "a", 2000), refused("a", "denied"));
    assert_eq!(adopt(&mut registry, "a", 2001), (1, Vec::new()));
    // The ledger has a released lease, and refuses to change this lease.
    registry.release(&claim("a", 0).machine, at(2002)).unwrap();
    rule.set(|_, _| true);
    let why = "the ledger refused to change the lease of 10.0.0.8: denied";
    assert_eq!(adopt(&mut registry, "c", 2003), refused("c", why));
    rule.set(|_, _| false);
    assert_eq!(adopt(&mut registry, "c", 2003 + 300_000), (1, Vec::new()));
}

#[test]
fn an_address_is_not_held_for_a_migrated_guest_while_the_ledger_refuses_to_change_its_lease() {
    let (mut registry, rule) = Refuses::registry(one_address("one", "10.0.0.8/30"));
    let a = claim("a", 0);
    registry.claim_all(std::slice::from_ref(&a), at(1)).unwrap();
    rule.set(|_, lease| lease.migrated.is_some());
    let address: IpAddr = "10.0.0.8".parse().unwrap();
    assert_eq!(registry.note_migrated(&a.machine, at(2)).unwrap(), [address].into());
    rule.set(|_, _| false);
    let later = at(2 + 300_000);
    assert_eq!(registry.note_migrated(&a.machine, later).unwrap(), [].into());
}

#[test]
fn the_holder_keeps_an_address_whose_release_the_ledger_refuses() {
    let (mut registry, rule) = Refuses::registry(one_address("one", "10.0.0.8/31"));
    let machines = ["a", "b"].map(|name| claim(name, 0).machine);
    registry.claim_all(&["a", "b"].map(|name| claim(name, 0)), at(1)).unwrap();
    rule.set(|address, _| address.to_string() == "10.0.0.8");
    let released = registry.release_all(&machines, at(2)).unwrap();
    assert_eq!(names(&released.held), ["b"]);
    let held: Vec<Machine> =
        registry.state().unwrap().leases().map(|(_, _, lease)| lease.claimant.machine.clone()).collect();
    assert_eq!(held, machines[..1]);
    rule.set(|_, _| false);
    assert_eq!(registry.release(&machines[0], at(2001)).unwrap().held.len(), 0);
    assert_eq!(registry.release(&machines[0], at(2002)).unwrap().held.len(), 1);
}

#[test]
fn a_refused_change_of_a_held_lease_is_tried_again_after_growing_pauses() {
    let (mut registry, rule) = Refuses::registry(one_address("one", "10.0.0.8/31"));
    registry.claim(&claim("a", 0), at(0)).unwrap();
    rule.set(|_, _| true);
    let with_secret = Claim { secret: Some("s".to_owned()), ..claim("a", 0) };
    let (mut now, mut pauses) = (0, Vec::new());
    for _ in 0..10 {
        let error = registry.claim(&with_secret, at(now)).unwrap_err().to_string();
        let denied = "the lease cannot be recorded: the ledger refused to change the lease of 10.0.0.8: denied";
        assert_eq!(error, denied);
        let until = registry.allocator.unchanged_until("default/n", "10.0.0.8".parse().unwrap()).unwrap().as_second();
        pauses.push(until - i64::try_from(now).unwrap() / 1000);
        now = u64::try_from(until).unwrap() * 1000;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    rule.set(|_, _| false);
    registry.claim(&with_secret, at(now)).unwrap();
    rule.set(|_, _| true);
    registry.release(&with_secret.machine, at(now)).unwrap();
    let until = registry.allocator.unchanged_until("default/n", "10.0.0.8".parse().unwrap()).unwrap();
    assert_eq!(until, at(now + 2000), "the ledger has accepted a change");
}

//! Forgets released leases, so that a ledger does not grow with every machine that ever existed.
//!
//! A released lease is needed for two things: it delays the reuse of its address, and it remembers the address for the
//! next machine of the same name. An address is safe without a released lease, because each allocation writes a new
//! lease first.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::state::Allocator;
use crate::host::change::{Change, Journal};
use crate::host::claim::{HolderKind, Lease, successors};
use crate::network::{Family, InterfaceName};

/// Number of remembered addresses that are never forgotten.
const REMEMBERED: usize = 1_000;
/// The same limit as a number for each held address. The larger of the two limits applies.
const REMEMBERED_PER_HELD: usize = 4;
/// Maximum number of leases that one call forgets. The controller sends the writes of one call together, one for each
/// lease.
const AT_ONCE: usize = 32;

/// Key of a remembered address: the network, the namespace and the name of its machine or claim, the kind of the claim,
/// the interface, and the family.
type Name<'a> = (&'a str, &'a str, &'a str, Option<HolderKind>, InterfaceName, Family);

impl Allocator {
    /// Removes released leases whose reuse delay is over, at most 32, and returns their number.
    ///
    /// The newest released lease of each machine name stays. In a sticky pool, the newest released lease of each claim
    /// name stays, too. If there are more than 1,000 such leases, and more than four for each held address, the oldest
    /// of them are removed.
    ///
    /// `is_sticky` returns whether the pool with this name is sticky. `None`: another program manages the pool, and the
    /// leases of the pool stay.
    pub(crate) fn forget(
        &mut self,
        is_sticky: impl Fn(&str) -> Option<bool>,
        now: Timestamp,
        journal: &mut Journal,
    ) -> usize {
        self.advance(now);
        let gone = self.forgettable(is_sticky);
        let count = gone.len();
        for (network, address) in gone {
            self.decide(Change::Lease { network, address, lease: None }, journal);
        }
        count
    }

    fn forgettable<'a>(&'a self, is_sticky: impl Fn(&str) -> Option<bool>) -> Vec<(Arc<str>, IpAddr)> {
        let mut held = 0;
        let mut released: Vec<(Timestamp, (&'a Arc<str>, IpAddr))> = Vec::new();
        for (network, state) in &self.networks {
            for (address, lease) in state.leases() {
                match lease.released {
                    None => held += 1,
                    Some(_) if is_sticky(&lease.pool).is_none() => {}
                    Some(time) => released.push((time, (network, address))),
                }
            }
        }
        let state = |network: &str| self.networks.get(network);
        let name = |(network, address): &(&'a Arc<str>, IpAddr)| -> Option<Name<'a>> {
            let Lease { claimant, pool, .. } = state(network)?.lease(*address)?;
            let machine = &claimant.machine;
            let is_remembered = !machine.kind.is_claim() || is_sticky(pool) == Some(true);
            let (interface, kind) = (claimant.interface, successors(machine.kind));
            let name = (&***network, &*machine.namespace, &*machine.name, kind, interface, Family::of(*address));
            is_remembered.then_some(name)
        };
        let is_free = |(network, address): &(&Arc<str>, IpAddr)| {
            state(network).is_some_and(|it| it.delayed_until(*address).is_none() && !it.is_refused(*address))
        };
        let forgotten = forgettable(released, held, name, is_free);
        forgotten.into_iter().map(|(network, address)| (Arc::clone(network), address)).collect()
    }
}

/// Returns the addresses of the released leases that are not needed any more, at most 32.
///
/// The newest released lease of each name stays. If there are more than 1,000 such leases, and more than four for each
/// of the `held` addresses, the oldest of them are not needed.
///
/// - `released`: the time of the release and the address of each released lease
/// - `name`: the name for which an address is remembered. `None`: the address is remembered for no name
/// - `is_free`: whether the reuse delay of an address is over, and its lease can be removed
#[doc(hidden)]
pub fn forgettable<A: Ord, N: Ord>(
    mut released: Vec<(Timestamp, A)>,
    held: usize,
    name: impl Fn(&A) -> Option<N>,
    is_free: impl Fn(&A) -> bool,
) -> Vec<A> {
    // The newest lease comes first.
    released.sort_by(|(time, address), (other, of_other)| other.cmp(time).then_with(|| address.cmp(of_other)));
    let mut names: BTreeSet<N> = BTreeSet::new();
    let (mut forgotten, mut remembered) = (Vec::new(), Vec::new());
    for (_, address) in released {
        let is_newest = name(&address).is_some_and(|name| names.insert(name));
        if is_free(&address) {
            let leases = if is_newest { &mut remembered } else { &mut forgotten };
            leases.push(address);
        }
    }
    let most = REMEMBERED.max(held * REMEMBERED_PER_HELD);
    forgotten.extend(remembered.into_iter().skip(most));
    forgotten.truncate(AT_ONCE);
    forgotten
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::host::claim::{Claimant, Machine};

    const NETWORK: &str = "n/vlan10";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + number).into()
    }

    /// A lease of pool `n/p`, released at this second. `None`: the lease is held.
    fn lease(kind: HolderKind, name: &str, released: Option<i64>) -> Lease {
        let machine = Machine::new("n", name, format!("{name} {released:?}")).of_kind(kind);
        Lease {
            claimant: Arc::new(Claimant { machine, interface: "eno101".parse().unwrap() }),
            pool: "n/p".into(),
            prefix: 24,
            since: at(0),
            released: released.map(at),
            reuse_after: None,
            secrets: BTreeSet::new(),
            migrated: None,
        }
    }

    /// An allocator with these leases, of the addresses 10.0.0.0, 10.0.0.1 and so on.
    fn allocator(leases: impl IntoIterator<Item = Lease>) -> Allocator {
        let mut allocator = Allocator::default();
        for (number, lease) in (0..).zip(leases) {
            let change = Change::Lease { network: NETWORK.into(), address: address(number), lease: Some(lease) };
            allocator.decide(change, &mut Journal::default());
        }
        allocator
    }

    /// Forgets leases at this second, and returns the numbers of their addresses.
    fn forgotten(allocator: &mut Allocator, sticky: &[&str], second: i64) -> BTreeSet<u32> {
        let number = |address: IpAddr| match address {
            IpAddr::V4(address) => u32::from(address) - 0x0a00_0000,
            IpAddr::V6(address) => panic!("{address}"),
        };
        let all = |allocator: &Allocator| -> BTreeSet<u32> {
            allocator
                .networks
                .values()
                .flat_map(|network| network.leases())
                .map(|(address, _)| number(address))
                .collect()
        };
        let before = all(allocator);
        let is_sticky = |pool: &str| (pool == "n/p").then(|| sticky.contains(&pool));
        let count = allocator.forget(is_sticky, at(second), &mut Journal::default());
        let gone: BTreeSet<u32> = before.difference(&all(allocator)).copied().collect();
        assert_eq!(gone.len(), count);
        gone
    }

    #[test]
    fn only_the_newest_lease_of_a_name_is_remembered() {
        let machine = |name, released| lease(HolderKind::KubevirtMachine, name, released);
        let claim = |name, released| lease(HolderKind::IpAddressClaim, name, released);
        let leases = || {
            [machine("a", Some(1)), machine("a", Some(2)), machine("a", None), claim("c", Some(1)), claim("d", None)]
        };
        assert_eq!(forgotten(&mut allocator(leases()), &[], 9), [0, 3].into());
        assert_eq!(forgotten(&mut allocator(leases()), &["n/p"], 9), [0].into());
        assert_eq!(forgotten(&mut allocator(leases()), &["n/other"], 9), [0, 3].into());
        // A machine and a claim of the same name do not get each other's address.
        let both = [claim("a", Some(1)), machine("a", Some(2)), lease(HolderKind::IpamClaim, "a", Some(3))];
        assert_eq!(forgotten(&mut allocator(both), &["n/p"], 9), [].into());
    }

    #[test]
    fn the_leases_of_an_external_pool_are_never_forgotten() {
        let other = Lease { pool: "other/p".into(), ..lease(HolderKind::IpAddressClaim, "a", Some(1)) };
        assert_eq!(forgotten(&mut allocator([other]), &[], 9), [].into());
    }

    #[test]
    fn a_lease_is_remembered_until_its_reuse_delay_is_over() {
        let delayed = |migrated: Option<i64>| Lease {
            reuse_after: Some(at(20)),
            migrated: migrated.map(at),
            ..lease(HolderKind::IpAddressClaim, "a", Some(1))
        };
        for migrated in [None, Some(1)] {
            let mut allocator = allocator([delayed(migrated)]);
            assert_eq!(forgotten(&mut allocator, &[], 19), [].into());
            assert_eq!(forgotten(&mut allocator, &[], 20), [0].into());
        }
    }

    #[test]
    fn if_too_many_names_are_remembered_the_oldest_are_forgotten() {
        let machines = |held: u32, released: u32| {
            let held = (0..held).map(|n| lease(HolderKind::VirtualMachine, &format!("h-{n}"), None));
            held.chain(
                (0..released).map(|n| lease(HolderKind::VirtualMachine, &format!("r-{n}"), Some(i64::from(n) + 1))),
            )
        };
        assert_eq!(forgotten(&mut allocator(machines(10, 1_000)), &[], 9), [].into());
        assert_eq!(forgotten(&mut allocator(machines(10, 1_003)), &[], 9), [10, 11, 12].into());
        assert_eq!(forgotten(&mut allocator(machines(251, 1_005)), &[], 9), [251].into());
        let many = forgotten(&mut allocator(machines(0, 2_000)), &[], 9);
        assert_eq!(many.len(), AT_ONCE);
    }

    #[test]
    fn no_held_delayed_or_newest_lease_is_ever_forgotten() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for round in 0..200 {
            let mut model: BTreeMap<u32, Lease> = BTreeMap::new();
            let kinds = [HolderKind::KubevirtMachine, HolderKind::VirtualMachine, HolderKind::IpAddressClaim];
            for number in 0..40 {
                let (kind, name) = (kinds[usize::try_from(next(3)).unwrap()], format!("m-{}", next(6)));
                let released = (next(3) > 0).then(|| i64::try_from(next(50)).unwrap());
                let reuse_after =
                    released.filter(|_| next(2) == 0).map(|time| at(time + i64::try_from(next(60)).unwrap()));
                model.insert(number, Lease { reuse_after, ..lease(kind, &name, released) });
            }
            let mut allocator = allocator(model.values().cloned());
            let now = i64::try_from(next(100)).unwrap();
            let gone = forgotten(&mut allocator, &["n/p"], now);
            for number in &gone {
                let it = &model[number];
                assert!(it.released.is_some(), "round {round}: {it:?}");
                assert!(it.reuse_after.is_none_or(|until| until <= at(now)), "round {round}: {it:?}");
                let of = |lease: &Lease| {
                    (lease.claimant.machine.name.clone(), lease.claimant.machine.kind == HolderKind::IpAddressClaim)
                };
                let newer = model
                    .values()
                    .any(|other| of(other) == of(it) && other.released >= it.released && !std::ptr::eq(other, it));
                assert!(newer, "round {round}: the newest of its name is kept: {it:?}");
            }
            assert_eq!(forgotten(&mut allocator, &["n/p"], now), [].into(), "round {round}");
        }
    }
}

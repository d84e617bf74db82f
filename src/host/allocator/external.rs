//! Leases of external pools, whose addresses another program chooses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::attribution::Origin;
use super::network::Network;
use super::state::Allocator;
use super::types::ClaimError;
use crate::host::change::{Change, Journal};
use crate::host::claim::{Claimant, Lease};
use crate::host::may_record::{Source, Verdict};
use crate::network::Family;

// === impl Allocator ===

impl Allocator {
    /// Leases exactly these addresses to a claimant, for its interface on the network of an external pool: all of them
    /// or none. A repeated call changes nothing.
    ///
    /// If another machine holds one of the addresses or has a record of it, a conflict is added: no other machine gets
    /// the address before both machines are gone. `source` names the object from which the addresses come, for
    /// messages. The caller must commit the journal even when the addresses are refused.
    pub(crate) fn hold(
        &mut self,
        pool: &str,
        claimant: &Claimant,
        addresses: &[IpNetwork],
        source: &str,
        now: Timestamp,
        journal: &mut Journal,
    ) -> Result<(), ClaimError> {
        self.advance(now);
        let unknown = || ClaimError::UnknownPool(pool.to_owned());
        let (name, state) = self.pools.get_key_value(pool).ok_or_else(unknown)?;
        if self.suspended.contains(pool) {
            return Err(ClaimError::Suspended(pool.to_owned()));
        }
        if let Some(address) = addresses.first().filter(|_| !state.pool().is_external()) {
            return Err(ClaimError::NotInPool { named: address.ip(), pool: pool.to_owned() });
        }
        let (name, network) = (Arc::clone(name), Arc::from(state.pool().network.as_str()));
        let claimant = Arc::new(claimant.clone());
        for change in self.outdated(&network, &claimant, addresses, source) {
            self.decide(change, journal);
        }
        let mut changes = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            let (named, family) = (address.ip(), Family::of(address.ip()));
            if addresses[..at].iter().any(|other| Family::of(other.ip()) == family) {
                return Err(ClaimError::Twice { interface: claimant.interface, family });
            }
            let kind = Source::IpAddress;
            let verdict = self.may_record(kind, &claimant, &network, named);
            if let Verdict::Ignore(_) = verdict {
                return Err(ClaimError::NotInPool { named, pool: pool.to_owned() });
            }
            let checked = self.check_exact(&name, &network, &claimant, named);
            if let Verdict::Reserve(state) = verdict {
                // The other program has given the address to this machine, so the address is reserved for the machine.
                let (source, claimant) = (Arc::from(source), Arc::clone(&claimant));
                let origin = Origin { claimant, node_pool: None, attachments: Vec::new(), network: None, source, kind };
                self.add_conflict(&network, named, &origin, state, journal);
                checked?;
                return Err(ClaimError::Reserved { named, pool: pool.to_owned(), why: None });
            }
            checked?;
            let state = self.networks.get(&network);
            if state.and_then(|state| state.held_at(named)).is_none() {
                self.check_denied(&claimant.machine)?;
                if state.is_some_and(|state| state.is_refused(named)) {
                    return Err(self.refused(&network, named));
                }
                let lease = Lease {
                    claimant: Arc::clone(&claimant),
                    pool: Arc::clone(&name),
                    prefix: address.prefix(),
                    since: self.now,
                    released: None,
                    reuse_after: None,
                    secrets: BTreeSet::new(),
                    migrated: None,
                };
                if state.is_some_and(|state| state.has_conflict(named)) {
                    let (network, claimant) = (Arc::clone(&network), Arc::clone(&claimant));
                    changes.push(Change::Conflict { network, address: named, claimant, record: None });
                }
                changes.push(Change::Lease { network: Arc::clone(&network), address: named, lease: Some(lease) });
            }
        }
        for change in changes {
            self.decide(change, journal);
        }
        self.leave_settled(journal);
        Ok(())
    }

    /// Returns the changes that remove earlier records of a claimant from the same source. Records of `addresses` are
    /// kept. The claimant never got the addresses of the removed records.
    fn outdated(
        &self,
        network: &Arc<str>,
        claimant: &Arc<Claimant>,
        addresses: &[IpNetwork],
        source: &str,
    ) -> Vec<Change> {
        let conflicts = self.networks.get(network).into_iter().flat_map(|state| state.conflicts());
        let is_chosen = |address: &IpAddr| addresses.iter().any(|chosen| chosen.ip() == *address);
        let outdated = conflicts.filter(|(address, conflict)| {
            conflict.claimant == **claimant && conflict.source == source && !is_chosen(address)
        });
        let removal = |(address, _)| {
            let (network, claimant) = (Arc::clone(network), Arc::clone(claimant));
            Change::Conflict { network, address, claimant, record: None }
        };
        outdated.map(removal).collect()
    }

    /// Checks that a claimant can hold exactly this address of an external pool.
    fn check_exact(
        &self,
        pool: &Arc<str>,
        network: &Arc<str>,
        claimant: &Claimant,
        named: IpAddr,
    ) -> Result<(), ClaimError> {
        let of_machine = self.held_by(&claimant.machine).into_iter();
        let mut own = of_machine.filter(|(_, _, lease)| *lease.claimant == *claimant).map(|(of, held, _)| (of, held));
        let other = own.find(|(of, held)| Family::of(*held) == Family::of(named) && (*of, *held) != (network, named));
        if let Some((_, held)) = other {
            return Err(ClaimError::OtherAddress { interface: claimant.interface, held, named });
        }
        if let Some(why) = self.named_on(network, named, &claimant.machine) {
            return Err(ClaimError::Reserved { named, pool: pool.to_string(), why: Some(why) });
        }
        let Some(state) = self.networks.get(network) else { return Ok(()) };
        let holder = state.held_at(named).map(|lease| Claimant::clone(&lease.claimant));
        let contested = |state: &Network| {
            let reported = || state.reported_by_other(named, &claimant.machine).cloned();
            state.conflict_at(named, |by| by != claimant).or_else(reported)
        };
        if let Some(by) = holder.filter(|by| by != claimant).or_else(|| contested(state)) {
            return Err(ClaimError::Taken { named, by: Box::new(by) });
        }
        match state.delayed_for(named, &claimant.machine).and_then(|_| state.delayed_until(named)) {
            Some(until) => Err(ClaimError::ReuseDelay { named, until }),
            None => Ok(()),
        }
    }
}

//! Reservations of the addresses that running guests report.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::network::{Network, Reports};
use super::state::Allocator;
use crate::host::claim::{Allocation, Claimant, Reservation};
use crate::host::may_record::{Source, State, Verdict};

/// What a new set of reports changed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[doc(hidden)]
pub struct ReportChanges {
    /// Reports that no earlier set had, sorted by network, address and claimant.
    pub begun: Vec<Reported>,
    /// Reports of the earlier set that have ended.
    pub ended: Vec<Reported>,
    /// Allocations to waiting machines, from the addresses of the ended reports.
    pub served: Vec<Allocation>,
}

/// An address that a running guest reports.
#[derive(Clone, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Reported {
    /// Name of the network.
    pub network: String,
    /// The reported address.
    pub address: IpAddr,
    /// The claimant that reports the address.
    pub claimant: Claimant,
    /// Where the report was read.
    pub source: String,
    /// [`State::ByReport`], or [`State::Conflict`] if another claimant holds the address. `None`: the claimant itself holds
    /// the address, so that nothing is reserved.
    pub state: Option<State>,
    /// The claimant that holds the address. `None` if no claimant holds it.
    pub holder: Option<Claimant>,
}

// === impl Allocator ===

impl Allocator {
    /// Replaces the addresses that running guests report. The caller serves waiting machines. The addresses are not allocated to
    /// other machines until a later set lacks them. A report never becomes a lease, and takes no address from its holder.
    pub(crate) fn set_reports(&mut self, reports: Vec<Reservation>, now: Timestamp) -> ReportChanges {
        self.advance(now);
        let mut by_network: BTreeMap<Arc<str>, Reports> = BTreeMap::new();
        for Reservation { address, network, claimant, source, .. } in reports {
            let networks = network.map_or_else(|| self.networks_with(address), |network| vec![network.into()]);
            for network in networks {
                let of_network = by_network.entry(network).or_default();
                of_network.entry(address).or_default().insert(claimant.clone(), source.as_str().into());
            }
        }
        let networks: BTreeSet<Arc<str>> = self.networks.keys().chain(by_network.keys()).cloned().collect();
        let mut changes = ReportChanges::default();
        for network in networks {
            let after = by_network.remove(&network).unwrap_or_default();
            self.set_reports_of(&network, after, &mut changes);
        }
        changes
    }

    /// Adds and removes addresses that running guests report, as [`Allocator::set_reports`] does for the whole set. The cost does
    /// not depend on the number of other reports.
    pub(crate) fn change_reports(
        &mut self,
        begun: &[Reservation],
        ended: &[Reservation],
        now: Timestamp,
    ) -> ReportChanges {
        self.advance(now);
        let mut changes = ReportChanges::default();
        begun.iter().for_each(|reservation| changes.begun.extend(self.change_report(reservation, true)));
        ended.iter().for_each(|reservation| changes.ended.extend(self.change_report(reservation, false)));
        changes
    }

    /// Adds or removes a report. Returns the report on each network where it is new, or was there.
    fn change_report(&mut self, reservation: &Reservation, is_begun: bool) -> Vec<Reported> {
        let Reservation { address, network, claimant, source, .. } = reservation;
        let networks = match network {
            Some(network) => vec![Arc::from(network.as_str())],
            None => self.networks_with(*address),
        };
        let mut changed = Vec::new();
        for network in networks {
            let state = self.networks.entry(Arc::clone(&network)).or_default();
            let was_occupied = state.is_occupied(*address);
            let before = state.set_report(*address, claimant, is_begun.then(|| Arc::from(source.as_str())));
            let is_occupied = state.is_occupied(*address);
            if was_occupied != is_occupied {
                self.occupy(&network, *address, is_occupied);
            }
            if before.is_some() != is_begun {
                changed.push(self.reported(&network, *address, claimant, source));
            }
            self.enqueue_again(&claimant.machine);
            self.forget_unused(&network);
        }
        changed
    }

    fn set_reports_of(&mut self, network: &Arc<str>, after: Reports, changes: &mut ReportChanges) {
        let state = self.networks.entry(Arc::clone(network)).or_default();
        if *state.reports() == after {
            return;
        }
        let addresses: BTreeSet<IpAddr> = state.reports().keys().chain(after.keys()).copied().collect();
        let occupied = |allocator: &Self| -> BTreeSet<IpAddr> {
            let state = allocator.networks.get(network);
            let is_occupied = |address: &IpAddr| state.is_some_and(|state| state.is_occupied(*address));
            addresses.iter().copied().filter(is_occupied).collect()
        };
        let was_occupied = occupied(self);
        let before = self.networks.entry(Arc::clone(network)).or_default().set_reports(after.clone());
        let is_occupied = occupied(self);
        for address in was_occupied.symmetric_difference(&is_occupied) {
            self.occupy(network, *address, is_occupied.contains(address));
        }
        changes.begun.extend(self.only_in(network, &after, &before));
        changes.ended.extend(self.only_in(network, &before, &after));
        for claimant in before.values().chain(after.values()).flat_map(BTreeMap::keys) {
            self.enqueue_again(&claimant.machine);
        }
        self.forget_unused(network);
    }

    /// Forgets a network that only reports named. A guest can be on any number of networks without a pool.
    fn forget_unused(&mut self, network: &str) {
        if self.networks.get(network).is_some_and(Network::is_unused) {
            self.networks.remove(network);
        }
    }

    /// The reports of a set that the other set does not have.
    fn only_in(&self, network: &str, these: &Reports, others: &Reports) -> Vec<Reported> {
        let is_new = |address: &IpAddr, claimant: &Claimant| {
            others.get(address).is_none_or(|others| !others.contains_key(claimant))
        };
        let all =
            these.iter().flat_map(|(address, of)| of.iter().map(move |(claimant, source)| (address, claimant, source)));
        let new = all.filter(|(address, claimant, _)| is_new(address, claimant));
        new.map(|(address, claimant, source)| self.reported(network, *address, claimant, source)).collect()
    }

    fn reported(&self, network: &str, address: IpAddr, claimant: &Claimant, source: &str) -> Reported {
        Reported {
            network: network.to_owned(),
            address,
            claimant: claimant.clone(),
            source: source.to_owned(),
            state: self.state_of_report(network, address, claimant),
            holder: self.holder(network, address).cloned(),
        }
    }

    fn state_of_report(&self, network: &str, address: IpAddr, claimant: &Claimant) -> Option<State> {
        match self.may_record(Source::Report, claimant, network, address) {
            Verdict::Reserve(state) => Some(state),
            Verdict::Lease | Verdict::Ignore(_) => None,
        }
    }

    /// The reported addresses that another claimant holds, sorted by network, address and claimant.
    #[doc(hidden)]
    pub fn report_conflicts(&self) -> Vec<Reported> {
        let mut conflicts = Vec::new();
        for (name, network) in &self.networks {
            for (address, claimants) in network.reports() {
                let is_held = network.held_at(*address).is_some();
                for (claimant, source) in claimants.iter().filter(|_| is_held) {
                    let reported = self.reported(name, *address, claimant, source);
                    conflicts.extend(Some(reported).filter(|reported| reported.state == Some(State::Conflict)));
                }
            }
        }
        conflicts
    }

    /// The addresses that running guests report, sorted by network, address and claimant.
    #[doc(hidden)]
    pub fn reports(&self) -> Vec<Reported> {
        let none = Reports::new();
        self.networks.iter().flat_map(|(name, network)| self.only_in(name, network.reports(), &none)).collect()
    }
}

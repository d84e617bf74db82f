//! Reservations of the addresses that running guests report, and that Services and Clusters use.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::network::Network;
use super::state::Allocator;
use crate::host::claim::{Claimant, Machine, Reservation};
use crate::host::may_record::{Source, Verdict};

/// The reports that a call added and removed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[doc(hidden)]
pub struct ReportChanges {
    /// Reports that are new.
    pub begun: Vec<Reported>,
    /// Reports that have ended.
    pub ended: Vec<Reported>,
}

/// An address that a running guest reports, or that a Service or a Cluster uses.
#[derive(Clone, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Reported {
    /// Name of the network.
    pub network: String,
    /// The reported address.
    pub address: IpAddr,
    /// The guest, the Service or the Cluster.
    pub claimant: Claimant,
    /// Kind and name of the object that has the report.
    pub source: String,
    /// Whether the address is reserved. `false`: the claimant, or another object of its VirtualMachine, holds the
    /// address.
    pub is_reserved: bool,
    /// The claimant that holds the address. `None` if no claimant holds it.
    pub holder: Option<Claimant>,
    /// Whether the report contradicts the holder or another user of the address. `false` if the address has no holder,
    /// or if the guest is that of the holder.
    pub is_conflict: bool,
}

// === impl Allocator ===

impl Allocator {
    /// Adds and removes reports of running guests, Services and Clusters. A reported address is not allocated to other
    /// machines. A report never becomes a lease, and takes no address from its holder.
    ///
    /// The cost does not depend on the number of other reports. The caller must serve waiting machines afterwards.
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

    /// Adds or removes a report. Returns a [`Reported`] for each network on which the report is new or has ended.
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
            self.occupy_again(&network, *address, was_occupied);
            if before.is_some() != is_begun {
                changed.push(self.reported(&network, *address, claimant, source));
            }
            self.enqueue_again(&claimant.machine);
            // A guest can report addresses on any number of networks without a pool, so an unused network is removed.
            if self.networks.get(&network).is_some_and(Network::is_unused) {
                self.networks.remove(&network);
            }
        }
        changed
    }

    fn reported(&self, network: &str, address: IpAddr, claimant: &Claimant, source: &str) -> Reported {
        let kind = if claimant.machine.kind.may_hold() { Source::Report } else { Source::Neighbour };
        let verdict = self.may_record(kind, claimant, network, address);
        Reported {
            network: network.to_owned(),
            address,
            claimant: claimant.clone(),
            source: source.to_owned(),
            is_reserved: matches!(verdict, Verdict::Reserve(_)),
            holder: self.holder(network, address).cloned(),
            is_conflict: self.networks.get(network).is_some_and(|state| {
                let is_offered = || self.is_offered(network, address);
                state.guest_differs(address, claimant, &is_offered)
            }),
        }
    }

    /// The addresses that Services and Clusters use, with their networks.
    #[doc(hidden)]
    pub fn neighbours(&self) -> impl Iterator<Item = (&str, IpAddr, &Machine)> {
        let networks = self.networks.iter();
        networks.flat_map(|(name, network)| {
            let all = network.reports().iter().flat_map(|(at, claimants)| claimants.keys().map(move |it| (*at, it)));
            let others = all.filter(|(_, claimant)| !claimant.machine.kind.may_hold());
            others.map(|(address, claimant)| (&**name, address, &claimant.machine))
        })
    }

    /// All reports of running guests, Services and Clusters, sorted by network, address and claimant.
    #[doc(hidden)]
    pub fn reports(&self) -> Vec<Reported> {
        let mut reports = Vec::new();
        for (name, network) in &self.networks {
            for (address, claimants) in network.reports() {
                let of_address = claimants.iter();
                reports.extend(of_address.map(|(claimant, source)| self.reported(name, *address, claimant, source)));
            }
        }
        reports
    }
}

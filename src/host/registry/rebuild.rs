//! Adopts everything that the objects of a cluster say about addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::Timestamp;

use super::{Rebuilt, Registry};
use crate::host::allocator::Allocator;
use crate::host::claim::{Claimant, Machine, Record, Reservation};
use crate::host::ledger::{Ledger, LedgerError};
use crate::host::may_record::Source;
use crate::host::pool::Pool;
use crate::host::records::{Inventory, Report, Unrecorded};

// === impl Registry ===

impl<L: Ledger> Registry<L> {
    /// Adopts what the objects of a cluster say about addresses, opens the new addresses of pools (see
    /// [`Registry::open`]), and serves waiting machines.
    ///
    /// Adopts the records, see [`Registry::adopt`], and reserves other addresses for their machines, so that no other
    /// machine gets them:
    ///
    /// - the addresses of records that cannot be read
    /// - the addresses that a guest reports, if a pool has the address, and the ledger has neither a lease nor a record
    ///   of the address for the machine of the guest
    ///
    /// Call this method with the objects of all machines that may use the networks of the pools: at each start, and
    /// after each change of pools, before the next claim. The pools come first, because a report of an address counts
    /// only if a pool has the address: call [`Registry::resize`], then this method.
    ///
    /// If the machine of a record is unknown, the conflict names the machine `-/unreadable-record`, with the address as
    /// its UID. An audit reports this machine as missing as soon as no unreadable record has the address.
    ///
    /// # Errors
    ///
    /// The ledger failed. Changes committed before the failure stay in the ledger.
    pub fn rebuild(&mut self, inventory: &Inventory, now: Timestamp) -> Result<Rebuilt, LedgerError> {
        // If another process adds addresses to pools from now on, these addresses stay closed.
        let growth = self.state()?.growth();
        let rebuilt = self.adopt_inventory(inventory, now)?;
        Ok(Rebuilt { served: self.open_up_to(growth, now)?, ..rebuilt })
    }

    /// Does the same as [`Registry::rebuild`], but opens no address and serves no machine.
    ///
    /// # Errors
    ///
    /// The ledger failed. Changes committed before the failure stay in the ledger.
    #[doc(hidden)]
    pub fn adopt_inventory(&mut self, inventory: &Inventory, now: Timestamp) -> Result<Rebuilt, LedgerError> {
        let mut beyond = self.set_aside(unreadable(inventory), now)?;
        let reported: BTreeSet<IpAddr> = inventory.reports.iter().map(|report| report.address).collect();
        let follows =
            |record: &&Record| record.follows_reports(&reported, inventory.has_instance(&record.claimant.machine));
        let (last, first): (Vec<&Record>, Vec<&Record>) = inventory.records.iter().partition(follows);
        let mut adoption = self.adopt(first.into_iter().cloned(), now)?;
        let allocator = self.state()?;
        // A report is left out only if the machine has a lease or a reservation of the address. An ignored record gives
        // the machine neither of them.
        let is_kept = |report: &&Report| {
            let leases = allocator.leases_of(&report.machine).map(|(network, address, _)| (network, address));
            let mut kept = leases.chain(allocator.conflicts_of(&report.machine));
            kept.any(|(network, address)| address == report.address && report.is_on(network))
        };
        let reports = reports_of_pools(allocator, inventory).filter(|report| !is_kept(report)).filter_map(|report| {
            let interface = Pool::DEFAULT_INTERFACE.parse().ok()?;
            let claimant = Claimant { machine: report.machine.clone(), interface };
            let (address, network, source) = (report.address, report.network.clone(), report.source.clone());
            Some(Reservation { address, network, claimant, source, kind: Source::Report })
        });
        let reports: Vec<Reservation> = reports.collect();
        beyond.extend(self.set_aside(reports, now)?);
        adoption.extend(self.adopt(last.into_iter().cloned(), now)?);
        adoption.mismatches.extend(beyond);
        let allocator = self.state()?;
        let leased: BTreeSet<&Machine> = allocator.leases().map(|(_, _, lease)| &lease.claimant.machine).collect();
        let may_be_ours = |machine: &&Unrecorded| match &machine.node_pool {
            Some(node_pool) => allocator.pools().any(|pool| pool.name == *node_pool),
            None => {
                let attachments = &machine.attachments;
                attachments.is_empty() || allocator.pools().any(|pool| attachments.contains(&pool.network))
            }
        };
        let without_record = inventory.without_record.iter().filter(may_be_ours).map(|it| it.machine.clone());
        let without_record = without_record.filter(|machine| !leased.contains(machine)).collect();
        Ok(Rebuilt { adoption, without_record, served: Vec::new() })
    }
}

/// The reports of addresses that pools have. A report of another address is not kept: its reservation would last as
/// long as the machine, and a guest may change such addresses every day. If a pool gets the address, the report counts
/// at the next rebuild.
pub(in crate::host) fn reports_of_pools<'i>(
    allocator: &'i Allocator,
    inventory: &'i Inventory,
) -> impl Iterator<Item = &'i Report> {
    let is_of_pool =
        |report: &&Report| allocator.pools().any(|pool| report.is_on(&pool.network) && pool.contains(report.address));
    inventory.reports.iter().filter(is_of_pool)
}

/// The reservations for the addresses of records that cannot be read.
pub(in crate::host) fn unreadable(inventory: &Inventory) -> impl Iterator<Item = Reservation> {
    inventory.diagnostics.iter().flat_map(|diagnostic| {
        diagnostic.addresses.iter().filter_map(|address| {
            let nobodys = || {
                let machine = Machine::new("-", "unreadable-record", address.to_string());
                Some(Claimant { machine, interface: Pool::DEFAULT_INTERFACE.parse().ok()? })
            };
            let claimant = diagnostic.claimant.clone().or_else(nobodys)?;
            let (source, kind) = (diagnostic.to_string(), Source::Unreadable);
            Some(Reservation { address: *address, network: None, claimant, source, kind })
        })
    })
}

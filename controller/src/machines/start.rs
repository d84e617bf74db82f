//! The start of a leader: adopts the addresses that objects record and guests report, then submits the outstanding
//! claims.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use glowplug::host::claim::{Claimant, Machine};
use glowplug::host::records::{Inventory, Objects};
use tokio::task::yield_now;
use tracing::field::display;

use crate::cluster::key::Key;
use crate::cluster::request::list;
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::ledger::types::{Reservation, Stopped};
use crate::machines::authority::Authority;
use crate::machines::recorded::{addresses_of_earlier, addresses_of_ipam_claims};
use crate::machines::work::Work;

/// Pause between the first passes of two machines whose objects are only compared after the start.
const COMPARISON: Duration = Duration::from_millis(2);

/// Number of machines whose records are read at once.
const RECORDS: usize = 256;

// === impl Work ===

impl Work<'_> {
    /// Returns the records of all known machines.
    pub(super) async fn records(&self) -> Objects {
        let (names, mut records) = (self.index().by_age(), Objects::default());
        for names in names.chunks(RECORDS) {
            {
                let index = self.index();
                names.iter().for_each(|key| index.read_records(key, &mut records));
            }
            // Passes and webhooks go on meanwhile.
            yield_now().await;
        }
        records
    }

    /// Lets the registry adopt the addresses that machine objects record, and reserve the addresses that guests report.
    pub(super) async fn rebuild(&self, mut records: Objects) -> Result<(), Stopped> {
        let machines: BTreeSet<String> = self.index().machine_uids().collect();
        let registry = &self.machines.registry;
        self.note_earlier(&registry.holders_elsewhere().await?);
        let leased = registry.read(|allocator| {
            let leases = allocator.leases().map(|(_, address, lease)| (Claimant::clone(&lease.claimant), address));
            leases.collect::<BTreeSet<(Claimant, IpAddr)>>()
        });
        let leased = leased.await?;
        // Everyone who may write VirtualMachines of one namespace can name any machine of another namespace.
        records.confirm_machines(|vm, machine| vm == machine);
        let mut inventory = records.inventory();
        inventory.each_machine(|machine| {
            if !machines.contains(&machine.uid) {
                machine.kind = HolderKind::VirtualMachine;
            }
        });
        let (conflicts, known_records) = self.limit(&mut inventory, &leased);
        let known = registry.read(|allocator| {
            let mut known = addresses_of_ipam_claims(allocator);
            known.extend(addresses_of_earlier(allocator));
            known
        });
        let known = known.await?;
        // A guest may have any address on interfaces of its own. Only the networks of the machine count.
        inventory.reports.retain(|report| {
            let is_known =
                |network: &String| known.contains(&(network.clone(), report.address, Key::of_machine(&report.machine)));
            report.network.as_ref().is_some_and(|network| !is_known(network))
        });
        registry.add_conflicts(conflicts).await?;
        // After the loss of leases, each machine has a line with its addresses.
        let unknown = inventory.records.clone();
        let rebuilt = registry.rebuild(inventory).await?;
        let (adopted, known) = (rebuilt.adoption.adopted, rebuilt.adoption.known + known_records);
        let without_record = rebuilt.without_record.len();
        tracing::info!(adopted, known, without_record, "adopted the addresses of machines");
        self.log_adoption(&unknown, &rebuilt.adoption);
        Ok(())
    }

    /// Reduces an inventory to the addresses that the registry must adopt. Removes
    ///
    /// - addresses that no pool of the machine's namespace has,
    /// - addresses in `leased`, because the registry already has their leases, and
    /// - records that cannot be read.
    ///
    /// Returns the addresses of the unreadable records, which must not be allocated, and the number of addresses that
    /// already have a lease.
    fn limit(&self, inventory: &mut Inventory, leased: &BTreeSet<(Claimant, IpAddr)>) -> (Vec<Reservation>, usize) {
        let index = self.index();
        let mut authority = Authority::new(index.selection());
        let mut known = 0;
        for mut record in std::mem::take(&mut inventory.records) {
            let (claimant, all) = (record.claimant.clone(), record.addresses.len());
            let machine = claimant.machine.clone();
            record.addresses.retain(|address| !leased.contains(&(claimant.clone(), address.ip())));
            known += all - record.addresses.len();
            let (record, ignored) = authority.limit(&[machine.namespace.clone()].into(), record);
            if !ignored.is_empty() {
                let (machine, source) = (Key::of_vm(&machine), &record.source);
                tracing::warn!(%machine, source, ignored = list(&ignored), "ignored addresses that no pool of the namespace has");
            }
            if !record.addresses.is_empty() {
                inventory.records.push(record);
            }
        }
        let mut conflicts = Vec::new();
        for diagnostic in std::mem::take(&mut inventory.diagnostics) {
            let machine = diagnostic.claimant.as_ref().map(|claimant| display(Key::of_vm(&claimant.machine)));
            tracing::warn!(
                machine,
                %diagnostic,
                "a record of a machine cannot be used; its addresses are not allocated"
            );
            // The controller never writes a record of an unknown interface.
            let Some(claimant) = &diagnostic.claimant else { continue };
            conflicts.extend(authority.conflicts(&[claimant.machine.namespace.clone()].into(), &diagnostic));
        }
        (conflicts, known)
    }

    /// Returns the machines that may have a Secret without a lease, or need an address. Older machines come first.
    pub(super) fn outstanding(&self, holders: &BTreeSet<Machine>) -> Vec<Key> {
        let mut names = self.index().by_age();
        names.retain(|key| {
            let index = self.index();
            let is_selected = !matches!(index.selected(key), Ok(selected) if selected.is_empty());
            let refers_to = index.vm(key).and_then(VirtualMachine::secret);
            // The guest has an address of a Secret of its own: it is an orphan, or its VirtualMachine has changed.
            let reads = index.instance(key).and_then(|instance| instance.secret.as_deref());
            let reads_other = reads.is_some_and(|secret| refers_to != Some(secret));
            let mut holders = holders.range(key.holder(HolderKind::default(), "")..);
            let is_held = holders.next().is_some_and(|holder| Key::of_machine(holder) == *key)
                || !index.earlier_of(key).is_empty();
            reads_other || (is_selected || refers_to.is_some()) && !is_held
        });
        names
    }

    /// Returns the names that get a pass after the start, each with its pause. A machine that may wait for its Secret
    /// gets its pass at once. Machines whose objects are only compared get their passes one after another, so that a
    /// new machine does not wait for thousands of comparisons.
    pub(super) fn names_at_the_start(&self, holders: &BTreeSet<Machine>) -> Vec<(Key, Duration)> {
        let index = self.index();
        let (done, mut names): (Vec<Key>, Vec<Key>) =
            index.by_age().into_iter().partition(|key| index.is_annotated(key));
        // Machines that no longer exist may still hold addresses.
        let holders = holders.iter().filter(|holder| !holder.kind.is_claim());
        let left: BTreeSet<Key> = holders.map(Key::of_vm).collect();
        let known: BTreeSet<Key> = done.iter().chain(&names).cloned().collect();
        let left: BTreeSet<Key> = left.into_iter().chain(index.vms_with_claims()).collect();
        names.extend(left.into_iter().filter(|key| !known.contains(key)));
        let now = names.into_iter().map(|key| (key, Duration::ZERO));
        let later = done.into_iter().zip(1..).map(|(key, nth)| (key, COMPARISON.saturating_mul(nth)));
        now.chain(later).collect()
    }
}

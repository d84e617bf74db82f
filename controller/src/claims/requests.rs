//! Code for both kinds of claims: the provider, and the requests to the registry with their log lines.

use std::net::IpAddr;
use std::sync::Arc;

use glowplug::host::allocator::{Adoption, Allocator};
use glowplug::host::claim::{Claimant, Machine, Record};
use glowplug::host::may_record::Source;
use ipnetwork::IpNetwork;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, Patch};
use kube::runtime::events::EventType;
use kube::{Api, Client};
use serde_json::Value;
use tracing::field::display;

use crate::cluster::events::{Events, reference};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::cluster::request::{self, ask, find, list};
use crate::ledger::adoption::{self, Unheld};
use crate::ledger::registry::RegistryHandle;
use crate::metrics::Metrics;
use crate::passes::opening::Opening;
use crate::passes::provider::Part;
use crate::passes::{Error, Problem};
use crate::pools::facts::Scope;
use crate::repeated::Repeated;

/// The IPAM provider of a leader.
#[derive(Clone)]
pub struct Provider {
    pub(super) client: Client,
    pub(super) registry: RegistryHandle,
    pub(super) scope: Scope,
    events: Events,
    opening: Opening,
    metrics: Arc<Metrics>,
}

// === impl Provider ===

impl Provider {
    /// Creates a provider for the claims in `scope`. `opening` must count the provider as two parts.
    #[must_use]
    pub fn new(
        client: Client,
        registry: RegistryHandle,
        opening: Opening,
        metrics: Arc<Metrics>,
        scope: Scope,
    ) -> Self {
        let events = Events::start(client.clone());
        Self { client, registry, scope, events, opening, metrics }
    }

    pub(super) fn part(&self, name: &'static str, kinds: &'static str, noun: &'static str) -> Part<'_> {
        let (registry, opening, metrics) = (&self.registry, &self.opening, self.metrics.passes(name));
        Part { name, kinds, noun, registry, opening, metrics, lines: Repeated::default() }
    }

    /// Returns the API client for the objects of a kind in the scope of this controller.
    pub(super) fn in_scope(&self, kind: &ApiResource) -> Api<Object> {
        match self.scope.namespace.as_str() {
            "" => Api::all_with(self.client.clone(), kind),
            namespace => Api::namespaced_with(self.client.clone(), namespace, kind),
        }
    }

    /// Returns the API client for the objects of a kind in the namespace of a name.
    pub(super) fn api(&self, kind: &ApiResource, key: &Key) -> Api<Object> {
        Api::namespaced_with(self.client.clone(), &key.namespace, kind)
    }

    /// Whether the claim of a holder is in the scope of this controller.
    pub(super) fn has(&self, holder: &Machine) -> bool {
        self.scope.namespace.is_empty() || self.scope.namespace == holder.namespace
    }

    /// Reads an object into an index. `known` returns the version in the index. `take` stores the answer, and returns
    /// `false` if the object must be read again.
    pub(super) async fn read(
        &self,
        kind: &ApiResource,
        key: &Key,
        known: impl Fn() -> Option<u64>,
        take: impl Fn(Option<u64>, Option<Object>) -> bool,
    ) -> Result<(), Error> {
        loop {
            let before = known();
            let object = ask(find(&self.api(kind, key), &key.name)).await?;
            if take(before, object) {
                return Ok(());
            }
        }
    }

    /// Makes the registry adopt records, each given with its network. Leaves out the addresses that another leader has
    /// already adopted. Returns the holders of the other addresses.
    ///
    /// The records must not name addresses that the registry has for the same claim.
    pub(super) async fn adopt_all(
        &self,
        records: impl IntoIterator<Item = (Record, String)>,
    ) -> Result<Vec<Machine>, Error> {
        // The pass of a claim reports a lease that cannot be read.
        let Unheld { records, .. } = adoption::unheld(&self.client, records).await?;
        if !records.is_empty() {
            let adoption = self.registry.adopt(records.clone()).await?;
            log_adoption(&records, &adoption);
        }
        Ok(records.into_iter().map(|record| record.claimant.machine).collect())
    }

    /// Makes the registry adopt the record of a claim. Returns the problem to report if the claim still does not hold
    /// its addresses. [`Error::Behind`]: the API server has leases of the claim that the registry does not have yet, and
    /// the other addresses are adopted.
    ///
    /// The record must not name addresses that the registry has for the claim.
    pub(super) async fn adopt(&self, record: Record, network: &str) -> Result<Problem, Error> {
        let record = [(record, network.to_owned())];
        let Unheld { records, is_behind, unreadable } = adoption::unheld(&self.client, record).await?;
        let Some(record) = records.first() else { return Err(Error::Behind) };
        let adoption = self.registry.adopt(records.clone()).await?;
        // If nothing is adopted, the status reports the reason. Each pass tries again, and would write the same line
        // again.
        if adoption.adopted > 0 {
            log_adoption(&records, &adoption);
        }
        if is_behind {
            return Err(Error::Behind);
        }
        if let Some(problem) = Problem::of_adoption(&unreadable, &adoption) {
            return Ok(problem);
        }
        let (addresses, of) = (record.addresses.clone(), network.to_owned());
        let outside = move |allocator: &Allocator| {
            let is_in_pool =
                |address: IpAddr| allocator.pools().any(|pool| pool.network() == of && pool.contains(address));
            addresses.iter().map(IpNetwork::ip).find(|address| !is_in_pool(*address))
        };
        let outside = self.registry.read(outside).await?;
        Ok(Problem::Mismatch(fits_no_pool(record, network, outside), Vec::new()))
    }

    /// Keeps `addresses` of a claimant, and releases its other addresses of the same families. A claimant has other
    /// addresses if two leaders have allocated addresses to it.
    pub(super) async fn keep(
        &self,
        claim: &Key,
        claimant: Claimant,
        addresses: Vec<std::net::IpAddr>,
    ) -> Result<(), Error> {
        let released = self.registry.keep(claimant, addresses).await?;
        if !released.is_empty() {
            tracing::info!(%claim, addresses = list(released), "released addresses that the claim never got");
        }
        Ok(())
    }

    /// Releases everything that a claim holds, and returns the addresses. A user can write the UID of another object,
    /// such as a machine, into an object with the name of a claim. The leases of the other object are kept, because its
    /// kind differs.
    pub(super) async fn release(&self, holder: Machine) -> Result<Vec<IpNetwork>, Error> {
        let (claim, uid) = (Key::of_machine(&holder), holder.uid.clone());
        let addresses = self.registry.release(holder).await?;
        if !addresses.is_empty() {
            tracing::info!(%claim, uid, addresses = list(&addresses), "released the addresses of a claim");
        }
        Ok(addresses)
    }

    /// Logs that a claim has its addresses, and records how long the claim waited. Publishes no event: an event would
    /// be one more write for each claim, and the status has the same information.
    pub(super) fn note_allocation(
        &self,
        claim: &Key,
        pool: Option<&PoolId>,
        created: Timestamp,
        addresses: impl IntoIterator<Item = IpNetwork>,
    ) {
        let (pool, addresses) = (pool.map(display), list(addresses));
        tracing::info!(%claim, pool, addresses, "allocated the addresses of a claim");
        // The clock of the API server may be ahead.
        let waited = Timestamp::now().duration_since(created).max(SignedDuration::ZERO);
        self.metrics.allocation_seconds.observe(waited.as_secs_f64());
    }

    /// Publishes an event about a claim.
    pub(super) fn publish(&self, kind: &ApiResource, claim: &ObjectMeta, type_: EventType, reason: &str, note: &str) {
        let Key { namespace, name } = Key::of(claim);
        self.events.publish(reference(kind, Some(namespace), name, claim.uid.clone()), type_, reason, note);
    }
}

/// Logs an adoption: a line for each claim, and a line for each address that does not match the registry.
fn log_adoption(records: &[Record], adoption: &Adoption) {
    for (holder, addresses) in adoption::adopted(records, adoption) {
        let (claim, addresses) = (Key::of_machine(&holder), list(addresses));
        tracing::info!(%claim, uid = holder.uid, addresses, "adopted the recorded addresses of a claim");
    }
    for mismatch in &adoption.mismatches {
        let claim = Key::of_machine(&mismatch.claimant.machine);
        tracing::warn!(%claim, %mismatch, "a record of a claim does not fit");
    }
}

/// Whether the object is gone after a write that removed its last finalizer.
pub(super) fn is_gone(object: &Object) -> bool {
    let finalizers = object.metadata.finalizers.as_ref();
    object.metadata.deletion_timestamp.is_some() && finalizers.is_none_or(Vec::is_empty)
}

/// Converts a list of operations to a JSON patch.
pub(super) fn json_patch(patch: Value) -> Result<Patch<()>, request::Error> {
    serde_json::from_value(patch).map(Patch::Json).map_err(request::Error::Unreadable)
}

/// Returns the message about a record that does not fit the pools of its network. `outside` is an address of the record
/// that no pool of the network has, if there is one.
fn fits_no_pool(record: &Record, network: &str, outside: Option<IpAddr>) -> String {
    let Some(address) = outside else { return format!("{} fits no pool", record.source) };
    // The record has only some of the addresses in the status, so the path of the address is not known.
    let at = if record.kind == Source::IpamClaim { "status.ips" } else { &record.source };
    let expected = record.node_pool.as_ref().map(|pool| format!(", expected an address of pool {pool}"));
    format!("{at}: {address} is in no pool of network {network}{}", expected.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use glowplug::host::claim::HolderKind;

    use super::*;

    #[test]
    fn the_message_about_an_address_outside_of_every_pool_names_the_address_and_the_network() {
        let machine = Key::from(("t5", "d")).holder(HolderKind::IpamClaim, "u");
        let record = Record {
            claimant: Claimant { machine, interface: "eno101".parse().unwrap() },
            node_pool: Some("t5/t5".to_owned()),
            attachments: Vec::new(),
            network: None,
            addresses: ["192.168.5.8/24", "192.168.5.99/24"].map(|address| address.parse().unwrap()).into(),
            source: "IPAMClaim t5/d".to_owned(),
            kind: Source::IpamClaim,
        };
        let message = |record: &Record, outside: Option<&str>| {
            fits_no_pool(record, "infra/vlan50", outside.map(|address| address.parse().unwrap()))
        };
        let expected =
            "status.ips: 192.168.5.99 is in no pool of network infra/vlan50, expected an address of pool t5/t5";
        assert_eq!(message(&record, Some("192.168.5.99")), expected);
        assert_eq!(message(&record, None), "IPAMClaim t5/d fits no pool");
        let source = "IPAddress t5/d".to_owned();
        let record = Record { node_pool: None, source, kind: Source::IpAddress, ..record };
        let expected = "IPAddress t5/d: 192.168.5.8 is in no pool of network infra/vlan50";
        assert_eq!(message(&record, Some("192.168.5.8")), expected);
    }
}

//! Reads from the Leases which replicas of the controller lead.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, ListParams};
use serde::Serialize;

use crate::cluster::object::Object;
use crate::cluster::term::is_lease;
use crate::explain::read::{Listed, Reader};

/// The Lease of one installation of the controller, and whether its holder leads.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Leader {
    /// Namespace of the Lease and of the controller.
    pub namespace: String,
    /// Identity of the replica that holds the Lease: the name of its pod, `_`, and its process ID. Empty: the last
    /// leader has released the Lease.
    pub holder: String,
    /// Time since which this holder leads, by the clock of the holder, as RFC 3339. `null`: unknown.
    pub since: Option<String>,
    /// Time of the last renewal of the Lease, by the clock of the holder, as RFC 3339. `null`: unknown.
    pub renewed: Option<String>,
    /// Whether a replica leads.
    pub state: State,
}

/// Whether a replica of an installation leads.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// `leads`: the holder has renewed the Lease within its duration.
    Leads,
    /// `expired`: the holder has not renewed the Lease in time, so no replica leads.
    Expired,
    /// `released`: the holder has released the Lease, so no replica leads.
    Released,
}

/// Reads the Leases of all installations. `None`: the user has no right to list Leases.
///
/// # Errors
///
/// The request failed.
pub(super) async fn leaders(reader: &Reader) -> anyhow::Result<Option<Vec<Leader>>> {
    let (mut leaders, now) = (Vec::new(), Timestamp::now());
    let kind = ApiResource::erase::<Lease>(&());
    let note = |lease: Object| {
        if lease.metadata.name.as_deref().is_some_and(is_lease) {
            leaders.push(leader(lease, now));
        }
    };
    let listed = reader.each(&kind, None, ListParams::default(), note).await?;
    Ok((listed == Listed::Whole).then_some(leaders))
}

/// Reads a Lease. A member with an unexpected structure counts as absent.
fn leader(lease: Object, now: Timestamp) -> Leader {
    let namespace = lease.metadata.namespace.unwrap_or_default();
    let spec = &lease.data["spec"];
    let holder = spec["holderIdentity"].as_str().unwrap_or_default().to_owned();
    let time = |member: &str| spec[member].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    let (since, renewed) = (time("acquireTime").filter(|_| !holder.is_empty()), time("renewTime"));
    let duration = SignedDuration::from_secs(spec["leaseDurationSeconds"].as_i64().unwrap_or_default());
    let state = match renewed {
        _ if holder.is_empty() => State::Released,
        Some(renewed) if now.duration_since(renewed) <= duration => State::Leads,
        _ => State::Expired,
    };
    let [since, renewed] = [since, renewed].map(|time| time.map(|time| time.to_string()));
    Leader { namespace, holder, since, renewed, state }
}

// === impl State ===

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_replica_leads_until_its_lease_expires() {
        let of = |spec: Value| {
            let lease = json!({"metadata": {"namespace": "s", "name": "glowplug-controller"}, "spec": spec});
            leader(serde_json::from_value(lease).unwrap(), "2026-08-14T10:00:15Z".parse().unwrap())
        };
        let lease = |holder: &str, renewed: &str| {
            let times = json!({"acquireTime": "2026-08-14T09:00:00.5Z", "renewTime": renewed});
            let mut spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15});
            json_patch::merge(&mut spec, &times);
            of(spec)
        };
        let expected = |holder: &str, renewed: &str, state: State| Leader {
            namespace: "s".to_owned(),
            holder: holder.to_owned(),
            since: (!holder.is_empty()).then(|| "2026-08-14T09:00:00.5Z".to_owned()),
            renewed: Some(renewed.to_owned()),
            state,
        };
        for (holder, renewed, state) in [
            ("a_1", "2026-08-14T10:00:00Z", State::Leads),
            ("a_1", "2026-08-14T09:59:59Z", State::Expired),
            ("", "2026-08-14T10:00:15Z", State::Released),
            // The clock of the leader is ahead of the clock of the plugin.
            ("a_1", "2026-08-14T10:01:00Z", State::Leads),
        ] {
            assert_eq!(lease(holder, renewed), expected(holder, renewed, state));
        }
        let unknown = Leader { since: None, renewed: None, ..expected("a_1", "", State::Expired) };
        assert_eq!(of(json!({"holderIdentity": "a_1", "renewTime": 7})), unknown);
    }
}

//! Explains what one IPAddressClaim or IPAMClaim holds, or waits for.

use std::fmt;

use glowplug::host::claim::HolderKind;
use kube::api::{ApiResource, ListParams};
use serde::Serialize;
use serde_json::Value;

use crate::claims::ipam::decision::Serving;
use crate::cluster::conditions::head;
use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::explain::held::HeldAddress;
use crate::explain::lists::{Lists, namespaces};
use crate::explain::read::{Listed, Reader};
use crate::explain::text::{rows_of, write_section};
use crate::kinds::cluster_api::{CLAIM_FINALIZER, IpAddressClaim, Kinds, is_paused};
use crate::kinds::ipam_claim::{IpamClaim, ipam_claims, network_attachments};
use crate::kinds::kubevirt_machine::is_deleted;
use crate::kinds::pool::{GlobalStaticIPPool, LeaseSpec, StaticIPPool};

/// The answer of `kubectl glowplug why` about a claim.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimAnswer {
    /// Version of the structure.
    pub version: u32,
    /// Namespace and name of the claim.
    pub claim: String,
    /// Kind of the claim.
    pub kind: HolderKind,
    /// The state of the claim.
    pub state: ClaimState,
    /// The pool from which the claim gets its addresses. `null`: unknown.
    pub pool: Option<String>,
    /// The addresses that the claim holds.
    pub addresses: Vec<HeldAddress>,
    /// The time since which the claim holds its addresses, waits or is being deleted. `null`: unknown.
    pub since: Option<String>,
    /// Why the claim is in this state.
    pub reason: String,
    /// What a person can do. `null`: nothing needs to be done.
    pub what_to_do: Option<String>,
}

/// The state of a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ClaimState {
    /// `allocated`: the claim holds its addresses.
    Allocated,
    /// `waiting`: the claim holds no address.
    Waiting,
    /// `notSelected`: the claim names the pool of another program, or no pool serves its network in its namespace.
    NotSelected,
}

/// Why a claim has no address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Waits {
    /// Reason and message of the condition of the claim. If the claim has no condition, the reason for that.
    pub(super) reason: String,
    /// Time since which the claim waits, as RFC 3339.
    pub(super) since: Option<String>,
    what_to_do: String,
}

/// Reads a claim and explains it. `None`: no claim has this name, or the user has no right to read claims. The reader
/// notes a missing right.
pub(super) async fn claim(reader: &Reader, key: &Key, leases: &[LeaseSpec]) -> anyhow::Result<Option<ClaimAnswer>> {
    if let Some(kinds) = Kinds::discover(reader.client()).await?
        && let Some(object) = reader.get(&kinds.claims, key).await?
    {
        return Ok(Some(explain(HolderKind::IpAddressClaim, &object, leases, None)));
    }
    let Some(object) = reader.get(&ipam_claims(), key).await? else { return Ok(None) };
    let serving = serving(reader, &object).await?;
    Ok(Some(explain(HolderKind::IpamClaim, &object, leases, serving.as_ref())))
}

/// Returns which pool serves an IPAMClaim. `None`: the user lacks the right to list a kind on which the result depends.
async fn serving(reader: &Reader, object: &Object) -> anyhow::Result<Option<Serving>> {
    let (mut lists, all) =
        (Lists { scope: reader.scope().map(str::to_owned), ..Lists::default() }, ListParams::default);
    let [of_namespace, of_cluster] =
        [ApiResource::erase::<StaticIPPool>(&()), ApiResource::erase::<GlobalStaticIPPool>(&())];
    let listed = [
        reader.each(&of_namespace, reader.scope(), all(), |pool| lists.add_pool(pool)).await?,
        reader.each(&of_cluster, None, all(), |pool| lists.add_pool(pool)).await?,
        reader.each(&network_attachments(), None, all(), |it| lists.add_attachment(it)).await?,
    ];
    if lists.pools.values().any(|pool| pool.checked.selects_namespaces()) {
        lists.namespaces = namespaces(reader, lists.pools.values().map(|pool| &*pool.checked)).await?;
        if lists.namespaces.is_none() {
            return Ok(None);
        }
    }
    lists.add_ipam_claim(object.clone());
    Ok((listed == [Listed::Whole; 3]).then(|| lists.serving(&Key::of(&object.metadata))))
}

/// Explains a claim. `serving` is the pool that serves an IPAMClaim. It is `None` for a claim of another kind, or if
/// the pool is unknown.
fn explain(kind: HolderKind, object: &Object, leases: &[LeaseSpec], serving: Option<&Serving>) -> ClaimAnswer {
    let key = Key::of(&object.metadata);
    let is_own = |lease: &&LeaseSpec| {
        let of = &lease.holder;
        lease.released.is_none() && of.kind == kind && (&of.namespace, &of.name) == (&key.namespace, &key.name)
    };
    let held: Vec<&LeaseSpec> = leases.iter().filter(is_own).collect();
    let read = (kind == HolderKind::IpAddressClaim).then(|| IpAddressClaim::read(object.clone()).ok()).flatten();
    let named = read.as_ref().and_then(|claim| claim.pool.resolve(&key.namespace)).map(|pool| pool.to_string());
    let pool = named.or_else(|| held.first().map(|lease| lease.pool.clone())).or_else(|| match serving {
        Some(Serving::Pool(pool, _)) => Some(pool.to_string()),
        Some(Serving::None | Serving::Several(..)) | None => None,
    });
    let ipam = (kind == HolderKind::IpamClaim).then(|| IpamClaim::read(object.clone()));
    let is_foreign = read.as_ref().is_some_and(|claim| !claim.pool.concerns_us(&key.namespace));
    let (state, reason, since, what_to_do) = match waits(kind, object) {
        _ if !held.is_empty() && is_deleted(&object.metadata) => {
            let since = object.metadata.deletion_timestamp.as_ref().map(|time| time.0.to_string());
            let (reason, what_to_do) = ending(object);
            (ClaimState::Allocated, reason, since, Some(what_to_do))
        }
        _ if !held.is_empty() => {
            let since = held.iter().map(|lease| lease.since.0).max().map(|since| since.to_string());
            (ClaimState::Allocated, "the claim holds its address".to_owned(), since, None)
        }
        _ if is_foreign => {
            let what_to_do = "look at the controller of the pool in spec.poolRef of the claim".to_owned();
            (ClaimState::NotSelected, "the claim names the pool of another program".to_owned(), None, Some(what_to_do))
        }
        _ if serving == Some(&Serving::None) => {
            let network = ipam.map(|claim| claim.network).unwrap_or_default();
            let reason =
                format!("no pool with serveIPAMClaims serves network {network:?} in namespace {}", key.namespace);
            (ClaimState::NotSelected, reason, None, Some(SERVES.to_owned()))
        }
        Some(Waits { reason, since, what_to_do }) => (ClaimState::Waiting, reason, since, Some(what_to_do)),
        None if ipam.is_some_and(|claim| claim.ips.is_empty()) => {
            let created = object.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
            (ClaimState::Waiting, UNSEEN.to_owned(), created, Some(LEADS.to_owned()))
        }
        None => {
            let reason = "no lease records the address that the status of the claim names".to_owned();
            (ClaimState::Waiting, reason, None, Some(LEADS.to_owned()))
        }
    };
    let addresses = held.into_iter().map(HeldAddress::from).collect();
    ClaimAnswer { version: 1, claim: key.to_string(), kind, state, pool, addresses, since, reason, what_to_do }
}

const ADD: &str = "add addresses to the pool, or delete claims that hold some";
const UNSEEN: &str = "the controller has not looked at the claim yet";
const SERVES: &str = "compare spec.network of the claim with name in the configuration of the pool's network attachment definition; \
                      if another program serves this network, look there";
const LEADS: &str = "look whether a replica leads: kubectl glowplug status";

/// Returns why a claim that is being deleted keeps its address, and what a person can do about it.
fn ending(object: &Object) -> (String, String) {
    let finalizers = object.metadata.finalizers.iter().flatten().filter(|name| *name != CLAIM_FINALIZER);
    let finalizers: Vec<&str> = finalizers.map(String::as_str).collect();
    let (until, what_to_do) = if is_paused(object) {
        ("its pause ends".to_owned(), "end the pause".to_owned())
    } else if finalizers.is_empty() {
        ("the controller has released it".to_owned(), LEADS.to_owned())
    } else {
        let names = finalizers.join(", ");
        (format!("these finalizers are gone: {names}"), "remove the finalizers if their programs do not".to_owned())
    };
    (format!("the claim is being deleted, and keeps its address until {until}"), what_to_do)
}

/// Returns why a claim waits. `None`: the claim has its addresses, is being deleted, belongs to another program, or is
/// an IPAMClaim whose condition names no failure.
pub(super) fn waits(kind: HolderKind, object: &Object) -> Option<Waits> {
    if is_deleted(&object.metadata) {
        return None;
    }
    let conditions = object.data["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let condition =
        |type_: &str, status: &str| conditions.iter().find(|it| it["type"] == type_ && it["status"] == status);
    let created = object.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
    let unseen = |reason: String, what_to_do: &str| {
        Some(Waits { reason, since: created.clone(), what_to_do: what_to_do.to_owned() })
    };
    let later = "remove the cause that the reason names; the controller then continues by itself";
    if kind == HolderKind::IpamClaim {
        let failed = condition("IPsAllocated", "False")?;
        let is_exhausted = failed["reason"] == "SubnetExhausted";
        return Some(Waits::of(failed, if is_exhausted { ADD } else { later }));
    }
    let claim = IpAddressClaim::read(object.clone()).ok()?;
    if !claim.pool.concerns_us(&claim.key().namespace) || claim.has_address && condition("Ready", "False").is_none() {
        return None;
    }
    if let Some(mistake) = claim.pool.mistake() {
        let reason = format!("AllocationFailed: {mistake}");
        return unseen(reason, "create the claim again with the right spec.poolRef");
    }
    if let Some(paused) = condition("Paused", "True") {
        return Some(Waits::of(paused, "end the pause"));
    }
    if let Some(failed) = condition("Ready", "False") {
        let what_to_do = match failed["reason"].as_str() {
            Some("PoolExhausted") => ADD,
            _ => later,
        };
        return Some(Waits::of(failed, what_to_do));
    }
    match condition("Ready", "True") {
        Some(_) => None,
        None => unseen(UNSEEN.to_owned(), LEADS),
    }
}

// === impl Waits ===

impl Waits {
    /// Reads the reason, the message and the time of a condition. Other programs can write any text into a condition,
    /// so the text is shortened.
    fn of(condition: &Value, what_to_do: &str) -> Self {
        let text = |member: &str| condition[member].as_str().map(|text| head(text).to_owned());
        let reason = [text("reason"), text("message")].into_iter().flatten().filter(|text| !text.is_empty());
        let reason = reason.collect::<Vec<_>>().join(": ");
        Self { reason, since: text("lastTransitionTime"), what_to_do: what_to_do.to_owned() }
    }
}

// === impl ClaimState ===

impl fmt::Display for ClaimState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

// === impl ClaimAnswer ===

/// Writes the answer as tables for people.
impl fmt::Display for ClaimAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let [kind, state] = [self.kind.to_string(), self.state.to_string()];
        let claim = [self.claim.clone(), kind, or_none(&self.pool), state, or_none(&self.since)];
        f.write_str(&rows_of(["CLAIM", "KIND", "POOL", "STATE", "SINCE"], vec![claim]))?;
        write!(f, "\n{}", rows_of(["REASON"], vec![[self.reason.replace('\n', "; ")]]))?;
        write_section(f, ["WHAT TO DO"], self.what_to_do.iter().map(|it| [it.clone()]).collect())?;
        let held = self.addresses.iter().cloned().map(|it| [it.address, it.network, it.pool, it.since]);
        write_section(f, ["ADDRESS", "NETWORK", "POOL", "SINCE"], held.collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::cluster_api::PAUSED_ANNOTATION;

    fn object(changes: &Value) -> Object {
        let mut claim = json!({
            "metadata": {"namespace": "n", "name": "c", "uid": "u", "creationTimestamp": "2026-08-14T09:00:00Z"},
            "spec": {"poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"}},
        });
        json_patch::merge(&mut claim, changes);
        serde_json::from_value(claim).unwrap()
    }

    fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
        let time = "2026-08-14T10:00:00Z";
        json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": time})
    }

    fn of(conditions: &[Value], changes: &Value) -> ClaimAnswer {
        let mut all = json!({"status": {"conditions": conditions}});
        json_patch::merge(&mut all, changes);
        explain(HolderKind::IpAddressClaim, &object(&all), &[], None)
    }

    /// The parts of an answer that the tests compare: state, pool, time, reason, and what a person can do.
    fn said(answer: &ClaimAnswer) -> (ClaimState, Option<&str>, Option<&str>, &str, Option<&str>) {
        let ClaimAnswer { state, pool, since, reason, what_to_do, .. } = answer;
        (*state, pool.as_deref(), since.as_deref(), reason, what_to_do.as_deref())
    }

    #[test]
    fn a_waiting_claim_has_the_reason_of_its_condition_or_why_it_has_no_condition() {
        let (pool, since, created) = (Some("n/p"), Some("2026-08-14T10:00:00Z"), Some("2026-08-14T09:00:00Z"));
        let waits = |pool, since, reason, what_to_do| (ClaimState::Waiting, pool, since, reason, Some(what_to_do));
        let none = json!({});
        let exhausted = condition("Ready", "False", "PoolExhausted", "pool n/p has no free IPv4 address");
        assert_eq!(
            said(&of(&[exhausted.clone(), condition("Paused", "False", "NotPaused", "")], &none)),
            waits(
                pool,
                since,
                "PoolExhausted: pool n/p has no free IPv4 address",
                "add addresses to the pool, or delete claims that hold some"
            )
        );
        let later = "remove the cause that the reason names; the controller then continues by itself";
        let failed = condition("Ready", "False", "AllocationFailed", "10.0.0.9: not in pool \"n/p\"");
        let reason = "AllocationFailed: 10.0.0.9: not in pool \"n/p\"";
        assert_eq!(said(&of(&[failed], &none)), waits(pool, since, reason, later));
        let paused = condition("Paused", "True", "Paused", "Cluster n/a is paused");
        for conditions in [vec![paused.clone()], vec![exhausted, paused]] {
            let expected = waits(pool, since, "Paused: Cluster n/a is paused", "end the pause");
            assert_eq!(said(&of(&conditions, &none)), expected);
        }
        let unseen = "the controller has not looked at the claim yet";
        assert_eq!(said(&of(&[], &none)), waits(pool, created, unseen, LEADS));
        let mistaken = json!({"spec": {"poolRef": {"apiGroup": ""}}});
        let reason = "AllocationFailed: spec.poolRef.apiGroup: missing, expected ipam.glowplug.dev";
        let again = "create the claim again with the right spec.poolRef";
        assert_eq!(said(&of(&[], &mistaken)), waits(None, created, reason, again));
    }

    #[test]
    fn a_claim_that_is_being_deleted_keeps_its_address_until_its_finalizers_are_gone_or_its_pause_ends() {
        let of = |changes: Value| {
            let mut all =
                json!({"metadata": {"deletionTimestamp": "2026-08-14T11:00:00Z", "finalizers": [CLAIM_FINALIZER]}});
            json_patch::merge(&mut all, &changes);
            ending(&object(&all))
        };
        let keeps = |until: &str, what_to_do: &str| {
            let reason = format!("the claim is being deleted, and keeps its address until {until}");
            (reason, what_to_do.to_owned())
        };
        assert_eq!(of(json!({})), keeps("the controller has released it", LEADS));
        let finalizers = json!({"metadata": {"finalizers": ["a.example/b", CLAIM_FINALIZER]}});
        let remove = "remove the finalizers if their programs do not";
        assert_eq!(of(finalizers), keeps("these finalizers are gone: a.example/b", remove));
        let paused = json!({"metadata": {"annotations": {(PAUSED_ANNOTATION): ""}}});
        assert_eq!(of(paused), keeps("its pause ends", "end the pause"));
    }

    #[test]
    fn the_answer_about_an_ipam_claim_of_an_exhausted_pool_advises_to_add_addresses() {
        let failed = condition("IPsAllocated", "False", "SubnetExhausted", "pool n/p has no free IPv4 address");
        let claim = object(&json!({"status": {"conditions": [failed]}}));
        let (state, since) = (ClaimState::Waiting, Some("2026-08-14T10:00:00Z"));
        let reason = "SubnetExhausted: pool n/p has no free IPv4 address";
        let what_to_do = Some("add addresses to the pool, or delete claims that hold some");
        assert_eq!(said(&explain(HolderKind::IpamClaim, &claim, &[], None)), (state, None, since, reason, what_to_do));
    }

    /// The answer about an IPAMClaim of a network, in a cluster where a pool serves the network `blue` in the namespace
    /// `n`.
    fn of_ipam_claim(namespace: &str, network: &str, conditions: &[Value]) -> ClaimAnswer {
        let mut lists = Lists::default();
        let spec = json!({
            "network": "infra/net", "addresses": ["10.0.0.8/29"], "machineNetwork": [{"cidr": "10.0.0.0/24"}],
            "serveIPAMClaims": true,
        });
        let read = |object: Value| serde_json::from_value::<Object>(object).unwrap();
        lists.add_pool(read(json!({"metadata": {"namespace": "n", "name": "p", "uid": "p"}, "spec": spec})));
        let config = json!({"name": "blue", "type": "ovn-k8s-cni-overlay"}).to_string();
        lists.add_attachment(read(
            json!({"metadata": {"namespace": "infra", "name": "net"}, "spec": {"config": config}}),
        ));
        let claim = object(&json!({
            "metadata": {"namespace": namespace}, "spec": {"network": network, "poolRef": null},
            "status": {"conditions": conditions},
        }));
        lists.add_ipam_claim(claim.clone());
        let serving = lists.serving(&Key::of(&claim.metadata));
        explain(HolderKind::IpamClaim, &claim, &[], Some(&serving))
    }

    #[test]
    fn an_ipam_claim_that_no_pool_serves_is_not_selected() {
        let what_to_do = "compare spec.network of the claim with name in the configuration of the pool's network attachment \
                          definition; if another program serves this network, look there";
        for (namespace, network) in [("n", "red"), ("tenants", "blue")] {
            let reason = format!("no pool with serveIPAMClaims serves network {network:?} in namespace {namespace}");
            let expected = (ClaimState::NotSelected, None, None, &*reason, Some(what_to_do));
            assert_eq!(said(&of_ipam_claim(namespace, network, &[])), expected);
        }
    }

    #[test]
    fn an_ipam_claim_that_a_pool_serves_waits_for_the_controller_or_for_an_address() {
        let (unseen, created) = ("the controller has not looked at the claim yet", Some("2026-08-14T09:00:00Z"));
        let expected = (ClaimState::Waiting, Some("n/p"), created, unseen, Some(LEADS));
        assert_eq!(said(&of_ipam_claim("n", "blue", &[])), expected);
        let failed = condition("IPsAllocated", "False", "SubnetExhausted", "pool n/p has no free IPv4 address");
        assert_eq!(
            of_ipam_claim("n", "blue", &[failed]).to_string(),
            "CLAIM  KIND       POOL  STATE    SINCE\n\
             n/c    IPAMClaim  n/p   waiting  2026-08-14T10:00:00Z\n\n\
             REASON\n\
             SubnetExhausted: pool n/p has no free IPv4 address\n\n\
             WHAT TO DO\n\
             add addresses to the pool, or delete claims that hold some\n"
        );
    }

    #[test]
    fn a_claim_of_another_program_a_deleted_claim_and_a_ready_claim_do_not_wait() {
        let foreign = json!({"spec": {"poolRef": {"apiGroup": "example.org"}}});
        assert_eq!(
            said(&of(&[condition("Ready", "False", "Any", "")], &foreign)),
            (
                ClaimState::NotSelected,
                None,
                None,
                "the claim names the pool of another program",
                Some("look at the controller of the pool in spec.poolRef of the claim")
            )
        );
        assert_eq!(waits(HolderKind::IpAddressClaim, &object(&foreign)), None);
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-08-14T11:00:00Z"}});
        assert_eq!(waits(HolderKind::IpAddressClaim, &object(&deleted)), None);
        let ready = json!({"status": {"conditions": [condition("Ready", "True", "AddressAllocated", "")]}});
        assert_eq!(waits(HolderKind::IpAddressClaim, &object(&ready)), None);
        assert_eq!(waits(HolderKind::IpamClaim, &object(&json!({}))), None);
    }

    #[test]
    fn the_table_of_a_claim_with_an_address_has_the_address_and_its_pool() {
        let lease = |kind: &str, name: &str| {
            serde_json::from_value::<LeaseSpec>(json!({
                "network": "infra/vlan10", "address": "10.0.0.8", "prefix": 24, "pool": "n/p",
                "holder": {"kind": kind, "namespace": "n", "name": name, "uid": "u", "interface": "eno101"},
                "since": "2026-08-14T10:00:00.000000Z",
            }))
            .unwrap()
        };
        let leases = [lease("IPAddressClaim", "c"), lease("IPAddressClaim", "d"), lease("KubevirtMachine", "c")];
        assert_eq!(
            explain(HolderKind::IpAddressClaim, &object(&json!({})), &leases, None).to_string(),
            "CLAIM  KIND            POOL  STATE      SINCE\n\
             n/c    IPAddressClaim  n/p   allocated  2026-08-14T10:00:00Z\n\n\
             REASON\n\
             the claim holds its address\n\n\
             ADDRESS      NETWORK       POOL  SINCE\n\
             10.0.0.8/24  infra/vlan10  n/p   2026-08-14T10:00:00Z\n"
        );
    }
}

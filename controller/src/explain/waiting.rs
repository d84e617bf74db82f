//! Finds the claims and machines that wait for an address or are refused.
//!
//! | the object is | the reason is from |
//! |---|---|
//! | a claim | its condition, which the controller writes |
//! | a VirtualMachine | `why` |
//! | a KubevirtMachine whose VirtualMachine could not be created | its condition, which cluster-api-provider-kubevirt writes |
//! | any other object | the status of its pools, which names the first waiting objects |

use std::collections::{BTreeMap, BTreeSet};

use glowplug::host::claim::HolderKind;
use k8s_openapi::api::core::v1;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, ListParams};
use serde::Serialize;

use crate::cluster::conditions::head;
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::explain::claim::{Waits, waits};
use crate::explain::event::Event;
use crate::explain::lists::namespaces;
use crate::explain::read::{Listed, Reader};
use crate::explain::why::{Known, Recording, Seen};
use crate::kinds::cluster_api::{IpAddressClaim, Kinds};
use crate::kinds::ipam_claim::ipam_claims;
use crate::kinds::kubevirt_machine::{Instance, KubevirtMachine, NetworkSecret, is_deleted};
use crate::kinds::pool::{LeaseSpec, StaticIPLease};
use crate::kinds::virtual_machine::{VirtualMachine, instances, kubevirt_machines, node_pools, virtual_machines};
use crate::pools::selection::KnownPool;

/// A claim or machine that waits for an address or is refused.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiter {
    /// Kind of the object.
    pub kind: HolderKind,
    /// Namespace and name of the object.
    pub object: String,
    /// The pools from which the object would get an address. Empty: unknown.
    pub pools: Vec<String>,
    /// Time since which the object waits, as RFC 3339. `null`: unknown.
    pub since: Option<String>,
    /// Why the object waits or is refused.
    pub reason: String,
}

/// Reads the claims and machines that wait for these pools or for a MACPool, or that are refused.
///
/// # Errors
///
/// A request failed.
pub(super) async fn waiters(reader: &Reader, pools: &[KnownPool], has_mac_pools: bool) -> anyhow::Result<Vec<Waiter>> {
    let mut waiters = Vec::new();
    // If the user has no right to list the pools, every kind is read, so that the error names every missing right.
    let is_any = reader.has_no_answer();
    if let Some(kinds) = Kinds::discover(reader.client()).await? {
        let all = ListParams::default();
        reader.each(&kinds.claims, reader.scope(), all, |claim| waiters.extend(of_claim(&claim))).await?;
    }
    if is_any || pools.iter().any(|pool| pool.checked.spec.serve_ipam_claims) {
        let all = ListParams::default();
        reader.each(&ipam_claims(), reader.scope(), all, |claim| waiters.extend(of_ipam_claim(&claim))).await?;
    }
    let selects = |pool: &KnownPool| {
        let spec = &pool.checked.spec;
        spec.node_pool_ref.is_some()
            || spec.node_pool_refs.is_some()
            || spec.machine_selector.is_some()
            || spec.namespace_selector.is_some()
    };
    let mut machines = BTreeSet::new();
    if is_any || has_mac_pools || pools.iter().any(selects) {
        for (waiter, names) in of_machines(reader, pools).await? {
            machines.extend(names);
            waiters.push(waiter);
        }
    }
    waiters.extend(of_pools(pools, &machines, &waiters));
    waiters.sort_by_cached_key(|it| {
        let since = it.since.as_deref().and_then(|since| since.parse::<Timestamp>().ok());
        (since.is_none(), since, it.object.clone())
    });
    Ok(waiters)
}

/// Returns an IPAddressClaim that waits. A claim also waits if its reference to a pool of glowplug has a mistake.
fn of_claim(object: &Object) -> Option<Waiter> {
    let Waits { reason, since, .. } = waits(HolderKind::IpAddressClaim, object)?;
    let claim = IpAddressClaim::read(object.clone()).ok()?;
    let key = claim.key();
    let pools = claim.pool.resolve(&key.namespace).iter().map(PoolId::to_string).collect();
    Some(Waiter { kind: HolderKind::IpAddressClaim, object: key.to_string(), pools, since, reason })
}

/// Returns an IPAMClaim whose condition reports a failure.
fn of_ipam_claim(object: &Object) -> Option<Waiter> {
    let Waits { reason, since, .. } = waits(HolderKind::IpamClaim, object)?;
    let object = Key::of(&object.metadata).to_string();
    Some(Waiter { kind: HolderKind::IpamClaim, object, pools: Vec::new(), since, reason })
}

/// A KubevirtMachine whose VirtualMachine could not be created.
struct Rejected {
    waiter: Waiter,
    key: Key,
    machine: KubevirtMachine,
}

/// Returns a KubevirtMachine whose VirtualMachine could not be created, with the reason that
/// cluster-api-provider-kubevirt gives. `None`: the VirtualMachine exists, or the condition has no reason.
fn of_rejected(machine: Object) -> Option<Rejected> {
    let conditions = machine.data["status"]["conditions"].as_array()?;
    let rejected = conditions.iter().find(|it| it["type"] == "VMProvisioned" && it["status"] == "False")?;
    let reason = rejected["message"].as_str().filter(|text| !text.is_empty())?;
    let (key, since) = (Key::of(&machine.metadata), rejected["lastTransitionTime"].as_str().map(str::to_owned));
    let (kind, object, reason) = (HolderKind::KubevirtMachine, key.to_string(), head(reason).to_owned());
    let waiter = Waiter { kind, object, pools: Vec::new(), since, reason };
    Some(Rejected { waiter, key, machine: KubevirtMachine::read(machine) })
}

/// Returns the machines that wait or are refused, each with its own name and the name of its KubevirtMachine. If the
/// user has no right to list the leases or the NodePools, returns only the KubevirtMachines whose VirtualMachine could
/// not be created.
async fn of_machines(reader: &Reader, pools: &[KnownPool]) -> anyhow::Result<Vec<(Waiter, Vec<Key>)>> {
    let all = ListParams::default;
    let (mut leases, mut of_node_pools) = (Vec::new(), Vec::new());
    let spec = |lease: Object| serde_json::from_value::<LeaseSpec>(lease.data.get("spec")?.clone()).ok();
    let lease = ApiResource::erase::<StaticIPLease>(&());
    let has_leases = reader.each(&lease, None, all(), |lease| leases.extend(spec(lease))).await?;
    let has_node_pools = reader.each(&node_pools(), reader.scope(), all(), |it| of_node_pools.push(it)).await?;
    let namespaces = namespaces(reader, pools.iter().map(|pool| &*pool.checked)).await?;
    let (mut vms, mut guests) = (Vec::new(), BTreeMap::new());
    reader.each(&virtual_machines(), None, all(), |vm| vms.push(VirtualMachine::read(vm))).await?;
    let (mut rejected, mut recordings) = (Vec::new(), BTreeMap::new());
    let of_machine = |machine: Object| {
        recordings.insert(Key::of(&machine.metadata), Recording::of(&machine));
        rejected.extend(of_rejected(machine));
    };
    reader.each(&kubevirt_machines(), None, all(), of_machine).await?;
    let guest = |guest: Object| {
        let phase = guest.data["status"]["phase"].as_str().map(str::to_owned);
        guests.insert(Key::of(&guest.metadata), (phase, Instance::read(guest)));
    };
    reader.each(&instances(), None, all(), guest).await?;
    let names: BTreeSet<Key> = vms.iter().flat_map(|vm| vm.kubevirt_machine().into_iter().chain([vm.key()])).collect();
    rejected.retain(|rejected| !names.contains(&rejected.key));
    if [has_leases, has_node_pools] != [Listed::Whole; 2] {
        return Ok(rejected.into_iter().map(|Rejected { waiter, key, .. }| (waiter, vec![key])).collect());
    }
    let uids: BTreeMap<Key, Option<&str>> = vms.iter().map(|vm| (vm.key(), vm.metadata.uid.as_deref())).collect();
    let mut events: BTreeMap<Key, Vec<Event>> = BTreeMap::new();
    let event = |event: Object| {
        let of = &event.data["involvedObject"];
        let (Some(namespace), Some(name)) = (of["namespace"].as_str(), of["name"].as_str()) else { return };
        let key = Key::from((namespace, name));
        if let Some(read) = uids.get(&key).and_then(|uid| Event::of_controller(&event, *uid)) {
            events.entry(key).or_default().push(read);
        }
    };
    let of_machines = all().fields("involvedObject.kind=VirtualMachine");
    reader.each(&ApiResource::erase::<v1::Event>(&()), None, of_machines, event).await?;
    let known = Known::new(pools.to_vec(), of_node_pools, namespaces.as_ref(), leases);
    let rejected = rejected.into_iter().map(|Rejected { mut waiter, key, machine }| {
        waiter.pools = known.lacking(&machine).unwrap_or_default();
        (waiter, vec![key])
    });
    let mut waiters: Vec<(Waiter, Vec<Key>)> = rejected.collect();
    for machine in vms.iter().filter(|vm| !is_deleted(&vm.metadata)) {
        let key = machine.key();
        let (phase, instance) = guests.get(&key).map_or((None, None), |(phase, guest)| (phase.clone(), Some(guest)));
        let events = events.remove(&key).unwrap_or_default();
        let kubevirt_machine = machine.kubevirt_machine().and_then(|key| recordings.remove(&key)).unwrap_or_default();
        let secret = &NetworkSecret::Absent;
        let answer =
            known.explain(Seen { machine, relabelled: None, phase, instance, secret, kubevirt_machine, events });
        if answer.waits {
            let mut pools: Vec<String> = answer.pools.into_iter().map(|it| it.pool).collect();
            pools.dedup();
            let created = machine.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
            let waiter = Waiter {
                kind: HolderKind::VirtualMachine,
                object: answer.machine,
                pools,
                since: answer.since.or(created),
                reason: answer.reason,
            };
            waiters.push((waiter, machine.kubevirt_machine().into_iter().chain([key]).collect()));
        }
    }
    Ok(waiters)
}

/// Returns the objects that wait according to the status of the pools, without the objects in `known` and `machines`.
fn of_pools(pools: &[KnownPool], machines: &BTreeSet<Key>, known: &[Waiter]) -> Vec<Waiter> {
    let mut waiting: BTreeMap<(String, HolderKind), Waiter> = BTreeMap::new();
    for pool in pools {
        let id: &PoolId = &pool.checked.id;
        for first in &pool.status.first_waiting {
            let key = Key { namespace: first.namespace.clone(), name: first.name.clone() };
            let object = key.to_string();
            let is_known = match first.kind.is_claim() {
                true => known.iter().any(|it| it.kind == first.kind && it.object == object),
                false => machines.contains(&key),
            };
            if is_known {
                continue;
            }
            let reason = match &first.family {
                Some(family) => format!("pool {id} has no free {family} address"),
                None => format!("pool {id} is one of several pools of the object, and another one has no free address"),
            };
            match waiting.get_mut(&(object.clone(), first.kind)) {
                Some(waiter) => {
                    waiter.pools.push(id.to_string());
                    waiter.reason = format!("{}; {reason}", waiter.reason);
                }
                None => {
                    let (pools, since) = (vec![id.to_string()], Some(first.since.0.to_string()));
                    let waiter = Waiter { kind: first.kind, object: object.clone(), pools, since, reason };
                    waiting.insert((object, first.kind), waiter);
                }
            }
        }
    }
    waiting.into_values().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::object::object;
    use crate::pools::facts::PoolObject;

    fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
        json!([{"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-08-14T10:00:00Z"}])
    }

    fn claim(pool: &str, conditions: Value) -> Object {
        object(json!({
            "metadata": {"namespace": "n", "name": "c", "uid": "u"},
            "spec": {"poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": pool, "name": "p"}},
            "status": {"conditions": conditions},
        }))
    }

    fn waiter(kind: HolderKind, object: &str, pools: &[&str], reason: &str) -> Waiter {
        Waiter {
            kind,
            object: object.to_owned(),
            pools: pools.iter().map(|&pool| pool.to_owned()).collect(),
            since: Some("2026-08-14T10:00:00Z".to_owned()),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_refused_claim_is_listed_with_its_reason() {
        let refused = condition("Ready", "False", "AllocationFailed", "10.0.0.9: not in pool \"n/p\"");
        let reason = "AllocationFailed: 10.0.0.9: not in pool \"n/p\"";
        let expected = waiter(HolderKind::IpAddressClaim, "n/c", &["n/p"], reason);
        assert_eq!(of_claim(&claim("StaticIPPool", refused)), Some(expected));
        assert_eq!(of_claim(&claim("StaticIPPool", condition("Ready", "True", "Ready", ""))), None);
        let reason = "AllocationFailed: spec.poolRef.kind: unknown kind \"StaticPool\", expected StaticIPPool or GlobalStaticIPPool";
        let expected = Waiter { since: None, ..waiter(HolderKind::IpAddressClaim, "n/c", &[], reason) };
        assert_eq!(of_claim(&claim("StaticPool", json!([]))), Some(expected));
        let failed = condition("IPsAllocated", "False", "SubnetExhausted", "pool n/p has no free IPv4 address");
        let expected = waiter(HolderKind::IpamClaim, "n/c", &[], "SubnetExhausted: pool n/p has no free IPv4 address");
        assert_eq!(of_ipam_claim(&claim("", failed)), Some(expected));
    }

    #[test]
    fn a_machine_whose_virtual_machine_could_not_be_created_is_listed_with_the_reason() {
        let machine = |status: &str, message: &str| {
            let conditions = condition("VMProvisioned", status, "VMCreateFailed", message);
            object(json!({"metadata": {"namespace": "n", "name": "w"}, "status": {"conditions": conditions}}))
        };
        let quota = "virtualmachines.kubevirt.io \"w\" is forbidden: exceeded quota: vms";
        let rejected = of_rejected(machine("False", quota)).map(|it| (it.waiter, it.key));
        let expected = waiter(HolderKind::KubevirtMachine, "n/w", &[], quota);
        assert_eq!(rejected, Some((expected, Key::from(("n", "w")))));
        assert!(of_rejected(machine("False", "")).is_none());
        assert!(of_rejected(machine("True", quota)).is_none());
    }

    #[test]
    fn an_object_that_only_the_status_of_two_pools_names_is_listed_once() {
        let pool = |name: &str, family: Option<&str>| {
            let first = |kind: &str, name: &str| {
                let mut first = json!({"kind": kind, "namespace": "n", "name": name, "since": "2026-08-14T10:00:00Z"});
                json_patch::merge(&mut first, &json!({"family": family}));
                first
            };
            let waiting = [first("KubevirtMachine", "m"), first("IPAddressClaim", "c"), first("KubevirtMachine", "vm")];
            KnownPool::read(PoolObject::read(object(json!({
                "metadata": {"namespace": "n", "name": name}, "spec": {"network": "a", "addresses": ["10.0.0.8/29"]},
                "status": {"firstWaiting": waiting},
            }))))
        };
        let known = [waiter(HolderKind::IpAddressClaim, "n/c", &["n/p"], "x")];
        let machines = [Key::from(("n", "vm"))].into();
        let reason = "pool n/p has no free IPv4 address; pool n/q is one of several pools of the object, and another one has no free \
                      address";
        let expected = waiter(HolderKind::KubevirtMachine, "n/m", &["n/p", "n/q"], reason);
        assert_eq!(of_pools(&[pool("p", Some("IPv4")), pool("q", None)], &machines, &known), [expected]);
    }
}

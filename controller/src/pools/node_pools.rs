//! Maintains the condition `KubevirtIPPoolExhausted` of the NodePools of HyperShift, and a pool for each NodePool with
//! a `bootstrapNetworkConfig`. Only the leader does this.
//!
//! `NodePool.status.conditions` is a plain list, and HyperShift writes the whole list. Therefore the controller also
//! writes the whole list: its own condition, and the other conditions that it has read. The write names the
//! `resourceVersion` of the read object, so that no newer condition is lost. The controller writes again whenever the
//! NodePool changes and the condition is not correct.
//!
//! Sources: openshift/enhancements pull request 1855; `api/hypershift/v1beta1/nodepool_conditions.go` of openshift/hypershift.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use glowplug::host::nodepool::MACHINE_NETWORK_ANNOTATION;
use glowplug::host::pool::PoolSpec as FileSpec;
use glowplug::host::pools_file::read_pools;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::events::EventType;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::cluster::backoff::{BackOff, Postponed};
use crate::cluster::client::if_served;
use crate::cluster::conditions::condition;
use crate::cluster::events::{Events, reference};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::cluster::request::{Refusal, ask, find, stored};
use crate::kinds::pool::{MachineNetwork, NodePoolRef, PoolSpec, StaticIPPool};
use crate::kinds::virtual_machine::{hosted_clusters, node_pools};
use crate::pools::facts::PoolObject;
use crate::pools::selection::{MachinePool, Selection, cluster_of, has_config};
use crate::pools::selection_cache::SelectionCache;
use crate::repeated::Repeated;

pub use glowplug::host::metrics::EXHAUSTED_CONDITION as CONDITION;

/// Pauses between attempts for a NodePool, after failures.
const PAUSES: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Interval between attempts to write a pool that is invalid or that the API server rejects. Another object may be the
/// cause, such as the HostedCluster or a pool with some of the addresses, so a later attempt may succeed.
const RETRY: Duration = Duration::from_secs(60);

/// The task that maintains the conditions and the derived pools of NodePools.
pub struct NodePools {
    client: Client,
    selection: Arc<SelectionCache>,
    events: Events,
    /// The versions for which the derived pool of a NodePool needs no write.
    settled: BTreeMap<Key, Settled>,
    /// For each NodePool, the problem of its configuration that already has an event.
    reported: BTreeMap<Key, Problem>,
    /// Time of the next attempt for NodePools with a problem.
    retry: Instant,
    postponed: Postponed<Key>,
    lines: Repeated,
}

/// Why the configuration of a NodePool has no effect: the reason and the message of the event.
type Problem = (&'static str, String);

/// The version of a NodePool, and the specification of its derived pool. The `bool` is `true` if the pool is being
/// deleted.
type Settled = (Option<String>, Option<(PoolSpec, bool)>);

/// The action that the configuration of a NodePool requires.
#[derive(Clone, Debug, PartialEq)]
enum Derived {
    /// Nothing must be done: the NodePool has no configuration and no derived pool, or is being deleted.
    Nothing,
    /// The derived pool is correct.
    Right,
    /// The pool must be written with this specification.
    Write(Box<PoolSpec>),
    /// The configuration is gone, so the pool must be deleted.
    Delete,
    /// The pool must not be changed: the configuration has errors, another pool has the name, or the pool is being
    /// deleted.
    Problem(Problem),
}

// === impl NodePools ===

impl NodePools {
    /// Creates the task for the NodePools and pools of `selection`.
    #[must_use]
    pub fn new(client: Client, selection: Arc<SelectionCache>, events: Events) -> Self {
        let (settled, reported) = (BTreeMap::new(), BTreeMap::new());
        let (retry, postponed, lines) = (Instant::now() + RETRY, Postponed::new(PAUSES), Repeated::default());
        Self { client, selection, events, settled, reported, retry, postponed, lines }
    }

    /// Runs a pass whenever the selection changes, until the future is dropped.
    pub async fn run(mut self) -> Infallible {
        let mut selections = self.selection.subscribe();
        loop {
            if self.retry <= Instant::now() {
                self.retry = Instant::now() + RETRY;
                self.settled.retain(|key, _| !self.reported.contains_key(key));
            }
            let selection = selections.borrow_and_update().clone();
            if let Some(selection) = selection {
                self.pass(&selection).await;
            }
            let next = self.postponed.next();
            tokio::select! {
                Ok(()) = selections.changed() => {}
                () = sleep_until(next.unwrap_or(self.retry)), if next.is_some() => {}
                () = sleep_until(self.retry), if !self.reported.is_empty() => {}
            }
        }
    }

    /// Updates the condition and the derived pool of every NodePool that is not postponed.
    async fn pass(&mut self, selection: &Selection) {
        let mut pools: BTreeMap<Key, Vec<&MachinePool>> = BTreeMap::new();
        for pool in selection.pools().filter(|pool| !pool.is_deleted) {
            for node_pool in pool.node_pools() {
                pools.entry(node_pool).or_default().push(pool);
            }
        }
        for (key, node_pool) in selection.node_pools() {
            if !self.postponed.is_due(key, Instant::now()) {
                continue;
            }
            let of_node_pool = pools.get(key).map(Vec::as_slice).unwrap_or_default();
            let results = [self.report(node_pool, of_node_pool).await, self.derive(selection, key, node_pool).await];
            let now = Instant::now();
            self.postponed.note(key, results.iter().any(Result::is_err), now);
            for error in results.into_iter().filter_map(Result::err) {
                if let Some(hidden) = self.lines.note(&error, now) {
                    tracing::warn!(node_pool = %key, error, hidden, "could not update the condition or the derived pool of a NodePool");
                }
            }
        }
        self.postponed.retain(|key| selection.node_pools().contains_key(key));
        self.settled.retain(|key, _| selection.node_pools().contains_key(key));
        self.reported.retain(|key, _| selection.node_pools().contains_key(key));
    }

    /// Writes the condition of a NodePool, if the stored condition is not correct.
    async fn report(&self, node_pool: &Object, pools: &[&MachinePool]) -> Result<(), String> {
        let Some(conditions) = conditions(node_pool, pools, Timestamp::now()) else { return Ok(()) };
        let key = Key::of(&node_pool.metadata);
        let patch = json!({
            "metadata": {"resourceVersion": node_pool.metadata.resource_version},
            "status": {"conditions": conditions},
        });
        let api: Api<Object> = Api::namespaced_with(self.client.clone(), &key.namespace, &node_pools());
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let written =
            stored(ask(api.patch_status(&key.name, &params, &patch)).await).map_err(|error| error.to_string())?;
        // The NodePool has changed or is gone. The watch reports this, which causes another pass.
        if written.is_none() {
            return Ok(());
        }
        if let Some(message) = exhausted(pools).filter(|_| !is_exhausted(node_pool)) {
            self.events.publish(reference_to(node_pool), EventType::Warning, "IPPoolExhausted", &message);
        }
        Ok(())
    }

    /// Writes or deletes the pool that is derived from the configuration of a NodePool.
    async fn derive(&mut self, selection: &Selection, key: &Key, node_pool: &Object) -> Result<(), String> {
        let id = PoolId { namespace: Some(key.namespace.clone()), name: key.name.clone() };
        let pool = selection.pool(&id).map(Arc::as_ref);
        let version = node_pool.metadata.resource_version.clone();
        let settled = (version, pool.map(|pool| (pool.spec.clone(), pool.is_deleted)));
        if self.settled.get(key) == Some(&settled) {
            return Ok(());
        }
        let hosted_cluster = if has_config(node_pool) { self.hosted_cluster(key, node_pool).await? } else { None };
        let mut derived = derive(node_pool, hosted_cluster.as_ref(), pool);
        if let Err(errors) = self.write(key, node_pool, pool, &derived).await? {
            let subnet = lacking_subnet(&errors, node_pool, hosted_cluster.as_ref()).unwrap_or_default();
            derived = Derived::Problem(("InvalidSpec", errors + &subnet));
        }
        match &derived {
            Derived::Problem(problem) => {
                if self.reported.insert(key.clone(), problem.clone()).as_ref() != Some(problem) {
                    let (reason, message) = problem;
                    tracing::warn!(node_pool = %key, reason, "bootstrapNetworkConfig has no effect: {message}");
                    self.events.publish(reference_to(node_pool), EventType::Warning, reason, message);
                }
            }
            _ => drop(self.reported.remove(key)),
        }
        if !matches!(derived, Derived::Write(_) | Derived::Delete) {
            self.settled.insert(key.clone(), settled);
        }
        Ok(())
    }

    /// Writes or deletes the pool as decided. The inner `Err` has the message with which the API server rejects the
    /// specification.
    async fn write(
        &self,
        key: &Key,
        node_pool: &Object,
        pool: Option<&MachinePool>,
        derived: &Derived,
    ) -> Result<Result<(), String>, String> {
        let kind = ApiResource::erase::<StaticIPPool>(&());
        let api: Api<Object> = Api::namespaced_with(self.client.clone(), &key.namespace, &kind);
        let written = async {
            match (derived, pool) {
                (Derived::Write(spec), None) => {
                    let owner = json!({
                        "apiVersion": node_pools().api_version, "kind": "NodePool", "name": key.name,
                        "uid": node_pool.metadata.uid, "controller": true,
                    });
                    let mut object = Object::new(&key.name, &kind, json!({"spec": spec}));
                    object.metadata.owner_references = serde_json::from_value(json!([owner])).ok();
                    api.create(&PostParams::default(), &object).await.map(drop)
                }
                (Derived::Write(spec), Some(pool)) => {
                    let spec = changes(&pool.spec, spec);
                    let patch = Patch::Merge(json!({"metadata": {"uid": pool.uid}, "spec": spec}));
                    api.patch(&key.name, &PatchParams::default(), &patch).await.map(drop)
                }
                (Derived::Delete, _) => match self.to_delete(key, &api).await? {
                    Some(same) => api.delete(&key.name, &DeleteParams::default().preconditions(same)).await.map(drop),
                    None => Ok(()),
                },
                (Derived::Nothing | Derived::Right | Derived::Problem(_), _) => Ok(()),
            }
        };
        let Err(error) = ask(written).await else { return Ok(Ok(())) };
        match error.refusal() {
            // This part gets no report of a changed status of the pool, so the deletion is tried again later.
            Some(Refusal::Other) if *derived == Derived::Delete => Err(error.to_string()),
            // The NodePool or the pool has changed or is gone. The watch reports this, which causes another pass.
            Some(Refusal::Absent | Refusal::Other) => Ok(Ok(())),
            // Meanwhile, another pool of the same name has been created.
            Some(Refusal::ForGood(status)) if status.message.contains("metadata.uid") => Ok(Ok(())),
            Some(Refusal::ForGood(status)) if status.code == 422 => Ok(Err(status.message.clone())),
            Some(Refusal::ForGood(_)) | None => Err(error.to_string()),
        }
    }

    /// Reads the derived pool and its NodePool again, and returns the version of the pool to delete. A deleted pool
    /// serves no new machine until its last address is released, so a user who has written the configuration again must
    /// not lose the pool. `None`: the pool stays. The watch reports the change, which causes another pass.
    async fn to_delete(&self, key: &Key, pools: &Api<Object>) -> kube::Result<Option<Preconditions>> {
        let all: Api<Object> = Api::namespaced_with(self.client.clone(), &key.namespace, &node_pools());
        // A list of one object needs only the right to list, which the controller has anyway.
        let only = ListParams::default().fields(&format!("metadata.name={}", key.name));
        let (pool, node_pool) = (pools.list(&only).await?.items.pop(), all.list(&only).await?.items.pop());
        let (Some(pool), Some(node_pool)) = (pool, node_pool) else { return Ok(None) };
        let ObjectMeta { uid, resource_version, .. } = pool.metadata.clone();
        let pool = MachinePool::read(PoolObject::read(pool));
        let is_needless = derive(&node_pool, None, Some(&pool)) == Derived::Delete;
        Ok(is_needless.then_some(Preconditions { uid, resource_version }))
    }

    /// Reads the HostedCluster of a NodePool. Its `machineNetwork` has the prefix lengths. `None`: the NodePool names
    /// no HostedCluster, the HostedCluster does not exist, or the API server does not serve its kind.
    async fn hosted_cluster(&self, key: &Key, node_pool: &Object) -> Result<Option<Object>, String> {
        let Some(name) = cluster_of(node_pool) else { return Ok(None) };
        let (client, kind) = (&self.client, hosted_clusters());
        let api: Api<Object> = Api::namespaced_with(client.clone(), &key.namespace, &kind);
        let read = ask(async { if_served(client, &kind, find(&api, name).await).await }).await;
        read.map(Option::flatten).map_err(|error| error.to_string())
    }
}

// === The condition ===

/// Returns the conditions that the NodePool must have. `None`: the NodePool already has these conditions.
fn conditions(node_pool: &Object, pools: &[&MachinePool], now: Timestamp) -> Option<Vec<Value>> {
    let all = node_pool.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let before = all.iter().find(|condition| condition["type"] == CONDITION);
    let others = all.iter().filter(|condition| condition["type"] != CONDITION);
    if pools.is_empty() {
        return before.map(|_| others.cloned().collect());
    }
    let (status, reason, message) = match exhausted(pools) {
        Some(message) => ("True", "NoFreeAddress", message),
        None => ("False", "AsExpected", "The pools of the NodePool have free addresses".to_owned()),
    };
    let stored: Option<Condition> = before.and_then(|before| serde_json::from_value(before.clone()).ok());
    let generation = node_pool.metadata.generation;
    let wanted = condition(stored.as_slice(), CONDITION, (status, reason, &message), generation, now);
    // If only the generation differs, no write is needed.
    if stored.is_some_and(|stored| Condition { observed_generation: generation, ..stored } == wanted) {
        return None;
    }
    // The condition keeps its position in the list.
    let (is_new, condition) = (before.is_none(), json!(wanted));
    let mut conditions: Vec<Value> =
        all.iter().map(|known| if known["type"] == CONDITION { condition.clone() } else { known.clone() }).collect();
    conditions.extend(is_new.then_some(condition));
    Some(conditions)
}

/// Joins the messages of the exhausted pools, without duplicates. An exhausted pool does not count if another pool of
/// the NodePool on the same network has free addresses. `None`: on each network, the machines of the NodePool can get
/// addresses.
fn exhausted(pools: &[&MachinePool]) -> Option<String> {
    let mut by_network: BTreeMap<Option<&str>, Vec<Option<&str>>> = BTreeMap::new();
    for pool in pools {
        by_network.entry(pool.network()).or_default().push(pool.exhausted.as_deref());
    }
    let all = by_network.into_values().filter_map(|all| all.into_iter().collect::<Option<Vec<&str>>>());
    let messages: BTreeSet<&str> = all.flatten().collect();
    (!messages.is_empty()).then(|| messages.into_iter().collect::<Vec<_>>().join("; "))
}

/// Whether the condition of the NodePool has the status `True`.
fn is_exhausted(node_pool: &Object) -> bool {
    let conditions = node_pool.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == CONDITION && condition["status"] == "True")
}

fn reference_to(node_pool: &Object) -> ObjectReference {
    let ObjectMeta { namespace, name, uid, .. } = node_pool.metadata.clone();
    reference(&node_pools(), namespace, name.unwrap_or_default(), uid)
}

// === The derived pool ===

/// Decides what to do with the pool that is derived from a NodePool. `pool` is the existing pool with the name of the
/// NodePool.
fn derive(node_pool: &Object, hosted_cluster: Option<&Object>, pool: Option<&MachinePool>) -> Derived {
    let is_owned = |pool: &MachinePool| pool.owner.is_some() && pool.owner == node_pool.metadata.uid;
    let in_the_way = |problem: String| Derived::Problem(("PoolNotDerived", problem));
    match (has_config(node_pool), pool) {
        // When the NodePool is gone, the garbage collector deletes the pool.
        _ if node_pool.metadata.deletion_timestamp.is_some() => return Derived::Nothing,
        (false, Some(pool)) if is_owned(pool) && !pool.is_deleted => return Derived::Delete,
        (false, _) => return Derived::Nothing,
        (true, Some(pool)) if pool.is_deleted => {
            return in_the_way(format!(
                "pool {} is being deleted, and stays until its last address is released",
                pool.id
            ));
        }
        (true, Some(pool)) if !is_owned(pool) => {
            return in_the_way(format!(
                "pool {} is not derived from this NodePool, expected no pool of this name",
                pool.id
            ));
        }
        (true, _) => {}
    }
    let mut items = Vec::new();
    for (kind, object) in [("NodePool", Some(node_pool)), ("HostedCluster", hosted_cluster)] {
        let Some(object) = object else { continue };
        let mut item = serde_json::to_value(object).unwrap_or_default();
        item["kind"] = kind.into();
        items.push(item);
    }
    let (specs, diagnostics) = read_pools(json!({"kind": "List", "items": items}).to_string().as_bytes());
    let errors: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
    match specs.into_iter().next() {
        Some(spec) if !diagnostics.has_errors() && !spec.has_errors => {
            let name = node_pool.metadata.name.clone().unwrap_or_default();
            let stored = pool.map(|pool| &pool.spec);
            let spec = specification(spec, name, stored.cloned().unwrap_or_default());
            if stored == Some(&spec) { Derived::Right } else { Derived::Write(Box::new(spec)) }
        }
        _ => Derived::Problem(("InvalidSpec", errors.join("\n"))),
    }
}

/// Returns the line that follows `errors`, the errors with which the API server rejects a derived pool. The line says
/// where the controller looks for the subnet of the machines. `None`: no error is about an unknown prefix length.
fn lacking_subnet(errors: &str, node_pool: &Object, hosted_cluster: Option<&Object>) -> Option<String> {
    if !errors.contains("unknown subnet of") {
        return None;
    }
    let namespace = node_pool.metadata.namespace.as_deref().unwrap_or_default();
    let of_cluster = cluster_of(node_pool).map(|name| match hosted_cluster {
        Some(_) => format!("from HostedCluster {namespace}/{name}, or "),
        None => format!("from HostedCluster {namespace}/{name}, which does not exist, or "),
    });
    let of_cluster = of_cluster.unwrap_or_default();
    Some(format!("\nmachineNetwork comes {of_cluster}from annotation {MACHINE_NETWORK_ANNOTATION} of the NodePool"))
}

/// Converts the configuration of a NodePool to the specification of a StaticIPPool. Members that the configuration does
/// not have come from `stored`, because a user may set them.
fn specification(spec: FileSpec, node_pool: String, stored: PoolSpec) -> PoolSpec {
    let networks = spec.machine_network.into_iter().map(|cidr| MachineNetwork { cidr });
    let delay = spec.address_reuse_grace_period_seconds;
    PoolSpec {
        network: spec.attachment.unwrap_or(spec.network),
        addresses: spec.addresses.unwrap_or_default(),
        excluded_addresses: unique(spec.excluded_addresses),
        gateway: spec.settings.gateway,
        nameservers: spec.settings.nameservers,
        machine_network: networks.collect(),
        interface: spec.interface,
        allocate_reserved_ip_addresses: spec.allocate_reserved_ip_addresses,
        on_link_gateway: spec.on_link_gateway,
        address_reuse_grace_period_seconds: (delay > 0).then_some(delay),
        node_pool_ref: Some(NodePoolRef { name: node_pool }),
        ..stored
    }
}

/// Removes repeated items. API servers accept no repeated item in the exclusions of a pool.
fn unique(mut items: Vec<String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    items.retain(|item| known.insert(item.clone()));
    items
}

/// Returns the merge patch that changes `old` to `new`. Leaves out equal members, because a user may have changed them
/// meanwhile.
fn changes(old: &PoolSpec, new: &PoolSpec) -> Value {
    let [old, new] = [old, new].map(|spec| serde_json::to_value(spec).unwrap_or_default());
    let members = [&old, &new].into_iter().filter_map(Value::as_object).flat_map(|members| members.keys());
    let changed = members.filter(|name| old[name.as_str()] != new[name.as_str()]);
    changed.map(|name| (name.clone(), new[name.as_str()].clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::object;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn pool(object: Value) -> MachinePool {
        MachinePool::read(PoolObject::read(self::object(object)))
    }

    /// Creates a pool of the NodePool `clusters/workers`. If `interface` is given, the pool is exhausted, and its
    /// message names the interface.
    fn pool_of(interface: Option<&str>) -> MachinePool {
        pool_on("default", interface)
    }

    /// Creates the same pool as `pool_of`, on this network.
    fn pool_on(network: &str, interface: Option<&str>) -> MachinePool {
        let condition = interface.map(|interface| {
            json!({
                "type": "Exhausted", "status": "True", "reason": "NoFreeAddress",
                "message": format!("No available IPs in pool for interface {interface}"),
                "lastTransitionTime": "2026-08-14T10:00:00Z",
            })
        });
        pool(json!({
            "metadata": {"namespace": "clusters", "name": "p"},
            "spec": {"network": network, "addresses": ["10.0.0.0/24"], "nodePoolRef": {"name": "workers"}},
            "status": {"conditions": condition.into_iter().collect::<Vec<_>>()},
        }))
    }

    fn node_pool(conditions: &Value) -> Object {
        object(json!({
            "metadata": {"namespace": "clusters", "name": "workers", "uid": "u", "generation": 3},
            "status": {"conditions": conditions},
        }))
    }

    fn condition(status: &str, reason: &str, message: &str, since: &str) -> Value {
        json!({
            "type": CONDITION, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since, "observedGeneration": 3,
        })
    }

    #[test]
    fn an_exhausted_pool_adds_a_node_pool_condition_with_the_message_of_the_openshift_enhancement() {
        let ready = json!({"type": "Ready", "status": "True", "severity": "Info"});
        let message = "No available IPs in pool for interface eno101";
        let wanted = condition("True", "NoFreeAddress", message, "1970-01-01T00:00:00Z");
        let before = node_pool(&json!([ready]));
        let exhausted = pool_of(Some("eno101"));
        assert_eq!(conditions(&before, &[&exhausted], NOW), Some(vec![ready.clone(), wanted.clone()]));
        assert_eq!(conditions(&node_pool(&json!([wanted, ready])), &[&exhausted], NOW), None);
    }

    #[test]
    fn a_pool_with_free_addresses_makes_the_condition_false_at_the_same_position() {
        let before = condition("True", "NoFreeAddress", "x", "2026-08-14T10:00:00Z");
        let ready = json!({"type": "Ready", "status": "True"});
        let message = "The pools of the NodePool have free addresses";
        let wanted = condition("False", "AsExpected", message, "1970-01-01T00:00:00Z");
        let node_pool = node_pool(&json!([before, ready]));
        assert_eq!(conditions(&node_pool, &[&pool_of(None)], NOW), Some(vec![wanted, ready]));
    }

    #[test]
    fn a_condition_with_another_message_keeps_the_time_of_its_transition() {
        let before = condition("True", "NoFreeAddress", "x", "2026-08-14T10:00:00Z");
        let message = "No available IPs in pool for interface eno101; No available IPs in pool for interface eno102";
        let wanted = condition("True", "NoFreeAddress", message, "2026-08-14T10:00:00Z");
        let pools = [pool_of(Some("eno102")), pool_of(Some("eno101")), pool_of(Some("eno101")), pool_on("blue", None)];
        let pools: Vec<&MachinePool> = pools.iter().collect();
        assert_eq!(conditions(&node_pool(&json!([before])), &pools, NOW), Some(vec![wanted]));
    }

    #[test]
    fn a_pool_whose_overflow_has_addresses_does_not_count_as_exhausted() {
        let pools = [pool_of(Some("eno101")), pool_of(None), pool_on("blue", Some("eno102"))];
        assert_eq!(exhausted(&pools.each_ref()), Some("No available IPs in pool for interface eno102".to_owned()));
        assert_eq!(exhausted(&[&pools[0], &pools[1]]), None);
    }

    #[test]
    fn a_node_pool_without_a_pool_has_no_condition() {
        let ready = json!({"type": "Ready", "status": "True"});
        let ours = condition("False", "AsExpected", "x", "2026-08-14T10:00:00Z");
        assert_eq!(conditions(&node_pool(&json!([ours, ready])), &[], NOW), Some(vec![ready.clone()]));
        assert_eq!(conditions(&node_pool(&json!([ready])), &[], NOW), None);
    }

    /// Creates a NodePool with this configuration.
    fn configured(config: &Value) -> Object {
        object(json!({
            "metadata": {"namespace": "clusters", "name": "workers", "uid": "u"},
            "spec": {"clusterName": "c1", "platform": {"kubevirt": {
                "attachDefaultNetwork": false, "additionalNetworks": [{"name": "infra/vlan10"}],
                "bootstrapNetworkConfig": config,
            }}},
        }))
    }

    fn hosted_cluster() -> Object {
        object(json!({
            "metadata": {"namespace": "clusters", "name": "c1"},
            "spec": {"networking": {"machineNetwork": [{"cidr": "10.0.0.0/16"}]}},
        }))
    }

    fn config() -> Value {
        json!({"addresses": ["10.0.0.8-10.0.0.9"], "gateway": ["10.0.0.1"], "nameservers": ["8.8.8.8"]})
    }

    /// Creates a stored pool with this specification. `owner` is the UID of the NodePool that owns the pool.
    fn stored(spec: &PoolSpec, owner: &str) -> MachinePool {
        let owner = json!({
            "apiVersion": "hypershift.openshift.io/v1beta1", "kind": "NodePool", "name": "workers", "uid": owner,
            "controller": true,
        });
        pool(json!({
            "metadata": {"namespace": "clusters", "name": "workers", "ownerReferences": [owner]}, "spec": spec,
        }))
    }

    fn derived() -> PoolSpec {
        match derive(&configured(&config()), Some(&hosted_cluster()), None) {
            Derived::Write(spec) => *spec,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pool_is_derived_from_the_configuration_of_a_node_pool_and_the_network_of_its_cluster() {
        let expected = PoolSpec {
            network: "infra/vlan10".to_owned(),
            addresses: vec!["10.0.0.8-10.0.0.9".to_owned()],
            gateway: vec!["10.0.0.1".to_owned()],
            nameservers: vec!["8.8.8.8".to_owned()],
            machine_network: vec![MachineNetwork { cidr: "10.0.0.0/16".to_owned() }],
            node_pool_ref: Some(NodePoolRef { name: "workers".to_owned() }),
            ..PoolSpec::default()
        };
        assert_eq!(derived(), expected);
    }

    #[test]
    fn a_correct_derived_pool_is_not_written_again() {
        let pool = stored(&PoolSpec { sticky: true, ..derived() }, "u");
        assert_eq!(derive(&configured(&config()), Some(&hosted_cluster()), Some(&pool)), Derived::Right);
        let mut grown = config();
        grown["addresses"] = json!(["10.0.0.8-10.0.0.20"]);
        let derived = derive(&configured(&grown), Some(&hosted_cluster()), Some(&pool));
        assert!(matches!(derived, Derived::Write(spec) if spec.addresses == ["10.0.0.8-10.0.0.20"]));
    }

    #[test]
    fn a_derived_pool_has_each_exclusion_once() {
        let mut repeated = config();
        repeated["excludedAddresses"] = json!(["10.0.0.9", "10.0.0.8", "10.0.0.9"]);
        let derived = derive(&configured(&repeated), Some(&hosted_cluster()), None);
        assert!(matches!(derived, Derived::Write(spec) if spec.excluded_addresses == ["10.0.0.9", "10.0.0.8"]));
    }

    #[test]
    fn a_patch_of_a_derived_pool_has_only_the_members_that_change() {
        let old = PoolSpec { sticky: true, excluded_addresses: vec!["10.0.0.9".to_owned()], ..derived() };
        let mut grown = config();
        grown["addresses"] = json!(["10.0.0.8-10.0.0.20"]);
        let pool = stored(&old, "u");
        let Derived::Write(new) = derive(&configured(&grown), Some(&hosted_cluster()), Some(&pool)) else { panic!() };
        let expected = json!({"addresses": ["10.0.0.8-10.0.0.20"], "excludedAddresses": null});
        assert_eq!(changes(&old, &new), expected);
    }

    #[test]
    fn a_pool_that_is_not_derived_from_the_node_pool_is_not_changed() {
        let pool = stored(&PoolSpec::default(), "other");
        let problem = "pool clusters/workers is not derived from this NodePool, expected no pool of this name";
        let expected = Derived::Problem(("PoolNotDerived", problem.to_owned()));
        assert_eq!(derive(&configured(&config()), Some(&hosted_cluster()), Some(&pool)), expected);
        assert_eq!(derive(&configured(&Value::Null), None, Some(&pool)), Derived::Nothing);
    }

    #[test]
    fn a_derived_pool_that_is_being_deleted_is_not_written() {
        let pool = MachinePool { is_deleted: true, ..stored(&derived(), "u") };
        let problem = "pool clusters/workers is being deleted, and stays until its last address is released";
        let expected = Derived::Problem(("PoolNotDerived", problem.to_owned()));
        assert_eq!(derive(&configured(&config()), Some(&hosted_cluster()), Some(&pool)), expected);
        assert_eq!(derive(&configured(&Value::Null), None, Some(&pool)), Derived::Nothing);
    }

    #[test]
    fn a_derived_pool_is_deleted_when_its_configuration_is_gone() {
        assert_eq!(derive(&configured(&Value::Null), None, Some(&stored(&derived(), "u"))), Derived::Delete);
        assert_eq!(derive(&configured(&Value::Null), None, None), Derived::Nothing);
    }

    #[test]
    fn an_invalid_configuration_changes_no_pool() {
        let Derived::Problem((reason, errors)) = derive(&configured(&json!({"addresses": "x"})), None, None) else {
            panic!()
        };
        assert_eq!(reason, "InvalidSpec");
        assert!(errors.contains("bootstrapNetworkConfig.addresses"), "{errors}");
    }

    #[test]
    fn the_error_about_an_unknown_prefix_length_names_the_sources_of_the_machine_network() {
        let Derived::Write(spec) = derive(&configured(&config()), None, None) else { panic!() };
        let errors =
            spec.check(Some("clusters"), "workers").1.kept().iter().map(ToString::to_string).collect::<String>();
        let line = |node_pool: &Object, cluster: Option<&Object>| lacking_subnet(&errors, node_pool, cluster);
        let annotation = "from annotation ipam.glowplug.dev/machine-network of the NodePool";
        let absent =
            format!("\nmachineNetwork comes from HostedCluster clusters/c1, which does not exist, or {annotation}");
        assert_eq!(line(&configured(&config()), None), Some(absent));
        let empty = object(json!({"metadata": {"namespace": "clusters", "name": "c1"}, "spec": {}}));
        let exists = format!("\nmachineNetwork comes from HostedCluster clusters/c1, or {annotation}");
        assert_eq!(line(&configured(&config()), Some(&empty)), Some(exists));
        let mut alone = configured(&config());
        alone.data["spec"]["clusterName"].take();
        assert_eq!(line(&alone, None), Some(format!("\nmachineNetwork comes {annotation}")));
        assert_eq!(lacking_subnet("addresses[0]: invalid address", &configured(&config()), None), None);
    }

    #[test]
    fn a_node_pool_with_any_content_gets_a_decision() {
        let mut valid = serde_json::to_value(configured(&config())).unwrap();
        valid["status"] = json!({"conditions": [condition("True", "NoFreeAddress", "x", "2026-08-14T10:00:00Z")]});
        let pool = pool_of(Some("eno101"));
        let mut written = 0;
        crate::variants::each_object(&valid, |object| {
            conditions(&object, &[&pool], NOW);
            let derived = derive(&object, Some(&hosted_cluster()), None);
            written += u32::from(matches!(derived, Derived::Write(_)));
        });
        assert!(written > 50, "{written}");
        let hosted_cluster = serde_json::to_value(hosted_cluster()).unwrap();
        crate::variants::each_object(&hosted_cluster, |object| {
            let derived = derive(&configured(&config()), Some(&object), None);
            assert!(matches!(derived, Derived::Write(_) | Derived::Problem(_)), "{derived:?}");
        });
    }
}

//! Summarizes the pools of a cluster.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ApiResource;
use serde::Serialize;

use crate::cluster::conditions::{DUPLICATE_RECORDS, SCHEMA_VIOLATED, UNADOPTED_RECORDS, UNREADABLE_LEASES};
use crate::cluster::object::Object;
use crate::explain::election::{Leader, leaders};
use crate::explain::read::Reader;
use crate::explain::text::{rows_of, write_section};
use crate::explain::waiting::{Waiter, waiters};
use crate::kinds::mac_pool::{MACPool, MacPoolStatus};
use crate::kinds::pool::{FamilyCount, GlobalStaticIPPool, PoolStatus, StaticIPPool, Waiting};
use crate::pools::facts::PoolObject;
use crate::pools::selection::KnownPool;

/// The answer of `kubectl glowplug status`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Version of the structure.
    pub version: u32,
    /// The Lease of each installation of the controller. `null`: the user has no right to list Leases.
    pub leaders: Option<Vec<Leader>>,
    /// The StaticIPPools and GlobalStaticIPPools.
    pub pools: Vec<PoolLine>,
    /// The MACPools.
    pub mac_pools: Vec<MacPoolLine>,
    /// Every claim and machine that waits for an address or is refused. The object that has waited longest comes first.
    pub waiting: Vec<Waiter>,
}

/// A StaticIPPool or GlobalStaticIPPool, as the table shows it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolLine {
    /// Namespace and name of the pool, or the name of a GlobalStaticIPPool.
    pub name: String,
    /// Network to which the addresses of the pool belong.
    pub network: String,
    /// Whether the pool allocates addresses. `null`: the pool has no condition `Ready` yet.
    pub ready: Option<bool>,
    /// Why the pool allocates no addresses. `null`: the pool allocates addresses, or `ready` is `null`.
    pub message: Option<String>,
    /// Number of addresses of each family.
    pub families: Vec<Family>,
    /// Number of claims and machines that wait.
    pub waiting: u32,
    /// The first claims and machines of the wait queue, in the order in which they are served.
    pub first_waiting: Vec<Waiting>,
    /// The pools from which the machines of this pool get addresses when this pool is exhausted, in the order of
    /// priority.
    pub overflow: Vec<String>,
    /// Number of machines that the pool serves.
    pub machines: u32,
    /// Number of machines that keep a network of their own although the pool selects them.
    pub left_alone: u32,
    /// Number of machines whose guests run with earlier network data.
    pub outdated: u32,
    /// Conditions that name mistakes, for a person to look at.
    pub problems: Vec<Trouble>,
}

/// A condition of a pool with status `True` that names mistakes.
#[derive(Clone, Debug, Serialize)]
pub struct Trouble {
    /// Type of the condition.
    pub condition: String,
    /// Message of the condition.
    pub message: String,
}

/// The conditions of pools that name mistakes.
const PROBLEMS: [&str; 4] = [DUPLICATE_RECORDS, SCHEMA_VIOLATED, UNREADABLE_LEASES, UNADOPTED_RECORDS];

/// Numbers of addresses of one family of a pool, as decimal strings.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Family {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Addresses that the next machines can get.
    pub free: String,
    /// Addresses that a claim or machine holds.
    pub allocated: String,
    /// Held addresses that the pool no longer offers.
    pub outside: String,
    /// Addresses that the specification reserves, such as gateways, name servers, exclusions and ends of subnets. Also
    /// pre-allocated addresses that their machine or claim does not hold.
    pub excluded: String,
    /// Addresses that only an object records, without a lease.
    pub by_record: String,
    /// Addresses that only a guest reports, or that a Service or the control plane of a Cluster has.
    pub by_report: String,
    /// Released addresses in their reuse delay.
    pub reuse_delay: String,
    /// Addresses with two users. The other numbers include them as allocated or reserved.
    pub conflicts: String,
}

/// A MACPool, as the table shows it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MacPoolLine {
    /// Name of the pool.
    pub name: String,
    /// Whether the pool allocates addresses. `null`: the pool has no condition `Ready` yet.
    pub ready: Option<bool>,
    /// Why the pool allocates no addresses. `null`: the pool allocates addresses, or `ready` is `null`.
    pub message: Option<String>,
    /// Number of addresses that the next machines can get.
    pub free: i64,
    /// Number of addresses that are not free: a machine holds or uses them, or they have a reuse delay or an unreadable
    /// lease.
    pub allocated: i64,
    /// Number of machines that wait.
    pub waiting: u32,
    /// Conditions that name mistakes, for a person to look at.
    pub problems: Vec<Trouble>,
}

/// Reads the pools, the leaders, and the objects that wait.
///
/// # Errors
///
/// A request failed, or the user has no right to list the pools.
pub async fn status(reader: &Reader) -> anyhow::Result<Summary> {
    let mut pools = reader.required(&ApiResource::erase::<StaticIPPool>(&()), reader.scope()).await?;
    pools.extend(reader.required(&ApiResource::erase::<GlobalStaticIPPool>(&()), None).await?);
    let pools: Vec<KnownPool> = pools.into_iter().map(|pool| KnownPool::read(PoolObject::read(pool))).collect();
    let mac_pools = reader.list(&ApiResource::erase::<MACPool>(&()), None).await?;
    let waiting = waiters(reader, &pools, !mac_pools.is_empty()).await?;
    let leaders = leaders(reader).await?;
    reader.check()?;
    Ok(summarize(leaders, &pools, mac_pools, waiting))
}

/// Combines the leaders, the pools of both kinds, the MACPools and the waiting objects into a summary.
fn summarize(
    leaders: Option<Vec<Leader>>,
    pools: &[KnownPool],
    mac_pools: Vec<Object>,
    waiting: Vec<Waiter>,
) -> Summary {
    let overflow = |of: &KnownPool| {
        let others = pools.iter().map(|pool| &pool.checked);
        let others = others.filter(|it| it.priority() > of.checked.priority() && of.checked.shares_machines_with(it));
        let mut others: Vec<_> = others.map(|it| (it.priority(), it.id.to_string())).collect();
        others.sort();
        others.into_iter().map(|(_, name)| name).collect()
    };
    let mut pools: Vec<PoolLine> = pools.iter().map(|pool| pool_line(pool, overflow(pool))).collect();
    pools.sort_by(|one, other| one.name.cmp(&other.name));
    let mut mac_pools: Vec<MacPoolLine> = mac_pools.into_iter().map(mac_pool_line).collect();
    mac_pools.sort_by(|one, other| one.name.cmp(&other.name));
    Summary { version: 1, leaders, pools, mac_pools, waiting }
}

/// Returns whether a pool is ready and, if it is not, the message of the condition.
fn readiness(conditions: &[Condition]) -> (Option<bool>, Option<String>) {
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let is_ready = ready.map(|condition| condition.status == "True");
    (is_ready, ready.filter(|_| is_ready == Some(false)).map(|condition| condition.message.clone()))
}

/// Returns the true conditions that name mistakes.
fn problems(conditions: Vec<Condition>) -> Vec<Trouble> {
    let is_problem = |it: &Condition| it.status == "True" && PROBLEMS.contains(&&*it.type_);
    let problems = conditions.into_iter().filter(is_problem);
    problems.map(|it| Trouble { condition: it.type_, message: it.message }).collect()
}

fn pool_line(KnownPool { status, checked, .. }: &KnownPool, overflow: Vec<String>) -> PoolLine {
    let PoolStatus { families, waiting, first_waiting, machines, left_alone, outdated, conditions, .. } =
        status.clone();
    let (ready, message) = readiness(&conditions);
    let network = checked.pool.as_ref().map_or_else(|_| checked.spec.network.clone(), |pool| pool.network().to_owned());
    PoolLine {
        name: checked.id.to_string(),
        network,
        ready,
        message,
        families: families.into_iter().map(Family::from).collect(),
        waiting,
        first_waiting,
        overflow,
        machines,
        left_alone,
        outdated,
        problems: problems(conditions),
    }
}

fn mac_pool_line(object: Object) -> MacPoolLine {
    let status = object.data.get("status").cloned().unwrap_or_default();
    let status: MacPoolStatus = serde_json::from_value(status).unwrap_or_default();
    let (ready, message) = readiness(&status.conditions);
    let MacPoolStatus { free, used: allocated, waiting, conditions, .. } = status;
    let (name, problems) = (object.metadata.name.unwrap_or_default(), problems(conditions));
    MacPoolLine { name, ready, message, free, allocated, waiting, problems }
}

// === impl Family ===

impl From<FamilyCount> for Family {
    fn from(count: FamilyCount) -> Self {
        let FamilyCount {
            family,
            free,
            allocated,
            outside,
            excluded,
            by_record,
            by_report,
            reuse_delay,
            conflicts,
            ..
        } = count;
        // A controller of an earlier version writes only some of the counts.
        let or_0 = |count: String| if count.is_empty() { "0".to_owned() } else { count };
        let [allocated, outside, excluded, by_record, by_report, reuse_delay, conflicts] =
            [allocated, outside, excluded, by_record, by_report, reuse_delay, conflicts].map(or_0);
        Self { family, free, allocated, outside, excluded, by_record, by_report, reuse_delay, conflicts }
    }
}

// === impl Summary ===

/// Writes the answer as tables for people.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = |ready: Option<bool>| match ready {
            Some(true) => "True".to_owned(),
            Some(false) => "False".to_owned(),
            None => "Unknown".to_owned(),
        };
        let mut rows = Vec::new();
        for pool in &self.pools {
            let start = [pool.name.clone(), pool.network.clone(), ready(pool.ready)];
            let end = [pool.waiting, pool.left_alone, pool.outdated].map(|count| count.to_string());
            let none = || "-".to_owned();
            let mut counts: Vec<[String; 9]> = pool.families.iter().cloned().map(<[String; 9]>::from).collect();
            if counts.is_empty() {
                counts.push([(); 9].map(|()| none()));
            }
            for [family, free, allocated, outside, excluded, by_record, by_report, delayed, conflicts] in counts {
                let ([name, network, ready], [waiting, left_alone, outdated]) = (start.clone(), end.clone());
                rows.push([
                    name, network, ready, family, free, allocated, outside, excluded, by_record, by_report, delayed,
                    conflicts, waiting, left_alone, outdated,
                ]);
            }
        }
        let head = [
            "POOL",
            "NETWORK",
            "READY",
            "FAMILY",
            "FREE",
            "ALLOCATED",
            "OUTSIDE",
            "EXCLUDED",
            "BY RECORD",
            "BY REPORT",
            "REUSE DELAY",
            "CONFLICTS",
            "WAITING",
            "LEFT ALONE",
            "OUTDATED",
        ];
        f.write_str(&rows_of(head, rows))?;
        let overflows = self.pools.iter().filter(|pool| !pool.overflow.is_empty());
        let overflows = overflows.map(|pool| [pool.name.clone(), pool.overflow.join(", ")]);
        write_section(f, ["POOL", "OVERFLOW"], overflows.collect())?;
        let macs = self.mac_pools.iter().map(|pool| {
            let [free, allocated, waiting] =
                [pool.free, pool.allocated, pool.waiting.into()].map(|count| count.to_string());
            [pool.name.clone(), ready(pool.ready), free, allocated, waiting]
        });
        write_section(f, ["MAC POOL", "READY", "FREE", "ALLOCATED", "WAITING"], macs.collect())?;
        let waiting = self.waiting.iter().cloned().map(|Waiter { kind, object, pools, since, reason }| {
            let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
            [
                object,
                kind.to_string(),
                or_none(pools.join(", ")),
                or_none(since.unwrap_or_default()),
                reason.replace('\n', "; "),
            ]
        });
        write_section(f, ["WAITING", "KIND", "POOL", "SINCE", "REASON"], waiting.collect())?;
        let pools = self.pools.iter().filter_map(|pool| Some([pool.name.clone(), pool.message.clone()?]));
        let macs = self.mac_pools.iter().filter_map(|pool| Some([pool.name.clone(), pool.message.clone()?]));
        write_section(f, ["NOT READY", "MESSAGE"], pools.chain(macs).collect())?;
        let pools = self.pools.iter().map(|pool| (&pool.name, &pool.problems));
        let macs = self.mac_pools.iter().map(|pool| (&pool.name, &pool.problems));
        let problems = pools.chain(macs).flat_map(|(name, problems)| {
            problems.iter().map(move |it| [it.condition.clone(), name.clone(), it.message.replace('\n', "; ")])
        });
        write_section(f, ["CONDITION", "POOL", "MESSAGE"], problems.collect())?;
        let leaders = self.leaders.iter().flatten();
        let leaders = leaders.map(|Leader { namespace, holder, since, renewed, state }| {
            let [since, renewed] = [since, renewed].map(|time| time.clone().unwrap_or_else(|| "-".to_owned()));
            let holder = if holder.is_empty() { "-" } else { holder };
            [holder.to_owned(), namespace.clone(), since, renewed, state.to_string()]
        });
        let mut leaders: Vec<[String; 5]> = leaders.collect();
        let none = match &self.leaders {
            None => Some("unknown: you lack the right to list leases.coordination.k8s.io"),
            Some(leaders) => leaders.is_empty().then_some("no replica has led in this cluster"),
        };
        leaders.extend(none.map(|state| ["-", "-", "-", "-", state].map(str::to_owned)));
        write_section(f, ["LEADER", "NAMESPACE", "SINCE", "RENEWED", "STATE"], leaders)
    }
}

impl From<Family> for [String; 9] {
    fn from(counts: Family) -> Self {
        let Family { family, free, allocated, outside, excluded, by_record, by_report, reuse_delay, conflicts } =
            counts;
        [family, free, allocated, outside, excluded, by_record, by_report, reuse_delay, conflicts]
    }
}

#[cfg(test)]
mod tests {
    use glowplug::host::claim::HolderKind;
    use serde_json::json;

    use super::*;
    use crate::cluster::object::object;
    use crate::explain::election::State;

    fn known(pools: Vec<Object>) -> Vec<KnownPool> {
        pools.into_iter().map(|pool| KnownPool::read(PoolObject::read(pool))).collect()
    }

    fn pools() -> Vec<KnownPool> {
        let counts = json!({
            "family": "IPv4", "total": "8", "allocated": "5", "reserved": "2", "excluded": "1", "byReport": "1",
            "reuseDelay": "6", "free": "0", "conflicts": "0", "outside": "0",
        });
        let first = json!({"kind": "KubevirtMachine", "namespace": "n", "name": "w", "family": "IPv4", "since": "2026-08-14T10:00:00Z"});
        let condition = |type_: &str, status: &str, message: &str| {
            json!({
                "type": type_, "status": status, "reason": "r", "message": message, "lastTransitionTime": "2026-08-14T10:00:00Z",
            })
        };
        let conditions = json!([
            condition("DuplicateRecords", "True", "10.0.0.8: two users\n10.0.0.9: two users"),
            condition("Ready", "True", "serves"),
            condition("UnreadableLeases", "False", "none"),
        ]);
        known(vec![
            object(json!({
                "metadata": {"namespace": "n", "name": "p"},
                "spec": {"network": "vlan10", "addresses": ["10.0.0.8/29"]},
                "status": {
                    "families": [counts], "waiting": 2, "firstWaiting": [first], "leftAlone": 3, "outdated": 4,
                    "conditions": conditions,
                },
            })),
            object(json!({
                "metadata": {"name": "g"}, "spec": {"network": "infra/vlan10", "addresses": ["x\u{1b}"]},
                "status": {"conditions": [condition("Ready", "False", "addresses[0]: invalid\u{1b}")]},
            })),
            object(json!({"metadata": {"namespace": "n", "name": "new"}, "spec": 7})),
        ])
    }

    #[test]
    fn the_pools_of_a_cluster_are_printed_in_one_table() {
        let violated = json!([{
            "type": "SchemaViolated", "status": "True", "reason": "r", "message": "ranges: repeated",
            "lastTransitionTime": "2026-08-14T10:00:00Z",
        }]);
        let status = json!({"free": 7, "used": 1, "waiting": 0, "conditions": violated});
        let macs = vec![object(json!({"metadata": {"name": "m"}, "status": status}))];
        let waiter = Waiter {
            kind: HolderKind::IpAddressClaim,
            object: "n/c".to_owned(),
            pools: vec!["n/p".to_owned()],
            since: Some("2026-08-14T10:00:00Z".to_owned()),
            reason: "AllocationFailed: 10.0.0.9: not in pool \"n/p\"".to_owned(),
        };
        let leader = Leader {
            namespace: "s".to_owned(),
            holder: "a_1".to_owned(),
            since: Some("2026-08-14T09:00:00Z".to_owned()),
            renewed: Some("2026-08-14T10:00:00Z".to_owned()),
            state: State::Expired,
        };
        assert_eq!(
            summarize(Some(vec![leader]), &pools(), macs, vec![waiter]).to_string(),
            "POOL   NETWORK       READY    FAMILY  FREE  ALLOCATED  OUTSIDE  EXCLUDED  BY RECORD  BY REPORT  REUSE DELAY  CONFLICTS  WAITING  LEFT ALONE  OUTDATED\n\
             g      infra/vlan10  False    -       -     -          -        -         -          -          -            -          0        0           0\n\
             n/new                Unknown  -       -     -          -        -         -          -          -            -          0        0           0\n\
             n/p    n/vlan10      True     IPv4    0     5          0        1         0          1          6            0          2        3           4\n\n\
             MAC POOL  READY    FREE  ALLOCATED  WAITING\n\
             m         Unknown  7     1          0\n\n\
             WAITING  KIND            POOL  SINCE                 REASON\n\
             n/c      IPAddressClaim  n/p   2026-08-14T10:00:00Z  AllocationFailed: 10.0.0.9: not in pool \"n/p\"\n\n\
             NOT READY  MESSAGE\n\
             g          addresses[0]: invalid\\u{1b}\n\n\
             CONDITION         POOL  MESSAGE\n\
             DuplicateRecords  n/p   10.0.0.8: two users; 10.0.0.9: two users\n\
             SchemaViolated    m     ranges: repeated\n\n\
             LEADER  NAMESPACE  SINCE                 RENEWED               STATE\n\
             a_1     s          2026-08-14T09:00:00Z  2026-08-14T10:00:00Z  expired\n"
        );
    }

    #[test]
    fn the_json_answer_counts_addresses_under_the_names_of_their_states() {
        let summary = serde_json::to_value(summarize(None, &pools(), vec![], vec![])).unwrap();
        assert_eq!(
            summary["pools"][2],
            json!({
                "name": "n/p", "network": "n/vlan10", "ready": true, "message": null,
                "families": [{
                    "family": "IPv4", "free": "0", "allocated": "5", "outside": "0", "excluded": "1", "byRecord": "0",
                    "byReport": "1", "reuseDelay": "6", "conflicts": "0",
                }],
                "waiting": 2,
                "firstWaiting": [{
                    "kind": "KubevirtMachine", "namespace": "n", "name": "w", "family": "IPv4", "since": "2026-08-14T10:00:00Z",
                }],
                "overflow": [], "machines": 0, "leftAlone": 3, "outdated": 4,
                "problems": [{"condition": "DuplicateRecords", "message": "10.0.0.8: two users\n10.0.0.9: two users"}],
            })
        );
    }

    #[test]
    fn the_table_names_the_overflow_pools_of_a_pool() {
        let of = |name: &str, priority: i32, role: &str| {
            object(json!({
                "metadata": {"namespace": "n", "name": name},
                "spec": {
                    "network": "vlan10", "addresses": ["10.0.0.8/29"], "priority": priority,
                    "machineSelector": {"matchLabels": {"role": role}},
                },
            }))
        };
        let pools = vec![of("a", 20, "w"), of("b", 0, "w"), of("c", 10, "w"), of("d", 30, "db")];
        let text = summarize(None, &known(pools), vec![], vec![]).to_string();
        assert_eq!(text.split("\n\n").nth(1), Some("POOL  OVERFLOW\nn/b   n/c, n/a\nn/c   n/a"));
    }

    #[test]
    fn the_answer_about_a_cluster_without_pools_has_the_head_of_the_table() {
        for (leaders, state) in [
            (None, "unknown: you lack the right to list leases.coordination.k8s.io"),
            (Some(vec![]), "no replica has led in this cluster"),
        ] {
            let text = summarize(leaders, &[], vec![], vec![]).to_string();
            let row = format!("-       -          -      -        {state}");
            assert_eq!(
                text.lines().skip(1).collect::<Vec<_>>(),
                ["", "LEADER  NAMESPACE  SINCE  RENEWED  STATE", &row]
            );
        }
    }
}

//! Compares the pools of files with the cluster: the answer of the webhook, held addresses that would no longer be in
//! their pool, reserved addresses that are in use, and whether the pools have enough addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use glowplug::host::allocator::{Allocator, Conflicted, PoolUsage, Usage};
use glowplug::host::claim::is_namespace;
use glowplug::host::may_record::State;
use glowplug::host::pool::{Pool, Reserved};
use glowplug::network::Family;
use k8s_openapi::jiff::Timestamp;
use kube::api::ApiResource;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::explain::file::{Contents, Mistake, read_pools};
use crate::explain::lists::Lists;
use crate::explain::read::{Reader, absent_namespace, rights};
use crate::explain::refused::{MOST_NEW, Refused, refused};
use crate::explain::reserved::Users;
use crate::explain::text::{rows_of, write_section};
use crate::kinds::guest::Life;
use crate::kinds::kubevirt_machine::is_deleted;
use crate::kinds::mac_pool::{MACPool, MacPoolSpec};
use crate::kinds::pool::{LeaseSpec, PoolSpec};
use crate::kinds::virtual_machine::VirtualMachine;
use crate::pools::selection::{MachinePool, Selected, Selection};
use crate::webhook::{Change, Verdict, judge, judge_leases, lost, validate_mac_pool, warn_of_namespaces};

/// The answer of `kubectl glowplug plan`.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Version of the structure.
    pub version: u32,
    /// The documents with a mistake.
    pub mistakes: Vec<Mistake>,
    /// The StaticIPPools and GlobalStaticIPPools of the files, in the order of the files.
    pub pools: Vec<Planned>,
    /// The MACPools of the files, in the order of the files.
    pub mac_pools: Vec<PlannedMacs>,
    /// The machines that the webhook would refuse, because their pools contradict each other or the machine.
    pub refused: Vec<Refused>,
}

/// A StaticIPPool or GlobalStaticIPPool of the files.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Namespace and name of the pool, or the name of a GlobalStaticIPPool.
    pub pool: String,
    /// What the files would change.
    pub change: Word,
    /// Why the webhook would reject the pool.
    pub errors: Vec<String>,
    /// The warnings of the webhook.
    pub warnings: Vec<String>,
    /// Held addresses that the pool would no longer offer, although their holders keep them. Always empty if the pool
    /// is rejected.
    pub outside: Vec<Outside>,
    /// The gateways, name servers and template addresses that a machine, claim or guest uses.
    pub in_use: Vec<InUse>,
    /// The users of each address of the pool that has a conflict: one entry for each user.
    pub conflicts: Vec<Conflict>,
    /// The counts of each family. Empty if the pool is rejected, or if another program chooses its addresses.
    pub room: Vec<Room>,
}

/// A MACPool of the files.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedMacs {
    /// Name of the pool.
    pub pool: String,
    /// What the files would change.
    pub change: Word,
    /// Why the webhook would reject the pool.
    pub errors: Vec<String>,
    /// The warnings of the webhook.
    pub warnings: Vec<String>,
}

/// What the files would change in a pool.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Word {
    /// `create`: the cluster does not have the pool.
    #[default]
    Create,
    /// `update`: the specification of the pool in the cluster differs.
    Update,
    /// `none`: the pool in the cluster has the same specification.
    None,
}

/// An address that its holder keeps, although the pool no longer offers the address.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outside {
    /// The address.
    pub address: IpAddr,
    /// Kind, namespace and name of the holder.
    pub holder: String,
}

/// A reserved address that a machine, claim or guest uses.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InUse {
    /// The address.
    pub address: IpAddr,
    /// Why the pool reserves the address: `gateway`, `name server` or `template`.
    pub why: &'static str,
    /// Kind of the use: `allocated`, `byRecord` or `byReport`.
    pub state: &'static str,
    /// The machine, claim or guest that uses the address.
    pub user: String,
}

/// One of several users of an address.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Conflict {
    /// The address.
    pub address: IpAddr,
    /// The user: the holder, or the claimant of a record or report together with the object that has the record or
    /// report.
    pub user: String,
}

/// The addresses of one family of a pool after the change. Counts are decimal strings, as in the status of a pool.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Room {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Number of all addresses of this family in the pool.
    pub total: String,
    /// Addresses that the next machines can get, including released addresses in their reuse delay.
    pub free: String,
    /// Number of machines of the pool that hold an address of this family on the network of the pool, or get one from a
    /// record. `null`: the user has no right to read the machines.
    pub held: Option<String>,
    /// Addresses that the machines of the pool and the waiting claims need. `null`: the user has no right to read these
    /// objects.
    pub needed: Option<String>,
    /// How `needed` was counted, or the missing rights. Example: `replicas 3 + maxSurge 1`.
    pub because: String,
    /// Number of addresses that are missing. `null`: `needed` is unknown.
    pub lacking: Option<String>,
}

/// The running guests that report an address, by network and address.
type Reporters<'l> = BTreeMap<(&'l str, IpAddr), Vec<&'l Key>>;

/// Number of machines of a pool, and how they were counted.
#[derive(Debug, Eq, PartialEq)]
struct Need(u128, String);

/// Compares the pools of files with the cluster. A folder stands for the files in it.
///
/// # Errors
///
/// A file cannot be read, no file has a pool, a request failed, or the user has no right to list the pools or leases.
pub async fn plan(reader: &Reader, files: &[PathBuf]) -> anyhow::Result<Answer> {
    let Contents { pools, mac_pools, mistakes } = read_pools(files, reader.default_namespace())?;
    let stored = match mac_pools.is_empty() {
        true => Vec::new(),
        false => reader.required(&ApiResource::erase::<MACPool>(&()), None).await?,
    };
    let mut absent = BTreeSet::new();
    for namespace in namespaces_of(&pools, &mac_pools) {
        if !reader.has_namespace(&namespace).await? {
            absent.insert(namespace);
        }
    }
    if pools.is_empty() {
        reader.check()?;
        let mac_pools = judged_macs(&stored, mac_pools, &absent);
        return Ok(Answer { version: 1, mistakes, pools: Vec::new(), mac_pools, refused: Vec::new() });
    }
    let mut lists = Lists::read(reader, &pools).await?;
    lists.read_neighbours(reader).await?;
    lists.read_claims(reader).await?;
    lists.read_secrets_of_users(reader, &pools).await?;
    let mac_pools = judged_macs(&stored, mac_pools, &absent);
    let mut answer = Answer { mistakes, mac_pools, ..answer(lists, pools, &absent, Timestamp::now())? };
    for room in answer.pools.iter_mut().flat_map(|pool| &mut pool.room).filter(|room| room.needed.is_none()) {
        room.because = rights(&reader.lacking());
    }
    Ok(answer)
}

/// Compares the pools `objects` of files with the lists. `absent` has the namespaces that the files name and the
/// cluster does not have.
fn answer(mut lists: Lists, objects: Vec<Object>, absent: &BTreeSet<String>, now: Timestamp) -> anyhow::Result<Answer> {
    let leases: Vec<LeaseSpec> = lists.held().collect();
    let mut planned: Vec<(PoolId, Planned)> = Vec::new();
    for object in objects {
        let id = PoolId::of(&object.metadata);
        let judged = match id.namespace.as_ref().filter(|namespace| absent.contains(*namespace)) {
            Some(namespace) => {
                Planned { pool: id.to_string(), errors: vec![absent_namespace(namespace)], ..Planned::default() }
            }
            None => judged(&lists, &object, &leases),
        };
        // If the webhook rejects the pool, the cluster keeps its stored pool.
        if judged.errors.is_empty() {
            lists.replace_pool(object);
        }
        planned.push((id, judged));
    }
    let pools = lists.pools.clone();
    let (mut registry, _) = lists.registry(&pools, now)?;
    let recorded = lists.recorded(registry.state()?);
    recorded.adopt(&lists, &mut registry, now)?;
    // A second registry tries the waiting claims, so that their addresses do not change the counts of the pools.
    let (mut trial, _) = lists.registry(&pools, now)?;
    recorded.adopt(&lists, &mut trial, now)?;
    let waiting = lists.waiting_claims(&pools, trial, now)?;
    let (allocator, selection) = (registry.state()?, lists.selection(&pools));
    let reporters = reporters(&lists);
    let (usage, users, conflicted) = (allocator.usage(now), Users::of(allocator), allocator.conflicted());
    for (id, planned) in planned.iter_mut().filter(|(_, planned)| planned.errors.is_empty()) {
        planned.warnings.extend(selection.pool(id).and_then(|pool| warn_of_selector(&lists, &selection, pool)));
        let Some(Ok(pool)) = selection.pool(id).map(|pool| pool.pool.as_ref()) else { continue };
        planned.in_use = in_use(allocator, &users, &reporters, pool);
        planned.conflicts = conflicts(&conflicted, pool);
        let families = usage.get(pool.name()).map(|usage| usage.families.as_slice()).unwrap_or_default();
        if !pool.is_external() {
            let claims = |of: &Usage| {
                let is_of = |(pool, family): &&(PoolId, Option<Family>)| {
                    pool == id && family.is_none_or(|family| family == of.family)
                };
                waiting.iter().filter(is_of).count() as u128
            };
            let room = |of| room(&lists, (allocator, &usage), &selection, id, (of, claims(of)));
            planned.room = families.iter().map(room).collect();
        }
    }
    let accepted = planned.iter().filter(|(_, planned)| planned.errors.is_empty()).map(|(id, _)| id.clone()).collect();
    let (refused, left_out) = refused(&lists, &pools, &accepted)?;
    for (id, planned) in &mut planned {
        let left_out = left_out.get(id).map(|number| {
            format!(
                "{number} new machines are not tried, expected at most {MOST_NEW} combinations of namespace and labels"
            )
        });
        planned.warnings.extend(left_out);
    }
    let pools = planned.into_iter().map(|(_, planned)| planned).collect();
    Ok(Answer { version: 1, mistakes: Vec::new(), pools, mac_pools: Vec::new(), refused })
}

/// The namespaces of these pools, and the namespaces that these MACPools serve.
fn namespaces_of(pools: &[Object], mac_pools: &[Object]) -> BTreeSet<String> {
    let own = pools.iter().filter_map(|pool| pool.metadata.namespace.clone());
    let valid = mac_pools.iter().filter_map(|pool| MacPoolSpec::deserialize(&pool.data["spec"]).ok());
    let served = valid.flat_map(|spec| spec.namespaces).filter(|namespace| is_namespace(namespace));
    own.chain(served).collect()
}

/// Returns the answer of the webhook for each of these MACPools, in their order. `stored` has the MACPools of the
/// cluster. `absent` has the namespaces that the files name and the cluster does not have.
fn judged_macs(stored: &[Object], objects: Vec<Object>, absent: &BTreeSet<String>) -> Vec<PlannedMacs> {
    let name_of = |object: &Object| object.metadata.name.clone().unwrap_or_default();
    let spec_of = |object: &Object| MacPoolSpec::deserialize(&object.data["spec"]);
    let mut known: BTreeMap<String, MacPoolSpec> = BTreeMap::new();
    for object in stored.iter().filter(|object| !is_deleted(&object.metadata)) {
        known.extend(spec_of(object).ok().map(|spec| (name_of(object), spec)));
    }
    let judge = |object: Object| {
        let pool = name_of(&object);
        let exists = known.contains_key(&pool) || stored.iter().any(|it| name_of(it) == pool);
        let mut change = if exists { Word::Update } else { Word::Create };
        let verdict = match spec_of(&object) {
            Err(error) => Verdict { errors: vec![format!("spec: {error}")], ..Verdict::default() },
            Ok(spec) if known.get(&pool) == Some(&spec) => {
                change = Word::None;
                Verdict::default()
            }
            Ok(spec) => {
                let others: Vec<_> = known.iter().filter_map(|(name, spec)| spec.check(name).0).collect();
                let mut verdict = validate_mac_pool(&pool, &spec, &others);
                // If the webhook rejects the pool, the cluster keeps its stored pool.
                if verdict.errors.is_empty() {
                    verdict.warnings.extend(warn_of_namespaces(&spec, |namespace| !absent.contains(namespace)));
                    known.insert(pool.clone(), spec);
                }
                verdict
            }
        };
        let Verdict { errors, warnings } = verdict;
        PlannedMacs { pool, change, errors, warnings }
    };
    objects.into_iter().map(judge).collect()
}

/// Returns the answer of the webhook about a pool, and the held addresses that the pool would no longer offer.
pub(super) fn judged(lists: &Lists, object: &Object, leases: &[LeaseSpec]) -> Planned {
    let id = PoolId::of(&object.metadata);
    let mut planned = Planned { pool: id.to_string(), ..Planned::default() };
    let old = lists.pools.get(&id).map(|pool| &pool.checked.spec);
    if lists.pools.get(&id).is_some_and(|pool| is_deleted(&pool.metadata)) {
        planned.warnings.push("the pool is being deleted, and gives no machine an address".to_owned());
    }
    planned.change = if old.is_some() { Word::Update } else { Word::Create };
    let new = match PoolSpec::read(&object.data["spec"]) {
        Ok(new) => new,
        Err(error) => {
            planned.errors.extend(error.lines().map(str::to_owned));
            return planned;
        }
    };
    if old == Some(&new) {
        planned.change = Word::None;
    }
    let change = match (planned.change, old) {
        (Word::None, _) => return planned,
        (_, Some(old)) => Change::Update { old: Some(old.clone()), new: Box::new(new) },
        (_, None) => Change::Create(new),
    };
    let others = lists.pools.iter().filter(|(other, _)| **other != id);
    let others: Vec<MachinePool> = others.map(|(_, pool)| MachinePool::clone(&pool.checked)).collect();
    let selection = lists.selection(&lists.pools);
    let Verdict { mut errors, mut warnings } =
        judge(&id, &change, &others, lists.has_node_pools.then(|| selection.node_pools()));
    if errors.is_empty() && change.needs_leases(&id) {
        let of_leases = judge_leases(&id, &change, leases);
        errors.extend(of_leases.errors);
        warnings.extend(of_leases.warnings);
    }
    // A rejected change is not stored, so every holder keeps its address in the pool.
    let lost = if errors.is_empty() { lost(&id, &change, leases) } else { Vec::new() };
    let outside = lost.into_iter().map(|(address, holder)| Outside {
        address,
        holder: format!("{} {}/{}", holder.kind, holder.namespace, holder.name),
    });
    planned.outside = outside.collect();
    planned.outside.sort();
    planned.warnings.extend(warnings);
    Planned { errors, ..planned }
}

/// Returns a warning if the selectors of a pool select no Namespace or no VirtualMachine. The webhook itself warns
/// about a NodePool that does not exist.
pub(super) fn warn_of_selector(lists: &Lists, selection: &Selection, pool: &MachinePool) -> Option<String> {
    let is_empty = selection.memberships().get(&pool.id).is_some_and(|membership| membership.selected == Some(0));
    if is_empty {
        return Some(
            "namespaceSelector: no Namespace has these labels: the pool serves no machine and no claim until a Namespace has them".to_owned(),
        );
    }
    let selects = |vm: &VirtualMachine| selection.selecting(vm).any(|it| it.id == pool.id);
    // A pool that has a `namespaceSelector` and no `machineSelector` may serve only claims.
    let has_selector = pool.spec.machine_selector.is_some() && selection.selectors_of(&pool.id).next().is_some();
    (has_selector && lists.has_machines && !lists.vms.values().any(selects))
        .then(|| "machineSelector: it selects no VirtualMachine of the cluster".to_owned())
}

/// Returns the users of the addresses that a pool reserves for the network: gateways, name servers, and addresses of
/// the template.
fn in_use(allocator: &Allocator, users: &Users, reporters: &Reporters<'_>, pool: &Pool) -> Vec<InUse> {
    let mut all = BTreeSet::new();
    for (address, why) in pool.named() {
        let why = match why {
            Reserved::Gateway => "gateway",
            Reserved::Nameserver => "name server",
            Reserved::Template => "template",
            _ => continue,
        };
        let mut add = |state: &'static str, user: String| all.insert(InUse { address, why, state, user });
        let holder = allocator.holder(pool.network(), address);
        if let Some(holder) = holder {
            add("allocated", holder.to_string());
        }
        let recorded = users.at(pool.network(), address).iter().filter(|user| !user.is_of_guest());
        for (user, state) in recorded.filter_map(|user| Some((user, user.state?))) {
            add(state.count().word(), format!("{} ({})", user.claimant, user.source));
        }
        // A leader does not track reports of addresses that pools reserve for the network. Therefore the reports come
        // from the instances.
        let holder = holder.map(|holder| &holder.machine).filter(|machine| !machine.kind.is_claim());
        let is_holder = |key: &&&Key| holder.is_some_and(|machine| Key::of_vm(machine) == ***key);
        for key in reporters.get(&(pool.network(), address)).into_iter().flatten().filter(|key| !is_holder(key)) {
            add(State::ByReport.count().word(), format!("VirtualMachineInstance {key}"));
        }
    }
    all.into_iter().collect()
}

fn reporters(lists: &Lists) -> Reporters<'_> {
    let mut reporters = Reporters::new();
    for (key, (_, instance)) in lists.guests.iter().filter(|(_, (_, it))| it.guest.life == Life::Running) {
        for (network, reported) in &instance.guest.networks {
            for address in reported.addresses.keys() {
                reporters.entry((network, *address)).or_default().push(key);
            }
        }
    }
    reporters
}

/// Returns the users of each address of a pool that has a conflict. `all` has the conflicts of every network.
fn conflicts(all: &[Conflicted], pool: &Pool) -> Vec<Conflict> {
    let of_pool = all.iter().filter(|it| it.network == pool.network() && pool.contains(it.address));
    let users = of_pool.flat_map(|Conflicted { address, holder, others, .. }| {
        let others = others.iter().map(|other| format!("{} ({})", other.claimant, other.source));
        let all = holder.iter().map(ToString::to_string).chain(others);
        all.map(|user| Conflict { address: *address, user })
    });
    users.collect()
}

/// Counts the addresses of one family of a pool, and the addresses that its machines and waiting claims need. `claims`
/// is the number of waiting claims.
fn room(
    lists: &Lists,
    (allocator, of_pools): (&Allocator, &BTreeMap<&str, PoolUsage>),
    selection: &Selection,
    id: &PoolId,
    (usage, claims): (&Usage, u128),
) -> Room {
    let is_of_pool = |it: &Selected| it.pools().any(|pool| pool == id);
    let selected = lists.vms.values().filter(|vm| selection.of(vm).is_ok_and(|all| all.iter().any(is_of_pool)));
    let selected: Vec<_> = selected.collect();
    let holds = |vm: &&&_| {
        let holder = lists.holder(vm);
        let mut of_machine = allocator.leases_of(&holder);
        let network = selection.pool(id).and_then(|pool| pool.network());
        // A machine that holds an address of the network needs no further address, even if the address is from another
        // pool.
        of_machine.any(|(of, address, _)| Some(of) == network && Family::of(address) == usage.family)
    };
    let held = selected.iter().filter(holds).count() as u128;
    let node_pools: BTreeSet<_> = selection.pool(id).map(|pool| pool.node_pools()).into_iter().flatten().collect();
    let known = node_pools.iter().filter_map(|key| Some((key, need_of(selection.node_pools().get(key)?))));
    let Need(needed, because) = match &known.collect::<Vec<_>>()[..] {
        [] => Need(selected.len() as u128, format!("machines {}", selected.len())),
        [(_, Need(needed, because))] => Need(*needed, because.clone()),
        several => {
            let because = several.iter().map(|(key, Need(_, because))| format!("{key}: {because}"));
            let because = because.collect::<Vec<_>>().join("; ");
            Need(several.iter().map(|(_, Need(needed, _))| needed).sum(), because)
        }
    };
    // A NodePool may have more machines than it asks for.
    let machines = needed.max(selected.len() as u128);
    let because = if machines > needed { format!("machines {machines}") } else { because };
    let free_of = |usage: &Usage| usage.free + usage.reuse_delay;
    let free = free_of(usage);
    // Some machines of this pool can also get addresses from other pools, which share these machines with this pool.
    let own = selection.pool(id);
    let others = selection.pools().filter(|other| own.is_some_and(|own| own.shares_machines_with(other)));
    let (mut because, mut free_elsewhere) = (because, 0);
    if claims > 0 {
        because += &format!(" + waiting claims {claims}");
    }
    for other in others.map(|other| other.id.to_string()) {
        let families = of_pools.get(other.as_str()).into_iter().flat_map(|of| &of.families);
        let free: u128 = families.filter(|of| of.family == usage.family).map(free_of).sum();
        because += &format!(", free in {other} {free}");
        free_elsewhere += free;
    }
    let text = |count: u128| count.to_string();
    let own = own.as_ref();
    let knows_machines = own.is_some_and(|own| lists.knows_machines_of(own));
    let knows_need = knows_machines && own.is_some_and(|own| lists.knows_claims_of(own));
    Room {
        family: usage.family.to_string(),
        total: text(usage.total),
        free: text(free),
        held: knows_machines.then(|| text(held)),
        needed: knows_need.then(|| text(machines + claims)),
        because,
        // Claims get addresses only from this pool. Machines can also get addresses from other pools.
        lacking: knows_need.then(|| {
            text(
                claims.saturating_sub(free)
                    + machines.saturating_sub(held).saturating_sub(free.saturating_sub(claims) + free_elsewhere),
            )
        }),
    }
}

/// Returns the largest number of machines that a NodePool can have, including the additional machines of a rollout.
fn need_of(node_pool: &Object) -> Need {
    let spec = &node_pool.data["spec"];
    let number = |value: &Value| value.as_u64().map(u128::from);
    let (machines, what) = match number(&spec["autoScaling"]["max"]) {
        Some(max) => (max, "autoScaling.max"),
        None => (number(&spec["replicas"]).unwrap_or_default(), "replicas"),
    };
    let (management, rolling) = (&spec["management"], &spec["management"]["replace"]["rollingUpdate"]["maxSurge"]);
    let has_rollout = management["upgradeType"] != "InPlace" && management["replace"]["strategy"] != "OnDelete";
    let percent = |text: &str| text.strip_suffix('%')?.parse::<u32>().ok().map(u128::from);
    let surge = match rolling {
        _ if !has_rollout => 0,
        Value::String(text) => percent(text).map_or(1, |percent| (machines * percent).div_ceil(100)),
        value => number(value).unwrap_or(1),
    };
    Need(machines + surge, format!("{what} {machines} + maxSurge {surge}"))
}

// === impl Answer ===

impl Answer {
    /// Whether the plan has no problem. Problems are a document with a mistake, a pool or a machine that the webhook
    /// would reject, a held address outside of its pool, and an allocated address that is reserved. Other problems are
    /// an address with two users, and a pool that lacks addresses or whose needed addresses are unknown.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let is_clean = self.pools.iter().all(|pool| {
            let Planned { errors, outside, in_use, conflicts, room, .. } = pool;
            let has_room = room.iter().all(|room| room.lacking.as_deref() == Some("0"));
            let is_allocated = in_use.iter().any(|it| it.state == "allocated");
            errors.is_empty() && outside.is_empty() && conflicts.is_empty() && !is_allocated && has_room
        });
        let is_clean = is_clean && self.mac_pools.iter().all(|pool| pool.errors.is_empty());
        is_clean && self.mistakes.is_empty() && self.refused.is_empty()
    }
}

/// Writes the answer as tables for people.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = || self.pools.iter();
        let answer = |errors: &[String], change: Word| match (errors, change) {
            ([_, ..], _) => "rejected",
            ([], Word::None) => "unchanged",
            ([], _) => "accepted",
        };
        let row = |pool: String, errors: &[String], change: Word| {
            [pool, change.to_string(), answer(errors, change).to_owned()]
        };
        let of_macs = || self.mac_pools.iter().map(|it| (format!("MACPool {}", it.pool), it));
        let rows = each().map(|it| row(it.pool.clone(), &it.errors, it.change));
        let rows = rows.chain(of_macs().map(|(name, it)| row(name, &it.errors, it.change)));
        f.write_str(&rows_of(["POOL", "CHANGE", "ANSWER"], rows.collect()))?;
        let mistakes = self.mistakes.iter().map(|it| {
            let file = it.file.as_ref().map(|file| format!("{file}: ")).unwrap_or_default();
            [file + &it.document, it.error.clone()]
        });
        write_section(f, ["NOT READ", "ERROR"], mistakes.collect())?;
        let of = |lines: fn(&Planned) -> &Vec<String>, lines_of_macs: fn(&PlannedMacs) -> &Vec<String>| {
            let own = each().map(move |it| (it.pool.clone(), lines(it)));
            let all = own.chain(of_macs().map(move |(name, it)| (name, lines_of_macs(it))));
            all.flat_map(|(name, lines)| lines.iter().map(move |line| [name.clone(), line.clone()])).collect::<Vec<_>>()
        };
        write_section(f, ["REJECTED", "ERROR"], of(|it| &it.errors, |it| &it.errors))?;
        write_section(f, ["POOL", "WARNING"], of(|it| &it.warnings, |it| &it.warnings))?;
        let refused = self.refused.iter().map(Into::into).collect();
        write_section(f, ["REFUSED", "POOLS", "MESSAGE"], refused)?;
        let outside = each().flat_map(|pool| {
            pool.outside.iter().map(|it| [it.address.to_string(), pool.pool.clone(), it.holder.clone()])
        });
        write_section(f, ["OUTSIDE", "POOL", "HOLDER"], outside.collect())?;
        let in_use = each().flat_map(|pool| {
            pool.in_use.iter().map(|it| {
                [it.address.to_string(), pool.pool.clone(), it.why.to_owned(), it.state.to_owned(), it.user.clone()]
            })
        });
        write_section(f, ["IN USE", "POOL", "RESERVED AS", "STATE", "USER"], in_use.collect())?;
        let conflicts = each().flat_map(|pool| {
            pool.conflicts.iter().map(|it| [it.address.to_string(), pool.pool.clone(), it.user.clone()])
        });
        write_section(f, ["CONFLICT", "POOL", "USER"], conflicts.collect())?;
        let room = each().flat_map(|pool| {
            pool.room.iter().cloned().map(|it| {
                let Room { family, total, free, held, needed, because, lacking } = it;
                let [held, needed, lacking] =
                    [held, needed, lacking].map(|count| count.unwrap_or_else(|| "-".to_owned()));
                [pool.pool.clone(), family, total, free, held, needed, lacking, because]
            })
        });
        write_section(f, ["ROOM", "FAMILY", "TOTAL", "FREE", "HELD", "NEEDED", "LACKING", "BECAUSE"], room.collect())
    }
}

// === impl Word ===

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::object::object;

    #[test]
    fn a_pool_that_the_api_server_refuses_is_rejected() {
        let pool = |exclusions: Value, more: Value| {
            let mut spec = json!({
                "network": "infra/vlan10", "addresses": ["10.0.0.8/29"], "excludedAddresses": exclusions,
                "machineNetwork": [{"cidr": "10.0.0.0/24"}],
            });
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let metadata = json!({"namespace": "n", "name": "p"});
            serde_json::from_value::<Object>(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let errors = |lists: Lists, object: Object| {
            let answer = answer(lists, vec![object], &BTreeSet::new(), Timestamp::UNIX_EPOCH).unwrap();
            (answer.is_clean(), answer.pools[0].errors.clone(), answer.pools[0].warnings.clone())
        };
        let line = "excludedAddresses[1]: repeated item \"10.0.0.9\", expected each item once".to_owned();
        let repeated = || json!(["10.0.0.9", "10.0.0.9"]);
        assert_eq!(errors(Lists::default(), pool(repeated(), json!({}))), (false, vec![line.clone()], vec![]));
        // A rejected pool does not affect the other pools of the file.
        let mut small = Lists::default();
        small.add_pool(pool(json!([]), json!({"addresses": ["10.0.0.8/30"]})));
        let mut next = pool(json!([]), json!({"addresses": ["10.0.0.12/30"]}));
        next.metadata.name = Some("q".to_owned());
        let both =
            answer(small, vec![pool(repeated(), json!({})), next], &BTreeSet::new(), Timestamp::UNIX_EPOCH).unwrap();
        let [rejected, accepted] = &both.pools[..] else { panic!("{both:?}") };
        assert_eq!((&rejected.errors, &rejected.room, &accepted.errors), (&vec![line.clone()], &vec![], &vec![]));
        // If the stored pool already has the mistake, the mistake is only a warning, because the API server accepts
        // such an update.
        let mut stored = whole();
        stored.add_pool(pool(repeated(), json!({})));
        let changed = pool(repeated(), json!({"sticky": true}));
        assert_eq!(errors(stored, changed), (true, vec![], vec![line]));
        let (_, unknown, _) = errors(Lists::default(), pool(json!([]), json!({"x": 1})));
        assert_eq!(unknown.iter().map(|line| &line[..15]).collect::<Vec<_>>(), ["x: unknown key,"]);
        let mistyped = json!({"sticky": "yes", "gateway": [7], "addresses": "10.0.0.8/29"});
        let (_, mistyped, _) = errors(Lists::default(), pool(json!([]), mistyped));
        let lines = [
            "addresses: string \"10.0.0.8/29\", expected array",
            "gateway[0]: integer \"7\", expected string",
            "sticky: string \"yes\", expected boolean",
        ];
        assert_eq!(mistyped, lines);
        let nested =
            json!({"machineSelector": {"matchLabel": {}}, "machineNetwork": [{"cdir": "10.0.0.0/24"}], "x": 1});
        let (_, nested, _) = errors(Lists::default(), pool(json!([]), nested));
        let selector = "one of matchExpressions, matchLabels";
        let lines = [
            "machineNetwork[0].cdir: unknown key, expected cidr",
            "machineNetwork[0].cidr: missing, expected string",
            &format!("machineSelector.matchLabel: unknown key, expected {selector}"),
        ];
        assert_eq!(
            nested.iter().filter(|line| !line.starts_with("x:")).collect::<Vec<_>>(),
            lines.iter().collect::<Vec<_>>()
        );
        assert_eq!(nested.len(), 4);
    }

    fn claim(namespace: &str, name: &str, annotations: &Value) -> Object {
        let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": if namespace == "n" { "StaticIPPool" } else { "GlobalStaticIPPool" }, "name": "p"});
        let metadata = json!({"namespace": namespace, "name": name, "uid": name, "annotations": annotations});
        object(json!({"metadata": metadata, "spec": {"poolRef": pool}}))
    }

    fn needed(answer: &Answer) -> Vec<[String; 3]> {
        let text = |count: &Option<String>| count.clone().unwrap_or_else(|| "-".to_owned());
        let row = |room: &Room| [text(&room.needed), room.because.clone(), text(&room.lacking)];
        answer.pools[0].room.iter().map(row).collect()
    }

    #[test]
    fn a_claim_without_an_address_counts_as_one_needed_address() {
        let room = |scope: Option<&str>| {
            let mut lists = Lists { scope: scope.map(str::to_owned), ..whole() };
            for name in ["a", "b"] {
                lists.add_claim(claim("n", name, &json!({})));
            }
            needed(&plan_of(lists, vec![pool("n/p", &json!({"addresses": ["10.0.0.8/32"]}))])).remove(0)
        };
        let text = |texts: [&str; 3]| texts.map(str::to_owned);
        assert_eq!(room(None), text(["2", "machines 0 + waiting claims 2", "1"]));
        assert_eq!(room(Some("n")), text(["2", "machines 0 + waiting claims 2", "1"]));
        // A controller that is limited to another namespace does not serve these claims.
        assert_eq!(room(Some("m")), text(["0", "machines 0", "0"]));
    }

    #[test]
    fn a_claim_that_cannot_get_an_address_adds_nothing_to_the_needed_addresses() {
        let of = |members: &Value, annotations: Value| {
            let mut lists = whole();
            lists.add_claim(claim("n", "c", &annotations));
            needed(&plan_of(lists, vec![pool("n/p", members)]))
                .into_iter()
                .map(|[needed, ..]| needed)
                .collect::<Vec<_>>()
        };
        let one = json!({});
        assert_eq!(of(&one, json!({})), ["1"]);
        let requested = |address: &str| json!({"ipam.glowplug.dev/requested-address": address});
        assert_eq!(of(&one, requested("10.0.0.9")), ["1"]);
        for address in ["10.9.9.9", "10.0.0.1", "x"] {
            assert_eq!(of(&json!({"gateway": ["10.0.0.1"]}), requested(address)), ["0"], "{address}");
        }
        let both = json!({"addresses": ["10.0.0.8/29", "fd00::8/125"], "machineNetwork": [{"cidr": "10.0.0.0/16"}, {"cidr": "fd00::/64"}]});
        let family = |family: &str| json!({"ipam.glowplug.dev/family": family});
        assert_eq!(of(&both, family("IPv6")), ["0", "1"]);
        assert_eq!(of(&both, json!({})), ["0", "0"]);
        assert_eq!(of(&one, family("IPv6")), ["0"]);
        assert_eq!(of(&one, json!({"cluster.x-k8s.io/paused": ""})), ["0"]);
        // The pool serves the claims of the namespaces that it selects.
        let shared = |namespace: &str| {
            let labels = json!({"vlan": "10"});
            let labels = [(namespace.to_owned(), serde_json::from_value(labels).unwrap())].into();
            let mut lists = Lists { namespaces: Some(labels), ..whole() };
            lists.add_claim(claim("shop", "c", &json!({})));
            let members = json!({"namespaceSelector": {"matchLabels": {"vlan": "10"}}});
            needed(&plan_of(lists, vec![pool("p", &members)])).remove(0)[0].clone()
        };
        assert_eq!([shared("shop"), shared("other")], ["1", "0"]);
    }

    #[test]
    fn the_needed_addresses_are_unknown_if_the_user_has_no_right_to_read_the_machines_or_claims() {
        let rows = |lists: Lists, members: Value| {
            let answer = plan_of(lists, vec![pool("n/p", &members)]);
            let room = &answer.pools[0].room[0];
            let counts = [&room.held, &room.needed, &room.lacking];
            (answer.is_clean(), counts.map(|count| count.clone().unwrap_or_else(|| "-".to_owned())).join(" "))
        };
        let of_node_pool = || json!({"nodePoolRef": {"name": "w"}});
        let of_machines = || json!({"machineSelector": {"matchLabels": {"role": "worker"}}});
        let of = |is_clean: bool, counts: &str| (is_clean, counts.to_owned());
        assert_eq!(rows(whole(), of_node_pool()), of(true, "0 0 0"));
        assert_eq!(rows(Lists { has_node_pools: false, ..whole() }, of_node_pool()), of(false, "- - -"));
        assert_eq!(rows(Lists { has_machines: false, ..whole() }, of_node_pool()), of(false, "- - -"));
        assert_eq!(rows(Lists { has_node_pools: false, ..whole() }, of_machines()), of(true, "0 0 0"));
        assert_eq!(rows(Lists { has_machines: false, ..whole() }, of_machines()), of(false, "- - -"));
        assert_eq!(rows(Lists { has_machines: false, has_node_pools: false, ..whole() }, json!({})), of(true, "0 0 0"));
        assert_eq!(rows(Lists { has_claims: false, ..whole() }, json!({})), of(false, "0 - -"));
        assert_eq!(rows(Lists { has_ipam_claims: false, ..whole() }, json!({})), of(true, "0 0 0"));
        assert_eq!(
            rows(Lists { has_ipam_claims: false, ..whole() }, json!({"serveIPAMClaims": true})),
            of(false, "0 - -")
        );
    }

    #[test]
    fn a_selector_that_selects_nothing_has_a_warning() {
        let warnings = |lists: Lists, name: &str, members: Value| {
            let answer = plan_of(lists, vec![pool(name, &members)]);
            (answer.is_clean(), answer.pools[0].warnings.clone())
        };
        let line = |line: &str| (true, vec![line.to_owned()]);
        let node_pool =
            "nodePoolRef: NodePool n/w does not exist: the pool selects none of its machines until the NodePool exists";
        assert_eq!(warnings(whole(), "n/p", json!({"nodePoolRef": {"name": "w"}})), line(node_pool));
        let unknown = Lists { has_node_pools: false, ..whole() };
        assert_eq!(warnings(unknown, "n/p", json!({"nodePoolRef": {"name": "w"}})), (false, vec![]));
        let labels = || json!({"matchLabels": {"role": "worker"}});
        let machines = "machineSelector: it selects no VirtualMachine of the cluster";
        assert_eq!(warnings(whole(), "n/p", json!({"machineSelector": labels()})), line(machines));
        let mut lists = whole();
        lists.add_vm(vm("w-0", &json!({"role": "worker"}), &["vlan10"]));
        assert_eq!(warnings(lists, "n/p", json!({"machineSelector": labels()})), (true, vec![]));
        let with = |names: &[&str]| {
            let all = names.iter().map(|name| ((*name).to_owned(), [("role".to_owned(), "worker".to_owned())].into()));
            Lists { namespaces: Some(all.collect()), ..whole() }
        };
        let namespaces = "namespaceSelector: no Namespace has these labels: the pool serves no machine and no claim until a Namespace has them";
        assert_eq!(warnings(with(&[]), "p", json!({"namespaceSelector": labels()})), line(namespaces));
        assert_eq!(warnings(with(&["n"]), "p", json!({"namespaceSelector": labels()})), (true, vec![]));
        let unknown = warnings(whole(), "p", json!({"namespaceSelector": labels()}));
        assert_eq!(unknown, (false, vec![]));
    }

    #[test]
    fn machines_count_once_if_a_pool_names_their_node_pool_twice() {
        let mut lists = whole();
        let node_pool =
            json!({"metadata": {"namespace": "n", "name": "w"}, "spec": {"clusterName": "c", "replicas": 3}});
        lists.node_pools.push(std::sync::Arc::new(object(node_pool)));
        let reference = || json!({"namespace": "n", "name": "w"});
        let members = json!({"nodePoolRefs": [reference(), reference()]});
        let row = ["4", "replicas 3 + maxSurge 1", "0"].map(str::to_owned);
        assert_eq!(needed(&plan_of(lists, vec![pool("p", &members)])), [row]);
    }

    #[test]
    fn guests_that_use_the_address_of_a_gateway_or_of_another_guest_are_shown() {
        let mut lists = whole();
        for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.9"), ("c", "10.0.0.9"), ("d", "10.0.0.10")] {
            let mut guest = vm(name, &json!({}), &["vlan10"]);
            guest.data["spec"] = guest.data["spec"]["template"]["spec"].take();
            guest.data["status"] =
                json!({"phase": "Running", "interfaces": [{"name": "vlan10", "ipAddresses": [address]}]});
            lists.add_vm(vm(name, &json!({}), &["vlan10"]));
            lists.add_instance(guest);
        }
        let answer = plan_of(lists, vec![pool("n/p", &json!({"gateway": ["10.0.0.1"]}))]);
        let text = "\
            POOL  CHANGE  ANSWER\n\
            n/p   create  accepted\n\
            \n\
            IN USE    POOL  RESERVED AS  STATE     USER\n\
            10.0.0.1  n/p   gateway      byReport  VirtualMachineInstance n/a\n\
            \n\
            CONFLICT  POOL  USER\n\
            10.0.0.9  n/p   eno101 of n/b (b) (VirtualMachineInstance n/b)\n\
            10.0.0.9  n/p   eno101 of n/c (c) (VirtualMachineInstance n/c)\n\
            \n\
            ROOM  FAMILY  TOTAL  FREE  HELD  NEEDED  LACKING  BECAUSE\n\
            n/p   IPv4    8      6     0     0       0        machines 0\n";
        assert_eq!((answer.to_string().as_str(), answer.is_clean()), (text, false));
    }

    /// A pool with the addresses `10.0.0.8/29`: a StaticIPPool if `name` has the form `namespace/name`, otherwise a
    /// GlobalStaticIPPool.
    fn pool(name: &str, members: &Value) -> Object {
        let (namespace, name) = name.split_once('/').map_or((None, name), |(namespace, name)| (Some(namespace), name));
        let mut spec = json!({
            "network": "infra/vlan10", "addresses": ["10.0.0.8/29"], "machineNetwork": [{"cidr": "10.0.0.0/16"}],
        });
        json_patch::merge(&mut spec, members);
        object(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}))
    }

    /// The lists of a cluster without objects, read by a user who has every right.
    fn whole() -> Lists {
        Lists { has_node_pools: true, has_machines: true, has_claims: true, has_ipam_claims: true, ..Lists::default() }
    }

    fn plan_of(lists: Lists, pools: Vec<Object>) -> Answer {
        answer(lists, pools, &BTreeSet::new(), Timestamp::UNIX_EPOCH).unwrap()
    }

    fn vm(name: &str, labels: &Value, networks: &[&str]) -> Object {
        let networks = networks.iter().map(|it| json!({"name": it, "multus": {"networkName": format!("infra/{it}")}}));
        let networks: Vec<Value> = networks.collect();
        let interfaces: Vec<Value> = networks.iter().map(|it| json!({"name": it["name"]})).collect();
        let volumes = json!([{"name": "cloudinit", "cloudInitConfigDrive": {}}]);
        let spec = json!({"networks": networks, "domain": {"devices": {"interfaces": interfaces}}, "volumes": volumes});
        let metadata = json!({"namespace": "n", "name": name, "uid": name, "labels": labels});
        object(json!({"metadata": metadata, "spec": {"template": {"spec": spec}}}))
    }

    #[test]
    fn the_addresses_in_network_data_of_users_are_not_free_and_can_be_in_conflict() {
        let labels = json!({"role": "worker"});
        let pool = || pool("n/p", &json!({"machineSelector": {"matchLabels": labels}}));
        let with_data = |name: &str| {
            let mut vm = vm(name, &labels, &["vlan10"]);
            let entry =
                json!({"id": "a", "type": "ipv4", "link": "eth0", "ip_address": "10.0.0.9", "netmask": "255.255.0.0"});
            let document = json!({"links": [{"id": "eth0", "type": "phy"}], "networks": [entry]}).to_string();
            let volume = json!([{"name": "cloudinit", "cloudInitConfigDrive": {"networkData": document}}]);
            vm.data["spec"]["template"]["spec"]["volumes"] = volume;
            vm
        };
        let planned = |names: &[&str]| {
            let mut lists = whole();
            names.iter().for_each(|name| lists.add_vm(with_data(name)));
            let planned = plan_of(lists, vec![pool()]).pools.remove(0);
            let users: Vec<String> =
                planned.conflicts.into_iter().map(|it| format!("{} {}", it.address, it.user)).collect();
            (planned.room[0].total.clone(), planned.room[0].free.clone(), users)
        };
        let counts = |free: &str, users: &[&str]| {
            ("8".to_owned(), free.to_owned(), users.iter().map(|&user| user.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(planned(&["a"]), counts("7", &[]));
        let users = |name: &str| format!("10.0.0.9 eno101 of n/{name} ({name}) (VirtualMachine n/{name})");
        assert_eq!(planned(&["a", "b"]), counts("7", &[&users("a"), &users("b")]));
    }

    #[test]
    fn a_warning_counts_the_new_machines_that_the_plan_does_not_try() {
        let plan_of = |sizes: [usize; 2]| {
            let expression = |(key, size): (&str, usize)| {
                let values: Vec<String> = (0..size).map(|value| format!("v{value}")).collect();
                json!({"key": key, "operator": "In", "values": values})
            };
            let all: Vec<Value> = ["role", "zone"].into_iter().zip(sizes).map(expression).collect();
            let pool = pool("n/p", &json!({"machineSelector": {"matchExpressions": all}}));
            plan_of(Lists::default(), vec![pool]).pools.remove(0).warnings
        };
        // One machine has the first value of each key. Each other value needs one more machine.
        assert_eq!(plan_of([512, 513]), [""; 0]);
        let warning = "2 new machines are not tried, expected at most 1024 combinations of namespace and labels";
        assert_eq!(plan_of([513, 514]), [warning]);
    }

    #[test]
    fn machines_that_the_webhook_would_refuse_are_listed_with_the_message_of_the_webhook() {
        let refusals = |lists: Lists, pools: Vec<Object>| {
            let answer = plan_of(lists, pools);
            let accepted: Vec<usize> = answer.pools.iter().map(|pool| pool.errors.len()).collect();
            assert_eq!((accepted.iter().sum::<usize>(), answer.is_clean()), (0, answer.refused.is_empty()));
            let row = |it: &Refused| <[String; 3]>::from(it).join(" | ");
            answer.refused.iter().map(row).collect::<Vec<_>>()
        };
        let of = |more: Value| {
            let mut members = json!({"machineSelector": {"matchLabels": {"role": "worker"}}});
            json_patch::merge(&mut members, &more);
            members
        };
        let elsewhere = || json!({"addresses": ["10.0.1.8/29"]});
        let with = |more: Value| {
            let mut members = elsewhere();
            json_patch::merge(&mut members, &more);
            of(members)
        };
        let first = || pool("n/a", &of(json!({})));
        // If two pools have the same priority, neither is the overflow of the other.
        let same = "new machines in namespace n with role=worker | n/a, n/b | pools n/a and n/b both select the machine for \
                    network infra/vlan10, expected one pool, or different values of priority";
        assert_eq!(refusals(whole(), vec![first(), pool("n/b", &with(json!({})))]), [same]);
        assert_eq!(refusals(whole(), vec![first(), pool("n/b", &with(json!({"priority": 1})))]), [""; 0]);
        // The first overflow pool is for another interface. The second overflow pool has other families.
        let other = with(json!({"priority": 1, "interface": "eno102"}));
        let interface = "new machines in namespace n with role=worker | n/a, n/b | pool n/b cannot be the overflow of pool n/a: \
                         interface eno102, expected eno101";
        assert_eq!(refusals(whole(), vec![first(), pool("n/b", &other)]), [interface]);
        let both = json!({
            "priority": 1, "addresses": ["10.0.1.8/29", "fd00::8/125"],
            "machineNetwork": [{"cidr": "10.0.0.0/16"}, {"cidr": "fd00::/64"}],
        });
        let families = "new machines in namespace n with role=worker | n/a, n/b | pool n/b cannot be the overflow of pool n/a: \
                        families IPv4 and IPv6, expected IPv4";
        assert_eq!(refusals(whole(), vec![first(), pool("n/b", &of(both))]), [families]);
        // Two pools of different networks are for the same interface. The cluster has the first pool and two machines.
        // Both pools select the first machine, and neither pool selects the second machine.
        let mut lists = whole();
        lists.add_pool(first());
        lists.add_vm(vm("w-0", &json!({"role": "worker"}), &["vlan10", "vlan20"]));
        lists.add_vm(vm("w-1", &json!({"role": "infra"}), &["vlan10", "vlan20"]));
        let networks = "new machines in namespace n with role=worker, n/w-0 | n/b | pools n/a and n/b both select the machine for \
                        interface eno101, expected one pool";
        let on_other = || with(json!({"network": "infra/vlan20"}));
        assert_eq!(refusals(lists, vec![pool("n/b", &on_other())]), [networks]);
        // The NodePool may be created after the pools.
        let of_node_pool = |name: &str, network: &str| {
            let members = json!({"nodePoolRef": {"name": "workers"}, "network": network, "addresses": [format!("10.0.{}.8/29", name.len())]});
            pool(name, &members)
        };
        let later = "new machines of NodePool n/workers | n/a, n/bb | pools n/a and n/bb both select the machine for interface \
                     eno101, expected one pool";
        let pools = || vec![of_node_pool("n/a", "infra/vlan10"), of_node_pool("n/bb", "infra/vlan20")];
        assert_eq!(refusals(whole(), pools()), [later]);
        let mut lists = whole();
        let node_pool =
            json!({"metadata": {"namespace": "n", "name": "workers"}, "spec": {"clusterName": "c", "replicas": 0}});
        lists.node_pools.push(std::sync::Arc::new(object(node_pool)));
        let mut answer = plan_of(lists, pools());
        assert_eq!(answer.refused.remove(0).machines, ["new machines of NodePool n/workers"]);
        // The selected Namespace does not exist yet.
        let both = |selector: Value| {
            let shared =
                |name: &str, network: &str| pool(name, &json!({"namespaceSelector": selector, "network": network}));
            let lists = Lists { namespaces: Some(std::collections::BTreeMap::new()), ..whole() };
            refusals(lists, vec![shared("a", "infra/vlan10"), shared("b", "infra/vlan20")])
        };
        let new = "new machines in a new namespace | a, b | pools a and b both select the machine for interface eno101, expected \
                   one pool";
        assert_eq!(both(json!({"matchLabels": {"vlan": "10"}})), [new]);
        // A second requirement excludes one of the two values, or both.
        let requires = |values: &[&str]| {
            let not = json!({"key": "vlan", "operator": "NotIn", "values": values});
            json!({"matchExpressions": [{"key": "vlan", "operator": "In", "values": ["10", "20"]}, not]})
        };
        assert_eq!(both(requires(&["10"])), [new]);
        assert_eq!(both(requires(&["10", "20"])), [""; 0]);
        // The machine has no interface on the network of the pool.
        let mut lists = whole();
        for index in 0..7 {
            lists.add_vm(vm(&format!("w-{index}"), &json!({"role": "worker"}), &["vlan30"]));
        }
        let without = "n/w-0, n/w-1, n/w-2, n/w-3, n/w-4 and 2 more | n/a | pool n/a: spec.template.spec.networks: no interface on network \
                       infra/vlan10, expected one; the others are vlan30 on infra/vlan30";
        assert_eq!(refusals(lists, vec![first()]), [without]);
        // The machine has no cloud-init volume.
        let mut lists = whole();
        let mut bare = vm("w-0", &json!({"role": "worker"}), &["vlan10"]);
        bare.data["spec"]["template"]["spec"]["volumes"] = json!([{"name": "root", "dataVolume": {"name": "root"}}]);
        lists.add_vm(bare);
        let volume = "n/w-0 | n/a | spec.template.spec.volumes: no volume with cloudInitConfigDrive or cloudInitNoCloud, expected one \
                      for the addresses of n/a";
        assert_eq!(refusals(lists, vec![first()]), [volume]);
    }

    #[test]
    fn the_table_of_refused_machines_names_the_pools_and_the_message() {
        let members =
            |addresses: &str| json!({"addresses": [addresses], "machineSelector": {"matchLabels": {"role": "worker"}}});
        let pools = vec![pool("n/a", &members("10.0.0.8/29")), pool("n/b", &members("10.0.1.8/29"))];
        let answer = plan_of(whole(), pools);
        let selector = "machineSelector: the same selector has pool n/a on network infra/vlan10 already, expected one pool, or different \
                        values of priority";
        let none = "machineSelector: it selects no VirtualMachine of the cluster";
        let refused = "pools n/a and n/b both select the machine for network infra/vlan10, expected one pool, or different values of \
                       priority";
        let text = format!(
            "POOL  CHANGE  ANSWER\n\
             n/a   create  accepted\n\
             n/b   create  accepted\n\
             \n\
             POOL  WARNING\n\
             n/a   {none}\n\
             n/b   {selector}\n\
             n/b   {none}\n\
             \n\
             REFUSED                                       POOLS     MESSAGE\n\
             new machines in namespace n with role=worker  n/a, n/b  {refused}\n\
             \n\
             ROOM  FAMILY  TOTAL  FREE  HELD  NEEDED  LACKING  BECAUSE\n\
             n/a   IPv4    8      8     0     0       0        machines 0\n\
             n/b   IPv4    8      8     0     0       0        machines 0\n"
        );
        assert_eq!(answer.to_string(), text);
    }

    #[test]
    fn a_pool_of_a_namespace_that_does_not_exist_is_rejected() {
        let pool = json!({"metadata": {"namespace": "shop", "name": "p"}, "spec": {"network": "vlan10", "addresses": ["10.0.0.8/29"]}});
        let absent = BTreeSet::from(["shop".to_owned()]);
        let pools = vec![serde_json::from_value::<Object>(pool).unwrap()];
        let answer = answer(Lists::default(), pools, &absent, Timestamp::UNIX_EPOCH).unwrap();
        let line = r#"metadata.namespace: "shop" does not exist, expected a namespace of the cluster"#.to_owned();
        assert_eq!(answer.pools, [Planned { pool: "shop/p".to_owned(), errors: vec![line], ..Planned::default() }]);
    }

    #[test]
    fn the_plan_of_a_rejected_pool_lists_no_held_addresses_outside_the_pool() {
        let mut lists = Lists::default();
        let spec = |more: Value| {
            let mut spec = json!({
                "network": "infra/vlan10", "addresses": ["10.0.0.8/29"], "machineNetwork": [{"cidr": "10.0.0.0/24"}],
            });
            json_patch::merge(&mut spec, &more);
            let pool = json!({"metadata": {"namespace": "n", "name": "p"}, "spec": spec});
            serde_json::from_value::<Object>(pool).unwrap()
        };
        lists.add_pool(spec(json!({})));
        let holder =
            json!({"kind": "VirtualMachine", "namespace": "n", "name": "w", "uid": "v", "interface": "eno101"});
        let lease = json!({"metadata": {"name": "10-0-0-8.infra.vlan10"}, "spec": {
            "network": "infra/vlan10", "address": "10.0.0.8", "prefix": 24, "pool": "n/p", "holder": holder,
            "since": "2026-08-14T10:00:00.000000Z",
        }});
        lists.leases = vec![serde_json::from_value(lease).unwrap()];
        let leases: Vec<LeaseSpec> = lists.held().collect();
        let outside = |more: Value| judged(&lists, &spec(more), &leases).outside.len();
        assert_eq!(outside(json!({"addresses": ["10.0.0.9/32"]})), 1);
        assert_eq!(outside(json!({"addresses": ["10.0.0.9/32"], "gatway": ["10.0.0.1"]})), 0);
    }

    #[test]
    fn a_node_pool_needs_an_address_for_each_machine_of_a_rollout() {
        let need = |spec: Value| need_of(&serde_json::from_value(json!({"spec": spec})).unwrap());
        let replace = |rolling: Value| json!({"upgradeType": "Replace", "replace": {"rollingUpdate": rolling}});
        let of = |count: u128, because: &str| Need(count, because.to_owned());
        assert_eq!(need(json!({"replicas": 3})), of(4, "replicas 3 + maxSurge 1"));
        assert_eq!(
            need(json!({"replicas": 3, "management": replace(json!({"maxSurge": 2}))})),
            of(5, "replicas 3 + maxSurge 2")
        );
        assert_eq!(
            need(json!({"replicas": 5, "management": replace(json!({"maxSurge": "25%"}))})),
            of(7, "replicas 5 + maxSurge 2")
        );
        let scaled = json!({"autoScaling": {"min": 1, "max": 6}, "management": {"upgradeType": "InPlace"}});
        assert_eq!(need(scaled), of(6, "autoScaling.max 6 + maxSurge 0"));
        let on_delete =
            json!({"replicas": 2, "management": {"upgradeType": "Replace", "replace": {"strategy": "OnDelete"}}});
        assert_eq!(need(on_delete), of(2, "replicas 2 + maxSurge 0"));
        // Unexpected content of a NodePool is not an error: a member with such content counts as absent.
        for spec in [
            json!(7),
            json!({"replicas": "x", "management": [1]}),
            json!({"management": replace(json!({"maxSurge": "x%"}))}),
        ] {
            assert_eq!(need(spec), of(1, "replicas 0 + maxSurge 1"));
        }
    }
}

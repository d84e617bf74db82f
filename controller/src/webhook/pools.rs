//! The webhook for pools. It rejects an invalid pool, a pool that overlaps with or contradicts another pool, and a
//! change of the network of a pool, or of the interface of a pool with holders.
//!
//! The functions without a client as a parameter are pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use glowplug::diagnostic::Diagnostic;
use glowplug::host::address::AddressSet;
use glowplug::host::pool::{Pool, Reserved, Space, Subnet, overlaps};
use glowplug::network::{Family, InterfaceName};
use http::StatusCode;
use kube::api::{ApiResource, ListParams};
use kube::core::admission::{AdmissionRequest, Operation};
use kube::core::{Selector, Status};
use kube::{Api, Client, Resource as _};
use tokio::time::{Instant, timeout_at};

use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::cluster::request::find;
use crate::kinds::cluster_api::FAMILY_ANNOTATION;
use crate::kinds::lease_name::lease_name;
use crate::kinds::pool::{
    GROUP, GlobalStaticIPPool, Holder, HolderKind, LeaseSpec, PoolSpec, StaticIPLease, StaticIPPool,
};
use crate::pools::facts::PoolObject;
use crate::pools::selection::{MachinePool, Selection, node_pools_of};
use crate::webhook::verdict::{Verdict, failure};

/// Time limit for reading leases. The leases are only for warnings, except for a change of the interface, so they must
/// not use up the time of the request.
const READ_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of warnings of each kind: comparisons with other pools and NodePools, stored values that violate the
/// schema, and held addresses that become reserved.
const MOST_WARNINGS: usize = 5;
/// Maximum number of leases in the response to one list request.
const PAGE: u32 = 500;
/// Maximum number of reserved addresses of a pool whose leases are read.
const MOST_NAMED: usize = 64;
/// Maximum number of leases that are read at the same time.
const IN_FLIGHT: usize = 16;
/// Maximum number of addresses that a warning lists. API servers truncate long warnings.
const NAMED: usize = 5;

/// A change of a pool that the API server is asked to store.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new pool with this specification.
    Create(PoolSpec),
    /// A pool gets another specification.
    Update {
        /// The stored specification. `None`: this version of the controller cannot read it.
        old: Option<PoolSpec>,
        /// The new specification.
        new: Box<PoolSpec>,
    },
    /// The deletion of a pool.
    Delete,
}

/// Checks a change of the pool `id`. `others` has the valid pools of the cluster without this pool.
///
/// A change that makes two pools overlap is rejected. The message names both pools and their common addresses. If the
/// stored pool already has the overlap, the result is only a warning, so that an administrator can change one of the
/// two pools without first changing the other.
#[must_use]
pub fn validate(id: &PoolId, change: &Change, others: &[Pool]) -> Verdict {
    let (old, new) = match change {
        Change::Create(new) => (None, new),
        Change::Update { old, new } => (old.as_ref(), new.as_ref()),
        Change::Delete => return Verdict::default(),
    };
    let (pool, mut diagnostics) = id.check(new);
    if let Some(old) = old.filter(|old| old.network != new.network) {
        let expected = format!("{:?}: create a new pool for another network", old.network);
        diagnostics.push(Diagnostic::error("network", "immutable", &new.network, &expected));
    }
    let mut verdict = Verdict::of(&diagnostics);
    // API servers reject values that the schema does not allow. But if such a value is already stored, they accept a
    // change of other members.
    let beyond_schema = |spec: &PoolSpec| Verdict::of(&spec.beyond_schema()).warnings;
    let stored = old.map(beyond_schema);
    let is_stored = |line: &String| match change {
        Change::Create(_) => false,
        _ => stored.as_ref().is_none_or(|stored| stored.contains(line)),
    };
    let (known, refused): (Vec<String>, Vec<String>) = beyond_schema(new).into_iter().partition(is_stored);
    verdict.warnings.extend(known.into_iter().take(MOST_WARNINGS));
    verdict.errors.extend(refused);
    let before = old.and_then(|old| id.check(old).0);
    for other in others {
        let overlap = |pool: &Option<Pool>| {
            overlaps([other].into_iter().chain(pool)).kept.pop().map(|overlap| {
                let line = overlap.to_string();
                (overlap.addresses, line)
            })
        };
        let Some((addresses, line)) = overlap(&pool) else { continue };
        let known = overlap(&before).map(|(addresses, _)| addresses).unwrap_or_default();
        let is_known = addresses.ranges().iter().all(|range| known.covers(range));
        if is_known { &mut verdict.warnings } else { &mut verdict.errors }.push(line);
    }
    verdict
}

/// Decides on a change of the pool `id`, except for the decision of [`judge_leases`]. `others` has all pools of the
/// cluster without this pool. `node_pools` has the known NodePools, or is `None` if they are not known yet.
#[must_use]
pub fn judge(
    id: &PoolId,
    change: &Change,
    others: &[MachinePool],
    node_pools: Option<&BTreeMap<Key, Arc<Object>>>,
) -> Verdict {
    // Only valid pools can overlap, because an invalid pool allocates nothing.
    let valid: Vec<Pool> = others.iter().filter_map(|other| other.pool.as_ref().ok().cloned()).collect();
    let mut verdict = validate(id, change, &valid);
    let compared = compare(id, change, others, node_pools);
    verdict.errors.extend(compared.errors);
    verdict.warnings.extend(compared.warnings);
    verdict
}

/// Compares a change of the pool `id` with the other pools of its network and of its machines. `others` has all pools
/// of the cluster without this pool. `node_pools` has the known NodePools, or is `None` if they are not known yet.
#[must_use]
pub fn compare(
    id: &PoolId,
    change: &Change,
    others: &[MachinePool],
    node_pools: Option<&BTreeMap<Key, Arc<Object>>>,
) -> Verdict {
    let (old, new) = match change {
        Change::Create(new) => (None, new),
        Change::Update { old, new } => (old.as_ref(), new.as_ref()),
        Change::Delete => return Verdict::default(),
    };
    let (Some(pool), mut verdict) = (id.check(new).0, Verdict::default()) else { return Verdict::default() };
    let selector =
        new.machine_selector.as_ref().filter(|of| old.is_none_or(|old| old.machine_selector.as_ref() != Some(*of)));
    if selector.and_then(|of| Selector::try_from(of.clone()).ok()).is_some_and(|of| of.selects_all()) {
        verdict.warnings.push(format!(
            "machineSelector: is empty: the pool selects every VirtualMachine, and a VirtualMachine without an interface on network {} is refused",
            pool.network()
        ));
    }
    let others = others.iter().filter_map(|other| Some((other, other.pool.as_ref().ok()?)));
    let (others, elsewhere): (Vec<_>, Vec<_>) = others.partition(|(_, other)| other.network() == pool.network());
    // A guest has one network on each interface, so its pools of one interface must have the same network.
    let is_taken = |(other, it): &(&MachinePool, &Pool)| !other.is_deleted && it.interface() == pool.interface();
    let taken: Vec<(&MachinePool, &Pool)> = elsewhere.into_iter().filter(is_taken).collect();
    let interface_taken = |path: &str, other: &MachinePool| {
        format!(
            "{path}: pool {} of network {} has interface {} for the same machines already, expected another interface: new machines \
             are refused",
            other.id,
            other.spec.network,
            pool.interface()
        )
    };
    let before = old.map(|old| node_pools_of(id, old)).unwrap_or_default();
    let order = |spec: &PoolSpec| (spec.priority.unwrap_or_default(), spec.interface.clone());
    // If neither the priority nor the interface changes, problems are only warnings. Such a change, for example of the
    // addresses of a second family, may be one of several changes that together correct both pools.
    let keeps_order = old.is_some_and(|old| order(old) == order(new));
    let mut compare_order = |path: &str,
                             machines: &str,
                             (second, of_second): (&MachinePool, &Pool),
                             is_warning: bool| {
        let [first, overflow] = if second.priority() <= order(new).0 { [of_second, &pool] } else { [&pool, of_second] };
        let problem = match first.check_overflow(overflow) {
            _ if second.priority() == order(new).0 => format!(
                "{path}: {machines} has pool {} on network {} already, expected one pool, or different values of priority",
                second.id,
                pool.network()
            ),
            Err(problem) => format!("{path}: {problem}"),
            Ok(()) => return,
        };
        if is_warning { &mut verdict.warnings } else { &mut verdict.errors }.push(problem);
    };
    let mut shared = Vec::new();
    let selectors = |spec: &PoolSpec| (spec.namespace_selector.clone(), spec.machine_selector.clone());
    let (_, machine_selector) = selectors(new);
    if selectors(new) != (None, None) {
        let member = if machine_selector.is_some() { "machineSelector" } else { "namespaceSelector" };
        let is_same = |(other, _): &&(&MachinePool, &Pool)| {
            !other.is_deleted && other.id.namespace == id.namespace && selectors(&other.spec) == selectors(new)
        };
        // These problems are only warnings, because the user may still change the selector of one of the pools.
        others.iter().filter(is_same).for_each(|other| compare_order(member, "the same selector", *other, true));
        shared.extend(taken.iter().filter(is_same).map(|(other, _)| interface_taken(member, other)));
    }
    let paths = |index: usize| match id.namespace {
        Some(_) => "nodePoolRef".to_owned(),
        None => format!("nodePoolRefs[{index}]"),
    };
    for (index, node_pool) in node_pools_of(id, new).iter().enumerate() {
        let (machines, is_warning) = (format!("NodePool {node_pool}"), before.contains(node_pool) && keeps_order);
        let also = others.iter().filter(|(other, _)| serves_too(other, node_pool));
        also.for_each(|other| compare_order(&paths(index), &machines, *other, is_warning));
        let taken = taken.iter().filter(|(other, _)| serves_too(other, node_pool));
        shared.extend(taken.map(|(other, _)| interface_taken(&paths(index), other)));
    }
    verdict.warnings.extend(shared);
    for (index, node_pool) in node_pools_of(id, new).iter().enumerate() {
        let path = paths(index);
        if node_pools.is_some_and(|known| !known.contains_key(node_pool)) {
            verdict.warnings.push(format!(
                "{path}: NodePool {node_pool} does not exist: the pool selects none of its machines until the NodePool exists"
            ));
        }
    }
    let lengths = |pool: &Pool| -> BTreeMap<Family, BTreeSet<u8>> {
        let of = |space: &Space| (space.family(), space.subnets().iter().map(Subnet::prefix).collect());
        pool.spaces().map(of).collect()
    };
    let list = |lengths: &BTreeSet<u8>| -> String {
        lengths.iter().map(|length| format!("/{length}")).collect::<Vec<_>>().join(" and ")
    };
    for (other, lengths_of_other) in others.iter().map(|(other, pool)| (&other.id, lengths(pool))) {
        for (family, length) in lengths(&pool) {
            if let Some(of_other) = lengths_of_other.get(&family).filter(|other| other.is_disjoint(&length)) {
                verdict.warnings.push(format!(
                    "pools {other} and {id} of network {} have {family} prefix lengths {} and {}",
                    pool.network(),
                    list(of_other),
                    list(&length)
                ));
            }
        }
    }
    verdict.warnings.truncate(MOST_WARNINGS);
    verdict
}

/// Whether a pool serves new machines of a NodePool. A pool that is being deleted serves no new machine.
fn serves_too(pool: &MachinePool, node_pool: &Key) -> bool {
    !pool.is_deleted && pool.node_pools().contains(node_pool)
}

/// Decides on a change of the pool `id` by the leases of the pool. A change of `interface` is rejected while there are
/// holders, because their leases and network data name the interface. `leases` may contain leases of other pools, which
/// are ignored.
#[must_use]
pub fn judge_leases(id: &PoolId, change: &Change, leases: &[LeaseSpec]) -> Verdict {
    let (name, mut verdict) = (id.to_string(), Verdict::default());
    if let Some([old, new]) = change.interfaces(id) {
        let is_held = |lease: &LeaseSpec| lease.pool == name && lease.released.is_none();
        let holders: BTreeSet<&str> =
            leases.iter().filter(|lease| is_held(lease)).map(|lease| lease.holder.uid.as_str()).collect();
        if !holders.is_empty() {
            let expected = format!(
                "\"{old}\" while machines or claims hold addresses of the pool (holders: {}): create a new pool for another interface",
                holders.len()
            );
            let diagnostic = Diagnostic::error("interface", "immutable", new.as_str(), &expected);
            verdict.errors.push(diagnostic.to_string());
        }
    }
    verdict.warnings.extend(warn_of_holders(id, change, leases));
    verdict.warnings.extend(warn_of_family(id, change, leases));
    verdict
}

/// Returns a warning if the change gives the pool a second family, because new claims then need an annotation. `None`:
/// the change adds no family, or no claim has an address of the pool.
fn warn_of_family(id: &PoolId, change: &Change, leases: &[LeaseSpec]) -> Option<String> {
    if !change.adds_family(id) {
        return None;
    }
    let name = id.to_string();
    let is_claim = |lease: &&LeaseSpec| {
        lease.pool == name && lease.released.is_none() && lease.holder.kind == HolderKind::IpAddressClaim
    };
    let claims = leases.iter().filter(is_claim).count();
    (claims > 0).then(|| {
        format!(
            "pool {name} gets a second family: a new claim needs the annotation {FAMILY_ANNOTATION} then (claims with an address \
             now: {claims})"
        )
    })
}

/// Returns a warning for each held address that the change makes a gateway, a name server or an address of the template:
/// the router or server would share the address with its holder. `leases` may contain leases of other networks and
/// addresses, which are ignored.
fn warn_of_reserved(id: &PoolId, change: &Change, leases: &[LeaseSpec]) -> Vec<String> {
    let Some((network, named)) = change.newly_named(id) else { return Vec::new() };
    let is_of_network = |lease: &&LeaseSpec| lease.network == network && lease.released.is_none();
    let warning = |lease: &LeaseSpec| {
        let address = lease.address.parse().ok()?;
        let (why, Holder { kind, namespace, name, .. }) = (named.get(&address)?, &lease.holder);
        let line = format!("{why} {address}: held by {kind} {namespace}/{name}, expected an address without a holder");
        Some((address, line))
    };
    let all: BTreeMap<IpAddr, String> = leases.iter().filter(is_of_network).filter_map(warning).collect();
    all.into_values().take(MOST_WARNINGS).collect()
}

/// Returns a warning if the pool no longer allocates held addresses after the change: their holders keep them. `None`:
/// there are no such addresses.
///
/// `leases` may contain leases of other pools, which are ignored.
#[must_use]
pub fn warn_of_holders<'a>(
    id: &PoolId,
    change: &Change,
    leases: impl IntoIterator<Item = &'a LeaseSpec>,
) -> Option<String> {
    let name = id.to_string();
    let lost = lost(id, change, leases).into_iter();
    let (addresses, holders): (BTreeSet<IpAddr>, BTreeSet<&str>) =
        lost.map(|(address, holder)| (address, holder.uid.as_str())).unzip();
    if addresses.is_empty() {
        return None;
    }
    let named: Vec<String> = addresses.iter().take(NAMED).map(ToString::to_string).collect();
    let mut named = named.join(", ");
    if let further @ 1.. = addresses.len().saturating_sub(NAMED) {
        named += &format!(" and {further} more");
    }
    let consequence = match change {
        Change::Delete => "is deleted when these addresses are released",
        _ => "no longer allocates these addresses, which stay with their holders",
    };
    Some(format!("pool {name} {consequence}: {named} (holders: {})", holders.len()))
}

/// Returns the held addresses that the pool no longer allocates after the change, each with its holder. The holders
/// keep these addresses. `leases` may contain leases of other pools, which are ignored.
#[must_use]
pub fn lost<'a>(
    id: &PoolId,
    change: &Change,
    leases: impl IntoIterator<Item = &'a LeaseSpec>,
) -> Vec<(IpAddr, &'a Holder)> {
    let name = id.to_string();
    let (earlier, remaining) = match change {
        Change::Create(_) => return Vec::new(),
        Change::Update { old, new } => (old.as_ref().and_then(|old| id.check(old).0), id.check(new).0),
        Change::Delete => (None, None),
    };
    // If the addresses of a pool come from another program, the pool itself never offers them.
    let is_external = |pool: &Option<Pool>| pool.as_ref().is_some_and(Pool::is_external);
    if is_external(&remaining) && is_external(&earlier) {
        return Vec::new();
    }
    let held = leases.into_iter().filter(|lease| lease.pool == name && lease.released.is_none());
    let held = held.filter_map(|lease| Some((lease.address.parse::<IpAddr>().ok()?, &lease.holder)));
    let is_lost = |(address, holder): &(IpAddr, &Holder)| {
        let is_kept = |pool: &Pool| pool.pre_allocated(&holder.namespace, &holder.name).contains(address);
        !remaining.as_ref().is_some_and(|pool| pool.offers(*address) || is_kept(pool))
    };
    held.filter(is_lost).collect()
}

/// Decides on a change of a pool. `Err` has the reason why no decision is possible.
pub(super) async fn verdict(
    client: &Client,
    selection: Option<&Selection>,
    request: &AdmissionRequest<Object>,
) -> Result<Verdict, Box<Status>> {
    let bad_request = |message: &str| failure(StatusCode::BAD_REQUEST, "BadRequest", message);
    let kind = &request.kind;
    if kind.group != GROUP
        || ![StaticIPPool::kind(&()), GlobalStaticIPPool::kind(&())].iter().any(|known| *known == kind.kind)
    {
        let message = format!("kind {:?}, expected a pool of {GROUP}", kind.kind);
        return Err(bad_request(&message));
    }
    let (object, change) = match (&request.operation, &request.object, &request.old_object) {
        (Operation::Create, Some(new), _) => (new, Change::Create(specification(new)?)),
        // Only labels, annotations and finalizers change. This must be allowed, because the controller must be able to
        // remove its finalizer from an invalid pool.
        (Operation::Update, Some(new), Some(old)) if new.data["spec"] == old.data["spec"] => {
            return Ok(Verdict::default());
        }
        (Operation::Update, Some(new), Some(old)) => {
            (new, Change::Update { old: specification(old).ok(), new: Box::new(specification(new)?) })
        }
        (Operation::Delete, _, Some(old)) => (old, Change::Delete),
        (operation, ..) => {
            let message = format!("operation {operation:?}, expected Create, Update or Delete with its objects");
            return Err(bad_request(&message));
        }
    };
    let id = PoolId::of(&object.metadata);
    let others = match change {
        Change::Delete => Vec::new(),
        _ => others(client, &id).await.map_err(|error| {
            let message = format!("could not list the pools to compare with: {error}");
            failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message)
        })?,
    };
    let mut verdict = judge(&id, &change, &others, selection.map(Selection::node_pools));
    // Both reads have one time limit, so that the API server gets the answer in time.
    let until = Instant::now() + READ_LIMIT;
    if verdict.errors.is_empty() && change.needs_leases(&id) {
        match within(until, leases(client, &id)).await {
            Ok(leases) => {
                let Verdict { errors, warnings } = judge_leases(&id, &change, &leases);
                verdict.errors.extend(errors);
                verdict.warnings.extend(warnings);
            }
            Err(problem) => {
                let line = format!("pool {id}: could not count the holders of its addresses: {problem}");
                let is_needed = change.interfaces(&id).is_some();
                if is_needed { &mut verdict.errors } else { &mut verdict.warnings }.push(line);
            }
        }
    }
    if let Some((network, named)) = change.newly_named(&id).filter(|_| verdict.errors.is_empty()) {
        if named.len() > MOST_NAMED {
            let others = named.len() - MOST_NAMED;
            verdict.warnings.push(format!("pool {id}: {others} more reserved addresses are not compared with leases"));
        }
        match within(until, leases_of(client, &network, named.into_keys())).await {
            Ok(leases) => verdict.warnings.extend(warn_of_reserved(&id, &change, &leases)),
            Err(problem) => verdict
                .warnings
                .push(format!("pool {id}: could not read the leases of its reserved addresses: {problem}")),
        }
    }
    Ok(verdict)
}

/// Reads leases, and waits for the answer at most until this time. The error is a text for people.
async fn within<T>(until: Instant, read: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout_at(until, read).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} seconds", READ_LIMIT.as_secs())),
    }
}

/// Returns the leases of these addresses of a network, for at most [`MOST_NAMED`] addresses.
async fn leases_of(
    client: &Client,
    network: &str,
    addresses: impl Iterator<Item = IpAddr>,
) -> kube::Result<Vec<LeaseSpec>> {
    let objects: &Api<Object> = &Api::all_with(client.clone(), &ApiResource::erase::<StaticIPLease>(&()));
    let names = addresses.filter_map(|address| lease_name(address, network).ok()).take(MOST_NAMED);
    let read = stream::iter(names).map(async |name| find(objects, &name).await);
    let read: Vec<Option<Object>> = read.buffered(IN_FLIGHT).try_collect().await?;
    let spec = |mut lease: Object| serde_json::from_value(lease.data["spec"].take()).ok();
    Ok(read.into_iter().flatten().filter_map(spec).collect())
}

/// Lists all pools of the cluster except the pool `id`.
async fn others(client: &Client, id: &PoolId) -> kube::Result<Vec<MachinePool>> {
    let mut pools = Vec::new();
    for kind in [ApiResource::erase::<StaticIPPool>(&()), ApiResource::erase::<GlobalStaticIPPool>(&())] {
        let objects: Api<Object> = Api::all_with(client.clone(), &kind);
        let all = objects.list(&ListParams::default()).await?.items.into_iter();
        let others = all.filter(|object| PoolId::of(&object.metadata) != *id);
        pools.extend(others.map(|object| MachinePool::read(PoolObject::read(object))));
    }
    Ok(pools)
}

/// Returns the leases of the pool `id`.
async fn leases(client: &Client, id: &PoolId) -> kube::Result<Vec<LeaseSpec>> {
    let (name, mut leases) = (id.to_string(), Vec::new());
    each_lease(client, |lease| leases.extend((lease.pool == name).then_some(lease))).await?;
    Ok(leases)
}

/// Calls `note` with each readable lease of the cluster.
pub(super) async fn each_lease(client: &Client, mut note: impl FnMut(LeaseSpec)) -> kube::Result<()> {
    let kind = ApiResource::erase::<StaticIPLease>(&());
    let objects: Api<Object> = Api::all_with(client.clone(), &kind);
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = objects.list(&params).await?;
        for mut lease in page.items {
            serde_json::from_value(lease.data["spec"].take()).into_iter().for_each(&mut note);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

fn specification(object: &Object) -> Result<PoolSpec, Box<Status>> {
    PoolSpec::read(&object.data["spec"]).map_err(|error| failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &error))
}

// === impl Change ===

impl Change {
    /// Whether the decision depends on the leases of the pool, so that they must be listed.
    #[must_use]
    pub fn needs_leases(&self, id: &PoolId) -> bool {
        self.may_shrink(id) || self.adds_family(id) || self.interfaces(id).is_some()
    }

    /// Returns the old and the new interface of the pool. `None`: the change does not change the interface, or one of
    /// the two specifications is invalid.
    fn interfaces(&self, id: &PoolId) -> Option<[InterfaceName; 2]> {
        let Self::Update { old: Some(old), new } = self else { return None };
        let [old, new] = [old, new.as_ref()].map(|spec| id.check(spec).0.map(|pool| pool.interface()));
        old.zip(new).filter(|(old, new)| old != new).map(Into::into)
    }

    /// Returns the network of the pool, and the gateways, name servers and addresses in the template that the change
    /// adds. Each address has the reason why the pool reserves it. `None`: the change adds no such address, deletes
    /// the pool, or has an invalid specification.
    fn newly_named(&self, id: &PoolId) -> Option<(String, BTreeMap<IpAddr, Reserved>)> {
        let (old, new) = match self {
            Self::Create(new) => (None, new),
            Self::Update { old, new } => (old.as_ref(), new.as_ref()),
            Self::Delete => return None,
        };
        let named = |pool: &Pool| -> BTreeMap<IpAddr, Reserved> {
            let is_single =
                |why: &Reserved| matches!(why, Reserved::Gateway | Reserved::Nameserver | Reserved::Template);
            pool.named().into_iter().filter(|(_, why)| is_single(why)).collect()
        };
        let before = old.and_then(|old| id.check(old).0).map(|pool| named(&pool)).unwrap_or_default();
        let pool = id.check(new).0?;
        let mut added = named(&pool);
        added.retain(|address, _| !before.contains_key(address));
        (!added.is_empty()).then(|| (pool.network().to_owned(), added))
    }

    /// Whether the change adds a second family to a pool of one family.
    fn adds_family(&self, id: &PoolId) -> bool {
        let Self::Update { old: Some(old), new } = self else { return false };
        let families = |spec: &PoolSpec| id.check(spec).0.map_or(0, |pool| pool.spaces().count());
        families(old) == 1 && families(new) == 2
    }

    /// Whether the change can remove an address from the pool `id`, so that the leases of the pool must be listed.
    #[must_use]
    pub fn may_shrink(&self, id: &PoolId) -> bool {
        let (old, new) = match self {
            Self::Create(_) => return false,
            Self::Delete | Self::Update { old: None, .. } => return true,
            Self::Update { old: Some(old), new } => (old, new.as_ref()),
        };
        let ranges = |spec: &PoolSpec| -> AddressSet {
            let pool = id.check(spec).0;
            pool.iter().flat_map(Pool::spaces).flat_map(|space| space.ranges().iter().copied()).collect()
        };
        let kept = ranges(new);
        // If only the addresses differ, the change does not affect which addresses are reserved.
        let only_addresses_differ = PoolSpec { addresses: old.addresses.clone(), ..new.clone() } == *old;
        !only_addresses_differ || !ranges(old).ranges().iter().all(|range| kept.covers(range))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::pool::{MachineNetwork, NamespacedNodePoolRef, NodePoolRef};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    fn id(name: &str) -> PoolId {
        PoolId { namespace: Some("clusters".to_owned()), name: name.to_owned() }
    }

    fn spec(addresses: &[&str]) -> PoolSpec {
        let networks = ["10.0.0.0/16", "fd00::/64"].map(|cidr| MachineNetwork { cidr: cidr.to_owned() });
        PoolSpec {
            network: "infra/vlan10".to_owned(),
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            machine_network: networks.into(),
            ..PoolSpec::default()
        }
    }

    fn pool(name: &str, addresses: &[&str]) -> Pool {
        id(name).check(&spec(addresses)).0.unwrap()
    }

    fn update(old: &[&str], new: &[&str]) -> Change {
        Change::Update { old: Some(spec(old)), new: Box::new(spec(new)) }
    }

    #[test]
    fn a_global_pool_and_another_pool_of_the_same_node_pool_need_different_priorities() {
        let reference = |name: &str| NamespacedNodePoolRef { namespace: "clusters".to_owned(), name: name.to_owned() };
        let shared = |addresses: &[&str], names: &[&str]| PoolSpec {
            node_pool_refs: Some(names.iter().map(|name| reference(name)).collect()),
            ..spec(addresses)
        };
        let object = json!({"metadata": {"name": "g"}, "spec": shared(&["10.0.0.0/24"], &["v", "w"])});
        let global = MachinePool::read(PoolObject::read(serde_json::from_value(object).unwrap()));
        let own = PoolSpec { node_pool_ref: Some(NodePoolRef { name: "w".to_owned() }), ..spec(&["10.0.1.0/24"]) };
        let refused = "nodePoolRef: NodePool clusters/w has pool g on network infra/vlan10 already, expected one pool, or different values of priority";
        assert_eq!(compare(&id("a"), &Change::Create(own), std::slice::from_ref(&global), None).errors, [refused]);
        let other = PoolId { namespace: None, name: "h".to_owned() };
        let change = Change::Create(shared(&["10.0.2.0/24"], &["u", "v"]));
        let refused = "nodePoolRefs[1]: NodePool clusters/v has pool g on network infra/vlan10 already, expected one pool, or different values of priority";
        assert_eq!(compare(&other, &change, std::slice::from_ref(&global), None).errors, [refused]);
        // If the conflict is already stored, there is only a warning.
        let (old, new) = (Some(shared(&["10.0.2.0/24"], &["v"])), Box::new(shared(&["10.0.2.0/24"], &["v", "w"])));
        let verdict = compare(&other, &Change::Update { old, new }, &[global], Some(&BTreeMap::new()));
        let known = refused.replace("[1]", "[0]");
        let refused = "nodePoolRefs[1]: NodePool clusters/w has pool g on network infra/vlan10 already, expected one pool, or different values of priority";
        let absent = |index: usize, name: &str| {
            format!(
                "nodePoolRefs[{index}]: NodePool clusters/{name} does not exist: the pool selects none of its machines until the NodePool exists"
            )
        };
        assert_eq!(
            (verdict.errors, verdict.warnings),
            (vec![refused.to_owned()], vec![known, absent(0, "v"), absent(1, "w")])
        );
    }

    #[test]
    fn a_second_pool_of_a_node_pool_on_the_same_network_is_refused() {
        let of_node_pool = |addresses: &[&str]| PoolSpec {
            node_pool_ref: Some(NodePoolRef { name: "w".to_owned() }),
            ..spec(addresses)
        };
        let other = |metadata: serde_json::Value, spec: PoolSpec| {
            let object = json!({"metadata": metadata, "spec": spec});
            MachinePool::read(PoolObject::read(serde_json::from_value(object).unwrap()))
        };
        let named = json!({"namespace": "clusters", "name": "b"});
        let second = other(named.clone(), of_node_pool(&["10.0.1.0/24"]));
        let line = "nodePoolRef: NodePool clusters/w has pool clusters/b on network infra/vlan10 already, expected one pool, or different \
                    values of priority";
        let compared = |change: Change, others: &[MachinePool]| compare(&id("a"), &change, others, None);
        let create = || Change::Create(of_node_pool(&["10.0.0.0/24"]));
        assert_eq!(compared(create(), std::slice::from_ref(&second)), refused([line]));
        // Two such pools are already stored.
        let update =
            Change::Update { old: Some(of_node_pool(&["10.0.0.8"])), new: Box::new(of_node_pool(&["10.0.0.9"])) };
        let warned = Verdict { errors: Vec::new(), warnings: vec![line.to_owned()] };
        assert_eq!(compared(update, std::slice::from_ref(&second)), warned);
        let deleted = json!({"namespace": "clusters", "name": "b", "deletionTimestamp": "2026-08-14T10:00:00Z"});
        let elsewhere = PoolSpec {
            network: "infra/vlan20".to_owned(),
            interface: Some("eno102".to_owned()),
            ..of_node_pool(&["10.0.1.0/24"])
        };
        for other in [
            other(deleted, of_node_pool(&["10.0.1.0/24"])),
            other(named.clone(), elsewhere),
            other(named.clone(), spec(&["10.0.1.0/24"])),
            other(json!({"namespace": "others", "name": "b"}), of_node_pool(&["10.0.1.0/24"])),
        ] {
            assert_eq!(compared(create(), &[other]), Verdict::default());
        }
    }

    #[test]
    fn the_overflow_of_a_pool_must_have_the_interface_and_the_families_of_the_pool() {
        let of_node_pool = |priority: i32, addresses: &[&str]| PoolSpec {
            node_pool_ref: Some(NodePoolRef { name: "w".to_owned() }),
            priority: Some(priority),
            ..spec(addresses)
        };
        let object =
            json!({"metadata": {"namespace": "clusters", "name": "b"}, "spec": of_node_pool(5, &["10.0.1.0/24"])});
        let second = MachinePool::read(PoolObject::read(serde_json::from_value(object).unwrap()));
        let compared = |change: Change| compare(&id("a"), &change, std::slice::from_ref(&second), None);
        let create = |spec: PoolSpec| compared(Change::Create(spec));
        assert_eq!(create(of_node_pool(0, &["10.0.0.0/24"])), Verdict::default());
        let other = PoolSpec { interface: Some("eno102".to_owned()), ..of_node_pool(9, &["10.0.0.0/24"]) };
        let line =
            "nodePoolRef: pool clusters/a cannot be the overflow of pool clusters/b: interface eno102, expected eno101";
        assert_eq!(create(other), refused([line]));
        let both = || of_node_pool(0, &["10.0.0.0/24", "fd00::/112"]);
        let line = "nodePoolRef: pool clusters/b cannot be the overflow of pool clusters/a: families IPv4, expected IPv4 and IPv6";
        assert_eq!(create(both()), refused([line]));
        // Both pools get a second family in two changes, one after the other.
        let update = |old: PoolSpec| compared(Change::Update { old: Some(old), new: Box::new(both()) });
        let warned = Verdict { errors: Vec::new(), warnings: vec![line.to_owned()] };
        assert_eq!(update(of_node_pool(0, &["10.0.0.0/24"])), warned);
        assert_eq!(update(of_node_pool(1, &["10.0.0.0/24"])), refused([line]));
    }

    #[test]
    fn a_pool_of_a_missing_node_pool_or_with_another_prefix_length_has_a_warning() {
        let new = PoolSpec { node_pool_ref: Some(NodePoolRef { name: "w".to_owned() }), ..spec(&["10.0.0.8"]) };
        let mut other = spec(&["10.0.0.9"]);
        other.machine_network[0].cidr = "10.0.0.0/24".to_owned();
        let object = json!({"metadata": {"namespace": "clusters", "name": "b"}, "spec": other});
        let other = MachinePool::read(PoolObject::read(serde_json::from_value(object).unwrap()));
        let expected = [
            "nodePoolRef: NodePool clusters/w does not exist: the pool selects none of its machines until the NodePool exists",
            "pools clusters/b and clusters/a of network infra/vlan10 have IPv4 prefix lengths /24 and /16",
        ];
        let verdict = compare(&id("a"), &Change::Create(new), &[other], Some(&BTreeMap::new()));
        assert_eq!(verdict, Verdict { errors: Vec::new(), warnings: expected.map(str::to_owned).into() });
    }

    #[test]
    fn two_pools_with_the_same_selector_and_the_same_priority_have_a_warning() {
        let labels = LabelSelector {
            match_labels: Some([("role".to_owned(), "db".to_owned())].into()),
            ..LabelSelector::default()
        };
        let of = |addresses: &[&str], priority: Option<i32>| PoolSpec {
            machine_selector: Some(labels.clone()),
            priority,
            ..spec(addresses)
        };
        let other = |namespace: &str| {
            let metadata = json!({"namespace": namespace, "name": "b"});
            let object = json!({"metadata": metadata, "spec": of(&["10.0.1.0/24"], None)});
            MachinePool::read(PoolObject::read(serde_json::from_value(object).unwrap()))
        };
        let line = "machineSelector: the same selector has pool clusters/b on network infra/vlan10 already, expected one pool, or \
                    different values of priority";
        let create = |priority| Change::Create(of(&["10.0.0.0/24"], priority));
        let warned = Verdict { errors: vec![], warnings: vec![line.to_owned()] };
        assert_eq!(compare(&id("a"), &create(None), &[other("clusters")], None), warned);
        assert_eq!(compare(&id("a"), &create(None), &[other("elsewhere")], None), Verdict::default());
        assert_eq!(compare(&id("a"), &create(Some(1)), &[other("clusters")], None), Verdict::default());
    }

    #[test]
    fn a_second_pool_for_the_same_interface_of_the_same_machines_on_another_network_has_a_warning() {
        let of_node_pool =
            || PoolSpec { node_pool_ref: Some(NodePoolRef { name: "w".to_owned() }), ..spec(&["10.0.0.0/24"]) };
        let selecting = || PoolSpec {
            machine_selector: Some(LabelSelector {
                match_labels: Some([("role".to_owned(), "db".to_owned())].into()),
                ..LabelSelector::default()
            }),
            ..spec(&["10.0.0.0/24"])
        };
        let elsewhere = |spec: PoolSpec, changes: serde_json::Value| {
            let mut object = json!({"metadata": {"namespace": "clusters", "name": "b"}, "spec": spec});
            json_patch::merge(&mut object, &json!({"spec": {"network": "infra/vlan20"}}));
            json_patch::merge(&mut object, &changes);
            MachinePool::read(PoolObject::read(serde_json::from_value(object).unwrap()))
        };
        let warnings = |new: PoolSpec, other: MachinePool| {
            let verdict = compare(&id("a"), &Change::Create(new), &[other], None);
            assert_eq!(verdict.errors, [""; 0]);
            verdict.warnings
        };
        let line = |member: &str| {
            format!(
                "{member}: pool clusters/b of network infra/vlan20 has interface eno101 for the same machines already, expected another \
                 interface: new machines are refused"
            )
        };
        let none = json!({});
        assert_eq!(warnings(of_node_pool(), elsewhere(of_node_pool(), none.clone())), [line("nodePoolRef")]);
        assert_eq!(warnings(selecting(), elsewhere(selecting(), none.clone())), [line("machineSelector")]);
        assert_eq!(warnings(of_node_pool(), elsewhere(selecting(), none)), [""; 0]);
        for changes in [
            json!({"spec": {"interface": "eno102"}}),
            json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}),
            json!({"metadata": {"namespace": "elsewhere"}}),
        ] {
            for new in [of_node_pool(), selecting()] {
                assert_eq!(warnings(new.clone(), elsewhere(new, changes.clone())), [""; 0], "{changes}");
            }
        }
    }

    #[test]
    fn a_selector_that_becomes_empty_has_a_warning() {
        let of = |selector: Option<LabelSelector>| PoolSpec { machine_selector: selector, ..spec(&["10.0.0.8"]) };
        let labels = Some([("role".to_owned(), "db".to_owned())].into());
        let (empty, some) = (LabelSelector::default(), LabelSelector { match_labels: labels, match_expressions: None });
        let update = |old: LabelSelector, new: LabelSelector| Change::Update {
            old: Some(of(Some(old))),
            new: Box::new(of(Some(new))),
        };
        let line = "machineSelector: is empty: the pool selects every VirtualMachine, and a VirtualMachine without an interface on network \
                    infra/vlan10 is refused";
        for (change, warnings) in [
            (Change::Create(of(Some(empty.clone()))), vec![line.to_owned()]),
            (update(some.clone(), empty.clone()), vec![line.to_owned()]),
            (update(empty.clone(), empty.clone()), vec![]),
            (update(empty, some), vec![]),
            (Change::Create(of(None)), vec![]),
        ] {
            assert_eq!(compare(&id("a"), &change, &[], None), Verdict { errors: vec![], warnings }, "{change:?}");
        }
    }

    #[test]
    fn a_second_family_of_a_pool_with_claims_has_a_warning() {
        let leases = [lease("clusters/a", "10.0.0.8", "a", false), lease("clusters/b", "10.0.0.9", "b", false)];
        let warning = |old: &[&str], new: &[&str]| warn_of_family(&id("a"), &update(old, new), &leases);
        let expected = "pool clusters/a gets a second family: a new claim needs the annotation ipam.glowplug.dev/family then \
                        (claims with an address now: 1)";
        assert_eq!(warning(&["10.0.0.8"], &["10.0.0.8", "fd00::8"]).as_deref(), Some(expected));
        assert_eq!(warning(&["10.0.0.8", "fd00::8"], &["10.0.0.8", "fd00::9"]), None);
        assert_eq!(warn_of_family(&id("a"), &update(&["10.0.0.8"], &["10.0.0.8", "fd00::8"]), &leases[1..]), None);
    }

    fn lease(pool: &str, address: &str, holder: &str, is_released: bool) -> LeaseSpec {
        let time = "2026-08-14T10:00:00.000000Z";
        let lease = json!({
            "network": "infra/vlan10", "address": address, "prefix": 16, "pool": pool, "since": time,
            "released": is_released.then_some(time),
            "holder": {"kind": "IPAddressClaim", "namespace": "a", "name": holder, "uid": holder, "interface": "eno101"},
        });
        serde_json::from_value(lease).unwrap()
    }

    fn refused<const N: usize>(errors: [&str; N]) -> Verdict {
        Verdict { errors: errors.map(str::to_owned).into(), warnings: Vec::new() }
    }

    #[test]
    fn a_valid_pool_is_allowed() {
        let others = [pool("b", &["10.0.1.0/24"])];
        assert_eq!(validate(&id("a"), &Change::Create(spec(&["10.0.0.0/24"])), &others), Verdict::default());
    }

    #[test]
    fn every_error_is_named_with_its_path() {
        let mut wrong = spec(&["10.0.0.5/24", "x"]);
        wrong.gateway = vec!["y".to_owned()];
        let expected = refused([
            "addresses[0]: host bits are set \"10.0.0.5/24\", expected no bits after the prefix length: \
             did you mean 10.0.0.0/24 or 10.0.0.5/32",
            "addresses[1]: invalid address \"x\", expected an address, a CIDR or a range, \
             such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
            "gateway[0]: invalid address \"y\", expected an IPv4 or IPv6 address",
        ]);
        assert_eq!(validate(&id("a"), &Change::Create(wrong), &[]), expected);
    }

    #[test]
    fn a_specification_of_an_earlier_schema_has_a_warning() {
        let repeated = PoolSpec {
            excluded_addresses: ["10.0.0.9", "10.0.0.9"].map(str::to_owned).into(),
            ..spec(&["10.0.0.0/24"])
        };
        let change =
            Change::Update { old: Some(repeated.clone()), new: Box::new(PoolSpec { sticky: true, ..repeated }) };
        let line = "excludedAddresses[1]: repeated item \"10.0.0.9\", expected each item once";
        let warned = Verdict { errors: Vec::new(), warnings: vec![line.to_owned()] };
        assert_eq!(validate(&id("a"), &change, &[]), warned);
    }

    #[test]
    fn a_new_value_that_the_schema_does_not_allow_is_refused() {
        let right = spec(&["10.0.0.0/24"]);
        let repeated =
            PoolSpec { excluded_addresses: ["10.0.0.9", "10.0.0.9"].map(str::to_owned).into(), ..right.clone() };
        let line = "excludedAddresses[1]: repeated item \"10.0.0.9\", expected each item once";
        let update = Change::Update { old: Some(right), new: Box::new(repeated.clone()) };
        for change in [Change::Create(repeated), update] {
            assert_eq!(validate(&id("a"), &change, &[]), refused([line]));
        }
    }

    #[test]
    fn the_error_about_an_overlap_names_both_pools_and_their_common_addresses() {
        let others = [pool("b", &["10.0.0.40-10.0.0.60"]), pool("c", &["10.0.0.50-10.0.0.90", "fd00::8/125"])];
        let change = Change::Create(spec(&["10.0.0.0/26", "fd00::/64"]));
        let of = |pools: &str, addresses: &str| {
            format!("pools {pools} offer the same addresses of network infra/vlan10: {addresses}")
        };
        let expected = refused([
            of("clusters/b and clusters/a", "10.0.0.40-10.0.0.60").as_str(),
            &of("clusters/c and clusters/a", "10.0.0.50-10.0.0.63, fd00::8-fd00::f"),
        ]);
        assert_eq!(validate(&id("a"), &change, &others), expected);
    }

    #[test]
    fn a_changed_pool_is_compared_with_other_pools_too() {
        let others = [pool("b", &["10.0.0.40-10.0.0.60"])];
        let change = update(&["10.0.0.8/29"], &["10.0.0.0/26"]);
        let line =
            "pools clusters/b and clusters/a offer the same addresses of network infra/vlan10: 10.0.0.40-10.0.0.60";
        assert_eq!(validate(&id("a"), &change, &others), refused([line]));
    }

    #[test]
    fn a_stored_overlap_of_two_pools_does_not_prevent_a_change() {
        let others = [pool("b", &["10.0.0.40-10.0.0.60"])];
        let line =
            "pools clusters/b and clusters/a offer the same addresses of network infra/vlan10: 10.0.0.40-10.0.0.50";
        let allowed = Verdict { errors: Vec::new(), warnings: vec![line.to_owned()] };
        let change = update(&["10.0.0.8-10.0.0.60"], &["10.0.0.8-10.0.0.50"]);
        assert_eq!(validate(&id("a"), &change, &others), allowed);
        let change = update(&["10.0.0.8-10.0.0.49"], &["10.0.0.8-10.0.0.50"]);
        assert_eq!(validate(&id("a"), &change, &others), refused([line]));
    }

    #[test]
    fn the_network_of_a_pool_never_changes() {
        let mut new = spec(&["10.0.0.0/24"]);
        new.network = "infra/vlan11".to_owned();
        let change = Change::Update { old: Some(spec(&["10.0.0.0/24"])), new: Box::new(new) };
        let line =
            "network: immutable \"infra/vlan11\", expected \"infra/vlan10\": create a new pool for another network";
        assert_eq!(validate(&id("a"), &change, &[]), refused([line]));
    }

    #[test]
    fn the_interface_of_a_pool_with_holders_never_changes() {
        let with = |interface: Option<&str>| PoolSpec {
            interface: interface.map(str::to_owned),
            ..spec(&["10.0.0.0/24", "fd00::/64"])
        };
        let change =
            |old: Option<&str>, new: Option<&str>| Change::Update { old: Some(with(old)), new: Box::new(with(new)) };
        let held = [
            lease("clusters/a", "10.0.0.8", "worker-0", false),
            lease("clusters/a", "fd00::8", "worker-0", false),
            lease("clusters/b", "10.0.0.9", "worker-1", false),
        ];
        let line = "interface: immutable \"eno102\", expected \"eno101\" while machines or claims hold addresses of the pool \
                    (holders: 1): create a new pool for another interface";
        let changed = change(None, Some("eno102"));
        assert!(changed.needs_leases(&id("a")));
        assert_eq!(judge_leases(&id("a"), &changed, &held), refused([line]));
        // No machine or claim holds an address of the pool any more.
        let free = [lease("clusters/a", "10.0.0.8", "worker-0", true), held[2].clone()];
        assert_eq!(judge_leases(&id("a"), &changed, &free), Verdict::default());
        // The default value may be written, and an invalid value may be corrected.
        for same in [change(None, Some("eno101")), change(Some("eno/102"), Some("eno102"))] {
            assert_eq!(judge_leases(&id("a"), &same, &held), Verdict::default());
        }
    }

    #[test]
    fn an_invalid_pool_can_be_corrected_and_deleted() {
        let new = spec(&["10.0.0.0/24"]);
        for old in [None, Some(spec(&["x"]))] {
            let change = Change::Update { old, new: Box::new(new.clone()) };
            assert_eq!(validate(&id("a"), &change, &[]), Verdict::default());
        }
        let others = [pool("b", &["10.0.0.0/24"])];
        assert_eq!(validate(&id("a"), &Change::Delete, &others), Verdict::default());
    }

    #[test]
    fn holders_of_addresses_outside_the_changed_pool_are_counted() {
        let leases = [
            lease("clusters/a", "10.0.0.8", "worker-0", false),
            lease("clusters/a", "10.0.0.9", "worker-1", false),
            lease("clusters/a", "fd00::9", "worker-1", false),
            lease("clusters/a", "10.0.0.10", "worker-2", true),
            lease("clusters/b", "10.0.0.11", "worker-3", false),
        ];
        let warning = |change: Change| warn_of_holders(&id("a"), &change, &leases);
        let stays = "pool clusters/a no longer allocates these addresses, which stay with their holders";
        let old = ["10.0.0.8/29", "fd00::8/125"];
        assert_eq!(
            warning(update(&old, &["10.0.0.8-10.0.0.8"])),
            Some(format!("{stays}: 10.0.0.9, fd00::9 (holders: 1)"))
        );
        let mut reserved = spec(&old);
        reserved.gateway = vec!["10.0.0.8".to_owned()];
        let change = Change::Update { old: Some(spec(&old)), new: Box::new(reserved) };
        assert_eq!(warning(change), Some(format!("{stays}: 10.0.0.8 (holders: 1)")));
        assert_eq!(warning(update(&old, &["10.0.0.8-10.0.0.9", "fd00::9"])), None);
        let deleted =
            "pool clusters/a is deleted when these addresses are released: 10.0.0.8, 10.0.0.9, fd00::9 (holders: 2)";
        assert_eq!(warning(Change::Delete).as_deref(), Some(deleted));
        assert_eq!(warning(Change::Create(spec(&old))), None);
    }

    #[test]
    fn the_holders_of_a_pool_are_counted_when_another_program_begins_to_choose_its_addresses() {
        let leases = [lease("clusters/a", "10.0.0.8", "worker-0", false)];
        let of_another = || {
            let pool_ref = json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "p"});
            let from = serde_json::from_value(json!({"poolRef": pool_ref})).unwrap();
            let node_pool_ref = Some(NodePoolRef { name: "workers".to_owned() });
            PoolSpec { addresses_from: Some(from), node_pool_ref, ..spec(&[]) }
        };
        let warning = |old: PoolSpec| {
            let change = Change::Update { old: Some(old), new: Box::new(of_another()) };
            (change.may_shrink(&id("a")), warn_of_holders(&id("a"), &change, &leases))
        };
        let stays = "pool clusters/a no longer allocates these addresses, which stay with their holders";
        assert_eq!(warning(spec(&["10.0.0.8/29"])), (true, Some(format!("{stays}: 10.0.0.8 (holders: 1)"))));
        let earlier = of_another();
        let (pool, diagnostics) = id("a").check(&earlier);
        assert!(pool.is_some_and(|pool| pool.is_external()), "{diagnostics:?}");
        assert_eq!(warning(earlier), (false, None));
    }

    #[test]
    fn a_gateway_or_name_server_with_a_holder_has_a_warning() {
        let leases = [
            lease("clusters/a", "10.0.0.10", "worker-0", false),
            lease("clusters/b", "10.0.1.53", "worker-1", false),
            lease("clusters/b", "10.0.1.7", "worker-2", false),
            lease("clusters/a", "10.0.0.11", "worker-3", true),
            LeaseSpec { network: "infra/vlan20".to_owned(), ..lease("n/c", "10.0.0.11", "worker-4", false) },
        ];
        let with = |gateway: &str, nameservers: &[&str]| PoolSpec {
            gateway: vec![gateway.to_owned()],
            nameservers: nameservers.iter().map(|&address| address.to_owned()).collect(),
            ..spec(&["10.0.0.0/24"])
        };
        let warnings = |change: Change| warn_of_reserved(&id("a"), &change, &leases);
        let gateway = "gateway 10.0.0.10: held by IPAddressClaim a/worker-0, expected an address without a holder";
        let nameserver =
            "name server 10.0.1.53: held by IPAddressClaim a/worker-1, expected an address without a holder";
        let new = || with("10.0.0.10", &["10.0.1.53", "10.0.0.12"]);
        assert_eq!(warnings(Change::Create(new())), [gateway, nameserver]);
        let update = |old: PoolSpec, new: PoolSpec| warnings(Change::Update { old: Some(old), new: Box::new(new) });
        assert_eq!(update(spec(&["10.0.0.0/24"]), new()), [gateway, nameserver]);
        assert_eq!(update(with("10.0.0.10", &[]), new()), [nameserver]);
        assert_eq!(update(new(), new()), [""; 0]);
        assert_eq!(warnings(Change::Create(with("10.0.0.11", &[]))), [""; 0]);
        assert_eq!(warnings(Change::Delete), [""; 0]);
    }

    #[test]
    fn a_warning_names_five_addresses_and_counts_the_rest() {
        let leases: Vec<LeaseSpec> =
            (1..8).map(|n| lease("clusters/a", &format!("10.0.0.{n}"), &format!("worker-{n}"), false)).collect();
        let expected = "pool clusters/a is deleted when these addresses are released: \
                        10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5 and 2 more (holders: 7)";
        assert_eq!(warn_of_holders(&id("a"), &Change::Delete, &leases).as_deref(), Some(expected));
    }

    #[test]
    fn a_change_that_excludes_or_removes_addresses_or_deletes_the_pool_needs_the_leases() {
        let may_shrink = |change: Change| change.may_shrink(&id("a"));
        assert!(!may_shrink(Change::Create(spec(&["10.0.0.0/24"]))));
        assert!(!may_shrink(update(&["10.0.0.8-10.0.0.15"], &["10.0.0.0/24"])));
        assert!(may_shrink(update(&["10.0.0.0/24"], &["10.0.0.8-10.0.0.15"])));
        let excluding = PoolSpec { excluded_addresses: vec!["10.0.0.9".to_owned()], ..spec(&["10.0.0.0/24"]) };
        assert!(may_shrink(Change::Update { old: Some(spec(&["10.0.0.0/24"])), new: Box::new(excluding) }));
        assert!(may_shrink(Change::Update { old: None, new: Box::new(spec(&["10.0.0.0/24"])) }));
        assert!(may_shrink(Change::Delete));
    }

    #[test]
    fn no_content_of_a_lease_hides_another_holder_of_a_pool() {
        let honest = lease("clusters/a", "10.0.0.8", "honest", false);
        let of_user = lease("clusters/a", "10.0.0.9", "hostile", false);
        let valid = json!({"metadata": {"name": "10-0-0-9.infra.vlan10"}, "spec": of_user});
        let mut readable = 0;
        crate::variants::each_object(&valid, |mut object| {
            let Ok(other) = serde_json::from_value(object.data["spec"].take()) else { return };
            readable += 1;
            let warning = warn_of_holders(&id("a"), &Change::Delete, &[honest.clone(), other]).unwrap();
            let addresses = warning.split_once("released: ").unwrap().1;
            assert!(addresses.split([',', ' ']).any(|address| address == "10.0.0.8"), "{warning}");
        });
        assert!(readable > 10, "{readable}");
    }
}

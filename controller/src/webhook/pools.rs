//! The webhook for pools: rejects an invalid pool, an overlap with another pool, and a change of the network of a pool.
//!
//! [`validate`] and [`warn_of_holders`] are pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use glowplug::diagnostic::Diagnostic;
use glowplug::host::address::AddressSet;
use glowplug::host::pool::{Pool, overlaps};
use http::StatusCode;
use kube::api::{ApiResource, ListParams};
use kube::core::Status;
use kube::core::admission::{AdmissionRequest, Operation};
use kube::{Api, Client, Resource as _};
use serde::Deserialize as _;
use tokio::time::timeout;

use crate::cluster::key::PoolId;
use crate::cluster::object::Object;
use crate::kinds::pool::{GROUP, GlobalStaticIPPool, Holder, LeaseSpec, PoolSpec, StaticIPLease, StaticIPPool};
use crate::webhook::verdict::{Verdict, failure};

/// Timeout for counting the leases of a pool. The count is only for a warning, so it must not use up the time of the
/// request.
const COUNT_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of leases in the response to one list request.
const PAGE: u32 = 500;
/// Maximum number of addresses that a warning lists. API servers truncate long warnings.
const NAMED: usize = 5;

/// A change of a pool that a client asks the API server to store.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new pool.
    Create(PoolSpec),
    /// A new specification of a pool.
    Update {
        /// The stored specification. `None` when this version of the controller cannot read it.
        old: Option<PoolSpec>,
        /// The specification that replaces it.
        new: Box<PoolSpec>,
    },
    /// The deletion of a pool.
    Delete,
}

/// Checks a change of the pool `id`. `others` are the valid pools of the cluster without this pool.
///
/// A change that makes two pools overlap is rejected. The message has the names of both pools and their common
/// addresses. If the stored specification already has the overlap, the result is only a warning. An administrator
/// can then change one of the two pools without changing the other pool first.
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

/// Warns that machines and claims keep addresses that the pool no longer allocates after the change. `None`: there are
/// no such addresses.
///
/// `leases` may contain leases of other pools, which are ignored.
#[must_use]
pub fn warn_of_holders<'a>(
    id: &PoolId,
    change: &Change,
    leases: impl IntoIterator<Item = &'a LeaseSpec>,
) -> Option<String> {
    let name = id.to_string();
    let remaining = match change {
        Change::Create(_) => return None,
        Change::Update { new, .. } => id.check(new).0,
        Change::Delete => None,
    };
    // A pool whose addresses come from elsewhere never offers them itself.
    if remaining.as_ref().is_some_and(Pool::is_external) {
        return None;
    }
    let held = leases.into_iter().filter(|lease| lease.pool == name && lease.released.is_none());
    let held = held.filter_map(|lease| Some((lease.address.parse::<IpAddr>().ok()?, &lease.holder)));
    let is_lost = |(address, holder): &(IpAddr, &Holder)| {
        let is_kept = |pool: &Pool| pool.pre_allocated(&holder.namespace, &holder.name).contains(address);
        !remaining.as_ref().is_some_and(|pool| pool.offers(*address) || is_kept(pool))
    };
    let lost = held.filter(is_lost);
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

/// Decides on a change of a pool. `Err`: the reason why no decision is possible.
pub(super) async fn verdict(client: &Client, request: &AdmissionRequest<Object>) -> Result<Verdict, Box<Status>> {
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
        // The change concerns only labels, annotations and finalizers. It is allowed, because the controller must
        // be able to remove its finalizer from an invalid pool.
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
    let mut verdict = validate(&id, &change, &others);
    if verdict.errors.is_empty() && change.may_shrink(&id) {
        let warning = match timeout(COUNT_LIMIT, leases(client, &id)).await {
            Ok(Ok(leases)) => warn_of_holders(&id, &change, &leases),
            Ok(Err(error)) => Some(format!("pool {id}: could not count the holders of its addresses: {error}")),
            Err(_) => Some(format!("pool {id}: too many leases to count the holders of its addresses")),
        };
        verdict.warnings.extend(warning);
    }
    Ok(verdict)
}

/// Lists the valid pools of the cluster without the pool `id`. Invalid pools allocate nothing, so they cannot
/// overlap.
async fn others(client: &Client, id: &PoolId) -> kube::Result<Vec<Pool>> {
    let mut pools = Vec::new();
    for kind in [ApiResource::erase::<StaticIPPool>(&()), ApiResource::erase::<GlobalStaticIPPool>(&())] {
        let objects: Api<Object> = Api::all_with(client.clone(), &kind);
        for object in objects.list(&ListParams::default()).await? {
            let other = PoolId::of(&object.metadata);
            let spec = specification(&object).ok().filter(|_| other != *id);
            pools.extend(spec.and_then(|spec| other.check(&spec).0));
        }
    }
    Ok(pools)
}

/// Lists the leases of the pool `id`.
pub(super) async fn leases(client: &Client, id: &PoolId) -> kube::Result<Vec<LeaseSpec>> {
    let kind = ApiResource::erase::<StaticIPLease>(&());
    let objects: Api<Object> = Api::all_with(client.clone(), &kind);
    let (name, mut params, mut leases) = (id.to_string(), ListParams::default().limit(PAGE), Vec::new());
    loop {
        let page = objects.list(&params).await?;
        let of_pool = page.items.into_iter().filter(|lease| lease.data["spec"]["pool"] == name);
        leases.extend(of_pool.filter_map(|mut lease| serde_json::from_value(lease.data["spec"].take()).ok()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(leases),
        }
    }
}

/// Reads the specification of a pool of either kind. Both kinds have the same members.
fn specification(object: &Object) -> Result<PoolSpec, Box<Status>> {
    PoolSpec::deserialize(&object.data["spec"])
        .map_err(|error| failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &format!("spec: {error}")))
}

// === impl Change ===

impl Change {
    /// Whether the change may remove an address from the pool `id`, so that the leases of the pool must be counted.
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
        // If only the addresses differ, the change neither adds nor removes a reservation.
        let only_addresses_differ = PoolSpec { addresses: old.addresses.clone(), ..new.clone() } == *old;
        !only_addresses_differ || !ranges(old).ranges().iter().all(|range| kept.covers(range))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::pool::MachineNetwork;

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
            "addresses[0]: host bits are set \"10.0.0.5/24\", expected no bits behind the length: \
             did you mean 10.0.0.0/24 or 10.0.0.5/32",
            "addresses[1]: invalid address \"x\", expected an address, a CIDR or a range, \
             such as 10.0.0.5, 10.0.0.0/24 or 10.0.0.5-10.0.0.9",
            "gateway[0]: invalid address \"y\", expected an IPv4 or IPv6 address",
        ]);
        assert_eq!(validate(&id("a"), &Change::Create(wrong), &[]), expected);
    }

    #[test]
    fn an_overlap_names_both_pools_and_the_addresses_that_both_offer() {
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
    fn an_update_is_compared_with_other_pools_too() {
        let others = [pool("b", &["10.0.0.40-10.0.0.60"])];
        let change = update(&["10.0.0.8/29"], &["10.0.0.0/26"]);
        let line =
            "pools clusters/b and clusters/a offer the same addresses of network infra/vlan10: 10.0.0.40-10.0.0.60";
        assert_eq!(validate(&id("a"), &change, &others), refused([line]));
    }

    #[test]
    fn an_overlap_that_is_stored_already_does_not_stop_a_change() {
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
    fn a_warning_names_five_addresses_and_counts_the_rest() {
        let leases: Vec<LeaseSpec> =
            (1..8).map(|n| lease("clusters/a", &format!("10.0.0.{n}"), &format!("worker-{n}"), false)).collect();
        let expected = "pool clusters/a is deleted when these addresses are released: \
                        10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5 and 2 more (holders: 7)";
        assert_eq!(warn_of_holders(&id("a"), &Change::Delete, &leases).as_deref(), Some(expected));
    }

    #[test]
    fn leases_are_counted_only_when_a_pool_may_shrink() {
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
        crate::hostile::each_object(&valid, |mut object| {
            let Ok(other) = serde_json::from_value(object.data["spec"].take()) else { return };
            readable += 1;
            let warning = warn_of_holders(&id("a"), &Change::Delete, &[honest.clone(), other]).unwrap();
            let addresses = warning.split_once("released: ").unwrap().1;
            assert!(addresses.split([',', ' ']).any(|address| address == "10.0.0.8"), "{warning}");
        });
        assert!(readable > 10, "{readable}");
    }
}

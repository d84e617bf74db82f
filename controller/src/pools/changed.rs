//! Compares two selections, to find the networks whose pools have changed. Pure logic.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::pools::selection::{MachinePool, Selection};

/// Returns the networks of the pools that a user created, changed or deleted between two selections. A pool does not
/// count as changed if it only becomes exhausted or has free addresses again.
pub(crate) fn changed_networks(before: &Selection, now: &Selection) -> BTreeSet<String> {
    let of = |one: &Selection, other: &Selection| {
        let is_other = |pool: &&Arc<MachinePool>| other.pool(&pool.id).is_none_or(|other| !is_same(pool, other));
        one.pools().filter(is_other).filter_map(|pool| pool.network()).map(str::to_owned).collect::<BTreeSet<String>>()
    };
    &of(before, now) | &of(now, before)
}

/// Whether two versions of a pool are the same object, with the same specification, validity and deletion state.
pub(crate) fn is_same(pool: &Arc<MachinePool>, other: &Arc<MachinePool>) -> bool {
    Arc::ptr_eq(pool, other)
        || (&pool.uid, &pool.spec, pool.is_deleted) == (&other.uid, &other.spec, other.is_deleted)
            && pool.pool.is_ok() == other.pool.is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pools::facts::PoolObject;

    fn selection(pools: &[(&str, Value)]) -> Selection {
        let pool = |(name, changes): &(&str, Value)| {
            let mut object = json!({
                "metadata": {"namespace": "n", "name": name, "uid": name},
                "spec": {"network": format!("n/{name}"), "addresses": ["10.0.0.8/30"], "machineNetwork": [{"cidr": "10.0.0.0/16"}]},
            });
            json_patch::merge(&mut object, changes);
            Arc::new(MachinePool::read(PoolObject::read(serde_json::from_value(object).unwrap())))
        };
        Selection::new(pools.iter().map(pool), [], None)
    }

    #[test]
    fn the_network_of_a_pool_has_changed_if_a_user_created_changed_or_deleted_the_pool() {
        let before = [("same", json!({})), ("moved", json!({})), ("gone", json!({})), ("broken", json!({}))];
        let exhausted = json!([{"type": "Exhausted", "status": "True", "message": "No available IPs in pool"}]);
        let now = [
            ("same", json!({"status": {"conditions": exhausted}})),
            ("moved", json!({"spec": {"network": "n/other"}})),
            ("broken", json!({"spec": {"addresses": ["x"]}})),
            ("new", json!({})),
        ];
        let networks = ["n/broken", "n/gone", "n/moved", "n/new", "n/other"].map(str::to_owned);
        assert_eq!(changed_networks(&selection(&before), &selection(&now)), networks.into());
        assert_eq!(changed_networks(&selection(&before), &selection(&before)), [].into());
        for change in [
            json!({"spec": {"preAllocations": {"x": "10.0.0.9"}}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}),
        ] {
            let now = selection(&[("same", change)]);
            assert_eq!(changed_networks(&selection(&before[..1]), &now), ["n/same".to_owned()].into());
        }
    }
}

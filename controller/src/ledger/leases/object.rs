//! Reads the lease in an object of the API server.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use glowplug::host::claim::{Claimant, Lease, Machine, is_object_name};
use glowplug::host::pool::Pool;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use crate::cluster::object::Object;
use crate::cluster::request::one_line;
use crate::kinds::mac_pool::parse_mac_lease_name;
use crate::kinds::network_data::name_of_0_2_0;
use crate::kinds::pool::{Holder, LeaseSpec};

/// Returns the version of an object as a number. API servers increase the number with each write.
pub(super) fn version_of(object: &Object) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Whether an object is the lease of a MAC address.
pub(super) fn is_of_mac(object: &Object) -> bool {
    parse_mac_lease_name(object.metadata.name.as_deref().unwrap_or_default()).is_some()
}

pub(super) fn spec_of(object: &Object) -> Result<LeaseSpec, serde_json::Error> {
    serde_json::from_value(object.data.get("spec").cloned().unwrap_or_default())
}

/// Returns the holder of a lease in the form that the allocator uses.
pub(crate) fn holder_of(holder: &Holder) -> Machine {
    let Holder { kind, namespace, name, uid, vm_namespace, .. } = holder;
    let machine = Machine::new(namespace, name, uid).of_kind(*kind);
    Machine { vm_namespace: vm_namespace.clone(), ..machine }
}

/// Returns the Secret from which the guest of a machine reads its address, for a lease of version 0.2.0. Empty for a
/// claim.
fn secret_of_0_2_0(holder: &Holder) -> BTreeSet<String> {
    if holder.kind.is_claim() { BTreeSet::new() } else { [name_of_0_2_0(&holder.name)].into() }
}

/// Reads the lease in an object. The name of the object contains `address` and `network`. `Err`: the reason, as one
/// short line.
pub(crate) fn read(object: &Object, address: IpAddr, network: &str) -> Result<(LeaseSpec, Lease), String> {
    check(object, address, network).map_err(|error| one_line(&error))
}

fn check(object: &Object, address: IpAddr, network: &str) -> Result<(LeaseSpec, Lease), String> {
    let spec = spec_of(object).map_err(|error| format!("spec: {error}"))?;
    if spec.network != network || spec.address.parse() != Ok(address) {
        return Err(format!(
            "spec: invalid address {:?} of {:?}, expected the address and the network in the name of the lease",
            spec.address, spec.network
        ));
    }
    let longest = if address.is_ipv4() { 32 } else { 128 };
    if spec.prefix > longest {
        return Err(format!("spec.prefix: invalid prefix length {}, expected at most {longest}", spec.prefix));
    }
    let holder = &spec.holder;
    // The names become parts of requests about the holder, so they must be valid.
    let names = [&holder.namespace, &holder.name].into_iter().chain(&holder.vm_namespace);
    if let Some(name) = names.into_iter().find(|name| !is_object_name(name)) {
        return Err(format!("spec.holder: invalid name {name:?}"));
    }
    let interface = holder.interface.parse();
    let interface =
        interface.map_err(|_| format!("spec.holder.interface: invalid interface {:?}", holder.interface))?;
    let machine = holder_of(holder);
    let lease = Lease {
        claimant: Arc::new(Claimant { machine, interface }),
        pool: spec.pool.as_str().into(),
        prefix: spec.prefix,
        since: spec.since.0,
        released: spec.released.as_ref().map(|time| time.0),
        reuse_after: spec.reuse_after.as_ref().map(|time| time.0),
        secrets: spec.secrets.clone().unwrap_or_else(|| secret_of_0_2_0(&spec.holder)),
        migrated: spec.migrated.as_ref().map(|time| time.0),
    };
    Ok((spec, lease))
}

/// Returns a lease with an unknown holder, so that the address of an unreadable lease is not allocated. The result is
/// never `None`, because the interface has a valid name.
pub(crate) fn unreadable(object: &Object, address: IpAddr) -> Option<Lease> {
    let machine = Machine::new("", format!("StaticIPLease {}", object.name_any()), object.uid().unwrap_or_default());
    let interface = Pool::DEFAULT_INTERFACE.parse().ok()?;
    Some(Lease {
        claimant: Arc::new(Claimant { machine, interface }),
        pool: "".into(),
        prefix: if address.is_ipv4() { 32 } else { 128 },
        since: Timestamp::UNIX_EPOCH,
        released: None,
        reuse_after: None,
        secrets: BTreeSet::new(),
        migrated: None,
    })
}

#[cfg(test)]
mod tests {
    use kube::api::ApiResource;
    use serde_json::json;

    use super::*;
    use crate::kinds::pool::StaticIPLease;

    #[test]
    fn the_reason_why_a_lease_cannot_be_read_is_one_short_line() {
        let holder = json!({
            "kind": "KubevirtMachine", "namespace": "n", "name": "w-0", "uid": "u", "interface": "x\n".repeat(100_000),
        });
        let spec = json!({
            "network": "infra/vlan10", "address": "10.0.0.8", "prefix": 24, "pool": "clusters/workers",
            "holder": holder, "since": "2026-08-14T10:00:00.000000Z",
        });
        let lease =
            Object::new("10-0-0-8.infra.vlan10", &ApiResource::erase::<StaticIPLease>(&()), json!({"spec": spec}));
        let reason = read(&lease, "10.0.0.8".parse().unwrap(), "infra/vlan10").unwrap_err();
        let first = "spec.holder.interface: invalid interface \"";
        let longest = format!("{first}{}", "x\\n".repeat(200));
        assert_eq!(reason, format!("{}…", &longest[..500]));
    }

    #[test]
    fn a_lease_whose_holder_has_an_invalid_name_cannot_be_read() {
        let reason = |member: &str| {
            let mut holder =
                json!({"kind": "KubevirtMachine", "namespace": "n", "name": "w-0", "uid": "u", "interface": "eno101"});
            holder[member] = "a/b".into();
            let spec = json!({
                "network": "infra/vlan10", "address": "10.0.0.8", "prefix": 24, "pool": "clusters/workers",
                "holder": holder, "since": "2026-08-14T10:00:00.000000Z",
            });
            let lease =
                Object::new("10-0-0-8.infra.vlan10", &ApiResource::erase::<StaticIPLease>(&()), json!({"spec": spec}));
            read(&lease, "10.0.0.8".parse().unwrap(), "infra/vlan10").unwrap_err()
        };
        for member in ["namespace", "name", "virtualMachineNamespace"] {
            assert_eq!(reason(member), "spec.holder: invalid name \"a/b\"", "{member}");
        }
    }

    #[test]
    fn a_lease_of_any_content_has_the_address_of_its_name_or_cannot_be_read() {
        let time = "2026-08-14T10:00:00.000000Z";
        let holder =
            json!({"kind": "KubevirtMachine", "namespace": "n", "name": "w-0", "uid": "u", "interface": "eno101"});
        let valid = json!({"metadata": {"name": "10-0-0-8.infra.vlan10", "uid": "u", "resourceVersion": "5"}, "spec": {
            "network": "infra/vlan10", "address": "10.0.0.8", "prefix": 24, "pool": "clusters/workers",
            "holder": holder, "since": time, "released": time, "reuseAfter": time,
        }});
        let address = "10.0.0.8".parse().unwrap();
        let (mut readable, mut held) = (0, 0);
        crate::variants::each_object(&valid, |object| match read(&object, address, "infra/vlan10") {
            Ok((spec, _)) => {
                assert_eq!((spec.network.as_str(), spec.address.as_str()), ("infra/vlan10", "10.0.0.8"));
                readable += 1;
            }
            Err(_) => {
                assert_eq!(unreadable(&object, address).unwrap().released, None);
                held += 1;
            }
        });
        assert!(readable > 0 && held > 20, "{readable} readable, {held} held");
    }
}

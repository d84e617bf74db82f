//! Reads the addresses of objects that this program does not serve: Services of type LoadBalancer, and the control
//! planes of Clusters.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kube::api::ApiResource;
use serde_json::Value;

use crate::cluster::object::Object;
use crate::kinds::virtual_machine::items;

/// Maximum number of addresses that are read from one object.
const MOST: usize = 16;

/// API resource of Services.
#[must_use]
pub fn services() -> ApiResource {
    ApiResource {
        group: String::new(),
        version: "v1".to_owned(),
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        plural: "services".to_owned(),
    }
}

/// Returns the addresses in the status of a Service of type LoadBalancer. An address that the Service only requests
/// does not count, because every user of a namespace can request any address.
pub(crate) fn of_service(service: &Object) -> BTreeSet<IpAddr> {
    if service.data["spec"]["type"] != "LoadBalancer" {
        return BTreeSet::new();
    }
    let given = items(&service.data["status"]["loadBalancer"]["ingress"]).map(|ingress| &ingress["ip"]);
    given.filter_map(address).take(MOST).collect()
}

/// Returns the address of the control plane of a Cluster. Empty if the host of the control plane is a name.
pub(crate) fn of_cluster(cluster: &Object) -> BTreeSet<IpAddr> {
    address(&cluster.data["spec"]["controlPlaneEndpoint"]["host"]).into_iter().collect()
}

fn address(text: &Value) -> Option<IpAddr> {
    text.as_str()?.trim_matches(['[', ']']).parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(of: fn(&Object) -> BTreeSet<IpAddr>, data: Value) -> Vec<String> {
        let mut object = json!({"metadata": {"namespace": "n", "name": "a"}});
        json_patch::merge(&mut object, &data);
        of(&serde_json::from_value(object).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_service_has_the_addresses_of_its_load_balancer_and_not_its_requested_address() {
        let ingress =
            json!([{"ip": "10.0.0.9", "ipMode": "VIP"}, {"ip": "fd00::9"}, {"hostname": "a.example"}, {"ip": 1}, "x"]);
        let with = |type_: &str| json!({"spec": {"type": type_, "loadBalancerIP": "10.0.0.8"}, "status": {"loadBalancer": {"ingress": ingress}}});
        assert_eq!(read(of_service, with("LoadBalancer")), ["10.0.0.9", "fd00::9"]);
        assert_eq!(read(of_service, with("ClusterIP")), [""; 0]);
        let many: Vec<Value> = (0..100).map(|last| json!({"ip": format!("10.0.0.{last}")})).collect();
        let many = json!({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": many}}});
        assert_eq!(read(of_service, many).len(), MOST);
    }

    #[test]
    fn a_cluster_has_the_address_of_its_control_plane_unless_the_host_is_a_name() {
        let with = |host: Value| json!({"spec": {"controlPlaneEndpoint": {"host": host, "port": 6443}}});
        assert_eq!(read(of_cluster, with("10.0.0.7".into())), ["10.0.0.7"]);
        assert_eq!(read(of_cluster, with("[fd00::7]".into())), ["fd00::7"]);
        for host in [json!("api.c1.example"), json!(""), json!(7), Value::Null, json!("10.0.0.7:6443")] {
            assert_eq!(read(of_cluster, with(host.clone())), [""; 0], "{host}");
        }
        assert_eq!(read(of_cluster, json!({"spec": []})), [""; 0]);
    }

    #[test]
    fn at_most_the_limit_of_addresses_is_read_from_a_service_or_cluster_with_any_content() {
        let service = json!({
            "metadata": {"namespace": "n", "name": "a"}, "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}},
        });
        crate::variants::each_object(&service, |object| assert!(of_service(&object).len() <= MOST));
        let endpoint = json!({"host": "10.0.0.7", "port": 6443});
        let cluster = json!({"metadata": {"namespace": "n", "name": "a"}, "spec": {"controlPlaneEndpoint": endpoint}});
        crate::variants::each_object(&cluster, |object| assert!(of_cluster(&object).len() <= 1));
    }
}

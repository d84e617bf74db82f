//! Checks the rights of the controller and of the plugin. The controller uses every right of its roles; the test of
//! each scenario checks that the controller uses no other right. The plugin uses every right of its role. It also reads
//! Secrets, for which its role has no right.

use std::collections::BTreeSet;

use glowplug_controller::kinds::ipam_claim::ipam_claims;
use glowplug_controller::kinds::pool::{GlobalStaticIPPool, StaticIPPool};
use glowplug_controller::kinds::virtual_machine::virtual_machines;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams, TypeMeta};
use serde_json::{Value, json};

use crate::support::plugin::Plugin;
use crate::support::rights::{Right, of_call, of_role, shipped, used};
use crate::support::scenarios::ALL;
use crate::support::server::Server;
use crate::support::server::rbac::KUBEVIRT;
use crate::support::{Cluster, start_server};

const PLUGIN: &str = "glowplug-plugin";

/// Scenarios that together use every right of the controller.
const USING_EVERY_RIGHT: [&str; 20] = [
    "a_global_pool_serves_claims_of_every_namespace",
    "a_machine_of_a_node_pool_starts_with_its_address",
    "a_machine_starts_with_the_address_of_another_provider",
    "a_machine_starts_with_the_mac_address_that_its_lease_records",
    "a_machine_that_is_replaced_while_no_webhook_answers_keeps_its_mac_address",
    "a_pool_of_the_same_name_is_derived_from_the_configuration_of_a_node_pool",
    "a_second_candidate_leads_after_the_first_candidate_stops",
    "an_ipaddress_whose_owner_has_the_uid_of_a_machine_releases_no_address",
    "an_ipam_claim_that_is_restored_with_its_status_gets_its_address_after_the_guest_has_ended",
    "ipam_claims_that_no_pool_serves_stay_unchanged",
    "leases_of_deleted_claims_are_deleted_except_the_last_lease_of_a_name_in_a_sticky_pool",
    "machines_boot_with_addresses_from_the_configuration_of_their_node_pool",
    "machines_keep_their_addresses_when_their_namespace_gets_or_loses_the_label_of_a_pool",
    "machines_keep_their_addresses_when_their_pool_gets_another_name",
    "machines_of_two_clusters_get_addresses_of_one_pool",
    "metrics_need_the_token_of_a_user_with_the_right_to_read_them",
    "only_one_of_many_candidates_leads_at_a_time",
    "the_address_of_a_claim_whose_finalizers_were_removed_is_free_after_its_ipaddress_is_gone",
    "the_controller_recognizes_the_installed_crds_as_current",
    "the_next_leader_deletes_a_claim_whose_machine_is_gone",
];

#[tokio::test]
async fn the_controller_uses_every_shipped_right() {
    let meant: Vec<_> = ALL.iter().filter(|(name, _)| USING_EVERY_RIGHT.contains(name)).collect();
    assert_eq!(meant.len(), USING_EVERY_RIGHT.len());
    let mut all = BTreeSet::new();
    for (_, scenario) in meant {
        let server = Server::start().await;
        scenario(&Cluster::of(&server).await).await;
        all.extend(used(server.take_calls()));
    }
    assert_eq!(shipped().difference(&all).collect::<Vec<_>>(), [] as [&Right; 0], "shipped and never used");
}

/// Creates a machine with network data, a StaticIPPool, a GlobalStaticIPPool and an IPAMClaim. No controller runs.
async fn fill(cluster: &Cluster) {
    let create = async |kind: &ApiResource, namespace: Option<&str>, value: Value| {
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(cluster.client_as(KUBEVIRT), namespace, kind),
            None => Api::all_with(cluster.client(), kind),
        };
        let mut object: DynamicObject = serde_json::from_value(value).unwrap();
        object.types = Some(TypeMeta { api_version: kind.api_version.clone(), kind: kind.kind.clone() });
        api.create(&PostParams::default(), &object).await.unwrap();
    };
    let network = json!({"network": "infra/vlan10", "addresses": ["10.0.0.8/29"]});
    create(&ApiResource::erase::<Namespace>(&()), None, json!({"metadata": {"name": "n"}})).await;
    let mut spec = network.clone();
    spec["machineSelector"] = json!({"matchLabels": {"a": "b"}});
    let pool = json!({"metadata": {"namespace": "n", "name": "p"}, "spec": spec});
    create(&ApiResource::erase::<StaticIPPool>(&()), Some("n"), pool).await;
    let mut spec = network.clone();
    (spec["network"], spec["serveIPAMClaims"]) = (json!("infra/vlan11"), json!(true));
    spec["namespaceSelector"] = json!({"matchLabels": {"a": "b"}});
    let pool = json!({"metadata": {"name": "g"}, "spec": spec});
    create(&ApiResource::erase::<GlobalStaticIPPool>(&()), None, pool).await;
    let volume = json!({"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": SECRET}}});
    let vm = json!({
        "metadata": {"namespace": "n", "name": "w", "labels": {"a": "b"}},
        "spec": {"template": {"spec": {
            "domain": {"devices": {"interfaces": [{"name": "net1", "bridge": {}}]}},
            "networks": [{"name": "net1", "multus": {"networkName": "infra/vlan10"}}], "volumes": [volume],
        }}},
    });
    create(&virtual_machines(), Some("n"), vm).await;
    let claim =
        json!({"metadata": {"namespace": "n", "name": "i"}, "spec": {"network": "vlan10", "interface": "net1"}});
    create(&ipam_claims(), Some("n"), claim).await;
}

const SECRET: &str = "w-networkdata-abcdefghijklmnop";

#[tokio::test]
async fn the_role_for_the_plugin_has_every_right_that_the_plugin_uses_except_the_right_to_secrets() {
    let (server, cluster) = start_server().await;
    fill(&cluster).await;
    let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": PLUGIN});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"});
    let binding = json!({"metadata": {"name": "alice"}, "roleRef": role_ref, "subjects": [subject]});
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    Api::all(cluster.client()).create(&PostParams::default(), &binding).await.unwrap();
    let alice = Plugin::of_user(cluster.config(), Some("alice"));
    let spec = json!({"network": "infra/vlan12", "addresses": ["10.0.0.8/29"], "machineSelector": {"matchLabels": {"x": "y"}}});
    let pool = json!({
        "apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool", "metadata": {"namespace": "n", "name": "q"}, "spec": spec,
    });
    let file = alice.file("pool.yaml", &pool);
    drop(server.take_calls());
    let not_found = alice.run(&["why", "n/absent"]).await;
    let line = "error: n/absent: no VirtualMachine, KubevirtMachine, IPAddressClaim or IPAMClaim\n";
    assert_eq!(not_found, (Some(1), String::new(), line.to_owned()));
    for (command, rights) in [
        (&["status"][..], Value::Null),
        (&["plan", &file], Value::Null),
        (&["why", "n/w"], json!(["get secrets in namespace n"])),
        (&["audit"], json!(["get secrets in namespace n"])),
        (&["adopt", "--pool", "n/p"], json!(["get secrets in namespace n"])),
    ] {
        let (_, answer) = alice.json(command).await;
        assert_eq!(answer["missingRights"], rights, "{command:?}");
    }
    let calls = server.take_calls().into_iter().filter(|call| call.user == "alice");
    let mut used: BTreeSet<Right> = calls.map(|call| of_call(&call)).collect();
    assert!(used.remove(&("get".to_owned(), "secrets.".to_owned(), "every".to_owned())));
    let shipped = of_role("ClusterRole", PLUGIN, "every");
    assert_eq!(used.difference(&shipped).collect::<Vec<_>>(), [] as [&Right; 0], "used without a right");
    assert_eq!(shipped.difference(&used).collect::<Vec<_>>(), [] as [&Right; 0], "shipped and never used");
}

#[tokio::test]
async fn the_plugin_lists_all_missing_rights_of_a_user_at_once() {
    let (_server, cluster) = start_server().await;
    let mallory = Plugin::of_user(cluster.config(), Some("mallory"));
    let pools = "list staticippools.ipam.glowplug.dev in every namespace; list globalstaticippools.ipam.glowplug.dev";
    let machines = "list kubevirtmachines.infrastructure.cluster.x-k8s.io in every namespace; \
                    list virtualmachines.kubevirt.io in every namespace; \
                    list virtualmachineinstances.kubevirt.io in every namespace";
    let leases = "list staticipleases.ipam.glowplug.dev";
    let node_pools = "list nodepools.hypershift.openshift.io in every namespace";
    let claims = "list ipaddressclaims.ipam.cluster.x-k8s.io in every namespace";
    let ipam_claims = "list ipamclaims.k8s.cni.cncf.io in every namespace";
    let lists = format!(
        "{leases}; {pools}; {node_pools}; {machines}; list services in every namespace; \
         list clusters.cluster.x-k8s.io in every namespace; {claims}; \
         list ipaddresses.ipam.cluster.x-k8s.io in every namespace; {ipam_claims}"
    );
    let vms = "list virtualmachines.kubevirt.io in every namespace; \
               list kubevirtmachines.infrastructure.cluster.x-k8s.io in every namespace; \
               list virtualmachineinstances.kubevirt.io in every namespace";
    let status = format!(
        "{pools}; list macpools.ipam.glowplug.dev; {claims}; {ipam_claims}; {leases}; {node_pools}; {vms}; \
         list leases.coordination.k8s.io in every namespace"
    );
    let why = format!(
        "{pools}; {leases}; {node_pools}; get virtualmachines.kubevirt.io in namespace n; list events in namespace n; \
         get virtualmachineinstances.kubevirt.io in namespace n; \
         get kubevirtmachines.infrastructure.cluster.x-k8s.io in namespace n; \
         get ipaddressclaims.ipam.cluster.x-k8s.io in namespace n; get ipamclaims.k8s.cni.cncf.io in namespace n"
    );
    for (command, rights) in [(&["status"][..], status), (&["why", "n/w"], why), (&["audit"], lists)] {
        let expected = (
            Some(1),
            String::new(),
            format!("error: missing rights: {rights}; the ClusterRole glowplug-plugin has them\n"),
        );
        assert_eq!(mallory.run(command).await, expected);
    }
}

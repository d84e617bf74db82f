//! Tests the plugin of kubectl as a process.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use glowplug_controller::kinds::cluster_api::Kinds;
use glowplug_controller::kinds::mac_pool::MACPool;
use glowplug_controller::kinds::pool::{PoolSpec, StaticIPLease, StaticIPPool, definitions};
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::Cluster;
use crate::support::controller::merge;
use crate::support::hosted::definitions::{INSTANCE, VIRTUAL_MACHINE, resource};
use crate::support::hosted::provider::object;
use crate::support::hosted::{Hosted, poll};
use crate::support::installed::Installed;
use crate::support::plugin::Plugin;
use crate::support::server::Fault;
use crate::support::server::rbac::KUBEVIRT;
use crate::support::start_server;

#[tokio::test]
async fn the_plugin_of_kubectl_explains_pools_and_machines() {
    let (_server, cluster) = start_server().await;
    let plugin = Plugin::new(cluster.config());
    let none = json!({"version": 1, "leaders": [], "pools": [], "macPools": [], "waiting": []});
    assert_eq!(plugin.json(&["status"]).await, (Some(0), none));
    let lease = |name: &str, holder: &str, time: Timestamp| {
        let spec = json!({"holderIdentity": holder, "renewTime": MicroTime(time), "leaseDurationSeconds": 3600});
        let lease = json!({"metadata": {"namespace": "default", "name": name}, "spec": spec});
        serde_json::from_value::<Lease>(lease).unwrap()
    };
    let now = Timestamp::now();
    let leases = Api::<Lease>::namespaced(cluster.client(), "default");
    // The second Lease is that of a controller of one namespace, and the third one is that of another program.
    let names = ["glowplug-controller", "glowplug-controller-0", "other"];
    for name in names {
        leases.create(&PostParams::default(), &lease(name, &format!("{name}-pod_1"), now)).await.unwrap();
    }
    let (_, answer) = plugin.json(&["status"]).await;
    let leaders =
        answer["leaders"].as_array().unwrap().iter().map(|it| [&it["namespace"], &it["holder"], &it["state"]]);
    let expected = ["glowplug-controller-pod_1", "glowplug-controller-0-pod_1"].map(|pod| ["default", pod, "leads"]);
    assert_eq!(leaders.collect::<Vec<_>>(), expected);
    for name in names {
        leases.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/32"]).await;
    let installed = Installed::start(&cluster).await;
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    hosted.until_running("workers-0").await;

    let machine = format!("{}/workers-0", hosted.namespace);
    let pool = format!("{}/workers", hosted.clusters);
    let (status, answer) = plugin.json(&["why", &machine]).await;
    let since = answer["since"].clone();
    assert_eq!(
        (status, &answer["machine"], &answer["phase"], &answer["state"], &answer["whatToDo"]),
        (Some(0), &json!(machine), &json!("Running"), &json!("allocated"), &Value::Null)
    );
    assert_eq!(
        answer["addresses"],
        json!([{
            "address": "10.0.0.8/16", "network": hosted.network, "interface": "eno101", "pool": pool, "since": since,
        }])
    );
    // The webhook rejects the VirtualMachine of the next machine.
    hosted.until_condition("workers", "Exhausted").await;
    hosted.scale("workers", 2).await;
    let message = hosted.until_refused("workers-1").await;
    let (_, answer) = plugin.json(&["why", &format!("{}/workers-1", hosted.namespace)]).await;
    assert_eq!(
        (&answer["state"], &answer["reason"], &answer["addresses"]),
        (&json!("waiting"), &json!(message), &json!([]))
    );
    // The status names the machine that waits, and a claim that is refused.
    let claim = json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta1", "kind": "IPAddressClaim",
        "metadata": {"namespace": hosted.clusters, "name": "r-1", "annotations": {"ipam.glowplug.dev/requested-address": "10.9.9.9"}},
        "spec": {"poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "workers"}},
    });
    let kinds = Kinds::discover(&cluster.client()).await.unwrap().unwrap();
    let claims: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &hosted.clusters, &kinds.claims);
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let waiting = poll("two waiting objects", async || {
        let (_, summary) = plugin.json(&["status"]).await;
        let waiting = summary["waiting"].as_array()?.clone();
        (waiting.len() == 2).then_some(waiting)
    })
    .await;
    let of = |kind: &str| {
        waiting.iter().find(|it| it["kind"] == kind).map(|it| (&it["object"], &it["pools"], &it["reason"]))
    };
    let refused = json!(format!(
        "AllocationFailed: annotation ipam.glowplug.dev/requested-address: 10.9.9.9: not in pool {pool:?}, expected a free address of \
         the pool"
    ));
    let (claim, waits) = (json!(format!("{}/r-1", hosted.clusters)), json!(format!("{}/workers-1", hosted.namespace)));
    assert_eq!(of("IPAddressClaim"), Some((&claim, &json!([pool]), &refused)));
    assert_eq!(of("KubevirtMachine"), Some((&waits, &json!([pool]), &json!(message))));
    let (status, answer) = plugin.json(&["why", &format!("{}/r-1", hosted.clusters)]).await;
    assert_eq!(
        (status, &answer["claim"], &answer["kind"], &answer["state"], &answer["pool"], &answer["reason"]),
        (
            Some(0),
            &json!(format!("{}/r-1", hosted.clusters)),
            &json!("IPAddressClaim"),
            &json!("waiting"),
            &json!(pool),
            &refused
        )
    );
    let (status, output, _) = plugin.run(&["why", &machine]).await;
    let head: Vec<&str> = output.lines().next().unwrap().split_whitespace().collect();
    assert_eq!((status, head), (Some(0), vec!["MACHINE", "PHASE", "STATE", "SINCE"]));
    let of_pool = poll("the count of the pool", async || {
        let (_, summary) = plugin.json(&["status"]).await;
        let pool = summary["pools"][0].clone();
        (pool["families"][0]["allocated"] == "1").then_some(pool)
    })
    .await;
    assert_eq!((&of_pool["name"], &of_pool["ready"], &of_pool["machines"]), (&json!(pool), &json!(true), &json!(1)));
    installed.stop().await;
}

#[tokio::test]
async fn the_errors_of_the_plugin_name_the_files_and_objects_that_it_cannot_find() {
    let (server, cluster) = start_server().await;
    let plugin = Plugin::new(cluster.config());
    let failed = |error: &str| (Some(1), String::new(), format!("error: {error}\n"));
    assert_eq!(
        plugin.run(&["why", "n/w"]).await,
        failed("n/w: no VirtualMachine, KubevirtMachine, IPAddressClaim or IPAMClaim")
    );
    let (status, _, errors) = plugin.run(&["why", "w"]).await;
    let line = "error: invalid value 'w' for '<NAMESPACE/NAME>': expected NAMESPACE/NAME";
    assert_eq!((status, errors.lines().next()), (Some(2), Some(line)));
    let context = plugin.run(&["status", "--context", "nowhere"]).await;
    assert_eq!(context, failed("using the kubeconfig file: failed to load the cluster of context: absent"));
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent");
    let (status, _, errors) = plugin.run_with(&absent, &["status"]).await;
    let start = format!("error: reading {}: ", absent.display());
    assert_eq!((status, &errors[..start.len()]), (Some(1), &*start));
    // If a kubeconfig cannot be parsed, its tokens are not in the message.
    let secret = folder.path().join("secret");
    for (text, place) in [
        ("users:\n- name: a\n  user: {token: geheim", "line 3 column 9"),
        ("users:\n- name: a\n  user:\n    token: [geheim]\n", "line 4 column 12"),
    ] {
        std::fs::write(&secret, text).unwrap();
        let error = format!("reading {}: {place}: not readable, expected a kubeconfig file", secret.display());
        assert_eq!(plugin.run_with(&secret, &["status"]).await, failed(&error));
    }
    let cluster_of = |server: &str| {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
        })
    };
    // No program listens on this port.
    let nowhere = plugin.file("nowhere", &cluster_of("http://127.0.0.1:1"));
    let error = "listing staticipleases: ServiceError: http://127.0.0.1:1: client error (Connect): tcp connect error: \
                 Connection refused (os error 111)";
    assert_eq!(plugin.run_with(Path::new(&nowhere), &["audit"]).await, failed(error));
    // For an option of kubectl, the error has a tip.
    for (command, option, tip) in [
        (&["why", "-n", "shop", "web-0"][..], "-n", "expected NAMESPACE/NAME"),
        (&["plan", "-f", "pool.yaml"], "-f", "expected plan FILE"),
    ] {
        let (status, output, errors) = plugin.run(command).await;
        let start = format!(
            "error: unexpected argument '{option}' found\n\n  tip: {tip}\n\nUsage: kubectl glowplug {} ",
            command[0]
        );
        assert_eq!((status, &*output, &errors[..start.len()]), (Some(2), "", &*start));
    }
    let missing = absent.to_str().unwrap();
    let reading = failed(&format!("reading {missing}: No such file or directory (os error 2)"));
    for command in [&["plan", missing][..], &["adopt", "--file", missing]] {
        assert_eq!(plugin.run(command).await, reading);
    }
    // The value of `--pool` is always the name of a pool in the cluster, never a file.
    let named = "expected NAMESPACE/NAME of a StaticIPPool, or NAME of a GlobalStaticIPPool";
    let (status, _, errors) = plugin.run(&["adopt", "--pool", "./pool.yaml"]).await;
    let line = &*format!("error: invalid value './pool.yaml' for '--pool <[NAMESPACE/]NAME>': {named}");
    assert_eq!((status, errors.lines().next()), (Some(2), Some(line)));
    for pool in ["n/p", "g", "pool.yaml"] {
        let error = format!("{pool}: no pool of the cluster, {named}");
        assert_eq!(plugin.run(&["adopt", "--pool", pool]).await, failed(&error));
    }
    let both = "error: the argument '--file <FILE|FOLDER|->' cannot be used with '--pool <[NAMESPACE/]NAME>'";
    let none =
        "error: the following required arguments were not provided: <--file <FILE|FOLDER|->|--pool <[NAMESPACE/]NAME>>";
    for (command, line) in [(&["adopt"][..], none), (&["adopt", "--file", missing, "--pool", "n/p"], both)] {
        let (status, output, errors) = plugin.run(command).await;
        let text = errors.split("\n\n").next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!((status, &*output, &*text), (Some(2), "", line));
    }
    let file = plugin.file("pools.yaml", &json!({"kind": "Pool"}));
    let none = "no pool in it, expected a StaticIPPool, GlobalStaticIPPool or MACPool of ipam.glowplug.dev";
    assert_eq!(plugin.run(&["plan", &file]).await, failed(&format!("reading {file}: {none}")));
    let items = [
        json!({"apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "A"}),
        json!({"apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "B"}),
    ];
    let file = plugin.file("mistakes.yaml", &json!({"kind": "List", "items": items}));
    let expected = "expected StaticIPPool, GlobalStaticIPPool or MACPool";
    let error =
        format!("reading {file}: items[0].kind: unknown \"A\", {expected}; items[1].kind: unknown \"B\", {expected}");
    assert_eq!(plugin.run(&["adopt", "--file", &file]).await, failed(&error));
    // A proxy that does not know the path gives the same answer as an API server that does not serve the kind.
    server.set_faults(|call| if call.group == "ipam.glowplug.dev" { Fault::Unserved } else { Fault::None });
    let commands =
        [(&["status"][..], "staticippools"), (&["audit"], "staticipleases"), (&["why", "n/w"], "staticippools")];
    let answer = "the API server answered 404 Failed to parse error data: 404 page not found";
    for (command, kind) in commands {
        assert_eq!(plugin.run(command).await, failed(&format!("listing {kind}: {answer}")));
    }
    server.clear_faults();
    // If the API server does not serve the kinds of the controller, no pool can be found.
    for definition in definitions() {
        let all: Api<CustomResourceDefinition> = Api::all(cluster.client());
        all.delete(&definition.name_any(), &DeleteParams::default()).await.unwrap();
    }
    for (command, kind) in commands {
        let error = format!("the API server has no {kind}.ipam.glowplug.dev: apply the definitions of glowplug");
        assert_eq!(plugin.run(command).await, failed(&error));
    }
}

/// Gives a user these rights. Each right is a group, resources of this group, and verbs.
async fn allow(cluster: &Cluster, user: &str, rules: &[(&str, &[&str], &[&str])]) {
    let rules = rules
        .iter()
        .map(|(group, resources, verbs)| json!({"apiGroups": [group], "resources": resources, "verbs": verbs}));
    let rules: Vec<Value> = rules.collect();
    let role: ClusterRole = serde_json::from_value(json!({"metadata": {"name": user}, "rules": rules})).unwrap();
    let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
    let binding = json!({"metadata": {"name": user}, "roleRef": role_ref, "subjects": [subject]});
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    Api::all(cluster.client()).create(&PostParams::default(), &role).await.unwrap();
    Api::all(cluster.client()).create(&PostParams::default(), &binding).await.unwrap();
}

/// Returns an element of `findings` in the JSON of an audit.
fn finding(word: &str, address: &str, object: &str, message: &str) -> Value {
    json!({"finding": word, "address": address, "object": object, "message": message})
}

#[tokio::test]
async fn an_audit_lists_the_differences_between_leases_and_objects() {
    let (_server, cluster) = start_server().await;
    let plugin = Plugin::new(cluster.config());
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/29"]).await;
    let installed = Installed::start(&cluster).await;
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 3).await;
    for name in ["workers-0", "workers-1", "workers-2"] {
        hosted.until_running(name).await;
        hosted.until_annotated(name, ANNOTATION).await;
    }
    let audit = async || plugin.json(&["audit"]).await;
    let clean = json!({
        "version": 1, "leases": 3, "objects": 3, "findings": [], "reserved": [], "notCompared": [],
    });
    let answer = poll("an audit without a finding", async || {
        let (status, answer) = audit().await;
        (status == Some(0)).then_some(answer)
    })
    .await;
    assert_eq!(answer, clean);
    let held = hosted.held().await;
    let address_of = |name: &str| held.iter().find(|(_, of)| of == name).map(|(address, _)| address.clone()).unwrap();
    let addresses = ["workers-0", "workers-1", "workers-2"].map(address_of);
    installed.stop().await;

    // The lease of workers-0 is deleted. No object of workers-1 records the address of workers-1 any more. workers-2
    // reports the address of workers-1.
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let lease_of = |address: &str| format!("{}.{}.{}", address.replace('.', "-"), hosted.clusters, hosted.name);
    let gone = leases.get(&lease_of(&addresses[0])).await.unwrap();
    leases.delete(&lease_of(&addresses[0]), &DeleteParams::default()).await.unwrap();
    let none = json!({"metadata": {"annotations": {(ANNOTATION): null}}});
    merge(&hosted.machines, "workers-1", &none).await;
    let status_map = json!({"status": {"allocatedBootstrapAddresses": null}});
    hosted.machines.patch_status("workers-1", &Default::default(), &kube::api::Patch::Merge(status_map)).await.unwrap();
    let mut interface = hosted.instances.get("workers-2").await.unwrap().data["status"]["interfaces"][0].clone();
    interface["ipAddresses"] = json!([addresses[1]]);
    hosted.kubevirt.report("workers-2", &json!({"interfaces": [interface]})).await;
    // A lease names a holder that never existed.
    let mut spec = gone.spec.clone();
    (spec.address, spec.holder.name, spec.holder.uid) = ("10.0.0.15".to_owned(), "gone".to_owned(), "7".to_owned());
    let stale = StaticIPLease::new(&lease_of("10.0.0.15"), spec);
    leases.create(&PostParams::default(), &stale).await.unwrap();

    let title = |name: &str| format!("{}/{name}", hosted.namespace);
    let uid = |name: &'static str| {
        let machines = hosted.machines.clone();
        async move { machines.get(name).await.unwrap().metadata.uid.unwrap() }
    };
    let [one, two] = [uid("workers-0").await, uid("workers-1").await];
    let (network, pool) = (&hosted.network, format!("{}/workers", hosted.clusters));
    let since = gone.spec.since.0;
    let secret = hosted.secret_name("workers-0").await;
    let missing = format!(
        "{} of eno101 of {} ({one}) is not in the leases, the controller adds it when it starts",
        addresses[0],
        title("workers-0")
    );
    let (status, answer) = audit().await;
    assert_eq!(
        answer["findings"],
        json!([
            finding(
                "twoUsers",
                &addresses[1],
                &title("workers-2"),
                &format!(
                    "VirtualMachineInstance {} reports {} of network {network} for eno101 of {} ({}), and eno101 of {} ({two}) holds it",
                    title("workers-2"),
                    addresses[1],
                    title("workers-2"),
                    hosted.instances.get("workers-2").await.unwrap().metadata.uid.unwrap(),
                    title("workers-1"),
                )
            ),
            finding(
                "leaseWithoutHolder",
                "10.0.0.15",
                &title("gone"),
                &format!(
                    "StaticIPLease of 10.0.0.15 of network {network}, allocated from pool {pool} at {since:.0}: its holder {} (7) does not exist",
                    title("gone"),
                )
            ),
            finding(
                "leaseWithoutRecord",
                &addresses[1],
                &title("workers-1"),
                &format!(
                    "{} of eno101 of {} ({two}) is in the leases, and no object of the machine records it",
                    addresses[1],
                    title("workers-1"),
                )
            ),
            finding(
                "recordWithoutLease",
                &addresses[0],
                &title("workers-0"),
                &format!("KubevirtMachine {}: metadata.annotations.\"{ANNOTATION}\": {missing}", title("workers-0"),)
            ),
            finding(
                "recordWithoutLease",
                &addresses[0],
                &title("workers-0"),
                &format!("Secret {}/{secret}: {missing}", hosted.namespace,)
            ),
        ])
    );
    assert_eq!((status, &answer["leases"], &answer["notCompared"]), (Some(1), &json!(3), &json!([])));

    // A user who lacks most rights gets an audit of the objects that this user has the right to read.
    let view: &[&str] = &["staticippools", "globalstaticippools", "staticipleases"];
    allow(&cluster, "eve", &[("ipam.glowplug.dev", view, &["list"])]).await;
    let (status, answer) = Plugin::of_user(cluster.config(), Some("eve")).json(&["audit"]).await;
    let rights = [
        "list nodepools.hypershift.openshift.io in every namespace",
        "list kubevirtmachines.infrastructure.cluster.x-k8s.io in every namespace",
        "list virtualmachines.kubevirt.io in every namespace",
        "list virtualmachineinstances.kubevirt.io in every namespace",
        "list services in every namespace",
        "list clusters.cluster.x-k8s.io in every namespace",
        "list ipaddressclaims.ipam.cluster.x-k8s.io in every namespace",
        "list ipaddresses.ipam.cluster.x-k8s.io in every namespace",
        "list ipamclaims.k8s.cni.cncf.io in every namespace",
    ];
    let expected = json!({
        "version": 1, "leases": 3, "objects": 0, "findings": [], "reserved": [],
        "notCompared": ["machines", "claims", "secrets"], "missingRights": rights,
    });
    assert_eq!((status, answer), (Some(1), expected));
    // Without the right to read one kind of machines, the audit does not compare the objects of machines.
    allow(&cluster, "trent", &[("ipam.glowplug.dev", view, &["list"]), ("kubevirt.io", &["*"], &["list"])]).await;
    let (_, answer) = Plugin::of_user(cluster.config(), Some("trent")).json(&["audit"]).await;
    let words: Vec<&Value> = answer["findings"].as_array().unwrap().iter().map(|it| &it["finding"]).collect();
    assert_eq!(words, ["twoUsers"]);
    allow(&cluster, "mallory", &[]).await;
    let (status, output, errors) = Plugin::of_user(cluster.config(), Some("mallory")).run(&["audit"]).await;
    let start = "error: missing rights: list staticipleases.ipam.glowplug.dev; ";
    assert_eq!((status, &*output, &errors[..start.len()]), (Some(1), "", start));
}

const ANNOTATION: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";

// === existing machines ===

/// The VirtualMachines on the page about existing machines. db-0 and web-0 have a guest agent, old-0 has none.
struct Shop {
    vms: Api<DynamicObject>,
    instances: Api<DynamicObject>,
}

impl Shop {
    async fn new(cluster: &Cluster) -> Self {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
        Api::all(cluster.client()).create(&PostParams::default(), &namespace).await.unwrap();
        let client = cluster.client_as(KUBEVIRT);
        let api = |names| Api::namespaced_with(client.clone(), "shop", &resource(names));
        let shop = Self { vms: api(VIRTUAL_MACHINE), instances: api(INSTANCE) };
        for (name, addresses) in
            [("db-0", json!(["192.168.1.12"])), ("web-0", json!(["192.168.1.10", "fe80::1"])), ("old-0", json!([]))]
        {
            shop.run(name, &addresses).await;
        }
        shop
    }

    /// Creates a VirtualMachine whose guest runs and reports these addresses.
    async fn run(&self, name: &str, addresses: &Value) {
        let networks = json!([{"name": "net1", "multus": {"networkName": "infra/vlan10"}}]);
        let devices = json!({"interfaces": [{"name": "net1", "bridge": {}}]});
        let volumes = json!([{"name": "cloudinit", "cloudInitNoCloud": {"userData": "#cloud-config"}}]);
        let spec = json!({"networks": networks, "domain": {"devices": devices}, "volumes": volumes});
        let metadata = json!({"name": name, "labels": {"network": "vlan10"}});
        let vm = json!({"metadata": metadata, "spec": {"template": {"spec": spec}}});
        let vm = self.vms.create(&PostParams::default(), &object(VIRTUAL_MACHINE, vm)).await.unwrap();
        let owner =
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": vm.metadata.uid});
        let instance = json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec});
        self.instances.create(&PostParams::default(), &object(INSTANCE, instance)).await.unwrap();
        self.report(name, "Running", addresses).await;
    }

    async fn report(&self, name: &str, phase: &str, addresses: &Value) {
        let interfaces = json!([{"name": "net1", "ipAddresses": addresses}]);
        merge(&self.instances, name, &json!({"status": {"phase": phase, "interfaces": interfaces}})).await;
    }

    async fn annotation(&self, name: &str) -> Option<String> {
        self.vms.get(name).await.unwrap().metadata.annotations?.get(ANNOTATION).cloned()
    }
}

/// Digest in the examples of the page about existing machines.
const DIGEST: &str = "5f3c1a9be07d46828c2f7ab1904e6d53";

/// The pool of the page about existing machines.
const POOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/existing/pool.yaml");

#[tokio::test]
async fn the_page_about_existing_machines_shows_the_output_of_the_plugin() {
    let (_server, cluster) = start_server().await;
    let shop = Shop::new(&cluster).await;
    let plugin = Plugin::new(cluster.config());
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/existing-machines.md")).unwrap();
    let mut printed: Vec<String> = Vec::new();
    let mut note = |expected: i32, (status, output, errors): (Option<i32>, String, String)| {
        assert_eq!((status, &*errors), (Some(expected), ""));
        printed.push(output);
    };
    note(0, plugin.run(&["plan", POOL]).await);
    // The guest of old-0 has no agent, so its address is not reported.
    note(1, plugin.run(&["adopt", "--file", POOL]).await);
    // Without --apply, nothing is written.
    assert_eq!(shop.annotation("db-0").await, None);
    // The digest depends on the UID of the machine, so it differs from the digest on the page.
    let (_, planned) = plugin.json(&["adopt", "--file", POOL]).await;
    let digest = digest_of(&plugin, &["adopt", "--file", POOL, "shop/db-0"]).await;
    note(0, plugin.run(&["adopt", "--file", POOL, "shop/db-0", "--apply", &digest]).await);
    let printed_digest = planned["digest"].as_str().unwrap();
    let printed = printed.iter().map(|it| it.replace(printed_digest, DIGEST));
    // The page shows paths that are relative to the repository.
    let paths = plugin.command_line(&["adopt", "--file", POOL]);
    let printed = printed.map(|it| it.replace(&paths, "kubectl glowplug adopt --file fixtures/existing/pool.yaml"));
    let printed = printed.map(|it| it.replace(&plugin.kubectl(), "kubectl"));
    let mut printed: Vec<String> = printed.map(|it| it.replace(POOL, "fixtures/existing/pool.yaml")).collect();
    printed.retain(|output| !page.contains(&format!("```text\n{output}```\n")));
    assert!(printed.is_empty(), "{}", printed.join("=====\n"));
    let recorded = Some(r#"["192.168.1.12/24"]"#.to_owned());
    assert_eq!((shop.annotation("db-0").await, shop.annotation("web-0").await), (recorded, None));
    // A second run has nothing to write.
    let version = shop.vms.get("db-0").await.unwrap().metadata.resource_version;
    let again = digest_of(&plugin, &["adopt", "--file", POOL, "shop/db-0"]).await;
    let (status, answer) = plugin.json(&["adopt", "--file", POOL, "shop/db-0", "--apply", &again]).await;
    assert_eq!(
        (status, &answer["machines"][0]["result"], &answer["writes"]),
        (Some(0), &json!("recorded"), &json!([]))
    );
    assert_eq!(shop.vms.get("db-0").await.unwrap().metadata.resource_version, version);
}

#[tokio::test]
async fn adopt_changes_no_record_of_another_address() {
    let (_server, cluster) = start_server().await;
    let shop = Shop::new(&cluster).await;
    let plugin = Plugin::new(cluster.config());
    // db-0 records another address than its guest reports. web-0 and twin-0 report the same address.
    merge(&shop.vms, "db-0", &json!({"metadata": {"annotations": {(ANNOTATION): "192.168.1.13/24"}}})).await;
    shop.run("twin-0", &json!(["192.168.1.10"])).await;
    shop.run("two-0", &json!(["192.168.1.20", "192.168.1.21"])).await;
    shop.run("out-0", &json!(["192.168.1.11"])).await;
    shop.run("off-0", &json!(["192.168.1.30"])).await;
    shop.report("off-0", "Succeeded", &json!(["192.168.1.30"])).await;
    let (status, answer) = plugin.json(&["adopt", "--file", POOL]).await;
    let row = |name: &str, phase: &str, addresses: &[&str], result: &str, reason: &str| {
        let needs_decision = !["off-0", "out-0"].contains(&name);
        json!({
            "machine": format!("shop/{name}"), "phase": phase, "addresses": addresses, "result": result, "reason": reason,
            "needsDecision": needs_decision,
        })
    };
    let expected = json!([
        row(
            "db-0",
            "Running",
            &["192.168.1.13"],
            "conflict",
            "its objects record 192.168.1.13, and its guest reports 192.168.1.12"
        ),
        row("off-0", "Succeeded", &[], "new", "no guest runs: it gets addresses like a new machine"),
        row(
            "old-0",
            "Running",
            &[],
            "leftAlone",
            "its guest reports no address: keep the address that it uses with preAllocations, or connect its agent"
        ),
        row("out-0", "Running", &["192.168.1.11"], "reserved", "no pool offers 192.168.1.11"),
        row(
            "twin-0",
            "Running",
            &["192.168.1.10"],
            "conflict",
            "VirtualMachineInstance shop/web-0 reports 192.168.1.10"
        ),
        row(
            "two-0",
            "Running",
            &["192.168.1.20", "192.168.1.21"],
            "reserved",
            "its guest reports several addresses of one family: record the one that it keeps"
        ),
        row(
            "web-0",
            "Running",
            &["192.168.1.10"],
            "conflict",
            "VirtualMachineInstance shop/twin-0 reports 192.168.1.10"
        ),
    ]);
    assert_eq!((status, &answer["machines"], &answer["writes"]), (Some(1), &expected, &json!([])));
    assert_eq!(shop.annotation("db-0").await.as_deref(), Some("192.168.1.13/24"));

    // The user `eve` has no right to change the machine.
    let view: &[&str] = &["staticippools", "globalstaticippools", "staticipleases"];
    let rules: [(&str, &[&str], &[&str]); 10] = [
        ("ipam.glowplug.dev", view, &["list"]),
        ("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], &["list"]),
        ("infrastructure.cluster.x-k8s.io", &["kubevirtmachines"], &["list"]),
        ("hypershift.openshift.io", &["nodepools"], &["list"]),
        ("ipam.cluster.x-k8s.io", &["ipaddressclaims", "ipaddresses"], &["list"]),
        ("k8s.cni.cncf.io", &["ipamclaims"], &["list"]),
        ("", &["secrets"], &["get"]),
        ("", &["services"], &["list"]),
        ("", &["namespaces"], &["get"]),
        ("cluster.x-k8s.io", &["clusters"], &["list"]),
    ];
    allow(&cluster, "eve", &rules).await;
    shop.run("free-0", &json!(["192.168.1.40"])).await;
    let eve = Plugin::of_user(cluster.config(), Some("eve"));
    let digest = digest_of(&eve, &["adopt", "--file", POOL, "shop/free-0"]).await;
    let (status, answer) = eve.json(&["adopt", "--file", POOL, "shop/free-0", "--apply", &digest]).await;
    assert_eq!((status, &answer["writes"][0]["outcome"]), (Some(1), &json!("failed")));
    assert_eq!(answer["missingRights"], json!(["patch virtualmachines.kubevirt.io in namespace shop"]));
    assert_eq!(shop.annotation("free-0").await, None);
    // Without the right to see every machine, nothing is written.
    allow(&cluster, "mallory", &rules[..1]).await;
    let (status, output, errors) =
        Plugin::of_user(cluster.config(), Some("mallory")).run(&["adopt", "--file", POOL, "--apply", &digest]).await;
    let start =
        "error: nothing is written, missing rights: list nodepools.hypershift.openshift.io in every namespace; ";
    assert_eq!((status, &*output, &errors[..start.len()]), (Some(1), "", start));
}

/// Returns the digest that a command prints.
async fn digest_of(plugin: &Plugin, command: &[&str]) -> String {
    let (_, answer) = plugin.json(command).await;
    answer["digest"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn adopt_writes_nothing_if_the_changes_differ_from_those_of_the_digest() {
    let (server, cluster) = start_server().await;
    let shop = Shop::new(&cluster).await;
    let plugin = Plugin::new(cluster.config());
    let command = ["adopt", "--file", POOL, "shop/db-0", "shop/web-0"];
    let digest = digest_of(&plugin, &command).await;
    let apply = [&command[..], &["--apply", &digest]].concat();
    shop.report("db-0", "Running", &json!(["192.168.1.14"])).await;
    let (status, answer) = plugin.json(&apply).await;
    let current = digest_of(&plugin, &command).await;
    let refused = format!(
        "nothing is written: the changes are not those of digest {digest}; read the table, then use --apply {current}"
    );
    let outcomes = |answer: &Value| -> Vec<String> {
        let writes = answer["writes"].as_array().unwrap().iter();
        writes.map(|write| write["outcome"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((status, &answer["refused"], &answer["digest"]), (Some(1), &json!(refused), &json!(current)));
    assert_eq!(outcomes(&answer), ["planned", "planned"]);
    let (_, output, _) = plugin.run(&apply).await;
    let next = format!("write the records: {} --apply {current}", plugin.command_line(&command));
    let end = format!("\nOBJECT         PROBLEM\nshop/machines  {refused}\n\nNEXT\n{next}\n");
    assert!(output.ends_with(&end), "{output}");
    assert_eq!((shop.annotation("db-0").await, shop.annotation("web-0").await), (None, None));
    // A report with the same addresses as before leaves the digest unchanged.
    shop.report("db-0", "Running", &json!(["192.168.1.12", "fe80::2"])).await;
    server.take_calls();
    let (status, answer) = plugin.json(&apply).await;
    assert_eq!((status, outcomes(&answer)), (Some(0), vec!["written".to_owned(), "written".to_owned()]));
    let calls = server.take_calls();
    let agents: BTreeSet<&str> = calls.iter().map(|call| &*call.user_agent).collect();
    assert_eq!(agents, [concat!("kubectl-glowplug/", env!("CARGO_PKG_VERSION"))].into());
    let managers = calls.iter().filter(|call| call.verb == "patch").map(|call| call.query["fieldManager"].as_str());
    assert_eq!(managers.collect::<Vec<_>>(), ["kubectl-glowplug"; 2]);
}

#[tokio::test]
async fn adopt_repeats_a_write_if_only_the_status_of_the_object_has_changed() {
    let command = ["adopt", "--file", POOL, "shop/db-0", "shop/web-0"];
    for (change, outcome) in
        [(json!({"status": {"ready": true}}), "written"), (json!({"metadata": {"annotations": {"a": "b"}}}), "failed")]
    {
        let (server, cluster) = start_server().await;
        let shop = Shop::new(&cluster).await;
        let plugin = Plugin::new(cluster.config());
        let digest = digest_of(&plugin, &command).await;
        let (gate, held) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (closed, arrived) = (Arc::clone(&gate), Arc::clone(&held));
        server.set_faults(move |call| match call.verb == "patch" && call.user_agent.starts_with("kubectl-glowplug/") {
            true if call.name.as_deref() == Some("web-0") => {
                arrived.add_permits(1);
                Fault::Hold(Arc::clone(&closed))
            }
            _ => Fault::None,
        });
        let apply = [&command[..], &["--apply", &digest]].concat();
        let changed = async {
            held.acquire().await.unwrap().forget();
            let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
            match change.get("status") {
                Some(_) => shop.vms.patch_status("web-0", &params, &patch).await.unwrap(),
                None => shop.vms.patch("web-0", &params, &patch).await.unwrap(),
            };
            gate.add_permits(Semaphore::MAX_PERMITS / 2);
        };
        let ((_, answer), ()) = tokio::join!(plugin.json(&apply), changed);
        assert_eq!(answer["writes"][1]["outcome"], outcome, "{change}");
    }
}

#[tokio::test]
async fn adopt_prints_the_outcome_of_each_write_and_the_command_that_removes_the_record() {
    let command = ["adopt", "--file", POOL, "shop/db-0", "shop/free-0", "shop/web-0"];
    let refused = "the object has changed: run the command again";
    for (fault, outcomes, status_of_second, has_second) in [
        (Fault::Status(409), ["written", "failed", "written"], Some(refused), false),
        (Fault::Status(503), ["written", "unknown", "planned"], None, false),
        (Fault::LostAnswer, ["written", "unknown", "planned"], None, true),
    ] {
        let (server, cluster) = start_server().await;
        let shop = Shop::new(&cluster).await;
        shop.run("free-0", &json!(["192.168.1.40"])).await;
        let plugin = Plugin::new(cluster.config());
        let digest = digest_of(&plugin, &command).await;
        let second = fault.clone();
        server.set_faults(move |call| match call.verb == "patch" && call.user_agent.starts_with("kubectl-glowplug/") {
            true if call.name.as_deref() == Some("free-0") => second.clone(),
            _ => Fault::None,
        });
        let apply = [&command[..], &["--apply", &digest]].concat();
        let (status, answer) = plugin.json(&apply).await;
        let writes = answer["writes"].as_array().unwrap();
        let found: Vec<&str> = writes.iter().map(|write| write["outcome"].as_str().unwrap()).collect();
        assert_eq!((status, found), (Some(1), outcomes.to_vec()));
        let repeated = plugin.command_line(&command).replacen(" --kubeconfig", " --json --kubeconfig", 1);
        let again =
            format!("some changes are not written: remove each problem, then run the command again: {repeated}");
        assert_eq!(answer["next"], json!([again]));
        let problem = writes[1]["problem"].as_str().unwrap();
        match status_of_second {
            Some(expected) => assert_eq!(problem, expected),
            None => assert!(problem.ends_with(": the API server may have stored the change"), "{problem}"),
        }
        for write in writes {
            let name = write["object"].as_str().unwrap().split_once('/').unwrap().1;
            let undo = format!(
                "{} annotate virtualmachines.kubevirt.io {name} -n shop ipam.glowplug.dev/network-eno101- {ANNOTATION}-",
                plugin.kubectl()
            );
            assert_eq!(write["undo"], json!(undo));
        }
        assert_eq!(shop.annotation("db-0").await.as_deref(), Some(r#"["192.168.1.12/24"]"#));
        assert_eq!(shop.annotation("free-0").await.is_some(), has_second);
    }
}

/// The option `--namespace` limits the command to the objects that a controller with this option sees. In kubectl, the
/// option has another meaning.
#[tokio::test]
async fn adopt_with_the_option_namespace_prints_the_next_step_for_a_pool_of_this_namespace() {
    let (_server, cluster) = start_server().await;
    let shop = Shop::new(&cluster).await;
    let plugin = Plugin::new(cluster.config());
    let next = |(status, answer): (Option<i32>, Value)| (status, answer["next"].clone());
    let json_line = |command: &[&str]| plugin.command_line(&[command, &["--json"]].concat());
    // For a pool in a file, the last step is to create the pool after all decisions about machines.
    let of_file = ["adopt", "--file", POOL, "shop/old-0"];
    let expected = json!([
        "decide about shop/old-0: the reason of each machine says why",
        format!("when no machine needs a decision any more, create pool shop/machines in this cluster, from {POOL}"),
    ]);
    assert_eq!(next(plugin.json(&of_file).await), (Some(1), expected));
    let wrong = "error: --namespace: \"other\" is not the namespace of pool shop/machines, expected the value of the \
                 controller's own option --namespace, or no option if the controller has none\n";
    let of_other = ["adopt", "--file", POOL, "--namespace", "other"];
    assert_eq!(plugin.run(&of_other).await, (Some(1), String::new(), wrong.to_owned()));

    let pool = json!({
        "apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool",
        "metadata": {"namespace": "shop", "name": "machines"},
        "spec": {
            "network": "infra/vlan10", "addresses": ["192.168.1.8/29"], "machineNetwork": [{"cidr": "192.168.1.0/24"}],
            "machineSelector": {"matchLabels": {"network": "vlan10"}},
        },
    });
    let pool: StaticIPPool = serde_json::from_value(pool).unwrap();
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), "shop");
    pools.create(&PostParams::default(), &pool).await.unwrap();
    let of_other = ["adopt", "--pool", "shop/machines", "--namespace", "other", "--apply", "x"];
    assert_eq!(plugin.run(&of_other).await, (Some(1), String::new(), wrong.to_owned()));
    let command = ["adopt", "--pool", "shop/machines", "shop/db-0", "shop/web-0", "--namespace", "shop"];
    let digest = digest_of(&plugin, &command).await;
    let planned = json!([format!("write the records: {} --apply {digest}", json_line(&command))]);
    assert_eq!(next(plugin.json(&command).await), (Some(0), planned));
    let left = "left alone: shop/db-0, shop/web-0. To give a machine its address of the pool, remove its annotation \
                ipam.glowplug.dev/left-alone, then restart the machine";
    let applied = plugin.json(&[&command[..], &["--apply", &digest]].concat()).await;
    assert_eq!(next(applied), (Some(0), json!([left])));
    let kept = pools.get("machines").await.unwrap().spec.pre_allocations;
    let expected = [("shop/db-0", "192.168.1.12"), ("shop/web-0", "192.168.1.10")];
    assert_eq!(kept, expected.map(|(name, address)| (name.to_owned(), address.to_owned())).into());
    assert_eq!(shop.annotation("db-0").await, None);
}

#[tokio::test]
async fn a_plan_reads_several_files_and_folders_and_compares_mac_pools() {
    let (_server, cluster) = start_server().await;
    Shop::new(&cluster).await;
    let plugin = Plugin::new(cluster.config());
    let macs = |name: &str, last: &str| {
        let spec = json!({"ranges": [format!("02:00:00:00:00:00-02:00:00:00:00:{last}")], "namespaces": ["shop"]});
        json!({"apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "MACPool", "metadata": {"name": name}, "spec": spec})
    };
    let stored: MACPool = serde_json::from_value(macs("a", "0f")).unwrap();
    Api::<MACPool>::all(cluster.client()).create(&PostParams::default(), &stored).await.unwrap();
    let (first, second) = (plugin.file("a.json", &macs("a", "0f")), plugin.file("b.json", &macs("b", "1f")));
    let (status, output, errors) = plugin.run(&["plan", POOL, &first, &second]).await;
    let expected = "\
        POOL           CHANGE  ANSWER\n\
        shop/machines  create  accepted\n\
        MACPool a      none    unchanged\n\
        MACPool b      create  rejected\n\n\
        REJECTED   ERROR\n\
        MACPool b  MACPools a and b both have 02:00:00:00:00:00-02:00:00:00:00:0f, expected no common address\n\n";
    assert_eq!((status, &*errors, &output[..expected.len()]), (Some(1), "", expected));
    let changed = plugin.file("a.json", &macs("a", "ff"));
    let (status, answer) = plugin.json(&["plan", &changed]).await;
    let pool = json!({"pool": "a", "change": "update", "errors": [], "warnings": []});
    assert_eq!((status, &answer["pools"], &answer["macPools"]), (Some(0), &json!([]), &json!([pool])));
    let folder = std::path::Path::new(POOL).parent().unwrap().to_str().unwrap();
    let (status, answer) = plugin.json(&["plan", folder]).await;
    assert_eq!(
        (status, &answer["pools"][0]["pool"], &answer["macPools"]),
        (Some(0), &json!("shop/machines"), &json!([]))
    );
}

#[tokio::test]
async fn an_audit_reads_only_secrets_to_which_a_machine_refers() {
    let (server, cluster) = start_server().await;
    Shop::new(&cluster).await;
    let plugin = Plugin::new(cluster.config());
    let name = "glowplug-db-0-0123456789abcdef";
    let annotations = json!({"ipam.glowplug.dev/machine": "VirtualMachine/shop/db-0/1"});
    let labels = json!({"app.kubernetes.io/managed-by": "glowplug"});
    let secret = json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations}, "stringData": {"networkdata": "{}"},
    });
    let secret: Secret = serde_json::from_value(secret).unwrap();
    Api::namespaced(cluster.client(), "shop").create(&PostParams::default(), &secret).await.unwrap();
    server.take_calls();
    let (_, answer) = plugin.json(&["audit"]).await;
    assert_eq!((&answer["findings"], &answer["notCompared"]), (&json!([]), &json!([])));
    let of_secrets = server.take_calls().into_iter().filter(|call| call.plural == "secrets");
    assert_eq!(of_secrets.map(|call| call.verb).collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test]
async fn the_plugin_reads_a_secret_that_a_user_has_written_only_if_a_pool_can_have_its_address() {
    let (server, cluster) = start_server().await;
    let shop = Shop::new(&cluster).await;
    let create = async |name: &str, network: &str, address: &str| {
        let entry =
            json!({"id": "a", "type": "ipv4", "link": "eth0", "ip_address": address, "netmask": "255.255.255.0"});
        let document = json!({"links": [{"id": "eth0", "type": "phy"}], "networks": [entry]}).to_string();
        let data = json!({"networkdata": ByteString(document.into_bytes())});
        let secret: Secret = serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap();
        Api::namespaced(cluster.client(), "shop").create(&PostParams::default(), &secret).await.unwrap();
        let volumes = json!([{"name": "c", "cloudInitNoCloud": {"networkDataSecretRef": {"name": name}}}]);
        let networks = json!([{"name": "net1", "multus": {"networkName": network}}]);
        let devices = json!({"interfaces": [{"name": "net1", "bridge": {}}]});
        let spec = json!({"networks": networks, "domain": {"devices": devices}, "volumes": volumes});
        let vm = json!({"metadata": {"name": name}, "spec": {"template": {"spec": spec}}});
        shop.vms.create(&PostParams::default(), &object(VIRTUAL_MACHINE, vm)).await.unwrap();
    };
    // No pool selects these machines. The first one is on the network of the pool.
    create("mine", "infra/vlan10", "192.168.1.20").await;
    create("elsewhere", "infra/vlan20", "192.168.1.21").await;
    let plugin = Plugin::new(cluster.config());
    server.take_calls();
    let (_, planned) = plugin.json(&["plan", POOL]).await;
    assert_eq!(planned["pools"][0]["room"][0]["free"], "37");
    let (_, adopted) = plugin.json(&["adopt", "--file", POOL]).await;
    let row = json!({"address": "192.168.1.20", "network": "infra/vlan10", "state": "byRecord", "object": "shop/mine"});
    assert_eq!(adopted["reserved"][2], row);
    let of_secrets = server.take_calls().into_iter().filter(|call| call.plural == "secrets");
    assert_eq!(of_secrets.filter_map(|call| call.name).collect::<Vec<_>>(), ["mine", "mine"]);
    let rules = [
        ("ipam.glowplug.dev", &["*"][..], &["list"][..]),
        ("kubevirt.io", &["*"], &["list"]),
        ("infrastructure.cluster.x-k8s.io", &["*"], &["list"]),
        ("hypershift.openshift.io", &["*"], &["list"]),
        ("ipam.cluster.x-k8s.io", &["*"], &["list"]),
        ("cluster.x-k8s.io", &["*"], &["list"]),
        ("k8s.cni.cncf.io", &["*"], &["list"]),
        ("", &["namespaces", "services"], &["get", "list"]),
    ];
    allow(&cluster, "eve", &rules).await;
    let (status, planned) = Plugin::of_user(cluster.config(), Some("eve")).json(&["plan", POOL]).await;
    let rights = json!(["get secrets in namespace shop"]);
    assert_eq!((status, &planned["missingRights"]), (Some(1), &rights));
}

#[tokio::test]
async fn no_string_in_an_object_can_control_the_terminal() {
    let (_server, cluster) = start_server().await;
    let shop = Shop::new(&cluster).await;
    let plugin = Plugin::new(cluster.config());
    let hostile = "\u{1b}[2J\u{9b}31m\u{202e}10.0.0.1";
    merge(&shop.vms, "db-0", &json!({"metadata": {"annotations": {(ANNOTATION): hostile}}})).await;
    shop.report("web-0", &format!("Run{hostile}"), &json!([])).await;
    let (printed, json) = (r"\u{1b}[2J\u{9b}31m\u{202e}10.0.0.1", r"\u001b[2J\u009b31m\u202e10.0.0.1");
    let phase = |printed: &str| format!("Run{printed}");
    let adopt = ["adopt", "--file", POOL, "--json"];
    for (command, status, expected) in [
        (&["audit"][..], 1, format!(r#"invalid address "{printed}""#)),
        (&["audit", "--json"], 1, format!(r#"invalid address \"{}\""#, printed.replace('\\', r"\\"))),
        (&adopt[..3], 1, phase(printed)),
        (&adopt, 1, phase(json)),
        (&["why", "shop/web-0"], 0, phase(printed)),
        (&["plan", POOL], 0, "accepted".to_owned()),
    ] {
        let (exit, output, errors) = plugin.run(command).await;
        let acts = |c: char| c != '\n' && glowplug::terminal::acts_on_terminal(c);
        assert!(!output.contains(acts), "{output}");
        assert_eq!((exit, &*errors, output.contains(&expected)), (Some(status), "", true), "{command:?} {output}");
    }
}

// === plans ===

#[tokio::test]
async fn a_plan_lists_errors_warnings_addresses_in_use_and_the_number_of_missing_addresses() {
    let (_server, cluster) = start_server().await;
    let plugin = Plugin::new(cluster.config());
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/30"]).await;
    let installed = Installed::start(&cluster).await;
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 2).await;
    hosted.until_running("workers-0").await;
    hosted.until_running("workers-1").await;
    installed.stop().await;
    hosted.scale("workers", 3).await;
    let held = hosted.held().await;
    let [(first, holder), (second, other)] = [held[0].clone(), held[1].clone()];
    let id = |name: &str| format!("{}/{name}", hosted.clusters);
    let pool = |name: &str, spec: PoolSpec| {
        json!({
            "apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": "StaticIPPool",
            "metadata": {"namespace": hosted.clusters, "name": name}, "spec": spec,
        })
    };
    // The first pool loses its addresses, its gateway is the address of a machine, and one address is missing. The
    // second pool overlaps the first pool.
    let changed = PoolSpec { gateway: vec![second.clone()], ..hosted.spec("workers", &["10.0.0.200/32"]) };
    let overlapping = PoolSpec { node_pool_ref: None, ..hosted.spec("other", &["10.0.0.200/32"]) };
    let items = json!({"kind": "List", "items": [pool("workers", changed), pool("other", overlapping)]});
    let file = plugin.file("pools.yaml", &items);
    let (status, answer) = plugin.json(&["plan", &file]).await;
    let uid = hosted.machines.get(&other).await.unwrap().metadata.uid.unwrap();
    assert_eq!(
        answer["pools"][0],
        json!({
            "pool": id("workers"), "change": "update", "errors": [],
            "warnings": [format!(
                "pool {} no longer allocates these addresses, which stay with their holders: {first}, {second} (holders: 2)",
                id("workers"),
            )],
            "outside": [
                {"address": first, "holder": format!("KubevirtMachine {}/{holder}", hosted.namespace)},
                {"address": second, "holder": format!("KubevirtMachine {}/{other}", hosted.namespace)},
            ],
            "inUse": [{
                "address": second, "why": "gateway", "state": "allocated",
                "user": format!("eno101 of {}/{other} ({uid})", hosted.namespace),
            }],
            "conflicts": [],
            "room": [{
                "family": "IPv4", "total": "1", "free": "1", "held": "2", "needed": "4",
                "because": "replicas 3 + maxSurge 1", "lacking": "1",
            }],
        })
    );
    let other = &answer["pools"][1];
    let overlap = format!(
        "pools {} and {} offer the same addresses of network {}: 10.0.0.200",
        id("workers"),
        id("other"),
        hosted.network
    );
    assert_eq!((status, &other["change"], &other["errors"]), (Some(1), &json!("create"), &json!([overlap])));
    // A plan for an unchanged pool contains no change.
    let file = plugin.file("same.yaml", &pool("workers", hosted.spec("workers", &["10.0.0.8/30"])));
    let (status, answer) = plugin.json(&["plan", &file]).await;
    assert_eq!((status, &answer["pools"][0]["change"]), (Some(0), &json!("none")));
    let mut elsewhere = pool("workers", hosted.spec("workers", &["10.0.0.8/30"]));
    elsewhere["metadata"]["namespace"] = "nowhere".into();
    let file = plugin.file("elsewhere.yaml", &elsewhere);
    let (status, answer) = plugin.json(&["plan", &file]).await;
    let absent = r#"metadata.namespace: "nowhere" does not exist, expected a namespace of the cluster"#;
    assert_eq!((status, &answer["pools"][0]["errors"]), (Some(1), &json!([absent])));
    let adopt = format!("error: pool nowhere/workers would be rejected: {absent}\n");
    assert_eq!(plugin.run(&["adopt", "--file", &file]).await, (Some(1), String::new(), adopt));
}

#[tokio::test]
async fn a_plan_names_refused_machines_unreadable_documents_and_missing_rights() {
    let (_server, cluster) = start_server().await;
    let shop = Shop::new(&cluster).await;
    shop.run("gw-0", &json!(["192.168.1.1"])).await;
    let plugin = Plugin::new(cluster.config());
    let pool = |kind: &str, name: &str, addresses: &str| {
        let spec = json!({
            "network": "infra/vlan10", "addresses": [addresses], "gateway": ["192.168.1.1"],
            "machineNetwork": [{"cidr": "192.168.1.0/24"}], "machineSelector": {"matchLabels": {"network": "vlan10"}},
        });
        let metadata = json!({"namespace": "shop", "name": name});
        json!({"apiVersion": "ipam.glowplug.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let first = || pool("StaticIPPool", "a", "192.168.1.10-192.168.1.20");
    let items = [pool("StaticIpPool", "x", ""), first(), pool("StaticIPPool", "b", "192.168.1.30-192.168.1.39")];
    let file = plugin.file("pools.yaml", &json!({"kind": "List", "items": items}));
    let selector = "machineSelector: the same selector has pool shop/a on network infra/vlan10 already, expected one pool, or different \
                    values of priority";
    let machines = "new machines in namespace shop with network=vlan10, shop/db-0, shop/gw-0, shop/old-0, shop/web-0";
    let refused = "pools shop/a and shop/b both select the machine for network infra/vlan10, expected one pool, or different values \
                   of priority";
    let text = format!(
        "POOL    CHANGE  ANSWER\n\
         shop/a  create  accepted\n\
         shop/b  create  accepted\n\
         \n\
         NOT READ  ERROR\n\
         items[0]  kind: unknown \"StaticIpPool\", expected StaticIPPool, GlobalStaticIPPool or MACPool\n\
         \n\
         POOL    WARNING\n\
         shop/b  {selector}\n\
         \n\
         REFUSED{blanks}  POOLS           MESSAGE\n\
         {machines}  shop/a, shop/b  {refused}\n\
         \n\
         IN USE       POOL    RESERVED AS  STATE     USER\n\
         192.168.1.1  shop/a  gateway      byReport  VirtualMachineInstance shop/gw-0\n\
         192.168.1.1  shop/b  gateway      byReport  VirtualMachineInstance shop/gw-0\n\
         \n\
         ROOM    FAMILY  TOTAL  FREE  HELD  NEEDED  LACKING  BECAUSE\n\
         shop/a  IPv4    11     9     0     0       0        machines 0\n\
         shop/b  IPv4    10     10    0     0       0        machines 0\n",
        blanks = " ".repeat(machines.len() - "REFUSED".len()),
    );
    assert_eq!(plugin.run(&["plan", &file]).await, (Some(1), text, String::new()));
    // This user has only the rights to list the kinds of the controller and to get Namespaces.
    allow(&cluster, "eve", &[("ipam.glowplug.dev", &["*"], &["list"]), ("", &["namespaces"], &["get"])]).await;
    let file = plugin.file("pool.yaml", &first());
    let (status, answer) = Plugin::of_user(cluster.config(), Some("eve")).json(&["plan", &file]).await;
    let rights: Vec<&str> = answer["missingRights"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(rights.first(), Some(&"list nodepools.hypershift.openshift.io in every namespace"));
    let room = json!([{
        "family": "IPv4", "total": "11", "free": "11", "held": null, "needed": null, "lacking": null,
        "because": format!("missing rights: {}", rights.join("; ")),
    }]);
    assert_eq!((status, &answer["pools"][0]["room"], &answer["refused"]), (Some(1), &room, &json!([])));
}

#[tokio::test]
async fn the_commands_plan_status_and_why_report_why_a_machine_has_no_network_data() {
    let (_server, cluster) = start_server().await;
    let shop = Shop::new(&cluster).await;
    merge(&shop.vms, "web-0", &json!({"spec": {"template": {"spec": {"volumes": null}}}})).await;
    let plugin = Plugin::new(cluster.config());
    let volume = "spec.template.spec.volumes: no volume with cloudInitConfigDrive or cloudInitNoCloud, expected one for the addresses of \
                  shop/machines";
    let (status, answer) = plugin.json(&["plan", POOL]).await;
    let refused = json!([{"message": volume, "pools": ["shop/machines"], "machines": ["shop/web-0"]}]);
    assert_eq!((status, &answer["refused"]), (Some(1), &refused));
    let pool = json!({
        "metadata": {"namespace": "shop", "name": "machines"},
        "spec": {
            "network": "infra/vlan10", "addresses": ["192.168.1.8/29"], "machineNetwork": [{"cidr": "192.168.1.0/24"}],
            "machineSelector": {"matchLabels": {"network": "vlan10"}},
        },
    });
    let pool: StaticIPPool = serde_json::from_value(pool).unwrap();
    Api::namespaced(cluster.client(), "shop").create(&PostParams::default(), &pool).await.unwrap();
    // The interface of db-0 waits for a MAC address. The guest of old-0 comes from another cluster.
    let label = json!({"labels": {"ipam.glowplug.dev/mac-addresses": "required"}});
    merge(&shop.vms, "db-0", &json!({"spec": {"template": {"metadata": label}}})).await;
    merge(&shop.vms, "old-0", &json!({"spec": {"runStrategy": "WaitAsReceiver"}})).await;
    let of =
        |name: &str, reason: &str, what_to_do: &str| (format!("shop/{name}"), reason.to_owned(), what_to_do.to_owned());
    let expected = [
        of(
            "db-0",
            "interface net1 has no MAC address",
            "look whether a MACPool serves the machine and has free addresses: kubectl glowplug status",
        ),
        of(
            "old-0",
            "the guest comes from another cluster",
            "nothing: the machine gets its address when its run strategy changes",
        ),
        of("web-0", volume, "add the volume to spec.template, then restart the machine if its guest runs"),
    ];
    let (_, summary) = plugin.json(&["status"]).await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let waiting = summary["waiting"].as_array().unwrap();
    let mut rows: Vec<_> = waiting.iter().map(|it| (text(&it["object"]), text(&it["reason"]))).collect();
    rows.sort();
    assert_eq!(rows, expected.clone().map(|(object, reason, _)| (object, reason)));
    for expected in expected {
        let (status, answer) = plugin.json(&["why", &expected.0]).await;
        assert_eq!((status, &answer["state"]), (Some(0), &json!("waiting")));
        assert_eq!((text(&answer["machine"]), text(&answer["reason"]), text(&answer["whatToDo"])), expected);
    }
}

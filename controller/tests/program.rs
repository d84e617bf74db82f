//! Tests the program as a process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use glowplug_controller::kinds::virtual_machine::MACHINES_LABEL;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::support::controller::Site;
use crate::support::hosted::{Hosted, poll};
use crate::support::http::get;
use crate::support::manifests::webhooks_at;
use crate::support::program::Program;
use crate::support::replica::configurations;
use crate::support::scenarios::shared::{Shared, create, label};
use crate::support::server::{Call, Fault, Server};
use crate::support::{CONTROLLER, Cluster, SYSTEM, start_server};

/// Starts the program for a server, with the rights of its service account.
async fn start(server: &Server, folder: &TempDir) -> Program {
    Program::start(Cluster::of(server).await.config(), folder.path(), "")
}

#[tokio::test]
async fn after_a_signal_a_leading_program_becomes_unready_and_then_ends() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let mut program = start(&server, &folder).await;
    let diagnostics = program.diagnostics;
    program.until("serving").await;
    while !get(diagnostics, "/metrics", None).await.1.contains("glowplug_leading 1\n") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    program.until_ready().await;

    program.send("-TERM");
    program.until("stopping").await;
    assert_eq!(
        get(diagnostics, "/readyz", None).await,
        (hyper::StatusCode::SERVICE_UNAVAILABLE, "the program is ending\n".to_owned())
    );
    assert_eq!(get(diagnostics, "/healthz", None).await.0, 200);

    program.until_ended().await;
    let config = kube::Config::new(server.url().parse().unwrap());
    let leases: Api<Lease> = Api::namespaced(glowplug_controller::cluster::client::connect(config).unwrap(), SYSTEM);
    assert_eq!(leases.get("glowplug-controller").await.unwrap().spec.unwrap().holder_identity, None);
}

#[tokio::test]
async fn controllers_of_two_namespaces_lead_at_the_same_time() {
    let (server, one, other) = (Server::start().await, tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cluster = Cluster::of(&server).await;
    let start = |(namespace, folder): (&str, &TempDir)| Program::start(cluster.config(), folder.path(), namespace);
    let _programs = [("a", &one), ("b", &other)].map(start);
    let leases: Api<Lease> = Api::namespaced(cluster.client(), SYSTEM);
    poll("two leaders", async || {
        let leases = leases.list(&ListParams::default()).await.unwrap();
        let holders = leases.items.into_iter().filter_map(|lease| lease.spec?.holder_identity);
        (holders.collect::<BTreeSet<String>>().len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn no_replica_works_before_the_cluster_has_the_crds_of_its_version() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let cluster = Cluster::of(&server).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let name = "staticippools.ipam.glowplug.dev";
    let current = definitions.get(name).await.unwrap();
    let mut earlier = current.clone();
    let schema = earlier.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
    spec.properties.as_mut().unwrap().remove("excludedAddresses").unwrap();
    definitions.replace(name, &PostParams::default(), &earlier).await.unwrap();

    let mut program = Program::start(cluster.config(), folder.path(), "");
    let diagnostics = program.diagnostics;
    let waiting = program.until("waiting for the definitions of this version: apply the manifests of this version, or the output of `glowplug-controller crd`").await;
    assert_eq!(waiting["problem"], format!("definition {name} has no v1alpha1.spec.excludedAddresses"));
    assert_eq!(get(diagnostics, "/readyz", None).await.0, 503);
    assert!(get(diagnostics, "/metrics", None).await.1.contains("glowplug_leading 0\n"));

    let version = definitions.get(name).await.unwrap().metadata.resource_version;
    let current =
        CustomResourceDefinition { metadata: ObjectMeta { resource_version: version, ..current.metadata }, ..current };
    definitions.replace(name, &PostParams::default(), &current).await.unwrap();
    program.until("leadership changed").await;
    program.until_ready().await;
    program.send("-TERM");
    program.until_ended().await;
}

/// When the program stops, a pass waits for a response, and events wait until they are published.
#[tokio::test]
async fn the_log_line_about_the_end_of_the_program_follows_all_lines_about_machines() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let cluster = Cluster::of(&server).await;
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/29"]).await;
    let (gate, reads) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (Arc::clone(&gate), Arc::clone(&reads));
    server.set_faults(move |call| match (call.verb, call.plural.as_str()) {
        ("get", "secrets") if call.user == CONTROLLER => {
            count.fetch_add(1, Ordering::SeqCst);
            Fault::Hold(Arc::clone(&held))
        }
        ("create", "events") if call.user == CONTROLLER => Fault::Status(500),
        _ => Fault::None,
    });
    let mut program = Program::start(cluster.config(), folder.path(), "");
    program.until("serving").await;
    hosted.kubevirt.be_late();
    hosted.scale("workers", 3).await;
    poll("a pass of a machine", async || (reads.load(Ordering::SeqCst) >= 1).then_some(())).await;
    program.send("-TERM");
    program.until("stopping").await;
    program.until_ended().await;
    gate.add_permits(Semaphore::MAX_PERMITS / 2);
}

#[tokio::test]
async fn without_the_right_to_list_namespaces_leases_are_kept_and_the_pool_and_the_log_say_why() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let cluster = Cluster::of(&server).await;
    let (blue, site) = (Hosted::plain(&cluster).await, Site::new(&cluster).await);
    let key = format!("example.com/{}", blue.namespace);
    label(&cluster, &blue, &key, json!("true")).await;
    let members = json!({"namespaceSelector": {"matchLabels": {key.clone(): "true"}}});
    let shared = Shared::new(&cluster, &blue, &["10.0.0.8/30"], members).await;
    site.pool("p", &["10.0.5.8/30"]).await;
    let mut program = Program::start(cluster.config(), folder.path(), "");
    create(&blue, "a").await;
    assert_eq!(blue.address_of("a").await, "10.0.0.8");
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let is_labelled =
        async || namespaces.get(&blue.namespace).await.unwrap().labels().contains_key(MACHINES_LABEL).then_some(());
    poll("the label of the namespace", is_labelled).await;
    program.send("-TERM");
    program.until("ended").await;

    let is_list = |call: &Call| call.plural == "namespaces" && matches!(call.verb, "list" | "watch");
    server.set_faults(move |call| match call.user == CONTROLLER && is_list(call) {
        true => Fault::Status(403),
        false => Fault::None,
    });
    let mut program = Program::start(cluster.config(), folder.path(), "");
    program.until("has no right to list and watch Namespaces: pools with namespaceSelector allocate nothing").await;
    let unknown = "The controller has no right to list and watch Namespaces, so the pool selects no machine and allocates nothing";
    assert_eq!(shared.until_condition("NamespacesListed", "False").await, ["Forbidden", unknown]);
    assert_eq!(shared.until_condition("Ready", "False").await, ["NamespacesUnknown", unknown]);
    // Meanwhile, claims on another pool are served. So the leader has also had the time to process the new machine.
    create(&blue, "b").await;
    for (name, address) in [("x", "10.0.5.8"), ("y", "10.0.5.9")] {
        site.claim(name, &json!({})).await;
        assert_eq!(site.address_of(name).await, address);
    }
    assert_eq!(blue.held().await, [("10.0.0.8".to_owned(), "a".to_owned())]);
    is_labelled().await.unwrap();
    let pool = shared.pools.get(&shared.name).await.unwrap().status.unwrap();
    assert_eq!(pool.waiting, 0);
    program.send("-TERM");
    program.until("ended").await;

    server.set_faults(|_| Fault::None);
    let _program = Program::start(cluster.config(), folder.path(), "");
    assert_eq!(blue.address_of("b").await, "10.0.0.9");
    assert_eq!(shared.until_condition("NamespacesListed", "True").await[0], "Listed");
}

#[tokio::test]
async fn a_program_that_waits_for_its_crds_ends_after_a_signal() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let cluster = Cluster::of(&server).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let name = "staticipleases.ipam.glowplug.dev";
    definitions.delete(name, &DeleteParams::default()).await.unwrap();
    let mut program = Program::start(cluster.config(), folder.path(), "");
    let waiting = program.until("waiting for the definitions of this version: apply the manifests of this version, or the output of `glowplug-controller crd`").await;
    assert_eq!(waiting["problem"], format!("definition {name} does not exist"));
    program.send("-TERM");
    program.until_ended().await;
}

#[tokio::test]
async fn the_log_says_why_the_definitions_could_not_be_read() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let cluster = Cluster::of(&server).await;
    server.set_faults(|call| match call.user == CONTROLLER {
        true => Fault::Status(401),
        false => Fault::None,
    });
    let mut program = Program::start(cluster.config(), folder.path(), "");
    let waiting = program.until("waiting for the API server: the definitions could not be read").await;
    let expected =
        "definition globalstaticippools.ipam.glowplug.dev: the API server answered 401 Fault: a fault of the test";
    assert_eq!(waiting["problem"], expected);
    server.set_faults(|_| Fault::None);
    program.until("leadership changed").await;
    program.until_ready().await;
    program.send("-TERM");
    program.until_ended().await;
}

#[tokio::test]
async fn claims_are_served_after_etcd_is_restored_from_a_backup_while_the_program_runs() {
    let (server, cluster) = start_server().await;
    let folder = tempfile::tempdir().unwrap();
    let site = Site::new(&cluster).await;
    site.pool("p", &["10.0.0.8/30"]).await;
    let mut program = Program::start(cluster.config(), folder.path(), "");
    site.claim("a", &json!({})).await;
    assert_eq!(site.address_of("a").await, "10.0.0.8");
    let backup = server.backup();
    site.claim("lost", &json!({})).await;
    assert_eq!(site.address_of("lost").await, "10.0.0.9");
    let elections: Api<Lease> = Api::namespaced(cluster.client(), SYSTEM);
    let version = async || elections.get("glowplug-controller").await.unwrap().resource_version();
    let earlier = version().await;
    poll("a renewal of the Lease", async || (version().await != earlier).then_some(())).await;
    server.restore(backup);
    // The new claim has a lower version than the versions that the watches of the program know.
    site.claim("b", &json!({})).await;
    assert_eq!(site.address_of("b").await, "10.0.0.9");
    program.until_ready().await;
    let lease = "the Lease is not as this replica wrote it: the objects of the cluster may be older than before";
    program.until(lease).await;
}

#[tokio::test]
async fn a_second_signal_stops_the_program_at_once() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let mut program = start(&server, &folder).await;
    program.until("leadership changed").await;
    program.send("-TERM");
    program.until("stopping").await;
    program.send("-INT");
    assert_eq!(program.status().await, Some(1));
}

#[tokio::test]
async fn a_kubeconfig_file_that_does_not_exist_is_an_error() {
    let program = |file: &'static str| async move {
        let output = Command::new(env!("CARGO_BIN_EXE_glowplug-controller"))
            .args(["run", "--kubeconfig", file])
            .output()
            .await
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap().lines().next().map(str::to_owned))
    };
    assert_eq!(
        program("/nowhere").await,
        (Some(1), Some("Error: reading /nowhere: No such file or directory (os error 2)".to_owned()))
    );
}

/// Reads the log up to the line about a machine whose message starts with `last`. Returns level and fields of each line
/// that names the machine. Values that differ between runs are replaced, and equal lines in a row become one line.
async fn lines_of(program: &mut Program, machine: &str, last: &str) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    loop {
        let mut line = program.line().await;
        if !line.to_string().contains(machine) {
            continue;
        }
        let mut fields = line["fields"].take();
        for (name, member) in fields.as_object_mut().unwrap() {
            match name.as_str() {
                "uid" => *member = "UID".into(),
                "waited_seconds" => *member = member.as_f64().is_some().into(),
                _ => {}
            }
        }
        let is_last = fields["message"].as_str().unwrap().starts_with(last);
        let line = json!([line["level"], fields]);
        if found.last() != Some(&line) {
            found.push(line);
        }
        if is_last {
            return found;
        }
    }
}

#[tokio::test]
async fn the_log_has_each_step_of_a_machine_once_with_the_name_of_the_machine() {
    let (server, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let cluster = Cluster::of(&server).await;
    let hosted = Hosted::new(&cluster).await;
    hosted.be_slow_to_retry();
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/32"]).await;
    let mut program = Program::start(cluster.config(), folder.path(), "");
    program.until("started").await;
    program.until_ready().await;
    let kind = "MutatingWebhookConfiguration";
    let configuration = webhooks_at(kind, &format!("https://{}", program.webhooks), &program.roots);
    let configuration = serde_json::from_value(configuration).unwrap();
    configurations(&cluster, kind).create(&PostParams::default(), &configuration).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    poll("the label for the webhook", async || {
        namespaces.get(&hosted.namespace).await.unwrap().labels().contains_key(MACHINES_LABEL).then_some(())
    })
    .await;
    hosted.scale("workers", 1).await;
    hosted.until_running("workers-0").await;
    hosted.until_condition("workers", "Exhausted").await;

    let machine = format!("{}/workers-1", hosted.namespace);
    hosted.scale("workers", 2).await;
    let mut story = lines_of(&mut program, &machine, "refused").await;
    hosted.until_refused("workers-1").await;
    hosted.resize("workers", &["10.0.0.8/31"]).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    let secret = hosted.secret_name("workers-1").await;
    hosted.scale("workers", 1).await;
    story.extend(lines_of(&mut program, &machine, "Released").await);

    let line = |level: &str, message: &str, others: Value| {
        let mut fields = json!({"message": message, "machine": machine});
        json_patch::merge(&mut fields, &others);
        json!([level, fields])
    };
    let allocated = json!({
        "uid": "UID", "reason": "IPAddressAllocated", "pools": format!("{}/workers", hosted.clusters),
        "networks": hosted.network, "waited_seconds": true,
    });
    let refused = format!(
        "refused a machine: No available IPs in pool for interface eno101: pool {}/workers, IPv4",
        hosted.clusters
    );
    let expected = [
        line("WARN", &refused, json!({})),
        line("INFO", "requesting that capk create the VirtualMachine again", json!({})),
        line("INFO", "allowed a machine and added a reference to its Secret", json!({})),
        line("INFO", "Allocated 10.0.0.9/16 to eno101", allocated),
        line("INFO", "deleted a Secret of a machine", json!({"secret": secret})),
        line("INFO", "Released 10.0.0.9 of eno101", json!({"uid": "UID", "reason": "IPAddressReleased"})),
    ];
    assert_eq!(story, expected);
}

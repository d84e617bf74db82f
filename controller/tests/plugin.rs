//! Tests the plugin of kubectl as a process.

use std::path::Path;

use kube::Config;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::hosted::{Hosted, poll};
use crate::support::installed::Installed;
use crate::support::program::kubeconfig;
use crate::support::start_server;

/// Writes a kubeconfig for an administrator, with a second context that leads nowhere.
fn write_kubeconfig(config: &Config, path: &Path) {
    let mut file = kubeconfig(config);
    file["users"][0]["user"].as_object_mut().unwrap().remove("as");
    let nowhere = json!({"name": "nowhere", "context": {"cluster": "absent", "user": "controller"}});
    file["contexts"].as_array_mut().unwrap().push(nowhere);
    std::fs::write(path, file.to_string()).unwrap();
}

/// Runs the plugin. Returns its exit status, its output and its errors.
async fn run(kubeconfig: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-glowplug"));
    let output = command.args(arguments).arg("--kubeconfig").arg(kubeconfig).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Runs the plugin, which succeeds and prints JSON.
async fn json(kubeconfig: &Path, arguments: &[&str]) -> Value {
    let (status, output, errors) = run(kubeconfig, &[arguments, &["--json"]].concat()).await;
    assert_eq!((status, &*errors), (Some(0), ""));
    serde_json::from_str(&output).unwrap()
}

#[tokio::test]
async fn the_plugin_of_kubectl_explains_pools_and_machines() {
    let (_server, cluster) = start_server().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    write_kubeconfig(cluster.config(), &file);
    assert_eq!(json(&file, &["status"]).await, json!({"version": 1, "pools": [], "macPools": []}));
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
    let answer = json(&file, &["why", &machine]).await;
    let since = answer["since"].clone();
    assert_eq!(
        (&answer["machine"], &answer["phase"], &answer["state"], &answer["whatToDo"]),
        (&json!(machine), &json!("Running"), &json!("allocated"), &Value::Null)
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
    let answer = json(&file, &["why", &format!("{}/workers-1", hosted.namespace)]).await;
    assert_eq!(
        (&answer["state"], &answer["reason"], &answer["addresses"]),
        (&json!("waiting"), &json!(message), &json!([]))
    );
    let (status, output, _) = run(&file, &["why", &machine]).await;
    let head: Vec<&str> = output.lines().next().unwrap().split_whitespace().collect();
    assert_eq!((status, head), (Some(0), vec!["MACHINE", "PHASE", "STATE", "SINCE"]));
    let of_pool = poll("the count of the pool", async || {
        let summary = json(&file, &["status"]).await;
        let pool = summary["pools"][0].clone();
        (pool["families"][0]["allocated"] == "1").then_some(pool)
    })
    .await;
    assert_eq!((&of_pool["name"], &of_pool["ready"], &of_pool["machines"]), (&json!(pool), &json!(true), &json!(1)));
    installed.stop().await;
}

#[tokio::test]
async fn the_plugin_of_kubectl_names_what_it_cannot_find() {
    let (_server, cluster) = start_server().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    write_kubeconfig(cluster.config(), &file);
    let failed = |error: &str| (Some(1), String::new(), format!("error: {error}\n"));
    assert_eq!(run(&file, &["why", "n/w"]).await, failed("n/w: neither a VirtualMachine nor a KubevirtMachine"));
    let (status, _, errors) = run(&file, &["why", "w"]).await;
    let line = "error: invalid value 'w' for '<NAMESPACE/NAME>': expected NAMESPACE/NAME of a machine";
    assert_eq!((status, errors.lines().next()), (Some(2), Some(line)));
    let context = run(&file, &["status", "--context", "nowhere"]).await;
    assert_eq!(context, failed("using the kubeconfig file: failed to load the cluster of context: absent"));
    let absent = folder.path().join("absent");
    let (status, _, errors) = run(&absent, &["status"]).await;
    let start = format!("error: reading {}: ", absent.display());
    assert_eq!((status, &errors[..start.len()]), (Some(1), &*start));
}

//! `make demo-controller`: shows the controller on the API server of the tests. Prints tables in the format of kubectl.
//!
//! If a UUID, a MAC address, a file with user data and an output file for the drive are given, the first machine has
//! this UUID, MAC address and user data, and its drive is written to the output file. `tests/boot` boots from this
//! drive.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "the objects come from the test, so their managed fields are readable")]

mod support;

use std::fs;
use std::path::PathBuf;

use glowplug_controller::kinds::pool::{StaticIPLease, StaticIPPool, definitions};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};

use support::controller::{Controller, Site};
use support::hosted::provider::PATCH_ANNOTATION;
use support::hosted::{Hosted, USER_DATA, poll};
use support::installed::Installed;
use support::{Cluster, start_server};

/// A column of a table: its name, and the path of its value.
type Column = (String, String);

/// Properties of the first machine.
struct Machine {
    uuid: String,
    mac: String,
    user_data: String,
    drive: PathBuf,
}

#[tokio::main]
async fn main() {
    let (_server, cluster) = start_server().await;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [uuid, mac, user_data, drive] => {
            let (uuid, mac, drive) = (uuid.clone(), mac.clone(), drive.into());
            let user_data = fs::read_to_string(user_data).unwrap();
            machines(&cluster, Some(Machine { uuid, mac, user_data, drive })).await;
        }
        _ => {
            claims_of_cluster_api(&cluster).await;
            machines(&cluster, None).await;
        }
    }
}

/// Shows claims of Cluster API, without machines.
async fn claims_of_cluster_api(cluster: &Cluster) {
    let site = Site::new(cluster).await;
    let mut controller = Controller::start(cluster, &site);
    controller.until_ready().await;

    say("A pool of two addresses.");
    run("kubectl apply -f pool.yaml");
    site.pool("workers", &["10.0.0.8-10.0.0.9"]).await;
    until_counted(&site, 2, 0).await;
    pools(&site).await;

    say("Three claims. The third one finds the pool exhausted and waits.");
    run("kubectl apply -f claims.yaml");
    for name in ["worker-0", "worker-1"] {
        claim(&site, name).await;
        site.address_of(name).await;
    }
    claim(&site, "worker-2").await;
    site.until_not_ready("worker-2", "PoolExhausted").await;
    until_counted(&site, 0, 1).await;
    claims(&site).await;
    pools(&site).await;
    events(cluster, &site).await;

    say("The pool grows by one address, and the waiting claim gets it.");
    run(r#"kubectl patch staticippool workers --type merge -p '{"spec":{"addresses":["10.0.0.8-10.0.0.10"]}}'"#);
    let grown = json!({"spec": {"addresses": ["10.0.0.8-10.0.0.10"]}});
    site.pools.patch("workers", &PatchParams::default(), &Patch::Merge(grown)).await.unwrap();
    assert_eq!(site.address_of("worker-2").await, "10.0.0.10");
    claims(&site).await;

    say("A fourth claim waits. A claim is deleted, and its address goes to the claim that waits.");
    run("kubectl apply -f worker-3.yaml");
    claim(&site, "worker-3").await;
    site.until_not_ready("worker-3", "PoolExhausted").await;
    run("kubectl delete ipaddressclaim worker-0");
    site.delete("worker-0").await;
    site.until_gone("worker-0").await;
    assert_eq!(site.address_of("worker-3").await, "10.0.0.8");
    claims(&site).await;
    addresses(&site).await;
    leases_of(cluster, &format!("{}/vlan10", site.namespace)).await;
}

/// Shows machines of a hosted cluster, from the NodePool to the config drive. The programs of the hosted cluster are
/// stand-ins.
async fn machines(cluster: &Cluster, first: Option<Machine>) {
    let clusters = cluster.namespace().await;
    let user_data = first.as_ref().map_or(USER_DATA, |machine| &machine.user_data);
    let mut hosted = Hosted::start(cluster, &clusters, "blue", user_data).await;
    hosted.network = "infra/vlan10".to_owned();
    let installed = Installed::start(cluster).await;

    say("A pool for the machines of NodePool workers, with two addresses of network infra/vlan10.");
    run("kubectl apply -f pool.yaml");
    let spec = json!({
        "network": "infra/vlan10", "addresses": ["192.168.1.100-192.168.1.101"], "gateway": ["192.168.1.1"],
        "nameservers": ["8.8.8.8", "8.8.4.4"], "machineNetwork": [{"cidr": "192.168.1.0/24"}],
        "nodePoolRef": {"name": "workers"},
    });
    let pool = StaticIPPool::new("workers", serde_json::from_value(spec).unwrap());
    hosted.pools.create(&PostParams::default(), &pool).await.unwrap();
    let of_vm = first.as_ref().map(|Machine { uuid, mac, .. }| {
        let interface = "/spec/template/spec/domain/devices/interfaces/0/macAddress";
        let patch = json!([
            {"op": "add", "path": interface, "value": mac},
            {"op": "add", "path": "/spec/template/spec/domain/firmware", "value": {"uuid": uuid}},
        ]);
        json!({"metadata": {"annotations": {PATCH_ANNOTATION: patch.to_string()}}})
    });
    hosted.node_pool("workers", 0, &of_vm.unwrap_or_else(|| json!({}))).await;
    installed.until_asked(&hosted, "workers").await;

    say(
        "HyperShift and its provider create a machine. The webhook adds a reference to a Secret, and KubeVirt waits for it.",
    );
    run("kubectl scale nodepool workers --replicas 1");
    hosted.scale("workers", 1).await;
    let drive = hosted.until_running("workers-0").await;
    if let Some(machine) = first {
        fs::write(machine.drive, drive.image()).unwrap();
        return installed.stop().await;
    }
    run("kubectl get virtualmachine workers-0 -o json | jq '.spec.template.spec.volumes[1]'");
    let vm = hosted.vms.get("workers-0").await.unwrap();
    println!("{:#}", vm.data["spec"]["template"]["spec"]["volumes"][1]);
    let secret = hosted.secret_name("workers-0").await;
    run(&format!("kubectl get secret {secret} -o json | jq '.data.networkdata | @base64d | fromjson'"));
    println!("{:#}", drive.document());

    say("The pool is exhausted by two machines. The third machine is refused, and its object says why.");
    run("kubectl scale nodepool workers --replicas 3");
    hosted.scale("workers", 2).await;
    hosted.until_running("workers-1").await;
    hosted.until_condition("workers", "Exhausted").await;
    hosted.scale("workers", 3).await;
    run("kubectl get kubevirtmachine workers-2 -o json | jq -r '.status.conditions[0].message'");
    println!("{}", hosted.until_refused("workers-2").await);

    say("The pool grows. The controller wakes up the machine, which gets its address.");
    run(
        r#"kubectl patch staticippool workers --type merge -p '{"spec":{"addresses":["192.168.1.100-192.168.1.110"]}}'"#,
    );
    hosted.resize("workers", &["192.168.1.100-192.168.1.110"]).await;
    assert_eq!(hosted.address_of("workers-2").await, "192.168.1.102");
    hosted.until_held(3).await;
    leases_of(cluster, &hosted.network).await;

    say("A smaller NodePool. An address is released when its guest has ended.");
    run("kubectl scale nodepool workers --replicas 2");
    hosted.scale("workers", 2).await;
    hosted.until_held(2).await;
    leases_of(cluster, &hosted.network).await;
    installed.stop().await;
}

fn say(text: &str) {
    println!("\n# {text}");
}

fn run(command: &str) {
    println!("\n$ {command}");
}

async fn claim(site: &Site, name: &str) {
    site.claim(name, &json!({"spec": {"poolRef": {"name": "workers"}}})).await;
}

/// Waits until the status of the pool has these counts.
async fn until_counted(site: &Site, free: i64, waiting: u32) {
    let is = |pool: Option<&glowplug_controller::kinds::pool::StaticIPPool>| {
        let status = pool.and_then(|pool| pool.status.as_ref());
        status.is_some_and(|status| {
            status.ip_addresses.is_some_and(|count| count.free == Some(free)) && status.waiting == waiting
        })
    };
    await_condition(site.pools.clone(), "workers", is).await.unwrap();
}

async fn pools(site: &Site) {
    run("kubectl get staticippools");
    print(&values(&site.pools).await, &columns_of("StaticIPPool"));
}

/// Prints the leases of a network. The other part of the demonstration uses another network of the same server.
async fn leases_of(cluster: &Cluster, network: &str) {
    run("kubectl get staticipleases");
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let of_network = |lease: &Value| lease["spec"]["network"] == network;
    let leases: Vec<Value> = values(&leases).await.into_iter().filter(of_network).collect();
    print(&leases, &columns_of("StaticIPLease"));
}

async fn claims(site: &Site) {
    let paths = [
        ("NAME", ".metadata.name"),
        ("READY", r#".status.conditions[?(@.type=="Ready")].status"#),
        ("REASON", r#".status.conditions[?(@.type=="Ready")].reason"#),
        ("ADDRESS", ".status.addressRef.name"),
    ];
    custom("ipaddressclaims", &values(&site.claims).await, &paths);
}

async fn addresses(site: &Site) {
    let paths = [("NAME", ".metadata.name"), ("ADDRESS", ".spec.address"), ("PREFIX", ".spec.prefix")];
    custom("ipaddresses", &values(&site.addresses).await, &paths);
}

async fn events(cluster: &Cluster, site: &Site) {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("events.k8s.io", "v1", "Event"));
    let events: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &site.namespace, &kind);
    // An exhausted pool causes two events: one about the pool, and one about the claim.
    let all = poll("the events of the claim and of the pool", async || {
        let all = values(&events).await;
        (all.len() == 2).then_some(all)
    });
    let all = all.await;
    let paths = [("OBJECT", ".regarding.name"), ("TYPE", ".type"), ("REASON", ".reason"), ("MESSAGE", ".note")];
    custom("events.events.k8s.io", &all, &paths);
}

fn custom(plural: &str, objects: &[Value], paths: &[(&str, &str)]) {
    let columns: Vec<String> = paths.iter().map(|(name, path)| format!("{name}:{path}")).collect();
    run(&format!("kubectl get {plural} -o custom-columns='{}'", columns.join(",")));
    let columns: Vec<Column> = paths.iter().map(|(name, path)| ((*name).to_owned(), (*path).to_owned())).collect();
    print(objects, &columns);
}

/// Lists the objects of `api`, as JSON.
async fn values<K>(api: &Api<K>) -> Vec<Value>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let objects = api.list(&ListParams::default()).await.unwrap().items;
    objects.into_iter().map(|object| serde_json::to_value(object).unwrap()).collect()
}

/// Returns the columns that kubectl prints for a kind without `-o wide`.
fn columns_of(kind: &str) -> Vec<Column> {
    let is = |definition: &CustomResourceDefinition| definition.spec.names.kind == kind;
    let definition = definitions().into_iter().find(is).unwrap();
    let columns = definition.spec.versions[0].additional_printer_columns.clone().unwrap_or_default();
    let columns = columns.into_iter().filter(|column| column.priority.unwrap_or_default() == 0);
    let name = ("NAME".to_owned(), ".metadata.name".to_owned());
    [name].into_iter().chain(columns.map(|column| (column.name.to_uppercase(), column.json_path))).collect()
}

/// Prints a table.
fn print(objects: &[Value], columns: &[Column]) {
    let head = columns.iter().map(|(name, _)| name.clone()).collect();
    let row = |object: &Value| columns.iter().map(|(name, path)| cell(object, name, path)).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(objects.iter().map(row)).collect();
    let width = |at: usize| rows.iter().map(|row: &Vec<String>| row[at].len()).max().unwrap_or_default() + 3;
    for row in &rows {
        let cells = row.iter().enumerate().map(|(at, cell)| format!("{cell:<width$}", width = width(at)));
        println!("{}", cells.collect::<String>().trim_end());
    }
}

fn cell(object: &Value, name: &str, path: &str) -> String {
    match value(object, path) {
        Value::Null if name == "RELEASED" => String::new(),
        Value::Null => "<none>".to_owned(),
        Value::String(time) if matches!(name, "AGE" | "RELEASED") => {
            let time: Timestamp = time.parse().unwrap();
            format!("{}s", Timestamp::now().as_second() - time.as_second())
        }
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Returns the value at a path of the forms `.a.b` and `.a[?(@.type=="x")].b`.
fn value(object: &Value, path: &str) -> Value {
    let mut value = object.clone();
    for member in path.replace("@.", "@").split('.').filter(|member| !member.is_empty()) {
        let (member, type_) = match member.split_once("[?(@type==\"") {
            Some((member, rest)) => (member, rest.strip_suffix("\")]")),
            None => (member, None),
        };
        value = value[member].take();
        if let Some(type_) = type_ {
            let items = value.as_array().into_iter().flatten();
            value = items.clone().find(|item| item["type"] == type_).cloned().unwrap_or_default();
        }
    }
    value
}

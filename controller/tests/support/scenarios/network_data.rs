//! Network data of VirtualMachines that people apply, copy, edit and delete. Each guest must read only the Secret of
//! its own machine.

use std::collections::BTreeSet;
use std::ops::Deref;

use glowplug::host::records::{ANNOTATION_PREFIX, NETWORK_PREFIX, STATUS_FIELD};
use glowplug_controller::kinds::mac_pool::{MACPool, MacPoolSpec};
use glowplug_controller::kinds::network_data::{ISSUED, NETWORK_DATA_LABEL, REPLACED_ANNOTATION, VM_ANNOTATION};
use glowplug_controller::kinds::pool::{PoolSpec, StaticIPLease, StaticIPPool};
use glowplug_controller::kinds::virtual_machine::LEFT_ALONE_ANNOTATION;
use http_body_util::Full;
use hyper::body::Bytes;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::apply::{apply, apply_server_side};
use crate::support::controller::{Site, merge, until};
use crate::support::endpoint::Endpoint;
use crate::support::hosted::copies::{clone_machine, restore};
use crate::support::hosted::definitions::{INSTANCE, KUBEVIRT_MACHINE, VIRTUAL_MACHINE};
use crate::support::hosted::kubevirt::{Drive, FINALIZER, RECEIVER, RESTORED_STRATEGY};
use crate::support::hosted::provider::{next_mac, object};
use crate::support::hosted::{Hosted, is_running, poll};
use crate::support::installed::Installed;
use crate::support::later;
use crate::support::leader;
use crate::support::replica::configurations;

const MUTATING: &str = "MutatingWebhookConfiguration";
const VALIDATING: &str = "ValidatingWebhookConfiguration";
/// Label by which the pool selects machines.
const POOL_LABEL: &str = "pool";

/// A pool that selects VirtualMachines by label, the controller, and the machines that people write.
pub(super) struct Place<'c> {
    cluster: &'c Cluster,
    hosted: Hosted,
    installed: Installed<'c>,
}

impl Deref for Place<'_> {
    type Target = Hosted;

    fn deref(&self) -> &Hosted {
        &self.hosted
    }
}

/// Creates the pool `p` of a namespace.
async fn create_pool(hosted: &Hosted, addresses: &[&str]) {
    create_pool_on(hosted, "p", &hosted.network, addresses).await;
}

/// Creates a pool of a network. The pool selects the machines whose label [`POOL_LABEL`] has the name of the pool.
async fn create_pool_on(hosted: &Hosted, name: &str, network: &str, addresses: &[&str]) {
    let selector = serde_json::from_value(json!({"matchLabels": {(POOL_LABEL): name}})).unwrap();
    let (network, machine_selector) = (network.to_owned(), Some(selector));
    let spec = PoolSpec { network, node_pool_ref: None, machine_selector, ..hosted.spec(name, addresses) };
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new(name, spec)).await.unwrap();
}

/// Returns the manifest of a VirtualMachine, as a person writes it.
pub(super) fn manifest(hosted: &Hosted, name: &str, strategy: &str) -> Value {
    let spec = json!({
        "domain": {"devices": {"interfaces": [{"name": "net1", "bridge": {}, "macAddress": next_mac()}]}},
        "networks": [{"name": "net1", "multus": {"networkName": hosted.network}}],
        "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": {"userData": "#cloud-config"}}],
    });
    let metadata = json!({"name": name, "namespace": hosted.namespace, "labels": {(POOL_LABEL): "p"}});
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": spec});
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata,
        "spec": {"runStrategy": strategy, "template": template},
    })
}

/// Returns the first interface of a manifest, so that the caller can change it.
fn interface(manifest: &mut Value) -> &mut Value {
    &mut manifest["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]
}

/// Returns what the controller has added to a VirtualMachine: the reference, the index of the interface, the label and
/// the annotation.
fn added(vm: &DynamicObject) -> Value {
    let template = &vm.data["spec"]["template"];
    json!({
        "secret": Hosted::reference(vm),
        "acpiIndex": template["spec"]["domain"]["devices"]["interfaces"][0]["acpiIndex"],
        "label": template["metadata"]["labels"][NETWORK_DATA_LABEL],
        "of": template["metadata"]["annotations"][VM_ANNOTATION],
    })
}

/// Returns what the controller adds to a machine that is served with this Secret.
fn issued(hosted: &Hosted, name: &str, secret: &str) -> Value {
    let of = format!("{}/{name}", hosted.namespace);
    json!({"secret": secret, "acpiIndex": 101, "label": ISSUED, "of": of})
}

/// Returns what each running guest of these namespaces has read: its name, its Secret and its addresses. Panics if two
/// guests have one address.
async fn guests(places: &[&Hosted]) -> Vec<(String, Option<String>, Vec<String>)> {
    let (mut rows, mut all) = (Vec::new(), BTreeSet::new());
    for hosted in places {
        for instance in hosted.instances.list(&ListParams::default()).await.unwrap().items {
            if !is_running(&instance) {
                continue;
            }
            let name = instance.name_any();
            let drive = hosted.kubevirt.drives(&name).pop().unwrap();
            let addresses: Vec<String> = match drive.network_data {
                Some(_) => drive.addresses().into_iter().map(|(_, address)| address).collect(),
                None => Vec::new(),
            };
            for address in &addresses {
                assert!(all.insert(address.clone()), "two guests have {address}, one of them is {name}: {rows:?}");
            }
            rows.push((name, drive.network_data_secret.map(|(name, _)| name), addresses));
        }
    }
    rows.sort();
    rows
}

pub(super) fn row(name: &str, secret: &str, address: &str) -> (String, Option<String>, Vec<String>) {
    (name.to_owned(), Some(secret.to_owned()), vec![address.to_owned()])
}

pub(super) fn held<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, name)| (address.to_owned(), name.to_owned())).into()
}

impl<'c> Place<'c> {
    /// Starts a namespace with a pool of these addresses, and the controller.
    pub(super) async fn start(cluster: &'c Cluster, addresses: &[&str]) -> Self {
        let hosted = Hosted::plain(cluster).await;
        create_pool(&hosted, addresses).await;
        Self::install(cluster, hosted).await
    }

    /// Starts the controller, and waits until the API server calls its webhooks.
    pub(super) async fn install(cluster: &'c Cluster, hosted: Hosted) -> Self {
        let installed = Installed::start_with_all_webhooks(cluster).await;
        let place = Self { cluster, hosted, installed };
        place.until_asked().await;
        place
    }

    async fn until_asked(&self) {
        poll("a question to the webhook for machines", async || self.try_machine().await?.then_some(())).await;
        poll("a question to the webhook for instances", async || {
            let error = self.try_instance().await.err()?;
            error.to_string().contains("denied the request").then_some(())
        })
        .await;
    }

    /// Returns whether a webhook changes a new machine. `None`: the API server refuses the machine.
    async fn try_machine(&self) -> Option<bool> {
        let vm = serde_json::from_value(manifest(self, "probe", "Halted")).unwrap();
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        Some(Hosted::reference(&self.vms.create(&dry_run, &vm).await.ok()?).is_some())
    }

    /// Tries in a dry run to create an instance that has the label of the controller and no network data.
    async fn try_instance(&self) -> kube::Result<DynamicObject> {
        let metadata = json!({"name": "probe", "labels": {(NETWORK_DATA_LABEL): ISSUED}});
        let instance = object(INSTANCE, json!({"metadata": metadata, "spec": {"volumes": []}}));
        self.instances.create(&PostParams { dry_run: true, ..PostParams::default() }, &instance).await
    }

    /// Returns whether the API server supports the conditions of webhooks: Kubernetes 1.28 or newer.
    async fn has_conditions(&self) -> bool {
        let stored = configurations(self.cluster, MUTATING).get("glowplug-controller").await.unwrap();
        stored.data["webhooks"].as_array().unwrap().iter().any(|webhook| webhook["matchConditions"].is_array())
    }

    /// Applies a manifest, as `kubectl apply` does.
    pub(super) async fn apply(&self, manifest: &Value) -> DynamicObject {
        apply(&self.vms, manifest).await.unwrap()
    }

    /// Creates a running machine, and returns its manifest and the name of its Secret.
    pub(super) async fn run(&self, name: &str) -> (Value, String) {
        let manifest = manifest(self, name, "Always");
        self.apply(&manifest).await;
        self.until_running(name).await;
        (manifest, self.secret_name(name).await)
    }

    /// Stops the guest of a machine.
    async fn halt(&self, name: &str) {
        merge(&self.vms, name, &json!({"spec": {"runStrategy": "Halted"}})).await;
        self.until_gone(&self.instances, name).await;
    }

    /// Starts the guest of a machine.
    async fn boot(&self, name: &str) {
        merge(&self.vms, name, &json!({"spec": {"runStrategy": "Always"}})).await;
        self.until_running(name).await;
    }

    /// Waits until the controller has written the addresses of a machine into its VirtualMachine.
    pub(super) async fn until_recorded(&self, name: &str) -> DynamicObject {
        let is_record = |(key, _): (&String, &String)| key.starts_with(ANNOTATION_PREFIX);
        until(&self.vms, name, |vm| vm.annotations().iter().any(is_record)).await
    }

    /// Returns the leases of the network: address, UID of the holder, Secrets, and whether the lease is released.
    async fn leases(&self) -> Vec<(String, String, Option<BTreeSet<String>>, bool)> {
        let leases = later::leases(self.cluster, &self.network).await.into_values();
        let row = |spec: glowplug_controller::kinds::pool::LeaseSpec| {
            (spec.address, spec.holder.uid, spec.secrets, spec.released.is_some())
        };
        let mut rows: Vec<_> = leases.map(row).collect();
        rows.sort();
        rows
    }

    /// Stops the leader, and waits until another leader has read everything.
    pub(super) async fn change_leaders(&mut self) {
        self.stop_leading();
        self.lead().await;
    }

    pub(super) fn stop_leading(&mut self) {
        self.installed.stop_leading();
    }

    pub(super) async fn lead(&mut self) {
        self.installed.lead().await;
    }

    /// Stops the controller, and checks what the running guests have read.
    pub(super) async fn end<const N: usize>(self, expected: [(String, Option<String>, Vec<String>); N]) {
        assert_eq!(guests(&[&self.hosted]).await, expected);
        for kind in [MUTATING, VALIDATING] {
            configurations(self.cluster, kind).delete("glowplug-controller", &DeleteParams::default()).await.unwrap();
        }
        poll("a machine that no webhook changes", async || (!self.try_machine().await?).then_some(())).await;
        poll("an instance that no webhook refuses", async || self.try_instance().await.ok().map(drop)).await;
        self.installed.stop().await;
    }
}

/// Waits until a webhook rejects the instance of a machine with a message that contains `text`. Returns the message.
async fn rejection(hosted: &Hosted, name: &str, text: &str) -> String {
    poll(&format!("a rejection with {text:?}"), async || {
        hosted.kubevirt.retry();
        hosted.kubevirt.rejection(name).filter(|message| message.contains(text))
    })
    .await
}

// === applied again ===

pub async fn a_manifest_that_is_applied_again_before_the_first_start_keeps_the_network_data(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let mut manifest = manifest(&place, "w", "Halted");
    let created = place.apply(&manifest).await;
    let secret = place.secret_name("w").await;
    let expected = issued(&place, "w", &secret);
    assert_eq!(added(&created), expected);
    assert_eq!(added(&place.apply(&manifest).await), expected);
    place.until_secret(&secret).await;
    assert_eq!(added(&place.apply(&manifest).await), expected);
    // One request removes the reference and starts the machine. The webhook adds the reference again.
    manifest["spec"]["runStrategy"] = "Always".into();
    assert_eq!(added(&place.apply(&manifest).await), expected);
    place.until_running("w").await;
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]));
    place.end([row("w", &secret, "10.0.0.8")]).await;
}

pub async fn a_manifest_that_is_applied_again_while_the_guest_runs_keeps_the_network_data(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (manifest, secret) = place.run("w").await;
    for _ in 0..3 {
        assert_eq!(added(&place.apply(&manifest).await), issued(&place, "w", &secret));
    }
    assert!(place.kubevirt.migrate("w").await);
    assert_eq!(place.restart("w").await.network_data_secret.unwrap().0, secret);
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]));
    place.end([row("w", &secret, "10.0.0.8")]).await;
}

pub async fn a_manifest_that_is_applied_again_while_the_pool_is_being_deleted_keeps_the_network_data(
    cluster: &Cluster,
) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (mut manifest, secret) = place.run("w").await;
    place.until_recorded("w").await;
    place.pools.delete("p", &DeleteParams::default()).await.unwrap();
    poll("a refusal of a new machine", async || place.try_machine().await.is_none().then_some(())).await;
    manifest["spec"]["template"]["spec"]["domain"]["cpu"] = json!({"cores": 2});
    assert_eq!(added(&place.apply(&manifest).await), issued(&place, "w", &secret));
    assert_eq!(place.restart("w").await.network_data_secret.unwrap().0, secret);
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]));
    place.end([row("w", &secret, "10.0.0.8")]).await;
}

/// Applies the manifest of a running machine five times, as `kubectl apply --server-side` does, and restarts its guest.
async fn apply_five_times(place: Place<'_>, manifest: &Value) {
    place.until_running("w").await;
    place.until_recorded("w").await;
    let secret = place.secret_name("w").await;
    for n in 0..5 {
        let vm = apply_server_side(&place.vms, manifest, "kubectl").await;
        let vm = vm.unwrap_or_else(|error| panic!("apply {n}: {error}"));
        assert_eq!(added(&vm), issued(&place, "w", &secret), "apply {n}");
    }
    place.restart("w").await;
    place.end([row("w", &secret, "10.0.0.8")]).await;
}

pub async fn five_server_side_applies_of_a_served_machine_cause_no_conflict(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let manifest = manifest(&place, "w", "Always");
    apply_server_side(&place.vms, &manifest, "kubectl").await.unwrap();
    apply_five_times(place, &manifest).await;
}

pub async fn five_server_side_applies_of_a_machine_that_is_older_than_its_pool_cause_no_conflict(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let manifest = manifest(&hosted, "w", "Always");
    apply_server_side(&hosted.vms, &manifest, "kubectl").await.unwrap();
    hosted.until_running("w").await;
    create_pool(&hosted, &["10.0.0.8/30"]).await;
    let place = Place::install(cluster, hosted).await;
    place.until_event("w", "LeftAlone").await;
    let freed = json!({"metadata": {"annotations": {(LEFT_ALONE_ANNOTATION): null}}});
    merge(&place.vms, "w", &freed).await;
    place.until_event("w", "NetworkDataMissing").await;
    apply_five_times(place, &manifest).await;
}

pub async fn five_server_side_applies_of_a_machine_of_a_mac_pool_cause_no_conflict(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let pools: Api<MACPool> = Api::all(cluster.client());
    let spec = MacPoolSpec {
        ranges: vec!["0a:00:00:00:55:00-0a:00:00:00:55:0f".to_owned()],
        namespaces: vec![place.namespace.clone()],
        ..MacPoolSpec::default()
    };
    pools.create(&PostParams::default(), &MACPool::new(&place.namespace, spec)).await.unwrap();
    let mut manifest = manifest(&place, "w", "Always");
    interface(&mut manifest).as_object_mut().unwrap().remove("macAddress");
    let probe: DynamicObject = serde_json::from_value(manifest.clone()).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    poll("a question to the webhook for MAC addresses", async || {
        let vm = place.vms.create(&dry_run, &probe).await.ok()?;
        vm.data["spec"]["template"]["metadata"]["labels"].get("ipam.glowplug.dev/mac-addresses").map(drop)
    })
    .await;
    apply_server_side(&place.vms, &manifest, "kubectl").await.unwrap();
    let name = place.namespace.clone();
    apply_five_times(place, &manifest).await;
    pools.delete(&name, &DeleteParams::default()).await.unwrap();
}

// === without a replica ===

/// Migrates, stops and deletes a machine while no webhook answers updates of machines. With `starts`, also starts the
/// machine again before the deletion. In any case, removes the finalizer of the machine before the deletion.
async fn live_without_updates(place: &Place<'_>, starts: bool) {
    merge(&place.vms, "w", &json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert!(place.kubevirt.migrate("w").await);
    place.halt("w").await;
    if starts {
        place.boot("w").await;
    }
    merge(&place.vms, "w", &json!({"metadata": {"finalizers": null}})).await;
    merge(&place.vms, "w", &json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})).await;
    // KubeVirt must add its finalizer again. Without the finalizer, only a garbage collector would end the guest.
    until(&place.vms, "w", |vm| vm.finalizers() == [FINALIZER]).await;
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    place.until_gone(&place.vms, "w").await;
    place.until_gone(&place.instances, "w").await;
    place.until_held(0).await;
}

pub async fn without_a_replica_a_machine_can_be_stopped_started_migrated_and_deleted(cluster: &Cluster) {
    let mut place = Place::start(cluster, &["10.0.0.8/30"]).await;
    place.run("w").await;
    place.until_recorded("w").await;
    let starts = place.has_conditions().await;
    place.installed.stop_answering().await;
    live_without_updates(&place, starts).await;
    place.end([]).await;
}

/// Starts a replica of an earlier version, which answers 404, and configures the API server to send updates of machines
/// to this replica. Dropping the result stops the replica.
async fn start_without_path(place: &Place<'_>) -> Endpoint {
    let absent =
        |_| async { hyper::Response::builder().status(404).body(Full::from(Bytes::from("not found"))).unwrap() };
    let endpoint = Endpoint::start(absent).await;
    let configurations = configurations(place.cluster, MUTATING);
    let mut webhooks = configurations.get("glowplug-controller").await.unwrap().data["webhooks"].take();
    for webhook in webhooks.as_array_mut().unwrap() {
        if webhook["name"] == "machine-updates.ipam.glowplug.dev" {
            webhook["clientConfig"] = endpoint.client_config("/mutate-machine-updates");
        }
    }
    merge(&configurations, "glowplug-controller", &json!({"webhooks": webhooks})).await;
    endpoint
}

/// Removes the reference of a machine in a dry run. Returns whether a webhook adds the reference again.
async fn is_put_back(place: &Place<'_>, name: &str) -> bool {
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitConfigDrive": {"userData": "#cloud-config"}}]);
    let removed = json!({"spec": {"template": {"spec": {"volumes": volumes}}}});
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let vm = place.vms.patch(name, &dry_run, &Patch::Merge(removed)).await.unwrap();
    Hosted::reference(&vm).is_some()
}

pub async fn with_a_replica_of_an_earlier_version_a_machine_can_be_stopped_started_migrated_and_deleted(
    cluster: &Cluster,
) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    place.run("w").await;
    place.until_recorded("w").await;
    let earlier = start_without_path(&place).await;
    poll("an update that no webhook changes", async || (!is_put_back(&place, "w").await).then_some(())).await;
    live_without_updates(&place, true).await;
    drop(earlier);
    place.end([]).await;
}

pub async fn an_instance_without_its_reference_is_refused_until_a_leader_is_back(cluster: &Cluster) {
    let mut place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (mut manifest, first) = place.run("w").await;
    place.halt("w").await;
    place.installed.stop_leading();
    place.installed.stop_answering().await;
    manifest["spec"]["template"]["metadata"]["labels"]["a"] = "b".into();
    let expected = json!({"secret": null, "acpiIndex": null, "label": ISSUED, "of": format!("{}/w", place.namespace)});
    assert_eq!(added(&place.apply(&manifest).await), expected);
    rejection(&place, "w", "failed calling webhook").await;
    // The machine is halted first: otherwise the stand-in would start the guest while the configurations of the
    // webhooks are replaced.
    merge(&place.vms, "w", &json!({"spec": {"runStrategy": "Halted"}})).await;
    poll("a machine without an attempt", async || place.kubevirt.rejection("w").is_none().then_some(())).await;
    place.installed.answer_again().await;
    place.until_asked().await;
    merge(&place.vms, "w", &json!({"spec": {"runStrategy": "Always"}})).await;
    let message = rejection(&place, "w", "denied the request").await;
    let text = format!(
        "spec.volumes: no network data, expected networkDataSecretRef: the controller adds it to VirtualMachine {}/w",
        place.namespace
    );
    assert!(message.ends_with(&text), "{message}");
    place.installed.lead().await;
    place.until_running("w").await;
    let second = place.secret_name("w").await;
    assert_ne!(first, second);
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]));
    place.end([row("w", &second, "10.0.0.8")]).await;
}

// === copies ===

/// Checks that a copy has a Secret of its own and an annotation with the name of the Secret of its source. Returns the
/// name of the copy's Secret.
async fn check_copy(place: &Place<'_>, copy: &DynamicObject, source: &str) -> String {
    let (name, secret) = (copy.name_any(), Hosted::reference(copy).unwrap());
    assert_ne!(secret, source);
    assert_eq!(added(copy), issued(place, &name, &secret));
    assert_eq!(copy.annotations().get(REPLACED_ANNOTATION).map(String::as_str), Some(source));
    assert!(!copy.annotations().keys().any(|key| key.starts_with(ANNOTATION_PREFIX)), "{:?}", copy.annotations());
    secret
}

pub async fn a_clone_starts_with_an_address_of_its_own_while_its_source_runs(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, source) = place.run("w").await;
    place.until_recorded("w").await;
    let mut rows = Vec::new();
    for (name, keeps_macs, address) in [("c1", false, "10.0.0.9"), ("c2", true, "10.0.0.10")] {
        let clone = clone_machine(&place.vms, place.snapshot("w").await, name, keeps_macs).await.unwrap();
        let secret = check_copy(&place, &clone, &source).await;
        place.boot(name).await;
        rows.push(row(name, &secret, address));
    }
    let [first, second] = rows.try_into().unwrap();
    assert_eq!(place.held().await, held([("10.0.0.10", "c2"), ("10.0.0.8", "w"), ("10.0.0.9", "c1")]));
    place.end([first, second, row("w", &source, "10.0.0.8")]).await;
}

pub async fn a_machine_from_a_copied_manifest_starts_with_an_address_of_its_own(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, source) = place.run("w").await;
    place.until_recorded("w").await;
    let copy = place.copy_manifest("w", "c").await.unwrap();
    let secret = check_copy(&place, &copy, &source).await;
    place.until_running("c").await;
    place.end([row("c", &secret, "10.0.0.9"), row("w", &source, "10.0.0.8")]).await;
}

pub async fn a_machine_keeps_its_address_when_a_snapshot_is_restored_in_place(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (mut manifest, first) = place.run("w").await;
    let snapshot = place.snapshot("w").await;
    // The machine gets a Secret of another name before the snapshot is restored.
    interface(&mut manifest)["macAddress"] = next_mac().into();
    place.apply(&manifest).await;
    let second = place.secret_name("w").await;
    place.halt("w").await;
    let restored = restore(&place.vms, &snapshot, "w").await.unwrap();
    let third = Hosted::reference(&restored).unwrap();
    // The snapshot restores the earlier MAC address, so the machine gets a third Secret.
    assert_eq!(BTreeSet::from([&first, &second, &third]).len(), 3);
    assert_eq!(added(&restored), issued(&place, "w", &third));
    place.boot("w").await;
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]));
    place.end([row("w", &third, "10.0.0.8")]).await;
}

pub async fn a_machine_keeps_its_reference_when_a_snapshot_with_another_reference_is_restored_in_place(
    cluster: &Cluster,
) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, secret) = place.run("w").await;
    let mut snapshot = place.snapshot("w").await;
    for earlier in ["w-networkdata", "w-networkdata-aaaaaaaaaaaaaaaa", "other-networkdata-bbbbbbbbbbbbbbbb"] {
        let source = json!({"userData": "#cloud-config", "networkDataSecretRef": {"name": earlier}});
        snapshot["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"] = source;
        let restored = restore(&place.vms, &snapshot, "w").await.unwrap();
        assert_eq!(added(&restored), issued(&place, "w", &secret), "{earlier}");
    }
    place.restart("w").await;
    place.end([row("w", &secret, "10.0.0.8")]).await;
}

pub async fn a_machine_that_is_restored_under_another_name_gets_an_address_of_its_own(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, source) = place.run("w").await;
    place.until_recorded("w").await;
    let snapshot = place.snapshot("w").await;
    let restored = restore(&place.vms, &snapshot, "r").await.unwrap();
    let secret = check_copy(&place, &restored, &source).await;
    place.boot("r").await;
    place.end([row("r", &secret, "10.0.0.9"), row("w", &source, "10.0.0.8")]).await;
}

pub async fn the_instance_of_a_machine_that_is_restored_into_another_namespace_is_refused(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, source) = place.run("w").await;
    let mut copy = place.snapshot("w").await;
    // No pool serves this namespace, so the namespace has no label, and the API server calls no webhook for its
    // machines.
    let other = Hosted::plain(cluster).await;
    copy["metadata"]["name"] = "w".into();
    let stored = other.vms.create(&PostParams::default(), &object(VIRTUAL_MACHINE, copy)).await.unwrap();
    assert_eq!(added(&stored), issued(&place, "w", &source));
    let message = rejection(&other, "w", "denied the request").await;
    let text = format!(
        "metadata.annotations[{VM_ANNOTATION}]: \"{}/w\", expected \"{}/w\": the machine is a copy; remove the annotation, \
         the label {NETWORK_DATA_LABEL}, and the reference to {source:?} from spec.template of the VirtualMachine",
        place.namespace, other.namespace
    );
    assert!(message.ends_with(&text), "{message}");
    // A person makes the changes that the message asks for.
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitConfigDrive": {"userData": "#cloud-config"}}]);
    let marks = json!({"labels": {(NETWORK_DATA_LABEL): null}, "annotations": {(VM_ANNOTATION): null}});
    let corrected = json!({"spec": {"template": {"metadata": marks, "spec": {"volumes": volumes}}}});
    merge(&other.vms, "w", &corrected).await;
    assert_eq!(other.until_running("w").await.network_data_secret, None);
    let expected = [("w".to_owned(), None, vec![]), row("w", &source, "10.0.0.8")];
    assert_eq!(guests(&[&place.hosted, &other]).await, expected);
    place.end([row("w", &source, "10.0.0.8")]).await;
}

// === changes of the pool and of the machine ===

/// Waits until the status of the pool counts this number of machines with earlier network data.
async fn until_outdated(place: &Place<'_>, count: u32) {
    poll(&format!("{count} outdated machines"), async || {
        let status = place.pools.get("p").await.unwrap().status;
        status.is_some_and(|status| status.outdated == count).then_some(())
    })
    .await;
}

/// Waits for the next second: an API server stores the creation time of an instance in whole seconds.
pub(crate) async fn until_next_second() {
    let second = Timestamp::now().as_second();
    poll("the next second", async || (Timestamp::now().as_second() > second).then_some(())).await;
}

pub async fn a_changed_gateway_reaches_a_guest_at_its_next_restart(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, secret) = place.run("w").await;
    let before = place.until_recorded("w").await;
    let gateway = |document: &Value| document["networks"][0]["routes"][0]["gateway"].clone();
    assert_eq!(gateway(&place.until_running("w").await.document()), "10.0.0.1");
    until_next_second().await;
    merge(&place.pools, "p", &json!({"spec": {"gateway": ["10.0.0.2"]}})).await;
    until_outdated(&place, 1).await;
    let note = place.until_event("w", "NetworkDataOutdated").await;
    assert_eq!(note, "The guest runs with earlier network data: restart the machine");
    let text: Value =
        serde_json::from_slice(&place.until_secret(&secret).await.data.unwrap()["networkdata"].0).unwrap();
    assert_eq!(gateway(&text), "10.0.0.2");
    // Only the Secret has changed, not the VirtualMachine. So KubeVirt adds no condition `RestartRequired`.
    assert_eq!(place.vms.get("w").await.unwrap(), before);
    until_next_second().await;
    assert_eq!(gateway(&place.restart("w").await.document()), "10.0.0.2");
    until_outdated(&place, 0).await;
    assert_eq!(place.vms.get("w").await.unwrap().data["spec"], before.data["spec"]);
    place.end([row("w", &secret, "10.0.0.8")]).await;
}

pub async fn an_outdated_machine_stays_outdated_when_its_secret_is_deleted(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, secret) = place.run("w").await;
    place.until_recorded("w").await;
    until_next_second().await;
    merge(&place.pools, "p", &json!({"spec": {"gateway": ["10.0.0.2"]}})).await;
    until_outdated(&place, 1).await;
    place.secrets.delete(&secret, &DeleteParams::default()).await.unwrap();
    merge(&place.vms, "w", &json!({"metadata": {"annotations": {"touched": "1"}}})).await;
    let written = place.until_secret(&secret).await;
    assert!(written.annotations().contains_key("ipam.glowplug.dev/updated"), "{:?}", written.metadata);
    // When the status counts a second machine, it was written after the new Secret.
    let (_, second) = place.run("x").await;
    poll("two machines, one of them outdated", async || {
        let status = place.pools.get("p").await.unwrap().status?;
        (status.outdated == 1 && status.ip_addresses?.allocated == 2).then_some(())
    })
    .await;
    until_next_second().await;
    let document = place.restart("w").await.document();
    assert_eq!(document["networks"][0]["routes"][0]["gateway"], "10.0.0.2");
    until_outdated(&place, 0).await;
    place.end([row("w", &secret, "10.0.0.8"), row("x", &second, "10.0.0.9")]).await;
}

pub async fn the_network_data_of_a_machine_follows_the_subnet_of_its_address(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let machine_selector = serde_json::from_value(json!({"matchLabels": {(POOL_LABEL): "p"}})).unwrap();
    let spec = hosted.spec("p", &["10.0.0.8"]);
    hosted
        .pools
        .create(
            &PostParams::default(),
            &StaticIPPool::new("p", PoolSpec { node_pool_ref: None, machine_selector, ..spec }),
        )
        .await
        .unwrap();
    let place = Place::install(cluster, hosted).await;
    let (_, first) = place.run("w").await;
    place.until_recorded("w").await;
    // The pool is exhausted, and an administrator adds a subnet.
    let subnets = |gateway: &str| {
        let first = json!({
            "addresses": ["10.0.0.8"], "gateway": ["10.0.0.1"], "machineNetwork": [{"cidr": "10.0.0.0/16"}],
        });
        let second =
            json!({"addresses": ["10.1.0.8/31"], "gateway": [gateway], "prefix": 24, "nameservers": ["10.1.0.53"]});
        Patch::Merge(json!({
            "spec": {"addresses": null, "gateway": null, "machineNetwork": null, "subnets": [first, second]},
        }))
    };
    place.pools.patch("p", &PatchParams::default(), &subnets("10.1.0.1")).await.unwrap();
    let (_, second) = place.run("x").await;
    let of = |document: &Value| {
        let network = &document["networks"][0];
        json!([network["ip_address"], network["netmask"], network["routes"][0]["gateway"], document["services"]])
    };
    let server = json!([{"type": "dns", "address": "10.1.0.53"}]);
    let of_w = json!(["10.0.0.8", "255.255.0.0", "10.0.0.1", []]);
    assert_eq!(of(&place.until_running("w").await.document()), of_w);
    let of_x = |gateway: &str| json!(["10.1.0.8", "255.255.255.0", gateway, server]);
    assert_eq!(of(&place.until_running("x").await.document()), of_x("10.1.0.1"));
    place.until_recorded("x").await;
    until_outdated(&place, 0).await;
    // A change of the gateway of the second subnet affects only the machines of this subnet.
    until_next_second().await;
    place.pools.patch("p", &PatchParams::default(), &subnets("10.1.0.2")).await.unwrap();
    until_outdated(&place, 1).await;
    until_next_second().await;
    assert_eq!(of(&place.restart("x").await.document()), of_x("10.1.0.2"));
    until_outdated(&place, 0).await;
    assert_eq!(of(&place.until_running("w").await.document()), of_w);
    // A machine keeps its address and its gateway when its subnet is removed.
    let first_alone = json!([{
        "addresses": ["10.0.0.8"], "gateway": ["10.0.0.1"], "machineNetwork": [{"cidr": "10.0.0.0/16"}],
    }]);
    merge(&place.pools, "p", &json!({"spec": {"subnets": first_alone}})).await;
    let note = format!(
        "Secret {second:?} keeps its network data: pool \"{}/p\" has no subnet with 10.1.0.8/24 any more, so the gateway of the \
         address is not known",
        place.namespace
    );
    let events: Api<Event> = Api::namespaced(place.client.clone(), &place.namespace);
    poll("an event about the removed subnet", async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events.iter().any(|event| event.note.as_ref() == Some(&note)).then_some(())
    })
    .await;
    until_outdated(&place, 1).await;
    assert_eq!(of(&place.restart("x").await.document()), of_x("10.1.0.2"));
    until_outdated(&place, 1).await;
    // The administrator puts the subnet back. Nothing else changes, and no leader starts.
    place.pools.patch("p", &PatchParams::default(), &subnets("10.1.0.2")).await.unwrap();
    until_outdated(&place, 0).await;
    place.end([row("w", &first, "10.0.0.8"), row("x", &second, "10.1.0.8")]).await;
}

pub async fn a_guest_with_the_prefix_length_32_reads_the_on_link_gateway_of_its_pool(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let machine_selector = serde_json::from_value(json!({"matchLabels": {(POOL_LABEL): "p"}})).unwrap();
    let spec = PoolSpec {
        prefix: Some(32),
        gateway: vec!["169.254.1.1".to_owned()],
        on_link_gateway: true,
        machine_network: Vec::new(),
        node_pool_ref: None,
        machine_selector,
        ..hosted.spec("p", &["10.0.0.8/30"])
    };
    hosted.pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
    let place = Place::install(cluster, hosted).await;
    let (_, first) = place.run("w").await;
    let (_, second) = place.run("x").await;
    let document = place.until_running("w").await.document();
    let route = json!({"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "169.254.1.1"});
    let network = &document["networks"][0];
    assert_eq!(
        json!([network["ip_address"], network["netmask"], network["routes"]]),
        json!(["10.0.0.8", "255.255.255.255", [route]])
    );
    let recorded = place.until_recorded("w").await;
    assert_eq!(recorded.annotations()[&format!("{ANNOTATION_PREFIX}eno101")], r#"["10.0.0.8/32"]"#);
    place.end([row("w", &first, "10.0.0.8"), row("x", &second, "10.0.0.9")]).await;
}

pub async fn the_settings_of_a_pool_reach_a_guest_at_its_next_restart(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, secret) = place.run("w").await;
    place.until_recorded("w").await;
    let settings = |document: &Value| {
        let network = &document["networks"][0];
        json!([document["links"][0]["mtu"], network["dns_search"], network["routes"]])
    };
    let to_gateway = json!({"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"});
    let before = place.until_running("w").await.document();
    assert_eq!(settings(&before), json!([null, null, [to_gateway]]));
    let changed = json!({"spec": {
        "mtu": 9000, "searchDomains": ["c1.example.com"], "routes": [{"to": "10.9.0.0/16", "via": "10.0.0.9"}],
    }});
    until_next_second().await;
    place.pools.patch("p", &PatchParams::default(), &Patch::Merge(changed)).await.unwrap();
    until_outdated(&place, 1).await;
    until_next_second().await;
    let route = json!({"network": "10.9.0.0", "netmask": "255.255.0.0", "gateway": "10.0.0.9"});
    let after = place.restart("w").await.document();
    assert_eq!(settings(&after), json!([9000, ["c1.example.com"], [to_gateway, route]]));
    until_outdated(&place, 0).await;
    // The next machine does not get 10.0.0.9, because this is the address of the router.
    let (_, secret_of_x) = place.run("x").await;
    place.end([row("w", &secret, "10.0.0.8"), row("x", &secret_of_x, "10.0.0.10")]).await;
}

pub async fn the_address_of_another_link_in_the_template_of_a_pool_reaches_a_guest_at_its_next_restart(
    cluster: &Cluster,
) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let set_template = async |address: &str| {
        let links = ["eno101", "eno102"].map(|id| json!({"id": id, "type": "phy"}));
        let network = json!({"id": "b", "type": "ipv6", "link": "eno102", "ip_address": address});
        let template = json!({"links": links, "networks": [network]}).to_string();
        merge(&place.pools, "p", &json!({"spec": {"template": template}})).await;
    };
    let (_, secret) = place.run("w").await;
    place.until_recorded("w").await;
    for address in ["fe80::8/64", "fe80::9/64"] {
        until_next_second().await;
        set_template(address).await;
        until_outdated(&place, 1).await;
        until_next_second().await;
        assert_eq!(place.restart("w").await.document()["networks"][0]["ip_address"], address);
        until_outdated(&place, 0).await;
    }
    assert_eq!(place.secret_name("w").await, secret);
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]));
    let read = ["10.0.0.8", "fe80::9"].map(str::to_owned).into();
    place.end([("w".to_owned(), Some(secret), read)]).await;
}

pub async fn a_changed_mac_address_gives_the_machine_a_secret_of_a_new_name(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (mut manifest, first) = place.run("w").await;
    let mac = next_mac();
    interface(&mut manifest)["macAddress"] = mac.clone().into();
    let changed = place.apply(&manifest).await;
    let second = Hosted::reference(&changed).unwrap();
    assert_ne!(first, second);
    assert_eq!(added(&changed), issued(&place, "w", &second));
    place.until_secret(&second).await;
    until_outdated(&place, 1).await;
    // The guest still reads the earlier Secret.
    assert!(place.kubevirt.migrate("w").await);
    assert_eq!(guests(&[&place.hosted]).await, [row("w", &first, "10.0.0.8")]);
    let both = BTreeSet::from([first.clone(), second.clone()]);
    let uid = changed.uid().unwrap();
    assert_eq!(place.leases().await, [("10.0.0.8".to_owned(), uid.clone(), Some(both), false)]);
    assert_eq!(place.restart("w").await.addresses(), [(mac, "10.0.0.8".to_owned())]);
    place.until_no_secret(&first).await;
    until_outdated(&place, 0).await;
    poll("a lease with the new Secret alone", async || {
        let expected = ("10.0.0.8".to_owned(), uid.clone(), Some(BTreeSet::from([second.clone()])), false);
        (place.leases().await == [expected]).then_some(())
    })
    .await;
    place.end([row("w", &second, "10.0.0.8")]).await;
}

pub async fn after_twenty_mac_addresses_only_the_secret_of_the_guest_and_the_newest_secret_are_left(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (mut manifest, first) = place.run("w").await;
    let uid = place.until_recorded("w").await.uid().unwrap();
    let mut newest = first.clone();
    for _ in 0..20 {
        interface(&mut manifest)["macAddress"] = next_mac().into();
        newest = Hosted::reference(&place.apply(&manifest).await).unwrap();
        place.until_secret(&newest).await;
    }
    let both = BTreeSet::from([first.clone(), newest.clone()]);
    let of_lease = ("10.0.0.8".to_owned(), uid.clone(), Some(both.clone()), false);
    poll("a lease with two Secrets", async || (place.leases().await == [of_lease.clone()]).then_some(())).await;
    let secrets = place.secrets.list(&ListParams::default()).await.unwrap().items;
    let names = secrets.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("w-networkdata-"));
    assert_eq!(names.collect::<BTreeSet<String>>(), both);
    // A migration builds the drive from the Secret of the guest.
    assert!(place.kubevirt.migrate("w").await);
    assert_eq!(guests(&[&place.hosted]).await, [row("w", &first, "10.0.0.8")]);
    assert_eq!(place.restart("w").await.network_data_secret.unwrap().0, newest);
    place.until_no_secret(&first).await;
    place.end([row("w", &newest, "10.0.0.8")]).await;
}

pub async fn a_machine_keeps_its_address_when_leases_are_lost_while_its_guest_reads_an_earlier_secret(
    cluster: &Cluster,
) {
    let mut place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (mut manifest, first) = place.run("w").await;
    interface(&mut manifest)["macAddress"] = next_mac().into();
    let second = Hosted::reference(&place.apply(&manifest).await).unwrap();
    place.until_secret(&second).await;
    let uid = place.vms.get("w").await.unwrap().uid().unwrap();
    place.installed.stop_leading();
    place.forget_leases().await;
    let later = self::manifest(&place, "v", "Always");
    place.apply(&later).await;
    place.installed.lead().await;
    place.until_running("v").await;
    assert_eq!(place.held().await, held([("10.0.0.8", "w"), ("10.0.0.9", "v")]));
    let both = BTreeSet::from([first.clone(), second.clone()]);
    poll("a lease with both Secrets", async || {
        (place.leases().await[0] == ("10.0.0.8".to_owned(), uid.clone(), Some(both.clone()), false)).then_some(())
    })
    .await;
    let v = place.secret_name("v").await;
    assert_eq!(guests(&[&place.hosted]).await, [row("v", &v, "10.0.0.9"), row("w", &first, "10.0.0.8")]);
    assert!(place.kubevirt.migrate("w").await);
    place.restart("w").await;
    place.until_no_secret(&first).await;
    place.end([row("v", &v, "10.0.0.9"), row("w", &second, "10.0.0.8")]).await;
}

pub async fn a_machine_that_moves_to_another_network_keeps_its_address_until_its_guest_restarts(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let other = format!("{}-other", place.network);
    create_pool_on(&place, "q", &other, &["10.0.1.8/30"]).await;
    let (mut manifest, first) = place.run("w").await;
    place.until_recorded("w").await;
    manifest["metadata"]["labels"][POOL_LABEL] = "q".into();
    manifest["spec"]["template"]["spec"]["networks"][0]["multus"]["networkName"] = other.into();
    let moved = place.apply(&manifest).await;
    let (second, uid) = (Hosted::reference(&moved).unwrap(), moved.uid().unwrap());
    assert_ne!(first, second);
    assert_eq!(added(&moved), issued(&place, "w", &second));
    // The guest still uses its earlier address, and reads this address again after a migration.
    let text = format!(
        "eno101: has 10.0.0.8 of pool \"{}/p\" already, expected a release before another pool",
        place.namespace
    );
    let events: Api<Event> = Api::namespaced(cluster.client(), &place.namespace);
    poll(&text, async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events.into_iter().any(|event| event.note.as_ref() == Some(&text)).then_some(())
    })
    .await;
    place.run("v").await;
    assert!(place.kubevirt.migrate("w").await);
    let kept = ("10.0.0.8".to_owned(), uid, Some(BTreeSet::from([first.clone()])), false);
    assert_eq!(place.leases().await[0], kept);
    place.instances.delete("w", &DeleteParams::default()).await.unwrap();
    place.until_no_secret(&first).await;
    assert_eq!(place.address_of("w").await, "10.0.1.8");
    poll("the release of the address", async || place.leases().await[0].3.then_some(())).await;
    let v = place.secret_name("v").await;
    place.end([row("v", &v, "10.0.0.9"), row("w", &second, "10.0.1.8")]).await;
}

pub async fn no_machine_gets_the_address_with_which_kubevirt_moves_a_guest_to_another_network(cluster: &Cluster) {
    let mut place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let other = format!("{}-other", place.network);
    // The pools of the two networks have the same addresses.
    create_pool_on(&place, "q", &other, &["10.0.0.8/30"]).await;
    let (mut manifest, first) = place.run("w").await;
    place.until_recorded("w").await;
    // The guest has no agent, so it reports no address.
    place.kubevirt.report("w", &json!({"interfaces": []})).await;
    let on_other = |manifest: &mut Value| {
        manifest["metadata"]["labels"][POOL_LABEL] = "q".into();
        manifest["spec"]["template"]["spec"]["networks"][0]["multus"]["networkName"] = other.clone().into();
    };
    on_other(&mut manifest);
    let second = Hosted::reference(&place.apply(&manifest).await).unwrap();
    until(&place.instances, "w", |it| it.data["spec"]["networks"][0]["multus"]["networkName"] == *other).await;
    assert!(place.kubevirt.migrate("w").await);
    poll("the reservation", async || {
        let status = place.pools.get("q").await.unwrap().status.unwrap_or_default();
        status.families.iter().any(|family| family.by_record == "1").then_some(())
    })
    .await;
    let mut rows = Vec::new();
    for (name, address) in [("u", "10.0.0.9"), ("v", "10.0.0.10")] {
        let mut manifest = self::manifest(&place, name, "Always");
        on_other(&mut manifest);
        place.apply(&manifest).await;
        assert_eq!(place.address_of(name).await, address);
        rows.push(row(name, &place.secret_name(name).await, address));
        // The next leader reserves the address again before it allocates any address of the pool.
        place.change_leaders().await;
    }
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]), "the guest keeps its lease of the first network");
    let [u, v] = rows.try_into().unwrap();
    assert_eq!(guests(&[&place.hosted]).await, [u.clone(), v.clone(), row("w", &first, "10.0.0.8")]);
    assert_eq!(place.restart("w").await.network_data_secret.unwrap().0, second);
    place.end([u, v, row("w", &second, "10.0.0.8")]).await;
}

pub async fn a_machine_never_reads_its_earlier_secret_if_its_interface_has_another_name_on_another_network(
    cluster: &Cluster,
) {
    let mut place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let other = format!("{}-other", place.network);
    let moved = |name: &str, labels: Value| {
        let interface = json!({"name": name, "bridge": {}, "macAddress": next_mac(), "acpiIndex": 101});
        let network = json!({"name": name, "multus": {"networkName": other}});
        let spec = json!({"domain": {"devices": {"interfaces": [interface]}}, "networks": [network]});
        json!({"metadata": {"labels": labels}, "spec": {"template": {"spec": spec}}})
    };
    for name in ["u", "v", "w"] {
        place.run(name).await;
        place.until_recorded(name).await;
        place.halt(name).await;
    }
    let [u, v] = ["u", "v"].map(|name| place.secret_name(name));
    let (u, v) = (u.await, v.await);
    // Pool `p` still selects machine `u`, but not for its interface on the other network.
    merge(&place.vms, "u", &moved("net2", json!({}))).await;
    let of_u = place.secret_name("u").await;
    assert_ne!(of_u, u);
    // Without a webhook, the leader replaces or removes the reference.
    place.installed.stop_answering().await;
    merge(&place.vms, "v", &moved("net2", json!({}))).await;
    merge(&place.vms, "w", &moved("net2", json!({(POOL_LABEL): null}))).await;
    let changed = until(&place.vms, "v", |vm| Hosted::reference(vm).as_ref() != Some(&v)).await;
    let of_v = Hosted::reference(&changed).unwrap();
    let removed = until(&place.vms, "w", |vm| Hosted::reference(vm).is_none()).await;
    assert_eq!(added(&removed), json!({"secret": null, "acpiIndex": 101, "label": null, "of": null}));
    place.installed.answer_again().await;
    place.until_asked().await;
    assert_eq!(place.held().await, held([("10.0.0.10", "w"), ("10.0.0.8", "u"), ("10.0.0.9", "v")]));
    // A pool of the other network gives the machines new addresses.
    create_pool_on(&place, "q", &other, &["10.0.1.8/30"]).await;
    for name in ["u", "v"] {
        merge(&place.vms, name, &json!({"metadata": {"labels": {(POOL_LABEL): "q"}}})).await;
        place.boot(name).await;
    }
    merge(&place.vms, "w", &json!({"spec": {"runStrategy": "Always"}})).await;
    assert_eq!(place.until_running("w").await.network_data_secret, None);
    let w = ("w".to_owned(), None, Vec::new());
    place.end([row("u", &of_u, "10.0.1.8"), row("v", &of_v, "10.0.1.9"), w]).await;
}

pub async fn an_interface_that_stays_on_its_network_keeps_its_address_when_another_interface_moves(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/32"]).await;
    let others = ["q", "r"].map(|name| (name, format!("{}-{name}", place.network)));
    for ((name, network), address) in others.iter().zip(["10.0.1.8/32", "10.0.2.8/32"]) {
        let selector = serde_json::from_value(json!({"matchLabels": {"second": name}})).unwrap();
        let interface = Some("eno102".to_owned());
        let (network, machine_selector, node_pool_ref) = (network.clone(), Some(selector), None);
        let spec = PoolSpec { network, interface, machine_selector, node_pool_ref, ..place.spec(name, &[address]) };
        place.pools.create(&PostParams::default(), &StaticIPPool::new(name, spec)).await.unwrap();
    }
    let [(_, second), (_, third)] = &others;
    let mut manifest = manifest(&place, "w", "Always");
    manifest["metadata"]["labels"]["second"] = "q".into();
    let spec = &mut manifest["spec"]["template"]["spec"];
    let interfaces = spec["domain"]["devices"]["interfaces"].as_array_mut().unwrap();
    interfaces.push(json!({"name": "net2", "bridge": {}, "macAddress": next_mac()}));
    spec["networks"].as_array_mut().unwrap().push(json!({"name": "net2", "multus": {"networkName": second}}));
    place.apply(&manifest).await;
    let addresses = |drive: Drive| -> Vec<String> { drive.addresses().into_iter().map(|(_, it)| it).collect() };
    assert_eq!(addresses(place.until_running("w").await), ["10.0.0.8", "10.0.1.8"]);
    place.until_recorded("w").await;
    place.halt("w").await;
    // Another machine waits for the address that the first interface keeps.
    place.apply(&self::manifest(&place, "v", "Always")).await;
    place.until_event("v", "IPPoolExhausted").await;
    manifest["metadata"]["labels"]["second"] = "r".into();
    manifest["spec"]["template"]["spec"]["networks"][1]["multus"]["networkName"] = third.clone().into();
    let moved = place.apply(&manifest).await;
    let secret = Hosted::reference(&moved).unwrap();
    assert_eq!(addresses(place.until_running("w").await), ["10.0.0.8", "10.0.2.8"]);
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]));
    let released = later::leases(cluster, second).await.into_values().map(|spec| spec.released.is_some());
    assert_eq!(released.collect::<Vec<_>>(), [true]);
    let w = ("w".to_owned(), Some(secret), vec!["10.0.0.8".to_owned(), "10.0.2.8".to_owned()]);
    place.end([w]).await;
}

/// Creates a KubevirtMachine, and labels the manifest of its VirtualMachine as capk does.
async fn create_kubevirt_machine(place: &Place<'_>, manifest: &mut Value) {
    let name = manifest["metadata"]["name"].clone();
    let labels = &mut manifest["metadata"]["labels"];
    labels["capk.cluster.x-k8s.io/kubevirt-machine-namespace"] = place.namespace.clone().into();
    labels["capk.cluster.x-k8s.io/kubevirt-machine-name"] = name.clone();
    let machine = object(KUBEVIRT_MACHINE, json!({"metadata": {"name": name}, "spec": {}}));
    place.machines.create(&PostParams::default(), &machine).await.unwrap();
}

pub async fn machines_that_wait_on_another_network_get_addresses_when_their_pool_grows(cluster: &Cluster) {
    let mut place = Place::start(cluster, &["10.0.0.8/31"]).await;
    let other = format!("{}-other", place.network);
    create_pool_on(&place, "q", &other, &["10.0.1.8/32"]).await;
    let moved = json!({
        "metadata": {"labels": {(POOL_LABEL): "q"}},
        "spec": {"template": {"spec": {"networks": [{"name": "net1", "multus": {"networkName": other}}]}}},
    });
    // VirtualMachine `w` holds its address itself. The holder of the address of `x` is its KubevirtMachine.
    place.run("w").await;
    place.until_recorded("w").await;
    let mut manifest = manifest(&place, "x", "Always");
    create_kubevirt_machine(&place, &mut manifest).await;
    // A leader that has seen the CRD without the status map writes no status map.
    place.stop_leading();
    place.set_status_map("x", true).await;
    place.lead().await;
    place.apply(&manifest).await;
    place.until_running("x").await;
    until(&place.machines, "x", |machine| machine.data["status"][STATUS_FIELD]["eno101"].is_array()).await;
    let mut full = self::manifest(&place, "v", "Always");
    json_patch::merge(&mut full, &moved);
    place.apply(&full).await;
    place.until_running("v").await;
    for name in ["w", "x"] {
        place.halt(name).await;
        merge(&place.vms, name, &moved).await;
        place.until_event(name, "IPPoolExhausted").await;
    }
    let released = place.leases().await.into_iter().map(|(address, .., is_released)| (address, is_released));
    assert_eq!(released.collect::<Vec<_>>(), ["10.0.0.8", "10.0.0.9"].map(|address| (address.to_owned(), true)));
    let is_record =
        |(key, _): (&String, &String)| key.starts_with(ANNOTATION_PREFIX) || key.starts_with(NETWORK_PREFIX);
    let (w, x) = (place.vms.get("w").await.unwrap(), place.machines.get("x").await.unwrap());
    assert_eq!([&w, &x].map(|object| object.annotations().iter().any(is_record)), [false, false]);
    assert_eq!(x.data["status"][STATUS_FIELD], json!({}));
    place.set_status_map("x", false).await;
    // The records of all machines are adopted again.
    place.resize("q", &["10.0.1.8/31", "10.0.1.10/32"]).await;
    for (name, address) in [("w", "10.0.1.9"), ("x", "10.0.1.10")] {
        place.boot(name).await;
        assert_eq!(place.address_of(name).await, address);
    }
    assert_eq!(place.held().await, []);
    place.until_no_condition("p", "DuplicateRecords").await;
    let events: Api<Event> = Api::namespaced(cluster.client(), &place.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let conflicts = events.into_iter().filter(|event| event.reason.as_deref() == Some("IPAddressConflict"));
    assert_eq!(conflicts.map(|event| event.note).collect::<Vec<_>>(), []);
    let [v, w, x] = ["v", "w", "x"].map(|name| place.secret_name(name));
    let rows = [row("v", &v.await, "10.0.1.8"), row("w", &w.await, "10.0.1.9"), row("x", &x.await, "10.0.1.10")];
    place.end(rows).await;
}

pub async fn a_machine_keeps_its_address_under_a_new_secret_name_after_its_kubevirt_machine_is_gone(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/32"]).await;
    let mut manifest = manifest(&place, "w", "Always");
    create_kubevirt_machine(&place, &mut manifest).await;
    place.apply(&manifest).await;
    place.until_running("w").await;
    let first = place.secret_name("w").await;
    let holder = place.machines.get("w").await.unwrap().uid().unwrap();
    let of = |holder: &str, secret: &str| {
        ("10.0.0.8".to_owned(), holder.to_owned(), Some(BTreeSet::from([secret.to_owned()])), false)
    };
    place.machines.delete("w", &DeleteParams::default()).await.unwrap();
    place.until_gone(&place.machines, "w").await;
    let mac = next_mac();
    interface(&mut manifest)["macAddress"] = mac.clone().into();
    let changed = place.apply(&manifest).await;
    let second = Hosted::reference(&changed).unwrap();
    assert_ne!(first, second);
    let note = format!(
        "KubevirtMachine {}/w is gone, and a guest may use its addresses: stop the guest, or delete the VirtualMachine",
        place.namespace
    );
    assert_eq!(place.until_event("w", "NetworkDataMissing").await, note);
    // The guest still reads the earlier Secret.
    assert_eq!(place.leases().await, [of(&holder, &first)]);
    assert!(place.kubevirt.migrate("w").await);
    assert_eq!(guests(&[&place.hosted]).await, [row("w", &first, "10.0.0.8")]);
    assert_eq!(place.restart("w").await.addresses(), [(mac, "10.0.0.8".to_owned())]);
    place.until_no_secret(&first).await;
    assert_eq!(place.leases().await, [of(&changed.uid().unwrap(), &second)]);
    place.end([row("w", &second, "10.0.0.8")]).await;
}

/// Waits until the lease of an address names this pool.
pub(super) async fn until_of_pool(place: &Place<'_>, address: &str, pool: &str) {
    let (lease, pool) = (leader::name(&place.network, address), format!("{}/{pool}", place.namespace));
    let leases: Api<StaticIPLease> = Api::all(place.cluster.client());
    poll(&format!("lease {lease} of pool {pool}"), async || {
        (leases.get(&lease).await.unwrap().spec.pool == pool).then_some(())
    })
    .await;
}

/// Waits until the status of a pool counts this number of allocated addresses, and of addresses outside the pool.
async fn until_counted(place: &Place<'_>, pool: &str, allocated: &str, outside: &str) {
    poll(&format!("{allocated} allocated addresses of pool {pool}, and {outside} outside"), async || {
        let status = serde_json::to_value(place.pools.get(pool).await.unwrap().status).unwrap();
        let family = &status["families"][0];
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        ([&family["allocated"], &family["outside"]].map(text) == [allocated, outside]).then_some(())
    })
    .await;
}

pub async fn a_machine_that_another_pool_of_its_network_selects_keeps_its_address(cluster: &Cluster) {
    let mut place = Place::start(cluster, &["10.0.0.8/31"]).await;
    create_pool_on(&place, "q", &place.network, &["10.0.0.12/31"]).await;
    let (_, first) = place.run("w").await;
    place.until_recorded("w").await;
    let labels = |pool: &str| json!({"metadata": {"labels": {(POOL_LABEL): pool}}});
    merge(&place.vms, "w", &labels("q")).await;
    until_of_pool(&place, "10.0.0.8", "q").await;
    until_counted(&place, "q", "0", "1").await;
    until_counted(&place, "p", "1", "0").await;
    // The address is still in the first pool, but this pool allocates it to no other machine.
    let (_, v) = place.run("v").await;
    assert_eq!(place.restart("w").await.network_data_secret.unwrap().0, first);
    assert_eq!(place.held().await, held([("10.0.0.8", "w"), ("10.0.0.9", "v")]));
    // An administrator moves all machines of a pool by an edit of the selectors. Then the pool can be deleted.
    let selector = |pool: &str| json!({"spec": {"machineSelector": {"matchLabels": {(POOL_LABEL): pool}}}});
    let edit = async |pool: &str, selected: &str| {
        merge(&place.pools, pool, &selector(selected)).await;
    };
    edit("q", "none").await;
    edit("p", "q").await;
    until_of_pool(&place, "10.0.0.8", "p").await;
    edit("p", "none").await;
    edit("q", "p").await;
    until_of_pool(&place, "10.0.0.9", "q").await;
    edit("p", "gone").await;
    merge(&place.vms, "w", &labels("p")).await;
    until_of_pool(&place, "10.0.0.8", "q").await;
    place.pools.delete("p", &DeleteParams::default()).await.unwrap();
    poll("the end of the pool", async || place.pools.get_opt("p").await.unwrap().is_none().then_some(())).await;
    place.change_leaders().await;
    // The addresses are added to the other pool, and stay with their holders.
    place.resize("q", &["10.0.0.8/31", "10.0.0.12/31"]).await;
    until_counted(&place, "q", "2", "0").await;
    let (_, u) = place.run("u").await;
    assert!(place.kubevirt.migrate("w").await);
    assert_eq!(place.restart("v").await.network_data_secret.unwrap().0, v);
    place.end([row("u", &u, "10.0.0.12"), row("v", &v, "10.0.0.9"), row("w", &first, "10.0.0.8")]).await;
}

pub async fn after_a_loss_of_leases_a_record_reserves_its_address_in_a_pool_without_a_selector(cluster: &Cluster) {
    let mut place = Place::start(cluster, &["10.0.0.8/31"]).await;
    let (_, first) = place.run("w").await;
    place.until_recorded("w").await;
    place.installed.stop_leading();
    place.forget_leases().await;
    let pools = place.pools.clone();
    let select = async |selector: Value| {
        merge(&pools, "p", &json!({"spec": {"machineSelector": selector}})).await;
    };
    select(Value::Null).await;
    place.installed.lead().await;
    // The record of the machine reserves the address, without a lease.
    let site = Site::of(cluster, &place.namespace, "v1beta2");
    site.claim("c", &json!({"spec": {"poolRef": {"name": "p"}}})).await;
    assert_eq!(site.address_of("c").await, "10.0.0.9");
    assert_eq!(place.held().await, held([("10.0.0.9", "c")]));
    select(json!({"matchLabels": {(POOL_LABEL): "p"}})).await;
    place.until_held(2).await;
    assert_eq!(place.held().await, held([("10.0.0.8", "w"), ("10.0.0.9", "c")]));
    assert_eq!(place.restart("w").await.network_data_secret.unwrap().0, first);
    site.claims.delete("c", &DeleteParams::default()).await.unwrap();
    place.until_held(1).await;
    place.end([row("w", &first, "10.0.0.8")]).await;
}

pub async fn the_lease_of_a_machine_moves_to_a_pool_that_gets_its_address(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/31"]).await;
    let (_, first) = place.run("w").await;
    place.until_recorded("w").await;
    let selector = serde_json::from_value(json!({"matchLabels": {(POOL_LABEL): "p"}})).unwrap();
    let spec = PoolSpec {
        node_pool_ref: None,
        machine_selector: Some(selector),
        priority: Some(1),
        ..place.spec("q", &["10.0.0.20"])
    };
    place.pools.create(&PostParams::default(), &StaticIPPool::new("q", spec)).await.unwrap();
    // The earlier pool keeps an address that no machine uses.
    place.resize("p", &["10.0.0.16"]).await;
    until_counted(&place, "p", "0", "1").await;
    place.resize("q", &["10.0.0.8/31", "10.0.0.20"]).await;
    until_of_pool(&place, "10.0.0.8", "q").await;
    place.end([row("w", &first, "10.0.0.8")]).await;
}

pub async fn no_machine_gets_the_address_of_a_guest_that_migrated_to_another_cluster(cluster: &Cluster) {
    let mut place = Place::start(cluster, &["10.0.0.8/30"]).await;
    place.run("w").await;
    place.kubevirt.migrate_to_another_cluster("w").await;
    place.until_event("w", "IPAddressHeld").await;
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    place.until_gone(&place.vms, "w").await;
    place.until_held(0).await;
    let (_, v) = place.run("v").await;
    place.change_leaders().await;
    let (_, w) = place.run("w").await;
    assert_eq!(place.held().await, held([("10.0.0.10", "w"), ("10.0.0.9", "v")]));
    // An administrator knows that the guest no longer uses the address, and deletes the lease of the address.
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    leases.delete(&leader::name(&place.network, "10.0.0.8"), &DeleteParams::default()).await.unwrap();
    let (_, x) = place.run("x").await;
    place.end([row("v", &v, "10.0.0.9"), row("w", &w, "10.0.0.10"), row("x", &x, "10.0.0.8")]).await;
}

pub async fn a_machine_that_receives_a_guest_of_another_cluster_gets_an_address_for_the_next_start(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let mut receiver = manifest(&place, "w", RECEIVER);
    receiver["metadata"]["annotations"] = json!({(RESTORED_STRATEGY): "Always"});
    place.apply(&receiver).await;
    place.kubevirt.receive("w").await;
    // KubeVirt changes the run strategy while the guest runs.
    until(&place.vms, "w", |vm| vm.data["spec"]["runStrategy"] == "Always").await;
    let note = place.until_event("w", "NetworkDataMissing").await;
    assert_eq!(note, "The guest started without its network data: restart the machine");
    let vm = place.until_recorded("w").await;
    assert_eq!(vm.annotations().get(LEFT_ALONE_ANNOTATION), None);
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]));
    assert_eq!(place.restart("w").await.addresses()[0].1, "10.0.0.8");
    let secret = place.secret_name("w").await;
    place.end([row("w", &secret, "10.0.0.8")]).await;
}

// === version 0.2.0 ===

/// Creates a running machine with address 10.0.0.9, as version 0.2.0 has left it. Returns its manifest, and the stored
/// machine and Secret.
async fn create_machine_of_0_2_0(hosted: &Hosted, cluster: &Cluster) -> (Value, DynamicObject, Secret) {
    let manifest = manifest(hosted, "w", "Always");
    let mac = manifest["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"].clone();
    let mut vm = manifest.clone();
    interface(&mut vm)["acpiIndex"] = 101.into();
    vm["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"]["networkDataSecretRef"] =
        json!({"name": "w-networkdata"});
    let record = format!("{ANNOTATION_PREFIX}eno101");
    vm["metadata"]["annotations"] = json!({
        record: r#"["10.0.0.9/16"]"#, "kubectl.kubernetes.io/last-applied-configuration": manifest.to_string(),
    });
    let vm = hosted.vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
    let (uid, namespace) = (vm.uid().unwrap(), &hosted.namespace);
    let machine = json!({"namespace": namespace, "name": "w", "uid": uid});
    let given = json!({
        "interface": "eno101", "network": hosted.network, "pool": format!("{namespace}/p"), "addresses": ["10.0.0.9/16"],
    });
    let note = json!({"vm": uid, "kind": "VirtualMachine", "machine": machine, "interfaces": [given]});
    let document = json!({
        "links": [{"id": "eno101", "type": "phy", "ethernet_mac_address": mac}],
        "networks": [{
            "id": "network0", "network_id": "network0", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.9",
            "netmask": "255.255.0.0", "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"}],
        }],
    });
    let metadata = json!({
        "name": "w-networkdata", "labels": {"app.kubernetes.io/managed-by": "glowplug"},
        "annotations": {"ipam.glowplug.dev/allocation": note.to_string()},
        "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": uid}],
    });
    let secret = json!({
        "metadata": metadata, "immutable": true, "type": "Opaque",
        "data": {"networkdata": ByteString(document.to_string().into_bytes())},
    });
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let secret = hosted.secrets.create(&PostParams::default(), &secret).await.unwrap();
    let lease = json!({
        "network": hosted.network, "address": "10.0.0.9", "prefix": 16, "pool": format!("{namespace}/p"),
        "since": "2026-08-14T10:00:00.000000Z",
        "holder": {"kind": "VirtualMachine", "namespace": namespace, "name": "w", "uid": uid, "interface": "eno101"},
    });
    let name = leader::name(&hosted.network, "10.0.0.9");
    let lease = StaticIPLease::new(&name, serde_json::from_value(lease).unwrap());
    Api::all(cluster.client()).create(&PostParams::default(), &lease).await.unwrap();
    hosted.until_running("w").await;
    (manifest, vm, secret)
}

pub async fn a_machine_of_version_0_2_0_keeps_its_secret_until_it_is_created_again(cluster: &Cluster) {
    let hosted = Hosted::plain(cluster).await;
    let (manifest, vm, secret) = create_machine_of_0_2_0(&hosted, cluster).await;
    create_pool(&hosted, &["10.0.0.8/30"]).await;
    let place = Place::install(cluster, hosted).await;
    let expected = issued(&place, "w", "w-networkdata");
    until(&place.vms, "w", |vm| added(vm) == expected).await;
    let uid = vm.uid().unwrap();
    // A lease of version 0.2.0 has no names of Secrets.
    let earlier = ("10.0.0.9".to_owned(), uid, None, false);
    assert_eq!(place.leases().await, [earlier]);
    assert_eq!(added(&place.apply(&manifest).await), expected);
    assert_eq!(place.secrets.get("w-networkdata").await.unwrap(), secret);
    assert_eq!(place.restart("w").await.addresses()[0].1, "10.0.0.9");
    until_outdated(&place, 0).await;

    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    place.until_gone(&place.vms, "w").await;
    let (_, name) = place.run("w").await;
    let new = place.vms.get("w").await.unwrap().uid().unwrap();
    assert_ne!(name, "w-networkdata");
    place.until_no_secret("w-networkdata").await;
    place.until_held(1).await;
    let leases = place.leases().await;
    let mine: Vec<_> = leases.iter().filter(|lease| !lease.3).collect();
    assert_eq!(mine, [&(mine[0].0.clone(), new, Some(BTreeSet::from([name.clone()])), false)]);
    let address = mine[0].0.clone();
    place.end([row("w", &name, &address)]).await;
}

pub async fn a_manifest_with_the_secret_name_of_version_0_2_0_gets_a_new_secret_name(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let mut manifest = manifest(&place, "w", "Always");
    let source = json!({"userData": "#cloud-config", "networkDataSecretRef": {"name": "w-networkdata"}});
    manifest["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"] = source;
    let created = place.apply(&manifest).await;
    let secret = Hosted::reference(&created).unwrap();
    assert_eq!(added(&created), issued(&place, "w", &secret));
    assert_ne!(secret, "w-networkdata");
    // The manifest still has the Secret name of version 0.2.0.
    assert_eq!(added(&place.apply(&manifest).await), issued(&place, "w", &secret));
    place.until_running("w").await;
    place.end([row("w", &secret, "10.0.0.8")]).await;
}

// === orphans ===

/// Does what the garbage collector does to the objects of a VirtualMachine that is deleted with the policy `Orphan`.
async fn orphan(place: &Place<'_>, secret: &str) {
    let no_owner = json!({"metadata": {"ownerReferences": null}});
    merge(&place.instances, "w", &no_owner).await;
    place.secrets.patch(secret, &PatchParams::default(), &Patch::Merge(no_owner)).await.unwrap();
}

/// Checks that an orphaned instance keeps its Secret until its guest has ended.
async fn check_orphan(mut place: Place<'_>, secret: &str) {
    place.until_gone(&place.vms, "w").await;
    place.change_leaders().await;
    // Another machine is served, so the leader has seen the end of the VirtualMachine.
    let (_, other) = place.run("v").await;
    assert!(place.kubevirt.migrate("w").await);
    assert_eq!(guests(&[&place.hosted]).await, [row("v", &other, "10.0.0.9"), row("w", secret, "10.0.0.8")]);
    assert_eq!(place.held().await, held([("10.0.0.8", "w"), ("10.0.0.9", "v")]));
    place.kubevirt.end("w").await;
    place.until_no_secret(secret).await;
    place.until_held(1).await;
    place.end([row("v", &other, "10.0.0.9")]).await;
}

pub async fn an_orphan_keeps_its_secret_if_the_garbage_collector_is_faster_than_kubevirt(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, secret) = place.run("w").await;
    place.until_recorded("w").await;
    orphan(&place, &secret).await;
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    check_orphan(place, &secret).await;
}

pub async fn an_orphan_keeps_its_secret_if_kubevirt_is_faster_than_the_garbage_collector(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (_, secret) = place.run("w").await;
    place.until_recorded("w").await;
    let vm = place.vms.get("w").await.unwrap();
    let finalizers: Vec<&str> = vm.finalizers().iter().map(String::as_str).chain(["orphan"]).collect();
    merge(&place.vms, "w", &json!({"metadata": {"finalizers": finalizers}})).await;
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    until(&place.vms, "w", |vm| vm.finalizers() == ["orphan"]).await;
    orphan(&place, &secret).await;
    merge(&place.vms, "w", &json!({"metadata": {"finalizers": null}})).await;
    check_orphan(place, &secret).await;
}

// === a late write ===

pub async fn a_machine_never_reads_a_secret_that_is_stored_after_its_virtual_machine_is_gone(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (manifest, first) = place.run("w").await;
    let stored = place.vms.get("w").await.unwrap();
    let mut late = place.secrets.get(&first).await.unwrap();
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    place.until_gone(&place.vms, "w").await;
    place.until_no_secret(&first).await;
    place.until_held(0).await;
    // Another machine has the address before the API server stores the Secret of the earlier machine.
    let (_, other) = place.run("v").await;
    late.metadata.resource_version = None;
    late.metadata.uid = None;
    late.metadata.managed_fields = None;
    place.secrets.create(&PostParams::default(), &late).await.unwrap();
    // A person applies the template as it was stored in the cluster. The template refers to this late Secret.
    let mut exported = manifest.clone();
    exported["spec"]["template"] = stored.data["spec"]["template"].clone();
    let created = place.apply(&exported).await;
    let second = Hosted::reference(&created).unwrap();
    assert_ne!(second, first);
    assert_eq!(added(&created), issued(&place, "w", &second));
    place.until_running("w").await;
    assert_eq!(place.kubevirt.drives("w").last().unwrap().network_data_secret.as_ref().unwrap().0, second);
    let mut rows = place.held().await;
    rows.retain(|(_, name)| name == "w");
    let address = rows[0].0.clone();
    let v = guests(&[&place.hosted]).await[0].2[0].clone();
    place.end([row("v", &other, &v), row("w", &second, &address)]).await;
}

// === other cases ===

pub async fn a_machine_with_sr_iov_starts_after_it_has_a_mac_address(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let mut manifest = manifest(&place, "w", "Always");
    *interface(&mut manifest) = json!({"name": "net1", "sriov": {}});
    let created = place.apply(&manifest).await;
    let secret = Hosted::reference(&created).unwrap();
    let note = place.until_event("w", "NetworkDataMissing").await;
    let text = "interface \"net1\" uses SR-IOV and has no macAddress, expected a MAC address: nothing else identifies the interface in the guest";
    assert_eq!(note, text);
    until(&place.instances, "w", |instance| instance.data["status"]["phase"] == "Scheduling").await;
    let mac = next_mac();
    interface(&mut manifest)["macAddress"] = mac.clone().into();
    let changed = place.apply(&manifest).await;
    let of = format!("{}/w", place.namespace);
    assert_eq!(added(&changed), json!({"secret": secret, "acpiIndex": null, "label": ISSUED, "of": of}));
    assert_eq!(place.until_running("w").await.addresses(), [(mac, "10.0.0.8".to_owned())]);
    place.end([row("w", &secret, "10.0.0.8")]).await;
}

/// Creates a Secret of the user with the address 10.0.9.9. Returns the source of a cloud-init volume that refers to
/// this Secret.
async fn own_network_data(place: &Place<'_>) -> Value {
    let document = json!({
        "links": [{"id": "eno101", "type": "phy"}],
        "networks": [{"id": "n", "link": "eno101", "type": "ipv4", "ip_address": "10.0.9.9/16"}],
    });
    let data = json!({"networkdata": ByteString(document.to_string().into_bytes())});
    let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "mine"}, "data": data})).unwrap();
    place.secrets.create(&PostParams::default(), &secret).await.unwrap();
    json!({"userData": "#cloud-config", "networkDataSecretRef": {"name": "mine"}})
}

/// Returns the result of [`added`] for a machine with network data of its user.
fn own(acpi_index: &Value) -> Value {
    json!({"secret": "mine", "acpiIndex": acpi_index, "label": null, "of": null})
}

async fn until_kept(place: &Place<'_>) {
    let note = place.until_event("w", "NetworkDataKept").await;
    let expected = format!(
        "Secret {0}/mine has network data for the machine, so the machine gets no address of {0}/p",
        place.namespace
    );
    assert_eq!(note, expected);
}

pub async fn network_data_of_the_user_is_kept_in_a_new_machine(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let mut manifest = manifest(&place, "w", "Always");
    manifest["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"] = own_network_data(&place).await;
    assert_eq!(added(&place.apply(&manifest).await), own(&Value::Null));
    until_kept(&place).await;
    assert_eq!(added(&place.apply(&manifest).await), own(&Value::Null));
    place.until_running("w").await;
    assert_eq!(place.held().await, held([]));
    place.end([row("w", "mine", "10.0.9.9")]).await;
}

pub async fn network_data_of_a_user_reserves_its_address_although_no_pool_selects_the_machine(cluster: &Cluster) {
    let mut place = Place::start(cluster, &["10.0.0.8/31"]).await;
    let document = json!({
        "links": [{"id": "eno101", "type": "phy"}],
        "networks": [{"id": "n", "link": "eno101", "type": "ipv4", "ip_address": "10.0.0.8/16"}],
    });
    let mut other = manifest(&place, "u", "Halted");
    other["metadata"]["labels"] = json!({});
    let source = json!({"userData": "#cloud-config", "networkData": document.to_string()});
    other["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"] = source;
    let unchanged = json!({"secret": null, "acpiIndex": null, "label": null, "of": null});
    assert_eq!(added(&place.apply(&other).await), unchanged);
    // No guest reports 10.0.0.8. The next leader reserves this address before it allocates an address to a machine.
    place.change_leaders().await;
    let (_, w) = place.run("w").await;
    assert_eq!(place.held().await, held([("10.0.0.9", "w")]));
    place.vms.delete("u", &DeleteParams::default()).await.unwrap();
    let (_, x) = place.run("x").await;
    assert_eq!(place.held().await, held([("10.0.0.8", "x"), ("10.0.0.9", "w")]));
    place.end([row("w", &w, "10.0.0.9"), row("x", &x, "10.0.0.8")]).await;
}

/// Returns the text of network data that a user wrote, with this address.
fn document_of_user(address: &str) -> String {
    let network = json!({"id": "n", "link": "eno101", "type": "ipv4", "ip_address": format!("{address}/16")});
    json!({"links": [{"id": "eno101", "type": "phy"}], "networks": [network]}).to_string()
}

pub async fn no_machine_gets_the_address_of_a_guest_with_network_data_of_its_user_after_the_template_has_changed(
    cluster: &Cluster,
) {
    let mut place = Place::start(cluster, &["10.0.0.8/29"]).await;
    let mut own = manifest(&place, "w", "Always");
    let set = |manifest: &mut Value, address: &str| {
        let source = json!({"userData": "#cloud-config", "networkData": document_of_user(address)});
        manifest["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"] = source;
    };
    set(&mut own, "10.0.0.8");
    place.apply(&own).await;
    place.until_running("w").await;
    // The guest has no agent, so no guest reports its address.
    place.kubevirt.report("w", &json!({"interfaces": null})).await;
    set(&mut own, "10.0.0.9");
    place.apply(&own).await;
    place.change_leaders().await;
    let (_, x) = place.run("x").await;
    assert_eq!(place.held().await, held([("10.0.0.10", "x")]));
    // The VirtualMachine is deleted, and its instance becomes an orphan.
    merge(&place.instances, "w", &json!({"metadata": {"ownerReferences": null}})).await;
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    place.until_gone(&place.vms, "w").await;
    place.change_leaders().await;
    let (_, y) = place.run("y").await;
    assert_eq!(place.held().await, held([("10.0.0.10", "x"), ("10.0.0.9", "y")]));
    place.kubevirt.end("w").await;
    // A leader may write a status without the address of `y` before it has adopted the records.
    poll("no reserved address", async || {
        let status = place.pools.get("p").await.unwrap().status?;
        let counts = status.families.first()?;
        ((&*counts.allocated, &*counts.by_record) == ("2", "0")).then_some(())
    })
    .await;
    let (_, z) = place.run("z").await;
    place.end([row("x", &x, "10.0.0.10"), row("y", &y, "10.0.0.9"), row("z", &z, "10.0.0.8")]).await;
}

/// Starts a guest of machine `w` from a Secret whose document its user has changed with `change`. Then asserts that
/// machine `x` gets the address 10.0.0.10 from the next leader. `read` has the addresses that the guest reads.
async fn check_changed_secret(cluster: &Cluster, change: impl Fn(&mut Value), read: &[&str]) {
    let mut place = Place::start(cluster, &["10.0.0.8/29"]).await;
    let (_, first) = place.run("w").await;
    place.until_recorded("w").await;
    place.stop_leading();
    let mut document = place.until_running("w").await.document();
    change(&mut document);
    let changed = json!({"networkdata": ByteString(document.to_string().into_bytes())});
    merge(&place.secrets, &first, &json!({"data": changed})).await;
    assert_eq!(place.restart("w").await.network_data_secret.unwrap().0, first);
    place.kubevirt.report("w", &json!({"interfaces": null})).await;
    place.lead().await;
    // The leader reads the Secret after a change of the VirtualMachine.
    merge(&place.vms, "w", &json!({"metadata": {"annotations": {"changed": "true"}}})).await;
    let is_replaced = |vm: &DynamicObject| Hosted::reference(vm).is_some_and(|secret| secret != first);
    let second = Hosted::reference(&until(&place.vms, "w", is_replaced).await).unwrap();
    place.until_secret(&second).await;
    place.change_leaders().await;
    let (_, x) = place.run("x").await;
    assert_eq!(place.held().await, held([("10.0.0.10", "x"), ("10.0.0.8", "w")]));
    let of_w = ("w".to_owned(), Some(first), read.iter().map(|&address| address.to_owned()).collect());
    assert_eq!(guests(&[&place.hosted]).await, [of_w, row("x", &x, "10.0.0.10")]);
    place.restart("w").await;
    place.end([row("w", &second, "10.0.0.8"), row("x", &x, "10.0.0.10")]).await;
}

pub async fn no_machine_gets_an_address_that_a_guest_has_read_from_a_secret_that_its_user_had_changed(
    cluster: &Cluster,
) {
    let replace = |document: &mut Value| *document = serde_json::from_str(&document_of_user("10.0.0.9")).unwrap();
    check_changed_secret(cluster, replace, &["10.0.0.9"]).await;
}

pub async fn no_machine_gets_an_address_that_the_user_of_a_guest_had_added_to_its_secret(cluster: &Cluster) {
    let add = |document: &mut Value| {
        let added = json!({"id": "n", "link": "eno101", "type": "ipv4", "ip_address": "10.0.0.9/16"});
        document["networks"].as_array_mut().unwrap().push(added);
    };
    check_changed_secret(cluster, add, &["10.0.0.8", "10.0.0.9"]).await;
}

pub async fn network_data_of_the_user_replaces_the_network_data_of_the_controller(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (mut manifest, first) = place.run("w").await;
    manifest["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"] = own_network_data(&place).await;
    assert_eq!(added(&place.apply(&manifest).await), own(&Value::Null));
    until_kept(&place).await;
    assert_eq!(guests(&[&place.hosted]).await, [row("w", &first, "10.0.0.8")]);
    assert_eq!(place.restart("w").await.network_data_secret.unwrap().0, "mine");
    place.end([row("w", "mine", "10.0.9.9")]).await;
}

pub async fn a_machine_that_leaves_its_pool_starts_without_network_data(cluster: &Cluster) {
    let place = Place::start(cluster, &["10.0.0.8/30"]).await;
    let (mut manifest, first) = place.run("w").await;
    manifest["metadata"]["labels"] = json!({});
    let left = place.apply(&manifest).await;
    assert_eq!(added(&left), json!({"secret": null, "acpiIndex": null, "label": null, "of": null}));
    assert!(place.kubevirt.migrate("w").await);
    assert_eq!(guests(&[&place.hosted]).await, [row("w", &first, "10.0.0.8")]);
    assert_eq!(place.restart("w").await.network_data_secret, None);
    // With the label, the machine is in the pool again, and gets a Secret with a new name.
    manifest["metadata"]["labels"] = json!({(POOL_LABEL): "p"});
    place.apply(&manifest).await;
    let back = until(&place.vms, "w", |vm| Hosted::reference(vm).is_some()).await;
    let second = Hosted::reference(&back).unwrap();
    assert_ne!(first, second);
    place.restart("w").await;
    assert_eq!(place.held().await, held([("10.0.0.8", "w")]));
    place.end([row("w", &second, "10.0.0.8")]).await;
}

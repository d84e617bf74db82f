//! Leases that an administrator has written or edited with a mistake. Such a lease must not make any other address
//! unusable. After the lease is removed, or its content before the edit is restored, the address is usable again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use glowplug_controller::kinds::mac_pool::MAC_NETWORK;
use glowplug_controller::kinds::pool::StaticIPLease;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::observer::POOL_MACS;
use crate::place::{Place, all};
use crate::random::Random;
use crate::replicas::logs;
use crate::settle;
use crate::support::leader::name;
use crate::witness::{NETWORK, WITNESS};

/// Annotation of a lease that a person has created with a mistake. If the controller writes the lease, the annotation
/// is gone.
pub const WRITTEN: &str = "chaos.example/written";
/// Annotation of a lease that a person has edited: the content before the edit.
const EDITED: &str = "chaos.example/edited";
/// Time limit for the report of a lease that the controller cannot read.
const REPORT: Duration = Duration::from_secs(120);

pub struct Poison {
    leases: Api<DynamicObject>,
    /// Folder with the logs of the replicas.
    folder: PathBuf,
    /// Names of the leases that no program can read. The log of a leader must contain each of these names.
    unreadable: Mutex<BTreeSet<String>>,
    /// The holders in the written leases, by the name of the lease.
    holders: Mutex<BTreeMap<String, Value>>,
}

// === impl Poison ===

impl Poison {
    pub fn new(client: &Client, folder: &Path) -> Self {
        let leases = Api::all_with(client.clone(), &ApiResource::erase::<StaticIPLease>(&()));
        Self { leases, folder: folder.to_owned(), unreadable: Mutex::default(), holders: Mutex::default() }
    }

    /// Writes two leases with the same mistake: one on the network of a place, one on the network of the witness. Also
    /// writes a lease whose name contains no address, and a lease of a MAC address with a mistake.
    pub async fn write(&self, random: &mut Random, place: &Place) {
        let Some(address) = place.free_address(false, random).await else { return };
        let Some(victim) = place.victim(random).await else { return };
        let uid = victim.object.uid().unwrap_or_default();
        let far = "9999-12-31T23:59:59.000000Z";
        let long = "x".repeat(100_000);
        let number = random.below(1_000_000_000);
        let of_witness = format!("10.0.0.{}", 10 + random.below(240));
        let no_pool = format!("10.0.254.{}", 10 + random.below(200));
        // For each mistake: whether the controller can read the lease, and the wrong members.
        let mistakes = [
            (false, json!({"address": "10.0.0.9"})),
            (false, json!({"address": "10.0.0."})),
            (false, json!({"network": "infra/vlan1O"})),
            (false, json!({"prefix": 128})),
            (false, json!({"since": far})),
            (false, json!({"released": far})),
            (false, json!({"holder": {"interface": "eno 101"}})),
            (false, json!({"holder": {"interface": long}})),
            (true, json!({"holder": {"kind": "IPAddressClaim", "uid": uid}})),
            (true, json!({"holder": {"name": victim.object.name_any()}})),
            (true, json!({"holder": {"name": long}})),
            (true, json!({"holder": {"namespace": "", "name": "", "uid": ""}})),
            (true, json!({"holder": {"name": "../../pods", "namespace": "?x"}})),
            (true, json!({"pool": "", "prefix": 0})),
            (true, json!({"secrets": vec!["x".repeat(200); 2000]})),
            (true, json!({})),
        ];
        let Some((is_readable, mistake)) = random.one_of(&mistakes) else { return };
        let base = |namespace: &str, network: &str, address: &str| {
            json!({
                "network": network, "address": address, "prefix": 16, "pool": format!("{namespace}/a"),
                "holder": {
                    "kind": "KubevirtMachine", "namespace": namespace, "name": format!("typo-{number}"),
                    "uid": format!("typo-{number}"), "interface": "eno101",
                },
                "since": "2026-01-01T00:00:00.000000Z",
            })
        };
        let here = random.one_of(&[address, no_pool]).cloned().unwrap_or_default();
        for (namespace, network, address) in
            [(&*place.namespace, &*place.network, &*here), (WITNESS, NETWORK, &*of_witness)]
        {
            let mut spec = base(namespace, network, address);
            json_patch::merge(&mut spec, mistake);
            self.create(&name(network, address), &spec, *is_readable).await;
        }
        // Two more mistakes: a lease whose name contains no address, and a MAC address with the prefix length of a
        // network.
        self.create(&format!("typo-{number}"), &base(WITNESS, NETWORK, &of_witness), true).await;
        let mac = format!("{POOL_MACS}00:00:00:00:{:02x}", random.below(256));
        let mut spec = base(&place.namespace, MAC_NETWORK, &mac);
        json_patch::merge(&mut spec, mistake);
        self.create(&format!("{}.{MAC_NETWORK}", mac.replace(':', "-")), &spec, true).await;
    }

    async fn create(&self, name: &str, spec: &Value, is_readable: bool) {
        let kind = ApiResource::erase::<StaticIPLease>(&());
        let mut lease = DynamicObject::new(name, &kind).data(json!({"spec": spec}));
        lease.annotations_mut().insert(WRITTEN.to_owned(), String::new());
        let created = settle(async || self.leases.create(&PostParams::default(), &lease).await).await;
        if created.is_some() {
            self.holders.lock().unwrap().insert(name.to_owned(), spec["holder"].clone());
        }
        if created.is_some() && !is_readable {
            self.unreadable.lock().unwrap().insert(name.to_owned());
        }
    }

    /// Edits a lease of a place, so that no program can read the lease.
    pub async fn edit(&self, random: &mut Random, place: &Place) {
        let leases = all(&self.leases).await;
        let is_own = |lease: &&DynamicObject| {
            lease.data["spec"]["network"] == place.network.as_str() && lease.annotations().is_empty()
        };
        let own: Vec<&DynamicObject> = leases.iter().filter(is_own).collect();
        let Some(lease) = random.one_of(&own) else { return };
        let mistakes = [
            json!({"prefix": 128}),
            json!({"holder": {"interface": "eno 101"}}),
            json!({"since": "9999-12-31T23:59:59.000000Z"}),
        ];
        let Some(mistake) = random.one_of(&mistakes) else { return };
        let patch = json!({
            "metadata": {
                "resourceVersion": lease.resource_version(),
                "annotations": {(EDITED): lease.data["spec"].to_string()},
            },
            "spec": mistake,
        });
        let name = lease.name_any();
        let params = PatchParams::default();
        let edited = settle(async || self.leases.patch(&name, &params, &Patch::Merge(&patch)).await).await;
        if edited.is_some() {
            self.unreadable.lock().unwrap().insert(name);
        }
    }

    /// Waits until the replicas have reported the leases that they cannot read. Then deletes the leases that persons
    /// wrote, and restores the leases that persons edited. Returns a problem for each lease that no replica has
    /// reported.
    pub async fn end(&self) -> Vec<String> {
        let began = Instant::now();
        let missing = loop {
            let present: BTreeSet<String> = self.mistakes().await.iter().map(ResourceExt::name_any).collect();
            let logs = logs(&self.folder);
            let unreadable = self.unreadable.lock().unwrap().clone();
            let missing: Vec<String> = unreadable
                .into_iter()
                .filter(|name| present.contains(name) && !logs.contains(&format!("name=\"{name}\"")))
                .collect();
            if missing.is_empty() || began.elapsed() > REPORT {
                break missing;
            }
            sleep(Duration::from_secs(1)).await;
        };
        self.unreadable.lock().unwrap().clear();
        for mut lease in self.mistakes().await {
            let name = lease.name_any();
            if let Some(before) = lease.annotations_mut().remove(EDITED) {
                lease.data["spec"] = serde_json::from_str(&before).unwrap();
                settle(async || self.leases.replace(&name, &PostParams::default(), &lease).await).await;
            } else {
                settle(async || self.leases.delete(&name, &DeleteParams::default()).await).await;
            }
        }
        missing.iter().map(|name| format!("no replica reports the lease {name}, which cannot be read")).collect()
    }

    /// Returns a problem for each lease that a person wrote for a holder that does not exist, and that is still held.
    pub async fn problems(&self) -> Vec<String> {
        let leases = all(&self.leases).await;
        let holders = self.holders.lock().unwrap();
        let is_left = |lease: &&DynamicObject| {
            let spec = &lease.data["spec"];
            spec["released"].is_null() && holders.get(&lease.name_any()) == Some(&spec["holder"])
        };
        leases
            .iter()
            .filter(is_left)
            .map(|lease| format!("lease {}, which a person wrote, is still held", lease.name_any()))
            .collect()
    }

    /// Returns the leases that a person wrote or edited, and that the controller has not written since.
    async fn mistakes(&self) -> Vec<DynamicObject> {
        let is_mistake = |lease: &DynamicObject| {
            [WRITTEN, EDITED].iter().any(|annotation| lease.annotations().contains_key(*annotation))
        };
        all(&self.leases).await.into_iter().filter(is_mistake).collect()
    }
}

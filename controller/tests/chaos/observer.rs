//! The observer: watches the API server with a client of its own, and checks the history of every address. The observer
//! takes only the names of kinds from the controller, and reads all objects as plain JSON.
//!
//! Each watch stores what it reports. [`Observer::check`] waits until every watch has reported what a list returns,
//! orders all changes by their `resourceVersion`, which is the revision of etcd, and replays them. So the checks see
//! every version that was stored, in the order in which it was stored. The observer uses an API server of its own,
//! because the watches of an API server that restarts lose a part of the history.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use glowplug_controller::kinds::pool::{StaticIPLease, StaticIPPool};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::place::{AGENT, ELSEWHERE, RECORD, RESTORED};
use crate::poison::WRITTEN;
use crate::support::hosted::definitions::{INSTANCE, KUBEVIRT_MACHINE, VIRTUAL_MACHINE, resource};
use crate::tenant::{NETWORK, TENANT};

/// An address: its network, and the address as a string. A MAC address has the network `mac`.
type Address = (String, String);
/// Kind, namespace and name of an object.
type Id = (usize, String, String);

const LEASES: usize = 0;
const INSTANCES: usize = 1;
const VMS: usize = 2;
const SECRETS: usize = 3;
const CLAIMS: usize = 4;
const ADDRESSES: usize = 5;
const POOLS: usize = 6;
const MACHINES: usize = 7;
const KINDS: usize = 8;

/// Time after which the leader must know an address that a guest reports or an object records. This time is longer than
/// any fault during which a leader continues to lead.
const LEARNING: Duration = Duration::from_secs(30);

/// Longest time between the decision of the webhook on a new VirtualMachine and the creation time of the object. It is
/// possible that the webhook did not know a pool that was created in this time.
const CREATION: SignedDuration = SignedDuration::from_secs(15);
/// The label in the template of each VirtualMachine that has network data of the controller. The comments of this file
/// call this label the mark.
const MARK: &str = "ipam.glowplug.dev/network-data";
/// Annotation of each Secret of the controller, with the machine and its addresses.
const ALLOCATION: &str = "ipam.glowplug.dev/allocation";

/// First characters of each MAC address of a MACPool.
pub const POOL_MACS: &str = "0a:";

struct Seen {
    version: u64,
    at: Instant,
    kind: usize,
    is_gone: bool,
    object: DynamicObject,
}

#[derive(Default)]
struct Log {
    seen: Vec<Seen>,
    /// Last version of each object that the watches have reported, by kind.
    known: [BTreeMap<(String, String), u64>; KINDS],
    /// Number of times that a watch lost a part of the history.
    gaps: usize,
}

pub struct Observer {
    client: Client,
    /// Network of each namespace of machines.
    networks: BTreeMap<String, String>,
    log: Arc<Mutex<Log>>,
    tasks: Vec<JoinHandle<()>>,
    state: State,
}

/// What is known about a Secret with network data that the controller wrote.
struct Given {
    /// UID of the machine.
    holder: String,
    addresses: BTreeSet<Address>,
    /// Whether the Secret arrived after its VirtualMachine was deleted.
    is_late: bool,
    /// UID of the VirtualMachine.
    vm: String,
    /// Whether the Secret is deleted. Another Secret of the same name must give the same addresses to the same machine.
    is_gone: bool,
}

/// A running guest.
struct Guest {
    /// UID of the guest's instance.
    uid: String,
    /// UID of the guest's VirtualMachine. Empty: the guest is an orphan.
    vm: String,
    since: Instant,
    /// Addresses that the guest has read from its Secret.
    read: BTreeSet<Address>,
    /// Whether the guest has network data.
    has_data: bool,
}

/// A VirtualMachine.
struct Vm {
    namespace: String,
    name: String,
    /// Value of the label by which pools select the machine.
    label: String,
    /// UID of the pool that selected the machine when the machine was created. `None`: it is not certain that a pool
    /// selected the machine.
    pool: Option<String>,
    /// Whether the template has the mark.
    is_marked: bool,
    /// Whether a change has removed the mark, so that the next guest may start without network data.
    is_stripped: bool,
}

/// State of the replay: everything that the changes so far have shown.
#[derive(Default)]
struct State {
    /// Holder of each held lease, as namespace and name.
    held: BTreeMap<Address, (String, String)>,
    /// Every holder that an address has had, as namespace and name.
    ever: BTreeSet<(Address, (String, String))>,
    /// Content of each Secret, by namespace and name of the Secret.
    given: BTreeMap<(String, String), Given>,
    /// The running guests.
    guests: BTreeMap<Id, Guest>,
    /// The running guests that report an address, and the objects that record it, each with the time of the first
    /// report.
    reports: BTreeMap<Address, BTreeMap<Id, Instant>>,
    /// Running guests that report no address now. A leader whose term begins meanwhile does not know their addresses.
    silent: BTreeSet<Id>,
    /// Addresses that KubevirtMachines recorded before their pool existed, by UID of the KubevirtMachine.
    records: BTreeMap<String, Address>,
    /// KubevirtMachines that record an address.
    recorded: BTreeSet<Id>,
    /// Instances whose guest was running when the pool of the VirtualMachine was created: UID of the instance, by UID
    /// of the VirtualMachine.
    left_alone: BTreeMap<String, String>,
    /// Number of allocations of an address that was in use: a silent guest has it, or only a short time before a guest
    /// reported it or an object recorded it.
    taken: usize,
    /// The pools, by namespace and name: UID, label of the machines, and creation time.
    pools: BTreeMap<(String, String), (String, String, Timestamp)>,
    /// Label of the machines of each pool that is being deleted, by namespace and name of the pool.
    ending: BTreeMap<(String, String), String>,
    /// The VirtualMachines since the start or the last restore, by UID.
    machines: BTreeMap<String, Vm>,
    /// Number of guests that started without network data because a change had removed the mark of their machine while
    /// no webhook answered.
    stripped: usize,
    /// UID of the holder of each held lease.
    holders: BTreeMap<Address, String>,
    /// UIDs of the claims that are not being deleted, by namespace and name.
    claims: BTreeMap<(String, String), String>,
    /// UIDs of the VirtualMachines that are not being deleted, by namespace and name.
    vms: BTreeMap<(String, String), String>,
    /// The leases that ended since the start or the last restore: address, and UID of the holder.
    ended: BTreeSet<(Address, String)>,
    /// Addresses in use, by the running guest or the IPAddress that uses them.
    users: BTreeMap<Id, BTreeSet<Address>>,
    /// Running guests with an address that no restored lease has, as `namespace/name`.
    unrecorded: BTreeSet<String>,
    /// Holders of the restored leases. A machine that was deleted after the backup exists again, and its address may
    /// meanwhile belong to another machine. KubeVirt starts the restored machine with its restored Secret.
    restored: BTreeMap<Address, (String, String)>,
    /// Log lines about each address, for the report of a violation.
    history: BTreeMap<Address, Vec<String>>,
    violations: Vec<String>,
    changes: usize,
    /// Number of guests whose address a restored machine or claim uses, too.
    returned: usize,
    /// UIDs of the IPAddresses and Secrets that arrived after their claim or VirtualMachine had ended: see
    /// [`State::is_late`] and [`State::is_late_secret`].
    late: BTreeSet<String>,
}

/// Counters for the report of the run.
pub struct Counts {
    /// Number of checked changes.
    pub changes: usize,
    /// Number of times that a watch lost a part of the history.
    pub gaps: usize,
    /// Number of guests whose address a restored machine or claim uses, too.
    pub returned: usize,
    /// Number of IPAddresses and Secrets that arrived after their claim or VirtualMachine had ended.
    pub late: usize,
    /// Number of guests that started without network data, because a change had removed the mark of their machine.
    pub stripped: usize,
    /// Number of allocations of an address that was in use: a silent guest has it, or only a short time before a guest
    /// reported it or an object recorded it.
    pub taken: usize,
}

// === impl Observer ===

impl Observer {
    pub async fn start(client: Client, networks: BTreeMap<String, String>) -> Self {
        let mut observer = Self { client, networks, log: Arc::default(), tasks: Vec::new(), state: State::default() };
        observer.watch().await;
        observer
    }

    /// Starts from the current state of the cluster, for example after a restore: stops the watches, lists all objects
    /// as the initial state, and starts new watches.
    pub async fn watch(&mut self) {
        self.stop();
        *self.log.lock().unwrap() =
            Log { gaps: self.log.lock().map(|log| log.gaps).unwrap_or_default(), ..Log::default() };
        let state = &mut self.state;
        state.held.clear();
        state.given.clear();
        state.guests.clear();
        state.reports.clear();
        state.records.clear();
        state.left_alone.clear();
        state.pools.clear();
        state.ending.clear();
        state.machines.clear();
        state.holders.clear();
        state.claims.clear();
        state.vms.clear();
        state.ended.clear();
        state.users.clear();
        state.unrecorded.clear();
        let mut first = Vec::new();
        for kind in 0..KINDS {
            let api = self.api(kind);
            let list = list(&api).await;
            let version = list.metadata.resource_version.clone().unwrap_or_default();
            for object in list.items {
                self.log.lock().unwrap().known[kind].insert(key(&object), version_of(&object));
                first.push(Seen { version: 0, at: Instant::now(), kind, is_gone: false, object });
            }
            self.tasks.push(tokio::spawn(follow(api, kind, version, Arc::clone(&self.log))));
        }
        let state = &mut self.state;
        // Secrets come first, because the listed guests have already read them.
        let (secrets, rest): (Vec<Seen>, Vec<Seen>) = first.into_iter().partition(|seen| seen.kind == SECRETS);
        let (leases_and_guests, others): (Vec<Seen>, Vec<Seen>) =
            rest.into_iter().partition(|seen| [LEASES, INSTANCES].contains(&seen.kind));
        for seen in secrets.into_iter().chain(leases_and_guests) {
            state.apply(&seen, &self.networks, true);
        }
        // The unrecorded guests must be stored before the IPAddresses are applied: a restored IPAddress may have the
        // address of an unrecorded guest.
        state.note_unrecorded();
        for seen in others {
            state.apply(&seen, &self.networks, true);
        }
    }

    pub fn stop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }

    /// Waits until the watches have reported everything, and checks all changes. Returns the violations so far.
    pub async fn check(&mut self) -> &[String] {
        for kind in 0..KINDS {
            let api = self.api(kind);
            loop {
                let stored: BTreeMap<_, _> =
                    list(&api).await.items.iter().map(|object| (key(object), version_of(object))).collect();
                sleep(Duration::from_millis(300)).await;
                let log = self.log.lock().unwrap();
                let is_behind = |(key, version): (&(String, String), &u64)| {
                    log.known[kind].get(key).is_none_or(|known| known < version)
                };
                let is_left = |key: &(String, String)| !stored.contains_key(key);
                let newest = stored.values().max().copied().unwrap_or_default();
                // The watch must still report the deletion of an object that the list lacks, unless the object is newer
                // than the list.
                let left = log.known[kind].iter().any(|(key, version)| is_left(key) && *version <= newest);
                if !stored.iter().any(is_behind) && !left {
                    break;
                }
            }
        }
        let mut seen = std::mem::take(&mut self.log.lock().unwrap().seen);
        seen.sort_by_key(|seen| seen.version);
        self.state.changes += seen.len();
        for seen in &seen {
            self.state.apply(seen, &self.networks, false);
        }
        &self.state.violations
    }

    /// Returns the guests that have run since a restore with an address that no lease has, as `namespace/name`.
    pub fn unrecorded(&self) -> &BTreeSet<String> {
        &self.state.unrecorded
    }

    /// Returns the counters of the replay.
    pub fn counts(&self) -> Counts {
        let State { changes, returned, late, stripped, taken, .. } = &self.state;
        let gaps = self.log.lock().unwrap().gaps;
        Counts { changes: *changes, gaps, returned: *returned, late: late.len(), stripped: *stripped, taken: *taken }
    }

    fn api(&self, kind: usize) -> Api<DynamicObject> {
        let kind = match kind {
            LEASES => ApiResource::erase::<StaticIPLease>(&()),
            INSTANCES => resource(INSTANCE),
            VMS => resource(VIRTUAL_MACHINE),
            SECRETS => ApiResource::erase::<Secret>(&()),
            CLAIMS => resource(("ipam.cluster.x-k8s.io", "v1beta2", "IPAddressClaim", "ipaddressclaims", false)),
            POOLS => ApiResource::erase::<StaticIPPool>(&()),
            MACHINES => resource(KUBEVIRT_MACHINE),
            _ => resource(("ipam.cluster.x-k8s.io", "v1beta2", "IPAddress", "ipaddresses", false)),
        };
        Api::all_with(self.client.clone(), &kind)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Stores what a watch reports, until the task is stopped. A watch that breaks continues at the last version that it
/// has reported. If the API server no longer has this version, the watch continues at the current version, and the gap
/// is counted.
async fn follow(api: Api<DynamicObject>, kind: usize, mut version: String, log: Arc<Mutex<Log>>) {
    loop {
        let watch = match api.watch(&WatchParams::default().timeout(290), &version).await {
            Ok(watch) => watch,
            Err(error) => {
                if matches!(error, kube::Error::Api(status) if status.code == 410) {
                    log.lock().unwrap().gaps += 1;
                    version = list(&api).await.metadata.resource_version.unwrap_or_default();
                }
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let mut watch = watch.boxed();
        while let Some(Ok(event)) = watch.next().await {
            let (is_gone, object) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (false, object),
                WatchEvent::Deleted(object) => (true, object),
                WatchEvent::Bookmark(bookmark) => {
                    version.clone_from(&bookmark.metadata.resource_version);
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => {
                    log.lock().unwrap().gaps += 1;
                    version = list(&api).await.metadata.resource_version.unwrap_or_default();
                    break;
                }
                WatchEvent::Error(_) => break,
            };
            version = object.resource_version().unwrap_or_default();
            let mut log = log.lock().unwrap();
            if is_gone {
                log.known[kind].remove(&key(&object));
            } else {
                log.known[kind].insert(key(&object), version_of(&object));
            }
            log.seen.push(Seen { version: version_of(&object), at: Instant::now(), kind, is_gone, object });
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn list(api: &Api<DynamicObject>) -> kube::api::ObjectList<DynamicObject> {
    loop {
        match api.list(&ListParams::default()).await {
            Ok(list) => return list,
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

fn key(object: &DynamicObject) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Returns the label of the machines that a pool selects.
fn label_of(pool: &DynamicObject) -> String {
    text(&pool.data["spec"]["machineSelector"]["matchLabels"]["pool"])
}

fn version_of(object: &DynamicObject) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

// === impl State ===

impl State {
    fn apply(&mut self, seen: &Seen, networks: &BTreeMap<String, String>, is_first: bool) {
        let (namespace, name) = key(&seen.object);
        match seen.kind {
            // A person wrote this lease with a mistake, so the lease gives its address to no machine.
            LEASES if seen.object.annotations().contains_key(WRITTEN) => {}
            LEASES => self.lease(seen),
            INSTANCES => self.guest(seen, networks, is_first),
            ADDRESSES => {
                let id = (seen.kind, namespace.clone(), name);
                let address = canonical(&text(&seen.object.data["spec"]["address"]));
                let address = networks.get(&namespace).map(|network| (network.clone(), address));
                let is_restored = seen.object.annotations().contains_key(RESTORED);
                let is_present = !seen.is_gone;
                self.report(&id, address.iter().filter(|_| is_present && is_restored).cloned().collect(), seen.at);
                let is_used = is_present && !is_restored && !self.is_late(seen, networks);
                self.uses(seen, id, address.into_iter().filter(|_| is_used).collect(), is_first);
            }
            MACHINES => {
                let id = (seen.kind, namespace.clone(), name);
                let uid = seen.object.uid().unwrap_or_default();
                if seen.is_gone {
                    self.records.remove(&uid);
                    self.recorded.remove(&id);
                    return self.report(&id, BTreeSet::new(), seen.at);
                }
                if seen.object.annotations().contains_key(RECORD) {
                    self.recorded.insert(id.clone());
                } else {
                    self.recorded.remove(&id);
                }
                let label = seen.object.labels().get("pool");
                let pools = self.pools.iter().map(|((of, _), (_, pool, _))| (of, pool));
                // A leader may still use a pool whose deletion it has not seen yet.
                let mut pools = pools.chain(self.ending.iter().map(|((of, _), pool)| (of, pool)));
                let has_pool = pools.any(|(of, pool)| *of == namespace && Some(pool) == label);
                let record = seen.object.annotations().get(RECORD).filter(|_| !has_pool && !is_first);
                let addresses = record.and_then(|text| serde_json::from_str::<Vec<String>>(text).ok());
                let first = addresses.unwrap_or_default().first().and_then(|it| Some(it.split('/').next()?.to_owned()));
                if let (Some(address), Some(network)) = (first, networks.get(&namespace)) {
                    let address = (network.clone(), address);
                    self.report(&id, [address.clone()].into(), seen.at);
                    self.records.entry(uid).or_insert(address);
                }
            }
            CLAIMS if seen.is_gone || seen.object.metadata.deletion_timestamp.is_some() => {
                self.claims.remove(&(namespace, name));
            }
            CLAIMS => drop(self.claims.insert((namespace, name), seen.object.uid().unwrap_or_default())),
            VMS if seen.is_gone || seen.object.metadata.deletion_timestamp.is_some() => {
                self.vms.remove(&(namespace, name));
            }
            VMS => {
                self.vms.insert((namespace.clone(), name.clone()), seen.object.uid().unwrap_or_default());
                self.machine(seen, is_first);
                for address in macs(&seen.object.data["spec"]["template"]["spec"]) {
                    self.requires_lease(seen, &address, (&namespace, &name), is_first);
                }
            }
            SECRETS if seen.is_gone => {
                if let Some(given) = self.given.get_mut(&(namespace, name)) {
                    given.is_gone = true;
                }
            }
            SECRETS if seen.object.annotations().contains_key(ALLOCATION) => {
                let addresses = addresses_of_secret(&seen.object);
                for is_v4 in [true, false] {
                    let of_family = addresses.iter().filter(|address| address.is_ipv4() == is_v4);
                    if of_family.count() > 1 {
                        self.violation(
                            format!("Secret {namespace}/{name} has two addresses of a family: {addresses:?}"),
                            None,
                        );
                    }
                }
                let Some(network) = networks.get(&namespace) else { return };
                let id = (namespace.clone(), name.clone());
                let [holder, vm] = uids_in_secret(&seen.object);
                let addresses: BTreeSet<Address> =
                    addresses.into_iter().map(|address| (network.clone(), address.to_string())).collect();
                if let Some(before) = self.given.get(&id) {
                    // The gateway in a Secret may change, but the machine and the addresses must not change.
                    if (&before.holder, &before.vm, &before.addresses) != (&holder, &vm, &addresses) {
                        let what =
                            format!("Secret {namespace}/{name} gives {addresses:?} instead of its earlier addresses");
                        return self.violation(what, before.addresses.iter().next().cloned().as_ref());
                    }
                    if !before.is_gone {
                        return;
                    }
                }
                let is_late = !is_first && self.is_late_secret(seen);
                for address in addresses.iter().filter(|_| !is_first && !is_late) {
                    if self.holders.get(address) != Some(&holder) {
                        self.note(address, format!("{} Secret {namespace}/{name}", seen.version));
                        let what = format!("Secret {namespace}/{name} gives the address of another holder");
                        self.violation(what, Some(address));
                    }
                }
                self.given.insert(id, Given { holder, addresses, is_late, vm, is_gone: false });
            }
            POOLS if seen.is_gone => {
                self.pools.remove(&(namespace.clone(), name.clone()));
                self.ending.remove(&(namespace, name));
            }
            POOLS if seen.object.metadata.deletion_timestamp.is_some() => {
                self.pools.remove(&(namespace.clone(), name.clone()));
                self.ending.insert((namespace, name), label_of(&seen.object));
            }
            POOLS => {
                let label = label_of(&seen.object);
                let uid = seen.object.uid().unwrap_or_default();
                if !is_first && !self.pools.contains_key(&(namespace.clone(), name.clone())) {
                    self.leave_alone(&namespace, &label, seen.at);
                }
                self.pools.insert((namespace, name), (uid, label, created(&seen.object)));
            }
            _ => {}
        }
    }

    fn lease(&mut self, seen: &Seen) {
        let spec = &seen.object.data["spec"];
        let address = (text(&spec["network"]), canonical(&text(&spec["address"])));
        // The KubevirtMachine of a guest may be in another namespace, whose name has the suffix `ELSEWHERE`.
        let namespace = text(&spec["holder"]["namespace"]);
        let namespace = namespace.strip_suffix(ELSEWHERE).unwrap_or(&namespace).to_owned();
        let holder = (namespace, text(&spec["holder"]["name"]));
        let is_held = !seen.is_gone && spec["released"].is_null();
        let state = if seen.is_gone {
            "deleted"
        } else if is_held {
            "held"
        } else {
            "released"
        };
        let uid = text(&spec["holder"]["uid"]);
        if holder.0 == TENANT && address.0 != NETWORK {
            self.violation(format!("the hostile tenant has a {state} lease, as {}", holder.1), Some(&address));
        }
        self.note(&address, format!("{} lease {state}, holder {}/{} {uid}", seen.version, holder.0, holder.1));
        if self.restored.get(&address).is_some_and(|restored| !is_held || *restored != holder) {
            self.restored.remove(&address);
        }
        // A late Secret does not count, because no later machine refers to a late Secret.
        let gives = |given: &Given| {
            !given.is_late && !given.is_gone && given.holder == uid && given.addresses.contains(&address)
        };
        let secret = self.given.iter().find(|(_, given)| gives(given)).map(|(secret, _)| secret.clone());
        if let Some((namespace, name)) = secret.filter(|_| !is_held && self.holders.get(&address) == Some(&uid)) {
            let what = format!("the lease is {state} while Secret {namespace}/{name} gives the address");
            self.violation(what, Some(&address));
        }
        if is_held && self.holders.get(&address) != Some(&uid) {
            self.check_allocation(seen, &address, &holder, &uid);
        }
        if is_held {
            self.ended.remove(&(address.clone(), uid.clone()));
            self.holders.insert(address.clone(), uid);
            self.held.insert(address.clone(), holder.clone());
            self.ever.insert((address.clone(), holder.clone()));
        } else {
            self.ended.insert((address.clone(), uid));
            self.holders.remove(&address);
            self.held.remove(&address);
        }
        let users: Vec<Id> =
            self.users.iter().filter(|(_, used)| used.contains(&address)).map(|(id, _)| id.clone()).collect();
        for (kind, namespace, name) in users {
            let is_own = self.held.get(&address) == Some(&(namespace.clone(), name.clone()));
            if !is_own && !self.unrecorded.contains(&format!("{namespace}/{name}")) {
                let user = title(kind);
                self.violation(
                    format!("the lease is {state} while {user} {namespace}/{name} uses the address"),
                    Some(&address),
                );
            }
        }
    }

    /// Returns whether an IPAddress arrived after its claim was deleted and its lease was released. This happens when
    /// the API server receives the request of a leader only after another leader has ended the claim. No leader can
    /// prevent this. The claim of this IPAddress is gone, so no machine uses the address.
    fn is_late(&mut self, seen: &Seen, networks: &BTreeMap<String, String>) -> bool {
        let (namespace, name) = key(&seen.object);
        if seen.kind != ADDRESSES || self.users.contains_key(&(ADDRESSES, namespace.clone(), name.clone())) {
            return false;
        }
        let owner = seen.object.owner_references().iter().find(|owner| owner.kind == "IPAddressClaim");
        let (Some(owner), Some(network)) = (owner, networks.get(&namespace)) else { return false };
        let address = (network.clone(), canonical(&text(&seen.object.data["spec"]["address"])));
        let is_live = self.claims.get(&(namespace, name)) == Some(&owner.uid);
        let is_late = !is_live && self.ended.contains(&(address.clone(), owner.uid.clone()));
        if is_late && self.late.insert(seen.object.uid().unwrap_or_default()) {
            self.note(&address, format!("{} late IPAddress of claim {}", seen.version, owner.uid));
        }
        is_late
    }

    /// Applies a change of an instance: its guest starts, reports addresses, or ends. KubeVirt builds the drive from
    /// the Secret to which the instance refers, and the guest keeps what it has read from the drive.
    fn guest(&mut self, seen: &Seen, networks: &BTreeMap<String, String>, is_first: bool) {
        let (namespace, name) = key(&seen.object);
        let (id, instance) = ((INSTANCES, namespace.clone(), name), &seen.object);
        if seen.is_gone || instance.data["status"]["phase"] != "Running" {
            self.guests.remove(&id);
            self.silent.remove(&id);
            self.report(&id, BTreeSet::new(), seen.at);
            return self.uses(seen, id, BTreeSet::new(), is_first);
        }
        let own = own_network_data(&instance.data["spec"]);
        let uid = instance.uid().unwrap_or_default();
        if self.guests.get(&id).is_none_or(|guest| guest.uid != uid) {
            // The hostile tenant invents guests in its namespace, so only guests of the other namespaces are checked.
            if !is_first && networks.contains_key(&namespace) {
                self.check_start(&id, instance);
            }
            let secret = secret_of(&instance.data["spec"]);
            let given = secret.as_ref().and_then(|secret| self.given.get(&(namespace.clone(), secret.clone())));
            let read = given.map(|given| given.addresses.clone()).unwrap_or_default();
            let guest = Guest { uid, vm: vm_of(instance), since: seen.at, read, has_data: secret.is_some() || own };
            self.guests.insert(id.clone(), guest);
        }
        let reported = addresses_of_guest(&instance.data, networks.get(&namespace));
        let (macs, reported): (BTreeSet<Address>, BTreeSet<Address>) =
            reported.into_iter().partition(|(network, _)| network == "mac");
        // Addresses that a person has chosen, or that the agent reports falsely, need no lease.
        let is_true = !own && !instance.annotations().contains_key(AGENT);
        let used = macs.into_iter().chain(reported.iter().filter(|_| is_true).cloned());
        let used = used.chain(self.guests[&id].read.iter().cloned()).collect();
        // A guest that reports nothing keeps the addresses that it reported before.
        if reported.is_empty() {
            self.silent.insert(id.clone());
        } else {
            self.silent.remove(&id);
            self.report(&id, reported, seen.at);
        }
        self.uses(seen, id, used, is_first);
    }

    /// Replaces the addresses that a guest reports or an object records.
    fn report(&mut self, id: &Id, addresses: BTreeSet<Address>, at: Instant) {
        self.reports.retain(|address, by| {
            if !addresses.contains(address) {
                by.remove(id);
            }
            !by.is_empty()
        });
        for address in addresses {
            self.reports.entry(address).or_default().entry(id.clone()).or_insert(at);
        }
    }

    /// Applies the creation of a pool with this label. From now on, the controller must not change a machine with this
    /// label whose guest has run without network data for longer than [`LEARNING`], unless the KubevirtMachine of the
    /// machine records an address.
    fn leave_alone(&mut self, namespace: &str, label: &str, at: Instant) {
        for guest in self.guests.values().filter(|guest| !guest.has_data && at > guest.since + LEARNING) {
            let machine = self.machines.get(&guest.vm);
            let is_meant = machine.is_some_and(|machine| machine.namespace == namespace && machine.label == label);
            let has_record = machine.is_some_and(|machine| {
                self.recorded.contains(&(MACHINES, machine.namespace.clone(), machine.name.clone()))
            });
            if is_meant && !has_record {
                self.left_alone.insert(guest.vm.clone(), guest.uid.clone());
            }
        }
    }

    /// Returns whether the controller must not change this VirtualMachine, because its guest was already running when
    /// its pool was created.
    fn is_left_alone(&self, vm: &str) -> bool {
        let instance = self.left_alone.get(vm);
        instance.is_some_and(|instance| self.guests.values().any(|guest| guest.uid == *instance))
    }

    /// Checks a new lease: no other guest and no other object has named the address for longer than [`LEARNING`]. If
    /// the machine has a record, the lease must be of the recorded address. A machine that the controller must not
    /// change gets no lease.
    fn check_allocation(&mut self, seen: &Seen, address: &Address, holder: &(String, String), uid: &str) {
        let reports = self.reports.get(address).cloned().unwrap_or_default();
        let is_recorded =
            reports.keys().any(|(kind, of, name)| *kind == ADDRESSES && (of, name) == (&holder.0, &holder.1));
        for ((kind, namespace, name), since) in reports {
            if (&namespace, &name) == (&holder.0, &holder.1) {
                continue;
            }
            // The holder has a restored IPAddress with this address. The guest may be the machine that uses the claim
            // of this IPAddress.
            if is_recorded && kind == INSTANCES && namespace == holder.0 {
                continue;
            }
            let is_silent = self.silent.contains(&(kind, namespace.clone(), name.clone()));
            if seen.at > since + LEARNING && !is_silent {
                let what = format!("the address is allocated although {} {namespace}/{name} has it", title(kind));
                self.violation(what, Some(address));
            } else {
                self.taken += 1;
            }
        }
        if let Some(record) = self.records.get(uid).cloned()
            && record != *address
            && record.0 == address.0
            && address.1.contains('.')
            && !self.held.contains_key(&record)
        {
            let what = "gets the address, although its KubevirtMachine records";
            self.violation(format!("{}/{} {what} {}", holder.0, holder.1, record.1), Some(address));
        }
        if self.is_left_alone(uid) {
            let what = "gets the address, although its guest was running when its pool was created";
            self.violation(format!("{}/{} {what}", holder.0, holder.1), Some(address));
        }
    }

    /// Checks which Secret a guest has read at its start.
    fn check_start(&mut self, (_, namespace, name): &Id, instance: &DynamicObject) {
        let vm = vm_of(instance);
        if let Some(secret) = secret_of(&instance.data["spec"]) {
            match self.given.get(&(namespace.clone(), secret.clone())) {
                None => self.violation(format!("guest {namespace}/{name} reads the unknown Secret {secret}"), None),
                Some(given) if !vm.is_empty() && given.vm != vm => {
                    let what = format!("guest {namespace}/{name} of {vm} reads Secret {secret} of {}", given.vm);
                    self.violation(what, given.addresses.first().cloned().as_ref());
                }
                Some(_) => {}
            }
            return;
        }
        if own_network_data(&instance.data["spec"]) {
            return;
        }
        let machine = self.machines.get(&vm);
        let pool = machine.and_then(|machine| machine.pool.clone());
        if instance.labels().contains_key(MARK) {
            self.violation(format!("guest {namespace}/{name} with the mark starts without network data"), None);
        } else if pool.as_ref().is_some_and(|pool| self.pools.values().any(|(uid, ..)| uid == pool)) {
            if machine.is_some_and(|machine| machine.is_stripped) {
                self.stripped += 1;
            } else {
                self.violation(format!("guest {namespace}/{name} of a pool starts without network data"), None);
            }
        }
    }

    /// Stores which pool selects a VirtualMachine at its creation, and whether a later change removes the mark.
    fn machine(&mut self, seen: &Seen, is_first: bool) {
        let (namespace, uid) = (seen.object.namespace().unwrap_or_default(), seen.object.uid().unwrap_or_default());
        let template = &seen.object.data["spec"]["template"];
        let is_marked = !template["metadata"]["labels"][MARK].is_null();
        if (is_marked || secret_of(&template["spec"]).is_some()) && self.is_left_alone(&uid) {
            self.violation(
                format!(
                    "{namespace}/{} is changed, although its guest was running when its pool was created",
                    seen.object.name_any()
                ),
                None,
            );
        }
        if let Some(machine) = self.machines.get_mut(&uid) {
            machine.is_stripped |= machine.is_marked && !is_marked;
            machine.is_marked = is_marked;
            return;
        }
        let label = seen.object.labels().get("pool").cloned().unwrap_or_default();
        let is_older = |since: &Timestamp| *since + CREATION <= created(&seen.object);
        let mut pools = self
            .pools
            .iter()
            .filter(|((of, _), (_, pool, since))| !is_first && *of == namespace && *pool == label && is_older(since));
        let pool = pools.next().map(|(_, (uid, ..))| uid.clone());
        let name = seen.object.name_any();
        self.machines.insert(uid, Vm { namespace, name, label, pool, is_marked, is_stripped: false });
    }

    /// Returns whether a Secret arrived after its VirtualMachine was deleted, and counts such a Secret. A guest of a
    /// later VirtualMachine with the same name must not read such a Secret: [`State::check_start`] checks this rule.
    fn is_late_secret(&mut self, seen: &Seen) -> bool {
        let owner = seen.object.owner_references().iter().find(|owner| owner.kind == "VirtualMachine");
        let is_late = owner.is_some_and(|owner| {
            self.vms.get(&(seen.object.namespace().unwrap_or_default(), owner.name.clone())) != Some(&owner.uid)
        });
        if is_late {
            self.late.insert(seen.object.uid().unwrap_or_default());
        }
        is_late
    }

    /// Replaces the addresses that a guest or an IPAddress uses, and checks the new addresses.
    fn uses(&mut self, seen: &Seen, id: Id, used: BTreeSet<Address>, is_first: bool) {
        let before = self.users.get(&id).cloned().unwrap_or_default();
        let (kind, namespace, name) = id.clone();
        let machine = format!("{namespace}/{name}");
        for address in before.difference(&used) {
            self.note(address, format!("{} {} {machine} ends", seen.version, title(kind)));
        }
        if used.is_empty() {
            self.users.remove(&id);
            if kind == INSTANCES {
                self.unrecorded.remove(&machine);
            }
        } else {
            self.users.insert(id.clone(), used.clone());
        }
        for address in used.difference(&before) {
            let uid = seen.object.uid().unwrap_or_default();
            self.note(address, format!("{} {} {machine} {uid} begins", seen.version, title(kind)));
            let others: Vec<String> = self
                .users
                .iter()
                .filter(|(other, used)| **other != id && used.contains(address))
                .map(|((kind, namespace, name), _)| format!("{} {namespace}/{name}", title(*kind)))
                .collect();
            let is_restored = self.restored.get(address) == Some(&(namespace.clone(), name.clone()));
            let is_unrecorded =
                |other: &String| other.strip_prefix("guest ").is_some_and(|machine| self.unrecorded.contains(machine));
            if is_restored && others.iter().all(is_unrecorded) {
                self.returned += others.len();
            } else if !others.is_empty() {
                self.violation(format!("{} {machine} uses the address of {others:?}", title(kind)), Some(address));
            }
            let has_pool = address.0 != "mac" || address.1.starts_with(POOL_MACS);
            let is_own = self.held.get(address) == Some(&(namespace.clone(), name.clone()));
            if has_pool && !is_own && !is_first && !self.unrecorded.contains(&machine) {
                self.violation(format!("{} {machine} uses the address without a lease", title(kind)), Some(address));
            }
        }
    }

    /// Checks that an object has an address only after its machine has had a lease of this address.
    fn requires_lease(&mut self, seen: &Seen, address: &Address, machine: (&str, &str), is_first: bool) {
        let (namespace, name) = machine;
        let entry = (address.clone(), (namespace.to_owned(), name.to_owned()));
        let has_pool = address.0 != "mac" || address.1.starts_with(POOL_MACS);
        if is_first {
            self.ever.insert(entry);
        } else if has_pool && !self.ever.contains(&entry) {
            self.note(address, format!("{} {} of {namespace}/{name}", seen.version, title(seen.kind)));
            self.violation(
                format!("{} of {namespace}/{name} has the address before a lease", title(seen.kind)),
                Some(address),
            );
        }
    }

    /// Stores which guests use an address without a lease at the beginning of the replay.
    fn note_unrecorded(&mut self) {
        self.restored = self.held.clone();
        for ((kind, namespace, name), used) in &self.users {
            let is_own = |address: &Address| self.held.get(address) == Some(&(namespace.clone(), name.clone()));
            let has_pool = |address: &Address| address.0 != "mac" || address.1.starts_with(POOL_MACS);
            if *kind == INSTANCES && used.iter().any(|address| has_pool(address) && !is_own(address)) {
                self.unrecorded.insert(format!("{namespace}/{name}"));
            }
        }
    }

    fn note(&mut self, address: &Address, line: String) {
        self.history.entry(address.clone()).or_default().push(line);
    }

    /// Stores a violation with the history of the address.
    fn violation(&mut self, what: String, address: Option<&Address>) {
        let history = address.and_then(|address| self.history.get(address)).cloned().unwrap_or_default();
        let first = history.len().saturating_sub(30);
        let place = address.map(|(network, address)| format!("{address} of {network}: ")).unwrap_or_default();
        self.violations.push(format!("{place}{what}\n    {}", history[first..].join("\n    ")));
    }
}

fn title(kind: usize) -> &'static str {
    ["lease", "guest", "VirtualMachine", "Secret", "IPAddressClaim", "IPAddress", "pool", "KubevirtMachine"][kind]
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the canonical notation of an IP address or a MAC address, so that two addresses can be compared as strings.
fn canonical(address: &str) -> String {
    address.parse::<IpAddr>().map(|address| address.to_string()).unwrap_or_else(|_| address.to_lowercase())
}

fn macs(spec: &Value) -> Vec<Address> {
    let interfaces = spec["domain"]["devices"]["interfaces"].as_array().into_iter().flatten();
    let macs = interfaces.map(|interface| text(&interface["macAddress"])).filter(|mac| !mac.is_empty());
    macs.map(|mac| ("mac".to_owned(), mac.to_lowercase())).collect()
}

/// Returns the IP addresses and MAC addresses of a running guest.
fn addresses_of_guest(instance: &Value, network: Option<&String>) -> BTreeSet<Address> {
    if instance["status"]["phase"] != "Running" {
        return BTreeSet::new();
    }
    let interfaces: Vec<&Value> = instance["status"]["interfaces"].as_array().into_iter().flatten().collect();
    let ips = interfaces.iter().flat_map(|it| it["ipAddresses"].as_array().into_iter().flatten());
    let ips = ips.filter_map(|ip| Some((network?.clone(), canonical(&text(ip)))));
    let macs = interfaces.iter().map(|it| ("mac".to_owned(), text(&it["mac"]).to_lowercase()));
    ips.chain(macs.filter(|(_, mac)| !mac.is_empty())).collect()
}

/// Returns the name of the Secret with network data to which the specification of a machine refers.
fn secret_of(spec: &Value) -> Option<String> {
    let volumes = spec["volumes"].as_array()?;
    let sources = volumes.iter().flat_map(|volume| [&volume["cloudInitConfigDrive"], &volume["cloudInitNoCloud"]]);
    sources.filter_map(|source| source["networkDataSecretRef"]["name"].as_str()).map(str::to_owned).next()
}

/// Returns the UID of the VirtualMachine of an instance. Empty: the instance has no VirtualMachine.
fn vm_of(instance: &DynamicObject) -> String {
    let owner = instance.owner_references().iter().find(|owner| owner.kind == "VirtualMachine");
    owner.map(|owner| owner.uid.clone()).unwrap_or_default()
}

/// Returns whether the specification of a machine contains network data that a person wrote.
pub fn own_network_data(spec: &Value) -> bool {
    let volumes = spec["volumes"].as_array();
    volumes.into_iter().flatten().any(|volume| volume["cloudInitConfigDrive"]["networkData"].is_string())
}

/// Returns the UIDs of the machine whose addresses a Secret gives, and of its VirtualMachine.
fn uids_in_secret(secret: &DynamicObject) -> [String; 2] {
    let note = secret.annotations().get(ALLOCATION).cloned().unwrap_or_default();
    let note: Value = serde_json::from_str(&note).unwrap_or_default();
    [&note["machine"]["uid"], &note["vm"]].map(text)
}

fn created(object: &DynamicObject) -> Timestamp {
    object.creation_timestamp().map(|time| time.0).unwrap_or_default()
}

/// Returns the addresses in the network data of a Secret.
fn addresses_of_secret(secret: &DynamicObject) -> Vec<IpAddr> {
    let secret: Secret = match serde_json::to_value(secret).and_then(serde_json::from_value) {
        Ok(secret) => secret,
        Err(_) => return Vec::new(),
    };
    let data = secret.data.unwrap_or_default();
    let document = data.get("networkdata").map(|data| serde_json::from_slice::<Value>(&data.0).unwrap_or_default());
    let networks = document.unwrap_or_default()["networks"].as_array().cloned().unwrap_or_default();
    let addresses = networks.iter().map(|network| text(&network["ip_address"]));
    addresses.filter_map(|address| address.split('/').next()?.parse().ok()).collect()
}

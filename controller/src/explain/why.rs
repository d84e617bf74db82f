//! Explains what one VirtualMachine or claim holds or waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use glowplug::host::claim::{is_namespace, is_object_name};
use k8s_openapi::api::core::v1;
use kube::api::{ApiResource, ListParams};
use serde::Serialize;

use crate::cluster::conditions::{DUPLICATE_RECORDS, UNREADABLE_LEASES, head};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::explain::claim::{ClaimAnswer, claim};
use crate::explain::event::Event;
use crate::explain::held::HeldAddress;
use crate::explain::lists::{namespaces, problem_text};
use crate::explain::read::{Reader, rights};
use crate::explain::text::{rows_of, write_section};
use crate::explain::verdict::{State, contradicted, verdict, waits};
use crate::kinds::kubevirt_machine::{
    Instance, KubevirtMachine, NetworkSecret, created, recorded_addresses, recorded_addresses_of_vm,
};
use crate::kinds::pool::{
    FamilyCount, GlobalStaticIPPool, Holder, HolderKind, LeaseSpec, StaticIPLease, StaticIPPool, Waiting,
};
use crate::kinds::virtual_machine::{VirtualMachine, instances, kubevirt_machines, node_pools, virtual_machines};
use crate::pools::facts::PoolObject;
use crate::pools::reference::lacking;
use crate::pools::selection::{KnownPool, NamespaceLabels, Problem, Selected, Selection};

/// The objects of the cluster that the answer about one machine needs.
struct Facts {
    machine: VirtualMachine,
    /// The same machine, with the labels of its template added to its own labels.
    relabelled: VirtualMachine,
    /// Phase of the VirtualMachineInstance. `None`: there is no instance.
    phase: Option<String>,
    instance: Option<Instance>,
    /// The Secret with the network data of the machine.
    secret: NetworkSecret,
    kubevirt_machine: Recording,
    /// All StaticIPPools and GlobalStaticIPPools.
    pools: Vec<KnownPool>,
    /// All NodePools.
    node_pools: Vec<Object>,
    /// The labels of Namespaces. `None`: the user has no right to list Namespaces, or no pool selects by these labels.
    namespaces: Option<NamespaceLabels>,
    /// All leases.
    leases: Vec<LeaseSpec>,
    /// The events of the VirtualMachine, in any order.
    events: Vec<Event>,
}

/// The KubevirtMachine of a VirtualMachine, as far as an answer needs it.
#[derive(Default)]
pub(super) struct Recording {
    /// UID of the KubevirtMachine. `None`: there is no KubevirtMachine, or the user has no right to read it.
    uid: Option<String>,
    /// The addresses that are recorded in the KubevirtMachine.
    addresses: BTreeSet<IpAddr>,
}

/// The objects of the cluster that are the same for all machines.
pub(super) struct Known {
    pools: Vec<KnownPool>,
    selection: Selection,
    /// The first claims and machines that wait for each pool.
    waiting: BTreeMap<PoolId, Vec<Waiting>>,
    /// The leases, by the names of their holders.
    leases: BTreeMap<String, Vec<LeaseSpec>>,
    /// The network and the address of each lease, held or released.
    leased: BTreeSet<(String, IpAddr)>,
}

/// The objects of the cluster that belong to one machine.
pub(super) struct Seen<'s> {
    pub(super) machine: &'s VirtualMachine,
    /// The same machine, with the labels of its template added to its own labels. `None`: the caller needs no advice
    /// about these labels.
    pub(super) relabelled: Option<&'s VirtualMachine>,
    /// Phase of the VirtualMachineInstance. `None`: there is no instance.
    pub(super) phase: Option<String>,
    pub(super) instance: Option<&'s Instance>,
    /// The Secret with the network data of the machine.
    pub(super) secret: &'s NetworkSecret,
    pub(super) kubevirt_machine: Recording,
    /// The events of the VirtualMachine, in any order.
    pub(super) events: Vec<Event>,
}

/// The answer of `kubectl glowplug why` about a machine.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Version of the structure.
    pub version: u32,
    /// Namespace and name of the machine.
    pub machine: String,
    /// Phase of the VirtualMachineInstance. `null`: there is no instance.
    pub phase: Option<String>,
    /// The state of the machine.
    pub state: State,
    /// Whether the machine waits for an address or for its network data, or is refused.
    #[serde(skip)]
    pub(super) waits: bool,
    /// The pools that select the machine. For each interface, the first pool comes before its overflow pools.
    pub pools: Vec<Selecting>,
    /// The addresses that the machine holds.
    pub addresses: Vec<HeldAddress>,
    /// The time since which the machine holds its addresses or waits. `null`: unknown.
    pub since: Option<String>,
    /// Why the machine is in this state.
    pub reason: String,
    /// What a person can do. `null`: nothing needs to be done.
    pub what_to_do: Option<String>,
    /// The last events of the controller about the machine. The oldest event comes first.
    pub events: Vec<Event>,
}

/// A pool that selects a machine.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Selecting {
    /// Namespace and name of the pool.
    pub pool: String,
    /// Network to which the addresses of the pool belong.
    pub network: String,
    /// Name of the interface in the guest.
    pub interface: String,
}

/// Maximum number of events in an answer.
const EVENTS: usize = 5;

/// Phases of an instance whose guest does not run yet.
const BEFORE_RUNNING: [&str; 3] = ["Pending", "Scheduling", "Scheduled"];

/// The answer of `kubectl glowplug why` about an object.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Explained {
    /// The answer about a VirtualMachine, or about a KubevirtMachine that has no VirtualMachine.
    Machine(Box<Answer>),
    /// The answer about an IPAddressClaim or an IPAMClaim.
    Claim(Box<ClaimAnswer>),
}

/// Reads a machine or claim and the objects on which the answer depends, and explains the machine or claim. If a
/// machine has the name, claims of this name are not read.
///
/// # Errors
///
/// A request failed, the user has no right to read an object that every answer needs, or there is no machine or claim
/// of this name.
pub async fn why(reader: &Reader, key: &Key) -> anyhow::Result<Explained> {
    let mut pools = reader.required(&ApiResource::erase::<StaticIPPool>(&()), reader.scope()).await?;
    pools.extend(reader.required(&ApiResource::erase::<GlobalStaticIPPool>(&()), None).await?);
    let pools: Vec<KnownPool> = pools.into_iter().map(|pool| KnownPool::read(PoolObject::read(pool))).collect();
    let leases = reader.required(&ApiResource::erase::<StaticIPLease>(&()), None).await?;
    let spec = |lease: Object| serde_json::from_value::<LeaseSpec>(lease.data.get("spec")?.clone()).ok();
    let leases: Vec<LeaseSpec> = leases.into_iter().filter_map(spec).collect();
    let node_pools = reader.required(&node_pools(), reader.scope()).await?;
    let namespaces = namespaces(reader, pools.iter().map(|pool| &*pool.checked)).await?;
    let of_machine = format!("involvedObject.kind=VirtualMachine,involvedObject.name={}", key.name);
    let kind = ApiResource::erase::<v1::Event>(&());
    let machine = reader.get(&virtual_machines(), key).await?;
    let uid = machine.as_ref().and_then(|machine| machine.metadata.uid.as_deref());
    let (mut events, params) = (Vec::new(), ListParams::default().fields(&of_machine));
    reader.each(&kind, Some(&key.namespace), params, |event| events.extend(Event::of_controller(&event, uid))).await?;
    let instance = reader.get(&instances(), key).await?;
    let Some(machine) = machine else {
        let machine = reader.get(&kubevirt_machines(), key).await?;
        let claim = match &machine {
            Some(_) => None,
            None => claim(reader, key, &leases).await?,
        };
        reader.check()?;
        if let Some(machine) = machine {
            let known = Known::new(pools, node_pools, namespaces.as_ref(), leases);
            return Ok(Explained::Machine(Box::new(known.explain_rejected(machine))));
        }
        let lacking = reader.lacking();
        anyhow::ensure!(claim.is_some() || lacking.is_empty(), "{}", rights(&lacking));
        let kinds = "VirtualMachine, KubevirtMachine, IPAddressClaim or IPAMClaim";
        return claim.map(|claim| Explained::Claim(Box::new(claim))).with_context(|| format!("{key}: no {kinds}"));
    };
    reader.check()?;
    let [machine, relabelled] = [machine.clone(), with_labels_of_template(machine)].map(VirtualMachine::read);
    let phase = instance.as_ref().and_then(|instance| Some(instance.data["status"]["phase"].as_str()?.to_owned()));
    let instance = instance.map(Instance::read);
    let secret = match machine.secret() {
        Some(name) => {
            reader.get(&ApiResource::erase::<v1::Secret>(&()), &Key { name: name.to_owned(), ..key.clone() }).await?
        }
        None => None,
    };
    let secret = NetworkSecret::read(secret.and_then(|secret| secret.parse().ok()));
    let kubevirt_machine = match machine.kubevirt_machine() {
        Some(key) => reader.get(&kubevirt_machines(), &key).await?.as_ref().map(Recording::of).unwrap_or_default(),
        None => Recording::default(),
    };
    let facts = Facts {
        machine,
        relabelled,
        phase,
        instance,
        secret,
        kubevirt_machine,
        pools,
        node_pools,
        namespaces,
        leases,
        events,
    };
    Ok(Explained::Machine(Box::new(explain(facts))))
}

/// Explains a machine.
fn explain(facts: Facts) -> Answer {
    let Facts {
        machine,
        relabelled,
        phase,
        instance,
        secret,
        kubevirt_machine,
        pools,
        node_pools,
        namespaces,
        leases,
        events,
    } = facts;
    let known = Known::new(pools, node_pools, namespaces.as_ref(), leases);
    let (instance, relabelled) = (instance.as_ref(), Some(&relabelled));
    known.explain(Seen { machine: &machine, relabelled, phase, instance, secret: &secret, kubevirt_machine, events })
}

/// Returns a VirtualMachine with the labels of its template added to its own labels.
fn with_labels_of_template(mut machine: Object) -> Object {
    let labels = machine.data["spec"]["template"]["metadata"]["labels"].as_object().into_iter().flatten();
    let labels = labels.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
    let labels: BTreeMap<String, String> = labels.collect();
    let own = machine.metadata.labels.get_or_insert_default();
    for (name, value) in labels {
        own.entry(name).or_insert(value);
    }
    machine
}

// === impl Recording ===

impl Recording {
    pub(super) fn of(machine: &Object) -> Self {
        Self { uid: machine.metadata.uid.clone(), addresses: recorded_addresses(machine) }
    }
}

// === impl Known ===

impl Known {
    pub(super) fn new(
        pools: Vec<KnownPool>,
        node_pools: Vec<Object>,
        namespaces: Option<&NamespaceLabels>,
        leases: Vec<LeaseSpec>,
    ) -> Self {
        let node_pools = node_pools.into_iter().map(Arc::new);
        let selection = Selection::new(pools.iter().map(|pool| Arc::clone(&pool.checked)), node_pools, namespaces);
        let waiting = pools.iter().map(|pool| (pool.checked.id.clone(), pool.status.first_waiting.clone())).collect();
        let leased = leases.iter().filter_map(|it| Some((it.network.clone(), it.address.parse().ok()?))).collect();
        let mut of_name: BTreeMap<String, Vec<LeaseSpec>> = BTreeMap::new();
        for lease in leases {
            of_name.entry(lease.holder.name.clone()).or_default().push(lease);
        }
        Self { pools, selection, waiting, leases: of_name, leased }
    }

    /// Whether any pool selects a machine.
    fn selects(&self, machine: &VirtualMachine) -> bool {
        self.selection.of(machine).is_ok_and(|selected| !selected.is_empty())
    }

    /// Returns the first address that an object of a machine records, that a pool of the machine offers, and that no
    /// lease has. `None`: there is no such address. `recorded` has the addresses that the objects of the machine
    /// record.
    fn lost(&self, selected: &[Selected], recorded: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let offers = |selected: &Selected, address: IpAddr| {
            let mut pools = selected.pools().filter_map(|id| self.selection.pool(id)?.pool.as_ref().ok());
            pools.any(|pool| pool.offers(address))
        };
        let has_lease = |it: &Selected, address: IpAddr| {
            self.leased.contains(&(it.network.clone(), address))
                || !self.lines(UNREADABLE_LEASES, &it.network, &address.to_string()).is_empty()
        };
        let is_lost = |address: &&IpAddr| selected.iter().any(|it| offers(it, **address) && !has_lease(it, **address));
        recorded.iter().find(is_lost).copied()
    }

    /// Returns the lines about an address, from each true condition of this type on the pools of the network.
    fn lines(&self, type_: &str, network: &str, address: &str) -> BTreeSet<&str> {
        let of_network = self.pools.iter().filter(|pool| pool.checked.network() == Some(network));
        let conditions = of_network.flat_map(|pool| &pool.status.conditions);
        let true_ones = conditions.filter(|it| it.type_ == type_ && it.status == "True");
        let start = format!("{address}: ");
        true_ones.flat_map(|it| it.message.lines()).filter(|line| line.starts_with(&start)).collect()
    }

    /// Returns a sentence about the addresses in a reuse delay, which become free without a change. Only exhausted
    /// pools count. `None`: there is no such address.
    fn delayed(&self, pools: &BTreeSet<String>) -> Option<String> {
        let mut sentences = Vec::new();
        for pool in self.pools.iter().filter(|pool| pools.contains(&pool.checked.id.to_string())) {
            let is_delayed = |it: &&FamilyCount| it.free == "0" && !matches!(&*it.reuse_delay, "" | "0");
            sentences.extend(pool.status.families.iter().filter(is_delayed).map(|it| {
                let (id, count, family) = (&pool.checked.id, &it.reuse_delay, &it.family);
                format!("{count} {family} addresses of pool {id} are free again after their reuse delay")
            }));
        }
        (!sentences.is_empty()).then(|| sentences.join("; "))
    }

    /// The leases that a machine holds, including those of earlier VirtualMachines of its name.
    fn held(&self, machine: &VirtualMachine) -> Vec<&LeaseSpec> {
        let names: BTreeSet<String> =
            machine.kubevirt_machine().into_iter().chain([machine.key()]).map(|key| key.name).collect();
        let of_names = names.iter().filter_map(|name| self.leases.get(name)).flatten();
        of_names.filter(|lease| is_of(lease, machine)).collect()
    }

    /// Returns the exhausted pools that would make the webhook reject the VirtualMachine of a KubevirtMachine again.
    /// `None`: no VirtualMachine of the KubevirtMachine was rejected, or no pool selects the VirtualMachine.
    pub(super) fn lacking(&self, machine: &KubevirtMachine) -> Option<Vec<String>> {
        let vm = machine.refused.as_ref()?;
        let selected = self.selection.of(vm).ok().filter(|selected| !selected.is_empty())?;
        let held = self.held(vm).into_iter().map(|lease| lease.network.clone()).collect();
        let lacking = lacking(vm, &selected, &held, &self.selection);
        Some(lacking.into_iter().flat_map(|(it, _)| it.pools()).map(PoolId::to_string).collect())
    }

    /// Explains a KubevirtMachine without a VirtualMachine. If the pool of a machine is exhausted or invalid, the
    /// webhook rejects the VirtualMachine, and cluster-api-provider-kubevirt writes the reason into a condition.
    fn explain_rejected(&self, machine: Object) -> Answer {
        let key = Key::of(&machine.metadata);
        let is_own = |namespace: &str, name: &str| (namespace, name) == (&*key.namespace, &*key.name);
        let conditions = machine.data["status"]["conditions"].as_array().into_iter().flatten();
        let rejected = conditions.into_iter().find(|it| it["type"] == "VMProvisioned" && it["status"] == "False");
        let text = |member: &str| rejected.and_then(|it| it[member].as_str()).map(|text| head(text).to_owned());
        let (message, since) = (text("message").filter(|message| !message.is_empty()), text("lastTransitionTime"));
        let uid = machine.metadata.uid.clone();
        let lacking = self.lacking(&KubevirtMachine::read(machine));
        let waiting = self.waiting.iter().filter_map(|(pool, first)| {
            let first = first.iter().find(|it| is_own(&it.namespace, &it.name))?;
            Some((pool, first))
        });
        let by_itself = "cluster-api-provider-kubevirt then creates the VirtualMachine by itself";
        let cause = match lacking.as_deref() {
            None => format!("remove the cause; {by_itself}"),
            Some([]) => format!("wait: the machine has an address now, or its pool has a free one; {by_itself}"),
            Some(pools) => {
                let add =
                    format!("add addresses to pool {}, or delete machines that hold some", pools.join(" or to pool "));
                let delayed = self.delayed(&pools.iter().cloned().collect());
                [Some(add), delayed, Some(by_itself.to_owned())].into_iter().flatten().collect::<Vec<_>>().join("; ")
            }
        };
        let (state, reason, since, what_to_do) = match (message, waits(waiting)) {
            (Some(message), _) => (State::Waiting, message, since, Some(cause)),
            (None, Some(verdict)) => verdict,
            (None, None) => {
                let none = "cluster-api-provider-kubevirt has not created the VirtualMachine yet".to_owned();
                (State::Waiting, none, since, Some(cause))
            }
        };
        let held = self.leases.get(&key.name).into_iter().flatten().filter(|lease| {
            let Holder { kind, namespace, name, uid: of_holder, .. } = &lease.holder;
            let is_machine = *kind == HolderKind::KubevirtMachine && is_own(namespace, name);
            lease.released.is_none() && is_machine && uid.as_ref() == Some(of_holder)
        });
        Answer {
            version: 1,
            machine: key.to_string(),
            phase: None,
            state,
            waits: true,
            pools: Vec::new(),
            addresses: held.map(HeldAddress::from).collect(),
            since,
            reason,
            what_to_do,
            events: Vec::new(),
        }
    }

    /// Explains a machine from the objects that were read.
    pub(super) fn explain(&self, seen: Seen<'_>) -> Answer {
        let Seen { machine, relabelled, phase, instance, secret, mut kubevirt_machine, mut events } = seen;
        events.sort();
        let created = instance.and_then(|it| created(&it.metadata)).map(|it| it.to_string());
        let is_outdated = match (instance, secret) {
            (Some(instance), NetworkSecret::Ours(secret)) => instance.has_started && !instance.has_read(secret),
            _ => false,
        };
        // If the guest runs, an event that is older than the instance no longer applies, because the guest started with
        // its network data.
        let is_over = |event: &Event| phase.as_deref() == Some("Running") && event.is_before(created.as_deref());
        let current: Vec<&Event> = events.iter().filter(|event| !is_over(event)).collect();
        let key = machine.key();
        let (held, earlier): (Vec<&LeaseSpec>, Vec<&LeaseSpec>) =
            self.held(machine).into_iter().partition(|lease| is_of_uid(lease, machine, &kubevirt_machine));
        let mut used: BTreeSet<(&str, String)> =
            held.iter().map(|lease| (&*lease.network, lease.address.clone())).collect();
        for (network, reported) in instance.iter().flat_map(|instance| &instance.guest.networks) {
            used.extend(reported.addresses.keys().map(|address| (&**network, address.to_string())));
        }
        let mut recorded = std::mem::take(&mut kubevirt_machine.addresses);
        recorded.extend(recorded_addresses_of_vm(machine));
        let (selected, verdict) = match self.selection.of(machine) {
            Ok(selected) => {
                let held = (&*held, self.lost(&selected, &recorded));
                let verdict = verdict(machine, &selected, &self.selection, held, &self.waiting, (instance, &current));
                (selected, verdict)
            }
            Err(problem @ Problem::UnknownNamespaces { .. }) => {
                let what_to_do = "ask for the right, or ask a user who has it".to_owned();
                (Vec::new(), (State::Unknown, problem_text(&problem), None, Some(what_to_do)))
            }
            Err(problem) => (Vec::new(), contradicted(machine, &problem)),
        };
        // While the pools contradict each other, the controller writes no Secret, and a new instance may wait for one.
        let is_starting = || phase.as_deref().is_some_and(|phase| BEFORE_RUNNING.contains(&phase));
        let lacks_network = || held.is_empty() || selected.is_empty() && is_starting();
        let waits = verdict.0 == State::Waiting || verdict.0 == State::Conflicting && lacks_network();
        let lines = |type_, addresses: &BTreeSet<(&str, String)>| {
            let lines: BTreeSet<&str> =
                addresses.iter().flat_map(|(network, address)| self.lines(type_, network, address)).collect();
            lines.into_iter().collect::<Vec<_>>().join("; ")
        };
        let others = lines(DUPLICATE_RECORDS, &used);
        let recorded = recorded.iter().map(IpAddr::to_string);
        used.extend(recorded.flat_map(|it| selected.iter().map(move |pool| (&*pool.network, it.clone()))));
        let unreadable = lines(UNREADABLE_LEASES, &used);
        // If no pool of the machine counts an outdated machine, the cause of the event `NetworkDataOutdated` is gone.
        let pools = selected.iter().flat_map(Selected::pools).map(PoolId::to_string);
        let pools: BTreeSet<String> = pools.chain(held.iter().map(|lease| lease.pool.clone())).collect();
        let is_counted =
            self.pools.iter().any(|it| it.status.outdated > 0 && pools.contains(&it.checked.id.to_string()));
        let outdated = events.last().filter(|event| event.reason == "NetworkDataOutdated" && is_counted);
        let (of_guest, kept) = match outdated {
            Some(event) if event.message.ends_with(": restart the machine") => (Some(event), None),
            event => (None, event),
        };
        // The instance and the Secret show whether a started guest has read its network data. If the user has no right
        // to get the Secret, only the event shows this.
        let is_known = instance.is_some_and(|it| it.has_started) && matches!(secret, NetworkSecret::Ours(_));
        let of_guest = of_guest.filter(|event| instance.is_some() && !is_known && !is_over(event));
        let (state, mut reason, since, what_to_do) = match verdict {
            (_, _, since, _) if !unreadable.is_empty() => {
                let what_to_do = "correct or delete the lease: \"A lease cannot be read\" in docs/troubleshooting.md";
                (State::Conflicting, unreadable, since, Some(what_to_do.to_owned()))
            }
            (State::Allocated | State::NotSelected | State::LeftAlone, _, since, _) if !others.is_empty() => {
                let what_to_do = "stop one of the two users: \"Resolve each conflict\" in docs/recovery.md".to_owned();
                (State::Conflicting, others, since, Some(what_to_do))
            }
            (State::Allocated, _, since, None) if kept.is_some() => {
                let message = kept.map(|event| event.message.clone()).unwrap_or_default();
                (State::Outdated, message, since, Some("remove the cause that the reason names".to_owned()))
            }
            (State::Allocated, _, since, None) if is_outdated => {
                let reason = "the guest runs with earlier network data".to_owned();
                (State::Outdated, reason, since, Some("restart the machine".to_owned()))
            }
            (State::Allocated, _, since, None) if of_guest.is_some() => {
                let message = of_guest.map(|event| event.message.clone()).unwrap_or_default();
                (State::Outdated, message, since, Some("restart the machine".to_owned()))
            }
            (State::NotSelected, reason, since, Some(what_to_do)) if relabelled.is_some_and(|it| self.selects(it)) => {
                let labels = "the labels of spec.template do not count: write them into metadata.labels";
                (State::NotSelected, reason, since, Some(format!("{what_to_do}; {labels}")))
            }
            (State::Waiting, reason, since, Some(what_to_do)) => {
                let delayed = self.delayed(&pools).map(|delayed| format!("; {delayed}")).unwrap_or_default();
                (State::Waiting, reason, since, Some(what_to_do + &delayed))
            }
            verdict => verdict,
        };
        if !earlier.is_empty() {
            let addresses: Vec<&str> = earlier.iter().map(|lease| &*lease.address).collect();
            let addresses = addresses.join(", ");
            reason += &format!("; held for the guest of an earlier machine of this name: {addresses}");
        }
        let events = events.split_off(events.len().saturating_sub(EVENTS));
        Answer {
            version: 1,
            machine: key.to_string(),
            phase,
            state,
            waits,
            pools: selected.iter().flat_map(Selecting::all_of).collect(),
            addresses: held.into_iter().map(HeldAddress::from).collect(),
            since,
            reason,
            what_to_do,
            events,
        }
    }
}

/// Whether a lease is held by a machine: by the VirtualMachine itself, or by its KubevirtMachine.
fn is_of(lease: &LeaseSpec, machine: &VirtualMachine) -> bool {
    let holder = &lease.holder;
    let own = Key { namespace: holder.namespace.clone(), name: holder.name.clone() };
    let vm = Key { namespace: holder.vm_namespace.clone().unwrap_or_else(|| holder.namespace.clone()), ..own.clone() };
    let is_machine = machine.key() == vm || machine.kubevirt_machine() == Some(own);
    lease.released.is_none() && !holder.kind.is_claim() && is_machine
}

/// Whether a lease belongs to the machine, and not to an earlier VirtualMachine or KubevirtMachine of the same name. If
/// the UID of the KubevirtMachine is unknown, every lease of a KubevirtMachine of this name belongs to the machine.
fn is_of_uid(lease: &LeaseSpec, machine: &VirtualMachine, kubevirt_machine: &Recording) -> bool {
    let holder = &lease.holder;
    match holder.kind {
        HolderKind::VirtualMachine => machine.metadata.uid.as_ref() == Some(&holder.uid),
        HolderKind::KubevirtMachine => kubevirt_machine.uid.as_ref().is_none_or(|uid| *uid == holder.uid),
        HolderKind::IpAddressClaim | HolderKind::IpamClaim | HolderKind::Service | HolderKind::Cluster => false,
    }
}

/// Parses the namespace and the name of a machine or claim: `namespace/name`.
///
/// # Errors
///
/// The string is not the namespace and the name of an object.
pub fn machine_key(text: &str) -> Result<Key, &'static str> {
    match text.split_once('/') {
        Some((namespace, name)) if is_namespace(namespace) && is_object_name(name) => Ok(Key::from((namespace, name))),
        _ => Err("expected NAMESPACE/NAME"),
    }
}

// === impl Selecting ===

impl Selecting {
    /// Returns the pool that selects a machine, followed by its overflow pools.
    fn all_of(selected: &Selected) -> Vec<Self> {
        let selecting = |pool: &PoolId| Self {
            pool: pool.to_string(),
            network: selected.network.clone(),
            interface: selected.interface.to_string(),
        };
        selected.pools().map(selecting).collect()
    }
}

// === impl Explained ===

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine(answer) => answer.fmt(f),
            Self::Claim(answer) => answer.fmt(f),
        }
    }
}

// === impl Answer ===

/// Writes the answer as tables for people.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "-".to_owned();
        let machine = [
            self.machine.clone(),
            self.phase.clone().unwrap_or_else(none),
            self.state.to_string(),
            self.since.clone().unwrap_or_else(none),
        ];
        f.write_str(&rows_of(["MACHINE", "PHASE", "STATE", "SINCE"], vec![machine]))?;
        write!(f, "\n{}", rows_of(["REASON"], vec![[self.reason.clone()]]))?;
        if let Some(what_to_do) = &self.what_to_do {
            write!(f, "\n{}", rows_of(["WHAT TO DO"], vec![[what_to_do.clone()]]))?;
        }
        let pools = self.pools.iter().cloned().map(|it| [it.pool, it.network, it.interface]);
        write_section(f, ["POOL", "NETWORK", "INTERFACE"], pools.collect())?;
        let held = self.addresses.iter().cloned();
        let held = held.map(|it| [it.address, it.network, it.interface, it.pool, it.since]);
        write_section(f, ["ADDRESS", "NETWORK", "INTERFACE", "POOL", "SINCE"], held.collect())?;
        let events = self.events.iter().cloned().map(|it| [it.time, it.reason, it.message]);
        write_section(f, ["TIME", "EVENT", "MESSAGE"], events.collect())
    }
}

#[cfg(test)]
mod tests {
    use glowplug::host::claim::Machine;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::object::object;
    use crate::kinds::kubevirt_machine::{Given, OwnSecret, secret};
    use crate::kinds::virtual_machine::{Attachment, LEFT_ALONE_ANNOTATION};

    const SECRET: &str = "w-networkdata-abcdefghijklmnop";

    /// A VirtualMachine `n/w` on the network `infra/vlan10`, with this cloud-init volume. `metadata` adds members to
    /// its metadata.
    fn machine(volume: Value, metadata: Value) -> VirtualMachine {
        let mut vm = json!({
            "metadata": {"namespace": "n", "name": "w", "uid": "v", "labels": {"role": "worker"}},
            "spec": {"template": {"spec": {
                "domain": {"devices": {"interfaces": [{"name": "net1"}]}},
                "networks": [{"name": "net1", "multus": {"networkName": "infra/vlan10"}}],
                "volumes": [{"name": "cloud", "cloudInitConfigDrive": volume}],
            }}},
        });
        json_patch::merge(&mut vm, &json!({"metadata": metadata}));
        VirtualMachine::read(object(vm))
    }

    /// The cloud-init volume of a machine, with a reference to the Secret with network data.
    fn referring() -> Value {
        json!({"networkDataSecretRef": {"name": SECRET}})
    }

    fn pool(name: &str, changes: Value) -> KnownPool {
        let mut pool = json!({
            "metadata": {"namespace": "n", "name": name},
            "spec": {
                "network": "infra/vlan10", "addresses": ["10.0.0.0/24"],
                "machineSelector": {"matchLabels": {"role": "worker"}},
            },
        });
        json_patch::merge(&mut pool, &changes);
        KnownPool::read(PoolObject::read(object(pool)))
    }

    fn lease(holder: Value) -> LeaseSpec {
        let mut of =
            json!({"kind": "VirtualMachine", "namespace": "n", "name": "w", "uid": "v", "interface": "eno101"});
        json_patch::merge(&mut of, &holder);
        serde_json::from_value(json!({
            "network": "infra/vlan10", "address": "10.0.0.8", "prefix": 24, "pool": "n/p", "holder": of,
            "since": "2026-08-14T10:00:00.000000Z",
        }))
        .unwrap()
    }

    fn about(machine: VirtualMachine, pools: Vec<KnownPool>, leases: Vec<LeaseSpec>) -> Answer {
        explain(Facts { pools, leases, ..facts(machine) })
    }

    fn facts(machine: VirtualMachine) -> Facts {
        let (secret, pools, node_pools) = (NetworkSecret::Absent, Vec::new(), Vec::new());
        Facts {
            relabelled: machine.clone(),
            machine,
            phase: None,
            instance: None,
            secret,
            kubevirt_machine: Recording::default(),
            pools,
            node_pools,
            namespaces: None,
            leases: Vec::new(),
            events: Vec::new(),
        }
    }

    /// An instance of the machine with this phase and creation time, whose volume refers to the Secret [`SECRET`].
    fn instance(phase: &str, created: &str) -> Instance {
        let volume = json!({"name": "cloud", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": SECRET}}});
        Instance::read(object(json!({
            "metadata": {"namespace": "n", "name": "w", "creationTimestamp": created}, "spec": {"volumes": [volume]},
            "status": {"phase": phase},
        })))
    }

    /// The parts of an answer that the tests compare: state, reason, time, and what a person can do.
    fn said(answer: &Answer) -> (State, &str, Option<&str>, Option<&str>) {
        (answer.state, &answer.reason, answer.since.as_deref(), answer.what_to_do.as_deref())
    }

    #[test]
    fn a_machine_that_holds_an_address_needs_no_action() {
        for holder in [json!({}), json!({"kind": "KubevirtMachine", "namespace": "m", "virtualMachineNamespace": "n"})]
        {
            let answer = about(machine(referring(), json!({})), vec![pool("p", json!({}))], vec![lease(holder)]);
            let since = Some("2026-08-14T10:00:00Z");
            assert_eq!(
                said(&answer),
                (State::Allocated, "the machine holds an address of each of its pools", since, None)
            );
            assert_eq!(
                answer.to_string(),
                "MACHINE  PHASE  STATE      SINCE\n\
                 n/w      -      allocated  2026-08-14T10:00:00Z\n\n\
                 REASON\n\
                 the machine holds an address of each of its pools\n\n\
                 POOL  NETWORK       INTERFACE\n\
                 n/p   infra/vlan10  eno101\n\n\
                 ADDRESS      NETWORK       INTERFACE  POOL  SINCE\n\
                 10.0.0.8/24  infra/vlan10  eno101     n/p   2026-08-14T10:00:00Z\n"
            );
        }
    }

    #[test]
    fn a_machine_without_network_data_never_has_the_state_allocated() {
        let with = |machine: VirtualMachine, instance: Option<Instance>| {
            let (pools, leases) = (vec![pool("p", json!({}))], vec![lease(json!({}))]);
            explain(Facts { phase: Some("Running".to_owned()), instance, pools, leases, ..facts(machine) })
        };
        let runs = |volume: Value| {
            Some(Instance::read(object(json!({
                "metadata": {"namespace": "n", "name": "w"}, "status": {"phase": "Running"},
                "spec": {"volumes": [{"name": "cloud", "cloudInitConfigDrive": volume}]},
            }))))
        };
        let bare = || VirtualMachine { cloud_init: None, ..machine(json!({}), json!({})) };
        let volume = "spec.template.spec.volumes: no volume with cloudInitConfigDrive or cloudInitNoCloud, expected one for the addresses \
                      of n/p";
        let add = "add the volume to spec.template, then restart the machine if its guest runs";
        for instance in [None, runs(json!({}))] {
            assert_eq!(said(&with(bare(), instance)), (State::Waiting, volume, None, Some(add)));
        }
        assert_eq!(said(&about(bare(), vec![pool("p", json!({}))], vec![])), (State::Waiting, volume, None, Some(add)));
        let reference = "the machine holds its addresses, and the controller has not added networkDataSecretRef to spec.template yet";
        let look = "look at the events; without an event, look whether a replica leads: kubectl glowplug status";
        let answer = with(machine(json!({}), json!({})), runs(json!({})));
        assert_eq!(said(&answer), (State::Waiting, reference, None, Some(look)));
        // Either the next instance reads the network data, or the running instance has read it.
        assert_eq!(with(machine(referring(), json!({})), runs(json!({}))).state, State::Allocated);
        assert_eq!(with(machine(json!({}), json!({})), runs(referring())).state, State::Allocated);
        let noted = json!({"annotations": {(LEFT_ALONE_ANNOTATION): "v"}});
        assert_eq!(with(machine(json!({}), noted), runs(json!({}))).state, State::LeftAlone);
    }

    #[test]
    fn the_answer_names_the_missing_right_of_a_user_who_cannot_list_namespaces() {
        let selects = json!({
            "metadata": {"namespace": null, "name": "g"},
            "spec": {"machineSelector": null, "namespaceSelector": {"matchLabels": {"a": "b"}}},
        });
        let answer = about(machine(json!({}), json!({})), vec![pool("g", selects)], vec![]);
        let reason = "whether pool g selects the machine is not known: the pool selects by the labels of Namespaces, and you lack the \
                      right to list namespaces";
        let what_to_do = "ask for the right, or ask a user who has it";
        assert_eq!(said(&answer), (State::Unknown, reason, None, Some(what_to_do)));
    }

    #[test]
    fn a_lease_of_another_object_and_a_released_lease_do_not_count_as_held_by_the_machine() {
        let released = LeaseSpec { released: Some(lease(json!({})).since), ..lease(json!({})) };
        let others = [json!({"name": "x"}), json!({"kind": "IPAddressClaim"}), json!({"virtualMachineNamespace": "m"})];
        let leases = others.into_iter().map(lease).chain([released]).collect();
        let answer = about(machine(json!({}), json!({})), vec![pool("p", json!({}))], leases);
        assert_eq!((answer.state, answer.addresses), (State::Waiting, vec![]));
    }

    #[test]
    fn a_waiting_machine_is_shown_with_the_start_of_its_wait_and_the_exhausted_family() {
        let first = json!([{"kind": "VirtualMachine", "namespace": "n", "name": "w", "family": "IPv4", "since": "2026-08-14T11:00:00Z"}]);
        let waiting = pool("p", json!({"status": {"waiting": 1, "firstWaiting": first}}));
        let answer = about(machine(json!({}), json!({})), vec![waiting], vec![]);
        assert_eq!(
            said(&answer),
            (
                State::Waiting,
                "pool n/p has no free IPv4 address",
                Some("2026-08-14T11:00:00Z"),
                Some("add IPv4 addresses to pool n/p, or delete machines that hold some"),
            )
        );
    }

    #[test]
    fn the_advice_about_a_full_pool_names_the_addresses_in_their_reuse_delay() {
        let first = json!([{"kind": "VirtualMachine", "namespace": "n", "name": "w", "family": "IPv4", "since": "2026-08-14T11:00:00Z"}]);
        let families = json!([{"family": "IPv4", "total": "8", "reserved": "0", "free": "0", "reuseDelay": "2"}]);
        let status = json!({"status": {"waiting": 1, "firstWaiting": first, "families": families}});
        let answer = about(machine(json!({}), json!({})), vec![pool("p", status)], vec![]);
        let advice = "add IPv4 addresses to pool n/p, or delete machines that hold some; 2 IPv4 addresses of pool n/p are free again after \
                      their reuse delay";
        assert_eq!(answer.what_to_do.as_deref(), Some(advice));
    }

    #[test]
    fn a_starting_machine_waits_while_its_pools_contradict_each_other_although_it_holds_an_address() {
        let other = json!({"spec": {"network": "infra/vlan20"}});
        let in_phase = |phase: &str| {
            let pools = vec![pool("p", json!({})), pool("q", other.clone())];
            let machine = machine(referring(), json!({}));
            let phase = Some(phase.to_owned());
            let answer = explain(Facts { phase, pools, leases: vec![lease(json!({}))], ..facts(machine) });
            (answer.state, answer.waits)
        };
        assert_eq!(in_phase("Scheduling"), (State::Conflicting, true));
        assert_eq!(in_phase("Running"), (State::Conflicting, false));
    }

    #[test]
    fn a_machine_whose_lease_cannot_be_read_is_conflicting() {
        let line = "10.0.0.8: StaticIPLease 10-0-0-8.infra.vlan10 cannot be read: spec.holder.interface: invalid interface \"\"";
        let conditions = json!([{
            "type": "UnreadableLeases", "status": "True", "reason": "r", "message": format!("{line}\n10.0.0.9: other"),
            "lastTransitionTime": "2026-08-14T10:00:00Z",
        }]);
        let with = |leases: Vec<LeaseSpec>| {
            let pools = vec![pool("p", json!({"status": {"conditions": conditions.clone()}}))];
            let addresses = ["10.0.0.8".parse().unwrap()].into();
            let kubevirt_machine = Recording { uid: None, addresses };
            let answer = explain(Facts { pools, leases, kubevirt_machine, ..facts(machine(referring(), json!({}))) });
            (answer.state, answer.reason, answer.what_to_do, answer.waits)
        };
        let advice =
            Some("correct or delete the lease: \"A lease cannot be read\" in docs/troubleshooting.md".to_owned());
        assert_eq!(with(vec![lease(json!({}))]), (State::Conflicting, line.to_owned(), advice.clone(), false));
        assert_eq!(with(vec![]), (State::Conflicting, line.to_owned(), advice, true));
    }

    #[test]
    fn a_machine_that_waits_for_its_pool_and_the_overflow_is_shown_with_both_pools() {
        let first = json!([{"kind": "VirtualMachine", "namespace": "n", "name": "w", "family": "IPv4", "since": "2026-08-14T11:00:00Z"}]);
        let status = json!({"waiting": 1, "firstWaiting": first});
        let pools = || {
            let overflow = json!({"spec": {"addresses": ["10.0.1.0/24"], "priority": 10}, "status": status});
            vec![pool("a", overflow), pool("p", json!({"status": status}))]
        };
        let answer = about(machine(json!({}), json!({})), pools(), vec![]);
        let pool_names: Vec<&str> = answer.pools.iter().map(|it| &*it.pool).collect();
        assert_eq!(pool_names, ["n/p", "n/a"]);
        assert_eq!(
            said(&answer),
            (
                State::Waiting,
                "pool n/p has no free IPv4 address; pool n/a has no free IPv4 address",
                Some("2026-08-14T11:00:00Z"),
                Some(
                    "add IPv4 addresses to pool n/p or add IPv4 addresses to pool n/a, or delete machines that hold some"
                ),
            )
        );
        let of_overflow = LeaseSpec { pool: "n/a".to_owned(), ..lease(json!({})) };
        assert_eq!(about(machine(referring(), json!({})), pools(), vec![of_overflow]).state, State::Allocated);
    }

    #[test]
    fn a_machine_whose_virtual_machine_is_rejected_has_the_reason_of_its_pool_or_of_its_condition() {
        let machine = |conditions: Value| {
            object(
                json!({"metadata": {"namespace": "n", "name": "w", "uid": "u"}, "status": {"conditions": conditions}}),
            )
        };
        let first = json!([{"kind": "KubevirtMachine", "namespace": "n", "name": "w", "family": "IPv6", "since": "2026-08-14T11:00:00Z"}]);
        let waiting = pool("p", json!({"status": {"waiting": 1, "firstWaiting": first}}));
        let explain_rejected = |machine: Object, pools: Vec<KnownPool>, leases: Vec<LeaseSpec>| {
            Known::new(pools, vec![], None, leases).explain_rejected(machine)
        };
        let answer = explain_rejected(machine(json!([])), vec![waiting], vec![]);
        assert_eq!(
            said(&answer),
            (
                State::Waiting,
                "pool n/p has no free IPv6 address",
                Some("2026-08-14T11:00:00Z"),
                Some("add IPv6 addresses to pool n/p, or delete machines that hold some"),
            )
        );
        let advice = Some("remove the cause; cluster-api-provider-kubevirt then creates the VirtualMachine by itself");
        let rejected = json!([{
            "type": "VMProvisioned", "status": "False", "message": "denied", "lastTransitionTime": "2026-08-14T11:00:00Z",
        }]);
        let held = lease(json!({"kind": "KubevirtMachine", "uid": "u"}));
        let earlier = lease(json!({"kind": "KubevirtMachine", "uid": "earlier"}));
        let leases = vec![held, earlier, lease(json!({}))];
        let answer = explain_rejected(machine(rejected), vec![pool("p", json!({}))], leases);
        assert_eq!(said(&answer), (State::Waiting, "denied", Some("2026-08-14T11:00:00Z"), advice));
        assert_eq!(answer.addresses.len(), 1);
        let answer = explain_rejected(machine(json!([])), vec![], vec![]);
        let reason = "cluster-api-provider-kubevirt has not created the VirtualMachine yet";
        assert_eq!(said(&answer), (State::Waiting, reason, None, advice));
    }

    #[test]
    fn the_advice_for_a_rejected_machine_follows_the_decision_of_the_webhook() {
        let message = "No available IPs in pool for interface eno101: pool n/p, IPv4";
        let template = json!({"spec": {
            "domain": {"devices": {"interfaces": [{"name": "net1"}]}},
            "networks": [{"name": "net1", "multus": {"networkName": "infra/vlan10"}}],
        }});
        let machine = |namespace: &str, vm_namespace: &str| {
            object(json!({
                "metadata": {"namespace": namespace, "name": "w", "uid": "u"},
                "spec": {"virtualMachineTemplate": {
                    "metadata": {"namespace": vm_namespace, "labels": {"role": "worker"}}, "spec": {"template": template},
                }},
                "status": {"conditions": [{"type": "VMProvisioned", "status": "False", "message": message}]},
            }))
        };
        let exhausted = |spec: Value| {
            let condition = json!({
                "type": "Exhausted", "status": "True", "reason": "NoFreeAddress", "message": message,
                "lastTransitionTime": "2026-08-14T10:00:00Z",
            });
            pool("p", json!({"spec": spec, "status": {"conditions": [condition]}}))
        };
        let advice = |machine: Object, pool: KnownPool, leases: Vec<LeaseSpec>| {
            let answer = Known::new(vec![pool], vec![], None, leases).explain_rejected(machine);
            assert_eq!((answer.state, &*answer.reason), (State::Waiting, message));
            answer.what_to_do.unwrap()
        };
        let by_itself = "cluster-api-provider-kubevirt then creates the VirtualMachine by itself";
        let add = format!("add addresses to pool n/p, or delete machines that hold some; {by_itself}");
        let wait = format!("wait: the machine has an address now, or its pool has a free one; {by_itself}");
        let none = json!({});
        assert_eq!(advice(machine("n", "n"), exhausted(none.clone()), vec![]), add);
        // The VirtualMachine is in the namespace of the pool. The KubevirtMachine is in another namespace.
        assert_eq!(advice(machine("infra", "n"), exhausted(none.clone()), vec![]), add);
        let other = format!("remove the cause; {by_itself}");
        assert_eq!(advice(machine("n", "infra"), exhausted(none.clone()), vec![]), other);
        // The machine holds an address of the network, or the pool keeps an address for the machine.
        let held = lease(json!({"kind": "KubevirtMachine", "uid": "u"}));
        assert_eq!(advice(machine("n", "n"), exhausted(none.clone()), vec![held.clone()]), wait);
        let of_other_network = LeaseSpec { network: "infra/vlan20".to_owned(), ..held };
        assert_eq!(advice(machine("n", "n"), exhausted(none.clone()), vec![of_other_network]), add);
        let kept = json!({"preAllocations": {"w": "10.0.0.9"}});
        assert_eq!(advice(machine("n", "n"), exhausted(kept), vec![]), wait);
        assert_eq!(advice(machine("n", "n"), pool("p", none), vec![]), wait);
    }

    #[test]
    fn without_a_known_reason_the_answer_advises_to_look_at_the_events() {
        let answer = about(machine(json!({}), json!({})), vec![pool("p", json!({}))], vec![]);
        let advice = "look at the events; without an event, look whether a replica leads: kubectl glowplug status";
        assert_eq!(
            said(&answer),
            (State::Waiting, "the controller has not allocated an address of pool n/p yet", None, Some(advice))
        );
    }

    #[test]
    fn a_machine_without_network_data_has_the_reason_of_the_event_until_a_newer_guest_runs() {
        let facts = |reason: &str, phase: &str, created: &str| Facts {
            phase: Some(phase.to_owned()),
            instance: Some(instance(phase, created)),
            pools: vec![pool("p", json!({}))],
            leases: vec![lease(json!({}))],
            events: vec![Event {
                time: "2026-08-14T10:00:05.000000Z".to_owned(),
                reason: reason.to_owned(),
                message: "exceeded quota".to_owned(),
            }],
            ..self::facts(machine(json!({}), json!({})))
        };
        let missing = explain(facts("NetworkDataMissing", "Scheduling", "2026-08-14T10:00:09Z"));
        let advice = "remove the cause that the reason names; the controller then continues by itself";
        let since = Some("2026-08-14T10:00:05.000000Z");
        assert_eq!(said(&missing), (State::Waiting, "exceeded quota", since, Some(advice)));
        for (reason, phase, created, expected) in [
            ("NetworkDataMissing", "Running", "2026-08-14T10:00:05Z", State::Waiting),
            ("NetworkDataMissing", "Running", "2026-08-14T10:00:06Z", State::Allocated),
            ("IPAddressAllocated", "Scheduling", "2026-08-14T10:00:00Z", State::Allocated),
        ] {
            assert_eq!(explain(facts(reason, phase, created)).state, expected, "{reason}, {phase}, {created}");
        }
    }

    #[test]
    fn a_machine_that_waits_for_a_mac_address_or_for_another_program_has_the_reason_of_the_event() {
        let event = |second: u8, reason: &str, message: &str| Event {
            time: format!("2026-08-14T10:00:0{second}Z"),
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let waits = |machine: VirtualMachine, pools: Vec<KnownPool>, events: Vec<Event>| {
            explain(Facts { pools, events, ..facts(machine) })
        };
        let lacks_mac = || VirtualMachine { awaits_mac_addresses: true, ..machine(json!({}), json!({})) };
        let time = |second: u8| format!("2026-08-14T10:00:0{second}Z");
        let exhausted = "No available MAC addresses in pool m6 for interface net1";
        let missing = "No MACPool serves the machine, and interface net1 has no MAC address";
        let range = "add a range to the MACPool that the reason names, or delete machines that hold addresses of it";
        let change = "change the machine, or the policy or webhook that refuses the request; the controller tries again within a minute";
        let create = "create a MACPool that serves the machine, or write macAddress into the interface";
        let first = json!([{"kind": "VirtualMachine", "namespace": "n", "name": "w", "family": "IPv4", "since": "2026-08-14T11:00:00Z"}]);
        let pools = || [vec![], vec![pool("p", json!({"status": {"firstWaiting": first}}))]];
        for pools in pools() {
            let events = vec![
                event(1, "MACAddressMissing", missing),
                event(2, "MACPoolExhausted", exhausted),
                event(3, "Other", ""),
            ];
            let answer = waits(lacks_mac(), pools.clone(), events);
            assert_eq!(said(&answer), (State::Waiting, exhausted, Some(&*time(2)), Some(range)));
            let answer = waits(lacks_mac(), pools.clone(), vec![event(1, "MACAddressMissing", missing)]);
            assert_eq!(said(&answer), (State::Waiting, missing, Some(&*time(1)), Some(create)));
            let refused = "Could not store the MAC addresses of the machine: the API server answered 422 Invalid: x";
            let events = vec![event(1, "MACPoolExhausted", exhausted), event(2, "MACAddressRefused", refused)];
            let answer = waits(lacks_mac(), pools.clone(), events);
            assert_eq!(said(&answer), (State::Waiting, refused, Some(&*time(2)), Some(change)));
            // The API server removes an event after an hour.
            let look = "look whether a MACPool serves the machine and has free addresses: kubectl glowplug status";
            let answer = waits(lacks_mac(), pools, vec![]);
            assert_eq!(said(&answer), (State::Waiting, "interface net1 has no MAC address", None, Some(look)));
        }
        // Now the interface has its MAC address.
        let answer = waits(machine(json!({}), json!({})), vec![], vec![event(1, "MACPoolExhausted", exhausted)]);
        assert_eq!(answer.state, State::NotSelected);
        let claim = "Waiting for IPAMClaim n/w.net1: it has no address yet";
        let pending = vec![event(1, "AddressPending", claim)];
        let answer = waits(machine(referring(), json!({})), vec![pool("p", json!({}))], pending.clone());
        let later = "wait; if the machine still waits after some minutes, look at the claim that the reason names";
        assert_eq!(said(&answer), (State::Waiting, claim, Some(&*time(1)), Some(later)));
        let (pools, leases) = (vec![pool("p", json!({}))], vec![lease(json!({}))]);
        let held = explain(Facts { pools, leases, events: pending, ..facts(machine(referring(), json!({}))) });
        assert_eq!(held.state, State::Allocated);
        let receiver = VirtualMachine { awaits_migration: true, ..machine(json!({}), json!({})) };
        let nothing = "nothing: the machine gets its address when its run strategy changes";
        let reason = "the guest comes from another cluster";
        assert_eq!(
            said(&waits(receiver, vec![pool("p", json!({}))], vec![])),
            (State::Waiting, reason, None, Some(nothing))
        );
    }

    #[test]
    fn a_machine_whose_requested_address_is_unavailable_has_the_reason_of_the_event_until_it_has_an_address() {
        let with = |leases: Vec<LeaseSpec>| {
            let event = Event {
                time: "2026-08-14T10:00:05Z".to_owned(),
                reason: "IPAddressUnavailable".to_owned(),
                message: "10.0.0.9: not in pool \"n/p\"".to_owned(),
            };
            let pools = vec![pool("p", json!({}))];
            explain(Facts { pools, leases, events: vec![event], ..facts(machine(referring(), json!({}))) })
        };
        let (waiting, advice) =
            (with(vec![]), "remove the cause that the reason names; the controller then continues by itself");
        let since = Some("2026-08-14T10:00:05Z");
        assert_eq!(said(&waiting), (State::Waiting, "10.0.0.9: not in pool \"n/p\"", since, Some(advice)));
        assert_eq!(with(vec![lease(json!({}))]).state, State::Allocated);
    }

    #[test]
    fn the_answer_about_a_machine_names_a_second_user_of_its_address() {
        let shared = |address: &str, status: &str| {
            let message = format!("10.0.0.7: x\n{address}: VirtualMachineInstance n/b reports it\nand 7 more");
            let condition = json!({
                "type": "DuplicateRecords", "status": status, "reason": "r", "message": message,
                "lastTransitionTime": "2026-08-14T10:00:00Z",
            });
            pool("p", json!({"status": {"conditions": [condition]}}))
        };
        let state = |pool: KnownPool| about(machine(referring(), json!({})), vec![pool], vec![lease(json!({}))]);
        let advice = Some("stop one of the two users: \"Resolve each conflict\" in docs/recovery.md");
        let (reason, since) = ("10.0.0.8: VirtualMachineInstance n/b reports it", Some("2026-08-14T10:00:00Z"));
        assert_eq!(said(&state(shared("10.0.0.8", "True"))), (State::Conflicting, reason, since, advice));
        assert_eq!(state(shared("10.0.0.8", "False")).state, State::Allocated);
        assert_eq!(state(shared("10.0.0.80", "True")).state, State::Allocated);
        let mut elsewhere = shared("10.0.0.8", "True");
        let other = json!({"spec": {"network": "infra/b", "machineSelector": {"matchLabels": {"role": "db"}}}});
        elsewhere.checked = pool("p", other).checked;
        let pools = vec![pool("q", json!({})), elsewhere];
        assert_eq!(about(machine(referring(), json!({})), pools, vec![lease(json!({}))]).state, State::Allocated);
    }

    /// The Secret of the machine with network data that was last updated at this time.
    fn own_secret(updated: &str) -> NetworkSecret {
        let document = r#"{"links": [{"id": "eno101", "type": "phy"}], "networks": [{"id": "a", "type": "ipv4", "link": "eno101",
            "ip_address": "10.0.0.8", "netmask": "255.255.255.0"}]}"#;
        let given = Given {
            interface: "eno101".parse().unwrap(),
            network: "infra/vlan10".to_owned(),
            pool: "n/p".to_owned(),
            addresses: vec!["10.0.0.8/24".parse().unwrap()],
        };
        let vm = machine(referring(), json!({}));
        let secret = secret(&vm, SECRET, &Machine::new("n", "w", "v"), vec![given], document);
        let NetworkSecret::Ours(read) = NetworkSecret::read(Some(secret)) else { panic!() };
        NetworkSecret::Ours(Box::new(OwnSecret { updated: updated.parse().ok(), ..*read }))
    }

    #[test]
    fn a_guest_that_is_older_than_its_network_data_must_be_restarted() {
        let state = |phase: &str, created: &str, updated: &str| {
            let answer = explain(Facts {
                phase: Some(phase.to_owned()),
                instance: Some(instance(phase, created)),
                secret: own_secret(updated),
                pools: vec![pool("p", json!({}))],
                leases: vec![lease(json!({}))],
                ..facts(machine(referring(), json!({})))
            });
            (answer.state, answer.reason, answer.what_to_do)
        };
        assert_eq!(
            state("Running", "2026-08-14T10:00:05Z", "2026-08-14T10:00:06Z"),
            (
                State::Outdated,
                "the guest runs with earlier network data".to_owned(),
                Some("restart the machine".to_owned())
            )
        );
        for (phase, created, updated) in [
            ("Running", "2026-08-14T10:00:06Z", "2026-08-14T10:00:06Z"),
            ("Scheduling", "2026-08-14T10:00:05Z", "2026-08-14T10:00:06Z"),
        ] {
            assert_eq!(state(phase, created, updated).0, State::Allocated, "{phase} {created}");
        }
    }

    #[test]
    fn an_event_about_outdated_network_data_applies_while_a_pool_counts_an_outdated_machine() {
        let keeps = "Secret \"s\" keeps its network data: the gateway of the address is not known";
        let runs = "The guest runs with earlier network data: restart the machine";
        let waits = "The guest waits for Secret \"a\", and its machine has Secret \"s\": restart the machine";
        let said = |message: &str, outdated: u32, instance: Option<Instance>, secret: NetworkSecret| {
            let event = Event {
                time: "2026-08-14T10:00:05Z".to_owned(),
                reason: "NetworkDataOutdated".to_owned(),
                message: message.to_owned(),
            };
            let answer = explain(Facts {
                phase: instance.is_some().then(|| "Running".to_owned()),
                instance,
                secret,
                pools: vec![pool("p", json!({"status": {"outdated": outdated}}))],
                leases: vec![lease(json!({}))],
                events: vec![event],
                ..facts(machine(referring(), json!({})))
            });
            (answer.state, answer.reason, answer.what_to_do)
        };
        let says = |reason: &str, what_to_do: &str| (State::Outdated, reason.to_owned(), Some(what_to_do.to_owned()));
        let allocated = || (State::Allocated, "the machine holds an address of each of its pools".to_owned(), None);
        // The instance is created before (04) or after (06) the event. The Secret is updated before (03) or after (07).
        let at = |second: u8| format!("2026-08-14T10:00:0{second}Z");
        let guest = |second: u8| Some(instance("Running", &at(second)));
        let absent = || NetworkSecret::Absent;
        let (remove, restart) = ("remove the cause that the reason names", "restart the machine");
        for (message, outdated, instance, secret, expected) in [
            // A restart does not remove the reason why the Secret cannot be updated.
            (keeps, 1, guest(4), own_secret(&at(7)), says(keeps, remove)),
            (keeps, 1, guest(6), own_secret(&at(3)), says(keeps, remove)),
            (keeps, 1, None, own_secret(&at(3)), says(keeps, remove)),
            (keeps, 1, guest(6), absent(), says(keeps, remove)),
            // The cause is gone.
            (keeps, 0, guest(6), own_secret(&at(3)), allocated()),
            (keeps, 0, None, own_secret(&at(3)), allocated()),
            (keeps, 0, guest(4), own_secret(&at(7)), says("the guest runs with earlier network data", restart)),
            // Without the right to get the Secret, only the event says that the guest must be restarted.
            (runs, 1, guest(4), absent(), says(runs, restart)),
            (runs, 1, guest(6), absent(), allocated()),
            (runs, 0, guest(4), absent(), allocated()),
            (runs, 1, None, absent(), allocated()),
            (runs, 1, guest(4), own_secret(&at(3)), allocated()),
            (waits, 1, guest(4), absent(), says(waits, restart)),
        ] {
            let case = format!("{message} {outdated} {:?}", instance.is_some());
            assert_eq!(said(message, outdated, instance, secret), expected, "{case}");
        }
    }

    #[test]
    fn an_address_of_an_earlier_kubevirt_machine_is_named_only_in_the_reason() {
        let own = json!({"labels": {
            "capk.cluster.x-k8s.io/kubevirt-machine-name": "w", "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
        }});
        let answer = |uid: Option<&str>| {
            let leases = vec![lease(json!({"kind": "KubevirtMachine", "uid": "u"}))];
            let kubevirt_machine = Recording { uid: uid.map(str::to_owned), addresses: BTreeSet::new() };
            let pools = vec![pool("p", json!({}))];
            explain(Facts { pools, leases, kubevirt_machine, ..facts(machine(referring(), own.clone())) })
        };
        for uid in [None, Some("u")] {
            assert_eq!((answer(uid).state, answer(uid).addresses.len()), (State::Allocated, 1), "{uid:?}");
        }
        let reason = "the controller has not allocated an address of pool n/p yet; held for the guest of an earlier machine of this name: \
                      10.0.0.8";
        let look = "look at the events; without an event, look whether a replica leads: kubectl glowplug status";
        let later = answer(Some("later"));
        assert_eq!((said(&later), &*later.addresses), ((State::Waiting, reason, None, Some(look)), &[][..]));
    }

    #[test]
    fn an_address_held_for_the_guest_of_an_earlier_virtual_machine_is_named_only_in_the_reason() {
        let earlier = lease(json!({"uid": "earlier"}));
        let answer = about(machine(referring(), json!({})), vec![pool("p", json!({}))], vec![earlier.clone()]);
        let reason = "the controller has not allocated an address of pool n/p yet; held for the guest of an earlier machine of this name: \
                      10.0.0.8";
        let look = "look at the events; without an event, look whether a replica leads: kubectl glowplug status";
        assert_eq!(said(&answer), (State::Waiting, reason, None, Some(look)));
        assert_eq!(answer.addresses, vec![]);
        let own = LeaseSpec { address: "10.0.0.9".to_owned(), ..lease(json!({})) };
        let answer = about(machine(referring(), json!({})), vec![pool("p", json!({}))], vec![earlier, own]);
        let reason = "the machine holds an address of each of its pools; held for the guest of an earlier machine of this name: \
                      10.0.0.8";
        assert_eq!(said(&answer), (State::Allocated, reason, Some("2026-08-14T10:00:00Z"), None));
        assert_eq!(answer.addresses.len(), 1);
    }

    #[test]
    fn a_recorded_address_without_a_lease_needs_a_restart_of_the_controller() {
        let annotations = json!({"annotations": {
            "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.9/24", "ipam.glowplug.dev/network-eno101": "infra/vlan10",
        }});
        let explain = |metadata: &Value, recorded: &[&str], leases: Vec<LeaseSpec>, reason: Option<&str>| {
            let event = reason.map(|reason| Event {
                time: "2026-08-14T10:00:05Z".to_owned(),
                reason: reason.to_owned(),
                message: "a reason".to_owned(),
            });
            let addresses = recorded.iter().map(|address| address.parse().unwrap()).collect();
            let kubevirt_machine = Recording { uid: None, addresses };
            let (pools, events) = (vec![pool("p", json!({}))], event.into_iter().collect());
            explain(Facts { pools, leases, kubevirt_machine, events, ..facts(machine(referring(), metadata.clone())) })
        };
        let reason = "10.0.0.9 is recorded for the machine, and no lease has it";
        let restart = Some(
            "restart the controller: it adds the lease when it starts, unless the address has another user, which kubectl glowplug audit names",
        );
        let (none, time) = (json!({}), Some("2026-08-14T10:00:05Z"));
        assert_eq!(said(&explain(&annotations, &[], vec![], None)), (State::Waiting, reason, None, restart));
        assert_eq!(said(&explain(&none, &["10.0.0.9"], vec![], None)), (State::Waiting, reason, None, restart));
        let answer = explain(&annotations, &[], vec![], Some("IPAddressConflict"));
        assert_eq!(said(&answer), (State::Waiting, reason, time, restart));
        // A restart is not the advice in these cases: another cause, another holder of the address, an address outside
        // of the pool, and a machine that holds an address.
        let remove = Some("remove the cause that the reason names; the controller then continues by itself");
        let answer = explain(&annotations, &[], vec![], Some("NetworkDataMissing"));
        assert_eq!(said(&answer), (State::Waiting, "a reason", time, remove));
        let other = LeaseSpec { address: "10.0.0.9".to_owned(), ..lease(json!({"name": "x"})) };
        let yet = "the controller has not allocated an address of pool n/p yet";
        assert_eq!(explain(&annotations, &[], vec![other], None).reason, yet);
        assert_eq!(explain(&none, &["10.0.1.9"], vec![], None).reason, yet);
        assert_eq!(explain(&annotations, &[], vec![lease(json!({}))], None).state, State::Allocated);
    }

    #[test]
    fn the_answer_about_an_interface_that_the_network_data_does_not_serve_names_the_label() {
        let mut of_two = machine(referring(), json!({}));
        let mut second = of_two.networks[0].clone();
        (second.index, second.name, second.network) = (1, "net2".to_owned(), "infra/vlan20".to_owned());
        of_two.networks = of_two.networks.iter().cloned().chain([second]).collect();
        let q = json!({"spec": {"network": "infra/vlan20", "addresses": ["10.0.1.0/24"], "interface": "eno102"}, "status": {
            "conditions": [{
                "type": "Exhausted", "status": "True", "reason": "NoFreeAddress", "message": "pool n/q has no free address",
                "lastTransitionTime": "2026-08-14T10:00:00Z",
            }],
        }});
        let pools = || vec![pool("p", json!({})), pool("q", q.clone())];
        let answer = about(of_two.clone(), pools(), vec![lease(json!({}))]);
        let reason = "the machine holds no address of pool n/q: its interface \"net2\" keeps its network";
        let advice = "to give it an address of the pool, set the label ipam.glowplug.dev/network-data=requested in spec.template, then \
                      restart the machine";
        assert_eq!(said(&answer), (State::LeftAlone, reason, None, Some(advice)));
        // The machine got the reference and the index of the interface together, so the interface waits for an address.
        let with_index = Attachment { acpi_index: Some(102), ..of_two.networks[1].clone() };
        of_two.networks = of_two.networks.iter().take(1).cloned().chain([with_index]).collect();
        let answer = about(of_two, pools(), vec![lease(json!({}))]);
        let advice = "look at the events; without an event, look whether a replica leads: kubectl glowplug status";
        assert_eq!(said(&answer), (State::Waiting, "pool n/q has no free address", None, Some(advice)));
    }

    #[test]
    fn the_answer_about_a_machine_that_is_left_alone_names_the_annotation() {
        let noted = json!({"annotations": {(LEFT_ALONE_ANNOTATION): "v"}});
        let answer = about(machine(json!({}), noted), vec![pool("p", json!({}))], vec![]);
        let advice = "to give it an address of the pool, remove the annotation ipam.glowplug.dev/left-alone, then restart the machine; to \
                      keep the address that it uses, first write it into preAllocations of the pool, as kubectl glowplug adopt does";
        let reason = "the guest was already running when a pool first selected the machine, and keeps its own network";
        assert_eq!(said(&answer), (State::LeftAlone, reason, None, Some(advice)));
        let noted = json!({"annotations": {(LEFT_ALONE_ANNOTATION): "v"}});
        let keeping = pool("p", json!({"spec": {"preAllocations": {"n/w": "10.0.0.9"}}}));
        let answer = about(machine(json!({}), noted), vec![keeping], vec![]);
        let advice = "to give it an address of the pool, remove the annotation ipam.glowplug.dev/left-alone, then restart the machine; \
                      preAllocations of the pool keeps 10.0.0.9 for the machine";
        assert_eq!(said(&answer), (State::LeftAlone, reason, None, Some(advice)));
    }

    #[test]
    fn the_answer_about_a_machine_that_is_left_alone_names_a_recorded_address_without_a_lease() {
        let noted = json!({"annotations": {
            (LEFT_ALONE_ANNOTATION): "v", "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.9/24",
            "ipam.glowplug.dev/network-eno101": "infra/vlan10",
        }});
        let answer = about(machine(json!({}), noted), vec![pool("p", json!({}))], vec![]);
        let reason = "the guest was already running when a pool first selected the machine, and keeps its own network; 10.0.0.9 is recorded for \
                      it, and no lease has it";
        let advice = "restart the controller: it adds the lease when it starts, unless the address has another user, which kubectl glowplug \
                      audit names; do not remove the annotation ipam.glowplug.dev/left-alone before";
        assert_eq!(said(&answer), (State::LeftAlone, reason, None, Some(advice)));
    }

    #[test]
    fn the_answer_about_a_machine_names_network_data_that_a_user_wrote() {
        let own = machine(json!({"networkDataSecretRef": {"name": "mine"}}), json!({}));
        let answer = about(own, vec![pool("p", json!({}))], vec![]);
        assert_eq!((answer.state, &*answer.reason), (State::OwnNetworkData, "the machine has network data of its own"));
    }

    #[test]
    fn a_machine_with_network_data_of_its_own_does_not_wait_for_pools_that_give_it_no_address() {
        let own = || machine(json!({"networkData": "{}"}), json!({}));
        let with = |pools: Vec<KnownPool>| {
            let answer = about(own(), pools, vec![]);
            let (state, reason, _, what_to_do) = said(&answer);
            (state, reason.to_owned(), what_to_do.map(str::to_owned), answer.waits)
        };
        let deleted = pool("p", json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}));
        let reason = "pool n/p is being deleted; the machine has network data of its own".to_owned();
        assert_eq!(with(vec![deleted]), (State::OwnNetworkData, reason, None, false));
        let reason = "the machine has network data of its own; pools n/a and n/b both select the machine for network infra/vlan10, expected \
                      one pool, or different values of priority";
        let pools = ["a", "b"].map(|name| pool(name, json!({})));
        assert_eq!(with(pools.into()), (State::OwnNetworkData, reason.to_owned(), None, false));
    }

    #[test]
    fn the_answer_about_a_machine_without_a_pool_names_the_pools_of_its_network() {
        let other = |name: &str, network: &str| {
            pool(name, json!({"spec": {"network": network, "machineSelector": {"matchLabels": {"role": "db"}}}}))
        };
        let reason = "no pool selects the machine by its NodePool or its labels, on infra/vlan10";
        let answer =
            about(machine(json!({}), json!({})), vec![other("a", "infra/vlan10"), other("b", "infra/b")], vec![]);
        let advice = "change what one of these pools selects, or the labels of the machine: n/a";
        assert_eq!(said(&answer), (State::NotSelected, reason, None, Some(advice)));
        let answer = about(machine(json!({}), json!({})), vec![other("b", "infra/b")], vec![]);
        let advice = "create a pool for the network of the machine: with machineSelector in its namespace, or with nodePoolRef in the namespace \
                      of its NodePool";
        assert_eq!(said(&answer), (State::NotSelected, reason, None, Some(advice)));
        let answer = about(machine(json!({}), json!({})), vec![], vec![lease(json!({}))]);
        let reason = "no pool selects the machine any more; it keeps its addresses until it is deleted";
        assert_eq!(said(&answer), (State::NotSelected, reason, None, None));
    }

    #[test]
    fn the_answer_about_a_machine_without_a_pool_says_how_a_pool_can_select_it() {
        let reason = "no pool selects the machine by its NodePool or its labels, on infra/vlan10";
        let of_node_pool = json!({
            "metadata": {"namespace": "clusters"}, "spec": {"machineSelector": null, "nodePoolRef": {"name": "workers"}},
        });
        let advice = "change what one of these pools selects, or the labels of the machine: clusters/p, or create a pool with \
                      machineSelector in namespace n";
        let answer = about(machine(json!({}), json!({})), vec![pool("p", of_node_pool)], vec![]);
        assert_eq!(said(&answer), (State::NotSelected, reason, None, Some(advice)));
        let labelled = |own: Value| {
            let vm = json!({
                "metadata": {"namespace": "n", "name": "w", "uid": "v", "labels": own},
                "spec": {"template": {"metadata": {"labels": {"role": "worker"}}, "spec": {
                    "domain": {"devices": {"interfaces": [{"name": "net1"}]}},
                    "networks": [{"name": "net1", "multus": {"networkName": "infra/vlan10"}}],
                    "volumes": [{"name": "cloud", "cloudInitConfigDrive": {}}],
                }}},
            });
            let relabelled = VirtualMachine::read(with_labels_of_template(object(vm.clone())));
            let pools = vec![pool("p", json!({}))];
            explain(Facts { relabelled, pools, ..facts(VirtualMachine::read(object(vm))) })
        };
        let advice = "change what one of these pools selects, or the labels of the machine: n/p; the labels of spec.template do not count: \
                      write them into metadata.labels";
        assert_eq!(said(&labelled(Value::Null)), (State::NotSelected, reason, None, Some(advice)));
        // For the same key, the label of the machine replaces the label of the template.
        let advice = "change what one of these pools selects, or the labels of the machine: n/p";
        assert_eq!(said(&labelled(json!({"role": "db"}))), (State::NotSelected, reason, None, Some(advice)));
        let message = "Secret \"w-networkdata-abcdefghijklmnop\" does not exist, and no pool selects the machine";
        let (time, reason) = ("2026-08-14T10:00:05Z".to_owned(), "NetworkDataMissing".to_owned());
        let events = vec![Event { time: time.clone(), reason, message: message.to_owned() }];
        let answer = explain(Facts { events, ..facts(machine(referring(), json!({}))) });
        let advice = "remove networkDataSecretRef from spec.template, or create a pool that selects the machine";
        assert_eq!(said(&answer), (State::NotSelected, message, Some(&*time), Some(advice)));
    }

    #[test]
    fn the_answer_about_a_machine_names_pools_that_contradict_each_other() {
        let pools = ["a", "b"].map(|name| pool(name, json!({})));
        let answer = about(machine(json!({}), json!({})), pools.into(), vec![]);
        let reason = "pools n/a and n/b both select the machine for network infra/vlan10, expected one pool, or different values of \
                      priority";
        let advice = "change the pool or the machine that the reason names";
        assert_eq!(said(&answer), (State::Conflicting, reason, None, Some(advice)));
        let deleted = pool("p", json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}));
        let answer = about(machine(json!({}), json!({})), vec![deleted], vec![]);
        let reason = "pool n/p is being deleted, and gives new machines no address";
        let advice = "create a pool of another name, or the same pool when it is gone";
        assert_eq!(said(&answer), (State::Conflicting, reason, None, Some(advice)));
        let deleted = pool("p", json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}));
        let answer = about(machine(json!({}), json!({})), vec![deleted], vec![lease(json!({}))]);
        let reason = "pool n/p is being deleted; the machine keeps its addresses until the machine is deleted";
        assert_eq!(said(&answer), (State::NotSelected, reason, None, None));
    }

    #[test]
    fn a_machine_that_is_left_alone_does_not_wait_while_its_pool_is_being_deleted() {
        let alone = json!({"annotations": {(LEFT_ALONE_ANNOTATION): "v"}});
        let deleted = pool("p", json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}));
        let answer = about(machine(json!({}), alone), vec![deleted], vec![]);
        let reason = "pool n/p is being deleted; the machine keeps a network of its own";
        assert_eq!(said(&answer), (State::NotSelected, reason, None, None));
    }

    #[test]
    fn only_the_last_events_of_the_controller_about_this_machine_are_shown() {
        let event = |second: u8, reporter: &str, uid: &str| {
            let event = object(json!({
                "metadata": {"name": "e"}, "reportingComponent": reporter, "reason": "AddressPending",
                "message": format!("{second}\u{1b}"), "eventTime": format!("2026-08-14T10:00:0{second}.000000Z"),
                "involvedObject": {"uid": uid},
            }));
            Event::of_controller(&event, Some("v"))
        };
        assert_eq!(event(0, "virt-controller", "v"), None);
        assert_eq!(event(0, "glowplug-controller", "earlier"), None);
        let events: Vec<Event> = (0..7).rev().filter_map(|second| event(second, "glowplug-controller", "v")).collect();
        let phase = Some("Scheduling".to_owned());
        let pools = vec![pool("p", json!({}))];
        let answer = explain(Facts { phase, pools, events, ..facts(machine(json!({}), json!({}))) });
        let text = answer.to_string();
        let shown: Vec<&str> = text.lines().rev().take(5).collect();
        let line = |second: u8| format!("2026-08-14T10:00:0{second}.000000Z  AddressPending  {second}\\u{{1b}}");
        assert_eq!(shown, [6, 5, 4, 3, 2].map(line));
    }

    #[test]
    fn a_machine_is_named_by_its_namespace_and_its_name() {
        assert_eq!(machine_key("n/w"), Ok(Key::from(("n", "w"))));
        for text in ["w", "n/", "/w", "n/w/x", "N/w", "../w"] {
            assert_eq!(machine_key(text), Err("expected NAMESPACE/NAME"), "{text}");
        }
    }
}

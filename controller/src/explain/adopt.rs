//! Existing machines and a pool: what the pool does to each machine that it selects, and the records with which the machines keep the
//! addresses that their guests report.
//!
//! | the pool is | `--apply` writes |
//! |---|---|
//! | in a file, and not in the cluster | the annotation that records the address, into the KubevirtMachine or VirtualMachine |
//! | in the cluster | `preAllocations` into the pool: a record that comes later than the pool is a conflict |
//!
//! These rules prevent two machines from using the same address:
//!
//! - The table of the library (`may_record`) decides whether the record of a machine would become a lease, over all pools, leases,
//!   records and reports of the network. Only such an address is written.
//! - What is written is a record, never a lease: the controller asks the same table again.
//! - A record or a pre-allocation that says something else is never changed. Each write has the `resourceVersion` that was read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use glowplug::host::allocator::{Adoption, Allocator};
use glowplug::host::claim::{Allocation, Claimant};
use glowplug::host::may_record::{Source, State, Verdict};
use glowplug::host::pool::Pool;
use glowplug::host::records::annotation_patch;
use glowplug::network::Family;
use ipnetwork::IpNetwork;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::cluster::request::list;
use crate::explain::file::read_pools;
use crate::explain::lists::Lists;
use crate::explain::read::Reader;
use crate::explain::reserved::{HEAD, Reserved, reserved};
use crate::explain::text::{rows_of, write_section};
use crate::explain::write::{Outcome, Write};
use crate::kinds::cluster_api::pool_kind;
use crate::kinds::guest::Life;
use crate::kinds::kubevirt_machine::{Instance, is_deleted};
use crate::kinds::pool::{HolderKind, PoolSpec};
use crate::kinds::virtual_machine::{NetworkData, VirtualMachine, kubevirt_machines, virtual_machines};
use crate::pools::selection::{KnownPool, Selected, Selection};
use crate::webhook::{Change, judge};

/// What `kubectl glowplug adopt` says.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Version of the structure.
    pub version: u32,
    /// Namespace and name of the pool.
    pub pool: String,
    /// Network of the pool.
    pub network: String,
    /// The VirtualMachines that the pool selects.
    pub machines: Vec<Row>,
    /// The addresses of the pool that no machine gets.
    pub reserved: Vec<Reserved>,
    /// What `--apply` writes, or has written.
    pub writes: Vec<Write>,
}

/// A VirtualMachine that the pool selects.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Namespace and name of the VirtualMachine.
    pub machine: String,
    /// Phase of its instance. `null`: there is no instance.
    pub phase: Option<String>,
    /// The addresses that the machine has, as far as they are known.
    pub addresses: Vec<IpAddr>,
    /// What the pool does to the machine.
    pub result: Word,
    /// Why.
    pub reason: String,
}

/// What a pool does to a machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Word {
    /// `allocated`: the machine holds its addresses.
    Allocated,
    /// `recorded`: an object or the pool records the addresses, and the machine keeps them.
    Recorded,
    /// `reserved`: no other machine gets the addresses, and the machine is left alone.
    Reserved,
    /// `leftAlone`: the guest runs, and its addresses are not known.
    LeftAlone,
    /// `new`: no guest runs; the machine gets addresses like a new one.
    New,
    /// `ownNetworkData`: the machine has network data of the user, and gets no address.
    OwnNetworkData,
    /// `conflict`: a person has to decide.
    Conflict,
}

/// A pool, and whether the cluster has it.
struct Target {
    pool: Arc<KnownPool>,
    is_stored: bool,
}

/// What decides about one machine.
struct Facts<'a> {
    lists: &'a Lists,
    /// What the objects of machines record.
    records: BTreeMap<&'a Claimant, Vec<IpAddr>>,
    /// What a leader would make of the records.
    adoption: &'a Adoption,
    /// The state of a leader that has the pool.
    leader: &'a Allocator,
    /// The addresses that are leased now.
    leased: &'a BTreeSet<(Claimant, IpAddr)>,
    pool: &'a Pool,
    is_stored: bool,
}

/// Decides what a pool does to existing machines. `pool` is the name of a pool of the cluster, or else a file with one pool. `only`:
/// the VirtualMachines to decide about, all if it is empty. With `is_applied`, the records are written.
///
/// # Errors
///
/// There is no such pool, the pool is invalid, a request failed, or the user may not read what decides.
pub async fn adopt(reader: &Reader, pool: &str, only: &[Key], is_applied: bool) -> anyhow::Result<Answer> {
    let lists = Lists::read(reader).await?;
    let file = || read_pools(Path::new(pool), reader.client().default_namespace());
    let mut answer = answer(lists, pool, only, file, Timestamp::now())?;
    if is_applied {
        let lacking = reader.lacking();
        ensure!(lacking.is_empty(), "nothing is written, missing right: {}", lacking.join("; "));
        for write in &mut answer.writes {
            write.send(reader).await?;
        }
    }
    Ok(answer)
}

fn answer(
    mut lists: Lists,
    pool: &str,
    only: &[Key],
    file: impl FnOnce() -> anyhow::Result<Vec<Object>>,
    now: Timestamp,
) -> anyhow::Result<Answer> {
    let target = Target::find(&mut lists, pool, file)?;
    let id = target.pool.checked.id.clone();
    let checked = target.pool.checked.pool.as_ref().map_err(|errors| anyhow::anyhow!("pool {id}: {errors}"))?;
    ensure!(!checked.is_external(), "pool {id} takes its addresses from another program: there is nothing to adopt");
    let pools = lists.pools.clone();
    let (mut registry, _) = lists.registry(&pools, now)?;
    let state = registry.state()?;
    let leased = state.leases().map(|(_, address, lease)| (Claimant::clone(&lease.claimant), address)).collect();
    let recorded = lists.recorded(state);
    let rebuilt = recorded.adopt(&mut registry, now)?;
    let selection = lists.selection(&pools);
    let alone = Selection::new([Arc::clone(&target.pool.checked)], lists.node_pools.iter().cloned());
    let mut records: BTreeMap<&Claimant, Vec<IpAddr>> = BTreeMap::new();
    for record in &recorded.inventory.records {
        records.entry(&record.claimant).or_default().extend(record.addresses.iter().map(IpNetwork::ip));
    }
    let facts = Facts {
        lists: &lists,
        records,
        adoption: &rebuilt.adoption,
        leader: registry.state()?,
        leased: &leased,
        pool: checked,
        is_stored: target.is_stored,
    };
    let (mut machines, mut kept) = (Vec::new(), Vec::new());
    if let Some(unknown) = only.iter().find(|key| !lists.vms.contains_key(key)) {
        bail!("{unknown}: no VirtualMachine");
    }
    let is_meant = |vm: &&VirtualMachine| !is_deleted(&vm.metadata) && (only.is_empty() || only.contains(&vm.key()));
    for vm in lists.vms.values().filter(is_meant) {
        if alone.of(vm).is_ok_and(|all| all.is_empty()) {
            continue;
        }
        let decided = match selection.of(vm) {
            Err(problem) => facts.row(vm, Vec::new(), Word::Conflict, problem.to_string()),
            Ok(all) => match all.iter().find(|selected| selected.pool == id) {
                Some(selected) => {
                    let (row, addresses) = facts.decide(vm, selected);
                    kept.extend((!addresses.is_empty()).then(|| (vm, selected.clone(), addresses)));
                    row
                }
                None => continue,
            },
        };
        machines.push(decided);
    }
    let writes = match target.is_stored {
        false => kept
            .iter()
            .map(|(vm, selected, addresses)| facts.record(vm, selected, addresses))
            .collect::<Result<_, _>>()?,
        true => target.keep(&kept).into_iter().collect(),
    };
    let is_of_pool = |it: &Reserved| {
        it.network == checked.network() && it.address.parse().is_ok_and(|address: IpAddr| checked.contains(address))
    };
    let reserved = reserved(facts.leader).into_iter().filter(is_of_pool).collect();
    Ok(Answer { version: 1, pool: id.to_string(), network: checked.network().to_owned(), machines, reserved, writes })
}

// === impl Target ===

impl Target {
    /// Finds the pool of this name in the cluster, or else reads the file, and adds its pool to the lists.
    fn find(lists: &mut Lists, pool: &str, file: impl FnOnce() -> anyhow::Result<Vec<Object>>) -> anyhow::Result<Self> {
        if let Some(known) = lists.pools.get(&PoolId::parse(pool)) {
            return Ok(Self { pool: Arc::clone(known), is_stored: true });
        }
        let objects = file().with_context(|| format!("{pool}: no pool of the cluster has this name"))?;
        let Ok([object]) = <[Object; 1]>::try_from(objects) else { bail!("{pool}: several pools, expected one") };
        let id = PoolId::of(&object.metadata);
        ensure!(!lists.pools.contains_key(&id), "pool {id} exists already, expected its name in place of a file");
        let others: Vec<_> = lists.pools.values().map(|pool| (*pool.checked).clone()).collect();
        let spec: PoolSpec = serde_json::from_value(object.data["spec"].clone()).context("spec")?;
        let selection = lists.selection(&lists.pools);
        let errors = judge(&id, &Change::Create(spec), &others, Some(selection.node_pools())).errors;
        ensure!(errors.is_empty(), "pool {id} would be rejected: {}", errors.join("; "));
        lists.replace_pool(object);
        let pool = lists.pools.get(&id).cloned().with_context(|| format!("pool {id} is missing"))?;
        Ok(Self { pool, is_stored: false })
    }

    /// The change of the pool that keeps these addresses for their machines. `None`: there are none.
    fn keep(&self, kept: &[(&VirtualMachine, Selected, Vec<IpAddr>)]) -> Option<Write> {
        let KnownPool { metadata, checked, .. } = &*self.pool;
        let name = |vm: &VirtualMachine| {
            let key = vm.key();
            let is_here = checked.id.namespace.as_ref() == Some(&key.namespace);
            if is_here { key.name } else { key.to_string() }
        };
        let members = kept.iter().map(|(vm, _, addresses)| (name(vm), Value::from(list(addresses))));
        let members: serde_json::Map<String, Value> = members.collect();
        let patch = json!({
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "spec": {"preAllocations": members},
        });
        let (kind, key) = (pool_kind(&checked.id), Key::of(metadata));
        (!kept.is_empty()).then(|| Write::new(kind, key, patch))
    }
}

// === impl Facts ===

impl Facts<'_> {
    fn row(&self, vm: &VirtualMachine, addresses: Vec<IpAddr>, result: Word, reason: String) -> Row {
        let phase = self.lists.guests.get(&vm.key()).map(|(phase, _)| phase.clone());
        Row { machine: vm.key().to_string(), phase, addresses, result, reason }
    }

    /// Decides what the pool does to a machine, and which addresses a record can keep for it.
    fn decide(&self, vm: &VirtualMachine, selected: &Selected) -> (Row, Vec<IpAddr>) {
        let row = |addresses: &[IpAddr], result, reason: String| {
            (self.row(vm, addresses.to_vec(), result, reason), Vec::new())
        };
        let has_own_data = vm.cloud_init.as_ref().is_some_and(|volume| volume.network_data != NetworkData::None);
        if vm.secret().is_none() && has_own_data {
            return row(&[], Word::OwnNetworkData, "it has network data of its own, and gets no address".to_owned());
        }
        let claimant = Claimant { machine: self.lists.holder(vm), interface: selected.interface };
        let held = self.leader.leases_of(&claimant.machine).filter(|(_, _, lease)| *lease.claimant == claimant);
        let held: Vec<IpAddr> = held.map(|(_, address, _)| address).collect();
        if held.iter().any(|address| self.leased.contains(&(claimant.clone(), *address))) {
            return row(&held, Word::Allocated, "it holds its addresses already".to_owned());
        }
        let guest = self.lists.guests.get(&vm.key()).map(|(_, instance)| instance);
        let reported = self.reported(guest);
        if let Some(recorded) = self.records.get(&claimant) {
            let (word, reason) = self.of_record(&claimant, recorded, &reported);
            return row(recorded, word, reason);
        }
        if vm.secret().is_some() {
            return row(&[], Word::Recorded, "its network data records the addresses".to_owned());
        }
        if !guest.is_some_and(Instance::runs_without_data) {
            return row(&[], Word::New, "no guest runs: it gets addresses like a new machine".to_owned());
        }
        let kept = self.pool.pre_allocated(&claimant.machine.namespace, &claimant.machine.name);
        if !kept.is_empty() {
            let (word, reason) = match differs(kept, &reported) {
                true => (
                    Word::Conflict,
                    format!("the pool keeps {} for it, and its guest reports {}", list(kept), list(&reported)),
                ),
                false => (Word::Recorded, "the pool keeps the addresses for it".to_owned()),
            };
            return row(kept, word, reason);
        }
        let several =
            reported.iter().any(|one| reported.iter().any(|it| it != one && Family::of(*it) == Family::of(*one)));
        match (reported.is_empty(), several) {
            (true, _) => row(&[], Word::LeftAlone, self.why_unknown(guest)),
            (_, true) => {
                let reason =
                    "its guest reports several addresses of one family: record the one that it keeps".to_owned();
                row(&reported, Word::Reserved, reason)
            }
            _ => self.of_report(vm, &claimant, reported),
        }
    }

    /// The addresses of the pool that the guest reports on the network of the pool.
    fn reported(&self, guest: Option<&Instance>) -> Vec<IpAddr> {
        let guest = guest.map(|instance| &instance.guest).filter(|guest| guest.life == Life::Running);
        let reported = guest.and_then(|guest| guest.networks.get(self.pool.network()));
        let addresses = reported.into_iter().flat_map(|reported| &reported.addresses).copied();
        addresses.filter(|address| self.pool.contains(*address)).collect()
    }

    fn why_unknown(&self, guest: Option<&Instance>) -> String {
        let of_network = guest.and_then(|instance| instance.guest.networks.get(self.pool.network()));
        match of_network.is_some_and(|reported| !reported.addresses.is_empty()) {
            true => "its guest reports no address of the pool".to_owned(),
            false => "its guest reports no address: exclude the address that it uses".to_owned(),
        }
    }

    /// What becomes of a machine whose objects record addresses.
    fn of_record(&self, claimant: &Claimant, recorded: &[IpAddr], reported: &[IpAddr]) -> (Word, String) {
        if differs(recorded, reported) {
            let reason = format!("its objects record {}, and its guest reports {}", list(recorded), list(reported));
            return (Word::Conflict, reason);
        }
        if let Some(mismatch) = self.adoption.mismatches.iter().find(|it| it.claimant == *claimant) {
            return (Word::Conflict, mismatch.to_string());
        }
        let network = self.pool.network();
        if recorded.iter().any(|address| self.leader.holder(network, *address) != Some(claimant)) {
            return (
                Word::Reserved,
                "no pool offers the recorded address: it keeps the address, without a lease".to_owned(),
            );
        }
        match self.is_stored {
            true => (Word::Conflict, "the record is not a lease: see the events of the machine".to_owned()),
            false => (Word::Recorded, "its objects record the addresses: it gets their leases".to_owned()),
        }
    }

    /// What becomes of a machine whose guest reports addresses that no object records.
    fn of_report(&self, vm: &VirtualMachine, claimant: &Claimant, reported: Vec<IpAddr>) -> (Row, Vec<IpAddr>) {
        let (mut word, mut reasons) = (Word::Reserved, Vec::new());
        for address in &reported {
            let network = self.pool.network();
            match self.leader.may_record(Source::Annotation, claimant, network, *address) {
                Verdict::Lease => {}
                Verdict::Reserve(State::Excluded) => reasons.push(format!("no pool offers {address}")),
                Verdict::Reserve(_) => {
                    word = Word::Conflict;
                    reasons.push(self.other_user(claimant, *address));
                }
                Verdict::Ignore(why) => reasons.push(format!("{address}: {why}")),
            }
        }
        if !reasons.is_empty() {
            return (self.row(vm, reported, word, reasons.join("; ")), Vec::new());
        }
        let reason = match self.is_stored {
            true => "its guest reports the addresses, and it is left alone: the pool can keep them for it".to_owned(),
            false => "its guest reports the addresses: with a record, it keeps them".to_owned(),
        };
        (self.row(vm, reported.clone(), word, reason), reported)
    }

    /// Why the record of an address would be a mismatch.
    fn other_user(&self, claimant: &Claimant, address: IpAddr) -> String {
        let network = self.pool.network();
        let is_here = |of: &str, at: IpAddr| of == network && at == address;
        let holder = self.leader.holder(network, address).map(|holder| format!("{address} is held by {holder}"));
        let record = || {
            let mut all = self.leader.conflicts();
            let other = all.find(|(of, at, it)| is_here(of, *at) && it.claimant.machine != claimant.machine)?;
            Some(format!("{} records {address} for {}", other.2.source, other.2.claimant))
        };
        let report = || {
            let own = Key::of_vm(&claimant.machine);
            let reports = self.leader.reports();
            let is_other = |it: &&_| {
                let it: &glowplug::host::allocator::Reported = it;
                is_here(&it.network, it.address) && Key::of_vm(&it.claimant.machine) != own
            };
            reports.iter().find(is_other).map(|it| format!("{} reports {address}", it.source))
        };
        let reserved = || format!("the network reserves {address}");
        holder.or_else(record).or_else(report).unwrap_or_else(reserved)
    }

    /// The annotation that records the addresses of a machine.
    fn record(&self, vm: &VirtualMachine, selected: &Selected, addresses: &[IpAddr]) -> anyhow::Result<Write> {
        let with_prefix = |address: &IpAddr| {
            let space = self.pool.space(Family::of(*address));
            IpNetwork::new(*address, space.map_or(Family::of(*address).bits(), |space| space.prefix()))
        };
        let addresses = addresses.iter().map(with_prefix).collect::<Result<_, _>>()?;
        let machine = self.lists.holder(vm);
        let claimant = Claimant { machine: machine.clone(), interface: selected.interface };
        let allocation = Allocation { claimant, addresses };
        let networks = [(selected.interface, selected.network.clone())].into();
        let (kind, metadata) = match self.lists.kubevirt_machine(&vm.key()) {
            Some(known) if machine.kind == HolderKind::KubevirtMachine => (kubevirt_machines(), &known.metadata),
            _ => (virtual_machines(), &vm.metadata),
        };
        let version = metadata.resource_version.as_deref();
        let patch = annotation_patch(&machine, std::slice::from_ref(&allocation), &networks, version)?;
        let annotations = &patch["metadata"]["annotations"];
        let patch = json!({
            "metadata": {"uid": metadata.uid, "resourceVersion": version, "annotations": annotations},
        });
        Ok(Write::new(kind, vm.key(), patch))
    }
}

/// Whether a guest reports addresses of a family, and none of them is in `known`.
fn differs(known: &[IpAddr], reported: &[IpAddr]) -> bool {
    let has_family = |all: &[IpAddr], family| all.iter().any(|it| Family::of(*it) == family);
    known.iter().any(|address| has_family(reported, Family::of(*address)) && !reported.contains(address))
}

// === impl Answer ===

impl Answer {
    /// Whether no machine needs a decision, and every change was stored or is only planned.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let has_conflict = self.machines.iter().any(|row| row.result == Word::Conflict);
        !has_conflict && self.writes.iter().all(|write| write.outcome != Outcome::Failed)
    }
}

/// Tables for people.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let rows = self.machines.iter().cloned().map(|row| {
            let Row { machine, phase, addresses, result, reason } = row;
            [machine, or_none(phase.unwrap_or_default()), or_none(list(addresses)), result.to_string(), reason]
        });
        f.write_str(&rows_of(["MACHINE", "PHASE", "ADDRESSES", "RESULT", "REASON"], rows.collect()))?;
        write_section(f, HEAD, self.reserved.iter().cloned().map(<[String; 4]>::from).collect())?;
        let writes = self.writes.iter().flat_map(|write| {
            write
                .members()
                .into_iter()
                .map(|[name, value]| [write.outcome.to_string(), write.object.clone(), name, value])
        });
        write_section(f, ["WRITE", "OBJECT", "MEMBER", "VALUE"], writes.collect())?;
        let failed = self.writes.iter().filter_map(|write| Some([write.object.clone(), write.problem.clone()?]));
        write_section(f, ["NOT WRITTEN", "PROBLEM"], failed.collect())
    }
}

// === impl Word ===

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        serde_json::from_value(value).unwrap()
    }

    /// A machine of capk whose guest runs with 10.0.0.8, and the NodePool of its pool.
    fn lists() -> Lists {
        let mut lists = Lists::default();
        let node_pool = json!({"metadata": {"namespace": "clusters", "name": "w"}, "spec": {"clusterName": "c1"}});
        lists.node_pools.push(Arc::new(object(node_pool)));
        let metadata =
            |kind: &str| json!({"namespace": "clusters-c1", "name": "w-0", "uid": kind, "resourceVersion": "7"});
        let mut vm = json!({
            "metadata": metadata("vm"),
            "spec": {"template": {"spec": {
                "networks": [{"name": "net1", "multus": {"networkName": "infra/vlan10"}}],
                "domain": {"devices": {"interfaces": [{"name": "net1", "bridge": {}}]}},
            }}},
        });
        vm["metadata"]["labels"] = json!({
            "hypershift.openshift.io/nodepool-name": "w",
            "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "clusters-c1",
            "capk.cluster.x-k8s.io/kubevirt-machine-name": "w-0",
        });
        let networks = json!([{"name": "net1", "multus": {"networkName": "infra/vlan10"}}]);
        let interfaces = json!([{"name": "net1", "ipAddress": "10.0.0.8"}]);
        let mut instance = json!({
            "metadata": metadata("vmi"), "spec": {"networks": networks},
            "status": {"phase": "Running", "interfaces": interfaces},
        });
        instance["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w-0", "uid": "vm"}]);
        lists.add_machine(object(json!({"metadata": metadata("machine")})));
        lists.add_vm(object(vm));
        lists.add_instance(object(instance));
        lists
    }

    fn pool() -> Object {
        object(json!({
            "metadata": {"namespace": "clusters", "name": "p", "uid": "p", "resourceVersion": "3"},
            "spec": {
                "network": "infra/vlan10", "addresses": ["10.0.0.8/29"], "machineNetwork": [{"cidr": "10.0.0.0/24"}],
                "nodePoolRef": {"name": "w"},
            },
        }))
    }

    #[test]
    fn the_record_of_a_machine_of_capk_is_on_its_kubevirt_machine() {
        let answer = answer(lists(), "pool.yaml", &[], || Ok(vec![pool()]), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(answer.machines.iter().map(|row| row.result).collect::<Vec<_>>(), [Word::Reserved]);
        let [write] = &answer.writes[..] else { panic!("{:?}", answer.writes) };
        let annotations = json!({
            "ipam.glowplug.dev/network-eno101": "infra/vlan10",
            "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.8/24\"]",
        });
        let patch = json!({"metadata": {"uid": "machine", "resourceVersion": "7", "annotations": annotations}});
        assert_eq!((&*write.object, &write.patch), ("KubevirtMachine clusters-c1/w-0", &patch));
    }

    #[test]
    fn a_pool_of_the_cluster_keeps_the_address_for_the_machine_in_its_namespace() {
        let mut lists = lists();
        lists.add_pool(pool());
        let no_file = || Err(anyhow::anyhow!("no file"));
        let answer = answer(lists, "clusters/p", &[], no_file, Timestamp::UNIX_EPOCH).unwrap();
        let [write] = &answer.writes[..] else { panic!("{:?}", answer.writes) };
        let kept = json!({"preAllocations": {"clusters-c1/w-0": "10.0.0.8"}});
        let patch = json!({"metadata": {"uid": "p", "resourceVersion": "3"}, "spec": kept});
        assert_eq!((&*write.object, &write.patch), ("StaticIPPool clusters/p", &patch));
    }

    #[test]
    fn an_unknown_machine_a_known_pool_in_a_file_and_a_rejected_pool_are_errors() {
        let failed = |mut lists: Lists, is_known: bool, only: &[Key], pool: Object| {
            if is_known {
                lists.add_pool(self::pool());
            }
            answer(lists, "pool.yaml", only, || Ok(vec![pool]), Timestamp::UNIX_EPOCH).unwrap_err().to_string()
        };
        let mut network = pool();
        network.data["spec"]["network"] = "a b".into();
        let only = [Key::from(("n", "x"))];
        assert_eq!(failed(lists(), false, &only, pool()), "n/x: no VirtualMachine");
        let exists = "pool clusters/p exists already, expected its name in place of a file";
        assert_eq!(failed(lists(), true, &[], pool()), exists);
        let rejected = failed(lists(), false, &[], network);
        assert_eq!(&rejected[..36], "pool clusters/p would be rejected: n");
    }
}

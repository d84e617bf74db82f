//! Shows what a pool does to the existing machines that it selects. With `--apply`, writes records, so that these
//! machines keep the addresses that their guests report.
//!
//! | the pool is | `--apply` writes |
//! |---|---|
//! | in a file, and not in the cluster | the annotation that records the address, into the KubevirtMachine or VirtualMachine |
//! | in the cluster | `preAllocations` into the pool: a record that comes later than the pool is a conflict |
//!
//! These rules prevent two machines from using the same address:
//!
//! - The table of the library (`may_record`) decides whether the record of a machine would become a lease. It considers
//!   all pools, leases, records, claims and reports of the network. An address is written only if its record would
//!   become a lease.
//! - `--apply` writes records, and never leases: the controller checks each record with the same table again.
//! - An existing record or pre-allocation that differs or cannot be read is never changed. A write fails if its object
//!   has changed since it was read.
//! - `--apply` takes the digest of the changes that the user has read, and writes no other changes.
//! - If a claim has the name of a machine, the pool gets no pre-allocation for this machine, because the claim could
//!   get the address. If a claim of this name is created later, it does not get the address while the guest reports the
//!   address.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use glowplug::host::claim::{Allocation, Claimant};
use glowplug::host::pool::Pool;
use glowplug::host::records::annotation_patch;
use glowplug::network::Family;
use ipnetwork::IpNetwork;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::cluster::request::list;
use crate::explain::file::{is_stdin, read_pools};
use crate::explain::lists::{Lists, problem_text};
use crate::explain::machines::{Facts, Of, Row, Word, leased};
use crate::explain::plan::{judged, warn_of_selector};
use crate::explain::read::{Reader, absent_namespace, rights};
use crate::explain::reserved::{HEAD, Reserved, reserved};
use crate::explain::text::{quoted, rows_of, write_section};
use crate::explain::write::{Outcome, Write, digest};
use crate::kinds::cluster_api::pool_kind;
use crate::kinds::kubevirt_machine::is_deleted;
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{LEFT_ALONE_ANNOTATION, VirtualMachine, kubevirt_machines, virtual_machines};
use crate::machines::Standing;
use crate::pools::facts::PoolObject;
use crate::pools::selection::{KnownPool, MachinePool, Problem, Selected};

/// What a user writes to name a pool of the cluster.
pub const POOL_NAME: &str = "NAMESPACE/NAME of a StaticIPPool, or NAME of a GlobalStaticIPPool";
/// Maximum number of machines in one line of `NEXT`.
const NAMED: usize = 5;

/// The answer of `kubectl glowplug adopt`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Version of the structure.
    pub version: u32,
    /// Namespace and name of the pool.
    pub pool: String,
    /// Network of the pool.
    pub network: String,
    /// A line if the selectors of the pool select no Namespace or no VirtualMachine.
    pub warnings: Vec<String>,
    /// The VirtualMachines that the pool selects. If the user names machines, only these machines.
    pub machines: Vec<Row>,
    /// Addresses of the pool that no other machine gets, because an object or a guest has them without a lease.
    pub reserved: Vec<Reserved>,
    /// The changes that `--apply` writes or has written.
    pub writes: Vec<Write>,
    /// Digest of `writes`, the value for the option `--apply`.
    pub digest: String,
    /// Why nothing is written, although the user gave `--apply`. `None`: there is no such reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The next steps for a person, in this order.
    pub next: Vec<String>,
    /// The selected machines that are left alone: they keep a network of their own.
    #[serde(skip)]
    left_alone: Vec<String>,
}

/// Where `adopt` finds the pool.
#[derive(Clone, Debug)]
pub enum Place {
    /// The pool is in this file, and not in the cluster. The file has no other pool. `-`: standard input.
    File(PathBuf),
    /// The pool is in the cluster: `namespace/name` of a StaticIPPool, or the name of a GlobalStaticIPPool.
    Cluster(String),
}

/// Command lines that the answer shows.
#[derive(Clone, Debug)]
pub struct Commands {
    /// Beginning of a kubectl command line for the cluster of the user. The arguments of the command follow. Example:
    /// `kubectl --context infra`.
    pub kubectl: String,
    /// The command line of the user without `--apply`.
    pub adopt: String,
}

/// The pool to explain, and whether the cluster has it.
struct Target {
    pool: Arc<KnownPool>,
    is_stored: bool,
}

/// A machine, its selection, and the addresses that a record can keep for the machine.
type Kept<'a> = (&'a VirtualMachine, Selected, Vec<IpAddr>);

/// Decides what a pool does to existing machines. `only` names the VirtualMachines to decide about. Empty: all
/// VirtualMachines that the pool selects. If `reviewed` is the digest of the changes, writes the changes.
///
/// # Errors
///
/// There is no such pool, the pool is invalid, it does not select a machine of `only`, a request before the first write
/// failed, or the user lacks a right that the decision needs.
pub async fn adopt(
    reader: &Reader,
    place: &Place,
    only: &[Key],
    reviewed: Option<&str>,
    commands: &Commands,
) -> anyhow::Result<Answer> {
    let answer = records(reader, place, only, reviewed).await?;
    Ok(answer.with_commands(place, commands))
}

async fn records(reader: &Reader, place: &Place, only: &[Key], reviewed: Option<&str>) -> anyhow::Result<Answer> {
    let file = match place {
        Place::File(path) => {
            let read = read_pools(std::slice::from_ref(path), reader.default_namespace())?;
            read.check().with_context(|| format!("reading {}", path.display()))?;
            read.pools
        }
        Place::Cluster(_) => Vec::new(),
    };
    match place {
        Place::File(_) => {
            file.iter().try_for_each(|pool| ensure_in_scope(&PoolId::of(&pool.metadata), reader.scope()))?
        }
        Place::Cluster(name) => ensure_in_scope(&PoolId::parse(name), reader.scope())?,
    }
    let mut lists = Lists::read(reader, &file).await?;
    for pool in &file {
        let Some(namespace) = &pool.metadata.namespace else { continue };
        let (id, exists) = (PoolId::of(&pool.metadata), reader.has_namespace(namespace).await?);
        ensure!(exists, "pool {id} would be rejected: {}", absent_namespace(namespace));
    }
    lists.read_neighbours(reader).await?;
    lists.read_claims(reader).await?;
    lists.read_secrets(reader).await?;
    lists.read_secrets_of_users(reader, &file).await?;
    let target = match place {
        Place::File(_) => Target::of_file(&mut lists, file)?,
        Place::Cluster(name) => Target::of_cluster(&lists, name)?,
    };
    let mut answer = answer(lists, &target, only, Timestamp::now())?;
    let Some(reviewed) = reviewed else { return Ok(answer) };
    let lacking = reader.lacking();
    ensure!(lacking.is_empty(), "nothing is written, {}", rights(&lacking));
    if answer.digest != reviewed && !answer.writes.is_empty() {
        let digest = &answer.digest;
        answer.refused = Some(format!(
            "nothing is written: the changes are not those of digest {reviewed}; read the table, then use --apply {digest}"
        ));
        return Ok(answer);
    }
    for write in &mut answer.writes {
        write.send(reader).await;
        // This write got no definite answer. The API server may be unavailable, so the remaining changes are not sent.
        if write.outcome == Outcome::Unknown {
            break;
        }
    }
    Ok(answer)
}

fn answer(mut lists: Lists, target: &Target, only: &[Key], now: Timestamp) -> anyhow::Result<Answer> {
    let id = &target.pool.checked.id;
    let checked = target.pool.checked.pool.as_ref().map_err(|errors| anyhow::anyhow!("pool {id}: {errors}"))?;
    ensure!(!is_deleted(&target.pool.metadata), "pool {id} is being deleted, and gives no machine an address");
    ensure!(!checked.is_external(), "pool {id} takes its addresses from another program: there is nothing to adopt");
    for key in only {
        let vm = lists.vms.get(key).with_context(|| format!("{key}: no VirtualMachine"))?;
        ensure!(!is_deleted(&vm.metadata), "{key}: the VirtualMachine is being deleted");
    }
    let pools = lists.pools.clone();
    let (mut registry, _) = lists.registry(&pools, now)?;
    let leased = leased(registry.state()?);
    let recorded = lists.recorded(registry.state()?);
    let adoption = recorded.adopt(&lists, &mut registry, now)?;
    let facts = Facts::new(&lists, &recorded, &leased, &adoption, registry.state()?);
    let selection = lists.selection(&pools);
    let alone = [(id.clone(), Arc::clone(&target.pool))].into();
    let alone = lists.selection(&alone);
    let (mut machines, mut kept): (Vec<Row>, Vec<Kept<'_>>) = (Vec::new(), Vec::new());
    let (mut writes, mut left_alone) = (Vec::new(), Vec::new());
    let is_meant = |vm: &&VirtualMachine| !is_deleted(&vm.metadata) && (only.is_empty() || only.contains(&vm.key()));
    for vm in lists.vms.values().filter(is_meant) {
        if alone.of(vm).is_ok_and(|all| all.is_empty()) {
            continue;
        }
        match selection.of(vm) {
            Err(problem) => {
                let result = match problem {
                    Problem::UnknownNamespaces { .. } => Word::Unknown,
                    _ => Word::Conflict,
                };
                machines.push(facts.row(vm, Vec::new(), result, problem_text(&problem)));
            }
            Ok(all) => {
                let Some(selected) = all.iter().find(|selected| selected.pools().any(|pool| pool == id)) else {
                    continue;
                };
                let (mut row, addresses) =
                    facts.decide(vm, selected, Of { pool: checked, is_stored: target.is_stored });
                let machine = (!addresses.is_empty()).then(|| (vm, selected.clone(), addresses));
                match machine {
                    Some(machine) if target.is_stored => kept.push(machine),
                    Some(machine) => match record(&lists, checked, &machine)? {
                        Ok(write) => writes.push(write),
                        Err(reason) => row = facts.row(vm, machine.2, Word::Conflict, reason),
                    },
                    None => {}
                }
                let standing = Standing::of(vm, lists.guests.get(&vm.key()).map(|(_, guest)| guest));
                if matches!(standing, Standing::LeftAlone | Standing::Runs)
                    && matches!(row.result, Word::Recorded | Word::Reserved | Word::LeftAlone)
                    && !row.needs_decision
                {
                    left_alone.push(row.machine.clone());
                }
                machines.push(row);
            }
        }
    }
    if let Some(key) = only.iter().find(|key| !machines.iter().any(|row| row.machine == key.to_string())) {
        bail!("{key}: pool {id} does not select the VirtualMachine");
    }
    writes.extend(target.keep(&lists, &kept));
    let is_of_pool = |it: &Reserved| {
        it.network == checked.network() && it.address.parse().is_ok_and(|address: IpAddr| checked.contains(address))
    };
    let reserved = reserved(facts.leader, &facts.users).into_iter().filter(is_of_pool).collect();
    let warnings = warn_of_selector(&lists, &selection, &target.pool.checked).into_iter().collect();
    let (network, digest) = (checked.network().to_owned(), digest(&writes)?);
    Ok(Answer {
        version: 1,
        pool: id.to_string(),
        network,
        warnings,
        machines,
        reserved,
        writes,
        digest,
        refused: None,
        next: Vec::new(),
        left_alone,
    })
}

/// Returns the annotation that records the addresses of a machine. The inner `Err` is the reason why the annotation
/// cannot be written: the machine already has it with another value.
fn record(lists: &Lists, pool: &Pool, (vm, selected, addresses): &Kept<'_>) -> anyhow::Result<Result<Write, String>> {
    let with_prefix =
        |address: &IpAddr| IpNetwork::new(*address, pool.prefix_of(*address).unwrap_or(Family::of(*address).bits()));
    let addresses = addresses.iter().map(with_prefix).collect::<Result<_, _>>()?;
    let machine = lists.holder(vm);
    let claimant = Claimant { machine: machine.clone(), interface: selected.interface };
    let allocation = Allocation { claimant, addresses };
    let networks = [(selected.interface, selected.network.clone())].into();
    let (kind, metadata) = match lists.kubevirt_machine(&vm.key()) {
        Some(known) if machine.kind == HolderKind::KubevirtMachine => (kubevirt_machines(), &known.metadata),
        _ => (virtual_machines(), &vm.metadata),
    };
    let mut patch = annotation_patch(&machine, std::slice::from_ref(&allocation), &networks, None)?;
    let annotations = &mut patch["metadata"]["annotations"];
    let stored = metadata.annotations.iter().flatten();
    for (name, value) in stored {
        let Some(planned) = annotations.as_object_mut().and_then(|all| all.remove(name)) else { continue };
        if planned != **value {
            let reason = format!("{} {}: metadata.annotations.{name:?} is {value:?}", kind.kind, machine.title());
            return Ok(Err(reason));
        }
    }
    Ok(Ok(Write::annotations(kind, metadata, annotations)))
}

/// Fails if a controller with the option `--namespace` does not serve the pool. The message explains the option,
/// because kubectl has an option of the same name with another meaning.
fn ensure_in_scope(id: &PoolId, scope: Option<&str>) -> anyhow::Result<()> {
    let other = scope.filter(|scope| id.namespace.as_deref().is_some_and(|namespace| namespace != *scope));
    ensure!(
        other.is_none(),
        "--namespace: {:?} is not the namespace of pool {id}, expected the value of the controller's own option --namespace, or no option if the controller has none",
        other.unwrap_or_default()
    );
    Ok(())
}

/// Returns the names of the first machines of a list, and the number of the remaining machines, as text.
fn some_of<'a>(machines: impl ExactSizeIterator<Item = &'a String>) -> String {
    let others = machines.len().saturating_sub(NAMED);
    let named: Vec<&str> = machines.take(NAMED).map(String::as_str).collect();
    let named = named.join(", ");
    if others == 0 { named } else { format!("{named} and {others} more") }
}

/// Fails if the pool is a GlobalStaticIPPool that selects no machine.
fn ensure_selects(pool: &MachinePool) -> anyhow::Result<()> {
    let id = &pool.id;
    let selects = id.namespace.is_some() || pool.spec.node_pool_refs.is_some() || pool.selects_namespaces();
    ensure!(selects, "{id}: a GlobalStaticIPPool without nodePoolRefs and namespaceSelector selects no machine");
    Ok(())
}

// === impl Target ===

impl Target {
    /// Finds the pool with this name among the pools of the cluster.
    fn of_cluster(lists: &Lists, name: &str) -> anyhow::Result<Self> {
        let id = PoolId::parse(name);
        let pool =
            lists.pools.get(&id).with_context(|| format!("{name}: no pool of the cluster, expected {POOL_NAME}"))?;
        ensure_selects(&pool.checked)?;
        Ok(Self { pool: Arc::clone(pool), is_stored: true })
    }

    /// Adds the pool of a file to the lists. Fails if the file has several pools, or if the cluster would reject the
    /// pool or already has it.
    fn of_file(lists: &mut Lists, file: Vec<Object>) -> anyhow::Result<Self> {
        let count = file.len();
        let Ok([object]) = <[Object; 1]>::try_from(file) else {
            bail!("{count} pools in the file, expected one StaticIPPool or GlobalStaticIPPool")
        };
        let id = PoolId::of(&object.metadata);
        ensure_selects(&MachinePool::read(PoolObject::read(object.clone())))?;
        ensure!(!lists.pools.contains_key(&id), "pool {id} exists already, expected --pool {id} in place of a file");
        let errors = judged(lists, &object, &[]).errors;
        ensure!(errors.is_empty(), "pool {id} would be rejected: {}", errors.join("; "));
        lists.replace_pool(object);
        let pool = lists.pools.get(&id).cloned().with_context(|| format!("pool {id} is missing"))?;
        Ok(Self { pool, is_stored: false })
    }

    /// Returns the change that adds these addresses, with the names of their machines, to `preAllocations` of the pool.
    /// `None`: there is no address to keep.
    fn keep(&self, lists: &Lists, kept: &[Kept<'_>]) -> Option<Write> {
        let KnownPool { metadata, checked, .. } = &*self.pool;
        // A name without its namespace would keep the address for every machine of this name, in any namespace.
        let name = |vm: &VirtualMachine| lists.holder(vm).title();
        let names: BTreeMap<String, String> = kept.iter().map(|(vm, _, all)| (name(vm), list(all))).collect();
        (!names.is_empty()).then(|| Write::pre_allocations(pool_kind(&checked.id), metadata, &names))
    }
}

// === impl Answer ===

impl Answer {
    /// Whether no machine needs a decision, `refused` is `None`, and no change failed or has an unknown result.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let is_open = |write: &Write| matches!(write.outcome, Outcome::Failed | Outcome::Unknown);
        let has_decision = self.machines.iter().any(|row| row.needs_decision);
        self.refused.is_none() && !has_decision && !self.writes.iter().any(is_open)
    }

    /// Adds the command lines: the next steps for a person, and the commands that undo the changes.
    fn with_commands(mut self, place: &Place, commands: &Commands) -> Self {
        for write in &mut self.writes {
            write.undo = format!("{} {}", commands.kubectl, write.undo);
        }
        self.next = self.next(place, &commands.adopt);
        self
    }

    /// Returns the next steps for a person after this answer to `command`.
    fn next(&self, place: &Place, command: &str) -> Vec<String> {
        let has = |outcomes: &[Outcome]| self.writes.iter().any(|write| outcomes.contains(&write.outcome));
        let is_stdin = matches!(place, Place::File(path) if is_stdin(path));
        let input = if is_stdin { ", with the same standard input" } else { "" };
        let mut next = Vec::new();
        let open: Vec<&String> =
            self.machines.iter().filter(|row| row.needs_decision).map(|row| &row.machine).collect();
        if !open.is_empty() {
            next.push(format!("decide about {}: the reason of each machine says why", some_of(open.into_iter())));
        }
        if has(&[Outcome::Failed, Outcome::Unknown]) {
            next.push(format!(
                "some changes are not written: remove each problem, then run the command again: {command}{input}"
            ));
        } else if has(&[Outcome::Planned]) {
            next.push(format!("write the records: {command} --apply {}{input}", self.digest));
        } else if let Place::File(path) = place {
            let pool = &self.pool;
            let file = if is_stdin { "standard input".to_owned() } else { quoted(&path.to_string_lossy()) };
            next.push(format!(
                "when no machine needs a decision any more, create pool {pool} in this cluster, from {file}"
            ));
        } else if !self.left_alone.is_empty() {
            next.push(format!(
                "left alone: {}. To give a machine its address of the pool, remove its annotation {LEFT_ALONE_ANNOTATION}, then \
                 restart the machine",
                some_of(self.left_alone.iter())
            ));
        }
        next
    }
}

/// Writes the answer as tables for people.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let rows = self.machines.iter().cloned().map(|row| {
            let Row { machine, phase, addresses, result, reason, needs_decision } = row;
            let decide = if needs_decision { "yes" } else { "-" };
            let [phase, addresses] = [phase.unwrap_or_default(), list(addresses)].map(or_none);
            [machine, phase, addresses, result.to_string(), decide.to_owned(), reason]
        });
        f.write_str(&rows_of(["MACHINE", "PHASE", "ADDRESSES", "RESULT", "DECIDE", "REASON"], rows.collect()))?;
        write_section(f, ["WARNING"], self.warnings.iter().map(|line| [line.clone()]).collect())?;
        write_section(f, HEAD, self.reserved.iter().cloned().map(<[String; 4]>::from).collect())?;
        let writes = self.writes.iter().flat_map(|write| {
            write
                .members()
                .into_iter()
                .map(|[name, value]| [write.outcome.to_string(), write.object.clone(), name, value])
        });
        write_section(f, ["WRITE", "OBJECT", "MEMBER", "VALUE"], writes.collect())?;
        let is_there = |write: &&Write| matches!(write.outcome, Outcome::Written | Outcome::Unknown);
        let undo = self.writes.iter().filter(is_there).map(|write| [write.undo.clone()]);
        write_section(f, ["COMMAND THAT REMOVES THE RECORD"], undo.collect())?;
        let failed = self.writes.iter().filter_map(|write| Some([write.object.clone(), write.problem.clone()?]));
        let refused = self.refused.iter().map(|problem| [self.pool.clone(), problem.clone()]);
        write_section(f, ["OBJECT", "PROBLEM"], failed.chain(refused).collect())?;
        write_section(f, ["NEXT"], self.next.iter().map(|line| [line.clone()]).collect())
    }
}

#[cfg(test)]
mod tests {
    use glowplug::host::claim::{Claim, Machine, Request};
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::object::object;
    use crate::kinds::kubevirt_machine::{Given, secret};
    use crate::kinds::network_data::new_name;

    /// Returns the lists of a cluster with one machine of capk and its NodePool. The guest of the machine reports
    /// 10.0.0.8.
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
                "volumes": [{"name": "c", "cloudInitConfigDrive": {}}],
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

    fn of_file(mut lists: Lists, pool: Object, only: &[Key]) -> anyhow::Result<Answer> {
        let target = Target::of_file(&mut lists, vec![pool])?;
        answer(lists, &target, only, Timestamp::UNIX_EPOCH)
    }

    /// Returns the answer about a pool that is in the cluster.
    fn of_cluster(mut lists: Lists, pool: Object) -> Answer {
        let name = PoolId::of(&pool.metadata).to_string();
        lists.replace_pool(pool);
        let target = Target::of_cluster(&lists, &name).unwrap();
        answer(lists, &target, &[], Timestamp::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn the_record_of_a_machine_of_capk_is_on_its_kubevirt_machine() {
        let answer = of_file(lists(), pool(), &[]).unwrap();
        assert_eq!(results(&answer), [("clusters-c1/w-0", Word::Reserved)]);
        let [write] = &answer.writes[..] else { panic!("{:?}", answer.writes) };
        let annotations = json!({
            "ipam.glowplug.dev/network-eno101": "infra/vlan10",
            "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.8/24\"]",
        });
        let patch = json!({"metadata": {"uid": "machine", "resourceVersion": "7", "annotations": annotations}});
        let undo = "annotate kubevirtmachines.infrastructure.cluster.x-k8s.io w-0 -n clusters-c1 \
                    ipam.glowplug.dev/network-eno101- kubevirt.cluster.x-k8s.io/allocated-ip-eno101-";
        assert_eq!((&*write.object, &write.patch, &*write.undo), ("KubevirtMachine clusters-c1/w-0", &patch, undo));
    }

    #[test]
    fn a_pool_of_the_cluster_keeps_the_address_for_the_namespace_and_name_of_the_machine() {
        let answer = of_cluster(lists(), pool());
        let [write] = &answer.writes[..] else { panic!("{:?}", answer.writes) };
        let kept = json!({"preAllocations": {"clusters-c1/w-0": "10.0.0.8"}});
        let patch = json!({"metadata": {"uid": "p", "resourceVersion": "3"}, "spec": kept});
        let undo = "patch staticippools.ipam.glowplug.dev p -n clusters --type merge \
                    -p '{\"spec\":{\"preAllocations\":{\"clusters-c1/w-0\":null}}}'";
        assert_eq!((&*write.object, &write.patch, &*write.undo), ("StaticIPPool clusters/p", &patch, undo));
    }

    #[test]
    fn a_selector_that_selects_no_machine_is_a_warning() {
        let lists = || Lists { has_machines: true, ..Lists::default() };
        let answer = of_file(lists(), shop(), &[]).unwrap();
        assert_eq!(answer.warnings, ["machineSelector: it selects no VirtualMachine of the cluster"]);
        assert_eq!(
            answer.to_string(),
            "MACHINE  PHASE  ADDRESSES  RESULT  DECIDE  REASON\n\n\
             WARNING\n\
             machineSelector: it selects no VirtualMachine of the cluster\n"
        );
        let mut lists = lists();
        add_vm(&mut lists, "shop/w", None, json!({}));
        assert_eq!(of_file(lists, shop(), &[]).unwrap().warnings, [""; 0]);
    }

    #[test]
    fn an_unknown_machine_a_known_pool_in_a_file_and_a_rejected_pool_are_errors() {
        let failed = |lists, only: &[Key], pool| of_file(lists, pool, only).unwrap_err().to_string();
        let mut network = pool();
        network.data["spec"]["network"] = "a b".into();
        let only = [Key::from(("n", "x"))];
        assert_eq!(failed(lists(), &only, pool()), "n/x: no VirtualMachine");
        let mut known = lists();
        known.add_pool(pool());
        let exists = "pool clusters/p exists already, expected --pool clusters/p in place of a file";
        assert_eq!(failed(known, &[], pool()), exists);
        let of = |name| {
            let mut other = lists();
            add_vm(&mut other, "n/x", None, json!({}));
            add_vm(&mut other, "n/y", None, json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}));
            failed(other, &[Key::from(("n", name))], pool())
        };
        assert_eq!(of("x"), "n/x: pool clusters/p does not select the VirtualMachine");
        assert_eq!(of("y"), "n/y: the VirtualMachine is being deleted");
        let mut global = pool();
        (global.metadata.namespace, global.metadata.name) = (None, Some("g".to_owned()));
        let selects_none = "g: a GlobalStaticIPPool without nodePoolRefs and namespaceSelector selects no machine";
        assert_eq!(failed(lists(), &[], global), selects_none);
        let mut known = lists();
        let mut global = pool();
        (global.metadata.namespace, global.metadata.name) = (None, Some("g".to_owned()));
        global.data["spec"]["nodePoolRef"] = Value::Null;
        known.add_pool(global);
        assert_eq!(Target::of_cluster(&known, "g").err().unwrap().to_string(), selects_none);
        let rejected = failed(lists(), &[], network);
        assert_eq!(&rejected[..36], "pool clusters/p would be rejected: n");
    }

    // === machines of a namespace ===

    const KEPT: &str = "preAllocations can keep the addresses for the machine";

    fn results(answer: &Answer) -> Vec<(&str, Word)> {
        answer.machines.iter().map(|row| (&*row.machine, row.result)).collect()
    }

    fn reserved_by(answer: &Answer) -> Vec<(&str, &str)> {
        answer.reserved.iter().map(|it| (&*it.address, &*it.object)).collect()
    }

    /// Adds a VirtualMachine. With `addresses`, the VirtualMachine has a guest in the phase Running that reports these
    /// addresses. `None`: there is no guest.
    fn add_vm(lists: &mut Lists, key: &str, addresses: Option<&[&str]>, more: Value) {
        let (namespace, name) = key.split_once('/').unwrap();
        let metadata = |uid: String| json!({"namespace": namespace, "name": name, "uid": uid, "resourceVersion": "7"});
        let networks = json!([{"name": "net1", "multus": {"networkName": "infra/vlan10"}}]);
        let devices = json!({"interfaces": [{"name": "net1", "bridge": {}}]});
        let volumes = json!([{"name": "c", "cloudInitConfigDrive": {}}]);
        let template = json!({"spec": {"networks": networks, "domain": {"devices": devices}, "volumes": volumes}});
        let mut vm = json!({"metadata": metadata(format!("vm-{namespace}-{name}")), "spec": {"template": template}});
        vm["metadata"]["labels"] = json!({"pool": "p"});
        json_patch::merge(&mut vm, &more);
        lists.add_vm(object(vm));
        if let Some(addresses) = addresses {
            let interfaces = json!([{"name": "net1", "ipAddresses": addresses}]);
            let mut instance = json!({
                "metadata": metadata(format!("vmi-{namespace}-{name}")), "spec": {"networks": networks},
                "status": {"phase": "Running", "interfaces": interfaces},
            });
            let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": format!("vm-{namespace}-{name}")});
            instance["metadata"]["ownerReferences"] = json!([owner]);
            lists.add_instance(object(instance));
        }
    }

    /// A pool of eight addresses for the VirtualMachines of namespace `shop`.
    fn shop() -> Object {
        object(json!({
            "metadata": {"namespace": "shop", "name": "p", "uid": "p", "resourceVersion": "3"},
            "spec": {
                "network": "infra/vlan10", "addresses": ["10.0.0.8/29"], "machineNetwork": [{"cidr": "10.0.0.0/24"}],
                "machineSelector": {"matchLabels": {"pool": "p"}},
            },
        }))
    }

    #[test]
    fn a_reported_address_of_another_namespace_stays_reserved_after_preallocations_are_written() {
        let lists = || {
            let mut lists = Lists::default();
            add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
            // The guests of a namespace that the pool does not serve can reserve at most two of the eight addresses.
            add_vm(&mut lists, "other/a", Some(&["10.0.0.9", "10.0.0.10", "10.0.0.11"]), json!({}));
            lists
        };
        let before = of_cluster(lists(), shop());
        let reserved = [("10.0.0.10", "other/a"), ("10.0.0.8", "shop/w"), ("10.0.0.9", "other/a")];
        assert_eq!(reserved_by(&before), reserved);
        let mut pool = shop();
        json_patch::merge(&mut pool.data, &before.writes[0].patch);
        assert_eq!(pool.data["spec"]["preAllocations"], json!({"shop/w": "10.0.0.8"}));
        let after = of_cluster(lists(), pool);
        assert_eq!((results(&after), reserved_by(&after)), (vec![("shop/w", Word::Recorded)], reserved.to_vec()));
    }

    #[test]
    fn a_pool_gets_no_preallocation_for_a_machine_if_a_claim_of_the_pool_has_the_same_name() {
        let claim = |kind: &str, name: &str| {
            let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": name});
            let spec = json!({"poolRef": pool, "network": "vlan10"});
            object(json!({"kind": kind, "metadata": {"namespace": "shop", "name": "w", "uid": "c"}, "spec": spec}))
        };
        let decided = |add: &dyn Fn(&mut Lists)| {
            let mut lists = Lists::default();
            add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
            add(&mut lists);
            let answer = of_cluster(lists, shop());
            (answer.machines[0].reason.clone(), answer.writes.len(), answer.is_clean())
        };
        let taken = |kind| {
            let reason = format!("{kind} shop/w has the name of the machine, and gets what the pool keeps for it");
            (reason, 0, false)
        };
        assert_eq!(decided(&|it| it.add_claim(claim("IPAddressClaim", "p"))), taken("IPAddressClaim"));
        assert_eq!(decided(&|it| it.add_ipam_claim(claim("IPAMClaim", "p"))), taken("IPAMClaim"));
        let (reason, writes, is_clean) = decided(&|it| it.add_claim(claim("IPAddressClaim", "other")));
        assert_eq!((reason.ends_with(KEPT), writes, is_clean), (true, 1, true));
    }

    #[test]
    fn a_record_that_cannot_be_read_is_never_replaced() {
        let annotated = |annotations: Value| {
            let lists = || {
                let mut lists = Lists::default();
                let metadata = json!({"metadata": {"annotations": annotations}});
                add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), metadata);
                lists
            };
            let of_stored = of_cluster(lists(), shop());
            let answer = of_file(lists(), shop(), &[]).unwrap();
            let [row] = &answer.machines[..] else { panic!("{:?}", answer.machines) };
            (row.result, row.reason.clone(), answer.writes, of_stored.writes.len())
        };
        let (result, reason, writes, of_stored) =
            annotated(json!({"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "ten"}));
        let expected =
            "VirtualMachine shop/w: metadata.annotations.\"kubevirt.cluster.x-k8s.io/allocated-ip-eno101\": ";
        assert_eq!((result, writes.len(), of_stored), (Word::Conflict, 0, 0));
        assert!(reason.starts_with(expected), "{reason}");
        let (result, reason, writes, _) = annotated(json!({"ipam.glowplug.dev/network-eno101": "infra/other"}));
        let expected =
            "VirtualMachine shop/w: metadata.annotations.\"ipam.glowplug.dev/network-eno101\" is \"infra/other\"";
        assert_eq!((result, &*reason, writes.len()), (Word::Conflict, expected, 0));
        // The command that undoes the change keeps the annotation that was there before.
        let (_, _, writes, _) = annotated(json!({"ipam.glowplug.dev/network-eno101": "infra/vlan10"}));
        let undo = "annotate virtualmachines.kubevirt.io w -n shop kubevirt.cluster.x-k8s.io/allocated-ip-eno101-";
        assert_eq!(writes.iter().map(|write| &*write.undo).collect::<Vec<_>>(), [undo]);
    }

    #[test]
    fn a_guest_that_reports_one_of_two_families_needs_a_decision() {
        let mut dual = shop();
        dual.data["spec"]["addresses"] = json!(["10.0.0.8/29", "fd00::8/125"]);
        dual.data["spec"]["machineNetwork"] = json!([{"cidr": "10.0.0.0/24"}, {"cidr": "fd00::/64"}]);
        let record = json!({"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.12/24\"]"});
        let lists = || {
            let mut lists = Lists::default();
            add_vm(&mut lists, "shop/both", Some(&["10.0.0.8", "fd00::8"]), json!({}));
            add_vm(&mut lists, "shop/one", Some(&["10.0.0.9", "fe80::1"]), json!({}));
            add_vm(&mut lists, "shop/outside", Some(&["10.0.0.10", "fd01::8"]), json!({}));
            add_vm(&mut lists, "shop/recorded", Some(&["10.0.0.12"]), json!({"metadata": {"annotations": record}}));
            lists
        };
        let answer = of_file(lists(), dual.clone(), &[]).unwrap();
        let open = |answer: &Answer| {
            let open = answer.machines.iter().filter(|row| row.needs_decision);
            open.map(|row| (row.machine.clone(), row.reason.clone())).collect::<Vec<_>>()
        };
        let row = |name: &str, reason: &str| (name.to_owned(), reason.to_owned());
        let recorded = row(
            "shop/recorded",
            "objects record the addresses: the machine gets the leases; its guest reports no IPv6 address",
        );
        let one = row(
            "shop/one",
            "its guest reports the addresses: with a record, it keeps them; its guest reports no IPv6 address",
        );
        assert_eq!((open(&answer), answer.is_clean()), (vec![one, recorded], false));
        dual.data["spec"]["preAllocations"] = json!({"shop/one": "10.0.0.9"});
        let one = row("shop/one", "the pool keeps the addresses for it; its guest reports no IPv6 address");
        assert!(open(&of_cluster(lists(), dual)).contains(&one));
    }

    #[test]
    fn a_machine_without_a_cloud_init_volume_keeps_its_address_and_needs_a_decision() {
        let mut lists = Lists::default();
        let none = json!({"spec": {"template": {"spec": {"volumes": []}}}});
        add_vm(&mut lists, "shop/runs", Some(&["10.0.0.8"]), none.clone());
        add_vm(&mut lists, "shop/stopped", None, none);
        let answer = of_file(lists, shop(), &[]).unwrap();
        let rows: Vec<_> =
            answer.machines.iter().map(|row| (&*row.machine, row.result, &*row.reason, row.needs_decision)).collect();
        let lacking = "spec.template.spec.volumes: no volume with cloudInitConfigDrive or cloudInitNoCloud, expected one for the \
                       addresses of shop/p";
        let [runs, stopped] = [
            format!("its guest reports the addresses: with a record, it keeps them; {lacking}"),
            format!("no guest runs: it gets addresses like a new machine; {lacking}"),
        ];
        assert_eq!(rows, [("shop/runs", Word::Reserved, &*runs, true), ("shop/stopped", Word::New, &*stopped, true)]);
        assert_eq!((answer.writes.len(), answer.is_clean()), (1, false));
    }

    #[test]
    fn the_next_steps_name_standard_input_in_words() {
        let commands = Commands { kubectl: "kubectl --context c".to_owned(), adopt: "ADOPT --file -".to_owned() };
        let of_stdin = |addresses: Option<&[&str]>| {
            let mut lists = Lists::default();
            add_vm(&mut lists, "shop/w", addresses, json!({}));
            let answer = of_file(lists, shop(), &[]).unwrap();
            let answer = answer.with_commands(&Place::File(PathBuf::from("-")), &commands);
            let undo: Vec<String> = answer.writes.iter().map(|write| write.undo.clone()).collect();
            (answer.digest, answer.next, undo)
        };
        let (digest, next, undo) = of_stdin(Some(&["10.0.0.8"]));
        assert_eq!(next, [format!("write the records: ADOPT --file - --apply {digest}, with the same standard input")]);
        let expected = "kubectl --context c annotate virtualmachines.kubevirt.io w -n shop ipam.glowplug.dev/network-eno101- \
                        kubevirt.cluster.x-k8s.io/allocated-ip-eno101-";
        assert_eq!(undo, [expected]);
        let (_, next, _) = of_stdin(None);
        let expected =
            "when no machine needs a decision any more, create pool shop/p in this cluster, from standard input";
        assert_eq!(next, [expected]);
    }

    #[test]
    fn a_machine_that_an_earlier_pool_left_alone_needs_a_decision() {
        let mut lists = Lists::default();
        let noted = json!({"metadata": {"annotations": {"ipam.glowplug.dev/left-alone": "vm-shop-w"}}});
        add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), noted);
        let answer = of_file(lists, shop(), &[]).unwrap();
        let [row] = &answer.machines[..] else { panic!("{:?}", answer.machines) };
        let reason = "it stays left alone: it has the annotation ipam.glowplug.dev/left-alone of an earlier pool";
        assert_eq!((row.result, &*row.reason, row.needs_decision), (Word::Reserved, reason, true));
        assert_eq!((answer.writes.len(), answer.is_clean()), (0, false));
    }

    #[test]
    fn a_machine_with_a_preallocation_is_left_alone_until_its_annotation_is_removed() {
        let mut lists = Lists::default();
        let noted = json!({"metadata": {"annotations": {"ipam.glowplug.dev/left-alone": "vm-shop-w"}}});
        add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), noted);
        let mut pool = shop();
        pool.data["spec"]["preAllocations"] = json!({"shop/w": "10.0.0.8"});
        let answer = of_cluster(lists, pool);
        let [row] = &answer.machines[..] else { panic!("{:?}", answer.machines) };
        let reason = "the pool keeps the addresses for it; it stays left alone until its annotation ipam.glowplug.dev/left-alone is \
                      removed";
        assert_eq!((row.result, &*row.reason, row.needs_decision), (Word::Recorded, reason, false));
    }

    #[test]
    fn the_digest_depends_on_the_address_and_not_on_the_resource_version() {
        let digest = |uid: &str, version: &str, address: &str| {
            let mut lists = Lists::default();
            let metadata = json!({"metadata": {"uid": uid, "resourceVersion": version}});
            add_vm(&mut lists, "shop/w", Some(&[address]), metadata);
            of_file(lists, shop(), &[]).unwrap().digest
        };
        let first = digest("vm-shop-w", "7", "10.0.0.8");
        assert_eq!((first.len(), &first), (32, &digest("vm-shop-w", "8", "10.0.0.8")));
        assert_ne!(first, digest("vm-shop-w", "7", "10.0.0.9"));
    }

    #[test]
    fn a_claim_that_is_created_after_the_write_does_not_get_the_address_of_the_guest() {
        let lists = || {
            let mut lists = Lists::default();
            add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
            lists
        };
        let mut pool = shop();
        json_patch::merge(&mut pool.data, &of_cluster(lists(), shop()).writes[0].patch);
        let (mut lists, now) = (lists(), Timestamp::UNIX_EPOCH);
        lists.replace_pool(pool);
        let pools = lists.pools.clone();
        let (mut registry, _) = lists.registry(&pools, now).unwrap();
        let recorded = lists.recorded(registry.state().unwrap());
        recorded.adopt(&lists, &mut registry, now).unwrap();
        let claim = Machine::new("shop", "w", "c").of_kind(HolderKind::IpAddressClaim);
        let refused = registry.claim(&Claim::new(claim, now).request(Request::of("shop/p")), now).unwrap_err();
        assert_eq!(refused.to_string(), "10.0.0.8: taken by eno101 of shop/w (vmi-shop-w)");
    }

    #[test]
    fn the_address_of_an_ipaddress_without_a_claim_is_not_recorded() {
        let mut lists = Lists::default();
        add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
        let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
        lists.add_address(object(json!({
            "metadata": {"namespace": "shop", "name": "a", "uid": "a"},
            "spec": {"poolRef": pool, "claimRef": {"name": "a"}, "address": "10.0.0.8", "prefix": 24},
        })));
        let answer = of_file(lists, shop(), &[]).unwrap();
        let [row] = &answer.machines[..] else { panic!("{:?}", answer.machines) };
        assert_eq!((row.result, &*row.reason), (Word::Conflict, "IPAddress shop/a records 10.0.0.8"));
        assert!(answer.writes.is_empty());
    }

    #[test]
    fn the_address_in_network_data_that_a_user_wrote_for_another_machine_is_not_recorded() {
        let lists = || {
            let mut lists = Lists::default();
            add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
            let entry = json!({"id": "a", "type": "ipv4", "link": "eth0", "ip_address": "10.0.0.8", "netmask": "255.255.255.0"});
            let document = json!({"links": [{"id": "eth0", "type": "phy"}], "networks": [entry]}).to_string();
            let volume = json!({"name": "c", "cloudInitConfigDrive": {"networkData": document}});
            add_vm(&mut lists, "shop/own", None, json!({"spec": {"template": {"spec": {"volumes": [volume]}}}}));
            lists
        };
        for answer in [of_file(lists(), shop(), &[]).unwrap(), of_cluster(lists(), shop())] {
            assert_eq!(results(&answer), [("shop/own", Word::OwnNetworkData), ("shop/w", Word::Conflict)]);
            assert_eq!(reserved_by(&answer), [("10.0.0.8", "shop/own"), ("10.0.0.8", "shop/w")]);
            let reason = &answer.machines[1].reason;
            assert_eq!((&**reason, answer.writes.len()), ("VirtualMachine shop/own records 10.0.0.8", 0));
        }
    }

    #[test]
    fn the_address_in_the_secret_of_another_machine_is_not_recorded() {
        let mut lists = Lists::default();
        add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
        let name = new_name("served").unwrap();
        let volume = json!({"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": name}}});
        let served = json!({"spec": {"template": {"spec": {"volumes": [volume]}}}});
        add_vm(&mut lists, "shop/served", None, served);
        assert_eq!(lists.vms[&Key::from(("shop", "served"))].secret(), Some(&*name));
        add_own_secret(&mut lists, "served", &name, ("eno101", "infra/vlan10", "shop/p", "10.0.0.8"));
        let answer = of_file(lists, shop(), &[]).unwrap();
        assert_eq!(results(&answer), [("shop/served", Word::Conflict), ("shop/w", Word::Conflict)]);
        let source = format!("Secret shop/{name} records 10.0.0.8");
        assert_eq!((&*answer.machines[1].reason, answer.writes.len()), (&*source, 0));
    }

    /// Adds the Secret that the controller has written for a VirtualMachine of the namespace `shop`: with the interface, its
    /// network, the pool and the address.
    fn add_own_secret(lists: &mut Lists, vm: &str, name: &str, given: (&str, &str, &str, &str)) {
        let (interface, network, pool, address) = given;
        let given = Given {
            interface: interface.parse().unwrap(),
            network: network.to_owned(),
            pool: pool.to_owned(),
            addresses: vec![format!("{address}/24").parse().unwrap()],
        };
        let entry =
            json!({"id": "a", "type": "ipv4", "link": interface, "ip_address": address, "netmask": "255.255.255.0"});
        let document = json!({"links": [{"id": interface, "type": "phy"}], "networks": [entry]}).to_string();
        let vm = &lists.vms[&Key::from(("shop", vm))];
        let secret = secret(vm, name, &lists.holder(vm), vec![given], &document);
        lists.add_secret(object(serde_json::to_value(secret).unwrap()));
    }

    #[test]
    fn an_interface_that_the_secret_of_its_machine_does_not_serve_is_left_alone() {
        let decided = |reported: Option<&[&str]>, is_stored| {
            let mut lists = Lists::default();
            let name = new_name("w").unwrap();
            let volume = json!({"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": name}}});
            add_vm(&mut lists, "shop/w", reported, json!({"spec": {"template": {"spec": {"volumes": [volume]}}}}));
            add_own_secret(&mut lists, "w", &name, ("eno102", "infra/vlan20", "shop/q", "10.0.1.8"));
            let answer = match is_stored {
                true => of_cluster(lists, shop()),
                false => of_file(lists, shop(), &[]).unwrap(),
            };
            let [row] = &answer.machines[..] else { panic!("{:?}", answer.machines) };
            (row.result, row.reason.clone(), row.needs_decision, answer.writes.len())
        };
        let silent =
            "its guest reports no address: keep the address that it uses with preAllocations, or connect its agent";
        assert_eq!(decided(Some(&[]), false), (Word::LeftAlone, silent.to_owned(), true, 0));
        let keeps = "its guest reports the addresses: with a record, it keeps them";
        assert_eq!(decided(Some(&["10.0.0.8"]), false), (Word::Reserved, keeps.to_owned(), false, 1));
        let stored = "its guest reports the addresses, and it is left alone: preAllocations can keep the addresses for the machine; its \
                      Secret has no address of the pool until the label ipam.glowplug.dev/network-data=requested is set in spec.template";
        assert_eq!(decided(Some(&["10.0.0.8"]), true), (Word::Reserved, stored.to_owned(), false, 1));
    }

    #[test]
    fn the_network_data_of_a_machine_is_unknown_if_the_user_lacks_the_right_to_get_secrets() {
        let decided = |has_secrets| {
            let mut lists = Lists { has_secrets, ..Lists::default() };
            let name = new_name("w").unwrap();
            let volume = json!({"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": name}}});
            add_vm(&mut lists, "shop/w", None, json!({"spec": {"template": {"spec": {"volumes": [volume]}}}}));
            let answer = of_file(lists, shop(), &[]).unwrap();
            let [row] = &answer.machines[..] else { panic!("{:?}", answer.machines) };
            (row.result, row.reason.clone(), row.addresses.len(), row.needs_decision)
        };
        let lacking = "its Secret cannot be read: you lack the right to get secrets".to_owned();
        assert_eq!(decided(false), (Word::Unknown, lacking, 0, false));
        let absent = "it has no address and no network data yet: kubectl glowplug why shows the reason".to_owned();
        assert_eq!(decided(true), (Word::Waiting, absent, 0, false));
    }

    #[test]
    fn the_record_of_a_stopped_machine_conflicts_with_the_report_of_another_guest() {
        let mut lists = Lists::default();
        let annotations = json!({"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.8/24\"]"});
        add_vm(&mut lists, "shop/stopped", None, json!({"metadata": {"annotations": annotations}}));
        add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
        let answer = of_file(lists, shop(), &[]).unwrap();
        assert_eq!(results(&answer), [("shop/stopped", Word::Conflict), ("shop/w", Word::Conflict)]);
        assert!(answer.writes.is_empty());
    }

    #[test]
    fn an_address_of_two_guests_is_not_recorded_even_if_one_report_is_beyond_the_bounds() {
        let mut lists = Lists::default();
        add_vm(&mut lists, "shop/w", Some(&["10.0.0.11"]), json!({}));
        add_vm(&mut lists, "other/a", Some(&["10.0.0.9", "10.0.0.10", "10.0.0.11"]), json!({}));
        let answer = of_cluster(lists, shop());
        let reason = "VirtualMachineInstance other/a reports 10.0.0.11";
        assert_eq!((results(&answer), &*answer.machines[0].reason), (vec![("shop/w", Word::Conflict)], reason));
    }

    #[test]
    fn a_machine_that_is_left_alone_needs_a_decision_if_its_address_is_unknown() {
        let mut lists = Lists::default();
        let noted = json!({"metadata": {"annotations": {"ipam.glowplug.dev/left-alone": "vm-shop-alone"}}});
        add_vm(&mut lists, "shop/alone", None, noted);
        add_vm(&mut lists, "shop/new", None, json!({}));
        add_vm(&mut lists, "shop/outside", Some(&["10.0.1.8"]), json!({}));
        add_vm(&mut lists, "shop/receiver", None, json!({"spec": {"runStrategy": "WaitAsReceiver"}}));
        add_vm(&mut lists, "shop/silent", Some(&["fe80::1"]), json!({}));
        let answer = of_cluster(lists, shop());
        let expected = [
            ("shop/alone", Word::LeftAlone),
            ("shop/new", Word::New),
            ("shop/outside", Word::LeftAlone),
            ("shop/receiver", Word::Waiting),
            ("shop/silent", Word::LeftAlone),
        ];
        assert_eq!(results(&answer), expected);
        let open: Vec<&str> =
            answer.machines.iter().filter(|row| row.needs_decision).map(|row| &*row.machine).collect();
        assert_eq!((open, answer.is_clean()), (vec!["shop/alone", "shop/outside", "shop/silent"], false));
        // If another pool of the network has the address of the guest, the address is known.
        let mut lists = Lists::default();
        add_vm(&mut lists, "shop/outside", Some(&["10.0.1.8"]), json!({}));
        let mut other = shop();
        other.metadata.name = Some("other".to_owned());
        other.data["spec"] = json!({"network": "infra/vlan10", "addresses": ["10.0.1.0/24"]});
        lists.add_pool(other);
        let answer = of_cluster(lists, shop());
        assert_eq!((results(&answer), answer.is_clean()), (vec![("shop/outside", Word::LeftAlone)], true));
    }

    #[test]
    fn a_machine_whose_guest_came_from_another_cluster_is_new() {
        let mut lists = Lists::default();
        add_vm(&mut lists, "shop/arrived", None, json!({}));
        let uid = |uid: &str| json!({"virtualMachineInstanceUID": uid});
        let migration = json!({"completed": true, "sourceState": uid("other"), "targetState": uid("vmi-shop-arrived")});
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "arrived", "uid": "vm-shop-arrived"});
        lists.add_instance(object(json!({
            "metadata": {
                "namespace": "shop", "name": "arrived", "uid": "vmi-shop-arrived", "resourceVersion": "8",
                "ownerReferences": [owner],
            },
            "spec": {},
            "status": {"phase": "Running", "migrationState": migration},
        })));
        let answer = of_cluster(lists, shop());
        let reason = "its guest came from another cluster: it gets addresses like a new machine, for the next start of the guest";
        assert_eq!((results(&answer), &*answer.machines[0].reason), (vec![("shop/arrived", Word::New)], reason));
    }

    #[test]
    fn names_of_objects_are_printed_with_escaped_control_characters() {
        let hostile = "w\u{1b}[2J\u{9b}\u{202e}";
        let mut lists = Lists::default();
        add_vm(&mut lists, &format!("shop/{hostile}"), Some(&["10.0.0.8"]), json!({}));
        let text = of_cluster(lists, shop()).to_string();
        assert!(!text.contains(|c: char| c != '\n' && glowplug::terminal::acts_on_terminal(c)), "{text}");
        // The three places are the machine, the object with the address, and the member of the pool.
        assert_eq!(text.matches(r"shop/w\u{1b}[2J\u{9b}\u{202e}").count(), 3, "{text}");
    }
}

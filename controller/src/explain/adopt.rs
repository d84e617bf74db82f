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
//!   records, claims and reports of the network. Only such an address is written.
//! - What is written is a record, never a lease: the controller asks the same table again.
//! - A record or a pre-allocation that says something else is never changed. Each write has the `resourceVersion` that was read.
//! - The pool keeps no address for a name that a claim has, too: the claim would get the address.

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
use crate::explain::file::read_pools;
use crate::explain::lists::Lists;
use crate::explain::machines::{Facts, Of, Row, Word, leased};
use crate::explain::plan::judged;
use crate::explain::read::Reader;
use crate::explain::reserved::{HEAD, Reserved, reserved};
use crate::explain::text::{rows_of, write_section};
use crate::explain::write::{Outcome, Write};
use crate::kinds::cluster_api::pool_kind;
use crate::kinds::kubevirt_machine::is_deleted;
use crate::kinds::pool::HolderKind;
use crate::kinds::virtual_machine::{VirtualMachine, kubevirt_machines, virtual_machines};
use crate::pools::selection::{KnownPool, Selected, Selection};

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

/// Where the pool is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a file with one pool that the cluster does not have. `-` is standard input.
    File(PathBuf),
    /// In the cluster: `namespace/name` of a StaticIPPool, or the name of a GlobalStaticIPPool.
    Cluster(String),
}

/// A pool, and whether the cluster has it.
struct Target {
    pool: Arc<KnownPool>,
    is_stored: bool,
}

/// A machine, and the addresses that a record can keep for it.
type Kept<'a> = (&'a VirtualMachine, Selected, Vec<IpAddr>);

/// Decides what a pool does to existing machines. `only`: the VirtualMachines to decide about, all if it is empty. With `is_applied`,
/// the records are written.
///
/// # Errors
///
/// There is no such pool, the pool is invalid, a request failed, or the user may not read what decides.
pub async fn adopt(reader: &Reader, place: &Place, only: &[Key], is_applied: bool) -> anyhow::Result<Answer> {
    let file = match place {
        Place::File(path) => read_pools(path, reader.client().default_namespace())?,
        Place::Cluster(_) => Vec::new(),
    };
    let mut lists = Lists::read(reader).await?;
    lists.read_claims(reader).await?;
    let target = match place {
        Place::File(_) => Target::of_file(&mut lists, file)?,
        Place::Cluster(name) => Target::of_cluster(&lists, name)?,
    };
    let mut answer = answer(lists, &target, only, Timestamp::now())?;
    if is_applied {
        let lacking = reader.lacking();
        ensure!(lacking.is_empty(), "nothing is written, missing right: {}", lacking.join("; "));
        for write in &mut answer.writes {
            write.send(reader).await?;
        }
    }
    Ok(answer)
}

fn answer(mut lists: Lists, target: &Target, only: &[Key], now: Timestamp) -> anyhow::Result<Answer> {
    let id = &target.pool.checked.id;
    let checked = target.pool.checked.pool.as_ref().map_err(|errors| anyhow::anyhow!("pool {id}: {errors}"))?;
    ensure!(!checked.is_external(), "pool {id} takes its addresses from another program: there is nothing to adopt");
    if let Some(unknown) = only.iter().find(|key| !lists.vms.contains_key(key)) {
        bail!("{unknown}: no VirtualMachine");
    }
    let pools = lists.pools.clone();
    let (mut registry, _) = lists.registry(&pools, now)?;
    let leased = leased(registry.state()?);
    let recorded = lists.recorded(registry.state()?);
    let adoption = recorded.adopt(&mut registry, now)?;
    let facts = Facts::new(&lists, &recorded, &leased, &adoption, registry.state()?);
    let selection = lists.selection(&pools);
    let alone = Selection::new([Arc::clone(&target.pool.checked)], lists.node_pools.iter().cloned());
    let (mut machines, mut kept): (Vec<Row>, Vec<Kept<'_>>) = (Vec::new(), Vec::new());
    let is_meant = |vm: &&VirtualMachine| !is_deleted(&vm.metadata) && (only.is_empty() || only.contains(&vm.key()));
    for vm in lists.vms.values().filter(is_meant) {
        if alone.of(vm).is_ok_and(|all| all.is_empty()) {
            continue;
        }
        match selection.of(vm) {
            Err(problem) => machines.push(facts.row(vm, Vec::new(), Word::Conflict, problem.to_string())),
            Ok(all) => {
                let Some(selected) = all.iter().find(|selected| selected.pool == *id) else { continue };
                let (row, addresses) = facts.decide(vm, selected, Of { pool: checked, is_stored: target.is_stored });
                machines.push(row);
                kept.extend((!addresses.is_empty()).then(|| (vm, selected.clone(), addresses)));
            }
        }
    }
    let writes = match target.is_stored {
        false => kept.iter().map(|kept| record(&lists, checked, kept)).collect::<Result<_, _>>()?,
        true => target.keep(&lists, &kept).into_iter().collect(),
    };
    let is_of_pool = |it: &Reserved| {
        it.network == checked.network() && it.address.parse().is_ok_and(|address: IpAddr| checked.contains(address))
    };
    let reserved = reserved(facts.leader, &facts.users).into_iter().filter(is_of_pool).collect();
    Ok(Answer { version: 1, pool: id.to_string(), network: checked.network().to_owned(), machines, reserved, writes })
}

/// The annotation that records the addresses of a machine.
fn record(lists: &Lists, pool: &Pool, (vm, selected, addresses): &Kept<'_>) -> anyhow::Result<Write> {
    let with_prefix = |address: &IpAddr| {
        let space = pool.space(Family::of(*address));
        IpNetwork::new(*address, space.map_or(Family::of(*address).bits(), |space| space.prefix()))
    };
    let addresses = addresses.iter().map(with_prefix).collect::<Result<_, _>>()?;
    let machine = lists.holder(vm);
    let claimant = Claimant { machine: machine.clone(), interface: selected.interface };
    let allocation = Allocation { claimant, addresses };
    let networks = [(selected.interface, selected.network.clone())].into();
    let (kind, metadata) = match lists.kubevirt_machine(&vm.key()) {
        Some(known) if machine.kind == HolderKind::KubevirtMachine => (kubevirt_machines(), &known.metadata),
        _ => (virtual_machines(), &vm.metadata),
    };
    let patch = annotation_patch(&machine, std::slice::from_ref(&allocation), &networks, None)?;
    Ok(Write::annotations(kind, metadata, &patch["metadata"]["annotations"]))
}

// === impl Target ===

impl Target {
    /// Finds a pool of the cluster.
    fn of_cluster(lists: &Lists, name: &str) -> anyhow::Result<Self> {
        let pool = lists.pools.get(&PoolId::parse(name)).with_context(|| format!("{name}: no pool of the cluster"))?;
        Ok(Self { pool: Arc::clone(pool), is_stored: true })
    }

    /// Adds the only pool of a file to the lists.
    fn of_file(lists: &mut Lists, file: Vec<Object>) -> anyhow::Result<Self> {
        let count = file.len();
        let Ok([object]) = <[Object; 1]>::try_from(file) else { bail!("{count} pools in the file, expected one") };
        let id = PoolId::of(&object.metadata);
        ensure!(!lists.pools.contains_key(&id), "pool {id} exists already, expected --pool {id} in place of a file");
        let errors = judged(lists, &object, &[]).errors;
        ensure!(errors.is_empty(), "pool {id} would be rejected: {}", errors.join("; "));
        lists.replace_pool(object);
        let pool = lists.pools.get(&id).cloned().with_context(|| format!("pool {id} is missing"))?;
        Ok(Self { pool, is_stored: false })
    }

    /// The change of the pool that keeps these addresses for their machines. `None`: there are none.
    fn keep(&self, lists: &Lists, kept: &[Kept<'_>]) -> Option<Write> {
        let KnownPool { metadata, checked, .. } = &*self.pool;
        // The name alone would be that of a machine in any namespace.
        let name = |vm: &VirtualMachine| lists.holder(vm).title();
        let names: BTreeMap<String, String> = kept.iter().map(|(vm, _, all)| (name(vm), list(all))).collect();
        (!names.is_empty()).then(|| Write::pre_allocations(pool_kind(&checked.id), metadata, &names))
    }
}

// === impl Answer ===

impl Answer {
    /// Whether no machine needs a decision, and every change was stored or is only planned.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let is_failed = |write: &Write| write.outcome == Outcome::Failed;
        !self.machines.iter().any(Row::needs_decision) && !self.writes.iter().any(is_failed)
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
        let undo = self.writes.iter().filter(|write| write.outcome == Outcome::Written);
        write_section(
            f,
            ["A RECORD STAYS WHEN THE POOL IS CHANGED OR DELETED. TO REMOVE IT"],
            undo.map(|write| [write.undo.clone()]).collect(),
        )?;
        let failed = self.writes.iter().filter_map(|write| Some([write.object.clone(), write.problem.clone()?]));
        write_section(f, ["NOT WRITTEN", "PROBLEM"], failed.collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::kubevirt_machine::{Handed, secret};
    use crate::kinds::network_data::new_name;

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

    fn of_file(mut lists: Lists, pool: Object, only: &[Key]) -> anyhow::Result<Answer> {
        let target = Target::of_file(&mut lists, vec![pool])?;
        answer(lists, &target, only, Timestamp::UNIX_EPOCH)
    }

    /// The answer about the pool, which the cluster has.
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
        let undo = "kubectl annotate kubevirtmachines.infrastructure.cluster.x-k8s.io w-0 -n clusters-c1 \
                    ipam.glowplug.dev/network-eno101- kubevirt.cluster.x-k8s.io/allocated-ip-eno101-";
        assert_eq!((&*write.object, &write.patch, &*write.undo), ("KubevirtMachine clusters-c1/w-0", &patch, undo));
    }

    #[test]
    fn a_pool_of_the_cluster_keeps_the_address_for_the_machine_in_its_namespace() {
        let answer = of_cluster(lists(), pool());
        let [write] = &answer.writes[..] else { panic!("{:?}", answer.writes) };
        let kept = json!({"preAllocations": {"clusters-c1/w-0": "10.0.0.8"}});
        let patch = json!({"metadata": {"uid": "p", "resourceVersion": "3"}, "spec": kept});
        let undo = "kubectl patch staticippools.ipam.glowplug.dev p -n clusters --type merge \
                    -p '{\"spec\":{\"preAllocations\":{\"clusters-c1/w-0\":null}}}'";
        assert_eq!((&*write.object, &write.patch, &*write.undo), ("StaticIPPool clusters/p", &patch, undo));
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
        let rejected = failed(lists(), &[], network);
        assert_eq!(&rejected[..36], "pool clusters/p would be rejected: n");
    }

    // === machines of a namespace ===

    const KEPT: &str = "the pool can keep them for it";

    fn results(answer: &Answer) -> Vec<(&str, Word)> {
        answer.machines.iter().map(|row| (&*row.machine, row.result)).collect()
    }

    fn reserved_by(answer: &Answer) -> Vec<(&str, &str)> {
        answer.reserved.iter().map(|it| (&*it.address, &*it.object)).collect()
    }

    /// Adds a VirtualMachine. Its guest reports these addresses in phase Running. `None`: there is no guest.
    fn add_vm(lists: &mut Lists, key: &str, addresses: Option<&[&str]>, more: Value) {
        let (namespace, name) = key.split_once('/').unwrap();
        let metadata = |uid: String| json!({"namespace": namespace, "name": name, "uid": uid, "resourceVersion": "7"});
        let networks = json!([{"name": "net1", "multus": {"networkName": "infra/vlan10"}}]);
        let devices = json!({"interfaces": [{"name": "net1", "bridge": {}}]});
        let template = json!({"spec": {"networks": networks, "domain": {"devices": devices}}});
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
    fn the_report_of_another_namespace_stays_reserved_when_the_pool_keeps_addresses() {
        let lists = || {
            let mut lists = Lists::default();
            add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
            // Guests of a namespace that the pool does not serve reserve at most two of its eight addresses.
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
    fn the_pool_keeps_nothing_for_the_name_of_a_claim() {
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
    fn the_address_of_an_ip_address_without_a_claim_is_not_recorded() {
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
    fn the_address_in_the_secret_of_another_machine_is_not_recorded() {
        let mut lists = Lists::default();
        add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
        let name = new_name("served").unwrap();
        let volume = json!({"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": name}}});
        let served = json!({"spec": {"template": {"spec": {"volumes": [volume]}}}});
        add_vm(&mut lists, "shop/served", None, served);
        let vm = &lists.vms[&Key::from(("shop", "served"))];
        assert_eq!(vm.secret(), Some(&*name));
        let handed = Handed {
            interface: "eno101".parse().unwrap(),
            network: "infra/vlan10".to_owned(),
            pool: "shop/p".to_owned(),
            addresses: vec!["10.0.0.8/24".parse().unwrap()],
        };
        let document = json!({
            "links": [{"id": "eno101", "type": "phy"}],
            "networks": [{"id": "a", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.8", "netmask": "255.255.255.0"}],
        });
        let machine = lists.holder(vm);
        let secret = secret(vm, &name, &machine, vec![handed], &document.to_string());
        lists.add_secret(object(serde_json::to_value(secret).unwrap()));
        let answer = of_file(lists, shop(), &[]).unwrap();
        assert_eq!(results(&answer), [("shop/served", Word::Conflict), ("shop/w", Word::Conflict)]);
        let source = format!("Secret shop/{name} records 10.0.0.8");
        assert_eq!((&*answer.machines[1].reason, answer.writes.len()), (&*source, 0));
    }

    #[test]
    fn the_record_of_a_machine_without_a_guest_comes_after_the_report_of_another_one() {
        let mut lists = Lists::default();
        let annotations = json!({"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.8/24\"]"});
        add_vm(&mut lists, "shop/stopped", None, json!({"metadata": {"annotations": annotations}}));
        add_vm(&mut lists, "shop/w", Some(&["10.0.0.8"]), json!({}));
        let answer = of_file(lists, shop(), &[]).unwrap();
        assert_eq!(results(&answer), [("shop/stopped", Word::Conflict), ("shop/w", Word::Conflict)]);
        assert!(answer.writes.is_empty());
    }

    #[test]
    fn an_address_that_two_guests_report_is_not_recorded_also_beyond_the_bounds() {
        let mut lists = Lists::default();
        add_vm(&mut lists, "shop/w", Some(&["10.0.0.11"]), json!({}));
        add_vm(&mut lists, "other/a", Some(&["10.0.0.9", "10.0.0.10", "10.0.0.11"]), json!({}));
        let answer = of_cluster(lists, shop());
        let reason = "VirtualMachineInstance other/a reports 10.0.0.11";
        assert_eq!((results(&answer), &*answer.machines[0].reason), (vec![("shop/w", Word::Conflict)], reason));
    }

    #[test]
    fn a_machine_that_is_left_alone_stays_so_without_a_guest_and_needs_a_decision() {
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
            answer.machines.iter().filter(|row| row.needs_decision()).map(|row| &*row.machine).collect();
        assert_eq!((open, answer.is_clean()), (vec!["shop/alone", "shop/silent"], false));
    }

    #[test]
    fn no_name_of_the_cluster_acts_on_the_terminal() {
        let hostile = "w\u{1b}[2J\u{9b}\u{202e}";
        let mut lists = Lists::default();
        add_vm(&mut lists, &format!("shop/{hostile}"), Some(&["10.0.0.8"]), json!({}));
        let text = of_cluster(lists, shop()).to_string();
        assert!(!text.contains(|c: char| c != '\n' && glowplug::terminal::acts_on_terminal(c)), "{text}");
        // The machine, the object with the address, and the member of the pool.
        assert_eq!(text.matches(r"shop/w\u{1b}[2J\u{9b}\u{202e}").count(), 3, "{text}");
    }
}

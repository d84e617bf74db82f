//! Finds the machines that the webhook refuses because of the pools that select them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glowplug::host::nodepool::machines_namespace;
use kube::core::{Expression, Selector, SelectorExt as _};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::explain::lists::{Lists, Pools};
use crate::kinds::kubevirt_machine::is_deleted;
use crate::kinds::virtual_machine::{NODE_POOL_LABEL, VirtualMachine};
use crate::pools::reference::{Decision, NewMachine, admit_new, ending, without_volume};
use crate::pools::selection::{Problem, Selection, cluster_of};

/// Maximum number of machines that a table names for one message.
const NAMED: usize = 5;
/// Maximum number of new machines that are tried for one pool: one for each combination of namespace and labels.
pub(super) const MOST_NEW: usize = 1024;
/// Maximum number of untried new machines that are counted.
const MOST_COUNTED: usize = 100_000;

/// Machines that the webhook refuses for one reason.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// The message of the webhook.
    pub message: String,
    /// The pools of the files that select the machines.
    pub pools: BTreeSet<String>,
    /// The refused machines: a description for the new machines of a selector, and `namespace/name` for each
    /// VirtualMachine that would be refused if it were created again.
    pub machines: Vec<String>,
}

/// An example of a new machine that a pool selects.
struct Example {
    title: String,
    namespace: String,
    labels: BTreeMap<String, String>,
}

/// For each message of the webhook, the pools of the files and the refused machines.
#[derive(Default)]
struct Messages(BTreeMap<String, (BTreeSet<String>, Vec<String>)>);

/// Returns the machines of the pools `planned` that the webhook would refuse: new machines, and existing machines that
/// would be refused if they were created again. `pools` has all pools of the cluster after the change. Also returns,
/// for each pool, the number of new machines that are not tried.
pub(super) fn refused(
    lists: &Lists,
    pools: &Pools,
    planned: &BTreeSet<PoolId>,
) -> anyhow::Result<(Vec<Refused>, BTreeMap<PoolId, usize>)> {
    let mut messages = Messages::default();
    let (selection, made_up) = complete(lists, pools, planned);
    let (mut tried, mut left_out) = (BTreeMap::new(), BTreeMap::new());
    for id in planned {
        let mut examples = examples(&selection, id, &made_up);
        tried.extend(examples.by_ref().take(MOST_NEW).map(|it| ((it.namespace, it.labels), it.title)));
        left_out.insert(id.clone(), examples.take(MOST_COUNTED).count());
    }
    for ((namespace, labels), title) in tried {
        let object = machine(&selection, &namespace, &labels)?;
        let vm = VirtualMachine::read(object.clone());
        // Another part of the answer reports that the right to list Namespaces is missing.
        if matches!(selection.of(&vm), Err(Problem::UnknownNamespaces { .. })) {
            continue;
        }
        let new = NewMachine { object: &object, is_copy: false, held: &BTreeSet::new(), name: "new" };
        if let Decision::Refuse(message) = admit_new(new, &selection)? {
            messages.add(common(&message, &vm), selection.selecting(&vm).map(|pool| &pool.id), planned, title);
        }
    }
    let selection = lists.selection(pools);
    let is_served = |vm: &&VirtualMachine| {
        !is_deleted(&vm.metadata) && !vm.awaits_migration && !vm.is_left_alone() && vm.own_network_data().is_none()
    };
    for vm in lists.vms.values().filter(is_served) {
        let message = match selection.of(vm) {
            Ok(selected) => {
                let lacks_volume = vm.cloud_init.is_none() && !selected.is_empty();
                selection.ending(vm, &selected).map(ending).or(lacks_volume.then(|| without_volume(&selected)))
            }
            Err(Problem::UnknownNamespaces { .. }) => None,
            Err(problem) => Some(problem.to_string()),
        };
        if let Some(message) = message {
            let selecting = selection.selecting(vm).map(|pool| &pool.id);
            messages.add(common(&message, vm), selecting, planned, vm.key().to_string());
        }
    }
    left_out.retain(|_, number| *number > 0);
    Ok((messages.into(), left_out))
}

/// Returns the selection of these pools, and the names of made-up Namespaces. A pool may be created before the objects
/// that it selects. Therefore this function makes up each missing NodePool, and a Namespace for each selector that
/// selects no Namespace.
fn complete(lists: &Lists, pools: &Pools, planned: &BTreeSet<PoolId>) -> (Selection, BTreeSet<String>) {
    let (known, mut made_up) = (lists.selection(pools), BTreeSet::new());
    let mut node_pools = lists.node_pools.clone();
    let mut namespaces = lists.namespaces.clone();
    for id in planned {
        let missing = known.memberships().get(id).into_iter().flat_map(|membership| &membership.missing);
        for key in missing.filter(|_| lists.has_node_pools) {
            let mut node_pool = Object { data: json!({"spec": {"clusterName": "new"}}), ..Object::default() };
            node_pool.metadata.namespace = Some(key.namespace.clone());
            node_pool.metadata.name = Some(key.name.clone());
            made_up.insert(machines_namespace(&key.namespace, "new"));
            node_pools.push(Arc::new(node_pool));
        }
        let selector = known.pool(id).and_then(|pool| pool.spec.namespace_selector.clone());
        let selector = selector.and_then(|selector| Selector::try_from(selector).ok());
        if let (Some(namespaces), Some(selector)) = (&mut namespaces, selector)
            && !namespaces.values().any(|labels| selector.matches(labels))
            && let Some(labels) = labels_of(&selector).next()
        {
            let name = labels.get("kubernetes.io/metadata.name").cloned();
            let name = name.unwrap_or_else(|| format!("new-{}", made_up.len()));
            made_up.insert(name.clone());
            namespaces.entry(name).or_insert(labels);
        }
    }
    let checked = pools.values().map(|pool| Arc::clone(&pool.checked));
    (Selection::new(checked, node_pools, namespaces.as_ref()), made_up)
}

/// Returns examples of new machines of a pool. If the pool has NodePools, there is one example for each NodePool.
/// Otherwise the examples have labels that the selector of the pool selects, in each namespace of the pool.
fn examples<'s>(
    selection: &'s Selection,
    id: &'s PoolId,
    made_up: &'s BTreeSet<String>,
) -> Box<dyn Iterator<Item = Example> + 's> {
    let Some(pool) = selection.pool(id) else { return Box::new([].into_iter()) };
    let of_node_pool = move |key: Key| {
        let namespace = machines_namespace(&key.namespace, cluster_of(selection.node_pools().get(&key)?)?);
        let labels = [(NODE_POOL_LABEL.to_owned(), key.name.clone())].into();
        Some(Example { title: format!("new machines of NodePool {key}"), namespace, labels })
    };
    let node_pools: BTreeSet<_> = pool.node_pools().into_iter().collect();
    if !node_pools.is_empty() {
        return Box::new(node_pools.into_iter().filter_map(of_node_pool));
    }
    let of_selector = move |(namespace, selector): (&str, &Selector)| {
        let place =
            if made_up.contains(namespace) { "a new namespace".to_owned() } else { format!("namespace {namespace}") };
        let examples = labels_of(selector).map(|labels| {
            let text: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let with = if text.is_empty() { String::new() } else { format!(" with {}", text.join(",")) };
            Example { title: format!("new machines in {place}{with}"), namespace: namespace.to_owned(), labels }
        });
        examples.collect::<Vec<_>>()
    };
    Box::new(selection.selectors_of(id).flat_map(of_selector))
}

/// Returns sets of labels that a selector selects, each with as few labels as possible. Each value of a requirement with
/// `In` is in at least one set, unless another requirement excludes the value. If two requirements contradict each other,
/// there is no set.
fn labels_of(selector: &Selector) -> impl Iterator<Item = BTreeMap<String, String>> {
    let expressions: Vec<Expression> = selector.clone().into_iter().collect();
    let is_possible = |key: &str, value: &str| {
        expressions.iter().all(|expression| match expression {
            Expression::NotIn(of, values) => of != key || !values.contains(value),
            Expression::NotEqual(of, other) => of != key || other != value,
            Expression::Equal(..) | Expression::In(..) | Expression::Exists(_) | Expression::DoesNotExist(_) => true,
        })
    };
    let (mut first, mut others) = (BTreeMap::new(), Vec::new());
    for expression in expressions.clone() {
        match expression {
            Expression::Equal(key, value) => drop(first.insert(key, value)),
            Expression::In(key, values) => {
                let mut values = values.into_iter().filter(|value| is_possible(&key, value));
                first.extend(values.next().map(|value| (key.clone(), value)));
                others.extend(values.map(|value| (key.clone(), value)));
            }
            Expression::Exists(key) => drop(first.entry(key).or_default()),
            Expression::NotIn(..) | Expression::NotEqual(..) | Expression::DoesNotExist(_) => {}
        }
    }
    let other = |(key, value): (String, String)| first.clone().into_iter().chain([(key, value)]).collect();
    let others: Vec<_> = others.into_iter().map(other).collect();
    [first].into_iter().chain(others).filter(|labels| selector.matches(labels))
}

/// Returns a machine with these labels, and with an interface on the network of each pool that selects the machine.
fn machine(selection: &Selection, namespace: &str, labels: &BTreeMap<String, String>) -> serde_json::Result<Object> {
    let object = |networks: &BTreeSet<&str>| {
        let networks = networks.iter().enumerate();
        let source = |(at, network): (usize, &&str)| match *network {
            "default" => json!({"name": format!("net{at}"), "pod": {}}),
            network => json!({"name": format!("net{at}"), "multus": {"networkName": network}}),
        };
        let networks: Vec<Value> = networks.map(source).collect();
        let interfaces: Vec<Value> = networks.iter().map(|network| json!({"name": network["name"]})).collect();
        let spec = json!({
            "networks": networks, "domain": {"devices": {"interfaces": interfaces}},
            "volumes": [{"name": "cloudinit", "cloudInitConfigDrive": {}}],
        });
        let metadata = json!({"namespace": namespace, "name": "new", "labels": labels});
        serde_json::from_value::<Object>(json!({"metadata": metadata, "spec": {"template": {"spec": spec}}}))
    };
    let alone = VirtualMachine::read(object(&BTreeSet::new())?);
    object(&selection.selecting(&alone).filter_map(|pool| pool.network()).collect())
}

/// Removes the name of the machine from a message, so that equal problems of several machines have the same message.
fn common(message: &str, vm: &VirtualMachine) -> String {
    message.replacen(&format!(" of VirtualMachine {}", vm.key()), "", 1)
}

// === impl Messages ===

impl Messages {
    /// Adds a machine, if at least one pool of `planned` selects the machine.
    fn add<'p>(
        &mut self,
        message: String,
        selecting: impl Iterator<Item = &'p PoolId>,
        planned: &BTreeSet<PoolId>,
        machine: String,
    ) {
        let mut selecting = selecting.filter(|pool| planned.contains(*pool)).map(PoolId::to_string).peekable();
        if selecting.peek().is_some() {
            let (pools, machines) = self.0.entry(message).or_default();
            pools.extend(selecting);
            machines.push(machine);
        }
    }
}

impl From<Messages> for Vec<Refused> {
    fn from(messages: Messages) -> Self {
        let refused = |(message, (pools, machines))| Refused { message, pools, machines };
        messages.0.into_iter().map(refused).collect()
    }
}

// === impl Refused ===

/// Converts to a row of the table: machines, pools, message.
impl From<&Refused> for [String; 3] {
    fn from(Refused { message, pools, machines }: &Refused) -> Self {
        let mut named = machines[..machines.len().min(NAMED)].join(", ");
        if let further @ 1.. = machines.len().saturating_sub(NAMED) {
            named += &format!(" and {further} more");
        }
        let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
        [named, pools.join(", "), message.clone()]
    }
}

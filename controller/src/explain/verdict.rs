//! Decides what `why` answers about a machine: its state, the reason, and what a person can do.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use crate::cluster::key::{Key, PoolId};
use crate::explain::event::Event;
use crate::kinds::kubevirt_machine::Instance;
use crate::kinds::mac_pool::MAC_NETWORK;
use crate::kinds::network_data::{NETWORK_DATA_LABEL, REQUESTED};
use crate::kinds::pool::{LeaseSpec, Waiting};
use crate::kinds::virtual_machine::{LEFT_ALONE_ANNOTATION, NODE_POOL_LABEL, VirtualMachine};
use crate::machines::Standing;
use crate::pools::reference::{has_index, without_volume};
use crate::pools::selection::{MachinePool, Problem, Selected, Selection};

/// The state of a machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// `allocated`: the machine holds an address of each pool that selects it, and has the reference to its network
    /// data.
    Allocated,
    /// `waiting`: the machine waits for an address or for its network data.
    Waiting,
    /// `leftAlone`: the guest of the machine ran before a pool selected the machine, so the machine keeps its own
    /// network. Or a pool selected the machine after its network data was made, so one interface keeps its own network.
    LeftAlone,
    /// `ownNetworkData`: a user wrote the network data of the machine, so the machine gets no address.
    OwnNetworkData,
    /// `notSelected`: no pool selects the machine.
    NotSelected,
    /// `outdated`: the machine holds an address of each pool, but its network data cannot be updated, or its guest
    /// started before the last update.
    Outdated,
    /// `conflicting`: the pools that select the machine contradict each other or the machine, or the only pool is being
    /// deleted. Or another object or guest has an address of the machine, or the lease of its address cannot be read.
    Conflicting,
    /// `unknown`: the user lacks a right, so it is unknown whether a pool selects the machine.
    Unknown,
}

/// The state, the reason, the time since which the machine is in the state, and what a person can do.
pub(super) type Verdict = (State, String, Option<String>, Option<String>);

const LOOK_AT_EVENTS: &str =
    "look at the events; without an event, look whether a replica leads: kubectl glowplug status";

const OWN_DATA: &str = "the machine has network data of its own";

/// Returns the verdict about a machine whose pools contradict each other or the machine. The machine starts nevertheless
/// if it has network data of its own.
pub(super) fn contradicted(machine: &VirtualMachine, problem: &Problem) -> Verdict {
    if has_own_data(machine) {
        return (State::OwnNetworkData, format!("{OWN_DATA}; {problem}"), None, None);
    }
    let what_to_do = "change the pool or the machine that the reason names".to_owned();
    (State::Conflicting, problem.to_string(), None, Some(what_to_do))
}

fn has_own_data(machine: &VirtualMachine) -> bool {
    Standing::of(machine, None) == Standing::OwnData
}

/// Decides the state of a machine and the reason.
///
/// - `lost`: an address that an object of the machine records, that its pool offers, and that no lease has
/// - `events`: the events about the machine that still apply. The newest event is the last
pub(super) fn verdict(
    machine: &VirtualMachine,
    selected: &[Selected],
    selection: &Selection,
    (held, lost): (&[&LeaseSpec], Option<IpAddr>),
    waiting: &BTreeMap<PoolId, Vec<Waiting>>,
    (instance, events): (Option<&Instance>, &[&Event]),
) -> Verdict {
    // While an interface lacks its MAC address, the machine gets no address and no network data.
    if let Some(verdict) = waits_for_mac_address(machine, events) {
        return verdict;
    }
    if selected.is_empty() {
        return not_selected(machine, selection, held, events);
    }
    if has_own_data(machine) {
        let reason = OWN_DATA.to_owned();
        let what_to_do =
            "to give it an address of the pool, remove the network data from its cloud-init volume; if its guest runs, the machine is then left \
             alone, so also remove the annotation ipam.glowplug.dev/left-alone before its next start"
                .to_owned();
        return (State::OwnNetworkData, reason, None, Some(what_to_do));
    }
    let lacks = selected.iter().find(|pool| !held.iter().any(|lease| is_from(lease, pool)));
    // The last event has the reason why the machine waits. Once the machine has its addresses, an event about an
    // address no longer applies.
    let is_why = |event: &&Event| match &*event.reason {
        "NetworkDataMissing" => true,
        "IPAddressUnavailable" | "IPAddressConflict" | "AddressPending" => lacks.is_some(),
        _ => false,
    };
    let last = events.last().copied().filter(is_why);
    // The record of the address `lost` becomes a lease only when a leader starts.
    let is_lost = lacks.is_some() && machine.cloud_init.is_some() && !machine.is_left_alone();
    if let Some(address) = lost.filter(|_| is_lost && last.is_none_or(|event| event.reason == "IPAddressConflict")) {
        let reason = format!("{address} is recorded for the machine, and no lease has it");
        let what_to_do = "restart the controller: it adds the lease when it starts, unless the address has another user, which kubectl glowplug audit names".to_owned();
        return (State::Waiting, reason, last.map(|event| event.time.clone()), Some(what_to_do));
    }
    if let Some(Event { time, reason, message }) = last.filter(|_| !machine.is_left_alone()) {
        let what_to_do = match &**reason {
            "AddressPending" => {
                "wait; if the machine still waits after some minutes, look at the claim that the reason names"
            }
            _ => "remove the cause that the reason names; the controller then continues by itself",
        };
        return (State::Waiting, message.clone(), Some(time.clone()), Some(what_to_do.to_owned()));
    }
    // When the machine holds its addresses, its template gets the reference to its network data.
    let has_data = machine.secret().is_some() || instance.is_some_and(|it| it.secret().is_some());
    if lacks.is_none() && has_data {
        let since = held.iter().map(|lease| lease.since.0).max().map(|since| since.to_string());
        return (State::Allocated, "the machine holds an address of each of its pools".to_owned(), since, None);
    }
    if machine.is_left_alone() {
        let reason = "the guest was already running when a pool first selected the machine, and keeps its own network"
            .to_owned();
        let kept = pre_allocated(machine, selected, selection);
        let keep = match kept.is_empty() {
            true => "to keep the address that it uses, first write it into preAllocations of the pool, as kubectl glowplug adopt does"
                .to_owned(),
            false => format!("preAllocations of the pool keeps {} for the machine", kept.join(", ")),
        };
        // If the annotation were removed now, the machine would get another address than the recorded one, or no
        // network data.
        if let Some(address) = lost {
            let reason = format!("{reason}; {address} is recorded for it, and no lease has it");
            let what_to_do = format!(
                "restart the controller: it adds the lease when it starts, unless the address has another user, which kubectl glowplug \
                 audit names; do not remove the annotation {LEFT_ALONE_ANNOTATION} before"
            );
            return (State::LeftAlone, reason, None, Some(what_to_do));
        }
        let what_to_do = format!(
            "to give it an address of the pool, remove the annotation {LEFT_ALONE_ANNOTATION}, then restart the machine; {keep}"
        );
        return (State::LeftAlone, reason, None, Some(what_to_do));
    }
    if machine.cloud_init.is_none() {
        let what_to_do = "add the volume to spec.template, then restart the machine if its guest runs".to_owned();
        return (State::Waiting, without_volume(selected), None, Some(what_to_do));
    }
    if machine.awaits_migration && !has_data {
        let what_to_do = "nothing: the machine gets its address when its run strategy changes".to_owned();
        return (State::Waiting, "the guest comes from another cluster".to_owned(), None, Some(what_to_do));
    }
    let Some(lacking) = lacks else {
        let reason = "the machine holds its addresses, and the controller has not added networkDataSecretRef to spec.template yet";
        return (State::Waiting, reason.to_owned(), None, Some(LOOK_AT_EVENTS.to_owned()));
    };
    let key = machine.key();
    let is_machine = |it: &Waiting| {
        let of = Key { namespace: it.namespace.clone(), name: it.name.clone() };
        of == key || machine.kubevirt_machine() == Some(of)
    };
    let waits_in = |it: &Selected| {
        let first = |pool| waiting.get(pool)?.iter().find(|it| is_machine(it));
        waits(it.pools().filter_map(|pool| Some((pool, first(pool)?))))
    };
    if let Some(verdict) = selected.iter().find_map(waits_in) {
        return verdict;
    }
    let is_later = machine.secret().is_some() && !has_index(machine, lacking);
    if is_later && held.iter().any(|lease| lease.network != MAC_NETWORK) {
        let (pool, interface) = (&lacking.pool, &lacking.attachment);
        let reason =
            format!("the machine holds no address of pool {pool}: its interface {interface:?} keeps its network");
        let what_to_do = format!(
            "to give it an address of the pool, set the label {NETWORK_DATA_LABEL}={REQUESTED} in spec.template, then restart the machine"
        );
        return (State::LeftAlone, reason, None, Some(what_to_do));
    }
    let reason = match selection.exhausted(lacking) {
        Some(exhausted) => exhausted,
        None => format!("the controller has not allocated an address of pool {} yet", lacking.pool),
    };
    (State::Waiting, reason, None, Some(LOOK_AT_EVENTS.to_owned()))
}

/// Returns the addresses that the pools of a machine keep for the machine.
fn pre_allocated(machine: &VirtualMachine, selected: &[Selected], selection: &Selection) -> Vec<String> {
    let Key { namespace, name } = machine.kubevirt_machine().unwrap_or_else(|| machine.key());
    let pools = selected.iter().flat_map(Selected::pools).filter_map(|id| selection.pool(id)?.pool.as_ref().ok());
    pools.flat_map(|pool| pool.pre_allocated(&namespace, &name)).map(ToString::to_string).collect()
}

/// Returns the verdict about a machine that waits for an address of one of these pools. `None`: the machine waits for
/// no address of these pools.
pub(super) fn waits<'w>(pools: impl Iterator<Item = (&'w PoolId, &'w Waiting)>) -> Option<Verdict> {
    let pools: Vec<(&PoolId, &Waiting)> = pools.collect();
    let (pool, Waiting { since, .. }) = pools.first()?;
    let lacking: Vec<(&PoolId, &str)> =
        pools.iter().filter_map(|(pool, waiting)| Some((*pool, waiting.family.as_deref()?))).collect();
    let reasons: Vec<String> =
        lacking.iter().map(|(pool, family)| format!("pool {pool} has no free {family} address")).collect();
    let advice: Vec<String> =
        lacking.iter().map(|(pool, family)| format!("add {family} addresses to pool {pool}")).collect();
    let (reason, what_to_do) = match lacking.is_empty() {
        false => (reasons.join("; "), format!("{}, or delete machines that hold some", advice.join(" or "))),
        true => (
            format!("the machine waits for addresses of several pools, and pool {pool} is one of them"),
            "look at the conditions of its pools".to_owned(),
        ),
    };
    Some((State::Waiting, reason, Some(since.0.to_string()), Some(what_to_do)))
}

/// Returns the verdict about a machine with an interface that waits for a MAC address. `None`: no interface waits.
fn waits_for_mac_address(machine: &VirtualMachine, events: &[&Event]) -> Option<Verdict> {
    if !machine.awaits_mac_addresses {
        return None;
    }
    let is_why =
        |event: &&&Event| ["MACPoolExhausted", "MACAddressMissing", "MACAddressRefused"].contains(&&*event.reason);
    let Some(Event { time, reason, message }) = events.iter().rev().find(is_why) else {
        let lacking = machine.networks.iter().filter(|it| it.mac.is_none()).map(|it| &*it.name);
        let reason = format!("interface {} has no MAC address", lacking.collect::<Vec<_>>().join(", "));
        let what_to_do =
            "look whether a MACPool serves the machine and has free addresses: kubectl glowplug status".to_owned();
        return Some((State::Waiting, reason, None, Some(what_to_do)));
    };
    let what_to_do = match &**reason {
        "MACPoolExhausted" => {
            "add a range to the MACPool that the reason names, or delete machines that hold addresses of it"
        }
        "MACAddressRefused" => {
            "change the machine, or the policy or webhook that refuses the request; the controller tries again within a minute"
        }
        _ => "create a MACPool that serves the machine, or write macAddress into the interface",
    };
    Some((State::Waiting, message.clone(), Some(time.clone()), Some(what_to_do.to_owned())))
}

/// Whether a lease is for the network and interface of this selection of a machine.
fn is_from(lease: &LeaseSpec, pool: &Selected) -> bool {
    lease.network == pool.network && lease.holder.interface == pool.interface.to_string()
}

/// Returns the verdict about a machine that no pool selects, except for a pool that is being deleted.
fn not_selected(machine: &VirtualMachine, selection: &Selection, held: &[&LeaseSpec], events: &[&Event]) -> Verdict {
    let keeps = held.iter().any(|lease| lease.network != MAC_NETWORK);
    let ending = selection.ending(machine, &[]);
    if let Some(pool) = ending.filter(|_| !keeps && machine.is_left_alone()) {
        let reason = format!("pool {} is being deleted; the machine keeps a network of its own", pool.id);
        return (State::NotSelected, reason, None, None);
    }
    if let Some(pool) = ending.filter(|_| !keeps && has_own_data(machine)) {
        let reason = format!("pool {} is being deleted; {OWN_DATA}", pool.id);
        return (State::OwnNetworkData, reason, None, None);
    }
    if let Some(pool) = ending.filter(|_| !keeps) {
        let reason = format!("pool {} is being deleted, and gives new machines no address", pool.id);
        let what_to_do = "create a pool of another name, or the same pool when it is gone".to_owned();
        return (State::Conflicting, reason, None, Some(what_to_do));
    }
    if keeps {
        let reason = match ending {
            Some(pool) => {
                format!(
                    "pool {} is being deleted; the machine keeps its addresses until the machine is deleted",
                    pool.id
                )
            }
            None => "no pool selects the machine any more; it keeps its addresses until it is deleted".to_owned(),
        };
        return (State::NotSelected, reason, None, None);
    }
    let is_missing = |event: &&&Event| event.reason == "NetworkDataMissing" && machine.secret().is_some();
    if let Some(Event { time, message, .. }) = events.last().filter(is_missing) {
        let what_to_do =
            "remove networkDataSecretRef from spec.template, or create a pool that selects the machine".to_owned();
        return (State::NotSelected, message.clone(), Some(time.clone()), Some(what_to_do));
    }
    let networks: Vec<&str> = machine.networks.iter().map(|attachment| attachment.network.as_str()).collect();
    let on_network = |pool: &&MachinePool| pool.pool.as_ref().is_ok_and(|pool| networks.contains(&pool.network()));
    let namespace = machine.metadata.namespace.as_deref();
    // The machineSelector of a StaticIPPool selects machines only in the namespace of the pool.
    let may_select = |pool: &&MachinePool| {
        let of = pool.id.namespace.as_deref();
        of.is_none() || of == namespace || pool.spec.node_pool_ref.is_some()
    };
    let pools: Vec<&MachinePool> =
        selection.pools().map(|pool| &**pool).filter(on_network).filter(may_select).collect();
    let may_be_by_namespace = pools.iter().any(|pool| pool.spec.namespace_selector.is_some());
    let are_elsewhere =
        pools.iter().all(|pool| pool.id.namespace.is_some() && pool.id.namespace.as_deref() != namespace);
    let pools: Vec<String> = pools.iter().map(|pool| pool.id.to_string()).collect();
    let reason =
        format!("no pool selects the machine by its NodePool or its labels, on {}", list(&networks, "no network"));
    // The advice is a new pool. If the user changed the NodePool of an existing pool instead, that pool would lose its
    // machines.
    let labels = machine.metadata.labels.as_ref();
    if let Some(node_pool) = labels.and_then(|labels| labels.get(NODE_POOL_LABEL)) {
        let what_to_do =
            format!("create a pool with nodePoolRef: {{name: {node_pool}}} in the namespace of the NodePool");
        return (State::NotSelected, reason, None, Some(what_to_do));
    }
    let what_to_do = match pools.as_slice() {
        [] => "create a pool for the network of the machine: with machineSelector in its namespace, or with nodePoolRef in the namespace of \
               its NodePool"
            .to_owned(),
        pools => {
            let labels = match may_be_by_namespace {
                true => "the labels of the machine or of its Namespace",
                false => "the labels of the machine",
            };
            let own = match are_elsewhere {
                true => {
                    format!(", or create a pool with machineSelector in namespace {}", namespace.unwrap_or_default())
                }
                false => String::new(),
            };
            format!("change what one of these pools selects, or {labels}: {}{own}", pools.join(", "))
        }
    };
    (State::NotSelected, reason, None, Some(what_to_do))
}

fn list(names: &[&str], none: &str) -> String {
    if names.is_empty() { none.to_owned() } else { names.join(", ") }
}

// === impl State ===

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocated => "allocated",
            Self::Waiting => "waiting",
            Self::LeftAlone => "leftAlone",
            Self::OwnNetworkData => "ownNetworkData",
            Self::NotSelected => "notSelected",
            Self::Outdated => "outdated",
            Self::Conflicting => "conflicting",
            Self::Unknown => "unknown",
        })
    }
}

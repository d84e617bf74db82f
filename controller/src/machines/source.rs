//! The sources of addresses that other programs choose, and the objects of these programs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use glowplug::host::address::{parse_gateway, parse_interface_address};
use glowplug::host::claim::{Claimant, Machine, is_object_name};
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::kinds::cluster_api::{GROUP, IpAddress, PoolRef, Version};
use crate::kinds::ipam_claim::IpamClaim;
use crate::kinds::kubevirt_machine::Named;
use crate::kinds::pool::{AddressesFrom, HolderKind, PoolSpec, ProviderPoolRef};
use crate::machines::step::Step;

/// Label of the IPAddressClaims that the controller creates for machines. The value is `true`.
pub(super) const CLAIM_LABEL: &str = "ipam.glowplug.dev/machine-claim";

/// Annotation of an IPAddressClaim for a machine. The value is the machine and the interface that get the address, as
/// JSON.
const CLAIMANT_ANNOTATION: &str = "ipam.glowplug.dev/claimant";

/// Finalizer that keeps an IPAddressClaim for a machine, and its IPAddress, until the lease of the address is released.
pub(super) const IN_USE_FINALIZER: &str = "ipam.glowplug.dev/in-use";

/// The source of the addresses of a pool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    pub(super) from: AddressesFrom,
    /// Subnets of the pool's `machineNetwork`, at most one of each family.
    pub(super) subnets: Vec<IpNetwork>,
    pub(super) gateways: Vec<IpAddr>,
}

/// The objects through which one machine gets addresses from other programs.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// IPAddressClaims that the controller created for machines of this name.
    pub(super) claims: Vec<MachineClaim>,
    /// The IPAMClaims of the VirtualMachine, by name.
    pub(super) ipam_claims: BTreeMap<String, IpamClaim>,
}

/// An IPAddressClaim that the controller created for an interface of a machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MachineClaim {
    /// Metadata, without managed fields.
    pub(super) metadata: ObjectMeta,
    /// The machine and the interface that get the address.
    pub(super) claimant: Claimant,
    pub(super) pool: PoolRef,
    /// Name of the IPAddress. `None`: the other provider has not answered.
    pub(super) address: Option<String>,
    /// Reason and message of the condition `Ready` when it is `False`.
    pub(super) problem: Option<(String, String)>,
}

/// An IPAddress of another provider, or the reason why it cannot be read.
pub(super) type ProviderAddress = Result<IpAddress, String>;

/// The addresses that a source gives to an interface.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    /// Kind and name of the object with the addresses, for messages.
    pub(super) source: String,
    pub(super) addresses: Vec<IpNetwork>,
    pub(super) gateways: Vec<IpAddr>,
}

/// Answer of a source about one interface.
pub(super) enum Answer {
    Offer(Offer),
    /// A request that the pass must make before the source can answer.
    Step(Step),
    /// The source has no address yet. The text names the object, and says what is missing.
    Wait(String),
    /// The source has no address left.
    Exhausted(String),
    /// An object that the source needs has another author, or belongs to another pool or claim.
    Refused(String),
    /// The source gives no address that a guest can use.
    Invalid(String),
}

/// The value of [`CLAIMANT_ANNOTATION`].
#[derive(Deserialize, Serialize)]
struct Note {
    kind: HolderKind,
    machine: Named,
    interface: String,
}

// === impl Source ===

impl Source {
    /// Reads the source of a pool. `None`: the pool allocates its own addresses.
    pub(super) fn of(spec: &PoolSpec, gateways: &[IpAddr]) -> Option<Self> {
        let subnets = spec.machine_network.iter().filter_map(|network| network.cidr.parse().ok());
        Some(Self { from: spec.addresses_from.clone()?, subnets: subnets.collect(), gateways: gateways.to_vec() })
    }

    /// Reads the addresses of a source. `gateway` is the gateway that the source gives, if any.
    pub(super) fn offer(&self, source: String, texts: &[String], gateway: Option<&str>) -> Answer {
        let mut addresses = Vec::new();
        for text in texts {
            match self.address(text) {
                Ok(address) => addresses.push(address),
                Err(problem) => return Answer::Invalid(format!("{source}: {problem}")),
            }
        }
        addresses.sort_unstable();
        let has_family =
            |gateway: &IpAddr| addresses.iter().any(|address| Family::of(address.ip()) == Family::of(*gateway));
        let given = match gateway.map(parse_gateway).transpose() {
            Ok(given) => given,
            Err(error) => return Answer::Invalid(format!("{source}: {}", error.at("gateway".to_owned()))),
        };
        if let Some(given) = given.filter(|given| addresses.iter().any(|address| address.ip() == *given)) {
            return Answer::Invalid(format!("{source}: {given} is also the gateway, expected another address"));
        }
        let own = self.gateways.iter().copied();
        let own = own.filter(|own| given.is_none_or(|given| Family::of(given) != Family::of(*own)));
        let gateways = given.into_iter().chain(own).filter(has_family).collect();
        Answer::Offer(Offer { source, addresses, gateways })
    }

    /// Reads one address. The prefix length comes from the pool, otherwise from the source. If the pool and an
    /// IPAddress both have a prefix length, the two prefix lengths must be equal.
    fn address(&self, text: &str) -> Result<IpNetwork, String> {
        let (address, length) =
            parse_interface_address(text).map_err(|error| error.at("address".to_owned()).to_string())?;
        let subnet = self.subnets.iter().find(|subnet| Family::of(subnet.ip()) == Family::of(address));
        if let Some(subnet) = subnet.filter(|subnet| !subnet.contains(address)) {
            return Err(format!("{address} is outside the machine network {subnet}"));
        }
        if let (Some(_), Some(subnet), Some(length)) = (&self.from.pool_ref, subnet, length)
            && subnet.prefix() != length
        {
            return Err(format!("{address} has prefix length {length}, expected the prefix length of {subnet}"));
        }
        let length = subnet.map(IpNetwork::prefix).or(length);
        let network = length.and_then(|length| IpNetwork::new(address, length).ok());
        network.ok_or_else(|| format!("{address} has no prefix length, expected one, or machineNetwork in the pool"))
    }
}

// === impl MachineClaim ===

impl MachineClaim {
    /// Reads an IPAddressClaim for a machine.
    ///
    /// # Errors
    ///
    /// Returns the reason why this controller cannot have created the claim.
    pub(super) fn read(object: Object) -> Result<Self, String> {
        let metadata = ObjectMeta { managed_fields: None, ..object.metadata };
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(CLAIMANT_ANNOTATION));
        let annotation = annotation.ok_or_else(|| format!("no annotation {CLAIMANT_ANNOTATION}"))?;
        let invalid = |error: &dyn std::fmt::Display| format!("annotation {CLAIMANT_ANNOTATION}: {error}");
        let Note { kind, machine, interface } = serde_json::from_str(annotation).map_err(|error| invalid(&error))?;
        let interface: InterfaceName =
            interface.parse().map_err(|_| invalid(&format!("invalid interface {interface:?}")))?;
        if kind.is_claim() {
            return Err(invalid(&format!("invalid kind {kind}, expected KubevirtMachine or VirtualMachine")));
        }
        let machine = machine.machine().ok_or_else(|| invalid(&"invalid name or UID"))?;
        let key = Key::of(&metadata);
        if claim_of(&machine.name, &interface) != key.name {
            return Err(invalid(&format!("it names {interface} of {}", Key::of_machine(&machine))));
        }
        let (spec, status) = (&object.data["spec"], &object.data["status"]);
        let pool = serde_json::from_value(spec["poolRef"].clone()).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut failed = conditions.filter(|it| it["type"] == "Ready" && it["status"] == "False");
        Ok(Self {
            claimant: Claimant { machine: machine.of_kind(kind), interface },
            pool,
            // The name becomes a part of the path of a request, so an invalid name is ignored.
            address: status["addressRef"]["name"].as_str().filter(|name| is_object_name(name)).map(str::to_owned),
            problem: failed.next().map(|condition| (text(&condition["reason"]), text(&condition["message"]))),
            metadata,
        })
    }

    /// Name of the VirtualMachine of the claim: the namespace of the claim, and the name of the machine.
    pub(super) fn vm(&self) -> Key {
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        Key { namespace, name: self.claimant.machine.name.clone() }
    }

    pub(super) fn key(&self) -> Key {
        Key::of(&self.metadata)
    }

    /// Name of the IPAddress: the name that the other provider reports, otherwise the name of the claim.
    pub(super) fn address_name(&self) -> String {
        self.address.clone().or_else(|| self.metadata.name.clone()).unwrap_or_default()
    }
}

/// Name of the IPAddressClaim for an interface of a machine.
pub(super) fn claim_of(vm: &str, interface: &InterfaceName) -> String {
    format!("{vm}-{interface}")
}

/// Returns the answer of a source whose claim has no address. `problem` is the reason and the message of the claim's
/// condition.
pub(super) fn answer_without_address(title: &str, problem: Option<&(String, String)>) -> Answer {
    match problem {
        Some((reason, message)) if reason.ends_with("Exhausted") => {
            Answer::Exhausted(format!("{title}: {reason}: {message}"))
        }
        Some((reason, message)) => Answer::Wait(format!("{title}: {reason}: {message}")),
        None => Answer::Wait(format!("{title}: it has no address yet")),
    }
}

/// Returns the IPAddressClaim for an interface of a machine.
pub(super) fn new_claim(
    key: &Key,
    machine: Machine,
    interface: InterfaceName,
    pool: &ProviderPoolRef,
    version: Version,
) -> Value {
    let Machine { namespace, name, uid, kind, .. } = machine;
    let note = Note { kind, machine: Named { namespace, name, uid }, interface: interface.to_string() };
    // The note contains only strings, so its conversion to JSON cannot fail.
    let note = serde_json::to_string(&note).unwrap_or_default();
    json!({
        "apiVersion": format!("{GROUP}/{}", version.name()),
        "kind": "IPAddressClaim",
        "metadata": {
            "namespace": key.namespace,
            "name": claim_of(&key.name, &interface),
            "labels": {"app.kubernetes.io/managed-by": "glowplug", (CLAIM_LABEL): "true"},
            "annotations": {(CLAIMANT_ANNOTATION): note},
            "finalizers": [IN_USE_FINALIZER],
        },
        "spec": {"poolRef": {"apiGroup": pool.api_group, "kind": pool.kind, "name": pool.name}},
    })
}

/// Returns the merge patch that adds or removes [`IN_USE_FINALIZER`]. The API server rejects the patch if the object
/// has changed.
pub(super) fn finalize(metadata: &ObjectMeta, is_in_use: bool) -> Value {
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    finalizers.retain(|finalizer| finalizer != IN_USE_FINALIZER);
    if is_in_use {
        finalizers.push(IN_USE_FINALIZER.to_owned());
    }
    json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}})
}

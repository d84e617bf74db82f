//! Addresses that another program chooses: from the IPAMClaim of a machine, or from an IPAddressClaim that the
//! controller creates for the machine. Pure, as [`super::decision`].
//!
//! | source | addresses | gateway |
//! |---|---|---|
//! | `ipamClaim` | `status.ips` of the IPAMClaim `VM.INTERFACE` | of our pool |
//! | `poolRef` | the IPAddress of the IPAddressClaim `VM-INTERFACE` | of the IPAddress, else of our pool |
//!
//! These rules prevent two machines from using the same address:
//!
//! - An address is recorded as a lease before the Secret hands it out. Another machine that holds the address, from
//!   whichever source, makes the record impossible.
//! - The controller follows a source that changes its address only while no guest can have read the earlier address.
//! - An IPAddressClaim has no owner: the owner's deletion would end the claim while the guest still runs, and the other
//!   provider would allocate the address again. A finalizer keeps the IPAddress until the lease is released. The claim
//!   is deleted after that.

use std::collections::BTreeMap;
use std::net::IpAddr;

use glowplug::host::address::{parse_gateway, parse_interface_address};
use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::{Allocation, Claimant, Machine, is_object_name};
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::kinds::cluster_api::{GROUP, IpAddress, PoolRef, Version, has_finalizer};
use crate::kinds::ipam_claim::{IpamClaim, claim_name};
use crate::kinds::kubevirt_machine::{HandOut, Named, is_deleted, uid};
use crate::kinds::pool::{AddressesFrom, HolderKind, PoolSpec, ProviderPoolRef};
use crate::kinds::virtual_machine::VirtualMachine;
use crate::machines::decision::{Claimed, Hold, Notice, PoolSettings, Step, View};
use crate::passes::Problem;
use crate::pools::selection::Selected;

/// Label of the IPAddressClaims that the controller creates for machines. The value is `true`.
pub(super) const CLAIM_LABEL: &str = "ipam.glowplug.dev/machine-claim";
/// Annotation of such a claim. Its value is the machine and the interface that get the address, as JSON.
const CLAIMANT_ANNOTATION: &str = "ipam.glowplug.dev/claimant";
/// Finalizer of such a claim and of its IPAddress, until the lease of the address is released.
const IN_USE_FINALIZER: &str = "ipam.glowplug.dev/in-use";

/// The source of the addresses of a pool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    from: AddressesFrom,
    /// Subnets of the machines, at most one of each family.
    subnets: Vec<IpNetwork>,
    gateways: Vec<IpAddr>,
}

/// The objects of sources that concern one machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// Version of IPAddressClaims. `None`: the API server does not serve them.
    pub(super) version: Option<Version>,
    /// Whether the API server serves IPAMClaims.
    pub(super) has_ipam_claims: bool,
    /// IPAddressClaims that the controller created for machines of this name.
    pub(super) claims: Vec<MachineClaim>,
    /// The IPAMClaims of the VirtualMachine, by name.
    pub(super) ipam_claims: BTreeMap<String, IpamClaim>,
    /// IPAddresses that this pass has read, by name. `None`: the object does not exist.
    pub(super) addresses: BTreeMap<String, Option<ProviderAddress>>,
    /// Whether this pass has read the instance with a consistent read.
    pub(super) is_instance_read: bool,
}

/// An IPAddressClaim that the controller created for an interface of a machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MachineClaim {
    /// Metadata, without managed fields.
    pub(super) metadata: ObjectMeta,
    /// The machine and the interface that get the address.
    pub(super) claimant: Claimant,
    pub(super) kind: HolderKind,
    pool: PoolRef,
    /// Name of the IPAddress. `None`: the other provider has not answered.
    address: Option<String>,
    /// Reason and message of the condition `Ready` when it is `False`.
    problem: Option<(String, String)>,
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

/// State of a source for one interface.
enum Answer {
    Offer(Offer),
    /// The next request, which brings the answer closer.
    Step(Step),
    /// The source has no address yet. The text names the object, and says what is missing.
    Wait(String),
    /// The source has no address left.
    Exhausted(String),
    /// Another author has written an object that the source needs.
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

    /// Reads the addresses of a source. `prefix` is the prefix length of an address that has none.
    fn offer(&self, source: String, texts: &[String], gateway: Option<&str>) -> Answer {
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

    /// Reads one address. The prefix length is that of the pool, else that of the source. An IPAddress has the prefix
    /// length that the pool has, or the pool has none.
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
            return Err(format!("{address} has prefix length {length}, expected the one of {subnet}"));
        }
        let length = subnet.map(IpNetwork::prefix).or(length);
        let network = length.and_then(|length| IpNetwork::new(address, length).ok());
        network.ok_or_else(|| format!("{address} has no prefix length, expected one, or machineNetwork in the pool"))
    }
}

// === impl MachineClaim ===

impl MachineClaim {
    /// Reads a claim.
    ///
    /// # Errors
    ///
    /// The reason why this controller did not create the claim.
    pub(super) fn read(object: Object) -> Result<Self, String> {
        let metadata = ObjectMeta { managed_fields: None, ..object.metadata };
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(CLAIMANT_ANNOTATION));
        let annotation = annotation.ok_or_else(|| format!("no annotation {CLAIMANT_ANNOTATION}"))?;
        let invalid = |error: &dyn std::fmt::Display| format!("annotation {CLAIMANT_ANNOTATION}: {error}");
        let Note { kind, machine, interface } = serde_json::from_str(annotation).map_err(|error| invalid(&error))?;
        let interface: InterfaceName =
            interface.parse().map_err(|_| invalid(&format!("invalid interface {interface:?}")))?;
        if kind.is_claim() {
            return Err(invalid(&format!("invalid kind {kind:?} of a machine")));
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
            claimant: Claimant { machine, interface },
            kind,
            pool,
            // The name becomes a part of the path of a request.
            address: status["addressRef"]["name"].as_str().filter(|name| is_object_name(name)).map(str::to_owned),
            problem: failed.next().map(|condition| (text(&condition["reason"]), text(&condition["message"]))),
            metadata,
        })
    }

    /// Name of the VirtualMachine of the claim. It is the name of the machine.
    pub(super) fn vm(&self) -> Key {
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        Key { namespace, name: self.claimant.machine.name.clone() }
    }

    pub(super) fn key(&self) -> Key {
        Key::of(&self.metadata)
    }

    /// Name of the IPAddress: as the other provider reports it, else the name of the claim.
    fn address_name(&self) -> String {
        self.address.clone().or_else(|| self.metadata.name.clone()).unwrap_or_default()
    }
}

/// Name of the IPAddressClaim for an interface of a machine.
fn claim_of(vm: &str, interface: &InterfaceName) -> String {
    format!("{vm}-{interface}")
}

/// Returns the IPAddressClaim for an interface of a machine.
fn new_claim(
    key: &Key,
    claimed: &Claimed,
    interface: InterfaceName,
    pool: &ProviderPoolRef,
    version: Version,
) -> Value {
    let Machine { namespace, name, uid } = claimed.machine.clone();
    let note = Note { kind: claimed.kind, machine: Named { namespace, name, uid }, interface: interface.to_string() };
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

/// Returns the merge patch that adds or removes our finalizer. The API server rejects it if the object has changed.
fn finalize(metadata: &ObjectMeta, is_in_use: bool) -> Value {
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    finalizers.retain(|finalizer| finalizer != IN_USE_FINALIZER);
    if is_in_use {
        finalizers.push(IN_USE_FINALIZER.to_owned());
    }
    json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}})
}

// === impl View ===

impl View {
    /// Returns the addresses that sources give to the machine, by interface, after the registry has recorded them.
    /// `Err`: the next step on the way to them.
    pub(super) fn offers(
        &self,
        vm: &VirtualMachine,
        selected: &[Selected],
        claimed: &Claimed,
    ) -> Result<BTreeMap<InterfaceName, Offer>, Step> {
        let mut offers = BTreeMap::new();
        for selected in selected {
            let pool = selected.pool.to_string();
            let Some(PoolSettings { source: Some(source), .. }) = self.pools.get(&pool) else { continue };
            let offer = match self.ask(vm, selected, source, claimed) {
                Answer::Offer(offer) => offer,
                Answer::Step(step) => return Err(step),
                Answer::Wait(missing) => {
                    let note = format!("Waiting for {missing}");
                    return Err(self.tell(Notice { is_warning: false, reason: "AddressPending", note }));
                }
                Answer::Exhausted(problem) => {
                    let note = format!("No available IPs in pool for interface {}: {problem}", selected.interface);
                    return Err(self.report("IPPoolExhausted", note));
                }
                Answer::Refused(problem) => return Err(self.report("IPAddressConflict", problem)),
                Answer::Invalid(problem) => return Err(self.refuse(problem)),
            };
            if let Some(step) = self.record(selected, &pool, claimed, &offer) {
                return Err(step);
            }
            offers.insert(selected.interface, offer);
        }
        Ok(offers)
    }

    /// Records the addresses of an offer as leases. `None`: the machine holds all of them.
    fn record(&self, selected: &Selected, pool: &str, claimed: &Claimed, offer: &Offer) -> Option<Step> {
        let claimant = Claimant { machine: claimed.machine.clone(), interface: selected.interface };
        let own = || self.ledger.held.iter().filter(|held| held.claimant == claimant);
        let is_held =
            |address: &IpNetwork| own().any(|held| held.network == selected.network && held.address == address.ip());
        if offer.addresses.iter().all(is_held) {
            return None;
        }
        if let Some(problem) = &self.problem {
            return Some(match problem {
                Problem::Refused(ClaimError::UnknownPool(_) | ClaimError::Suspended(_)) => Step::Wait,
                problem => self.report("IPAddressConflict", format!("{}: {problem}", offer.source)),
            });
        }
        let ips: Vec<IpAddr> = offer.addresses.iter().map(IpNetwork::ip).collect();
        let is_other = |held: &&super::decision::Held| {
            !ips.contains(&held.address) && ips.iter().any(|ip| Family::of(*ip) == Family::of(held.address))
        };
        if let Some(other) = own().find(is_other) {
            // The source has changed its address before any guest could read the Secret.
            return Some(match &self.instance {
                _ if !self.sources.is_instance_read => Step::ReadInstance,
                Some(instance) if instance.has_started => {
                    let given: Vec<String> = ips.iter().map(ToString::to_string).collect();
                    let (given, held) = (given.join(", "), other.address);
                    let note = format!("{}: {given}, expected {held}, which the guest may use", offer.source);
                    self.report("IPAddressConflict", note)
                }
                _ => Step::Keep(claimant, ips),
            });
        }
        let Offer { source, addresses, .. } = offer.clone();
        Some(Step::Hold(Box::new(Hold { pool: pool.to_owned(), claimant, kind: claimed.kind, addresses, source })))
    }

    /// Whether the registry allocated exactly the addresses of an offer.
    pub(super) fn check_offer(offer: &Offer, allocation: &Allocation) -> Result<(), String> {
        let text = |addresses: &[IpNetwork]| {
            let mut ips: Vec<IpAddr> = addresses.iter().map(IpNetwork::ip).collect();
            ips.sort_unstable();
            ips.iter().map(ToString::to_string).collect::<Vec<String>>().join(", ")
        };
        let (given, held) = (text(&offer.addresses), text(&allocation.addresses));
        if given == held {
            Ok(())
        } else {
            Err(format!("{}: {given}, expected {held}, which the machine holds", offer.source))
        }
    }

    fn ask(&self, vm: &VirtualMachine, selected: &Selected, source: &Source, claimed: &Claimed) -> Answer {
        match &source.from.pool_ref {
            Some(pool) => self.ask_provider(selected, source, pool, claimed),
            None => self.ask_ipam_claim(vm, selected, source),
        }
    }

    fn ask_ipam_claim(&self, vm: &VirtualMachine, selected: &Selected, source: &Source) -> Answer {
        let name = claim_name(&self.key.name, &selected.attachment);
        let title = format!("IPAMClaim {}/{name}", self.key.namespace);
        if !self.sources.has_ipam_claims {
            return Answer::Wait(format!("{title}: the API server does not serve IPAMClaims"));
        }
        if !is_object_name(&name) {
            return Answer::Invalid(format!(
                "{title}: invalid name, expected an interface name of lower case letters, digits, '-' and '.'"
            ));
        }
        match self.sources.ipam_claims.get(&name) {
            None => Answer::Wait(format!("{title}: it does not exist")),
            Some(claim) if is_deleted(&claim.metadata) => Answer::Wait(format!("{title}: it is being deleted")),
            Some(claim) if claim.owner().is_some_and(|owner| owner != uid(&vm.metadata)) => {
                Answer::Wait(format!("{title}: it is of an earlier VirtualMachine"))
            }
            Some(IpamClaim { ips, problem, .. }) if ips.is_empty() => answer_without_address(&title, problem.as_ref()),
            Some(claim) => source.offer(title, &claim.ips, None),
        }
    }

    fn ask_provider(&self, selected: &Selected, source: &Source, pool: &ProviderPoolRef, claimed: &Claimed) -> Answer {
        let name = claim_of(&self.key.name, &selected.interface);
        let title = format!("IPAddressClaim {}/{name}", self.key.namespace);
        let Some(version) = self.sources.version else {
            return Answer::Wait(format!("{title}: the API server does not serve IPAddressClaims"));
        };
        if !is_object_name(&name) {
            return Answer::Invalid(format!("{title}: invalid name, expected lower case letters, digits, '-' and '.'"));
        }
        let claimant = Claimant { machine: claimed.machine.clone(), interface: selected.interface };
        let Some(claim) = self.sources.claims.iter().find(|claim| claim.key().name == name) else {
            if let Some(Problem::Mismatch(problem)) = &self.problem {
                return Answer::Refused(problem.clone());
            }
            let claim = new_claim(&self.key, claimed, selected.interface, pool, version);
            return Answer::Step(Step::CreateClaim(claim));
        };
        if claim.claimant != claimant {
            return Answer::Wait(format!("{title}: it is of an earlier machine, {}", claim.claimant.machine));
        }
        if is_deleted(&claim.metadata) {
            return Answer::Wait(format!("{title}: it is being deleted"));
        }
        let PoolRef { api_group, kind, name } = &claim.pool;
        if (api_group.as_deref(), kind, name) != (Some(pool.api_group.as_str()), &pool.kind, &pool.name) {
            return Answer::Refused(format!("{title}: of {kind} {name}, expected {} {}", pool.kind, pool.name));
        }
        let Some(name) = &claim.address else { return answer_without_address(&title, claim.problem.as_ref()) };
        let title = format!("IPAddress {}/{name}", self.key.namespace);
        match self.sources.addresses.get(name) {
            None => Answer::Step(Step::ReadAddress(name.clone())),
            Some(None) => Answer::Wait(format!("{title}: it does not exist")),
            Some(Some(Err(problem))) => Answer::Invalid(format!("{title}: {problem}")),
            Some(Some(Ok(address))) if address.claim != claim.key().name || address.pool != claim.pool => {
                Answer::Refused(format!("{title}: of claim {}, expected {}", address.claim, claim.key().name))
            }
            Some(Some(Ok(address))) if address.is_deleted() => Answer::Wait(format!("{title}: it is being deleted")),
            Some(Some(Ok(address))) if !has_finalizer(&address.metadata, IN_USE_FINALIZER) => {
                Answer::Step(Step::PatchAddress(name.clone(), finalize(&address.metadata, true)))
            }
            Some(Some(Ok(address))) => {
                let text = format!("{}/{}", address.address, address.prefix);
                source.offer(title, &[text], address.gateway.as_deref().filter(|gateway| !gateway.is_empty()))
            }
        }
    }

    /// Reports a source that does not give the machine the address of its Secret. The guest keeps this address. `None`:
    /// every source agrees.
    pub(super) fn compare_sources(&self, vm: &VirtualMachine, hand_out: &HandOut) -> Option<Step> {
        let claimed = Claimed { machine: hand_out.machine.clone(), kind: hand_out.kind, created: Default::default() };
        let selected = self.selected.as_ref().ok()?;
        hand_out.interfaces.iter().find_map(|handed| {
            let Some(PoolSettings { source: Some(source), .. }) = self.pools.get(&handed.pool) else { return None };
            let selected = selected.iter().find(|selected| selected.interface == handed.interface)?;
            let differs = match self.ask(vm, selected, source, &claimed) {
                Answer::Offer(offer) => Self::check_offer(&offer, &handed.allocation(hand_out)).err()?,
                Answer::Step(Step::CreateClaim(_)) => {
                    let name = claim_of(&self.key.name, &handed.interface);
                    format!("IPAddressClaim {}/{name}: it does not exist", self.key.namespace)
                }
                // The IPAddress is read, or gets our finalizer again.
                Answer::Step(step) => return Some(step),
                Answer::Wait(problem) | Answer::Exhausted(problem) => problem,
                Answer::Refused(problem) | Answer::Invalid(problem) => problem,
            };
            Some(self.report("IPAddressConflict", format!("{differs}; the guest keeps the address of its Secret")))
        })
    }

    /// Returns the next step that ends the IPAddressClaims of machines that are gone. Their leases are released.
    /// `None`: nothing is left to do.
    pub(super) fn end_claims(&self) -> Option<Step> {
        self.sources.claims.iter().filter(|claim| self.gone.contains(&claim.claimant.machine)).find_map(|claim| {
            let name = claim.address_name();
            match self.sources.addresses.get(&name) {
                None => return Some(Step::ReadAddress(name)),
                Some(Some(Ok(address))) if has_finalizer(&address.metadata, IN_USE_FINALIZER) => {
                    return Some(Step::PatchAddress(name, finalize(&address.metadata, false)));
                }
                Some(_) => {}
            }
            if !is_deleted(&claim.metadata) {
                return Some(Step::DeleteClaim(claim.key().name, uid(&claim.metadata).to_owned()));
            }
            let is_ours = has_finalizer(&claim.metadata, IN_USE_FINALIZER);
            is_ours.then(|| Step::PatchClaim(claim.key().name, finalize(&claim.metadata, false)))
        })
    }
}

/// The state of a source whose claim has no address.
fn answer_without_address(title: &str, problem: Option<&(String, String)>) -> Answer {
    match problem {
        Some((reason, message)) if reason.ends_with("Exhausted") => {
            Answer::Exhausted(format!("{title}: {reason}: {message}"))
        }
        Some((reason, message)) => Answer::Wait(format!("{title}: {reason}: {message}")),
        None => Answer::Wait(format!("{title}: it has no address yet")),
    }
}

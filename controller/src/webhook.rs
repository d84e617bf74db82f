//! The admission webhooks. They reject invalid pools before the API server stores them, machines that cannot get an
//! address, and instances that must not start. They add the reference to network data, and the label for MAC addresses,
//! to the machines that pools serve.
//!
//! The functions [`validate`], [`compare`], [`judge_leases`], [`admit_new`] and [`admit_change`] are pure. [`Webhooks`]
//! reads their input from the API server and responds over HTTP. The webhooks write nothing, so every replica can
//! respond, even to a dry run.
//!
//! The webhooks are not what prevents duplicate addresses. The controller checks every pool and every machine again,
//! and the unique name of a lease prevents a second machine from getting the same address.

mod macs;
mod pools;
mod review;
mod verdict;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use glowplug::host::claim::is_object_name;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use kube::core::Status;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};
use kube::{Api, Client, Resource};
use serde_json::Value;

use crate::cluster::client::if_served;
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::cluster::request::find;
use crate::cluster::shared_read::SharedRead;
use crate::kinds::kubevirt_machine::{ALLOCATION_ANNOTATION, recorded_addresses};
use crate::kinds::lease_name::lease_name;
use crate::kinds::mac_pool::MACPool;
use crate::kinds::network_data::new_name;
use crate::kinds::pool::{GROUP, Holder, HolderKind, LeaseSpec, StaticIPLease};
use crate::kinds::virtual_machine::{NetworkData, VirtualMachine, kubevirt_machines, virtual_machines};
use crate::metrics::Metrics;
use crate::pools::reference::{
    Allowed, Decision, MACHINES_PATH, NewMachine, UPDATES_PATH, admit_change, admit_new, check_instance,
};
use crate::pools::selection::Selection;
use crate::pools::selection_cache::SelectionCache;
use crate::repeated::Repeated;
use crate::serve::answer;
use crate::webhook::review::Reader;
use crate::webhook::verdict::failure;

pub use macs::{INSTANCES_PATH, MACS_PATH, require_addresses, validate_mac_pool, warn_of_namespaces};
pub use pools::{Change, compare, judge, judge_leases, lost, validate, warn_of_holders};
pub use verdict::Verdict;

/// Path of the webhook for pools of every kind.
pub const POOLS_PATH: &str = "/validate-pools";

/// Maximum number of leases that are read for the recorded addresses of one machine.
const MOST_RECORDED: usize = 64;

/// The webhooks of a replica.
#[derive(Clone)]
pub struct Webhooks {
    client: Client,
    metrics: Arc<Metrics>,
    selection: Arc<SelectionCache>,
    reader: Reader,
    refusals: Arc<Repeated>,
    /// Shared read of the leases whose machine has no KubevirtMachine in its namespace.
    holders: Arc<SharedRead<Vec<EarlierHolder>>>,
}

/// A lease of a machine without a KubevirtMachine in its namespace.
struct EarlierHolder {
    /// Name of the VirtualMachine.
    vm: Key,
    pool: String,
    network: String,
}

// === impl Webhooks ===

impl Webhooks {
    /// Creates webhooks that read pools and leases through `client`. The pools that select machines come from
    /// `selection`.
    #[must_use]
    pub fn new(client: Client, metrics: Arc<Metrics>, selection: Arc<SelectionCache>) -> Self {
        let (reader, refusals, holders) = (Reader::default(), Arc::default(), Arc::default());
        Self { client, metrics, selection, reader, refusals, holders }
    }

    /// Responds to a request of an API server.
    pub async fn answer(self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        let webhook = match request.uri().path() {
            POOLS_PATH => "pools",
            MACHINES_PATH => "machines",
            UPDATES_PATH => "machine-updates",
            MACS_PATH => "macs",
            INSTANCES_PATH => "instances",
            _ => return text(StatusCode::NOT_FOUND, "no such webhook\n"),
        };
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only POST is answered\n");
        }
        let (request, _room) = match self.reader.read(request.body()).await {
            Ok(review) => review,
            Err((status, message)) => return text(status, message),
        };
        let started = Instant::now();
        let response = match webhook {
            "machines" => self.review_machine(&request).await,
            "machine-updates" => self.review_change(&request),
            "macs" => self.review_addresses(&request).await,
            "instances" => review_instance(&request),
            _ => self.review_pool(&request).await,
        };
        self.log(webhook, &request, &response);
        let result = if response.allowed { "allowed" } else { "refused" };
        let labels = [("webhook", webhook), ("result", result)];
        self.metrics.webhook_seconds.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
        match serde_json::to_vec(&response.into_review()) {
            Ok(body) => answer(StatusCode::OK, "application/json", body),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be written as JSON\n"),
        }
    }

    /// Logs the refusal of a machine or of its instance, and the change of a machine that a pool serves. Logs nothing
    /// about other machines. capk and KubeVirt try again many times, so refusals for the same reason get one line in a
    /// minute.
    fn log(&self, webhook: &str, request: &AdmissionRequest<Object>, response: &AdmissionResponse) {
        // The API server checks names only after this webhook. A line break in a name would look like the start of a
        // new log line.
        let one_line = |text: &str| text.replace(char::is_control, " ");
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let machine = one_line(&format!("{namespace}/{}", request.name));
        let refusal = one_line(&response.result.message);
        let is_new = || {
            let refusals = &self.refusals;
            refusals.note(&format!("{webhook} {machine} {refusal}"), Instant::now().into()).is_some()
        };
        match (webhook, response.allowed) {
            // This refusal is normal for a machine that waits for MAC addresses: KubeVirt tries once to create the
            // instance before the machine has its addresses.
            ("instances", false) if is_new() => {
                tracing::info!(%machine, "refused the instance of a machine: {refusal}")
            }
            ("machines" | "macs", false) if is_new() => tracing::warn!(%machine, "refused a machine: {refusal}"),
            ("machines", true) if response.patch.is_some() => {
                tracing::info!(%machine, "allowed a machine and added a reference to its Secret");
            }
            ("machine-updates", true) if response.patch.is_some() => {
                tracing::info!(%machine, "changed an update of a machine");
            }
            ("macs", true) if response.patch.is_some() => {
                tracing::info!(%machine, "allowed a machine that waits for MAC addresses");
            }
            _ => {}
        }
    }

    async fn review_pool(&self, request: &AdmissionRequest<Object>) -> AdmissionResponse {
        let mut response = AdmissionResponse::from(request);
        let Verdict { errors, warnings } = match self.verdict(request).await {
            Ok(verdict) => verdict,
            Err(status) => {
                response.allowed = false;
                response.result = *status;
                return response;
            }
        };
        if !errors.is_empty() {
            response.allowed = false;
            response.result = *failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &errors.join("\n"));
        }
        response.warnings = Some(warnings).filter(|warnings| !warnings.is_empty());
        response
    }

    /// Decides on a change of a pool of IP or MAC addresses. `Err` has the reason why no decision is possible.
    async fn verdict(&self, request: &AdmissionRequest<Object>) -> Result<Verdict, Box<Status>> {
        let kind = &request.kind;
        match kind.group == GROUP && kind.kind == MACPool::kind(&()) {
            true => macs::verdict(&self.client, request).await,
            false => pools::verdict(&self.client, self.selection.current().as_deref(), request).await,
        }
    }

    /// Responds to the request to create a VirtualMachine.
    async fn review_machine(&self, request: &AdmissionRequest<Object>) -> AdmissionResponse {
        let mut response = AdmissionResponse::from(request);
        let refusal = match self.decide_machine(request).await {
            Ok(Decision::NotSelected(allowed) | Decision::Allow(allowed)) => return changed(response, allowed),
            Ok(Decision::Refuse(message)) => failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &message),
            Ok(Decision::Exhausted(message, _)) => failure(StatusCode::FORBIDDEN, "Forbidden", &message),
            Err(status) => status,
        };
        response.allowed = false;
        response.result = *refusal;
        response
    }

    /// Responds to a change of a VirtualMachine. The webhook never rejects a change: while no replica responds, API
    /// servers allow every change, too.
    fn review_change(&self, request: &AdmissionRequest<Object>) -> AdmissionResponse {
        let response = AdmissionResponse::from(request);
        let (Operation::Update, Some(old), Some(new)) = (&request.operation, &request.old_object, &request.object)
        else {
            return response;
        };
        let Some(selection) = self.selection.current() else { return response };
        let Ok(name) = new_secret_name(request) else { return response };
        match admit_change(old, &with_namespace(new, request), &selection, &name) {
            Ok(allowed) => changed(response, allowed),
            Err(_) => response,
        }
    }

    /// Decides on the creation of a machine. `Err` has the reason why no decision is possible.
    ///
    /// Most decisions need only the cache. But before the webhook allows a machine without a pool or rejects a machine,
    /// it asks the API server: the pool may have changed a moment ago, and capk may wait for minutes before it retries.
    async fn decide_machine(&self, request: &AdmissionRequest<Object>) -> Result<Decision, Box<Status>> {
        let (kind, expected) = (&request.kind, virtual_machines());
        let object = match (&request.operation, &request.object) {
            (Operation::Create, Some(object)) if (&kind.group, &kind.kind) == (&expected.group, &expected.kind) => {
                object
            }
            (operation, _) => {
                let message = format!("{operation:?} of {:?}, expected Create of VirtualMachine", kind.kind);
                return Err(failure(StatusCode::BAD_REQUEST, "BadRequest", &message));
            }
        };
        let unavailable = |error: Arc<kube::Error>| {
            let message = format!("could not read the pools, the Secret or the addresses of the machine: {error}");
            failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message)
        };
        let object = with_namespace(object, request);
        let machine = VirtualMachine::read(object.clone());
        let is_copy = self.is_copy(&machine).await.map_err(Arc::new).map_err(unavailable)?;
        let name = new_secret_name(request)?;
        let decide = |selection: &Selection, held: &BTreeSet<String>| {
            let new = NewMachine { object: &object, is_copy, held, name: &name };
            admit_new(new, selection).map_err(|error| {
                failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &format!("the machine: {error}"))
            })
        };
        if let Some(selection) = self.selection.current() {
            match decide(&selection, &BTreeSet::new())? {
                Decision::NotSelected(_) | Decision::Refuse(_) | Decision::Exhausted(..) => {}
                decision => return Ok(decision),
            }
        }
        // This list needs no timeout: when the API server no longer waits for the response, it ends the request.
        let selection = self.selection.list().await.map_err(unavailable)?;
        let decision = decide(&selection, &BTreeSet::new())?;
        let Decision::Exhausted(_, pools) = &decision else { return Ok(decision) };
        let held = self.held(&machine, pools).await.map_err(unavailable)?;
        decide(&selection, &held)
    }

    /// Whether the template refers to a Secret that the controller wrote for another machine and that has a name of
    /// version 0.2.0. Names of the current version are recognized by their form, without a read of the Secret.
    async fn is_copy(&self, machine: &VirtualMachine) -> kube::Result<bool> {
        let named = machine.cloud_init.as_ref().map(|volume| &volume.network_data);
        let Some(NetworkData::Secret(name)) = named.filter(|_| machine.secret().is_none()) else { return Ok(false) };
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        // The API server has not checked these names yet. An invalid name must not get into the path of a request.
        if !is_object_name(name) || !is_object_name(namespace) {
            return Ok(false);
        }
        let secrets: Api<Object> =
            Api::namespaced_with(self.client.clone(), namespace, &ApiResource::erase::<Secret>(&()));
        let secret = find(&secrets, name).await?;
        Ok(secret
            .is_some_and(|secret| secret.metadata.annotations.unwrap_or_default().contains_key(ALLOCATION_ANNOTATION)))
    }

    /// Returns the networks on which the KubevirtMachine of this machine holds an address. The machine keeps these
    /// addresses. The leader records each address in an annotation of the KubevirtMachine, so only the leases of
    /// recorded addresses are read: a cluster may have tens of thousands of leases, and capk tries again and again
    /// while a pool is exhausted. `pools` are the exhausted pools of the machine, see [`Self::held_without_machine`].
    async fn held(&self, machine: &VirtualMachine, pools: &[PoolId]) -> Result<BTreeSet<String>, Arc<kube::Error>> {
        let mut held = BTreeSet::new();
        // The API server has not checked these labels yet. An invalid name must not get into the path of a request.
        let is_valid = |key: &Key| is_object_name(&key.namespace) && is_object_name(&key.name);
        let Some(key) = machine.kubevirt_machine().filter(is_valid) else { return Ok(held) };
        if key != machine.key() {
            return self.held_without_machine(machine, pools).await;
        }
        let machines: Api<Object> = Api::namespaced_with(self.client.clone(), &key.namespace, &kubevirt_machines());
        let read = find(&machines, &key.name).await;
        let Some(object) = if_served(&self.client, &kubevirt_machines(), read).await?.flatten() else {
            return self.held_without_machine(machine, pools).await;
        };
        let leases: Api<Object> = Api::all_with(self.client.clone(), &ApiResource::erase::<StaticIPLease>(&()));
        let mut names = BTreeSet::new();
        for address in recorded_addresses(&object) {
            let networks = machine.networks.iter().map(|attachment| &attachment.network);
            names.extend(networks.filter_map(|network| lease_name(address, network).ok()));
        }
        for name in names.into_iter().take(MOST_RECORDED) {
            let lease = find(&leases, &name).await?.map(|mut lease| lease.data["spec"].take());
            let Some(lease) = lease.and_then(|spec| serde_json::from_value::<LeaseSpec>(spec).ok()) else { continue };
            let Holder { kind, namespace, name, .. } = &lease.holder;
            let is_own = *kind == HolderKind::KubevirtMachine && (namespace, name) == (&key.namespace, &key.name);
            if is_own && lease.released.is_none() {
                held.insert(lease.network);
            }
        }
        Ok(held)
    }

    /// Returns the networks on which an earlier VirtualMachine of this name holds an address of one of `pools`. When
    /// this address is released, the new machine gets it, because a VirtualMachine without a KubevirtMachine prefers
    /// the address that its name had last. Without a KubevirtMachine in this namespace, only leases record the
    /// address, so all leases are read.
    async fn held_without_machine(
        &self,
        machine: &VirtualMachine,
        pools: &[PoolId],
    ) -> Result<BTreeSet<String>, Arc<kube::Error>> {
        let holders = self.holders.get(|| earlier_holders(self.client.clone())).await?;
        let key = machine.key();
        let is_meant = |it: &&EarlierHolder| it.vm == key && pools.iter().any(|pool| pool.to_string() == it.pool);
        Ok(holders.iter().filter(is_meant).map(|holder| holder.network.clone()).collect())
    }

    /// Responds to the request to create a VirtualMachine in a namespace of a MACPool.
    async fn review_addresses(&self, request: &AdmissionRequest<Object>) -> AdmissionResponse {
        let mut response = AdmissionResponse::from(request);
        let Some(object) = &request.object else { return response };
        let object = with_namespace(object, request);
        match macs::mac_pools(&self.client).await {
            Ok(pools) => match require_addresses(&object, &pools) {
                operations if operations.is_empty() => response,
                operations => patched(response, operations),
            },
            Err(error) => {
                let message = format!("could not list the MACPools of the cluster: {error}");
                response.allowed = false;
                response.result = *failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message);
                response
            }
        }
    }
}

/// Reads the leases of machines without a KubevirtMachine in their namespace.
async fn earlier_holders(client: Client) -> kube::Result<Vec<EarlierHolder>> {
    let mut holders = Vec::new();
    let note = |LeaseSpec { holder, released, pool, network, .. }: LeaseSpec| {
        let Holder { kind, namespace, name, vm_namespace, .. } = holder;
        if released.is_none() && (kind == HolderKind::VirtualMachine || vm_namespace.is_some()) {
            let vm = Key { namespace: vm_namespace.unwrap_or(namespace), name };
            holders.push(EarlierHolder { vm, pool, network });
        }
    };
    pools::each_lease(&client, note).await?;
    Ok(holders)
}

/// Adds JSON patch operations to a response.
fn patched(response: AdmissionResponse, operations: Vec<Value>) -> AdmissionResponse {
    let mut unchanged = response.clone();
    let patch = serde_json::from_value(operations.into()).ok();
    patch.and_then(|patch| response.with_patch(patch).ok()).unwrap_or_else(|| {
        let message = "the patch of the machine cannot be written as JSON";
        unchanged.allowed = false;
        unchanged.result = *failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message);
        unchanged
    })
}

/// Responds to the request to create a VirtualMachineInstance.
fn review_instance(request: &AdmissionRequest<Object>) -> AdmissionResponse {
    let mut response = AdmissionResponse::from(request);
    let Some(instance) = &request.object else { return response };
    let mut errors = check_instance(instance, request.namespace.as_deref().unwrap_or_default());
    errors.extend(macs::check_instance(instance));
    if !errors.is_empty() {
        response.allowed = false;
        response.result = *failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &errors.join("\n"));
    }
    response
}

/// Returns a new random name for the Secret of the machine in a request.
fn new_secret_name(request: &AdmissionRequest<Object>) -> Result<String, Box<Status>> {
    let named = request.object.as_ref().and_then(|object| object.metadata.name.as_deref());
    new_name(named.unwrap_or_default()).map_err(|error| {
        let message = format!("no random name for the Secret of the machine: {error}");
        failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &message)
    })
}

/// Returns the object of a request. Takes the namespace from the request if the object has none.
fn with_namespace(object: &Object, request: &AdmissionRequest<Object>) -> Object {
    let mut object = object.clone();
    object.metadata.namespace = object.metadata.namespace.or_else(|| request.namespace.clone());
    object
}

/// Adds the changes of an object, and the warnings, to a response that allows the object.
fn changed(mut response: AdmissionResponse, allowed: Allowed) -> AdmissionResponse {
    response.warnings = Some(allowed.warnings).filter(|warnings| !warnings.is_empty());
    if allowed.operations.is_empty() { response } else { patched(response, allowed.operations) }
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", body)
}

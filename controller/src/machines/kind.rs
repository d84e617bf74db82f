//! The kinds of objects that a leader watches to serve machines.

use kube::Client;
use kube::api::ApiResource;

use crate::cluster::client::serves;
use crate::cluster::request::{Error, ask};
use crate::kinds::cluster_api;
use crate::kinds::cluster_api::Version;
use crate::kinds::ipam_claim::ipam_claims;
use crate::kinds::virtual_machine::{instances, kubevirt_machines, virtual_machines};

/// A kind that the leader watches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MachineKind {
    KubevirtMachine,
    VirtualMachine,
    Instance,
    /// IPAddressClaims that the controller created for machines, in this API version.
    AddressClaim(Version),
    IpamClaim,
}

/// The optional kinds that the API server serves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Kinds {
    pub(super) has_kubevirt_machines: bool,
    /// Version of IPAddressClaims and IPAddresses. `None`: the API server does not serve them.
    pub(super) claims: Option<Version>,
    pub(super) has_ipam_claims: bool,
}

// === impl MachineKind ===

impl MachineKind {
    pub(super) fn resource(self) -> ApiResource {
        match self {
            Self::KubevirtMachine => kubevirt_machines(),
            Self::VirtualMachine => virtual_machines(),
            Self::Instance => instances(),
            Self::AddressClaim(version) => cluster_api::claims(version),
            Self::IpamClaim => ipam_claims(),
        }
    }
}

// === impl Kinds ===

impl Kinds {
    /// Asks which kinds the API server serves. `None`: the API server does not serve VirtualMachines.
    pub(super) async fn discover(client: &Client) -> Result<Option<Self>, Error> {
        let has_machines = ask(serves(client, &virtual_machines())).await?;
        let has_kubevirt_machines = ask(serves(client, &kubevirt_machines())).await?;
        let claims = ask(cluster_api::Kinds::discover(client)).await?.map(|kinds| kinds.version);
        let has_ipam_claims = ask(serves(client, &ipam_claims())).await?;
        Ok(has_machines.then_some(Self { has_kubevirt_machines, claims, has_ipam_claims }))
    }

    /// Returns the kinds that the leader watches.
    pub(super) fn all(self) -> impl Iterator<Item = MachineKind> {
        let optional = [
            self.has_kubevirt_machines.then_some(MachineKind::KubevirtMachine),
            self.claims.map(MachineKind::AddressClaim),
            self.has_ipam_claims.then_some(MachineKind::IpamClaim),
        ];
        optional.into_iter().flatten().chain([MachineKind::VirtualMachine, MachineKind::Instance])
    }
}

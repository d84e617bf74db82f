//! The kinds that serve machines.

use kube::api::ApiResource;

use crate::kinds::cluster_api;
use crate::kinds::cluster_api::Version;
use crate::kinds::ipam_claim::ipam_claims;
use crate::kinds::virtual_machine::{instances, kubevirt_machines, virtual_machines};

/// The kinds that the leader watches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    KubevirtMachine,
    VirtualMachine,
    Instance,
    /// IPAddressClaims that the controller created for machines, in this version.
    AddressClaim(Version),
    IpamClaim,
}

// === impl Kind ===

impl Kind {
    /// Whether objects of this kind record the addresses of machines.
    pub(super) fn has_records(self) -> bool {
        matches!(self, Self::KubevirtMachine | Self::VirtualMachine | Self::Instance)
    }

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

//! What callers of the registry get from it, and what they pass to it.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::{Allocation, Conflict, Machine};
use kube::runtime::watcher::Event;
use tokio::sync::mpsc;

use crate::cluster::object::Object;

/// An address that is not allocated while the object of the conflict exists. The text is the network. `None`: every network
/// with a pool that has the address.
pub type Reservation = (IpAddr, Option<String>, Conflict);

/// Result of a claim: the allocations, or the reason for none.
pub type Answer = Result<Vec<Allocation>, ClaimError>;

/// Objects with new addresses: they had to wait for them, or another leader has written the leases. Each object is sent at
/// least once.
pub type Holders = mpsc::UnboundedReceiver<Machine>;

/// Receives the events of leases of MAC addresses, which are watched together with the leases of IP addresses.
pub type MacLeases = Arc<dyn Fn(Event<Object>) + Send + Sync>;

/// Objects with new addresses, by their kind.
#[derive(Debug)]
pub struct Served {
    /// IPAddressClaims.
    pub claims: Holders,
    /// IPAMClaims.
    pub ipam_claims: Holders,
    /// Machines.
    pub machines: Holders,
}

/// Error: the owner of the registry has stopped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the registry has ended")
    }
}

impl Error for Stopped {}

//! Routes through a link.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// One route through a link. Destination and gateway belong to one family.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Route {
    /// Path of the route in the document, such as `networks[0].routes[1]`. Used only in messages.
    pub path: String,
    destination: IpNetwork,
    gateway: Option<IpAddr>,
    metric: Option<u32>,
    /// Whether the gateway is directly on the link although no subnet of the link contains the gateway.
    pub on_link: bool,
    /// Number of the routing table; `None` for the main table.
    pub table: Option<u32>,
}

/// The error for a gateway and a destination of different families.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MixedFamilies;

// === impl Route ===

impl Route {
    /// Makes a route to `destination`, whose host bits are cleared. Without a gateway, the destination is directly on
    /// the link.
    ///
    /// # Errors
    ///
    /// [`MixedFamilies`] when the gateway and the destination belong to different families.
    pub fn new(destination: IpNetwork, gateway: Option<IpAddr>, metric: Option<u32>) -> Result<Self, MixedFamilies> {
        if gateway.is_some_and(|gateway| gateway.is_ipv4() != destination.is_ipv4()) {
            return Err(MixedFamilies);
        }
        Ok(Self { path: String::new(), destination: masked(destination), gateway, metric, on_link: false, table: None })
    }

    /// Sets the path of the route in the document.
    #[must_use]
    pub fn at(self, path: String) -> Self {
        Self { path, ..self }
    }

    /// The destination network, with its host bits cleared.
    #[must_use]
    pub fn destination(&self) -> IpNetwork {
        self.destination
    }

    /// The next hop; `None` for a destination directly on the link.
    #[must_use]
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// The metric: a route with a lower metric is preferred. `None` leaves the metric to the system.
    #[must_use]
    pub fn metric(&self) -> Option<u32> {
        self.metric
    }

    /// Whether this is a default route: prefix length 0.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.destination.prefix() == 0
    }
}

/// The network with its host bits cleared.
pub(super) fn masked(network: IpNetwork) -> IpNetwork {
    // `IpNetwork::new` fails only for a prefix length that is too long. The prefix length of a network is valid, so
    // `unwrap_or` never uses its fallback.
    IpNetwork::new(network.network(), network.prefix()).unwrap_or(network)
}

// === impl MixedFamilies ===

impl fmt::Display for MixedFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("gateway of the other family")
    }
}

impl std::error::Error for MixedFamilies {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_of_a_destination_are_cleared() {
        let route = Route::new("10.1.2.3/16".parse().unwrap(), None, None).unwrap();
        assert_eq!(route.destination().to_string(), "10.1.0.0/16");
    }

    #[test]
    fn a_gateway_of_another_family_is_rejected() {
        let route = Route::new("10.0.0.0/8".parse().unwrap(), Some("fe80::1".parse().unwrap()), None);
        assert_eq!(route, Err(MixedFamilies));
    }
}

//! Routes.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// One route through a link. Destination and gateway are of one family.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Route {
    /// Where it stands in the document, such as `networks[0].routes[1]`. For messages only.
    pub place: String,
    destination: IpNetwork,
    gateway: Option<IpAddr>,
    metric: Option<u32>,
    /// Whether the gateway is on the link although no address of it is in the gateway's subnet.
    pub on_link: bool,
    /// The routing table, where it is not the main one.
    pub table: Option<u32>,
}

/// A gateway of the other family than its destination.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MixedFamilies;

// === impl Route ===

impl Route {
    /// A route to `destination`, whose host bits do not count. Without a gateway the destination is on the link itself.
    ///
    /// # Errors
    ///
    /// [`MixedFamilies`] when the gateway is of the other family.
    pub fn new(destination: IpNetwork, gateway: Option<IpAddr>, metric: Option<u32>) -> Result<Self, MixedFamilies> {
        if gateway.is_some_and(|gateway| gateway.is_ipv4() != destination.is_ipv4()) {
            return Err(MixedFamilies);
        }
        Ok(Self {
            place: String::new(),
            destination: masked(destination),
            gateway,
            metric,
            on_link: false,
            table: None,
        })
    }

    /// The same route, with where it stands in the document.
    #[must_use]
    pub fn at(self, place: String) -> Self {
        Self { place, ..self }
    }

    /// Where it leads, without host bits.
    #[must_use]
    pub fn destination(&self) -> IpNetwork {
        self.destination
    }

    /// The next hop; `None` for a destination on the link.
    #[must_use]
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Lower is preferred; `None` leaves it to the system.
    #[must_use]
    pub fn metric(&self) -> Option<u32> {
        self.metric
    }

    /// Whether it leads everywhere.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.destination.prefix() == 0
    }
}

fn masked(network: IpNetwork) -> IpNetwork {
    // The network's own address with the same prefix is always a network, so the original never serves.
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
    fn host_bits_of_a_destination_do_not_count() {
        let route = Route::new("10.1.2.3/16".parse().unwrap(), None, None).unwrap();
        assert_eq!(route.destination().to_string(), "10.1.0.0/16");
    }

    #[test]
    fn a_gateway_of_the_other_family_is_refused() {
        let route = Route::new("10.0.0.0/8".parse().unwrap(), Some("fe80::1".parse().unwrap()), None);
        assert_eq!(route, Err(MixedFamilies));
    }
}

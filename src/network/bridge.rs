//! The options of a bridge.

use super::LinkIndex;

/// Options of a bridge. `None` when the document does not set the option. Times are in seconds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BridgeOptions {
    /// Path of the options in the document, such as `bridges.br0.parameters`. Used only in messages.
    pub path: String,
    /// Whether the bridge uses the Spanning Tree Protocol.
    pub stp: Option<bool>,
    /// Time after which the bridge forgets a MAC address that it no longer sees.
    pub ageing_time: Option<u32>,
    /// Time that a port listens before it forwards: 2 to 30.
    pub forward_delay: Option<u32>,
    /// Time between two hello packets of the Spanning Tree Protocol: 1 to 10.
    pub hello_time: Option<u32>,
    /// Time for which a hello packet is valid: 6 to 40.
    pub max_age: Option<u32>,
    /// Bridge priority. The bridge with the lowest number becomes the root of the tree.
    pub priority: Option<u16>,
    /// Options of single ports.
    pub ports: Vec<BridgePort>,
}

/// Options of one port of a bridge. `None` when the document does not set the option.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BridgePort {
    /// The port, which is one of the bridge's ports.
    pub port: LinkIndex,
    /// Cost of a path through this port: 1 to 65,535.
    pub path_cost: Option<u16>,
    /// Port priority: 0 to 63. A lower number is preferred.
    pub priority: Option<u8>,
}

// === impl BridgeOptions ===

impl BridgeOptions {
    /// Kernel names and values of the options that the document sets for the bridge itself, without the options of its
    /// ports.
    #[must_use]
    pub fn given(&self) -> Vec<(&'static str, String)> {
        let mut given = Vec::from_iter(self.stp.map(|stp| ("stp", stp.to_string())));
        let numbers = [
            ("ageing_time", self.ageing_time),
            ("forward_delay", self.forward_delay),
            ("hello_time", self.hello_time),
            ("max_age", self.max_age),
            ("priority", self.priority.map(u32::from)),
        ];
        given.extend(numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string()))));
        given
    }
}

//! What a bridge can be told.

use super::LinkIndex;

/// How a bridge acts, where the document says so. Times are in seconds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BridgeOptions {
    /// Where they stand in the document, such as `bridges.br0.parameters`. For messages only.
    pub place: String,
    /// Whether it speaks the Spanning Tree Protocol.
    pub stp: Option<bool>,
    /// How long it knows where an address is.
    pub ageing_time: Option<u32>,
    /// How long a port listens before it forwards: 2 to 30.
    pub forward_delay: Option<u32>,
    /// Between two greetings: 1 to 10.
    pub hello_time: Option<u32>,
    /// How long a greeting counts: 6 to 40.
    pub max_age: Option<u32>,
    /// Lower becomes the root of the tree.
    pub priority: Option<u16>,
    /// What single ports are told.
    pub ports: Vec<BridgePort>,
}

/// What one port of a bridge is told.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BridgePort {
    /// One of the bridge's ports.
    pub port: LinkIndex,
    /// What a way through it costs: 1 to 65,535.
    pub path_cost: Option<u16>,
    /// Lower is preferred: 0 to 63.
    pub priority: Option<u8>,
}

// === impl BridgeOptions ===

impl BridgeOptions {
    /// What is said about the bridge itself, by the kernel's names.
    #[must_use]
    pub fn said(&self) -> Vec<(&'static str, String)> {
        let mut said = Vec::from_iter(self.stp.map(|stp| ("stp", stp.to_string())));
        let numbers = [
            ("ageing_time", self.ageing_time),
            ("forward_delay", self.forward_delay),
            ("hello_time", self.hello_time),
            ("max_age", self.max_age),
            ("priority", self.priority.map(u32::from)),
        ];
        said.extend(numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string()))));
        said
    }
}

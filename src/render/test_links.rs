//! Links for the unit tests of the renderers.

use pnet_base::MacAddr;

use crate::network::{InterfaceName, Link, LinkKind, Nic};

/// The last byte of a NIC's MAC address is the number of the NIC.
pub(super) fn mac(number: u8) -> MacAddr {
    MacAddr::new(0x52, 0x54, 0, 0x12, 0x34, number)
}

pub(super) fn name(text: &str) -> InterfaceName {
    text.parse().unwrap()
}

pub(super) fn link(kind: LinkKind) -> Link {
    Link::new("id".to_owned(), "links[0]".to_owned(), kind)
}

pub(super) fn nic(number: u8) -> Link {
    link(LinkKind::Nic(Nic::MacAddress { mac_address: mac(number), name: None }))
}

pub(super) fn nic_with_name(number: u8, requested: &str) -> Link {
    link(LinkKind::Nic(Nic::MacAddress { mac_address: mac(number), name: Some(name(requested)) }))
}

//! Creates the network data of a machine. One document has the addresses from all pools of the machine, the settings of
//! these pools, and the MAC addresses of the interfaces of the VirtualMachine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::claim::{Allocation, Claimant, Machine};
use glowplug::host::expand::{Document, ExpandError, Grant, Template};
use glowplug::host::pool::{Pool, Settings};
use glowplug::network::InterfaceName;

use crate::cluster::key::PoolId;
use crate::kinds::virtual_machine::{CloudInitKind, VirtualMachine};
use crate::machines::recorded::Held;
use crate::machines::source::Offer;
use crate::machines::view::View;
use crate::pools::selection::Selected;

impl View {
    /// Returns the interfaces of the network data of a machine, in the order of the VirtualMachine: those that pools
    /// select, and those on which the machine holds an address of a pool that is being deleted. `None`: the choice of
    /// pools is ambiguous.
    pub(super) fn interfaces(&self, vm: &VirtualMachine, machine: &Machine) -> Option<Vec<Selected>> {
        let selected = self.selected.as_ref().ok()?;
        let is_held = |it: &&Selected| self.holds_address(machine, it);
        let mut all: Vec<Selected> = selected.iter().chain(self.kept.iter().filter(is_held)).cloned().collect();
        all.sort_by_key(|it| vm.networks.iter().position(|attachment| attachment.name == it.attachment));
        Some(all)
    }

    /// Whether a machine holds an address on an interface.
    pub(super) fn holds_address(&self, machine: &Machine, selected: &Selected) -> bool {
        self.ledger.held.iter().any(|held| Self::is_on(held, machine, selected))
    }

    /// Whether a lease is of this interface of a machine.
    pub(super) fn is_on(held: &Held, machine: &Machine, selected: &Selected) -> bool {
        let Claimant { machine: holder, interface } = &held.claimant;
        (holder, *interface, &held.network) == (machine, selected.interface, &selected.network)
    }

    /// Returns the name of the pool whose settings apply to an allocation: the pool with the lease of the first address
    /// if this pool serves the interface, otherwise the first pool of the interface.
    pub(super) fn pool_of_allocation(&self, selected: &Selected, allocation: &Allocation) -> String {
        let is_it = |held: &&Held| {
            held.claimant == allocation.claimant
                && held.network == selected.network
                && allocation.addresses.first().is_some_and(|first| first.ip() == held.address)
        };
        let of_lease = self.ledger.held.iter().find(is_it).map(|held| &held.pool);
        let mut pools = selected.all_pools().map(PoolId::to_string);
        pools.find(|pool| Some(pool) == of_lease).unwrap_or_else(|| selected.pool.to_string())
    }

    /// Creates the network data of the machine: one document with the addresses of all pools.
    pub(super) fn document(
        &self,
        vm: &VirtualMachine,
        selected: &[Selected],
        allocations: &[Allocation],
        offers: &BTreeMap<InterfaceName, Offer>,
    ) -> Result<Document, String> {
        let mut grants = Vec::new();
        let mut templates = BTreeMap::new();
        for selected in selected {
            let allocation = allocations.iter().find(|it| it.claimant.interface == selected.interface);
            let allocation =
                allocation.ok_or_else(|| format!("pool {:?} allocated nothing", selected.pool.to_string()))?;
            let name = self.pool_of_allocation(selected, allocation);
            let pool = self.ledger.pools.get(&name).ok_or_else(|| format!("unknown pool {name:?}"))?;
            let attachment = vm.networks.iter().find(|attachment| attachment.name == selected.attachment);
            let mut settings = self.settings(pool, &selected.network, allocation)?;
            if let Some(offer) = offers.get(&selected.interface) {
                settings.gateways.clone_from(&offer.gateways);
            }
            let mac_address = attachment.and_then(|attachment| attachment.mac);
            let is_named = attachment.is_none_or(|attachment| !attachment.is_sriov);
            if mac_address.is_none() && !is_named {
                return Err(format!(
                    "interface {:?} uses SR-IOV and has no macAddress, expected a MAC address: nothing else identifies the interface in the guest",
                    selected.attachment
                ));
            }
            grants.push(Grant { allocation, settings, mac_address, is_named });
            if let Some(text) = self.pools.get(&name).and_then(|pool| pool.template.as_deref()) {
                templates.insert(text, name);
            }
        }
        if templates.len() > 1 {
            let pools: Vec<String> = templates.into_values().collect();
            return Err(format!("pools {} have different templates, expected one template", pools.join(" and ")));
        }
        let interfaces = selected.iter().map(|selected| &selected.interface);
        let document = match templates.first_key_value() {
            Some((text, _)) => Template::parse(text.as_bytes()).and_then(|template| template.expand(&grants)),
            None => Template::minimal(interfaces).expand(&grants),
        };
        let is_no_cloud = vm.cloud_init.as_ref().is_some_and(|it| it.kind == CloudInitKind::NoCloud);
        let document = if is_no_cloud { document.and_then(|it| it.to_network_config()) } else { document };
        document.map_err(|error| match error {
            ExpandError::Template(_) => format!("template: {error}"),
            // Any other error is about the settings of the pools, such as their routes, so the message names the pools.
            // Such an error is possible without a template, too.
            _ => {
                let pools: BTreeSet<String> =
                    selected.iter().map(|selected| format!("{:?}", selected.pool.to_string())).collect();
                format!("network data of pool {}: {error}", pools.into_iter().collect::<Vec<_>>().join(" and "))
            }
        })
    }

    /// Returns the settings for an allocation, from `pool`. If `pool` no longer has an address of the allocation, the
    /// gateways and routes come from the pool that has this address now. `Err`: the gateway for an address is not
    /// known, because no pool has the address, and the address cannot reach the gateways of `pool`.
    fn settings(&self, pool: &Pool, network: &str, allocation: &Allocation) -> Result<Settings, String> {
        let home = |address: IpAddr| self.ledger.homes.get(&(network.to_owned(), address));
        pool.settings_for(&allocation.addresses, &home).map_err(|address| {
            format!(
                "pool {:?} has no subnet with {address} any more, so the gateway of the address is not known",
                pool.name()
            )
        })
    }
}

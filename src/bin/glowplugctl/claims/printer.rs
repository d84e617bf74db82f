//! Prints the allocations of machines.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Error, Result, anyhow};
use clap::ValueEnum;
use glowplug::host::address::AddressSet;
use glowplug::host::claim::{self, Allocation, Claimant, Machine};
use glowplug::host::expand::{Document, Grant, Template};
use glowplug::host::pool::{Pool, Space};
use glowplug::host::records::{annotation_patch, status_patch};
use glowplug::network::InterfaceName;
use ipnetwork::IpNetwork;
use pnet_base::MacAddr;
use serde::Serialize;
use serde_json::json;

use super::outcome::Outcome;
use crate::documents::{example_machine, tell_warnings};
use crate::output::{VERSION, allocations_table, print, print_json, say, sections};

/// Output format of `claim`. The line formats print one line for each machine.
#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
pub(super) enum Format {
    Table,
    Apply,
    NetworkData,
    NetworkConfig,
    Secret,
    Annotation,
    Status,
}

#[derive(Serialize)]
struct Claimed {
    version: u32,
    allocations: Vec<Allocation>,
    refused: Vec<Refused>,
    /// Allocations to waiting machines, other than the machines of this command.
    served: Vec<Allocation>,
}

#[derive(Serialize)]
struct Refused {
    namespace: String,
    name: String,
    uid: String,
    error: String,
    /// Whether the reason is a pool without a free address.
    exhausted: bool,
    /// Name of the exhausted pool.
    pool: Option<String>,
    /// The family without a free address in the pool.
    family: Option<String>,
}

pub(super) struct Printer {
    pub(super) format: Format,
    pub(super) json: bool,
    pub(super) template: Template,
    /// The pools of the claims, by name.
    pub(super) pools: BTreeMap<String, Pool>,
    pub(super) mac_addresses: BTreeMap<InterfaceName, MacAddr>,
}

impl Printer {
    /// Prints the allocations, and those of the machines that waited. Returns whether some allocations could not be
    /// printed.
    pub(super) fn print(&self, claims: &[claim::Claim], outcomes: &[Outcome], served: &[Allocation]) -> Result<bool> {
        if self.json {
            let refused = claims.iter().zip(outcomes).filter_map(|(claim, outcome)| {
                let error = outcome.as_ref().err()?;
                let Machine { namespace, name, uid, .. } = claim.machine.clone();
                let (pool, family) = error.exhausted().unzip();
                let (exhausted, error) = (pool.is_some(), error.to_string());
                let family = family.map(|family| family.to_string());
                Some(Refused { namespace, name, uid, error, exhausted, pool: pool.cloned(), family })
            });
            let (allocations, refused) = (outcomes.iter().flatten().flatten().cloned().collect(), refused.collect());
            let served = served.to_vec();
            print_json(&Claimed { version: VERSION, allocations, refused, served })?;
            return Ok(false);
        }
        if self.format == Format::Table {
            let granted = allocations_table("MACHINE", outcomes.iter().flatten().flatten());
            print(&sections([granted, allocations_table("SERVED", served)]))?;
            return Ok(false);
        }
        // Standard output has only objects and documents of the claimed machines.
        for Allocation { claimant, addresses } in served {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            say(format_args!("note: {claimant} waited, and has {} now", addresses.join(" ")));
        }
        if self.format == Format::Apply {
            return self.print_list(claims, outcomes);
        }
        let (mut lines, mut is_odd) = (String::new(), false);
        for (claim, outcome) in claims.iter().zip(outcomes) {
            // A machine without addresses gets an empty line, so that each line matches its machine.
            if let Ok(allocations) = outcome {
                match self.line(claim, allocations) {
                    Ok(line) => lines.push_str(&line),
                    Err(error) => {
                        say(format_args!("error: {}: {error:#}", claim.machine));
                        is_odd = true;
                    }
                }
            }
            if claims.len() > 1 || outcome.is_ok() {
                lines.push('\n');
            }
        }
        print(&lines)?;
        Ok(is_odd)
    }

    /// Prints a List for `kubectl apply --server-side`. For each machine the record comes before the Secret, so that no
    /// machine reads a document whose addresses are not recorded. Returns whether a machine with addresses is missing
    /// from the List.
    fn print_list(&self, claims: &[claim::Claim], outcomes: &[Outcome]) -> Result<bool> {
        let (mut items, mut is_odd) = (Vec::new(), false);
        for (claim, outcome) in claims.iter().zip(outcomes) {
            let Ok(allocations) = outcome else { continue };
            let record = annotation_patch(&claim.machine, allocations, &self.networks(claim), None);
            match record.map_err(Error::new).and_then(|record| {
                let document = self.document(&pools_of(claim, &self.pools), allocations)?;
                Ok([record, document.secret(&claim.machine)])
            }) {
                Ok(objects) => items.extend(objects),
                Err(error) => {
                    say(format_args!("error: {}: {error:#}", claim.machine));
                    is_odd = true;
                }
            }
        }
        print_json(&json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
        Ok(is_odd)
    }

    fn line(&self, claim: &claim::Claim, allocations: &[Allocation]) -> Result<String> {
        let machine = &claim.machine;
        let document = || self.document(&pools_of(claim, &self.pools), allocations);
        Ok(match self.format {
            Format::Annotation => annotation_patch(machine, allocations, &self.networks(claim), None)?.to_string(),
            Format::Status => status_patch(machine, allocations, None)?.to_string(),
            Format::Secret => document()?.secret(machine).to_string(),
            Format::NetworkData | Format::NetworkConfig | Format::Table | Format::Apply => {
                document()?.text().to_owned()
            }
        })
    }

    /// Returns the network name of each interface of a machine.
    fn networks(&self, claim: &claim::Claim) -> BTreeMap<InterfaceName, String> {
        pools_of(claim, &self.pools).into_iter().map(|pool| (pool.interface(), pool.network().to_owned())).collect()
    }

    /// Checks that the template accepts addresses of the pools, before any address is allocated.
    pub(super) fn check_template(&self, claims: &[claim::Claim]) -> Result<()> {
        if self.json || matches!(self.format, Format::Table | Format::Annotation | Format::Status) {
            return Ok(());
        }
        let example = |pool: &Pool| {
            // The guest refuses a document in which the machine has the address of its gateway.
            let first = |space: &Space| {
                let [all, reserved] =
                    [space.ranges(), space.reserved()].map(|ranges| ranges.iter().copied().collect::<AddressSet>());
                let offered = all.difference(&reserved);
                let mut numbers = offered.ranges().iter().flat_map(|range| range.first()..=range.last());
                let number = numbers.find(|number| !space.is_end_of_subnet(*number))?;
                let address = space.family().address(number);
                IpNetwork::new(address, pool.prefix_of(address)?).ok()
            };
            let claimant = Claimant { machine: example_machine(), interface: pool.interface() };
            Allocation { claimant, addresses: pool.spaces().filter_map(first).collect() }
        };
        let pools = claims.iter().map(|claim| claim.requests.iter().map(|request| request.pool.as_str()).collect());
        let pools: BTreeSet<Vec<&str>> = pools.filter(|pools: &Vec<&str>| !pools.is_empty()).collect();
        // Each warning is printed only once: it applies to every machine, and a list can have many machines.
        let mut warnings = Vec::new();
        for pools in pools {
            let pools: Vec<&Pool> = pools.into_iter().filter_map(|name| self.pools.get(name)).collect();
            let examples: Vec<Allocation> = pools.iter().copied().map(example).collect();
            for warning in self.document(&pools, &examples)?.warnings() {
                if !warnings.contains(warning) {
                    warnings.push(warning.clone());
                }
            }
        }
        tell_warnings(&warnings);
        Ok(())
    }

    /// Returns the document of a machine, in the format of the output.
    fn document(&self, pools: &[&Pool], allocations: &[Allocation]) -> Result<Document> {
        let grants = allocations.iter().map(|allocation| self.grant(pools, allocation)).collect::<Result<Vec<_>>>()?;
        let document = self.template.expand(&grants)?;
        Ok(if self.format == Format::NetworkConfig { document.to_network_config()? } else { document })
    }

    fn grant<'a>(&self, pools: &[&Pool], allocation: &'a Allocation) -> Result<Grant<'a>> {
        let interface = &allocation.claimant.interface;
        let pool = pools.iter().find(|pool| pool.interface() == *interface);
        let settings = pool.map(|pool| {
            let settings = pool.settings_for(&allocation.addresses, &|_| None);
            settings.map_err(|address| {
                let name = pool.name();
                anyhow!("pool {name} has no subnet with {address} any more, so the gateway of the address is not known")
            })
        });
        let settings = settings.transpose()?.unwrap_or_default();
        Ok(Grant { allocation, settings, mac_address: self.mac_addresses.get(interface).copied(), is_named: true })
    }
}

/// Returns the pools of a claim.
pub(super) fn pools_of<'p>(claim: &claim::Claim, by_name: &'p BTreeMap<String, Pool>) -> Vec<&'p Pool> {
    claim.requests.iter().filter_map(|request| by_name.get(&request.pool)).collect()
}

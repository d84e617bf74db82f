//! The command `claim`.

mod outcome;
mod printer;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use glowplug::host::Timestamp;
use glowplug::host::address::{AddressSet, parse_address};
use glowplug::host::allocator::{Adoption, Allocator, ClaimError, Conflicted, OtherUser, Problem};
use glowplug::host::claim::{self, Claimant, Machine, Request};
use glowplug::host::expand::Template;
use glowplug::host::may_record::State;
use glowplug::host::pool::Pool;
use glowplug::host::records::{Inventory, KubevirtMachine, NODE_POOL_ANNOTATION, Report, annotation_key};
use glowplug::network::{Family, InterfaceName};
use pnet_base::MacAddr;
use slog::Logger;

use self::outcome::{Outcome, Refusal};
use self::printer::{Format, Printer, pools_of};
use crate::input::{
    BATCH, LedgerFile, Machines, Named, Pools, ReadMachines, ServedPools, in_template, interface, mac_address, named,
    read_template, usage_error,
};
use crate::output::{EXHAUSTED, exit_code, say};
use crate::release::namesake;

#[derive(Args)]
#[command(
    override_usage = "glowplugctl claim --pool <FILE> --ledger <FILE>\n       {<MACHINE>... --uid <UID>...|--machines <FILE|->...} [OPTIONS]"
)]
pub(crate) struct ClaimArgs {
    #[command(flatten)]
    pools: Pools,
    #[command(flatten)]
    ledger: LedgerFile,
    #[command(flatten)]
    machines: Machines,
    /// Print in this format; --help lists the formats
    ///
    /// The formats are table, apply, network-data, network-config, secret, annotation and status. A table is for
    /// people. `apply` is one List for `kubectl apply --server-side -f -`, with the record and then the Secret of
    /// each machine. The other formats have one line for each machine: its document, the Secret with its document, or
    /// the merge patch that records its addresses in an annotation or in the status. `network-config` is cloud-init's
    /// version 2 of the document, for a NoCloud drive.
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "table",
        conflicts_with = "json",
        hide_possible_values = true,
        hide_default_value = true
    )]
    format: Format,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Request this address; one of each family, one machine only
    #[arg(long = "ip", value_name = "ADDRESS", value_parser = parse_address, conflicts_with = "lists")]
    ips: Vec<IpAddr>,
    /// NodePool of machines without the annotation
    ///
    /// Required if several pools serve one interface. A machine is skipped if its annotation
    /// hypershift.openshift.io/nodePool has another NodePool.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = named)]
    node_pool: Option<Named>,
    /// Reuse the address last released by a machine of that name
    #[arg(long)]
    sticky: bool,
    /// MAC address of the machine's NIC; one machine only
    ///
    /// With several interfaces, each MAC address needs the name of its interface. The ledger does not keep the MAC address,
    /// so repeat it with each format that has the document of the machine.
    #[arg(long = "mac", value_name = "[INTERFACE=]MAC", value_parser = nic, conflicts_with = "lists")]
    macs: Vec<Nic>,
}

/// The MAC address of an interface. `interface: None` is allowed if there is only one interface.
#[derive(Clone)]
struct Nic {
    interface: Option<InterfaceName>,
    mac_address: MacAddr,
}

fn nic(text: &str) -> Result<Nic, String> {
    let (name, mac) = text.split_once('=').map_or((None, text), |(name, mac)| (Some(name), mac));
    Ok(Nic { interface: name.map(interface).transpose()?, mac_address: mac_address(mac)? })
}

pub(crate) fn claim(args: ClaimArgs, log: &Logger) -> Result<ExitCode> {
    let read = args.machines.read("claim", log)?;
    let has_diagnostics = read.has_diagnostics();
    let ReadMachines { machines, inventory } = read;
    if machines.len() != 1 && (!args.ips.is_empty() || !args.macs.is_empty()) {
        usage_error("claim", "--ip and --mac are for one machine");
    }
    if !args.macs.is_empty() && matches!(args.format, Format::Table | Format::Annotation | Format::Status) {
        usage_error("claim", "--mac is for a format with the document of the machine, such as --format network-data");
    }
    let ServedPools { pools: all, deleted, left_out: unserved, is_whole, .. } = args.pools.read(log)?;
    let pools: Vec<Pool> = all.iter().filter(|pool| pool.serves_machines()).cloned().collect();
    if pools.is_empty() {
        bail!("no pool for machines, expected a StaticIPPool or a GlobalStaticIPPool that selects machines");
    }
    let by_name: BTreeMap<String, Pool> = pools.iter().map(|pool| (pool.name().to_owned(), pool.clone())).collect();
    let (claims, mut left_out) = claims(&args, &pools, &unserved, is_whole, machines)?;
    let mac_addresses = match claims.as_slice() {
        [claim] if left_out.is_empty() => mac_addresses(&args.macs, &pools_of(claim, &by_name))?,
        _ => BTreeMap::new(),
    };
    if matches!(args.format, Format::Annotation | Format::Apply) {
        // Check the interface names before an allocation that could not be recorded.
        pools.iter().try_for_each(|pool| annotation_key(&pool.interface()).map(drop))?;
    }
    let mut seen = BTreeSet::new();
    let interfaces = pools.iter().map(Pool::interface).filter(|interface| seen.insert(*interface));
    let interfaces: Vec<InterfaceName> = interfaces.collect();
    let printer = Printer {
        format: args.format,
        json: args.json,
        template: match &args.pools.template {
            Some(path) => read_template(path, log)?,
            None => Template::minimal(&interfaces),
        },
        pools: by_name,
        mac_addresses,
    };
    in_template(printer.check_template(&claims), args.pools.template.as_deref())?;
    let mut registry = args.ledger.open(&all, deleted, log)?;
    if inventory.is_none() {
        for claim in &claims {
            if let Some(other) = namesake(&claim.machine, registry.state()?) {
                say(format_args!("note: {}: {other} has the same name and holds an address", claim.machine));
            }
        }
    }
    let leaving: Vec<&Machine> = left_out
        .iter()
        .filter(|(_, why)| matches!(why, Refusal::BeingDeleted))
        .map(|(at, _)| &claims[*at].machine)
        .collect();
    if !leaving.is_empty() {
        registry.withdraw(leaving)?;
    }
    let mut served = Vec::new();
    if let Some(inventory) = &inventory {
        let rebuilt = registry.rebuild(inventory, Timestamp::now())?;
        served.extend(rebuilt.served);
        let adoption = rebuilt.adoption;
        let problems = record_problems(inventory, &adoption);
        for (at, claim) in claims.iter().enumerate() {
            let claimants = pools_of(claim, &printer.pools)
                .into_iter()
                .map(|pool| Claimant { machine: claim.machine.clone(), interface: pool.interface() });
            if let Some(problem) = claimants.filter_map(|claimant| problems.get(&claimant)).next() {
                left_out.entry(at).or_insert_with(|| Refusal::Record(problem.clone()));
            }
        }
    } else {
        // A claim by name has no records to adopt: it relies on the ledger alone.
        served.extend(registry.open_addresses(Timestamp::now())?);
    }
    let by_machine: BTreeMap<&Machine, usize> =
        claims.iter().enumerate().map(|(at, claim)| (&claim.machine, at)).collect();
    for (claimant, address) in kept_addresses(registry.state()?) {
        let Some(&at) = by_machine.get(&claimant.machine) else { continue };
        if pools_of(&claims[at], &printer.pools).iter().any(|pool| pool.interface() == claimant.interface) {
            let text = format!("{address} of {claimant} is excluded, the machine keeps it and gets no other address");
            left_out.entry(at).or_insert(Refusal::Record(text));
        }
    }
    if pools.iter().any(Pool::is_external) {
        let leases = registry.state()?.leases();
        let holders: BTreeSet<Claimant> = leases.map(|(_, _, lease)| Claimant::clone(&lease.claimant)).collect();
        for (at, claim) in claims.iter().enumerate() {
            let lacks = |pool: &&Pool| {
                let claimant = Claimant { machine: claim.machine.clone(), interface: pool.interface() };
                pool.is_external() && !holders.contains(&claimant)
            };
            if let Some(pool) = pools_of(claim, &printer.pools).into_iter().find(lacks) {
                left_out.entry(at).or_insert_with(|| Refusal::OtherProgram(pool.title()));
            }
        }
    }
    // Within a list, the creation time decides the order, not the position in the list.
    let mut queue: Vec<usize> = (0..claims.len()).collect();
    if inventory.is_some() {
        queue.sort_by_key(|&at| claims[at].created);
    }
    let mut outcomes: BTreeMap<usize, Outcome> = BTreeMap::new();
    let progress = Progress::new(claims.len());
    for batch in queue.chunks(BATCH) {
        let batch: Vec<usize> = batch
            .iter()
            .copied()
            .filter(|at| match left_out.remove(at) {
                Some(why) => {
                    outcomes.insert(*at, Err(why));
                    false
                }
                None => true,
            })
            .collect();
        let of_batch: Vec<claim::Claim> = batch.iter().map(|&at| claims[at].clone()).collect();
        let claimed = registry.claim_all(&of_batch, Timestamp::now())?;
        served.extend(claimed.served);
        let answers = claimed.answers.into_iter().zip(&of_batch).map(|(answer, claim)| {
            answer.map_err(|error| match error {
                ClaimError::NotInPool { .. } => Refusal::Outside(error, offered(&pools_of(claim, &printer.pools))),
                _ => Refusal::Claim(error),
            })
        });
        outcomes.extend(batch.into_iter().zip(answers));
        progress.at(outcomes.len());
    }
    progress.end();
    let outcomes: Vec<Outcome> = outcomes.into_values().collect();
    let is_alone = claims.len() == 1;
    let (mut is_exhausted, mut is_refused) = (false, false);
    for (claim, outcome) in claims.iter().zip(&outcomes) {
        let Err(refusal) = outcome else { continue };
        is_exhausted |= refusal.is_exhaustion();
        is_refused |= !refusal.is_exhaustion() && !refusal.is_usual();
        let severity = if refusal.is_usual() { "warning" } else { "error" };
        // For a single machine, print exactly the text that people search for.
        if is_alone {
            say(format_args!("{severity}: {refusal}"))
        } else {
            say(format_args!("{severity}: {}: {refusal}", claim.machine))
        }
    }
    let granted: BTreeSet<&Claimant> =
        outcomes.iter().flatten().flatten().map(|allocation| &allocation.claimant).collect();
    let has_conflicts = tell_conflicts(registry.state()?, &granted);
    let has_other_addresses =
        inventory.as_ref().is_some_and(|inventory| tell_other_addresses(inventory, &pools, &outcomes));
    served.retain(|allocation| !granted.contains(&allocation.claimant));
    is_refused |= printer.print(&claims, &outcomes, &served)?;
    Ok(if is_refused {
        ExitCode::FAILURE
    } else if is_exhausted {
        ExitCode::from(EXHAUSTED)
    } else {
        exit_code(!has_diagnostics && !has_conflicts && !has_other_addresses && is_whole)
    })
}

/// Reports the other users of addresses that these claimants hold. Returns whether there are any.
fn tell_conflicts(allocator: &Allocator, granted: &BTreeSet<&Claimant>) -> bool {
    let mut has_conflicts = false;
    for Conflicted { address, holder, others, .. } in allocator.conflicted() {
        let Some(holder) = holder.filter(|holder| granted.contains(holder)) else { continue };
        for OtherUser { claimant, source, .. } in others {
            say(format_args!("error: {source}: {address} of {claimant} is also of {holder}"));
            has_conflicts = true;
        }
    }
    has_conflicts
}

/// Reports machines whose guests use other addresses of a pool and a family than the claim prints. Returns whether there
/// are any.
fn tell_other_addresses(inventory: &Inventory, pools: &[Pool], outcomes: &[Outcome]) -> bool {
    let mut granted: BTreeMap<&Machine, BTreeSet<IpAddr>> = BTreeMap::new();
    for allocation in outcomes.iter().flatten().flatten() {
        let addresses = granted.entry(&allocation.claimant.machine).or_default();
        addresses.extend(allocation.addresses.iter().map(|address| address.ip()));
    }
    let place = |report: &'_ Report| (report.machine.clone(), report.network.clone(), Family::of(report.address));
    // A guest that uses its own address of a network may have further addresses there, such as that of a load balancer.
    let is_granted = |report: &&Report| granted.get(&report.machine).is_some_and(|of| of.contains(&report.address));
    let right: BTreeSet<_> = inventory.reports.iter().filter(is_granted).map(place).collect();
    let is_of_pool = |report: &&Report| {
        let is_on = |pool: &&Pool| report.network.as_ref().is_none_or(|network| network == pool.network());
        pools.iter().filter(is_on).any(|pool| pool.contains(report.address))
    };
    let is_other = |report: &&Report| {
        granted.contains_key(&report.machine) && is_of_pool(report) && !right.contains(&place(report))
    };
    let mut has_other_addresses = false;
    for Report { machine, address, source, .. } in inventory.reports.iter().filter(is_other) {
        say(format_args!("warning: {source}: {address} is in use by {machine}, and the claim gives another address"));
        has_other_addresses = true;
    }
    has_other_addresses
}

/// Returns the record problems that prevent a claim, by claimant: the record contradicts the ledger or the pools, or
/// cannot be read.
fn record_problems(inventory: &Inventory, adoption: &Adoption) -> BTreeMap<Claimant, String> {
    // These problems prevent no claim: the machine keeps its address.
    let is_kept =
        |problem: &Problem| matches!(problem, Problem::OutOfPool(_) | Problem::Prefix(_) | Problem::Ignored(_));
    let mismatches = adoption.mismatches.iter().filter(|mismatch| !is_kept(&mismatch.problem));
    let mismatches = mismatches.map(|mismatch| (mismatch.claimant.clone(), mismatch.to_string()));
    let diagnostics = inventory.diagnostics.iter();
    let diagnostics = diagnostics.filter_map(|diagnostic| Some((diagnostic.claimant.clone()?, diagnostic.to_string())));
    mismatches.chain(diagnostics).collect()
}

/// Returns the addresses that machines keep although a pool now excludes these addresses.
fn kept_addresses(allocator: &Allocator) -> Vec<(Claimant, IpAddr)> {
    let kept = allocator.conflicts().filter(|(_, _, conflict)| conflict.state == State::Excluded);
    kept.map(|(_, address, conflict)| (conflict.claimant, address)).collect()
}

/// Makes one claim for each machine. Refused machines have an empty claim, and their refusals are listed by index.
fn claims(
    args: &ClaimArgs,
    pools: &[Pool],
    unserved: &BTreeSet<String>,
    is_whole: bool,
    machines: Vec<KubevirtMachine>,
) -> Result<(Vec<claim::Claim>, BTreeMap<usize, Refusal>)> {
    let requested = args.node_pool.as_ref().map(ToString::to_string);
    if let Some(requested) = requested.as_ref().filter(|requested| pools.iter().all(|pool| pool.name() != **requested))
    {
        bail!("--node-pool {requested}: no pool of that NodePool, expected one of {}", names(pools));
    }
    let now = Timestamp::now();
    let mut by_node_pool: BTreeMap<Option<String>, Result<Vec<Request>, Refusal>> = BTreeMap::new();
    let (mut claims, mut left_out) = (Vec::new(), BTreeMap::new());
    for KubevirtMachine { machine, created, is_being_deleted, node_pool } in machines {
        if let (Some(given), Some(own)) = (&requested, &node_pool)
            && given != own
        {
            left_out.insert(claims.len(), Refusal::AnotherNodePool(own.clone(), given.clone()));
            let created = created.unwrap_or(now);
            claims.push(claim::Claim { machine, created, requests: Vec::new(), sticky: args.sticky, secret: None });
            continue;
        }
        let requests = by_node_pool.entry(requested.clone().or(node_pool)).or_insert_with_key(|node_pool| {
            if node_pool.is_none() && !is_whole {
                // The pool of the machine may be one of the pools that are not served.
                let expected = format!("with --node-pool, or in the annotation {NODE_POOL_ANNOTATION}");
                let problem = "some pools are not served, expected the NodePool of the machine";
                return Err(Refusal::NodePool(format!("{problem}: {expected}")));
            }
            if let Some(name) = node_pool.as_ref().filter(|name| unserved.contains(*name)) {
                return Err(Refusal::UnservedNodePool(name.clone()));
            }
            Ok(requests(&one_for_each_interface(pools, node_pool.as_deref())?, &args.ips))
        });
        let requests = if is_being_deleted { Err(Refusal::BeingDeleted) } else { requests.clone() };
        // A refused machine stays in the list with an empty claim, so that each printed line matches its machine.
        let requests = requests.unwrap_or_else(|why| {
            left_out.insert(claims.len(), why);
            Vec::new()
        });
        claims.push(claim::Claim {
            machine,
            created: created.unwrap_or(now),
            requests,
            sticky: args.sticky,
            secret: None,
        });
    }
    Ok((claims, left_out))
}

/// The pools of a machine, in the given order. Of several pools for one interface, only the pool of the machine's
/// NodePool is used.
fn one_for_each_interface<'p>(pools: &'p [Pool], node_pool: Option<&str>) -> Result<Vec<&'p Pool>, Refusal> {
    let is_own = |pool: &Pool| node_pool == Some(pool.name());
    if let Some(node_pool) = node_pool.filter(|_| !pools.iter().any(is_own)) {
        return Err(Refusal::OtherNodePool(node_pool.to_owned()));
    }
    let mut by_interface: BTreeMap<InterfaceName, Vec<&Pool>> = BTreeMap::new();
    for pool in pools {
        by_interface.entry(pool.interface()).or_default().push(pool);
    }
    for (interface, several) in &by_interface {
        if several.len() > 1 && !several.iter().copied().any(is_own) {
            let names = names(several.iter().copied());
            return Err(Refusal::NodePool(match node_pool {
                Some(node_pool) => {
                    format!("no pool of NodePool {node_pool} for interface {interface}, expected one of {names}")
                }
                None => format!(
                    "several pools for interface {interface}, expected the NodePool of the machine, one of {names}: \
                     with --node-pool, or in the annotation {NODE_POOL_ANNOTATION}"
                ),
            }));
        }
    }
    let is_only = |pool: &Pool| by_interface.get(&pool.interface()).is_some_and(|pools| pools.len() == 1);
    Ok(pools.iter().filter(|pool| is_only(pool) || is_own(pool)).collect())
}

fn names<'p>(pools: impl IntoIterator<Item = &'p Pool>) -> String {
    pools.into_iter().map(|pool| pool.name()).collect::<Vec<_>>().join(", ")
}

fn requests(pools: &[&Pool], ips: &[IpAddr]) -> Vec<Request> {
    let mut requests: Vec<Request> = pools.iter().map(|pool| Request::of(pool.name())).collect();
    for ip in ips {
        // An address outside all pools is requested from the first pool, which refuses the claim.
        let at = pools.iter().position(|pool| pool.contains(*ip)).unwrap_or_default();
        requests[at].addresses.push(*ip);
    }
    requests
}

/// Returns the addresses of pools.
fn offered(pools: &[&Pool]) -> AddressSet {
    pools.iter().flat_map(|pool| pool.spaces()).flat_map(|space| space.ranges().iter().copied()).collect()
}

fn mac_addresses(nics: &[Nic], pools: &[&Pool]) -> Result<BTreeMap<InterfaceName, MacAddr>> {
    let mut mac_addresses = BTreeMap::new();
    for nic in nics {
        let interface = match (&nic.interface, pools) {
            (Some(interface), _) if pools.iter().any(|pool| pool.interface() == *interface) => interface,
            (Some(interface), _) => bail!("--mac: no pool for interface {interface}"),
            (None, [pool]) => &pool.interface(),
            (None, _) => bail!("--mac {}: the machine has several interfaces, expected INTERFACE=MAC", nic.mac_address),
        };
        let same = mac_addresses.iter().find(|(first, mac)| **mac == nic.mac_address && **first != *interface);
        if let Some((first, mac)) = same {
            bail!("--mac {mac}: given to {first} and {interface}, expected one interface");
        }
        if mac_addresses.insert(*interface, nic.mac_address).is_some() {
            bail!("--mac: second MAC address of interface {interface}, expected one");
        }
    }
    Ok(mac_addresses)
}

/// Shows the progress of a long run on a terminal.
struct Progress {
    of: usize,
    is_shown: bool,
}

impl Progress {
    fn new(of: usize) -> Self {
        Self { of, is_shown: of > BATCH && io::stderr().is_terminal() }
    }

    fn at(&self, done: usize) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r{done} of {} machines", self.of);
        }
    }

    fn end(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

//! The commands `claim` and `release`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Error, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use glowplug::host::Timestamp;
use glowplug::host::address::{AddressSet, parse_address};
use glowplug::host::allocator::{Adoption, Allocator, ClaimError, Problem};
use glowplug::host::audit;
use glowplug::host::claim::{self, Allocation, Claimant, Machine, Request};
use glowplug::host::expand::{Document, Grant, Template};
use glowplug::host::may_record::State;
use glowplug::host::pool::{Pool, Space};
use glowplug::host::records::{
    Inventory, KubevirtMachine, NODE_POOL_ANNOTATION, annotation_key, annotation_patch, status_patch,
};
use glowplug::network::{Family, InterfaceName};
use ipnetwork::IpNetwork;
use pnet_base::MacAddr;
use serde::Serialize;
use serde_json::json;
use slog::Logger;

use crate::documents::{nobody, tell_warnings};
use crate::input::{
    LedgerFile, Machines, Named, PoolFiles, Pools, ReadMachines, ServedPools, in_template, interface, mac_address,
    named, read_template, usage_error,
};
use crate::output::{EXHAUSTED, VERSION, allocations_table, exit_code, print, print_json, say, sections};

/// Number of claims or releases in one write to the ledger: large enough to be fast, and small enough that other processes
/// get a turn.
const BATCH: usize = 512;

#[derive(Args)]
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
    /// With several interfaces, each MAC address needs the name of its interface.
    #[arg(long = "mac", value_name = "[INTERFACE=]MAC", value_parser = nic, conflicts_with = "lists")]
    macs: Vec<Nic>,
}

/// Output format of `claim`. The line formats print one line for each machine.
#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Format {
    Table,
    Apply,
    NetworkData,
    NetworkConfig,
    Secret,
    Annotation,
    Status,
}

/// The MAC address of an interface. `interface: None` is allowed if there is only one interface.
#[derive(Clone)]
struct Nic {
    interface: Option<InterfaceName>,
    mac_address: MacAddr,
}

#[derive(Args)]
pub(crate) struct Release {
    #[command(flatten)]
    ledger: LedgerFile,
    #[command(flatten)]
    machines: Machines,
    /// Serve machines that wait for this pool
    #[arg(long = "pool", value_name = "FILE")]
    pools: Vec<PathBuf>,
    /// Template of the machines' network_data.json
    ///
    /// The template may set prefix lengths. The addresses in the template are reserved.
    #[arg(long, value_name = "FILE", requires = "pools")]
    template: Option<PathBuf>,
    /// Also release machines that may still run
    ///
    /// Without this option, a machine of a list is released only if it has a deletionTimestamp and no guest in the lists.
    #[arg(long, requires = "lists")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn nic(text: &str) -> Result<Nic, String> {
    let (name, mac) = text.split_once('=').map_or((None, text), |(name, mac)| (Some(name), mac));
    Ok(Nic { interface: name.map(interface).transpose()?, mac_address: mac_address(mac)? })
}

#[derive(Serialize)]
struct Claimed {
    version: u32,
    allocations: Vec<Allocation>,
    refused: Vec<Refused>,
}

#[derive(Serialize)]
struct Refused {
    namespace: String,
    name: String,
    uid: String,
    error: String,
    /// Whether the reason is a pool without a free address.
    exhausted: bool,
    /// The exhausted pool.
    pool: Option<String>,
    /// The family without a free address in the pool.
    family: Option<String>,
}

/// Why a machine gets no address.
#[derive(Clone)]
enum Refusal {
    /// The pools refuse the claim of the machine.
    Claim(ClaimError),
    /// The pools of the machine are unknown.
    NodePool(String),
    /// The NodePool of the machine, to which none of the given pools belongs.
    OtherNodePool(String),
    /// The annotation of the machine has the first NodePool, and `--node-pool` the second.
    AnotherNodePool(String, String),
    /// An object records an address for the machine that does not fit, or has a record that cannot be read.
    Record(String),
    BeingDeleted,
    /// Another program chooses the addresses of this pool, and no record has one for the machine.
    OtherProgram(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The text of the enhancement comes first, because people and programs search for it.
            Self::Claim(error @ ClaimError::Exhausted { pool, family, .. }) => {
                write!(f, "{error}: pool {pool}, {family}")
            }
            Self::Claim(error) => error.fmt(f),
            Self::NodePool(error) => f.write_str(error),
            Self::OtherNodePool(name) => write!(f, "the machine is of NodePool {name}, whose pool is not among these"),
            Self::AnotherNodePool(own, given) => {
                write!(f, "the machine is of NodePool {own} by its annotation, expected {given} as in --node-pool")
            }
            Self::Record(problem) => write!(f, "the record of the machine does not fit: {problem}"),
            Self::BeingDeleted => {
                f.write_str("the machine is being deleted: it keeps its addresses and gets no new ones")
            }
            Self::OtherProgram(pool) => {
                write!(
                    f,
                    "another program chooses the addresses of pool {pool}, expected a record of the machine's address"
                )
            }
        }
    }
}

impl Refusal {
    /// Whether such machines are normal in a list, so that the refusal is no error.
    fn is_usual(&self) -> bool {
        matches!(self, Self::OtherNodePool(_) | Self::AnotherNodePool(..) | Self::BeingDeleted)
    }

    /// The exhausted pool, and the family without a free address.
    fn exhausted(&self) -> Option<(&String, Family)> {
        match self {
            Self::Claim(ClaimError::Exhausted { pool, family, .. }) => Some((pool, *family)),
            _ => None,
        }
    }

    fn is_exhaustion(&self) -> bool {
        self.exhausted().is_some()
    }
}

type Outcome = Result<Vec<Allocation>, Refusal>;

pub(crate) fn claim(args: ClaimArgs, log: &Logger) -> Result<ExitCode> {
    let read = args.machines.read(log)?;
    let has_diagnostics = read.has_diagnostics();
    let ReadMachines { machines, inventory } = read;
    if machines.len() != 1 && (!args.ips.is_empty() || !args.macs.is_empty()) {
        usage_error("--ip and --mac are for one machine");
    }
    let ServedPools { pools: all, deleted, is_whole, .. } = args.pools.read(log)?;
    let pools: Vec<Pool> = all.iter().filter(|pool| pool.serves_machines()).cloned().collect();
    if pools.is_empty() {
        bail!("no pool for machines, expected a StaticIPPool or a GlobalStaticIPPool that selects machines");
    }
    let by_name: BTreeMap<String, Pool> = pools.iter().map(|pool| (pool.name().to_owned(), pool.clone())).collect();
    let (claims, mut left_out) = claims(&args, &pools, is_whole, machines)?;
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
    let leaving: Vec<&Machine> = left_out
        .iter()
        .filter(|(_, why)| matches!(why, Refusal::BeingDeleted))
        .map(|(at, _)| &claims[*at].machine)
        .collect();
    if !leaving.is_empty() {
        registry.withdraw(leaving)?;
    }
    if let Some(inventory) = &inventory {
        let adoption = audit::rebuild(&mut registry, inventory, Timestamp::now())?.adoption;
        let problems = record_problems(inventory, &adoption);
        for (at, claim) in claims.iter().enumerate() {
            let claimants = pools_of(claim, &printer.pools)
                .into_iter()
                .map(|pool| Claimant { machine: claim.machine.clone(), interface: pool.interface() });
            if let Some(problem) = claimants.filter_map(|claimant| problems.get(&claimant)).next() {
                left_out.entry(at).or_insert_with(|| Refusal::Record(problem.clone()));
            }
        }
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
        let answers = registry.claim_all(&of_batch, Timestamp::now())?.answers;
        outcomes.extend(batch.into_iter().zip(answers.into_iter().map(|answer| answer.map_err(Refusal::Claim))));
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
    is_refused |= printer.print(&claims, &outcomes)?;
    Ok(if is_refused {
        ExitCode::FAILURE
    } else if is_exhausted {
        ExitCode::from(EXHAUSTED)
    } else {
        exit_code(!has_diagnostics && is_whole)
    })
}

/// Records that prevent a claim of their machine: an address of another machine, or a record that cannot be read.
fn record_problems(inventory: &Inventory, adoption: &Adoption) -> BTreeMap<Claimant, String> {
    // With one of these problems, the machine still has its address.
    let is_kept =
        |problem: &Problem| matches!(problem, Problem::OutOfPool(_) | Problem::Prefix(_) | Problem::Ignored(_));
    let mismatches = adoption.mismatches.iter().filter(|mismatch| !is_kept(&mismatch.problem));
    let mismatches = mismatches.map(|mismatch| (mismatch.claimant.clone(), mismatch.to_string()));
    let diagnostics = inventory.diagnostics.iter();
    let diagnostics = diagnostics.filter_map(|diagnostic| Some((diagnostic.claimant.clone()?, diagnostic.to_string())));
    mismatches.chain(diagnostics).collect()
}

/// The addresses that machines keep although no pool offers them any more.
fn kept_addresses(allocator: &Allocator) -> Vec<(Claimant, IpAddr)> {
    let kept = allocator.conflicts().filter(|(_, _, conflict)| conflict.state == State::Excluded);
    kept.map(|(_, address, conflict)| (conflict.claimant, address)).collect()
}

/// Makes one claim for each machine. Refused machines have an empty claim, and their refusals are listed by index.
fn claims(
    args: &ClaimArgs,
    pools: &[Pool],
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
            Ok(requests(&one_for_each_interface(pools, node_pool.as_deref())?, &args.ips))
        });
        let requests = if is_being_deleted { Err(Refusal::BeingDeleted) } else { requests.clone() };
        // A refused machine keeps its position, so that each printed line matches its machine.
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

/// The pools of a machine, in the given order. If several pools serve one interface, only the pool of the machine's
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
        // An address outside all pools goes to the first pool, which refuses it.
        let at = pools.iter().position(|pool| pool.contains(*ip)).unwrap_or_default();
        requests[at].addresses.push(*ip);
    }
    requests
}

/// The pools of a claim.
fn pools_of<'p>(claim: &claim::Claim, by_name: &'p BTreeMap<String, Pool>) -> Vec<&'p Pool> {
    claim.requests.iter().filter_map(|request| by_name.get(&request.pool)).collect()
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

struct Printer {
    format: Format,
    json: bool,
    template: Template,
    /// Pools by name.
    pools: BTreeMap<String, Pool>,
    mac_addresses: BTreeMap<InterfaceName, MacAddr>,
}

impl Printer {
    /// Prints the allocations. Returns whether some of them could not be printed.
    fn print(&self, claims: &[claim::Claim], outcomes: &[Outcome]) -> Result<bool> {
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
            print_json(&Claimed { version: VERSION, allocations, refused })?;
            return Ok(false);
        }
        if self.format == Format::Table {
            print(&allocations_table("MACHINE", outcomes.iter().flatten().flatten()))?;
            return Ok(false);
        }
        if self.format == Format::Apply {
            return self.print_list(claims, outcomes);
        }
        let (mut lines, mut is_odd) = (String::new(), false);
        for (claim, outcome) in claims.iter().zip(outcomes) {
            // An empty line for a machine without addresses, so that each line matches its machine.
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
    /// machine reads a document whose addresses are not recorded. Returns whether a machine with addresses is missing from
    /// the List.
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

    /// The network of each interface of a machine.
    fn networks(&self, claim: &claim::Claim) -> BTreeMap<InterfaceName, String> {
        pools_of(claim, &self.pools).into_iter().map(|pool| (pool.interface(), pool.network().to_owned())).collect()
    }

    /// Checks that the template accepts addresses of the pools, before any address is allocated.
    fn check_template(&self, claims: &[claim::Claim]) -> Result<()> {
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
            let claimant = Claimant { machine: nobody(), interface: pool.interface() };
            Allocation { claimant, addresses: pool.spaces().filter_map(first).collect() }
        };
        let pools = claims.iter().map(|claim| claim.requests.iter().map(|request| request.pool.as_str()).collect());
        let pools: BTreeSet<Vec<&str>> = pools.filter(|pools: &Vec<&str>| !pools.is_empty()).collect();
        // The same warning applies to every machine, of which there may be many.
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

    /// The document of a machine, in the format that is printed.
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

#[derive(Serialize)]
struct ReleasedDocument {
    version: u32,
    released: Vec<Allocation>,
    served: Vec<Allocation>,
}

pub(crate) fn release(args: Release, log: &Logger) -> Result<ExitCode> {
    let read = args.machines.read(log)?;
    let is_odd = read.has_diagnostics();
    let ReadMachines { machines, inventory } = read;
    let ServedPools { pools, deleted, is_whole, .. } = match args.pools.as_slice() {
        [] => ServedPools { is_whole: true, ..ServedPools::default() },
        files => PoolFiles::served(files, args.template.as_deref(), log)?,
    };
    let mut registry = args.ledger.open(&pools, deleted, log)?;
    let (mut released, mut served) = (Vec::new(), Vec::new());
    let (machines, kept) = releasable(machines, inventory.as_ref(), args.force);
    for batch in machines.chunks(BATCH) {
        let waiting: BTreeSet<Machine> =
            registry.state()?.waiters().into_iter().map(|claim| claim.machine.clone()).collect();
        let done = registry.release_all(batch, Timestamp::now())?;
        let held: BTreeSet<&Machine> = done.held.iter().map(|allocation| &allocation.claimant.machine).collect();
        for machine in batch.iter().filter(|machine| !held.contains(machine) && !waiting.contains(machine)) {
            say(format_args!("warning: {machine} holds nothing{}", namesake(machine, registry.state()?)));
        }
        released.extend(done.held);
        served.extend(done.served);
    }
    if args.json {
        print_json(&ReleasedDocument { version: VERSION, released, served })?;
    } else {
        print(&sections([allocations_table("RELEASED", &released), allocations_table("SERVED", &served)]))?;
    }
    Ok(if kept > 0 { ExitCode::FAILURE } else { exit_code(!is_odd && is_whole) })
}

/// The machines that may be released, and the number of other machines. A machine of a list may be released only if it is
/// being deleted and has no guest: any other machine still uses its addresses.
fn releasable(machines: Vec<KubevirtMachine>, inventory: Option<&Inventory>, force: bool) -> (Vec<Machine>, usize) {
    let count = machines.len();
    let releasable = machines.into_iter().filter_map(|KubevirtMachine { machine, is_being_deleted, .. }| {
        let Some(inventory) = inventory.filter(|_| !force) else { return Some(machine) };
        let problem = if !is_being_deleted {
            "not being deleted, expected a deletionTimestamp, or --force"
        } else if inventory.has_guest(&machine) {
            "its guest exists, expected neither a VirtualMachine nor an instance of it, or --force"
        } else {
            return Some(machine);
        };
        say(format_args!("error: {machine}: {problem}"));
        None
    });
    let releasable: Vec<Machine> = releasable.collect();
    let kept = count - releasable.len();
    (releasable, kept)
}

/// Returns a machine with the same name and another UID. A wrong UID is a frequent mistake.
fn namesake(machine: &Machine, allocator: &Allocator) -> String {
    let is_namesake = |other: &&Machine| other.namespace == machine.namespace && other.name == machine.name;
    let found = allocator.leases().map(|(_, _, lease)| &lease.claimant.machine).find(is_namesake);
    found.map(|other| format!(", but {other} does")).unwrap_or_default()
}

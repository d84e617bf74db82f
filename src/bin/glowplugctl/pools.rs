//! The commands `pool check`, `nodepool`, `init`, `resize` and `metrics`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use glowplug::atomic_file::output_path;
use glowplug::diagnostic::Diagnostic;
use glowplug::host::Timestamp;
use glowplug::host::allocator::{PoolUsage, Rename, Resized, Usage};
use glowplug::host::claim::Allocation;
use glowplug::host::counts::Count;
use glowplug::host::metrics;
use glowplug::host::nodepool::{BootstrapNetworkConfig, MachineTemplate};
use glowplug::host::pool::{self, Pool, ReservedAddresses, SettingsSpec, Subnet};
use serde::Serialize;
use slog::Logger;

use crate::Reported;
use crate::input::{LedgerFile, PoolFiles, Pools, ServedPools, named, object_name, tell_overlaps};
use crate::output::{
    VERSION, allocations_table, exit_code, print, print_json, say, sections, table, write_in_one_step,
};

#[derive(Args)]
pub(crate) struct PoolCheck {
    /// Pool file, YAML or JSON
    ///
    /// The file has a pool, a list of pools, NodePools with a bootstrapNetworkConfig, or pools of a cluster, as
    /// `kubectl get staticippools,globalstaticippools -A -o yaml` prints them. YAML may have several documents.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Template of the machines' network_data.json
    ///
    /// The template may set prefix lengths. The addresses in the template are reserved.
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Nodepool {
    /// YAML or JSON with NodePools and their HostedClusters
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Init {
    #[command(flatten)]
    ledger: LedgerFile,
    #[command(flatten)]
    pools: Pools,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Created {
    version: u32,
    /// The file of the ledger.
    ledger: String,
    /// Names of the pools in the ledger.
    pools: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Resize {
    #[command(flatten)]
    pools: Pools,
    #[command(flatten)]
    ledger: LedgerFile,
    /// Add this network to the ledger; may be repeated
    #[arg(long = "add-network", value_name = "NETWORK")]
    added: Vec<String>,
    /// Rename a pool of the ledger; may be repeated
    ///
    /// Without this option, a rename is detected if only one pool of the ledger matches.
    #[arg(long = "rename", value_name = "OLD=NEW", value_parser = rename)]
    renames: Vec<Rename>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Metrics {
    #[command(flatten)]
    pools: Pools,
    #[command(flatten)]
    ledger: LedgerFile,
    /// Write to this file atomically, for textfile collectors
    #[arg(short, long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(output_path))]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckedPools {
    version: u32,
    pools: Vec<CheckedPool>,
    diagnostics: Vec<CheckedDiagnostic>,
    overlaps: Vec<CheckedOverlap>,
    /// Whether further overlaps were left out.
    overlaps_cut: bool,
}

#[derive(Serialize)]
struct CheckedPool {
    cluster: Option<String>,
    name: String,
    network: String,
    interface: String,
    gateways: Vec<IpAddr>,
    nameservers: Vec<IpAddr>,
    /// Settings other than the gateways and the name servers.
    #[serde(flatten)]
    settings: SettingsSpec,
    /// Whether another program chooses the addresses.
    external: bool,
    families: Vec<CheckedFamily>,
}

#[derive(Serialize)]
struct CheckedFamily {
    family: String,
    /// Prefix length of the first subnet.
    prefix: u8,
    /// The subnets, if the pool has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subnets: Vec<CheckedSubnet>,
    ranges: Vec<String>,
    total: u128,
    /// Number of reserved addresses by reason.
    reserved: BTreeMap<String, u128>,
    allocatable: u128,
}

#[derive(Serialize)]
struct CheckedSubnet {
    prefix: u8,
    ranges: Vec<String>,
    #[serde(flatten)]
    settings: SettingsSpec,
}

// === impl CheckedSubnet ===

impl CheckedSubnet {
    fn new(subnet: &Subnet) -> Self {
        let ranges = subnet.ranges().iter().map(ToString::to_string).collect();
        Self { prefix: subnet.prefix(), ranges, settings: subnet.settings().written() }
    }
}

#[derive(Serialize)]
struct CheckedDiagnostic {
    file: String,
    #[serde(flatten)]
    diagnostic: Diagnostic,
}

#[derive(Serialize)]
struct CheckedOverlap {
    pools: [String; 2],
    network: String,
    addresses: Vec<String>,
}

impl CheckedPool {
    /// Describes a pool. `on_network` has the reserved addresses of all pools on the same network.
    fn new(pool: &Pool, on_network: &ReservedAddresses) -> Self {
        let families = pool.spaces().filter_map(|space| {
            let count = pool.count(space.family())?;
            let own = count.reserved.iter().map(|(why, count)| (why.to_string(), *count));
            let others = on_network.of_others(pool, space.family());
            let by_others: u128 = others.iter().map(|(_, count)| count).sum();
            let others = others.iter().map(|(reserved, count)| (reserved.of(pool.name()), *count));
            Some(CheckedFamily {
                family: space.family().to_string(),
                prefix: space.subnets().first().map_or(0, Subnet::prefix),
                subnets: if pool.has_subnets() {
                    space.subnets().iter().map(CheckedSubnet::new).collect()
                } else {
                    Vec::new()
                },
                ranges: space.ranges().iter().map(ToString::to_string).collect(),
                total: count.total,
                reserved: own.chain(others).collect(),
                allocatable: count.allocatable - by_others,
            })
        });
        Self {
            cluster: pool.cluster().map(str::to_owned),
            name: pool.name().to_owned(),
            network: pool.network().to_owned(),
            interface: pool.interface().to_string(),
            gateways: pool.settings().gateways.clone(),
            nameservers: pool.settings().nameservers.clone(),
            settings: pool.settings().further(),
            external: pool.is_external(),
            families: families.collect(),
        }
    }
}

pub(crate) fn pool_check(args: PoolCheck, log: &Logger) -> Result<ExitCode> {
    let mut read = PoolFiles::read(&args.files, args.template.as_deref(), log)?;
    if let Some(path) = &args.template {
        let unread = std::mem::take(&mut read.unread);
        read.diagnostics.extend(unread.into_iter().map(|diagnostic| (path.clone(), diagnostic)));
    }
    let overlaps = pool::overlaps(&read.pools);
    let is_right = read.errors == 0 && overlaps.kept.is_empty();
    let mut by_network: BTreeMap<&str, Vec<&Pool>> = BTreeMap::new();
    for pool in &read.pools {
        by_network.entry(pool.network()).or_default().push(pool);
    }
    let reserved: BTreeMap<&str, ReservedAddresses> =
        by_network.into_iter().map(|(network, pools)| (network, ReservedAddresses::of(pools))).collect();
    let pools: Vec<CheckedPool> =
        read.pools.iter().map(|pool| CheckedPool::new(pool, &reserved[pool.network()])).collect();
    if args.json {
        let file = |path: &Path| path.display().to_string();
        let diagnostic = |(path, diagnostic): &(PathBuf, Diagnostic)| CheckedDiagnostic {
            file: file(path),
            diagnostic: diagnostic.clone(),
        };
        print_json(&CheckedPools {
            version: VERSION,
            pools,
            diagnostics: read.diagnostics.iter().map(diagnostic).collect(),
            overlaps: overlaps
                .kept
                .iter()
                .map(|overlap| CheckedOverlap {
                    pools: overlap.pools.map(Pool::title),
                    network: overlap.pools[0].network().to_owned(),
                    addresses: overlap.addresses.ranges().iter().map(ToString::to_string).collect(),
                })
                .collect(),
            overlaps_cut: overlaps.is_cut,
        })?;
    } else {
        let head = ["POOL", "NETWORK", "INTERFACE", "FAMILY", "PREFIX", "TOTAL", "ALLOCATABLE", "RESERVED"];
        let mut rows = Vec::new();
        for (pool, checked) in read.pools.iter().zip(pools) {
            if checked.external {
                let [none, title] = ["-".to_owned(), pool.title()];
                let (network, interface) = (checked.network.clone(), checked.interface.clone());
                let why = "another program chooses the addresses".to_owned();
                rows.push([title, network, interface, none.clone(), none.clone(), none.clone(), none, why]);
            }
            for family in checked.families {
                let reasons = family.reserved.iter().map(|(why, count)| format!("{count} {why}"));
                let reasons = reasons.collect::<Vec<_>>().join(", ");
                rows.push([
                    pool.title(),
                    checked.network.clone(),
                    checked.interface.clone(),
                    family.family,
                    match family.subnets.as_slice() {
                        [] => format!("/{}", family.prefix),
                        all => all.iter().map(|subnet| format!("/{}", subnet.prefix)).collect::<Vec<_>>().join(" "),
                    },
                    family.total.to_string(),
                    family.allocatable.to_string(),
                    if reasons.is_empty() { "-".to_owned() } else { reasons },
                ]);
            }
        }
        print(&table(head, &rows))?;
        read.tell();
        tell_overlaps(&overlaps);
    }
    Ok(exit_code(is_right))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResizedDocument {
    version: u32,
    pools: Vec<ResizedPool>,
    renamed: Vec<Rename>,
    /// Leases with a new prefix length. Their machines need a new document.
    prefix_changed: Vec<Allocation>,
    outside: Vec<Allocation>,
}

#[derive(Serialize)]
struct ResizedPool {
    cluster: Option<String>,
    name: String,
    families: Vec<Usage>,
}

/// Parses the old and the new name of a pool, such as `namespace/name=namespace/name`. A GlobalStaticIPPool has a name
/// without a namespace.
fn rename(text: &str) -> Result<Rename, &'static str> {
    let (old, new) = text.split_once('=').ok_or("expected OLD=NEW, each namespace/name")?;
    let pool = |text: &str| object_name(text).or_else(|_| Ok(named(text)?.to_string()));
    Ok(Rename { old: pool(old)?, new: pool(new)? })
}

pub(crate) fn init(args: Init, log: &Logger) -> Result<ExitCode> {
    let pools = args.pools.read_whole(log)?.pools;
    let names = pools.iter().map(Pool::title).collect();
    args.ledger.create(pools, log)?;
    if args.json {
        let ledger = args.ledger.ledger.display().to_string();
        print_json(&Created { version: VERSION, ledger, pools: names })?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn resize(args: Resize, log: &Logger) -> Result<ExitCode> {
    let ServedPools { pools, deleted, is_whole, .. } = args.pools.read(log)?;
    let mut registry = args.ledger.open_for_more(&args.added, pools.clone(), log)?;
    registry.suspend(deleted);
    let (now, growth) = (Timestamp::now(), registry.growth());
    let row = |pool: &Pool, usage: &Usage| {
        let counts = Count::OF_ADDRESSES.map(|count| usage.number(count).to_string());
        with_pool([pool.title(), usage.family.to_string()], counts)
    };
    let Resized { renamed, prefix_changed, outside, .. } = registry.resize(pools.clone(), &args.renames, now)?;
    if registry.growth() > growth {
        // An earlier rebuild could not reserve these addresses.
        say(format_args!(
            "note: new addresses, expected `glowplugctl rebuild` before the next claim if machines may use them"
        ));
    }
    let (mut resized, mut rows) = (Vec::new(), Vec::new());
    let mut usage = registry.state()?.usage(now);
    for pool in pools {
        let PoolUsage { families, .. } = usage.remove(pool.name()).unwrap_or_default();
        rows.extend(families.iter().map(|usage| row(&pool, usage)));
        let (cluster, name) = (pool.cluster().map(str::to_owned), pool.name().to_owned());
        resized.push(ResizedPool { cluster, name, families });
    }
    if args.json {
        let document = ResizedDocument { version: VERSION, pools: resized, renamed, prefix_changed, outside };
        print_json(&document)?;
        return Ok(exit_code(is_whole));
    }
    let renamed: Vec<_> = renamed.into_iter().map(|Rename { old, new }| [old, new]).collect();
    let head = with_pool(["POOL", "FAMILY"], Count::OF_ADDRESSES.map(Count::head));
    print(&sections([
        table(head, &rows),
        table(["RENAMED", "NEW NAME"], &renamed),
        allocations_table("PREFIX CHANGED", &prefix_changed),
        allocations_table(Count::Outside.head(), &outside),
    ]))?;
    Ok(exit_code(is_whole))
}

/// Makes a table row: the name and the family of a pool, then its counts.
fn with_pool<T>([pool, family]: [T; 2], counts: [T; 10]) -> [T; 12] {
    let [total, allocated, reserved, excluded, by_record, by_report, reuse_delay, free, conflicts, outside] = counts;
    [pool, family, total, allocated, reserved, excluded, by_record, by_report, reuse_delay, free, conflicts, outside]
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Translated {
    version: u32,
    node_pools: Vec<TranslatedPool>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TranslatedPool {
    name: String,
    acpi_index: Option<u16>,
    bootstrap_network_config: BootstrapNetworkConfig,
}

pub(crate) fn nodepool(args: Nodepool, log: &Logger) -> Result<ExitCode> {
    let read = PoolFiles::read(&args.files, None, log)?;
    read.tell();
    if read.errors > 0 {
        bail!(Reported);
    }
    if let Some(pool) = read.pools.iter().find(|pool| pool.is_external() || !pool.serves_machines()) {
        bail!("pool {}: no addresses for machines, expected a NodePool or a StaticIPPool with addresses", pool.title());
    }
    let mut node_pools = Vec::new();
    for (spec, pool) in read.specs.iter().zip(&read.pools) {
        let MachineTemplate { acpi_index, bootstrap_network_config } = MachineTemplate::new(spec, pool)?;
        node_pools.push(TranslatedPool { name: pool.title(), acpi_index, bootstrap_network_config });
    }
    print_json(&Translated { version: VERSION, node_pools })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn metrics(args: Metrics, log: &Logger) -> Result<ExitCode> {
    let ServedPools { pools, is_whole, .. } = args.pools.read(log)?;
    let mut registry = args.ledger.open_read_only(pools, log)?;
    let allocator = registry.state()?;
    let text = metrics::text(allocator, &allocator.usage(Timestamp::now()), &BTreeMap::new());
    match &args.output {
        Some(path) => write_in_one_step(path, text.as_bytes(), log)?,
        None => print(&text)?,
    }
    Ok(exit_code(is_whole))
}

//! Shared inputs of commands: pools, ledgers, machines, files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::error::ErrorKind;
use clap::{ArgGroup, Args, CommandFactory};
use glowplug::diagnostic::{Diagnostic, Diagnostics, Severity};
use glowplug::formats::meta_data::is_uuid;
use glowplug::formats::value::{MAX_BYTES, MAX_LIST_BYTES};
use glowplug::host::Timestamp;
use glowplug::host::address::parse_interface_address;
use glowplug::host::claim::{Machine, is_object_name};
use glowplug::host::expand::Template;
use glowplug::host::ledger::{LedgerError, OpenError, SqliteLedger};
use glowplug::host::pool::{self, Overlap, Overlaps, Pool, PoolSpec, TemplateFacts};
use glowplug::host::pool_object;
use glowplug::host::pools_file::read_pools;
use glowplug::host::records::{Inventory, KubevirtMachine, Objects};
use glowplug::host::registry::Registry;
use glowplug::network::{InterfaceName, parse_mac_address};
use ipnetwork::IpNetwork;
use pnet_base::MacAddr;
use slog::{Logger, debug};

use crate::Cli;
use crate::Reported;
use crate::output::{check_directory, say};

/// Number of claims or releases in one write to the ledger: large enough to be fast, and small enough that other
/// processes get a turn.
pub(crate) const BATCH: usize = 512;

/// The pool files, and the template that their pools use.
#[derive(Args)]
pub(crate) struct Pools {
    /// Pool file, YAML or JSON; may be repeated
    ///
    /// The file has a pool, a list of pools, NodePools with a bootstrapNetworkConfig, or pools of a cluster, as
    /// `kubectl get staticippools,globalstaticippools -A -o yaml` prints them. YAML may have several documents.
    #[arg(long = "pool", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Template of the machines' network_data.json
    ///
    /// The template may set prefix lengths. The addresses in the template are reserved.
    #[arg(long, value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
}

/// The file in which allocations are recorded.
#[derive(Args)]
pub(crate) struct LedgerFile {
    /// Ledger file, on a local disk
    #[arg(long, value_name = "FILE")]
    pub(crate) ledger: PathBuf,
}

/// The machines to which a command applies.
#[derive(Args)]
#[command(group(ArgGroup::new("machines").args(["names", "lists"]).required(true)))]
pub(crate) struct Machines {
    /// KubevirtMachine, as namespace/name
    #[arg(value_name = "MACHINE", value_parser = named, requires = "uids")]
    pub(crate) names: Vec<Named>,
    /// UID of each machine, in the same order
    ///
    /// This is metadata.uid of its KubevirtMachine.
    #[arg(long = "uid", value_name = "UID", value_parser = uid, requires = "names", conflicts_with = "lists")]
    pub(crate) uids: Vec<String>,
    /// JSON list of KubevirtMachines; - is standard input
    ///
    /// `kubectl get kubevirtmachines,vm,vmi -A -o json` prints such a list. The VirtualMachines and VirtualMachineInstances show
    /// which addresses are in use.
    #[arg(id = "lists", long = "machines", value_name = "FILE|-", num_args = 1..)]
    pub(crate) lists: Vec<PathBuf>,
}

/// Lists of machine objects.
#[derive(Args)]
pub(crate) struct Lists {
    /// JSON list of machine objects; - is standard input
    ///
    /// KubevirtMachines, VirtualMachines and VirtualMachineInstances of all namespaces, as `kubectl get -A -o json` prints
    /// them, in one file or in one file for each kind.
    #[arg(id = "lists", long = "machines", value_name = "FILE|-", num_args = 1.., required = true)]
    pub(crate) lists: Vec<PathBuf>,
}

/// Namespace and name. Written as `namespace/name`.
#[derive(Clone)]
pub(crate) struct Named {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The content of a set of pool files.
#[derive(Default)]
pub(crate) struct PoolFiles {
    pub(crate) specs: Vec<PoolSpec>,
    /// Pools of the specs without an error, in the order of the specs.
    pub(crate) pools: Vec<Pool>,
    pub(crate) diagnostics: Vec<(PathBuf, Diagnostic)>,
    pub(crate) errors: usize,
    /// Warnings about links of the template that afterburn does not read.
    pub(crate) unread: Vec<Diagnostic>,
}

/// The pools of files: those that allocate addresses, and those that are being deleted.
pub(crate) struct ServedPools {
    pub(crate) pools: Vec<Pool>,
    /// Valid pools of the files whose objects are being deleted.
    pub(crate) leaving: Vec<Pool>,
    /// Names of all pools of the files whose objects are being deleted, valid or not.
    pub(crate) deleted: BTreeSet<String>,
    /// Names of the pools of the files that have an error or overlap an older pool.
    pub(crate) left_out: BTreeSet<String>,
    /// Whether `pools` has every pool of the files that is not being deleted.
    pub(crate) is_whole: bool,
}

pub(crate) fn named(text: &str) -> Result<Named, &'static str> {
    match text.split_once('/') {
        Some((namespace, name)) if is_object_name(namespace) && is_object_name(name) => {
            Ok(Named { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("expected namespace/name of lower case letters, digits, '-' and '.'"),
    }
}

pub(crate) fn uid(text: &str) -> Result<String, &'static str> {
    if (1..=128).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err("expected metadata.uid of the machine")
    }
}

pub(crate) fn object_name(text: &str) -> Result<String, &'static str> {
    is_object_name(text).then(|| text.to_owned()).ok_or("expected lower case letters, digits, '-' and '.'")
}

pub(crate) fn uuid(text: &str) -> Result<String, &'static str> {
    let is_right = is_uuid(text).then(|| text.to_ascii_lowercase());
    is_right.ok_or("expected a UUID, such as 5d307ca9-b3ef-428c-8861-06e72d69f223")
}

pub(crate) fn public_key(text: &str) -> Result<String, &'static str> {
    let is_line = |line: &str| line.split_whitespace().count() >= 2 && !line.contains(char::is_control);
    let is_right = !text.is_empty() && text.lines().all(is_line);
    is_right.then(|| text.to_owned()).ok_or("expected a line of authorized_keys, such as ssh-ed25519 AAAA… core")
}

pub(crate) fn interface(text: &str) -> Result<InterfaceName, String> {
    text.parse().map_err(|_| format!("expected {}", InterfaceName::EXPECTED))
}

pub(crate) fn mac_address(text: &str) -> Result<MacAddr, &'static str> {
    parse_mac_address(text).ok_or("expected the MAC address of a NIC, such as 52:54:00:12:34:56")
}

pub(crate) fn with_prefix(text: &str) -> Result<IpNetwork, String> {
    match parse_interface_address(text).map_err(|error| error.to_string())? {
        (address, Some(prefix)) => IpNetwork::new(address, prefix).map_err(|error| error.to_string()),
        (_, None) => Err("expected an address with its prefix length, such as 10.0.0.5/24".to_owned()),
    }
}

/// Ends the program as clap does after an error in the command line of a command. Prints the usage of this command.
pub(crate) fn usage_error(command: &str, problem: impl fmt::Display) -> ! {
    let mut program = Cli::command();
    program.build();
    let command = program.find_subcommand(command).cloned();
    command.unwrap_or(program).error(ErrorKind::ArgumentConflict, problem).exit()
}

/// Reads a file of at most `limit` bytes; `-` is standard input.
pub(crate) fn read(path: &Path, limit: usize, log: &Logger) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let reading = || format!("reading {}", path.display());
    // One more byte shows that the file is too large.
    open(path)?.take(limit as u64 + 1).read_to_end(&mut content).with_context(reading)?;
    if content.len() > limit {
        bail!("{}: too large, expected at most {limit} bytes", path.display());
    }
    debug!(log, "read file"; "path" => %path.display(), "bytes" => content.len());
    Ok(content)
}

pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let file = File::open(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(Box::new(file))
}

pub(crate) fn read_template(path: &Path, log: &Logger) -> Result<Template> {
    Template::parse(&read(path, MAX_BYTES, log)?).with_context(|| path.display().to_string())
}

impl PoolFiles {
    pub(crate) fn read(files: &[PathBuf], template_file: Option<&Path>, log: &Logger) -> Result<Self> {
        let template = template_file.map(|path| read_template(path, log)).transpose()?;
        let unread = template.as_ref().map(Template::unread_by_afterburn).unwrap_or_default();
        let (mut read, mut names) = (Self { unread, ..Self::default() }, BTreeSet::new());
        for path in files {
            let (specs, mut diagnostics) = read_pools(&self::read(path, MAX_LIST_BYTES, log)?);
            debug!(log, "read pools"; "path" => %path.display(), "pools" => specs.len(), "errors" => diagnostics.errors());
            for spec in &specs {
                let facts = match (&spec.template, &template) {
                    (Some(_), _) => pool_object::template_facts(spec, &mut diagnostics),
                    (None, Some(template)) => in_template(template_facts(template, spec), template_file)?,
                    (None, None) => TemplateFacts::default(),
                };
                // `names` has the pools of earlier files. `read_pools` has already reported pools of the same name in
                // this file.
                let is_second = names.contains(&spec.full_name());
                let spec = PoolSpec { has_errors: spec.has_errors || is_second, ..spec.clone() };
                read.pools.extend(Pool::new(&spec, &facts, &mut diagnostics));
                if is_second {
                    let path = if spec.path.is_empty() { "name".to_owned() } else { format!("{}.name", spec.path) };
                    let (problem, expected) = ("second pool of that name", "another name");
                    diagnostics.push(Diagnostic::error(path, problem, spec.full_name(), expected));
                }
            }
            names.extend(specs.iter().map(PoolSpec::full_name));
            read.specs.extend(specs);
            read.errors += diagnostics.errors();
            read.take(path, diagnostics);
        }
        Ok(read)
    }

    pub(crate) fn take(&mut self, path: &Path, diagnostics: Diagnostics) {
        let further = diagnostics.further();
        self.diagnostics.extend(diagnostics.into_parts().0.into_iter().map(|diagnostic| (path.to_owned(), diagnostic)));
        if further > 0 {
            let (problem, expected) = (format!("{further} further diagnostics"), "fewer");
            let diagnostic = Diagnostic::without_value(Severity::Warning, "document", &problem, expected);
            self.diagnostics.push((path.to_owned(), diagnostic));
        }
    }

    pub(crate) fn tell(&self) {
        for (path, diagnostic) in &self.diagnostics {
            say(format_args!("{}: {}: {diagnostic}", diagnostic.severity, path.display()));
        }
    }

    /// Reads pool files, and returns the pools that allocate addresses. Leaves out each pool with an error, and the
    /// younger of two overlapping pools. Reports the pools that are left out.
    pub(crate) fn served(files: &[PathBuf], template: Option<&Path>, log: &Logger) -> Result<ServedPools> {
        let read = Self::read(files, template, log)?;
        read.tell();
        let created: BTreeMap<String, Timestamp> =
            read.specs.iter().filter_map(|spec| Some((spec.full_name(), spec.created?))).collect();
        let deleted: BTreeSet<String> =
            read.specs.iter().filter(|spec| spec.is_deleted).map(PoolSpec::full_name).collect();
        let (leaving, mut pools): (Vec<Pool>, Vec<Pool>) =
            read.pools.into_iter().partition(|pool| deleted.contains(pool.name()));
        for pool in &leaving {
            say(format_args!("note: pool {} is not served, since it is being deleted", pool.title()));
        }
        let count = pools.len();
        // Older pools come first. A pool without a creation time, such as a plain pool of a file, counts as the oldest.
        pools.sort_by_key(|pool| created.get(pool.name()).copied().unwrap_or_default());
        loop {
            let overlaps = pool::overlaps(&pools);
            tell_overlaps(&overlaps);
            let mut left_out: BTreeSet<&str> = BTreeSet::new();
            for Overlap { pools: [older, younger], .. } in &overlaps.kept {
                if !left_out.contains(older.name()) && left_out.insert(younger.name()) {
                    let (younger, older) = (younger.title(), older.title());
                    say(format_args!("error: pool {younger} is not served, since {older} is older"));
                }
            }
            if left_out.is_empty() {
                break;
            }
            let left_out: BTreeSet<String> = left_out.into_iter().map(str::to_owned).collect();
            pools.retain(|pool| !left_out.contains(pool.name()));
        }
        if pools.is_empty() {
            bail!(Reported);
        }
        let is_whole = read.errors == 0 && pools.len() == count;
        // Messages and tables use the order of the files.
        let order: BTreeMap<String, usize> =
            read.specs.iter().enumerate().map(|(at, spec)| (spec.full_name(), at)).collect();
        pools.sort_by_key(|pool| order.get(pool.name()).copied());
        let served: BTreeSet<&str> = pools.iter().map(Pool::name).collect();
        let is_left_out = |name: &String| !served.contains(name.as_str()) && !deleted.contains(name);
        let left_out = order.into_keys().filter(is_left_out).collect();
        Ok(ServedPools { pools, leaving, deleted, left_out, is_whole })
    }
}

impl Pools {
    /// Reads the pools for commands that are unsafe if a pool is missing. Fails if any pool of the files cannot be
    /// used.
    pub(crate) fn read_whole(&self, log: &Logger) -> Result<ServedPools> {
        let served = self.read(log)?;
        if served.is_whole { Ok(served) } else { Err(Reported.into()) }
    }

    pub(crate) fn read(&self, log: &Logger) -> Result<ServedPools> {
        PoolFiles::served(&self.files, self.template.as_deref(), log)
    }
}

/// Adds the path of the template file to an error.
pub(crate) fn in_template<T>(result: Result<T>, file: Option<&Path>) -> Result<T> {
    match file {
        Some(file) => result.with_context(|| file.display().to_string()),
        None => result,
    }
}

/// Returns the settings of a template for the interface of a pool. `pool check` reports the warnings about the template
/// itself only once, not for each pool.
fn template_facts(template: &Template, spec: &PoolSpec) -> Result<TemplateFacts> {
    // The check of the pool reports an invalid interface name.
    let interface = spec.interface.as_deref().unwrap_or(Pool::DEFAULT_INTERFACE).parse();
    let facts = interface.map_or_else(|_| Ok(TemplateFacts::default()), |interface| template.facts(&interface))?;
    Ok(TemplateFacts { unread: Vec::new(), ..facts })
}

pub(crate) fn tell_overlaps(overlaps: &Overlaps<'_>) {
    for overlap in &overlaps.kept {
        say(format_args!("error: {overlap}"));
    }
    if overlaps.is_cut {
        say(format_args!("error: further overlaps are not shown"));
    }
}

/// Time at which lists were fetched: the oldest modification time of their files.
///
/// # Errors
///
/// A list is a pipe. A pipe has no modification time, so an old list could look new.
pub(crate) fn fetched(lists: &[PathBuf]) -> Result<Timestamp> {
    let mut oldest = Timestamp::now();
    for path in lists {
        let metadata = if path == Path::new("-") {
            File::from(io::stdin().as_fd().try_clone_to_owned()?).metadata()
        } else {
            path.metadata()
        };
        let metadata = metadata.with_context(|| format!("reading {}", path.display()))?;
        if !metadata.is_file() {
            bail!(
                "{}: list from a pipe, expected a file: its modification time counts as the time of the fetch",
                path.display()
            );
        }
        oldest = oldest.min(metadata.modified()?.try_into()?);
    }
    Ok(oldest)
}

pub(crate) fn read_objects(lists: &[PathBuf], log: &Logger) -> Result<(Objects, usize)> {
    let (mut objects, mut count) = (Objects::default(), 0);
    for path in lists {
        let name = path.display().to_string();
        let of_list = objects.read(&name, open(path)?).with_context(|| format!("reading {name}"))?;
        debug!(log, "read objects"; "path" => %path.display(), "objects" => of_list);
        count += of_list;
    }
    Ok((objects, count))
}

/// The machines to which a command applies.
pub(crate) struct ReadMachines {
    pub(crate) machines: Vec<KubevirtMachine>,
    /// Content of the lists. `None` without lists.
    pub(crate) inventory: Option<Inventory>,
}

impl ReadMachines {
    /// Whether a part of the lists cannot be read.
    pub(crate) fn has_diagnostics(&self) -> bool {
        self.inventory.as_ref().is_some_and(|inventory| !inventory.diagnostics.is_empty())
    }
}

impl Machines {
    /// Reads the machines of the command with this name.
    pub(crate) fn read(&self, command: &str, log: &Logger) -> Result<ReadMachines> {
        if self.names.len() != self.uids.len() {
            let (names, uids) = (self.names.len(), self.uids.len());
            let problem = format_args!("{names} machines and {uids} of --uid, expected one for each machine");
            usage_error(command, problem);
        }
        if self.lists.is_empty() {
            let named = self.names.iter().cloned().zip(self.uids.iter().cloned());
            let machine = |(Named { namespace, name }, uid)| {
                let machine = Machine::new(namespace, name, uid);
                KubevirtMachine { machine, created: None, is_being_deleted: false, node_pool: None }
            };
            return Ok(ReadMachines { machines: named.map(machine).collect(), inventory: None });
        }
        let (objects, count) = read_objects(&self.lists, log)?;
        let machines: Vec<KubevirtMachine> = objects.machines().collect();
        let inventory = objects.inventory();
        for diagnostic in &inventory.diagnostics {
            say(format_args!("error: {diagnostic}"));
        }
        if count == 0 {
            say(format_args!("warning: no objects in the lists, nothing to do: check the namespace"));
        } else if machines.is_empty() && inventory.diagnostics.is_empty() {
            // The other formats of `claim`, such as `apply`, write a record on a KubevirtMachine. These VirtualMachines
            // have none.
            let options = match command {
                "claim" => {
                    "--uid and --format network-data, then write the addresses into annotations of the VirtualMachines (README.md)"
                }
                _ => "--uid",
            };
            let instead = format_args!("to use VirtualMachines, give their names as arguments, with {options}");
            say(format_args!("warning: no KubevirtMachine in the lists, nothing to do: {instead}"));
        }
        Ok(ReadMachines { machines, inventory: Some(inventory) })
    }
}

/// How a ledger is opened: one of the functions of [`SqliteLedger`].
type Open = fn(&Path) -> Result<SqliteLedger, OpenError>;

impl LedgerFile {
    /// Opens the ledger. The given pools must match the pools of the ledger. Pools that are being deleted allocate
    /// nothing.
    ///
    /// No address is open yet: see [`Registry::open`]. Only `claim` allocates addresses. `claim` opens them
    /// after it has adopted the records of its lists.
    pub(crate) fn open(
        &self,
        pools: &[Pool],
        deleted: BTreeSet<String>,
        log: &Logger,
    ) -> Result<Registry<SqliteLedger>> {
        let mut registry = self.registry(SqliteLedger::open, pools, log)?;
        registry.suspend(deleted);
        Ok(registry)
    }

    /// Creates the ledger with the pools.
    pub(crate) fn create(&self, pools: Vec<Pool>, log: &Logger) -> Result<Registry<SqliteLedger>> {
        check_directory(&self.ledger).with_context(|| format!("opening {}", self.ledger.display()))?;
        let mut registry = self.registry(SqliteLedger::create, &[], log)?;
        registry.resize(pools, &[], Timestamp::now())?;
        Ok(registry)
    }

    /// Opens the ledger with read permission only.
    pub(crate) fn open_read_only(&self, pools: Vec<Pool>, log: &Logger) -> Result<Registry<SqliteLedger>> {
        self.registry(SqliteLedger::open_read_only, &pools, log)
    }

    /// Opens the ledger for a change of pools. A new network must be among `added`: a misspelt network name would count
    /// as another network, and the addresses of the network would be allocated twice.
    pub(crate) fn open_for_more(
        &self,
        added: &[String],
        pools: Vec<Pool>,
        log: &Logger,
    ) -> Result<Registry<SqliteLedger>> {
        let given: BTreeSet<&str> = pools.iter().map(|pool| pool.network()).collect();
        let list = |networks: &BTreeSet<&str>| networks.iter().copied().collect::<Vec<_>>().join(", ");
        if let Some(network) = added.iter().find(|network| !given.contains(network.as_str())) {
            bail!("--add-network {network}: no pool of that network, expected one of {}", list(&given));
        }
        let mut registry = self.registry(SqliteLedger::open, &[], log)?;
        let known: BTreeSet<&str> = registry.state()?.pools().map(|pool| pool.network()).collect();
        let is_new = |network: &&&str| !known.contains(**network) && !added.iter().any(|added| added == **network);
        let lacks: BTreeSet<&str> = given.iter().filter(is_new).copied().collect();
        if !lacks.is_empty() {
            let options: String = lacks.iter().map(|network| format!(" --add-network {network}")).collect();
            let (path, known, lacks) = (self.ledger.display(), list(&known), list(&lacks));
            bail!(
                "{path}: a ledger for {known}, not for {lacks}, expected pools of its networks, or \
                 `glowplugctl resize{options}` with these pools"
            );
        }
        Ok(registry)
    }

    /// Opens only the ledger file, without its pools, with read permission only.
    pub(crate) fn open_alone(&self, log: &Logger) -> Result<SqliteLedger> {
        self.file(SqliteLedger::open_read_only, log)
    }

    fn file(&self, open: Open, log: &Logger) -> Result<SqliteLedger> {
        let ledger = open(&self.ledger).map_err(|error| match &error {
            OpenError::Absent(_) => anyhow!("{error}, expected one that `glowplugctl init` created"),
            OpenError::NotALedger(_) => anyhow!("{error}, expected a file that `glowplugctl init` created"),
            OpenError::Damaged(_, what) => self.damaged(what),
            _ => error.into(),
        })?;
        debug!(log, "opened ledger"; "path" => %self.ledger.display());
        Ok(ledger)
    }

    fn damaged(&self, what: &str) -> Error {
        // SQLite's other files are beside the file to which a link leads.
        let file = self.ledger.canonicalize().ok().filter(|_| self.ledger.is_symlink());
        let (path, file) = (self.ledger.display(), file.as_ref().unwrap_or(&self.ledger).display());
        anyhow!(
            "{path}: damaged ({what}), expected a backup in its place, without {file}-wal and {file}-shm, and then \
             `glowplugctl rebuild`"
        )
    }

    /// Opens the file, and compares the given pools with the pools of the ledger.
    fn registry(&self, open: Open, pools: &[Pool], log: &Logger) -> Result<Registry<SqliteLedger>> {
        let mut registry = Registry::open(self.file(open, log)?).map_err(|error| match &error {
            LedgerError::Damaged(what) => self.damaged(what),
            _ => error.into(),
        })?;
        let state = registry.state()?;
        debug!(log, "read ledger"; "pools" => state.pools().count(), "leases" => state.leases().count());
        for pool in pools {
            let name = pool.title();
            match state.pool(pool.name()).map(|known| pool.differences(known)) {
                Some(differences) => {
                    if let Some(difference) = differences.first() {
                        bail!(
                            "pool {name} differs from the ledger: {difference}; `glowplugctl resize` changes the ledger"
                        );
                    }
                }
                None => bail!("pool {name} is not in the ledger; `glowplugctl resize` adds it"),
            }
        }
        Ok(registry)
    }
}

//! Measures the host and prints a table: `make bench`. A row may have a limit, or a value of the same run to compare
//! with.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use glowplug::host::Timestamp;
use glowplug::host::claim::{Allocation, Claim, Claimant, Machine, Record, Request};
use glowplug::host::expand::{Grant, Template};
use glowplug::host::free_ranges::FreeRanges;
use glowplug::host::image::ConfigDrive;
use glowplug::host::ledger::{MemoryLedger, SqliteLedger};
use glowplug::host::may_record::Source;
use glowplug::host::pool::{Namespaces, Pool, TemplateFacts, overlaps};
use glowplug::host::pools_file::read_pools;
use glowplug::host::records::Objects;
use glowplug::host::registry::Registry;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rusqlite::Connection;

use table::row;

mod table;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    // With this variable, the process is one of several processes that claim from one ledger.
    if let Ok(number) = std::env::var("GLOWPLUG_BENCH_CLAIMER") {
        return claimer(Path::new(&std::env::var("GLOWPLUG_BENCH_LEDGER")?), number.parse()?);
    }
    free_ranges()?;
    for holders in [1_000, 10_000, 60_000, 250_000] {
        allocator(holders)?;
    }
    rebuild()?;
    adoption()?;
    for machines in [20_000, 100_000] {
        list(machines)?;
    }
    documents()?;
    pools()?;
    for processes in [1, 8] {
        durable(processes)?;
    }
    Ok(())
}

/// CPU time of this process, to measure work that does not wait. Other running programs change the elapsed time, but
/// not the CPU time.
struct Cpu(Duration);

impl Cpu {
    fn now() -> Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let micros = (usage.user_time() + usage.system_time()).num_microseconds();
        Ok(Self(Duration::from_micros(u64::try_from(micros)?)))
    }

    fn elapsed(&self) -> Result<Duration> {
        Ok(Self::now()?.0 - self.0)
    }
}

/// A random number generator that gives the same numbers in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Measures the time to take a number and return it, once with the first numbers in use, and once with every second
/// number in use.
fn free_ranges() -> Result<()> {
    for in_use in [1_000_usize, 10_000, 60_000, 250_000] {
        let mut dense = FreeRanges::default();
        dense.add_range(0, u128::from(u64::MAX))?;
        let mut held: Vec<u128> = (0..in_use).filter_map(|_| dense.take_lowest()).collect();
        pair(&format!("free ranges, {in_use} in use, dense"), &mut dense, &mut held)?;

        let mut holes = FreeRanges::default();
        holes.add_range(0, u128::from(u64::MAX))?;
        let mut held: Vec<u128> = (0..in_use as u128).map(|number| 2 * number + 1).collect();
        for &number in &held {
            holes.take(number)?;
        }
        pair(&format!("free ranges, {in_use} in use, every second"), &mut holes, &mut held)?;
    }
    Ok(())
}

fn pair(what: &str, free: &mut FreeRanges, held: &mut [u128]) -> Result<()> {
    let rounds: u32 = 300_000;
    // The numbers are in random order. The list itself is read from start to end, so that jumps in the list are not
    // measured.
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for at in (1..held.len()).rev() {
        held.swap(at, dice.below(at + 1));
    }
    let count = held.len();
    // Take a number and return it at once, like a controller that retries.
    let start = Cpu::now()?;
    for _ in 0..rounds {
        let number = black_box(free.take_lowest()).ok_or("full")?;
        free.add(number)?;
    }
    let lowest = start.elapsed()? / rounds;
    let start = Cpu::now()?;
    for round in 0..rounds as usize {
        let one = held[round % count];
        free.add(one)?;
        free.take(one)?;
    }
    let named = start.elapsed()? / rounds;
    // Return any number and take the lowest number, as in a cluster whose machines come and go.
    let start = Cpu::now()?;
    for round in 0..rounds as usize {
        let one = &mut held[round % count];
        free.add(*one)?;
        *one = black_box(free.take_lowest()).ok_or("full")?;
    }
    let any = start.elapsed()? / rounds;
    row(
        &format!("{what}: lowest | named | any"),
        &format!("{} | {} | {}", nanos(lowest), nanos(named), nanos(any)),
        "",
    );
    Ok(())
}

fn nanos(time: Duration) -> String {
    format!("{} ns", time.as_nanos())
}

/// Measures a claim and its release in an allocator with this many holders.
fn allocator(holders: usize) -> Result<()> {
    let before = resident()?;
    let mut allocator = in_memory()?;
    for number in 0..holders {
        allocator.claim(&claim(number), NOW)?;
    }
    let bytes = (resident()? - before) / holders;
    let (rounds, mut dice) = (100_000, Dice(0x9e37_79b9_7f4a_7c15));
    let claims: Vec<Claim> = (0..rounds).map(|_| claim(dice.below(holders))).collect();
    let start = Cpu::now()?;
    for claim in &claims {
        allocator.release(&claim.machine, NOW)?;
        black_box(allocator.claim(claim, NOW)?);
    }
    let pair = start.elapsed()? / rounds as u32;
    let again = Cpu::now()?;
    for claim in &claims {
        black_box(allocator.claim(claim, NOW)?);
    }
    let again = again.elapsed()? / rounds as u32;
    row(
        &format!("allocator, {holders} machines: release + claim"),
        &format!("{} (again: {}, {bytes} bytes each)", nanos(pair), nanos(again)),
        "at most 20000 ns",
    );
    Ok(())
}

/// Measures the adoption of records on a network with many pools, each of which serves one namespace.
fn adoption() -> Result<()> {
    let mut pools = Vec::new();
    let mut records = Vec::new();
    for at in 0..200 {
        let document = format!(
            "{{name: p{at}, network: infra/vlan10, addresses: [10.1.{at}.0/24], gateway: [10.1.255.1], \
             excludedAddresses: [10.1.{at}.9], machineNetwork: [{{cidr: 10.1.0.0/16}}]}}"
        );
        let namespace = format!("ns-{at}");
        let only = || Namespaces::only([namespace.as_str()]);
        let interface = Pool::DEFAULT_INTERFACE.parse().map_err(|_| "not an interface")?;
        pools.extend(Pool::parse(document.as_bytes()).map_err(|_| "not a pool")?);
        if let Some(pool) = pools.pop() {
            pools.push(pool.with_namespaces(only(), only()));
        }
        for last in 1..=250 {
            let machine = Machine::new(namespace.as_str(), format!("m-{last}"), format!("u-{at}-{last}"));
            records.push(Record {
                claimant: Claimant { machine, interface },
                node_pool: None,
                attachments: vec!["infra/vlan10".to_owned()],
                network: None,
                addresses: vec![format!("10.1.{at}.{last}/16").parse()?],
                source: "KubevirtMachine".to_owned(),
                kind: Source::Annotation,
            });
        }
    }
    let mut registry = Registry::open(MemoryLedger::default())?;
    registry.resize(pools, &[], NOW)?;
    let start = Cpu::now()?;
    let adoption = registry.adopt(records, NOW)?;
    registry.open_addresses(NOW)?;
    let time = start.elapsed()?;
    if (adoption.adopted, adoption.reserved.len()) != (200 * 249, 200) {
        return Err("not everything was adopted".into());
    }
    row("adoption of 50000 records, 200 pools", &millis(time), "at most 1000 ms");
    Ok(())
}

/// Measures a rebuild of a hundred thousand records in random order.
fn rebuild() -> Result<()> {
    let count = 100_000;
    let mut registry = in_memory()?;
    let claims: Vec<Claim> = (0..count).map(claim).collect();
    let mut records = Vec::new();
    for allocation in registry.claim_all(&claims, NOW)?.answers {
        let Allocation { claimant, addresses } = allocation?.remove(0);
        let source = format!("KubevirtMachine {}/{}", claimant.machine.namespace, claimant.machine.name);
        let (attachments, kind) = (Vec::new(), Source::Annotation);
        records.push(Record { claimant, node_pool: None, attachments, network: None, addresses, source, kind });
    }
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for at in (1..records.len()).rev() {
        records.swap(at, dice.below(at + 1));
    }
    let mut allocator = in_memory()?;
    let (copy, start) = (records.clone(), Cpu::now()?);
    let adoption = allocator.adopt(copy, NOW)?;
    let time = start.elapsed()?;
    if adoption.adopted != 2 * count {
        return Err("not everything was adopted".into());
    }
    row("rebuild of 100000 records, both families", &millis(time), "at most 2000 ms");

    let directory = tempfile::tempdir()?;
    let path = directory.path().join("ledger");
    let mut registry = on_disk(&path)?;
    let start = Instant::now();
    registry.adopt(records.iter().cloned(), NOW)?;
    row("  into a new SQLite ledger", &millis(start.elapsed()), "");
    let start = Instant::now();
    registry.adopt(records, NOW)?;
    row("  into one that has them", &millis(start.elapsed()), "");
    drop(registry);
    let start = Instant::now();
    black_box(Registry::open(SqliteLedger::open(&path)?)?);
    let bytes = fs::metadata(&path)?.len();
    row("  open that ledger", &format!("{} ({} MiB)", millis(start.elapsed()), bytes >> 20), "");
    Ok(())
}

/// Measures the time from a list of machines to an allocator with their addresses, and to a ledger.
///
/// The elapsed time is the smallest of three measurements, because other programs may be running.
fn list(machines: usize) -> Result<()> {
    let mut text = Vec::new();
    List::new(machines).read_to_end(&mut text)?;
    let mut least = None;
    for _ in 0..3 {
        let (start, processors) = (Instant::now(), Cpu::now()?);
        let mut objects = Objects::default();
        objects.read("machines.json", text.as_slice())?;
        let read = start.elapsed();
        let inventory = objects.inventory();
        let merged = start.elapsed();
        let mut allocator = in_memory()?;
        let adoption = allocator.adopt(inventory.records, NOW)?;
        let all = start.elapsed();
        if (adoption.adopted, adoption.mismatches.len()) != (2 * machines, 0) {
            return Err("not everything was adopted".into());
        }
        let round = [all, read, merged - read, all - merged, processors.elapsed()?];
        least = Some(least.map_or(round, |least: [Duration; 5]| least.min(round)));
    }
    let mut objects = Objects::default();
    objects.read("machines.json", text.as_slice())?;
    let records = objects.inventory().records;
    let directory = tempfile::tempdir()?;
    let mut registry = on_disk(&directory.path().join("ledger"))?;
    let start = Cpu::now()?;
    registry.adopt(records, NOW)?;
    let recorded = millis(start.elapsed()?);
    let [all, read, merged, adopted, processors] = least.ok_or("no round")?.map(millis);
    row(&format!("list of {machines} machines, {} MiB: rebuild", text.len() >> 20), &all, "");
    row("  read | merged | adopted | or into SQLite", &format!("{read} | {merged} | {adopted} | {recorded}"), "");
    row("  of both processors", &processors, if machines == 100_000 { "at most 5000 ms" } else { "" });
    Ok(())
}

/// A list of machines like the output of `kubectl get kubevirtmachines -A -o json`.
struct List {
    machine: Vec<u8>,
    /// Where `machine` contains digits of the machine's number: the position in the text, and the range of the digits
    /// in the number.
    digits: Vec<(usize, Range<usize>)>,
    count: usize,
    /// Number of the next machine.
    number: usize,
    text: Vec<u8>,
    at: usize,
}

impl List {
    fn new(count: usize) -> Self {
        let machine = include_str!("kubevirt-machine.json").trim_end().replace('\n', "\n        ");
        let numbers = [("NNNNNN", 0..6)];
        let addresses = [("AA.", 0..2), ("BB.", 2..4), ("CC", 4..6), ("AA:", 0..2), ("BB:", 2..4)];
        let times = [("M:", 4..5), ("SZ", 5..6)];
        let digits = numbers.into_iter().chain(addresses).chain(times).flat_map(|(mark, digits)| {
            let paths: Vec<usize> = machine.match_indices(mark).map(|(at, _)| at).collect();
            paths.into_iter().map(move |at| (at, digits.clone()))
        });
        let (digits, machine) = (digits.collect(), machine.into_bytes());
        let text = b"{\n    \"apiVersion\": \"v1\",\n    \"items\": [".to_vec();
        Self { machine, digits, count, number: 0, text, at: 0 }
    }

    /// Puts the text of the next machine, or the end of the list, into `text`.
    fn next(&mut self) {
        self.at = 0;
        self.text.clear();
        if self.number < self.count {
            self.text.extend_from_slice(if self.number == 0 { b"\n        " } else { b",\n        " });
            let begin = self.text.len();
            self.text.extend_from_slice(&self.machine);
            let number = format!("{:06}", self.number);
            for (at, digits) in &self.digits {
                let digits = &number.as_bytes()[digits.clone()];
                self.text[begin + at..][..digits.len()].copy_from_slice(digits);
            }
        } else if self.number == self.count {
            self.text.extend_from_slice(b"\n    ],\n    \"kind\": \"List\",\n    \"metadata\": {}\n}\n");
        }
        self.number += 1;
    }
}

impl Read for List {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.text.len() {
            self.next();
        }
        let read = (&self.text[self.at..]).read(buffer)?;
        self.at += read;
        Ok(read)
    }
}

/// Measures the time to make the network document and the config drive of an allocation.
fn documents() -> Result<()> {
    let pool = pool()?;
    let mut allocator = in_memory()?;
    let allocation = allocator.claim(&claim(0), NOW)?.remove(0);
    let template =
        br#"{"links": [{"id": "eno101", "type": "phy"}], "services": [{"type": "dns", "address": "192.0.2.1"}]}"#;
    let rounds = 2_000;
    let start = Cpu::now()?;
    let mut document = None;
    for _ in 0..rounds {
        let settings = pool.settings().clone();
        let grant = Grant { allocation: &allocation, settings, mac_address: None, is_named: true };
        document = Some(black_box(Template::parse(black_box(template))?.expand(&[grant])?));
    }
    let time = start.elapsed()? / rounds;
    row("network_data.json of a template, both families", &micros(time), "");
    let document = document.ok_or("no document")?;
    let user_data = vec![b'u'; 1700];
    let start = Cpu::now()?;
    for _ in 0..rounds {
        let (network_data, user_data) = (Some(document.text().as_bytes()), user_data.as_slice());
        black_box(ConfigDrive { meta_data: b"{}", network_data, user_data }.image()?);
    }
    row("config drive, as an image", &micros(start.elapsed()? / rounds), "at most 1000 us");
    Ok(())
}

/// Measures the time to read a file of a thousand pools and to check them for overlaps. Each pool is a /24 of one
/// network.
fn pools() -> Result<()> {
    let pool = |at: usize| {
        let (a, b) = (at / 256, at % 256);
        format!(
            "- {{name: p{at}, namespace: 'n', network: vlan10, addresses: [10.{a}.{b}.0/24], gateway: [10.{a}.{b}.1]}}\n"
        )
    };
    let text: String = (0..1_000).map(pool).collect();
    let start = Cpu::now()?;
    let (specs, mut diagnostics) = read_pools(text.as_bytes());
    let pools = specs.iter().filter_map(|spec| Pool::new(spec, &TemplateFacts::default(), &mut diagnostics));
    let pools: Vec<Pool> = pools.collect();
    let overlaps = overlaps(&pools).kept.len();
    let time = start.elapsed()?;
    if (pools.len(), overlaps) != (1_000, 0) {
        return Err(format!("{diagnostics:?}").into());
    }
    row("a file of 1000 pools, read and checked for overlaps", &millis(time), "");
    Ok(())
}

/// Measures claims of several processes. Each claim is on disk before the next claim of the process begins.
fn durable(processes: usize) -> Result<()> {
    // The ledger is in the directory of the program, because a temporary directory may be in memory.
    let program = std::env::current_exe()?;
    let directory = tempfile::tempdir_in(program.parent().ok_or("no directory")?)?;
    let path = directory.path().join("ledger");
    on_disk(&path)?;
    let start = Instant::now();
    let mut children = Vec::new();
    for number in 0..processes {
        let mut command = Command::new(&program);
        command.env("GLOWPLUG_BENCH_CLAIMER", number.to_string()).env("GLOWPLUG_BENCH_LEDGER", &path);
        children.push(command.spawn()?);
    }
    for mut child in children {
        if !child.wait()?.success() {
            return Err("a claimer failed".into());
        }
    }
    let time = start.elapsed();
    let claims = processes * CLAIMS;
    let rate = claims as f64 / time.as_secs_f64();
    let disk = Command::new("stat").args(["--file-system", "--format=%T"]).arg(directory.path()).output()?;
    let disk = String::from_utf8(disk.stdout)?;
    let own = inserts(&directory.path().join("plain"))?;
    row(
        &format!("durable claims on SQLite on {}, {processes} processes", disk.trim()),
        &format!("{rate:.0} a second ({claims} in {}), {:.0} % of SQLite's inserts", millis(time), 100.0 * rate / own),
        &format!("at least 90 % of {own:.0} inserts a second"),
    );
    Ok(())
}

/// Returns the number of transactions that SQLite alone makes in a second. Each transaction inserts one row of the size
/// of a claim's row, with the pragmas of the ledger.
fn inserts(path: &Path) -> Result<f64> {
    let connection = Connection::open(path)?;
    let _: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    connection
        .execute_batch("PRAGMA synchronous = FULL; CREATE TABLE rows (number INTEGER PRIMARY KEY, content BLOB)")?;
    let start = Instant::now();
    for number in 0..CLAIMS as i64 {
        connection.prepare_cached("INSERT INTO rows VALUES (?, ?)")?.execute((number, [7_u8; 200]))?;
    }
    Ok(CLAIMS as f64 / start.elapsed().as_secs_f64())
}

const CLAIMS: usize = 1_000;

fn claimer(path: &Path, number: usize) -> Result<()> {
    let mut registry = Registry::open(SqliteLedger::open(path)?)?;
    registry.open_addresses(NOW)?;
    for at in 0..CLAIMS {
        registry.claim(&claim(number * CLAIMS + at), NOW)?;
    }
    Ok(())
}

fn in_memory() -> Result<Registry<MemoryLedger>> {
    let mut registry = Registry::open(MemoryLedger::default())?;
    registry.resize([pool()?], &[], NOW)?;
    registry.open_addresses(NOW)?;
    Ok(registry)
}

/// Creates a ledger on disk.
fn on_disk(path: &Path) -> Result<Registry<SqliteLedger>> {
    let mut registry = Registry::open(SqliteLedger::create(path)?)?;
    registry.resize([pool()?], &[], NOW)?;
    registry.open_addresses(NOW)?;
    Ok(registry)
}

fn pool() -> Result<Pool> {
    let text = b"{name: workers, namespace: clusters, network: vlan10, interface: eno101,
        addresses: [10.0.0.0/8, fd00::/64], gateway: [10.0.0.1, 'fd00::1']}";
    let (specs, mut diagnostics) = read_pools(text);
    let spec = specs.first().ok_or("no pool")?;
    Pool::new(spec, &TemplateFacts::default(), &mut diagnostics).ok_or_else(|| format!("{diagnostics:?}").into())
}

fn claim(number: usize) -> Claim {
    Claim {
        machine: Machine::new(
            "clusters-production",
            format!("workers-5f7c9-{number:06}"),
            format!("1b4e28ba-2fa1-11d2-883f-{number:012}"),
        ),
        created: NOW,
        requests: vec![Request::of("clusters/workers")],
        sticky: false,
        secret: None,
    }
}

fn micros(time: Duration) -> String {
    format!("{:.1} us", time.as_secs_f64() * 1e6)
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// Returns the memory of this process in bytes.
fn resident() -> Result<usize> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? * 1024)
}

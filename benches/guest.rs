//! Measures the guest and prints a table: `make bench`. A row may have a limit, or a value of the same run to compare
//! with.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glowplug::diagnostic::Diagnostics;
use glowplug::formats::{Meaning, read_network};
use glowplug::network::NetworkConfig;
use glowplug::render::{Renderer, dracut, network_legacy, network_manager_profiles, networkd};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use table::row;

mod table;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    // The path of the shipped program, which `make bench` builds.
    let program = std::env::var("GLOWPLUG")?;
    let drive = tempfile::tempdir()?;
    let latest = drive.path().join("openstack/latest");
    fs::create_dir_all(&latest)?;
    fs::write(latest.join("network_data.json"), nics(20))?;

    row("static binary", &format!("{} bytes", fs::metadata(&program)?.len()), "at most 1572864 bytes");
    row("crates in it", &crates()?.to_string(), "");
    let mut network_kargs = Command::new(&program);
    network_kargs.args(["network-kargs", "--print", "--provider", "kubevirt", "--config-drive"]).arg(drive.path());
    row("whole process, 20 NICs, user+sys", &against_true(&mut network_kargs)?, "at most 2 x");
    let root = tempfile::tempdir()?;
    fs::create_dir_all(root.path().join("run/metadata"))?;
    fs::write(root.path().join("run/metadata/glowplug"), "GLOWPLUG_KUBEVIRT_HOSTNAME=worker-0\n")?;
    let mut metadata = Command::new(&program);
    metadata.args(["metadata", "hostname", "--root"]).arg(root.path());
    row("metadata KEY from its file, user+sys", &against_true(&mut metadata)?, "at most 2 x");
    row("peak memory, 20 NICs", &format!("{} KiB", peak_memory(&program, drive.path())?), "at most 4096 KiB");
    peer(&program)?;

    for (kind, file, limit) in [
        (
            "network_data.json, one NIC",
            "images/hypershift/openstack/latest/network_data.json",
            "at most 60 µs, the first",
        ),
        ("network-config v1, bond, VLAN", "documents/typical-v1.yaml", ""),
        ("network-config v2, bond, VLAN", "documents/typical-v2.yaml", "at most 150 µs, the first"),
    ] {
        let text = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(file))?;
        let renderers = [Renderer::NetworkManager, Renderer::SystemdNetworkd, Renderer::NetworkLegacy];
        let times = renderers.map(|renderer| micros(document(&text, renderer)));
        row(&format!("{kind}: NM | networkd | legacy"), &times.join(" | "), limit);
    }
    for count in [20, 200] {
        let text = nics(count);
        let label = format!("parse to arguments, {count} NICs, {} KiB", text.len() / 1024);
        row(&label, &micros(to_arguments(&text)), &per_byte(&text));
    }
    // A document of the maximum size, mostly blanks, as an attacker might write it.
    let padded = format!("{}{}", nics(200), " ".repeat(1024 * 1024 - nics(200).len()));
    row("parse to arguments, 200 NICs, 1 MiB", &micros(to_arguments(&padded)), &per_byte(&padded));
    let links = many_links();
    row("parse to refusal, 4,096 links, 1 MiB", &micros(to_arguments(&links)), &per_byte(&links));
    Ok(())
}

/// Counts the crates that the guest links, without the crates of this project.
fn crates() -> Result<usize> {
    let mut tree = Command::new(std::env::var("CARGO")?);
    tree.args([
        "tree",
        "--locked",
        "--no-default-features",
        "--features",
        "guest",
        "--edges",
        "no-build,no-dev,no-proc-macro",
    ]);
    tree.args([
        "--target",
        &format!("{}-unknown-linux-musl", std::env::consts::ARCH),
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let listed = String::from_utf8(tree.output()?.stdout)?;
    let of_others = listed.lines().filter(|line| !line.starts_with("glowplug"));
    Ok(of_others.map(|line| line.trim_end_matches(" (*)")).collect::<BTreeSet<_>>().len())
}

/// Measures afterburn for comparison, if afterburn is in `PATH`. Without a config drive, only the start of afterburn
/// can be measured.
fn peer(ours: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(peer) = std::env::split_paths(&path).map(|folder| folder.join("afterburn")).find(|file| file.is_file())
    else {
        row("comparison with afterburn", "afterburn is not in PATH", "");
        return Ok(());
    };
    let [our_size, peer_size] = [fs::metadata(ours)?.len(), fs::metadata(&peer)?.len()];
    row("afterburn's binary", &format!("{peer_size} bytes, {:.1} x ours", peer_size as f64 / our_size as f64), "");
    row("--version, user+sys", &against_true(Command::new(ours).arg("--version"))?, "");
    row("  the same of afterburn", &against_true(Command::new(&peer).arg("--version"))?, "");
    Ok(())
}

fn micros(time: Duration) -> String {
    format!("{:.1} µs", time.as_secs_f64() * 1e6)
}

fn per_byte(text: &str) -> String {
    format!("{:.1} ns a byte", to_arguments(text).as_secs_f64() * 1e9 / text.len() as f64)
}

fn to_arguments(text: &str) -> Duration {
    document(text.as_bytes(), Renderer::NetworkManager)
}

/// Returns the median time to read a document and render it.
fn document(text: &[u8], renderer: Renderer) -> Duration {
    let once = || {
        let start = Instant::now();
        let reading = read_network(black_box(text));
        if let Meaning::Network(network) = reading.meaning {
            black_box(render(&network, renderer));
        }
        start.elapsed()
    };
    let first = once();
    let runs = (Duration::from_millis(400).as_nanos() / first.as_nanos().max(1)).clamp(5, 2000);
    let mut times: Vec<Duration> = (0..runs).map(|_| once()).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn render(network: &NetworkConfig, renderer: Renderer) -> usize {
    let mut diagnostics = Diagnostics::default();
    match renderer {
        Renderer::NetworkManager => dracut::render(network, &mut diagnostics).line.len(),
        Renderer::NetworkLegacy => network_legacy::render(network, &mut diagnostics).line.len(),
        Renderer::NetworkManagerProfiles => network_manager_profiles::render(network, &mut diagnostics).files.len(),
        Renderer::SystemdNetworkd => networkd::render(network, &mut diagnostics).files.len(),
    }
}

/// Compares the CPU time of a command with the CPU time of `/bin/true`. The two commands run alternately.
fn against_true(command: &mut Command) -> Result<String> {
    let (mut ours, mut peers) = (Duration::ZERO, Duration::ZERO);
    let rounds = 400;
    for _ in 0..rounds {
        ours += usage(command)?;
        peers += usage(&mut Command::new("/bin/true"))?;
    }
    let [ours, peers] = [ours, peers].map(|time| time.as_secs_f64() * 1e3 / f64::from(rounds));
    Ok(format!("{:.2} x /bin/true ({ours:.2} ms, /bin/true {peers:.2} ms)", ours / peers))
}

fn usage(command: &mut Command) -> Result<Duration> {
    let children = || -> Result<i64> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok((usage.user_time() + usage.system_time()).num_microseconds())
    };
    let before = children()?;
    if !command.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success() {
        return Err("the program failed".into());
    }
    Ok(Duration::from_micros(u64::try_from(children()? - before)?))
}

/// Returns the peak memory of the program in KiB, at the time when only the last line of output is left to write.
/// `ru_maxrss` would also contain memory of the parent process.
fn peak_memory(program: &str, drive: &Path) -> Result<u64> {
    let (mut reader, mut writer) = io::pipe()?;
    // A full pipe blocks the program at its last line.
    writer.write_all(&[b'\n'; 65_536])?;
    let mut command = Command::new(program);
    command.args(["network-kargs", "--print", "--provider", "kubevirt", "--config-drive"]).arg(drive);
    let mut child = command.stdout(writer).stderr(Stdio::null()).spawn()?;
    let peak = wait_for_sleep(&child);
    drop(command);
    reader.read_to_end(&mut Vec::new())?;
    child.wait()?;
    peak
}

fn wait_for_sleep(child: &Child) -> Result<u64> {
    for _ in 0..1000 {
        std::thread::sleep(Duration::from_millis(5));
        let status = fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if field("State:").is_some_and(|state| state.starts_with('S')) && field("Name:") == Some("glowplug") {
            let peak = field("VmHWM:").and_then(|peak| peak.split(' ').next());
            return Ok(peak.ok_or("no VmHWM")?.parse()?);
        }
    }
    Err("the program never came to its last line".into())
}

/// Builds a document with `count` NICs and one name server. Each NIC has addresses of both families, and a route.
fn nics(count: usize) -> String {
    let mut links = Vec::new();
    let mut networks = Vec::new();
    for n in 0..count {
        let (high, low) = (n / 250, n % 250);
        links.push(format!(
            r#"{{"id": "tap{n:05}-{n:02}", "type": "ovs", "vif_id": "f9b2b0c5-{n:04}", "mtu": 1450,
                "ethernet_mac_address": "fa:16:3e:00:{high:02x}:{low:02x}"}}"#
        ));
        networks.push(format!(
            r#"{{"id": "network{n}", "network_id": "5d307ca9-{n:04}", "type": "ipv4", "link": "tap{n:05}-{n:02}",
                "ip_address": "10.{high}.{low}.5", "netmask": "255.255.255.0",
                "routes": [{{"network": "172.16.{low}.0", "netmask": "255.255.255.0", "gateway": "10.{high}.{low}.1"}}]}}"#
        ));
        networks.push(format!(
            r#"{{"id": "networkv6-{n}", "network_id": "5d307ca9-{n:04}", "type": "ipv6", "link": "tap{n:05}-{n:02}",
                "ip_address": "2001:db8:{n:x}::5/64"}}"#
        ));
    }
    format!(
        r#"{{"links": [{}], "networks": [{}], "services": [{{"type": "dns", "address": "10.0.0.53"}}]}}"#,
        links.join(", "),
        networks.join(", ")
    )
}

fn many_links() -> String {
    let links: Vec<String> = (0..4096).map(|n| format!(r#"{{"id":"l{n}","type":"phy","mtu":1450,"ethernet_mac_address":"fa:16:3e:00:{:02x}:{:02x}","vif_id":"{}"}}"#, n / 256, n % 256, "x".repeat(120))).collect();
    let networks: Vec<String> = (0..4096).map(|n| format!(r#"{{"link":"l{n}","type":"ipv6_slaac"}}"#)).collect();
    format!(r#"{{"links":[{}],"networks":[{}]}}"#, links.join(","), networks.join(","))
}

//! A machine in QEMU, which boots an image that was made once and says what became of its network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The machine's own uuid.
pub(crate) const OWN: &str = "6aa1c2f8-39e5-5b71-8d0f-2c5f3b8f7d10";

/// The addresses of its NICs.
pub(crate) const MACS: [&str; 2] = ["52:54:00:12:34:56", "52:54:00:12:34:57"];

/// A boot takes half a minute on an idle processor. After this it does not end any more, however busy the host is.
const LIMIT: Duration = Duration::from_secs(900);

/// How many machines run at a time: each of them has one processor to emulate.
const AT_A_TIME: usize = 2;

/// Which initramfs is booted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Image {
    /// With NetworkManager alone.
    Plain,
    /// With Ignition and the stand-in for afterburn.
    Ignition,
    /// With NetworkManager's own units, in a dracut that does not know them.
    Units,
    /// With Ignition and systemd-networkd.
    Networkd,
    /// With Ignition and dracut's own scripts.
    Legacy,
    /// For a crash kernel.
    Kdump,
}

/// What a NIC is plugged into.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Network {
    /// Nothing: there is nobody to ask, and so no DHCP.
    Silent,
    /// QEMU's own, 192.168.1.0/24, where 192.168.1.1 is the loopback of the machine that runs the tests.
    User,
    /// The same cut off, but for a DHCP server that knows no router.
    Dhcp,
}

/// How a drive is attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bus {
    VirtioBlk,
    SataDisk,
    SataCdrom,
    VirtioScsi,
    Usb,
    /// On virtio-blk, this long after our unit was started.
    VirtioBlkLate(Duration),
}

/// A machine that is not started yet.
pub(crate) struct Machine {
    image: Image,
    arguments: String,
    is_kubevirt: bool,
    network: Network,
    nics: usize,
    /// The disk with the root, when it is to keep what is written to it.
    root: Option<PathBuf>,
    drives: Vec<(Bus, PathBuf)>,
    directory: TempDir,
}

/// What a boot said.
pub(crate) struct Report {
    /// The parts of the report, by their titles.
    parts: BTreeMap<String, String>,
    /// Everything that was on the console.
    console: String,
}

/// What a real root finds of the network, as the kernel and the resolver's file say it.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Found {
    /// NIC, address and length, without the loopback and what the kernel makes itself.
    pub(crate) addresses: Vec<String>,
    pub(crate) routes: Vec<String>,
    pub(crate) nameservers: Vec<String>,
}

/// A QEMU that ends with this value.
struct Running(Child);

/// The right to run a machine.
struct Turn;

static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/boot/image");

/// The directory with the kernel, and with the images that somebody has asked [`image`] for.
pub(crate) fn images() -> &'static Path {
    static IMAGES: OnceLock<PathBuf> = OnceLock::new();
    IMAGES.get_or_init(|| made(&[]))
}

/// An image of this name, made by the first who asks.
fn image(name: &'static str) -> PathBuf {
    static MADE: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut made_before = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if !made_before.contains(name) {
        made(&[name]);
        made_before.insert(name);
    }
    images().join(format!("{name}.img"))
}

fn made(names: &[&str]) -> PathBuf {
    let output = Command::new(SCRIPT).args(names).stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{SCRIPT}: {}", output.status);
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// What dracut says of our module when it makes an image of these modules, and whether it made one.
pub(crate) fn try_image(modules: &str) -> (bool, Vec<String>) {
    let output = Command::new(SCRIPT).arg("try").args(modules.split(' ')).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let ours = said.lines().filter_map(|line| line.strip_prefix("dracut: glowplug: ")).map(str::to_owned).collect();
    (output.status.success(), ours)
}

/// Runs `tests/networkd/machine`, which boots a machine of its own, on the cases of a directory. A case is over when networkd
/// has said nothing for so many milliseconds.
pub(crate) fn networkd(cases: &Path, quiet: u32) {
    let modules = fs::canonicalize(images().join("modules")).unwrap();
    let _turn = Turn::take();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/networkd/machine");
    let mut command = Command::new(script);
    command.arg(images().join("vmlinuz")).arg(modules).arg(cases).arg(quiet.to_string());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{script}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// A disk with Debian on it, which nobody has booted.
pub(crate) fn debian(directory: &Path) -> PathBuf {
    let disk = directory.join("root");
    // Most of it is holes.
    let copy = Command::new("cp").arg("--sparse=always").arg(image("debian")).arg(&disk).status().unwrap();
    assert!(copy.success());
    disk
}

/// Writes past the test runner, which shows what a test prints only when it fails.
fn say(line: &dyn Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

// === impl Turn, Running ===

impl Turn {
    fn take() -> Self {
        let taken = TAKEN.lock().unwrap();
        *GIVEN_BACK.wait_while(taken, |taken| *taken == AT_A_TIME).unwrap() += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap() -= 1;
        GIVEN_BACK.notify_all();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl Machine ===

impl Machine {
    /// A machine of KubeVirt with one NIC on a silent network, and no drive.
    pub(crate) fn new(image: Image) -> Self {
        let arguments = match image {
            // What Ignition sees to on its images: somebody asks for the network before the real root.
            Image::Plain | Image::Units | Image::Kdump => "rd.neednet=1",
            Image::Ignition | Image::Networkd | Image::Legacy => "ignition.firstboot ignition.platform.id=kubevirt",
        };
        // The sockets' names have to be short.
        let directory = tempfile::Builder::new().prefix("boot-").tempdir_in(images()).unwrap();
        Self {
            image,
            arguments: arguments.to_owned(),
            is_kubevirt: true,
            network: Network::Silent,
            nics: 1,
            root: None,
            drives: Vec::new(),
            directory,
        }
    }

    pub(crate) fn elsewhere(mut self) -> Self {
        self.is_kubevirt = false;
        self
    }

    pub(crate) fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    pub(crate) fn nics(mut self, nics: usize) -> Self {
        self.nics = nics;
        self
    }

    /// On this disk, which keeps what is written to it.
    pub(crate) fn root(mut self, disk: &Path) -> Self {
        self.root = Some(disk.to_owned());
        self
    }

    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments = format!("{} {argument}", self.arguments);
        self
    }

    /// Without what [`Machine::new`] says on the kernel command line.
    pub(crate) fn without_arguments(mut self) -> Self {
        self.arguments.clear();
        self
    }

    pub(crate) fn drive(mut self, bus: Bus, image: &[u8]) -> Self {
        let path = self.directory.path().join(format!("drive{}", self.drives.len()));
        fs::write(&path, image).unwrap();
        self.drives.push((bus, path));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self) -> Command {
        let images = images();
        let name = match self.image {
            Image::Plain => "plain",
            Image::Ignition => "ignition",
            Image::Units => "units",
            Image::Networkd => "networkd",
            Image::Legacy => "legacy",
            Image::Kdump => "kdump",
        };
        let mut qemu = Command::new("qemu-system-x86_64");
        let mut add = |option: &str, value: &dyn Display| {
            qemu.arg(option).arg(value.to_string());
        };
        add("-machine", &"q35");
        // Page tables of five levels cost time in emulation.
        add("-cpu", &"max,-la57");
        add("-accel", &"tcg");
        add("-smp", &"1");
        add("-m", &"1024");
        add("-display", &"none");
        add("-monitor", &"none");
        add("-kernel", &images.join("vmlinuz").display());
        add("-initrd", &image(name).display());
        // No shell where nobody sits, no pause before the machine goes off, and no colours. On a busy host the timer of an
        // emulated machine may be late for the kernel's look at it, which would panic.
        let common = "console=ttyS0,115200 panic=-1 no_timer_check root=LABEL=root rw rd.shell=0 rd.emergency=poweroff \
                      systemd.log_color=0 systemd.show_status=1";
        add("-append", &format_args!("{common} {}", self.arguments));
        add("-serial", &format_args!("file:{}", self.path("console").display()));
        add("-serial", &format_args!("file:{}", self.path("report").display()));
        add("-qmp", &format_args!("unix:{},server=on,wait=off", self.path("qmp").display()));
        add("-uuid", &OWN);
        if self.is_kubevirt {
            add("-smbios", &"type=1,manufacturer=KubeVirt,product=None,family=KubeVirt");
        }
        // What is written to a disk is gone with the machine, unless it is the machine's own.
        let snapshot = if self.root.is_some() { "off" } else { "on" };
        let root = self.root.clone().unwrap_or_else(|| image("root"));
        add("-drive", &format_args!("if=none,id=root,format=raw,snapshot={snapshot},file={}", root.display()));
        add("-device", &"virtio-blk-pci,drive=root");
        for (nic, mac) in MACS.iter().enumerate().take(self.nics) {
            let number = nic + 1;
            let network = match self.network {
                Network::Silent => format!("hubport,id=net{nic},hubid={nic}"),
                Network::User => format!("user,id=net{nic},net=192.168.1.0/24,host=192.168.1.1,ipv6=off"),
                Network::Dhcp => format!("user,id=net{nic},net=192.168.1.0/24,host=192.168.1.1,ipv6=off,restrict=on"),
            };
            add("-netdev", &network);
            // As HyperShift has KubeVirt do it, so that the NIC is eno101 and nothing else.
            add("-device", &format_args!("pcie-root-port,id=port{nic},chassis={number}"));
            let device = format!("virtio-net-pci,bus=port{nic},netdev=net{nic},mac={mac},acpi-index={}", 100 + number);
            add("-device", &format_args!("{device},romfile="));
        }
        add("-device", &"pcie-root-port,id=late,chassis=9");
        for (number, (bus, path)) in self.drives.iter().enumerate() {
            let drive = format!("drive{number}");
            add("-drive", &format_args!("if=none,id={drive},format=raw,snapshot=on,file={}", path.display()));
            match bus {
                Bus::VirtioBlk => add("-device", &format_args!("virtio-blk-pci,drive={drive}")),
                Bus::SataDisk => add("-device", &format_args!("ide-hd,bus=ide.{number},drive={drive}")),
                Bus::SataCdrom => add("-device", &format_args!("ide-cd,bus=ide.{number},drive={drive}")),
                Bus::VirtioScsi => {
                    add("-device", &format_args!("virtio-scsi-pci,id=scsi{number}"));
                    add("-device", &format_args!("scsi-hd,bus=scsi{number}.0,drive={drive}"));
                }
                Bus::Usb => {
                    add("-device", &format_args!("qemu-xhci,id=usb{number}"));
                    add("-device", &format_args!("usb-storage,bus=usb{number}.0,drive={drive}"));
                }
                Bus::VirtioBlkLate(_) => (),
            }
        }
        qemu.args(["-nodefaults", "-no-reboot"]);
        // Where QEMU keeps what is written to the disks.
        qemu.env("TMPDIR", self.directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
        qemu.stderr(File::create(self.path("qemu")).unwrap());
        qemu
    }

    /// Boots until the machine is off.
    pub(crate) fn boot(self) -> Report {
        let _turn = Turn::take();
        let start = Instant::now();
        let child = self.command().spawn().unwrap_or_else(|e| {
            panic!("qemu-system-x86_64: {e}; install the Debian package qemu-system-x86");
        });
        let mut running = Running(child);
        let late = self.drives.iter().position(|(bus, _)| matches!(bus, Bus::VirtioBlkLate(_)));
        let mut late = late.map(|number| (number, self.drives[number].0, None::<Instant>));
        while running.0.try_wait().unwrap().is_none() {
            if start.elapsed() >= LIMIT {
                self.keep(&self.console(), "");
                panic!("the machine did not end, see the console in {}", self.log().display());
            }
            if let Some((number, Bus::VirtioBlkLate(delay), seen)) = &mut late {
                // By then the program has looked for the drive once, whatever the speed of the machine.
                if seen.is_none() && self.console().contains("asked for storage drivers") {
                    *seen = Some(Instant::now());
                }
                if seen.is_some_and(|seen| seen.elapsed() >= *delay) {
                    self.plug(*number).unwrap();
                    late = None;
                }
            }
            thread::sleep(Duration::from_millis(50));
        }
        let report = String::from_utf8_lossy(&fs::read(self.path("report")).unwrap()).replace('\r', "");
        let console = self.console();
        self.keep(&console, &report);
        let complete = report.ends_with("== end\n");
        let qemu = fs::read_to_string(self.path("qemu")).unwrap();
        assert!(complete, "no complete report, see the console in {}; QEMU: {qemu}", self.log().display());
        let mut parts = BTreeMap::<String, String>::new();
        let mut title = String::new();
        for line in report.lines() {
            if let Some(it) = line.strip_prefix("== ") {
                it.clone_into(&mut title);
                parts.entry(title.clone()).or_default();
            } else {
                parts.entry(title.clone()).or_default().push_str(&format!("{line}\n"));
            }
        }
        Report { parts, console }
    }

    /// Where the console and the report of this test stay.
    fn log(&self) -> PathBuf {
        images().join(format!("{}.log", thread::current().name().unwrap_or("boot")))
    }

    fn keep(&self, console: &str, report: &str) {
        fs::write(self.log(), format!("{console}\n{report}")).unwrap();
    }

    fn console(&self) -> String {
        let bytes = fs::read(self.path("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Plugs a drive into the empty port.
    fn plug(&self, number: usize) -> io::Result<()> {
        let mut socket = UnixStream::connect(self.path("qmp"))?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut answers = BufReader::new(socket.try_clone()?).lines();
        // It says who it is, then answers each command with a line, among lines about what happens.
        answers.next();
        let plug = format!(
            r#"{{"execute":"device_add","arguments":{{"driver":"virtio-blk-pci","bus":"late","id":"plugged","drive":"drive{number}"}}}}"#
        );
        for command in [r#"{"execute":"qmp_capabilities"}"#, plug.as_str()] {
            writeln!(socket, "{command}")?;
            loop {
                let answer = answers.next().ok_or(io::ErrorKind::UnexpectedEof)??;
                assert!(!answer.contains("\"error\""), "{answer}");
                if answer.contains("\"return\"") {
                    break;
                }
            }
        }
        Ok(())
    }
}

// === impl Report ===

impl Report {
    /// The part of the report with this title.
    pub(crate) fn part(&self, title: &str) -> &str {
        self.parts.get(title).map_or("", String::as_str)
    }

    fn lines(&self, title: &str) -> Vec<String> {
        self.part(title).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// What the real root found.
    pub(crate) fn found(&self) -> Found {
        let addresses = self.lines("addresses").into_iter().filter_map(|line| {
            // `2: eno101 inet 192.168.1.100/24 brd …`
            let words: Vec<_> = line.split(' ').collect();
            let (nic, address) = (words[1], words[3]);
            (nic != "lo" && !address.starts_with("fe80:")).then(|| format!("{nic} {address}"))
        });
        // The kernel's own for every NIC that is up.
        let is_own = |route: &String| route.starts_with("fe80::/64 ") || route.starts_with("multicast ff00::/8 ");
        let resolver = self.lines("resolv.conf");
        Found {
            addresses: addresses.collect(),
            routes: self.lines("routes").into_iter().filter(|route| !is_own(route)).collect(),
            nameservers: resolver
                .iter()
                .filter_map(|line| line.strip_prefix("nameserver "))
                .map(str::to_owned)
                .collect(),
        }
    }

    /// The MTU of a NIC.
    pub(crate) fn mtu(&self, nic: &str) -> Option<u32> {
        // `2: eno101: <…> mtu 1500 …`, `3: eno101.7@eno101: <…> mtu …`
        let lines = self.lines("links");
        let line = lines.iter().find(|line| {
            let name = line.split(' ').nth(1).unwrap_or_default().trim_end_matches(':');
            name.split('@').next() == Some(nic)
        })?;
        line.split_once(" mtu ")?.1.split(' ').next()?.parse().ok()
    }

    /// The ports of a bond.
    pub(crate) fn ports(&self, bond: &str) -> Vec<String> {
        let is_port = |line: &&String| line.contains(&format!(" master {bond} "));
        let name = |line: &String| line.split(' ').nth(1).map(|name| name.trim_end_matches(':').to_owned());
        self.lines("links").iter().filter(is_port).filter_map(name).collect()
    }

    /// What the program recorded.
    pub(crate) fn plan(&self) -> serde_json::Value {
        serde_json::from_str(self.part("plan")).unwrap_or_default()
    }

    /// What the program wrote for dracut.
    pub(crate) fn fragment(&self) -> &str {
        self.part("fragment").trim_end()
    }

    /// A property of a unit when the initramfs was left.
    pub(crate) fn unit(&self, unit: &str, property: &str) -> &str {
        let id = format!("Id={unit}");
        let text =
            self.part("units").split("\n\n").find(|text| text.lines().any(|line| line == id)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix(property)?.strip_prefix('=')).unwrap_or_default()
    }

    fn moment(&self, unit: &str, property: &str) -> Option<Duration> {
        let microseconds = self.unit(unit, property).parse().ok()?;
        (microseconds > 0).then(|| Duration::from_micros(microseconds))
    }

    /// Whether the machine went to emergency instead of the real root.
    pub(crate) fn is_emergency(&self) -> bool {
        self.parts.contains_key("emergency")
    }

    /// What our unit said on the console.
    pub(crate) fn said(&self) -> Vec<&str> {
        let lines = self.console.lines().filter_map(|line| Some(line.split_once("glowplug[")?.1.split_once("]: ")?.1));
        lines.collect()
    }

    /// What our unit logged with `glowplug.debug`, and when, since the start of the kernel.
    fn stamps(&self) -> Vec<(String, Duration)> {
        let stamp = |line: &str| {
            let (said, seconds) = line.split_once("]: ")?.1.split_once(" monotonic=")?;
            let words: Vec<&str> = said.split(' ').take_while(|word| !word.contains('=')).collect();
            Some((words.join(" "), Duration::from_secs_f64(seconds.parse().ok()?)))
        };
        self.part("journal").lines().filter_map(stamp).collect()
    }

    /// Prints how long the boot took, and when our unit was at each step.
    pub(crate) fn say_figures(&self, title: &str) {
        const UNIT: &str = "glowplug-network-kargs.service";
        const PRELOAD: &str = "modprobe@virtio_blk.service";
        let moment = |unit: &str, property: &str| self.moment(unit, property).unwrap_or_default();
        let between = |unit, from, to| moment(unit, to).saturating_sub(moment(unit, from));
        let unit = between(UNIT, "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic");
        let search = Duration::from_millis(self.plan()["drive"]["waited_ms"].as_u64().unwrap_or(0));
        let preload = between(PRELOAD, "ExecMainStartTimestampMonotonic", "ExecMainExitTimestampMonotonic");
        say(&format_args!(
            "boot: {title}: our unit {} ms, of which {} ms until the kernel had the drive; {} ms before it for virtio_blk; \
             network up {:.1} s after the kernel's start",
            unit.as_millis(),
            search.as_millis(),
            preload.as_millis(),
            moment("nm-wait-online-initrd.service", "ActiveEnterTimestampMonotonic").as_secs_f64(),
        ));
        let start = moment(UNIT, "InactiveExitTimestampMonotonic");
        let fork = ("systemd forked".to_owned(), moment(UNIT, "ExecMainStartTimestampMonotonic"));
        let end = ("systemd saw the end".to_owned(), moment(UNIT, "ActiveEnterTimestampMonotonic"));
        for (step, at) in [vec![fork], self.stamps(), vec![end]].concat() {
            say(&format_args!("boot: {title}: {:4} ms {step}", at.saturating_sub(start).as_millis()));
        }
    }
}

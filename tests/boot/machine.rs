//! Runs a virtual machine in QEMU. The machine boots a prepared image and reports its network.

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

/// UUID of the tested machine.
pub(crate) const OWN: &str = "6aa1c2f8-39e5-5b71-8d0f-2c5f3b8f7d10";

/// MAC addresses of the NICs of the tested machine.
pub(crate) const MACS: [&str; 2] = ["52:54:00:12:34:56", "52:54:00:12:34:57"];

/// Time limit of a boot. A boot takes half a minute on an idle processor, but much longer on a busy host.
const LIMIT: Duration = Duration::from_secs(900);

/// Maximum number of machines that run at the same time. Each machine keeps one processor of the host busy.
const AT_A_TIME: usize = 2;

/// The initramfs that a machine boots.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Image {
    /// NetworkManager without Ignition.
    Plain,
    /// NetworkManager and Ignition, with a substitute for afterburn.
    Ignition,
    /// As [`Image::Ignition`], in strict mode.
    Strict,
    /// NetworkManager, Ignition and afterburn, without our module.
    Stock,
    /// NetworkManager with its own units, in a dracut that does not support these units.
    Units,
    /// Ignition and systemd-networkd.
    Networkd,
    /// Ignition and dracut's own scripts.
    Legacy,
    /// The initramfs of a crash kernel.
    Kdump,
    /// As [`Image::Plain`], with the newer release of Debian.
    NewerPlain,
    /// As [`Image::Ignition`], with the newer release, where NetworkManager's own units run.
    NewerIgnition,
    /// As [`Image::Strict`], with the newer release, where NetworkManager's own units run.
    NewerStrict,
    /// As [`Image::Networkd`], with the newer release.
    NewerNetworkd,
}

/// The network to which the NICs are connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Network {
    /// A network without other machines, and so without a DHCP server.
    Silent,
    /// QEMU's user network 192.168.1.0/24, with a DHCP server. The machine reaches the loopback address of the host as
    /// 192.168.1.1.
    User,
    /// As [`Network::User`], but isolated from the host. The DHCP server offers no router, so there is no route to
    /// other networks.
    Dhcp,
}

/// The bus of a drive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bus {
    VirtioBlk,
    SataDisk,
    SataCdrom,
    VirtioScsi,
    Usb,
    /// A virtio-blk device that is plugged in after the first search of the unit, and the time between the two.
    VirtioBlkLate(Duration),
}

/// Configuration of a machine that has not been booted yet.
pub(crate) struct VirtualMachine {
    image: Image,
    arguments: String,
    uuid: String,
    is_kubevirt: bool,
    network: Network,
    nics: usize,
    /// Disk with a root file system that keeps changes. `None`: the machine gets the root of the images, and changes
    /// are discarded.
    root: Option<PathBuf>,
    drives: Vec<(Bus, PathBuf)>,
    directory: TempDir,
}

/// The report and the console output of a boot.
pub(crate) struct Report {
    /// Parts of the report by title.
    parts: BTreeMap<String, String>,
    /// Complete output of the console.
    console: String,
}

/// The network of the real root, as the kernel and `resolv.conf` have it.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Found {
    /// Each address with its interface and prefix length, without loopback addresses and link-local IPv6 addresses.
    pub(crate) addresses: Vec<String>,
    pub(crate) routes: Vec<String>,
    pub(crate) nameservers: Vec<String>,
}

/// A QEMU process. Dropping the value kills the process.
struct Running(Child);

/// Permission to run a machine. At most [`AT_A_TIME`] permissions exist at the same time.
struct Turn;

static TAKEN: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/boot/image");

/// Name of the kernel of the newer release. The first call of [`make`] with this name installs the release.
const NEWER_KERNEL: &str = "newer-vmlinux";

/// Directory of the kernel and of the images that [`image`] has built.
pub(crate) fn images() -> &'static Path {
    static IMAGES: OnceLock<PathBuf> = OnceLock::new();
    IMAGES.get_or_init(|| made(&[]))
}

/// Returns the path of an image. The first call with a name builds the image.
fn image(name: &'static str) -> PathBuf {
    make(name);
    images().join(format!("{name}.img"))
}

/// Builds the image or the kernel with this name, unless an earlier call has built it.
fn make(name: &'static str) {
    static MADE: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut made_before = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if !made_before.contains(name) {
        made(&[name]);
        made_before.insert(name);
    }
}

fn made(names: &[&str]) -> PathBuf {
    let output = Command::new(SCRIPT).args(names).stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{SCRIPT}: {}", output.status);
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// Builds an image with these dracut modules. Returns whether dracut succeeded, and what our module printed.
pub(crate) fn try_image(modules: &str) -> (bool, Vec<String>) {
    let output = Command::new(SCRIPT).arg("try").args(modules.split(' ')).stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let ours = printed.lines().filter_map(|line| line.strip_prefix("dracut: glowplug: ")).map(str::to_owned).collect();
    (output.status.success(), ours)
}

/// Runs networkd on the cases of a directory, with the script `tests/networkd/machine`, which boots a virtual machine
/// for them. A case ends when networkd has logged nothing for `quiet` milliseconds.
pub(crate) fn networkd(cases: &Path, quiet: u32) {
    let modules = fs::canonicalize(images().join("modules")).unwrap();
    let _turn = Turn::take();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/networkd/machine");
    let mut command = Command::new(script);
    command.arg(images().join("vmlinux")).arg(modules).arg(cases).arg(quiet.to_string());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{script}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// Copies the disk with Debian into a directory, so that a boot does not change the original.
pub(crate) fn debian(directory: &Path) -> PathBuf {
    disk("debian", directory)
}

/// Copies the disk with the newer release of Debian into a directory, so that a boot does not change the original.
pub(crate) fn newer_debian(directory: &Path) -> PathBuf {
    disk("newer-debian", directory)
}

fn disk(name: &'static str, directory: &Path) -> PathBuf {
    let disk = directory.join("root");
    // The copy is sparse, because most of the file is holes.
    let copy = Command::new("cp").arg("--sparse=always").arg(image(name)).arg(&disk).status().unwrap();
    assert!(copy.success());
    disk
}

/// Returns the version of a package of the newer release.
pub(crate) fn newer_version(package: &str) -> String {
    make(NEWER_KERNEL);
    let versions = fs::read_to_string(images().join("newer-versions")).unwrap();
    let version = versions.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix(' '));
    version.unwrap_or_else(|| panic!("no package {package}")).to_owned()
}

/// Prints a line that the test runner shows even if the test passes.
fn print_line(line: &dyn Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

// === impl Turn, Running ===

impl Turn {
    fn take() -> Self {
        let taken = TAKEN.lock().unwrap();
        *FREED.wait_while(taken, |taken| *taken == AT_A_TIME).unwrap() += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap() -= 1;
        FREED.notify_all();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl VirtualMachine ===

impl VirtualMachine {
    /// Returns a KubeVirt machine with one NIC on a silent network, and without a drive.
    pub(crate) fn new(image: Image) -> Self {
        let arguments = match image {
            // These images have no Ignition, which requests the network in the other images.
            Image::Plain | Image::Units | Image::Kdump | Image::NewerPlain => "rd.neednet=1",
            Image::Ignition
            | Image::Strict
            | Image::Stock
            | Image::Networkd
            | Image::Legacy
            | Image::NewerIgnition
            | Image::NewerStrict
            | Image::NewerNetworkd => "ignition.firstboot ignition.platform.id=kubevirt",
        };
        // QEMU's socket is in this directory, and the path of a socket must be short.
        let directory = tempfile::Builder::new().prefix("boot-").tempdir_in(images()).unwrap();
        Self {
            image,
            arguments: arguments.to_owned(),
            uuid: OWN.to_owned(),
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

    /// Sets a UUID other than [`OWN`] in the firmware.
    pub(crate) fn uuid(mut self, uuid: &str) -> Self {
        uuid.clone_into(&mut self.uuid);
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

    /// Sets the disk with the root file system. The disk keeps the changes of the boot.
    pub(crate) fn root(mut self, disk: &Path) -> Self {
        self.root = Some(disk.to_owned());
        self
    }

    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments = format!("{} {argument}", self.arguments);
        self
    }

    /// Removes the kernel arguments of [`VirtualMachine::new`].
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
            Image::Strict => "strict",
            Image::Stock => "stock",
            Image::Units => "units",
            Image::Networkd => "networkd",
            Image::Legacy => "legacy",
            Image::Kdump => "kdump",
            Image::NewerPlain => "newer-plain",
            Image::NewerIgnition => "newer-ignition",
            Image::NewerStrict => "newer-strict",
            Image::NewerNetworkd => "newer-networkd",
        };
        let kernel = if name.starts_with("newer-") { NEWER_KERNEL } else { "vmlinux" };
        if kernel == NEWER_KERNEL {
            make(kernel);
        }
        let mut qemu = Command::new("qemu-system-x86_64");
        let mut add = |option: &str, value: &dyn Display| {
            qemu.arg(option).arg(value.to_string());
        };
        add("-machine", &"q35");
        // The emulation of page tables with five levels is slow.
        add("-cpu", &"max,-la57");
        add("-accel", &"tcg");
        add("-smp", &"1");
        add("-m", &"1024");
        add("-display", &"none");
        add("-monitor", &"none");
        add("-kernel", &images.join(kernel).display());
        add("-initrd", &image(name).display());
        // The machine has no emergency shell, powers off without a pause, and prints no colours. On a busy host an
        // emulated timer may be late, and the kernel's timer check would panic. A drive on an emulated bus may then
        // appear later than the default wait allows. The wait must be shorter than 300 s, the time limit of the unit.
        let common = "console=ttyS0,115200 panic=-1 no_timer_check root=LABEL=root rw rd.shell=0 rd.emergency=poweroff \
                      systemd.log_color=0 systemd.show_status=1 glowplug.wait=240";
        add("-append", &format_args!("{common} {}", self.arguments));
        add("-serial", &format_args!("file:{}", self.path("console").display()));
        add("-serial", &format_args!("file:{}", self.path("report").display()));
        add("-qmp", &format_args!("unix:{},server=on,wait=off", self.path("qmp").display()));
        add("-uuid", &self.uuid);
        if self.is_kubevirt {
            add("-smbios", &"type=1,manufacturer=KubeVirt,product=None,family=KubeVirt");
        }
        // QEMU discards the changes of the root after the boot, unless the test has set a disk for the root.
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
            // HyperShift sets the ACPI index through KubeVirt in the same way, so the first NIC is always eno101.
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
        // QEMU keeps changes of the disks in this directory until it discards them.
        qemu.env("TMPDIR", self.directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
        qemu.stderr(File::create(self.path("qemu")).unwrap());
        qemu
    }

    /// Boots the machine and waits until it is off.
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
                // The program prints this message after its first search for the drive, even on a slow machine.
                if seen.is_none() && self.console().contains("requested storage drivers from modprobe") {
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

    /// Returns the path of a file with the console output and the report. The file is kept after the test.
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

    /// Plugs the drive with this number into the PCI port `late`.
    fn plug(&self, number: usize) -> io::Result<()> {
        let mut socket = UnixStream::connect(self.path("qmp"))?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut answers = BufReader::new(socket.try_clone()?).lines();
        // QEMU first sends a greeting. Then it answers each command with one line, mixed with lines about events.
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
    /// Returns the part of the report with this title.
    pub(crate) fn part(&self, title: &str) -> &str {
        self.parts.get(title).map_or("", String::as_str)
    }

    fn lines(&self, title: &str) -> Vec<String> {
        self.part(title).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    fn addresses(&self, title: &str) -> Vec<String> {
        let addresses = self.lines(title).into_iter().filter_map(|line| {
            // A line is `2: eno101 inet 192.168.1.100/24 brd …`.
            let words: Vec<_> = line.split(' ').collect();
            let (nic, address) = (words[1], words[3]);
            (nic != "lo" && !address.starts_with("fe80:")).then(|| format!("{nic} {address}"))
        });
        addresses.collect()
    }

    /// Returns the addresses at the end of the initramfs, in the form of [`Found::addresses`].
    pub(crate) fn addresses_of_the_initramfs(&self) -> Vec<String> {
        self.addresses("network of the initramfs")
    }

    /// Parses the network of the real root.
    pub(crate) fn found(&self) -> Found {
        // The kernel adds these routes to every NIC that is up.
        let is_own = |route: &String| route.starts_with("fe80::/64 ") || route.starts_with("multicast ff00::/8 ");
        let resolver = self.lines("resolv.conf");
        Found {
            addresses: self.addresses("addresses"),
            routes: self.lines("routes").into_iter().filter(|route| !is_own(route)).collect(),
            nameservers: resolver
                .iter()
                .filter_map(|line| line.strip_prefix("nameserver "))
                .map(str::to_owned)
                .collect(),
        }
    }

    /// Returns the MTU of an interface.
    pub(crate) fn mtu(&self, nic: &str) -> Option<u32> {
        // The lines are `2: eno101: <…> mtu 1500 …` and `3: eno101.7@eno101: <…> mtu …`.
        let lines = self.lines("links");
        let line = lines.iter().find(|line| {
            let name = line.split(' ').nth(1).unwrap_or_default().trim_end_matches(':');
            name.split('@').next() == Some(nic)
        })?;
        line.split_once(" mtu ")?.1.split(' ').next()?.parse().ok()
    }

    /// Returns the names of the members of a bond.
    pub(crate) fn ports(&self, bond: &str) -> Vec<String> {
        let is_port = |line: &&String| line.contains(&format!(" master {bond} "));
        let name = |line: &String| line.split(' ').nth(1).map(|name| name.trim_end_matches(':').to_owned());
        self.lines("links").iter().filter(is_port).filter_map(name).collect()
    }

    /// Returns the `plan.json` that the program wrote.
    pub(crate) fn plan(&self) -> serde_json::Value {
        serde_json::from_str(self.part("plan")).unwrap_or_default()
    }

    /// Returns the fragment that the program wrote for dracut.
    pub(crate) fn fragment(&self) -> &str {
        self.part("fragment").trim_end()
    }

    /// Returns a property of a unit, as it is at the end of the initramfs.
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

    /// Returns whether the machine stopped in emergency mode and did not reach the real root.
    pub(crate) fn is_emergency(&self) -> bool {
        self.parts.contains_key("emergency")
    }

    /// Returns the lines that our unit printed on the console.
    pub(crate) fn messages(&self) -> Vec<&str> {
        let lines = self.console.lines().filter_map(|line| Some(line.split_once("glowplug[")?.1.split_once("]: ")?.1));
        lines.collect()
    }

    /// Returns the debug messages of our unit, each with the time since the start of the kernel.
    fn stamps(&self) -> Vec<(String, Duration)> {
        let stamp = |line: &str| {
            let (printed, seconds) = line.split_once("]: ")?.1.split_once(" monotonic=")?;
            let words: Vec<&str> = printed.split(' ').take_while(|word| !word.contains('=')).collect();
            Some((words.join(" "), Duration::from_secs_f64(seconds.parse().ok()?)))
        };
        self.part("journal").lines().filter_map(stamp).collect()
    }

    /// Prints how long our unit ran, when the network was up, and the time of each step of our unit.
    pub(crate) fn print_figures(&self, title: &str) {
        const UNIT: &str = "glowplug-network-kargs.service";
        const PRELOAD: &str = "modprobe@virtio_blk.service";
        let moment = |unit: &str, property: &str| self.moment(unit, property).unwrap_or_default();
        let between = |unit, from, to| moment(unit, to).saturating_sub(moment(unit, from));
        let unit = between(UNIT, "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic");
        let search = Duration::from_millis(self.plan()["drive"]["waited_ms"].as_u64().unwrap_or(0));
        let preload = between(PRELOAD, "ExecMainStartTimestampMonotonic", "ExecMainExitTimestampMonotonic");
        print_line(&format_args!(
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
            print_line(&format_args!("boot: {title}: {:4} ms {step}", at.saturating_sub(start).as_millis()));
        }
    }
}

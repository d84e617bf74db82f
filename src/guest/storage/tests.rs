//! Tests of the search: which drive it chooses, how the drive is read, and what is logged. A directory stands for the
//! machine.

use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::{Arc, Mutex};

use mockall::Sequence;
use tempfile::TempDir;

use super::super::system::MockSystem;
use super::sysfs::SMALL;
use super::*;
use crate::diagnostic::{Diagnostic, Severity};
use crate::drive::{FileSystem, Layout};

const OWN: &str = "6aa1c2f8-39e5-5b71-8d0f-2c5f3b8f7d10";
const OTHER: &str = "11111111-2222-3333-4444-555555555555";

// === a machine in a directory ===

/// A root directory, a clock that moves only during a sleep, and the log.
struct FakeMachine {
    root: Arc<TempDir>,
    system: MockSystem,
    lines: Arc<Mutex<Vec<String>>>,
    known: bool,
    any_drive: bool,
    uses_metadata: bool,
}

/// Result of a search. `Found` may contain an error, so its values cannot be compared.
#[derive(Debug, Eq, PartialEq)]
struct Answer {
    device: String,
    label: String,
    layout: Option<Layout>,
    uuid: Option<String>,
    network: Option<String>,
    waited: Duration,
    why: Why,
}

impl FakeMachine {
    /// Makes a machine on KubeVirt with this uuid and no device. The kernel of the machine mounts nothing.
    fn new(uuid: Option<&str>) -> Self {
        Self::unmountable(uuid, Errno::EBUSY)
    }

    fn unmountable(uuid: Option<&str>, errno: Errno) -> Self {
        let mut machine = Self::with_clock(uuid, |_, _| {});
        machine.refuse(errno);
        machine
    }

    /// Makes a machine whose clock moves only during a sleep. `happens` is called after each sleep, with the number of
    /// the sleep.
    fn with_clock(uuid: Option<&str>, mut happens: impl FnMut(&Path, u64) + Send + 'static) -> Self {
        let mut machine = Self::without_sleep(uuid);
        let clock = Arc::new(Mutex::new((Duration::from_secs(7), 0)));
        let (read, root) = (clock.clone(), machine.root.clone());
        machine.system.checkpoint();
        machine.system.expect_now().returning(move || read.lock().unwrap().0);
        machine.system.expect_sleep().returning(move |time| {
            let mut clock = clock.lock().unwrap();
            *clock = (clock.0 + time, clock.1 + 1);
            happens(root.path(), clock.1);
        });
        machine
    }

    /// Makes a machine on which a sleep fails the test.
    fn without_sleep(uuid: Option<&str>) -> Self {
        let root = Arc::new(tempfile::tempdir().unwrap());
        let mut system = MockSystem::new();
        system.expect_now().return_const(Duration::from_secs(7));
        let machine = Self { root, system, lines: Arc::default(), known: true, any_drive: false, uses_metadata: false };
        if let Some(uuid) = uuid {
            machine.file("sys/class/dmi/id/product_uuid", format!("{uuid}\n"));
        }
        machine
    }

    fn refuse(&mut self, errno: Errno) {
        self.system.expect_mount_read_only().returning(move |_, _, _| Err(errno.into()));
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        file(self.root.path(), path, content);
    }

    fn device(&self, name: &str, content: impl AsRef<[u8]>) {
        device(self.root.path(), name, content);
    }

    /// Adds a device to a bus, with these attributes.
    fn on_bus(&self, bus: &str, name: &str, attributes: &[(&str, &str)]) {
        for (attribute, value) in attributes {
            self.file(&format!("sys/bus/{bus}/devices/{name}/{attribute}"), format!("{value}\n"));
        }
    }

    fn on_pci(&self, class: &str, vendor: &str, device: &str, alias: &str) {
        let slot = format!("0000:00:{}", &device[4..]);
        let ids = [("class", class), ("vendor", vendor), ("device", device), ("modalias", alias)];
        self.on_bus("pci", &slot, &ids);
    }

    /// Expects one call of modprobe with these names.
    fn expects(&mut self, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        self.system.expect_load_modules().withf(move |asked| asked == names).times(1).returning(|_| Ok(()));
    }

    fn search(&self) -> Result<Option<Answer>, SearchError> {
        Ok(self.run()?.map(Answer::from))
    }

    fn run(&self) -> Result<Option<Found>, SearchError> {
        let log = Logger::root(Lines(self.lines.clone()), slog::o!());
        let search = Search {
            root: self.root.path(),
            system: &self.system,
            log: &log,
            machine_known: self.known,
            any_drive: self.any_drive,
            uses_metadata: self.uses_metadata,
            wait: Duration::from_millis(100),
            poll: Search::POLL,
        };
        search.run()
    }

    fn found(&self) -> Option<Answer> {
        self.search().unwrap()
    }

    fn error(&self) -> String {
        let error = self.search().unwrap_err();
        Chain(&error).to_string()
    }

    /// Returns the log without debug messages.
    fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| !line.starts_with("DEBG")).cloned().collect()
    }

    fn left_behind(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.path().join("run/glowplug")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl From<Found> for Answer {
    fn from(found: Found) -> Self {
        let layout = found.drive.as_ref().map(|drive| drive.layout);
        let network = found.drive.map_or(Ok(None), |drive| drive.network);
        Self {
            device: found.device.display().to_string(),
            label: found.volume.label,
            layout,
            uuid: found.meta_data.uuid,
            network: match network {
                Ok(document) => document.map(|document| String::from_utf8(document.bytes).unwrap()),
                Err(e) => Some(Chain(&e).to_string()),
            },
            waited: found.waited,
            why: found.why,
        }
    }
}

/// Expected result of a search that chooses a drive of [`config_2`].
fn answer(device: &str, uuid: &str, network: &str, waited: u64, why: Why) -> Answer {
    Answer {
        device: device.to_owned(),
        label: "config-2".to_owned(),
        layout: Some(Layout::OpenStack { latest_only: true }),
        uuid: (!uuid.is_empty()).then(|| uuid.to_owned()),
        network: Some(network.to_owned()),
        waited: Duration::from_millis(waited),
        why,
    }
}

/// Stores log messages as lines.
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl slog::Drain for Lines {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &slog::Record<'_>, values: &slog::OwnedKVList) -> Result<(), slog::Never> {
        let mut line = Line(format!("{} {}", record.level().as_short_str(), record.msg()));
        slog::KV::serialize(&record.kv(), record, &mut line).unwrap();
        slog::KV::serialize(values, record, &mut line).unwrap();
        self.0.lock().unwrap().push(line.0);
        Ok(())
    }
}

impl slog::Serializer for Line {
    fn emit_arguments(&mut self, key: slog::Key, value: &fmt::Arguments<'_>) -> slog::Result {
        self.0 += &format!(" {key}={value}");
        Ok(())
    }
}

fn file(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn device(root: &Path, name: &str, content: impl AsRef<[u8]>) {
    let size = content.as_ref().len() / 512;
    file(root, &format!("sys/class/block/{name}/size"), format!("{size}\n"));
    file(root, &format!("dev/{}", name.replace('!', "/")), content);
}

// === drives ===

/// An image as KubeVirt makes it, with this uuid and this network document.
fn config_2(uuid: &str, network: &str) -> Vec<u8> {
    let uuid = if uuid.is_empty() { String::new() } else { format!(r#","uuid":"{uuid}""#) };
    let meta_data = format!(r#"{{"instance_id":"worker-0.clusters"{uuid}}}"#);
    let files =
        [("openstack/latest/meta_data.json", meta_data.as_str()), ("openstack/latest/network_data.json", network)];
    image("config-2", &files)
}

fn image(label: &str, files: &[(&str, &str)]) -> Vec<u8> {
    let made = tempfile::tempdir().unwrap();
    let (tree, image) = (made.path().join("tree"), made.path().join("image"));
    fs::create_dir(&tree).unwrap();
    for (path, content) in files {
        file(&tree, path, content);
    }
    let mut xorrisofs = Command::new("xorrisofs");
    xorrisofs.args(["-quiet", "-joliet", "-rock", "-volid", label, "-o"]).args([&image, &tree]);
    let output = match xorrisofs.output() {
        Ok(output) => output,
        Err(e) => panic!("xorrisofs: {e}: install the Debian package xorriso"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read(image).unwrap()
}

/// An image with the label `config-2`. Its files cannot be read in process.
fn torn() -> Vec<u8> {
    let mut image = vec![0; 0x9000];
    image[0x8000..0x8007].copy_from_slice(b"\x01CD001\x01");
    image[0x8028..0x8048].fill(b' ');
    image[0x8028..0x8030].copy_from_slice(b"config-2");
    image
}

// === which drive ===

#[test]
fn the_own_drive_of_the_machine_is_used_without_a_wait() {
    let mut machine = FakeMachine::without_sleep(Some(&OWN.to_uppercase()));
    machine.refuse(Errno::EBUSY);
    machine.on_pci("0x010601", "0x8086", "0x2922", "pci:ahci");
    machine.device("vda", vec![1; 0x10000]);
    machine.device("vdb", config_2(OWN, "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 0, Why::OwnUuid)));
    let line = "INFO found config drive waited_ms=0 why=own-uuid label=config-2 file_system=iso9660 device=/dev/vdb";
    assert_eq!(machine.lines(), [line]);
}

#[test]
fn the_search_waits_for_a_drive_that_appears_late() {
    let image = config_2(OWN, "{}");
    let mut machine = FakeMachine::with_clock(Some(OWN), move |root, nth| {
        if nth == 3 {
            device(root, "sr0", &image);
        }
    });
    machine.refuse(Errno::EBUSY);
    assert_eq!(machine.found(), Some(answer("/dev/sr0", OWN, "{}", 60, Why::OwnUuid)));
}

/// On a slow machine the drivers alone may take longer than the wait, and their devices appear afterwards.
#[test]
fn the_wait_begins_when_the_drivers_are_loaded() {
    let image = config_2(OWN, "{}");
    let mut machine = FakeMachine::without_sleep(Some(OWN));
    let clock = Arc::new(Mutex::new(Duration::ZERO));
    let (read, loading, root) = (clock.clone(), clock.clone(), machine.root.clone());
    machine.system.checkpoint();
    machine.system.expect_now().returning(move || *read.lock().unwrap());
    machine.system.expect_load_modules().times(1).returning(move |_| {
        *loading.lock().unwrap() += Duration::from_secs(14);
        Ok(())
    });
    machine.system.expect_sleep().returning(move |time| {
        *clock.lock().unwrap() += time;
        device(root.path(), "sda", &image);
    });
    machine.refuse(Errno::EBUSY);
    machine.on_pci("0x0c0330", "0x1b36", "0x000d", "pci:xhci");
    assert_eq!(machine.found(), Some(answer("/dev/sda", OWN, "{}", 14_020, Why::OwnUuid)));
}

#[test]
fn a_device_that_is_listed_before_it_can_be_opened_is_examined_again() {
    let image = config_2(OWN, "{}");
    let mut machine = FakeMachine::with_clock(Some(OWN), move |root, nth| {
        if nth == 2 {
            device(root, "vdb", &image);
        }
    });
    machine.refuse(Errno::EBUSY);
    machine.file("sys/class/block/vdb/size", "2048\n");
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 40, Why::OwnUuid)));
}

#[test]
fn a_medium_that_is_inserted_late_is_read() {
    let image = config_2(OWN, "{}");
    let mut machine = FakeMachine::with_clock(Some(OWN), move |root, nth| {
        if nth == 2 {
            fs::remove_file(root.join("dev/sr0")).unwrap();
            device(root, "sr0", &image);
        }
    });
    machine.refuse(Errno::EBUSY);
    machine.device("sr0", "");
    machine.file("sys/class/block/sr0/size", "2097151\n");
    // Opening a socket fails with ENXIO.
    fs::remove_file(machine.root.path().join("dev/sr0")).unwrap();
    let _socket = UnixListener::bind(machine.root.path().join("dev/sr0")).unwrap();
    assert_eq!(machine.found(), Some(answer("/dev/sr0", OWN, "{}", 40, Why::OwnUuid)));
}

#[test]
fn a_device_that_fails_does_not_end_the_search() {
    let machine = FakeMachine::new(None);
    failing_device(machine.root.path(), "sda");
    machine.device("vdb", config_2("", "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", "", "{}", 0, Why::Shape)));
    let line = format!("WARN ignored a device reason={} device=/dev/sda", io::Error::from(Errno::EIO));
    assert_eq!(machine.lines()[0], line);
}

/// Adds a device that can be opened, but whose reads fail with EIO: nothing is mapped at the start of `/proc/self/mem`.
fn failing_device(root: &Path, name: &str) {
    file(root, &format!("sys/class/block/{name}/size"), "2048\n");
    fs::create_dir_all(root.join("dev")).unwrap();
    symlink("/proc/self/mem", root.join("dev").join(name)).unwrap();
}

#[test]
fn a_failing_device_is_an_error_because_it_may_be_the_own_drive_of_the_machine() {
    let expected = format!("reading /dev/sda: {}", io::Error::from(Errno::EIO));
    for uuid in [OTHER, ""] {
        let machine = FakeMachine::new(Some(OWN));
        failing_device(machine.root.path(), "sda");
        assert_eq!(machine.error(), expected);
        machine.device("vdb", config_2(uuid, "{}"));
        assert_eq!(machine.error(), expected);
    }
}

#[test]
fn a_drive_that_is_removed_during_the_read_is_an_error_unless_it_appears_again() {
    let gone = |root: &Path| {
        fs::remove_dir_all(root.join("sys/class/block/vdb")).unwrap();
        fs::remove_file(root.join("dev/vdb")).unwrap();
    };
    let mut machine = FakeMachine::with_clock(Some(OWN), move |root, nth| {
        if nth == 1 {
            gone(root);
        }
    });
    machine.refuse(Errno::EBUSY);
    machine.device("vdb", torn());
    let expected = "reading config drive /dev/vdb: invalid block size of the volume, expected 2048 bytes";
    assert_eq!(machine.error(), expected);

    let image = config_2(OWN, "{}");
    let mut machine = FakeMachine::with_clock(Some(OWN), move |root, nth| match nth {
        1 => gone(root),
        2 => device(root, "vdb", &image),
        _ => {}
    });
    machine.refuse(Errno::EBUSY);
    machine.device("vdb", torn());
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 40, Why::OwnUuid)));
}

#[test]
fn the_wait_ends_after_one_more_scan_if_the_clock_jumps() {
    let image = config_2(OWN, "{}");
    for comes in [true, false] {
        let mut machine = FakeMachine::without_sleep(Some(OWN));
        machine.system.checkpoint();
        let clock = Arc::new(Mutex::new(Duration::ZERO));
        let (read, root, image) = (clock.clone(), machine.root.clone(), image.clone());
        machine.system.expect_now().returning(move || *read.lock().unwrap());
        // The clock jumps by a year, as on a machine that was halted for a year.
        machine.system.expect_sleep().times(1).returning(move |_| {
            *clock.lock().unwrap() += Duration::from_secs(365 * 24 * 3600);
            if comes {
                device(root.path(), "vdb", &image);
            }
        });
        machine.refuse(Errno::EBUSY);
        assert_eq!(machine.found().map(|found| found.device), comes.then(|| "/dev/vdb".to_owned()));
    }
}

#[test]
fn the_own_drive_is_preferred_to_the_earlier_drive_of_a_clone() {
    let (own, clone) = (config_2(OWN, "own"), config_2(OTHER, "clone"));
    let mut machine = FakeMachine::with_clock(Some(OWN), move |root, nth| {
        if nth == 4 {
            device(root, "vdb", &own);
        }
    });
    machine.refuse(Errno::EBUSY);
    machine.device("sda", &clone);
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "own", 80, Why::OwnUuid)));
}

#[test]
fn the_own_drive_is_preferred_to_an_earlier_drive_without_a_uuid() {
    let own = config_2(OWN, "own");
    let mut machine = FakeMachine::with_clock(Some(OWN), move |root, nth| {
        if nth == 3 {
            device(root, "sr0", &own);
        }
    });
    machine.refuse(Errno::EBUSY);
    machine.device("vda", config_2("", "other"));
    assert_eq!(machine.found(), Some(answer("/dev/sr0", OWN, "own", 60, Why::OwnUuid)));
}

/// KubeVirt writes no uuid on the drive of a VirtualMachineInstance whose firmware has a serial number and no uuid.
#[test]
fn a_drive_without_the_uuid_of_the_machine_is_used_at_the_end_of_the_wait() {
    for (uuid, serial) in [(OWN, ""), (RANDOM, "4be3")] {
        let machine = FakeMachine::new(Some(uuid));
        machine.file("sys/class/dmi/id/product_serial", format!("{serial}\n"));
        machine.device("vdb", config_2("", "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", "", "{}", 100, Why::Shape)));
        let line = format!("WARN using a config drive without the uuid of the machine expected={uuid} device=/dev/vdb");
        assert_eq!(machine.lines()[1..], [line]);
    }
}

#[test]
fn a_drive_without_a_uuid_is_used_without_a_wait_if_the_machine_has_a_random_uuid() {
    let mut machine = FakeMachine::without_sleep(Some(RANDOM));
    machine.refuse(Errno::EBUSY);
    machine.device("vdb", config_2("", "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", "", "{}", 0, Why::Shape)));
    let line = "INFO found config drive waited_ms=0 why=shape label=config-2 file_system=iso9660 device=/dev/vdb";
    assert_eq!(machine.lines(), [line]);
}

#[test]
fn the_own_drive_is_preferred_to_a_drive_without_a_uuid_and_with_another_network() {
    let machine = FakeMachine::new(Some(OWN));
    machine.device("sda", config_2("", "without"));
    machine.device("vdb", config_2(OWN, "own"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "own", 0, Why::OwnUuid)));
}

#[test]
fn the_drive_of_another_machine_is_an_error() {
    let machine = FakeMachine::new(Some(OWN));
    machine.device("vdb", config_2(OTHER, "{}"));
    let expected = format!(
        "/dev/vdb: config drive of another machine, uuid {OTHER:?}, expected {OWN}; \
         use the drive with --any-drive or glowplug.any-drive"
    );
    assert_eq!(machine.error(), expected);
    assert_eq!(machine.lines(), [""; 0]);
}

/// A uuid of version 4, as libvirt makes it.
const RANDOM: &str = "6aa1c2f8-39e5-4b71-8d0f-2c5f3b8f7d10";

/// A VirtualMachineInstance without `spec.domain.firmware` has two random uuids: one in the firmware, and another on
/// the drive.
#[test]
fn the_only_drive_of_a_virtual_machine_instance_without_firmware_is_used() {
    for serial in [None, Some("\n"), Some(" \n")] {
        let machine = FakeMachine::new(Some(RANDOM));
        if let Some(serial) = serial {
            machine.file("sys/class/dmi/id/product_serial", serial);
        }
        machine.device("vdb", config_2(OTHER, "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", OTHER, "{}", 0, Why::Shape)));
        let reason = "the firmware has a random uuid and no serial number, as for a VirtualMachineInstance without \
                      spec.domain.firmware";
        let line = format!(
            "INFO cannot compare the drive with the machine reason={reason} own={RANDOM} uuid={OTHER} device=/dev/vdb"
        );
        assert_eq!(machine.lines()[0], line);
    }
}

#[test]
fn drives_that_disagree_are_an_error_on_a_machine_with_a_random_uuid() {
    let machine = FakeMachine::new(Some(RANDOM));
    machine.device("sr0", config_2(OWN, "{}"));
    machine.device("vdb", config_2(OTHER, "{} "));
    let expected = "/dev/sr0, /dev/vdb: config drives that disagree about the network, expected one drive or the same network on each";
    assert_eq!(machine.error(), expected);
}

/// A user can set any uuid for the firmware of a VirtualMachineInstance. KubeVirt writes this uuid on the drive, too.
#[test]
fn a_drive_with_the_random_uuid_of_the_machine_is_its_own_drive() {
    let machine = FakeMachine::new(Some(RANDOM));
    machine.device("sr0", config_2(OTHER, "other"));
    machine.device("vdb", config_2(RANDOM, "own"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", RANDOM, "own", 0, Why::OwnUuid)));
}

#[test]
fn another_uuid_is_an_error_if_the_machine_has_a_random_uuid_and_a_serial_number() {
    let machine = FakeMachine::new(Some(RANDOM));
    machine.file("sys/class/dmi/id/product_serial", "4be3\n");
    machine.device("vdb", config_2(OTHER, "{}"));
    let expected = format!(
        "/dev/vdb: config drive of another machine, uuid {OTHER:?}, expected {RANDOM}; \
         use the drive with --any-drive or glowplug.any-drive"
    );
    assert_eq!(machine.error(), expected);
}

#[test]
fn a_small_drive_of_the_machine_is_used_before_larger_devices_are_read() {
    let mut machine = FakeMachine::without_sleep(Some(OWN));
    machine.refuse(Errno::EBUSY);
    failing_device(machine.root.path(), "sda");
    machine.file("sys/class/block/sda/size", format!("{}\n", SMALL + 1));
    machine.device("vdb", config_2(OWN, "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 0, Why::OwnUuid)));
    let lines = machine.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("INFO found config drive "), "{lines:?}");
}

/// The root disk of CoreOS has a partition of 1 MiB.
#[test]
fn a_partition_of_any_size_is_read_after_small_drives() {
    let mut machine = FakeMachine::without_sleep(Some(OWN));
    machine.refuse(Errno::EBUSY);
    failing_device(machine.root.path(), "vda1");
    machine.file("sys/class/block/vda1/partition", "1\n");
    machine.device("vdb", config_2(OWN, "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 0, Why::OwnUuid)));
    let lines = machine.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn a_large_drive_with_the_uuid_of_the_machine_is_used() {
    let mut machine = FakeMachine::without_sleep(Some(OWN));
    machine.refuse(Errno::EBUSY);
    machine.device("sda", config_2(OWN, "{}"));
    machine.file("sys/class/block/sda/size", format!("{}\n", SMALL + 1));
    machine.device("vdb", config_2(OTHER, "other"));
    assert_eq!(machine.found(), Some(answer("/dev/sda", OWN, "{}", 0, Why::OwnUuid)));
}

#[test]
fn the_log_explains_why_each_other_drive_was_not_used() {
    let mut machine = FakeMachine::without_sleep(Some(OWN));
    machine.refuse(Errno::EBUSY);
    machine.device("sda", config_2(OTHER, "other"));
    machine.device("sdb", config_2("", "shape"));
    machine.device("vdb", config_2(OWN, "own"));
    machine.device("vdc", config_2(OWN, "own"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "own", 0, Why::OwnUuid)));
    let not_taken = |device: &str, reason: &str| {
        format!("INFO did not use a config drive reason={reason} label=config-2 device={device}")
    };
    let expected = [
        not_taken("/dev/sda", "its uuid is another machine's"),
        not_taken("/dev/sdb", "/dev/vdb has the uuid of this machine"),
        not_taken("/dev/vdc", "/dev/vdb has the same network"),
    ];
    assert_eq!(machine.lines()[1..4], expected);
}

#[test]
fn the_drive_of_another_machine_is_used_last_and_only_with_any_drive() {
    let mut machine = FakeMachine::new(Some(OWN));
    machine.any_drive = true;
    machine.device("vdb", config_2(OTHER, "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OTHER, "{}", 100, Why::NothingBetter)));
    let line =
        format!("WARN using the config drive of another machine, as any-drive allows uuid={OTHER} device=/dev/vdb");
    assert_eq!(machine.lines()[1], line);
}

#[test]
fn if_the_machine_or_the_drive_has_no_uuid_the_shape_of_the_drive_decides() {
    let other = [("openstack/latest/meta_data.json", "{}"), ("openstack/2018-08-27/network_data.json", "")];
    for (uuid, drive, waited) in
        [(Some(OWN), "", 100), (None, OWN, 0), (Some("00000000-0000-0000-0000-000000000000"), OWN, 0)]
    {
        let machine = FakeMachine::new(uuid);
        machine.device("sda", image("config-2", &other));
        machine.device("vdb", config_2(drive, "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", drive, "{}", waited, Why::Shape)));
    }
}

#[test]
fn drives_with_the_same_network_count_as_one_drive() {
    let machine = FakeMachine::new(None);
    machine.device("vdb", config_2("", "{}"));
    machine.device("sr0", config_2(OTHER, "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/sr0", "", "{}", 0, Why::Shape)));
    let line = "INFO several drives have the same network devices=/dev/sr0, /dev/vdb";
    assert_eq!(machine.lines()[0], line);
}

/// Stock capk writes a drive with user data and no network. A clone has such a drive, too.
#[test]
fn of_drives_with_different_metadata_none_decides_the_hostname_or_the_ssh_keys() {
    let drive = |hostname: &str, network: &[(&str, &str)]| {
        let meta_data = format!(r#"{{"instance_id":"{hostname}.clusters","hostname":"{hostname}"}}"#);
        image("config-2", &[&[("openstack/latest/meta_data.json", meta_data.as_str())], network].concat())
    };
    for network in [&[][..], &[("openstack/latest/network_data.json", "{}")]] {
        let mut machine = FakeMachine::new(None);
        machine.device("vda", drive("evil", network));
        machine.device("vdb", drive("worker-0", network));
        let found = machine.run().unwrap().unwrap();
        let problem = "the metadata differs on /dev/vda, /dev/vdb";
        let diagnostics = vec![Diagnostic::without_value(
            Severity::Warning,
            "document",
            problem,
            "one drive, or the same metadata on each",
        )];
        assert_eq!(found.device, PathBuf::from("/dev/vda"));
        assert_eq!(found.meta_data, MetaData { diagnostics, ..MetaData::unread() });

        machine.uses_metadata = true;
        let expected = "/dev/vda, /dev/vdb: config drives that disagree about the metadata, expected one drive or the same metadata on each";
        machine.lines.lock().unwrap().clear();
        assert_eq!((machine.error().as_str(), machine.lines()), (expected, Vec::new()));
        machine.device("vda", drive("worker-0", network));
        let found = machine.run().unwrap().unwrap();
        assert_eq!(found.meta_data.hostname.as_deref(), Some("worker-0"));
    }
}

#[test]
fn other_drives_with_a_network_are_reported() {
    let machine = FakeMachine::new(Some(OWN));
    let own = format!(r#"{{"instance_id":"worker-0.clusters","uuid":"{OWN}"}}"#);
    let nocloud = [("meta-data", "instance-id: i-1\n"), ("network-config", "version: 2\n")];
    machine.device("vdb", image("config-2", &[("openstack/latest/meta_data.json", &own)]));
    machine.device("vdc", image("cidata", &nocloud));
    machine.device("vdd", image("cidata", &nocloud[..1]));
    machine.device("vde", config_2(OTHER, "{}"));
    let found = machine.run().unwrap().unwrap();
    assert_eq!((found.device, found.others), (PathBuf::from("/dev/vdb"), vec![PathBuf::from("/dev/vdc")]));
}

#[test]
fn drives_that_disagree_are_an_error() {
    let machine = FakeMachine::new(None);
    machine.device("vdb", config_2("", "{}"));
    machine.device("sr0", config_2("", "{} "));
    let expected = "/dev/sr0, /dev/vdb: config drives that disagree about the network, expected one drive or the same network on each";
    assert_eq!(machine.error(), expected);
}

#[test]
fn drives_that_disagree_do_not_matter_after_the_own_drive_has_appeared() {
    let own = config_2(RANDOM, "own");
    let mut machine = FakeMachine::with_clock(Some(RANDOM), move |root, nth| {
        if nth == 2 {
            device(root, "vdc", &own);
        }
    });
    machine.refuse(Errno::EBUSY);
    machine.device("sr0", config_2("", "{}"));
    machine.device("vdb", config_2("", "{} "));
    assert_eq!(machine.found(), Some(answer("/dev/vdc", RANDOM, "own", 40, Why::OwnUuid)));
}

#[test]
fn two_drives_with_the_uuid_of_the_machine_are_an_error_at_once_if_they_disagree() {
    let mut machine = FakeMachine::without_sleep(Some(OWN));
    machine.refuse(Errno::EBUSY);
    machine.device("sr0", config_2(OWN, "{}"));
    machine.device("vdb", config_2(OWN, "{} "));
    let expected = "/dev/sr0, /dev/vdb: config drives that disagree about the network, expected one drive or the same network on each";
    assert_eq!(machine.error(), expected);
}

#[test]
fn the_label_of_a_drive_can_be_in_upper_or_lower_case() {
    let machine = FakeMachine::new(Some(OWN));
    let meta_data = format!(r#"{{"instance-id":"{OWN}","local-hostname":"worker-0"}}"#);
    machine.device("vdb", image("CIDATA", &[("meta-data", &meta_data)]));
    let expected = Answer {
        label: "CIDATA".to_owned(),
        layout: Some(Layout::NoCloud),
        network: None,
        ..answer("/dev/vdb", OWN, "", 0, Why::OwnUuid)
    };
    assert_eq!(machine.found(), Some(expected));
}

#[test]
fn a_drive_without_a_known_layout_is_used_and_has_no_network() {
    let machine = FakeMachine::new(Some(OWN));
    machine.device("vdb", image("config-2", &[("user-data", "")]));
    let expected = Answer { layout: None, network: None, ..answer("/dev/vdb", "", "", 100, Why::Label) };
    assert_eq!(machine.found(), Some(expected));
}

#[test]
fn unreadable_metadata_does_not_affect_the_network() {
    let machine = FakeMachine::new(Some(OWN));
    machine.device("vdb", image("cidata", &[("meta-data", "a: b: c\n"), ("network-config", "{}")]));
    let expected = Answer {
        label: "cidata".to_owned(),
        layout: Some(Layout::NoCloud),
        ..answer("/dev/vdb", "", "{}", 100, Why::Label)
    };
    assert_eq!(machine.found(), Some(expected));
    let line = "WARN warning about the machine's document diagnostic=line 1 column 5: not readable as YAML \
                \"mapping values are not allowed in this context\", expected a JSON or YAML document \
                path=meta-data device=/dev/vdb";
    assert_eq!(machine.lines()[0], line);
}

#[test]
fn a_missing_drive_is_logged() {
    let machine = FakeMachine::new(Some(OWN));
    machine.device("vda", image("root", &[]));
    // During a live migration an empty device stands in for the drive.
    machine.device("vdb", vec![0; 0x100000]);
    machine.device("sr0", "");
    for name in ["loop0", "ram0", "zram0", "dm-0", "md127", "nbd0", "fd0"] {
        machine.device(name, config_2(OWN, "{}"));
    }
    assert_eq!(machine.found(), None);
    assert_eq!(machine.lines(), ["WARN no config drive devices=/dev/sr0, /dev/vda, /dev/vdb waited_ms=100"]);
}

#[test]
fn a_machine_without_block_devices_has_no_drive() {
    let machine = FakeMachine::new(Some(OWN));
    assert_eq!(machine.found(), None);
    assert_eq!(machine.lines(), ["WARN no config drive devices= waited_ms=100"]);
}

#[test]
fn a_device_in_a_subdirectory_is_named_by_its_path() {
    let machine = FakeMachine::new(Some(OWN));
    machine.device("cciss!c0d0", config_2(OWN, "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/cciss/c0d0", OWN, "{}", 0, Why::OwnUuid)));
}

#[test]
fn a_broken_drive_is_skipped_if_another_drive_exists() {
    let machine = FakeMachine::new(None);
    machine.device("sda", torn());
    machine.device("vdb", config_2("", "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", "", "{}", 0, Why::Shape)));
}

#[test]
fn a_broken_drive_alone_is_an_error_with_its_cause() {
    let machine = FakeMachine::new(Some(OWN));
    machine.device("vdb", torn());
    assert_eq!(machine.error(), "reading config drive /dev/vdb: invalid block size of the volume, expected 2048 bytes");
}

#[test]
fn a_broken_drive_is_reported_instead_of_a_drive_without_the_uuid_of_the_machine() {
    for uuid in [OTHER, ""] {
        let machine = FakeMachine::new(Some(OWN));
        machine.device("sda", config_2(uuid, "{}"));
        machine.device("vdb", torn());
        let expected = "reading config drive /dev/vdb: invalid block size of the volume, expected 2048 bytes";
        assert_eq!(machine.error(), expected);
    }
}

#[test]
fn a_missing_permission_has_its_own_error() {
    let source = io::Error::from(Errno::EACCES);
    let error = SearchError::Permission { device: PathBuf::from("/dev/vdb"), source };
    let expected = "/dev/vdb: not allowed to read the device, expected root with the right to read block devices: \
                    Permission denied (os error 13)";
    assert_eq!(Chain(&error).to_string(), expected);
}

// === a machine of unknown platform ===

#[test]
fn on_a_machine_of_unknown_platform_the_devices_are_examined_only_once() {
    let mut machine = FakeMachine::without_sleep(Some(OWN));
    machine.known = false;
    machine.on_pci("0x010601", "0x8086", "0x2922", "pci:ahci");
    machine.device("vda", image("root", &[]));
    assert_eq!(machine.found(), None);
    assert_eq!(machine.lines(), [""; 0]);
    assert!(!machine.root.path().join("run").exists());
}

#[test]
fn a_drive_with_the_shape_of_kubevirt_identifies_the_platform() {
    for (own, why) in [(Some(OWN), Why::OwnUuid), (None, Why::Shape)] {
        let mut machine = FakeMachine::without_sleep(own);
        machine.refuse(Errno::EBUSY);
        machine.known = false;
        machine.device("vdb", config_2(OWN, "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 0, why)));

        let mut machine = FakeMachine::without_sleep(own);
        machine.refuse(Errno::EBUSY);
        machine.known = false;
        let meta_data = format!(r#"{{"instance-id":"{OWN}"}}"#);
        machine.device("vdb", image("cidata", &[("meta-data", &meta_data)]));
        let (label, layout) = ("cidata".to_owned(), Some(Layout::NoCloud));
        let expected = Answer { label, layout, network: None, ..answer("/dev/vdb", OWN, "", 0, why) };
        assert_eq!(machine.found(), Some(expected));
    }
}

#[test]
fn a_drive_of_another_shape_does_not_identify_the_platform() {
    let uuid = format!(r#"{{"uuid":"{OWN}","instance_id":"i-00000001"}}"#);
    let dated = format!(r#"{{"uuid":"{OWN}","instance_id":"worker-0.clusters"}}"#);
    let drives = [
        config_2(OTHER, "{}"),
        image("config-2", &[("openstack/latest/meta_data.json", &uuid)]),
        image("config-2", &[("openstack/latest/meta_data.json", &dated), ("openstack/2018-08-27/a", "")]),
        image("cidata", &[("meta-data", r#"{"instance-id":"i-00000001"}"#)]),
        image("cidata", &[("user-data", "")]),
        torn(),
    ];
    for drive in drives {
        let mut machine = FakeMachine::without_sleep(Some(OWN));
        machine.refuse(Errno::EBUSY);
        machine.known = false;
        machine.device("vdb", drive);
        assert_eq!(machine.found(), None);
    }
}

#[test]
fn a_drive_without_a_uuid_identifies_the_platform_only_if_the_own_drive_may_lack_the_uuid() {
    let mut machine = FakeMachine::without_sleep(Some(RANDOM));
    machine.refuse(Errno::EBUSY);
    machine.known = false;
    machine.device("vdb", config_2("", "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", "", "{}", 0, Why::Shape)));

    let mut machine = FakeMachine::without_sleep(Some(OWN));
    machine.refuse(Errno::EBUSY);
    machine.known = false;
    machine.device("vdb", config_2("", "{}"));
    assert_eq!(machine.found(), None);
    let reason = "it does not have the uuid of this machine";
    let line = format!("INFO did not use a config drive reason={reason} label=config-2 device=/dev/vdb");
    assert_eq!(machine.lines(), [line]);
}

// === reading ===

/// Makes a machine with one broken drive, which the kernel mounts once, with these files.
fn mounting(files: &'static [(&'static str, &'static str)], unmounts: fn(&Path) -> io::Result<()>) -> FakeMachine {
    mounting_instead_of(torn(), files, unmounts)
}

fn mounting_instead_of(
    image: Vec<u8>,
    files: &'static [(&'static str, &'static str)],
    unmounts: fn(&Path) -> io::Result<()>,
) -> FakeMachine {
    let mut machine = FakeMachine::with_clock(Some(OWN), |_, _| {});
    machine.device("vdb", image);
    let at = machine.root.path().join(format!("run/glowplug/drive-{}-vdb", std::process::id()));
    let (device, mounted) = (machine.root.path().join("dev/vdb"), at.clone());
    let mut order = Sequence::new();
    machine
        .system
        .expect_mount_read_only()
        .withf(move |from, file_system, to| (from, *file_system, to) == (&device, FileSystem::Iso9660, &mounted))
        .times(1)
        .in_sequence(&mut order)
        .returning(move |_, _, at| {
            for (path, content) in files {
                file(at, path, content);
            }
            Ok(())
        });
    let unmount = machine.system.expect_unmount().withf(move |from| from == at).times(1).in_sequence(&mut order);
    unmount.returning(unmounts);
    machine
}

fn unmount(at: &Path) -> io::Result<()> {
    fs::remove_dir_all(at)?;
    fs::create_dir(at)
}

#[test]
fn a_drive_that_our_reader_cannot_read_is_mounted_read_and_unmounted() {
    let machine = mounting(&[("openstack/latest/network_data.json", "{}")], unmount);
    let expected = Answer { uuid: None, ..answer("/dev/vdb", "", "{}", 100, Why::Label) };
    assert_eq!(machine.found(), Some(expected));
    assert_eq!(machine.left_behind(), [""; 0].map(PathBuf::from));
}

#[test]
fn a_drive_is_unmounted_when_its_content_is_broken() {
    let machine = mounting(&[("openstack/latest/network_data.json/is-a-directory", "")], unmount);
    let why = "openstack/latest/network_data.json: expected a regular file that is on the drive itself";
    let expected = Answer { uuid: None, ..answer("/dev/vdb", "", why, 100, Why::Label) };
    assert_eq!(machine.found(), Some(expected));
    assert_eq!(machine.left_behind(), [""; 0].map(PathBuf::from));
}

/// An image with this uuid, and with a network document whose content is beyond the end of the volume.
fn with_a_document_behind_the_end(uuid: &str) -> Vec<u8> {
    let mut image = config_2(uuid, "{}");
    let name = image.windows(8).position(|bytes| bytes == b"NETWORK_").unwrap();
    // The record of a file begins 33 bytes before its name, with the first block at byte 2 in both byte orders.
    let extent = name - 33 + 2;
    image[extent..extent + 8].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f, 0x7f, 0xff, 0xff, 0xff]);
    image
}

#[test]
fn a_drive_is_mounted_if_only_its_network_document_is_damaged() {
    let files = &[("openstack/latest/network_data.json", "{}")];
    let machine = mounting_instead_of(with_a_document_behind_the_end(OWN), files, unmount);
    let expected = Answer { uuid: None, ..answer("/dev/vdb", "", "{}", 100, Why::Label) };
    assert_eq!(machine.found(), Some(expected));
}

#[test]
fn a_damaged_network_document_that_the_kernel_does_not_find_is_an_error() {
    let machine = mounting_instead_of(with_a_document_behind_the_end(OWN), &[], unmount);
    let error = "invalid extent, expected one that ends inside the volume";
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, error, 0, Why::OwnUuid)));
}

#[test]
fn a_drive_with_a_network_document_over_the_limit_is_not_mounted() {
    let machine = FakeMachine::without_sleep(Some(OWN));
    machine.device("vdb", config_2(OWN, &" ".repeat(1024 * 1024 + 1)));
    let error = "openstack/latest/network_data.json: file of 1048577 bytes, expected at most 1048576";
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, error, 0, Why::OwnUuid)));
}

/// A boot sector of FAT12, for a floppy disk of 1440 KiB with the label `config-2`.
fn fat() -> Vec<u8> {
    let mut image = vec![0; 1440 * 1024];
    image[..24].copy_from_slice(b"\xeb\x3c\x90mkfs.fat\x00\x02\x02\x01\x00\x02\xe0\x00\x40\x0b\xf0\x09\x00");
    image[38..54].copy_from_slice(b"\x29\0\0\0\0config-2   ");
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    image
}

/// The units for the hostname, the attributes and the SSH keys have no right to mount.
#[test]
fn the_error_about_an_unmounted_fat_drive_names_the_unit_that_may_mount_and_the_reason() {
    let machine = FakeMachine::unmountable(Some(OWN), Errno::EPERM);
    machine.device("vdb", fat());
    let expected = format!(
        "reading config drive /dev/vdb: reading vfat, which only the unit glowplug-network-kargs may mount: {}",
        io::Error::from(Errno::EPERM)
    );
    assert_eq!(machine.error(), expected);
}

#[test]
fn a_drive_that_is_read_in_process_is_not_mounted() {
    let machine = FakeMachine::without_sleep(Some(OWN));
    machine.device("vdb", config_2(OWN, "{}"));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 0, Why::OwnUuid)));
    assert!(!machine.root.path().join("run").exists());
}

#[test]
fn if_neither_reader_can_read_a_drive_the_error_of_our_own_reader_is_reported() {
    let mut machine = FakeMachine::with_clock(Some(OWN), |_, _| {});
    machine.device("vdb", torn());
    // The stand-in for the mount removes the directory, so the mounted drive cannot be opened.
    machine.system.expect_mount_read_only().returning(|_, _, at| fs::remove_dir(at));
    machine.system.expect_unmount().returning(|_| Ok(()));
    assert_eq!(machine.error(), "reading config drive /dev/vdb: invalid block size of the volume, expected 2048 bytes");
}

#[test]
fn a_drive_that_cannot_be_unmounted_is_still_used() {
    let machine = mounting(&[("network-config", "{}")], |_| Err(Errno::EBUSY.into()));
    let expected = Answer { layout: Some(Layout::NoCloud), ..answer("/dev/vdb", "", "{}", 100, Why::Label) };
    assert_eq!(machine.found(), Some(expected));
    let at = machine.left_behind().remove(0);
    assert_eq!(fs::read(at.join("network-config")).unwrap(), b"{}");
    let reason = io::Error::from(Errno::EBUSY);
    let line = format!("WARN could not unmount the drive reason={reason} path={}", at.display());
    assert_eq!(machine.lines()[0], line);
}

#[test]
fn a_drive_is_read_only_once_during_a_search() {
    // The drive belongs to another machine, so the search goes on.
    let mut machine = mounting(
        &[("meta-data", r#"{"instance-id":"11111111-2222-3333-4444-555555555555"}"#), ("network-config", "{}")],
        unmount,
    );
    machine.any_drive = true;
    let expected = Answer { layout: Some(Layout::NoCloud), ..answer("/dev/vdb", OTHER, "{}", 100, Why::NothingBetter) };
    assert_eq!(machine.found(), Some(expected));
}

#[test]
fn a_drive_that_no_reader_supports_is_an_error_and_leaves_no_mount_point() {
    for errno in [Errno::EBUSY, Errno::ENODEV, Errno::EPERM, Errno::EINVAL] {
        let machine = FakeMachine::unmountable(Some(OWN), errno);
        machine.device("vdb", torn());
        let expected = "reading config drive /dev/vdb: invalid block size of the volume, expected 2048 bytes";
        assert_eq!(machine.error(), expected);
        let reason = io::Error::from(errno);
        let line = format!("DEBG the kernel did not mount the drive reason={reason} device=/dev/vdb");
        assert!(machine.lines.lock().unwrap().contains(&line));
        assert_eq!(machine.left_behind(), [""; 0].map(PathBuf::from));
    }
}

// === drivers ===

#[test]
fn drivers_are_loaded_for_a_device_that_appears_late() {
    let mut machine = FakeMachine::with_clock(Some(OWN), |root, nth| {
        if nth == 2 {
            file(root, "sys/bus/scsi/devices/0:0:0:0/type", "5\n");
            file(root, "sys/bus/scsi/devices/host0/unique_id", "1\n");
        }
    });
    machine.expects(&["sr_mod"]);
    assert_eq!(machine.found(), None);

    let mut machine = FakeMachine::with_clock(Some(OWN), |root, nth| {
        if nth == 2 {
            file(root, "sys/bus/usb/devices/1-1:1.0/bInterfaceClass", "08\n");
        }
    });
    machine.expects(&["sd_mod", "sr_mod", "uas", "usb_storage"]);
    assert_eq!(machine.found(), None);
}

#[test]
fn missing_drivers_are_loaded_before_a_drive_without_a_uuid_is_used() {
    let mut machine = FakeMachine::with_clock(Some(RANDOM), |_, _| panic!("slept"));
    machine.refuse(Errno::EBUSY);
    machine.device("vdb", config_2("", "without"));
    machine.on_pci("0x010601", "0x8086", "0x2922", "pci:ahci");
    let (root, own) = (machine.root.clone(), config_2(RANDOM, "own"));
    machine.system.expect_load_modules().times(1).returning(move |_| {
        device(root.path(), "sr0", &own);
        Ok(())
    });
    assert_eq!(machine.found(), Some(answer("/dev/sr0", RANDOM, "own", 0, Why::OwnUuid)));
}

#[test]
fn drivers_are_loaded_before_larger_devices_are_examined() {
    let mut machine = FakeMachine::without_sleep(Some(OWN));
    machine.refuse(Errno::EBUSY);
    failing_device(machine.root.path(), "vda");
    machine.file("sys/class/block/vda/size", format!("{}\n", SMALL + 1));
    machine.on_pci("0x010601", "0x8086", "0x2922", "pci:ahci");
    let (root, own) = (machine.root.clone(), config_2(OWN, "{}"));
    machine.system.expect_load_modules().times(1).returning(move |_| {
        device(root.path(), "sr0", &own);
        Ok(())
    });
    assert_eq!(machine.found(), Some(answer("/dev/sr0", OWN, "{}", 0, Why::OwnUuid)));
    let lines = machine.lines();
    assert_eq!(lines[0], "INFO requested storage drivers from modprobe outcome=done names=pci:ahci sd_mod sr_mod");
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn a_driver_that_fails_to_load_is_logged_and_the_search_goes_on() {
    let mut machine = FakeMachine::new(None);
    machine.device("vdb", config_2("", "{}"));
    machine.on_pci("0x010802", "0x1b36", "0x0010", "pci:nvme");
    machine.system.expect_load_modules().times(1).returning(|_| Err(io::Error::other("modprobe: exit status: 1")));
    assert_eq!(machine.found(), Some(answer("/dev/vdb", "", "{}", 0, Why::Shape)));
    let line = "INFO requested storage drivers from modprobe outcome=modprobe: exit status: 1 names=pci:nvme";
    assert_eq!(machine.lines()[0], line);
}

// === a path that a person gave ===

fn given(path: &Path) -> Result<(Option<String>, Layout, Option<String>), String> {
    let log = Logger::root(slog::Discard, slog::o!());
    let given = read_path(path, &log).map_err(|e| Chain(&e).to_string())?;
    Ok((given.volume.map(|volume| volume.label), given.drive.layout, given.meta_data.uuid))
}

#[test]
fn a_named_path_can_be_a_directory_or_an_image_with_any_label() {
    let root = tempfile::tempdir().unwrap();
    file(root.path(), "drive/meta-data", format!(r#"{{"instance-id":"{OWN}"}}"#));
    assert_eq!(given(&root.path().join("drive")), Ok((None, Layout::NoCloud, Some(OWN.to_owned()))));

    file(root.path(), "image", image("any", &[("openstack/latest/network_data.json", "{}")]));
    let layout = Layout::OpenStack { latest_only: true };
    assert_eq!(given(&root.path().join("image")), Ok((Some("any".to_owned()), layout, None)));
}

#[test]
fn the_error_about_a_path_that_is_no_drive_names_the_expectation() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("directory")).unwrap();
    file(root.path(), "file", "network:\n");
    file(root.path(), "image", image("config-2", &[("user-data", "")]));
    let _socket = UnixListener::bind(root.path().join("socket")).unwrap();
    for name in ["directory", "file", "image", "socket"] {
        let path = root.path().join(name);
        let expected = "no config drive, expected a directory with openstack/latest or meta-data, \
                        or an ISO 9660 or FAT image";
        assert_eq!(given(&path), Err(format!("{}: {expected}", path.display())));
    }
}

#[test]
fn the_errors_for_a_missing_path_and_for_a_broken_image_name_the_cause() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("missing");
    let expected = format!("reading {}: No such file or directory (os error 2)", missing.display());
    assert_eq!(given(&missing), Err(expected));

    file(root.path(), "image", torn());
    let image = root.path().join("image");
    let expected = "invalid block size of the volume, expected 2048 bytes";
    assert_eq!(given(&image), Err(format!("reading config drive {}: {expected}", image.display())));
}

//! Which drivers the storage controllers of this machine lack.
//!
//! udev would find out one device after the other, as each driver makes the devices below it appear. The loader is called
//! once instead, so what will be needed above a controller is named together with what the controller needs.

use std::collections::BTreeSet;

use slog::warn;

use super::Sysfs;

/// What drives a SCSI device once its controller has a driver.
const SCSI: &[&str] = &["sd_mod", "sr_mod"];
/// What drives a drive on USB once its host has a driver.
const USB_STORAGE: &[&str] = &["sd_mod", "sr_mod", "uas", "usb_storage"];

/// What is to be loaded, if anything is missing.
#[derive(Default)]
struct Drivers {
    names: BTreeSet<String>,
    missing: bool,
}

// === impl Sysfs ===

impl Sysfs<'_> {
    /// What is to be loaded so that every controller has its driver and what hangs on it will have one; nothing when no
    /// driver is missing.
    pub(super) fn missing_drivers(&self) -> BTreeSet<String> {
        let mut drivers = Drivers::default();
        for device in self.devices("sys/bus/pci/devices") {
            let class = self.hexadecimal(&device, "class").unwrap_or(0);
            let (is_storage, is_usb) = (class >> 16 == 0x01, class >> 8 == 0x0c03);
            if !is_storage && !is_usb {
                continue;
            }
            let is_virtio = self.hexadecimal(&device, "vendor") == Some(0x1af4);
            let has_driver = self.has_driver(&device);
            let above: &[&str] = match self.hexadecimal(&device, "device") {
                // What has a driver is on the virtio bus, and looked at there.
                _ if is_virtio && has_driver => continue,
                Some(0x1001 | 0x1042) if is_virtio => &["virtio_blk", "virtio_pci"],
                Some(0x1004 | 0x1048) if is_virtio => &["sd_mod", "sr_mod", "virtio_pci", "virtio_scsi"],
                _ if is_virtio => continue,
                _ if is_usb => USB_STORAGE,
                // NVMe is a bus of its own.
                _ if class >> 8 == 0x0108 => &[],
                _ => SCSI,
            };
            drivers.controller(above, self.missing_alias(&device, has_driver));
        }
        for device in self.devices("sys/bus/virtio/devices") {
            let above = match self.hexadecimal(&device, "device") {
                Some(2) => &[],
                Some(8) => SCSI,
                _ => continue,
            };
            drivers.controller(above, self.missing_alias(&device, self.has_driver(&device)));
        }
        self.missing_on_platform(&mut drivers);
        for device in self.devices("sys/bus/scsi/devices") {
            let above = match self.attribute(&format!("{device}/type")).as_deref() {
                Some("0") => "sd_mod",
                Some("5") => "sr_mod",
                _ => continue,
            };
            drivers.device(&[above], self.has_driver(&device));
        }
        for device in self.devices("sys/bus/usb/devices") {
            if self.attribute(&format!("{device}/bInterfaceClass")).as_deref() == Some("08") {
                drivers.device(USB_STORAGE, self.has_driver(&device));
            }
        }
        if drivers.missing { drivers.names } else { BTreeSet::new() }
    }

    /// Virtio without PCI. A place without a device has no driver either, so what counts is whether there is one at all.
    fn missing_on_platform(&self, drivers: &mut Drivers) {
        if self.has("sys/bus/platform/drivers/virtio-mmio") {
            return;
        }
        for device in self.devices("sys/bus/platform/devices") {
            let alias = self.attribute(&format!("{device}/modalias"));
            if let Some(alias) = alias.filter(|it| it.contains("virtio,mmio") || it.starts_with("acpi:LNRO0005")) {
                drivers.controller(&["sd_mod", "sr_mod", "virtio_blk", "virtio_scsi"], Some(alias));
            }
        }
    }

    /// What the kernel calls a device that waits for a driver.
    fn missing_alias(&self, device: &str, has_driver: bool) -> Option<String> {
        if has_driver { None } else { Some(self.attribute(&format!("{device}/modalias")).unwrap_or_default()) }
    }

    fn has_driver(&self, device: &str) -> bool {
        self.has(&format!("{device}/driver"))
    }

    /// The devices on a bus. One that cannot be listed costs its drivers, not the search.
    fn devices(&self, bus: &str) -> Vec<String> {
        let names = self.entries(bus).unwrap_or_else(|e| {
            warn!(self.log, "ignored a bus"; "path" => bus, "reason" => %e);
            BTreeSet::new()
        });
        names.into_iter().map(|name| format!("{bus}/{name}")).collect()
    }

    fn hexadecimal(&self, device: &str, name: &str) -> Option<u32> {
        let text = self.attribute(&format!("{device}/{name}"))?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    }
}

// === impl Drivers ===

impl Drivers {
    /// A controller that is there, what drives the devices on it, and its alias when it waits for a driver itself. The
    /// devices are not there before it has one, and the loader is called once: so their drivers are named beforehand.
    fn controller(&mut self, above: &[&str], missing: Option<String>) {
        self.names.extend(above.iter().map(|&name| name.to_owned()));
        self.missing |= missing.is_some();
        self.names.extend(missing.filter(|alias| !alias.is_empty()));
    }

    /// A device on a controller, and what drives it.
    fn device(&mut self, drivers: &[&str], has_driver: bool) {
        if !has_driver {
            self.names.extend(drivers.iter().map(|&name| name.to_owned()));
            self.missing = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use slog::Logger;
    use tempfile::TempDir;

    use super::*;

    /// The devices of a machine.
    struct Devices(TempDir);

    impl Devices {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// A device on a bus, with its attributes.
        fn on(&self, bus: &str, name: &str, attributes: &[(&str, &str)]) {
            let device = self.0.path().join(format!("sys/bus/{bus}/devices/{name}"));
            fs::create_dir_all(&device).unwrap();
            for (attribute, value) in attributes {
                fs::write(device.join(attribute), format!("{value}\n")).unwrap();
            }
        }

        fn on_pci(&self, slot: &str, class: &str, vendor: &str, device: &str) {
            let alias = format!("pci:{slot}");
            self.on("pci", slot, &[("class", class), ("vendor", vendor), ("device", device), ("modalias", &alias)]);
        }

        fn drive(&self, bus: &str, name: &str) {
            symlink("../../drivers/any", self.0.path().join(format!("sys/bus/{bus}/devices/{name}/driver"))).unwrap();
        }

        fn missing(&self) -> Vec<String> {
            let log = Logger::root(slog::Discard, slog::o!());
            Sysfs { root: self.0.path(), log: &log }.missing_drivers().into_iter().collect()
        }
    }

    #[test]
    fn nothing_is_loaded_when_every_controller_has_a_driver() {
        let devices = Devices::new();
        devices.on_pci("ahci", "0x010601", "0x8086", "0x2922");
        devices.drive("pci", "ahci");
        devices.on_pci("xhci", "0x0c0330", "0x1b36", "0x000d");
        devices.drive("pci", "xhci");
        devices.on_pci("virtio-blk", "0x010000", "0x1af4", "0x1042");
        devices.drive("pci", "virtio-blk");
        devices.on("virtio", "virtio0", &[("device", "0x0002"), ("modalias", "virtio:blk")]);
        devices.drive("virtio", "virtio0");
        devices.on("scsi", "0:0:0:0", &[("type", "5")]);
        devices.drive("scsi", "0:0:0:0");
        // A network card, on which no drive can be.
        devices.on_pci("virtio-net", "0x020000", "0x1af4", "0x1041");
        devices.on("virtio", "virtio1", &[("device", "0x0001"), ("modalias", "virtio:net")]);
        assert_eq!(devices.missing(), [""; 0]);
    }

    /// The names for one controller, without a driver, of a machine that has nothing else.
    fn loads(class: &str, vendor: &str, device: &str, names: &[&str]) {
        let devices = Devices::new();
        devices.on_pci("alias", class, vendor, device);
        assert_eq!(devices.missing(), names);
    }

    #[test]
    fn virtio_block_needs_its_bus_and_its_driver() {
        loads("0x010000", "0x1af4", "0x1001", &["pci:alias", "virtio_blk", "virtio_pci"]);
        loads("0x010000", "0x1af4", "0x1042", &["pci:alias", "virtio_blk", "virtio_pci"]);
    }

    #[test]
    fn virtio_scsi_needs_the_drivers_above_it_too() {
        let names = ["pci:alias", "sd_mod", "sr_mod", "virtio_pci", "virtio_scsi"];
        loads("0x010000", "0x1af4", "0x1004", &names);
        loads("0x010000", "0x1af4", "0x1048", &names);
    }

    #[test]
    fn sata_needs_disks_and_cd_drives() {
        loads("0x010601", "0x8086", "0x2922", &["pci:alias", "sd_mod", "sr_mod"]);
        loads("0x010180", "0x8086", "0x7010", &["pci:alias", "sd_mod", "sr_mod"]);
    }

    #[test]
    fn nvme_needs_itself_only() {
        loads("0x010802", "0x1b36", "0x0010", &["pci:alias"]);
    }

    #[test]
    fn usb_needs_storage_above_its_host() {
        loads("0x0c0330", "0x1b36", "0x000d", &["pci:alias", "sd_mod", "sr_mod", "uas", "usb_storage"]);
    }

    #[test]
    fn all_that_is_missing_is_asked_for_at_once() {
        let devices = Devices::new();
        devices.on_pci("ahci", "0x010601", "0x8086", "0x2922");
        devices.on_pci("xhci", "0x0c0330", "0x1b36", "0x000d");
        devices.drive("pci", "xhci");
        devices.on("virtio", "virtio0", &[("device", "0x0002"), ("modalias", "virtio:blk")]);
        devices.on("virtio", "virtio1", &[("device", "0x0008"), ("modalias", "virtio:scsi")]);
        devices.on("platform", "a003e00", &[("modalias", "of:Nvirtio_mmioT(null)Cvirtio,mmio")]);
        let expected = [
            "of:Nvirtio_mmioT(null)Cvirtio,mmio",
            "pci:ahci",
            "sd_mod",
            "sr_mod",
            "uas",
            "usb_storage",
            "virtio:blk",
            "virtio:scsi",
            "virtio_blk",
            "virtio_scsi",
        ];
        assert_eq!(devices.missing(), expected);
    }

    #[test]
    fn virtio_without_pci_is_not_asked_for_twice() {
        let devices = Devices::new();
        devices.on("platform", "LNRO0005:00", &[("modalias", "acpi:LNRO0005:")]);
        fs::create_dir_all(devices.0.path().join("sys/bus/platform/drivers/virtio-mmio")).unwrap();
        assert_eq!(devices.missing(), [""; 0]);
    }

    #[test]
    fn a_device_without_a_driver_tells_what_is_missing_above_its_controller() {
        let devices = Devices::new();
        devices.on("scsi", "host0", &[("unique_id", "1")]);
        devices.on("scsi", "0:0:0:0", &[("type", "5")]);
        assert_eq!(devices.missing(), ["sr_mod"]);
        devices.on("scsi", "1:0:0:0", &[("type", "0")]);
        assert_eq!(devices.missing(), ["sd_mod", "sr_mod"]);
        devices.on("usb", "1-1:1.0", &[("bInterfaceClass", "08")]);
        assert_eq!(devices.missing(), ["sd_mod", "sr_mod", "uas", "usb_storage"]);
    }
}

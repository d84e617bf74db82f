//! Finds the drivers that the storage controllers of this machine need.
//!
//! udev would load one driver after another, because each driver makes further devices appear. This program calls
//! modprobe only once. So it loads the drivers of a controller together with the drivers of the devices that will
//! appear on the controller.

use std::collections::BTreeSet;

use slog::warn;

use super::sysfs::Sysfs;

/// Drivers of the devices on a SCSI controller.
const SCSI: &[&str] = &["sd_mod", "sr_mod"];
/// Drivers of storage devices on a USB controller.
const USB_STORAGE: &[&str] = &["sd_mod", "sr_mod", "uas", "usb_storage"];

/// Drivers to load, and whether any device has no driver.
#[derive(Default)]
struct Drivers {
    names: BTreeSet<String>,
    missing: bool,
}

// === impl Sysfs ===

impl Sysfs<'_> {
    /// Returns the drivers that all controllers and the devices on them need. Empty when no device lacks a driver.
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
                // With a driver, the device also appears on the virtio bus, where it is checked below.
                _ if is_virtio && has_driver => continue,
                Some(0x1001 | 0x1042) if is_virtio => &["virtio_blk", "virtio_pci"],
                Some(0x1004 | 0x1048) if is_virtio => &["sd_mod", "sr_mod", "virtio_pci", "virtio_scsi"],
                _ if is_virtio => continue,
                _ if is_usb => USB_STORAGE,
                // An NVMe controller needs no further driver for its drives.
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

    /// Adds the drivers for virtio without PCI. A virtio-mmio slot without a device never gets a driver, so only the
    /// existence of the bus driver is checked.
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

    /// Returns the alias of a device without a driver; `None` when the device has a driver.
    fn missing_alias(&self, device: &str, has_driver: bool) -> Option<String> {
        if has_driver { None } else { Some(self.attribute(&format!("{device}/modalias")).unwrap_or_default()) }
    }

    fn has_driver(&self, device: &str) -> bool {
        self.has(&format!("{device}/driver"))
    }

    /// Lists the devices on a bus. If a bus cannot be listed, its drivers are not loaded, and the search continues.
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
    /// Adds a controller: the drivers of the devices on it, and its own alias if it has no driver. The drivers of the
    /// devices are added in advance, because the devices do not exist before the controller has a driver, and modprobe
    /// is called only once.
    fn controller(&mut self, above: &[&str], missing: Option<String>) {
        self.names.extend(above.iter().map(|&name| name.to_owned()));
        self.missing |= missing.is_some();
        self.names.extend(missing.filter(|alias| !alias.is_empty()));
    }

    /// Adds a device on a controller, with its drivers.
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

    /// Devices of a machine, in a directory.
    struct Devices(TempDir);

    impl Devices {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// Adds a device to a bus, with these attributes.
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
    fn no_driver_is_loaded_if_every_controller_has_a_driver() {
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
        // A NIC needs no storage driver.
        devices.on_pci("virtio-net", "0x020000", "0x1af4", "0x1041");
        devices.on("virtio", "virtio1", &[("device", "0x0001"), ("modalias", "virtio:net")]);
        assert_eq!(devices.missing(), [""; 0]);
    }

    /// Checks the names of the missing drivers on a machine whose only controller has no driver.
    fn loads(class: &str, vendor: &str, device: &str, names: &[&str]) {
        let devices = Devices::new();
        devices.on_pci("alias", class, vendor, device);
        assert_eq!(devices.missing(), names);
    }

    #[test]
    fn a_virtio_block_device_needs_its_own_driver_and_the_driver_of_its_bus() {
        loads("0x010000", "0x1af4", "0x1001", &["pci:alias", "virtio_blk", "virtio_pci"]);
        loads("0x010000", "0x1af4", "0x1042", &["pci:alias", "virtio_blk", "virtio_pci"]);
    }

    #[test]
    fn a_virtio_scsi_controller_also_needs_the_drivers_of_its_devices() {
        let names = ["pci:alias", "sd_mod", "sr_mod", "virtio_pci", "virtio_scsi"];
        loads("0x010000", "0x1af4", "0x1004", &names);
        loads("0x010000", "0x1af4", "0x1048", &names);
    }

    #[test]
    fn a_sata_controller_also_needs_the_drivers_of_disks_and_cd_drives() {
        loads("0x010601", "0x8086", "0x2922", &["pci:alias", "sd_mod", "sr_mod"]);
        loads("0x010180", "0x8086", "0x7010", &["pci:alias", "sd_mod", "sr_mod"]);
    }

    #[test]
    fn an_nvme_controller_needs_only_its_own_driver() {
        loads("0x010802", "0x1b36", "0x0010", &["pci:alias"]);
    }

    #[test]
    fn a_usb_controller_also_needs_the_drivers_of_usb_storage() {
        loads("0x0c0330", "0x1b36", "0x000d", &["pci:alias", "sd_mod", "sr_mod", "uas", "usb_storage"]);
    }

    #[test]
    fn all_missing_drivers_are_loaded_together() {
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
    fn a_loaded_driver_of_virtio_without_pci_is_not_loaded_again() {
        let devices = Devices::new();
        devices.on("platform", "LNRO0005:00", &[("modalias", "acpi:LNRO0005:")]);
        fs::create_dir_all(devices.0.path().join("sys/bus/platform/drivers/virtio-mmio")).unwrap();
        assert_eq!(devices.missing(), [""; 0]);
    }

    #[test]
    fn a_device_without_a_driver_adds_the_drivers_of_its_type() {
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

//! Decides whether the machine runs on KubeVirt.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::command_line::CommandLine;
use crate::drive::{ConfigDrive, Layout};
use crate::formats::meta_data::{MetaData, is_uuid};

/// Platform of a machine, and the reason for the decision.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Platform {
    /// `kubevirt` or the name of another platform; `None` if the platform is unknown.
    pub id: Option<String>,
    /// Reason for the decision, for messages, such as `named by --provider kubevirt`.
    pub reason: String,
}

/// How to decide the platform.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Selection {
    /// Use this platform and read no facts of the machine.
    Provider(String),
    /// Use the kernel command line only.
    CommandLine,
    /// Use the kernel command line, else DMI. If both leave the platform unknown, the shape of the drive may decide.
    Detect,
}

/// The platform that this program supports.
pub const KUBEVIRT: &str = "kubevirt";

/// Kernel arguments that name the platform. Flatcar has its own arguments.
const ARGUMENTS: [&str; 3] = ["ignition.platform.id", "flatcar.oem.id", "coreos.oem.id"];

/// DMI values of KubeVirt and of products based on KubeVirt. A cluster can change all of these values, so a different
/// value does not prove another platform. Sources: `kubevirt/kubevirt:pkg/virt-config/virt-config.go`,
/// harvester/harvester#3719, deckhouse/virtualization#150.
const DMI: [(&str, &str); 5] = [
    ("sys_vendor", "KubeVirt"),
    ("product_family", "KubeVirt"),
    ("product_name", "Container-native virtualization"),
    ("product_name", "OpenShift Virtualization"),
    ("product_name", "DeckhouseVirtualizationPlatform"),
];

/// Returns whether a drive has the shape of KubeVirt's drives: the layout and the metadata that KubeVirt writes.
pub(super) fn has_kubevirt_shape(drive: &ConfigDrive, meta_data: &MetaData) -> bool {
    match drive.layout {
        Layout::OpenStack { latest_only } => latest_only && meta_data.name_and_namespace().is_some(),
        Layout::NoCloud => {
            let is_json = |bytes: &[u8]| bytes.trim_ascii_start().starts_with(b"{");
            let document = drive.meta_data.as_ref().ok().and_then(Option::as_ref);
            document.is_some_and(|document| is_json(&document.bytes)) && meta_data.uuid.as_deref().is_some_and(is_uuid)
        }
    }
}

// === impl Platform ===

impl Platform {
    pub(super) fn kubevirt(reason: &str) -> Self {
        Self { id: Some(KUBEVIRT.to_owned()), reason: reason.to_owned() }
    }

    /// Decides the platform without reading a drive.
    #[must_use]
    pub fn of(selection: &Selection, command_line: &CommandLine, root: &Path) -> Self {
        let known = |id: &str, reason: String| Self { id: Some(id.to_owned()), reason };
        if let Selection::Provider(id) = selection {
            // Only a program with the feature `vmware` has the provider `vmware`.
            let is_absent = id == "vmware" && !cfg!(feature = "vmware");
            let absent = if is_absent { ", and this program has no provider vmware" } else { "" };
            return known(id, format!("named by --provider {id}{absent}"));
        }
        let argument = ARGUMENTS.iter().find_map(|name| Some((name, command_line.value(name)?)));
        if let Some((name, id)) = argument {
            return known(id, format!("kernel command line has {name}={id}"));
        }
        if *selection == Selection::CommandLine {
            return Self { id: None, reason: "kernel command line names no platform".to_owned() };
        }
        for (name, value) in DMI {
            let found = fs::read_to_string(root.join("sys/class/dmi/id").join(name));
            if found.is_ok_and(|found| found.trim_ascii_end() == value) {
                return known(KUBEVIRT, format!("DMI has {name} {value:?}"));
            }
        }
        let reason = "neither the kernel command line nor DMI names the platform".to_owned();
        Self { id: None, reason }
    }

    /// Returns whether the platform is known to be KubeVirt.
    #[must_use]
    pub fn is_kubevirt(&self) -> bool {
        self.id.as_deref() == Some(KUBEVIRT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(selection: &Selection, line: &str, dmi: &[(&str, &str)]) -> (Option<String>, String) {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("sys/class/dmi/id");
        fs::create_dir_all(&directory).unwrap();
        for (name, value) in dmi {
            fs::write(directory.join(name), format!("{value}\n")).unwrap();
        }
        let Platform { id, reason } = Platform::of(selection, &CommandLine::parse(line), root.path());
        (id, reason)
    }

    #[test]
    fn a_named_provider_takes_precedence_over_the_kernel_command_line() {
        assert_eq!(
            platform(&Selection::Provider("kubevirt".to_owned()), "ignition.platform.id=aws", &[]),
            (Some("kubevirt".to_owned()), "named by --provider kubevirt".to_owned())
        );
    }

    #[test]
    fn the_reason_names_the_provider_vmware_if_the_program_does_not_have_this_provider() {
        let absent = if cfg!(feature = "vmware") { "" } else { ", and this program has no provider vmware" };
        assert_eq!(
            platform(&Selection::Provider("vmware".to_owned()), "", &[]),
            (Some("vmware".to_owned()), format!("named by --provider vmware{absent}"))
        );
        assert_eq!(
            platform(&Selection::Provider("aws".to_owned()), "", &[]),
            (Some("aws".to_owned()), "named by --provider aws".to_owned())
        );
    }

    #[test]
    fn the_kernel_command_line_takes_precedence_over_dmi() {
        assert_eq!(
            platform(&Selection::Detect, "ignition.platform.id=openstack", &[("sys_vendor", "KubeVirt")]),
            (Some("openstack".to_owned()), "kernel command line has ignition.platform.id=openstack".to_owned())
        );
    }

    #[test]
    fn dmi_is_not_read_with_the_option_cmdline() {
        assert_eq!(
            platform(&Selection::CommandLine, "quiet", &[("sys_vendor", "KubeVirt")]),
            (None, "kernel command line names no platform".to_owned())
        );
    }

    #[test]
    fn every_dmi_value_of_the_table_identifies_kubevirt() {
        for (name, value) in DMI {
            assert_eq!(
                platform(&Selection::Detect, "", &[(name, value)]),
                (Some("kubevirt".to_owned()), format!("DMI has {name} {value:?}"))
            );
        }
    }

    #[test]
    fn a_machine_with_other_dmi_values_has_an_unknown_platform() {
        assert_eq!(
            platform(&Selection::Detect, "", &[("sys_vendor", "QEMU"), ("product_name", "KubeVirt")]),
            (None, "neither the kernel command line nor DMI names the platform".to_owned())
        );
    }
}

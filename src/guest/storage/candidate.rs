//! Drives that the search can choose, and the reasons for a choice.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use slog::{Logger, info, warn};

use super::error::Chain;
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::drive::{ConfigDrive, Layout, Volume};
use crate::formats::meta_data::{MetaData, is_uuid};
use crate::guest::platform::has_kubevirt_shape;

/// Why a drive was chosen. The best reason comes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The uuid of the drive is the uuid of the machine.
    OwnUuid,
    /// The drive has the shape of KubeVirt's drives, and no uuid shows that it belongs to another machine.
    Shape,
    /// The drive has the label of a config drive, and no uuid shows that it belongs to another machine.
    Label,
    /// The uuid is not the uuid of the machine, no better drive appeared in time, and any drive is accepted.
    NothingBetter,
}

/// Uuid of this machine, from the firmware.
#[derive(Debug)]
pub(super) struct OwnUuid {
    /// The uuid in lower case.
    pub(super) uuid: String,
    /// Whether the machine's own drive has this uuid. If so, a drive with another uuid belongs to another machine, and
    /// a drive without a uuid is not the drive that KubeVirt made for this machine. For a VirtualMachineInstance
    /// without `spec.domain.firmware`, KubeVirt writes a random uuid on the drive, and libvirt writes another random
    /// uuid (version 4) and no serial number into the firmware. A machine that is made from a VirtualMachine has a uuid
    /// of version 5 or a serial number, unless KubeVirt 1.6.0 created the VirtualMachine. Source:
    /// `kubevirt/kubevirt:pkg/cloud-init/cloud-init.go`, `cloudInitUUIDFromVMI`.
    pub(super) is_on_drive: bool,
}

/// Position of the version in the text of a uuid.
const VERSION: usize = 14;

/// A config drive that the search may choose.
pub(super) struct Candidate {
    pub(super) volume: Volume,
    pub(super) drive: Option<ConfigDrive>,
    pub(super) meta_data: MetaData,
    pub(super) has_shape: bool,
    /// Whether the machine's own drive has a uuid that this drive lacks. The own drive may then still appear.
    pub(super) lacks_own_uuid: bool,
    pub(super) why: Why,
}

/// A document of a drive.
#[derive(Clone, Copy)]
pub(super) enum Which {
    Network,
    MetaData,
}

/// Returns metadata with only a diagnostic, for a drive whose own metadata is not used. The reason is logged, too.
pub(super) fn ignored_meta_data(device: &Path, reason: &dyn fmt::Display, expected: &str, log: &Logger) -> MetaData {
    warn!(log, "ignored the metadata of the drive"; "device" => %device.display(), "reason" => %reason);
    let diagnostic = Diagnostic::without_value(Severity::Warning, "document", &reason.to_string(), expected);
    MetaData { diagnostics: vec![diagnostic], ..MetaData::unread() }
}

/// Reads the metadata of a drive. An error is logged, and becomes a diagnostic of the metadata.
pub(super) fn read_meta_data(drive: &ConfigDrive, device: &Path, log: &Logger) -> MetaData {
    let ignored = |reason| ignored_meta_data(device, reason, "a document that can be read", log);
    let document = match &drive.meta_data {
        Ok(Some(document)) => document,
        Ok(None) => return MetaData::default(),
        Err(e) => return ignored(&Chain(e)),
    };
    let mut diagnostics = Diagnostics::default();
    let read = match drive.layout {
        Layout::OpenStack { .. } => MetaData::read_openstack(&document.bytes, &mut diagnostics),
        Layout::NoCloud => MetaData::read_nocloud(&document.bytes, &mut diagnostics),
    };
    for diagnostic in diagnostics.kept() {
        warn!(log, "warning about the machine's document"; "device" => %device.display(),
            "path" => &document.path, "diagnostic" => %diagnostic);
    }
    MetaData { diagnostics: diagnostics.into_parts().0, ..read }
}

/// Returns the uuid in lower case. `None` when it cannot identify a machine: firmware without a uuid reports all zeros
/// or all ones.
fn identifying(text: &str) -> Option<String> {
    let uuid = text.trim().to_ascii_lowercase();
    let is_all = |digit: char| uuid.chars().all(|c| c == digit || c == '-');
    (is_uuid(&uuid) && !is_all('0') && !is_all('f')).then_some(uuid)
}

// === impl OwnUuid ===

impl OwnUuid {
    /// Makes the uuid from the uuid and the serial number in the firmware. `None` when the firmware has no uuid.
    pub(super) fn of(uuid: &str, serial: Option<&str>) -> Option<Self> {
        let uuid = identifying(uuid)?;
        let is_random = uuid.as_bytes().get(VERSION) == Some(&b'4');
        let has_serial = serial.is_some_and(|serial| !serial.is_empty());
        Some(Self { uuid, is_on_drive: !is_random || has_serial })
    }
}

// === impl Candidate ===

impl Candidate {
    /// Returns a document of the drive, or the error of reading it.
    pub(super) fn document(&self, which: Which) -> Result<Option<&[u8]>, String> {
        let Some(drive) = &self.drive else { return Ok(None) };
        let document = match which {
            Which::Network => &drive.network,
            Which::MetaData => &drive.meta_data,
        };
        let document = document.as_ref().map_err(|e| Chain(e).to_string())?;
        Ok(document.as_ref().map(|document| document.bytes.as_slice()))
    }

    /// Rates a drive for a machine with the uuid `own`.
    pub(super) fn new(
        device: &Path,
        volume: Volume,
        drive: Option<ConfigDrive>,
        own: Option<&OwnUuid>,
        log: &Logger,
    ) -> Self {
        let meta_data = drive.as_ref().map(|drive| read_meta_data(drive, device, log)).unwrap_or_default();
        let has_shape = drive.as_ref().is_some_and(|drive| has_kubevirt_shape(drive, &meta_data));
        let why = match (own, meta_data.uuid.as_deref().and_then(identifying)) {
            (Some(own), Some(uuid)) if own.uuid == uuid => Why::OwnUuid,
            (Some(own), Some(_)) if own.is_on_drive => Why::NothingBetter,
            (Some(own), Some(uuid)) => {
                let reason = "the firmware has a random uuid and no serial number, as for a VirtualMachineInstance \
                              without spec.domain.firmware";
                info!(log, "cannot compare the drive with the machine"; "device" => %device.display(), "uuid" => uuid,
                    "own" => &own.uuid, "reason" => reason);
                Why::without_uuid(has_shape)
            }
            _ => Why::without_uuid(has_shape),
        };
        let lacks_own_uuid = why != Why::OwnUuid && own.is_some_and(|own| own.is_on_drive);
        Self { volume, drive, meta_data, has_shape, lacks_own_uuid, why }
    }
}

// === impl Why ===

impl Why {
    /// Rates a drive whose uuid does not show to which machine the drive belongs.
    fn without_uuid(has_shape: bool) -> Self {
        if has_shape { Self::Shape } else { Self::Label }
    }
}

impl fmt::Display for Why {
    /// Prints the reason as it is serialized.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnUuid => "own-uuid",
            Self::Shape => "shape",
            Self::Label => "label",
            Self::NothingBetter => "nothing-better",
        })
    }
}

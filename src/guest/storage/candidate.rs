//! Drives that the search may choose, and why.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use slog::{Logger, warn};

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

/// A config drive that the search may choose.
pub(super) struct Candidate {
    pub(super) volume: Volume,
    pub(super) drive: Option<ConfigDrive>,
    pub(super) meta_data: MetaData,
    pub(super) has_shape: bool,
    pub(super) why: Why,
}

/// Reads the metadata of a drive. An error is logged and has no other effect.
pub(super) fn read_meta_data(drive: &ConfigDrive, device: &Path, log: &Logger) -> MetaData {
    let ignored = |reason: &dyn fmt::Display| {
        warn!(log, "ignored the metadata of the drive"; "device" => %device.display(), "reason" => %reason);
        let expected = "a document that can be read";
        let diagnostic = Diagnostic::without_value(Severity::Warning, "document", &reason.to_string(), expected);
        MetaData { diagnostics: vec![diagnostic], ..MetaData::unread() }
    };
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
pub(super) fn identifying(text: &str) -> Option<String> {
    let uuid = text.trim().to_ascii_lowercase();
    let is_all = |digit: char| uuid.chars().all(|c| c == digit || c == '-');
    (is_uuid(&uuid) && !is_all('0') && !is_all('f')).then_some(uuid)
}

// === impl Candidate ===

impl Candidate {
    /// Returns the network document, or the error of reading it.
    pub(super) fn network(&self) -> Result<Option<&[u8]>, String> {
        let Some(drive) = &self.drive else { return Ok(None) };
        let document = drive.network.as_ref().map_err(|e| Chain(e).to_string())?;
        Ok(document.as_ref().map(|document| document.bytes.as_slice()))
    }

    /// Rates a drive for a machine with the uuid `own`.
    pub(super) fn new(
        device: &Path,
        volume: Volume,
        drive: Option<ConfigDrive>,
        own: Option<&str>,
        log: &Logger,
    ) -> Self {
        let meta_data = drive.as_ref().map(|drive| read_meta_data(drive, device, log)).unwrap_or_default();
        let has_shape = drive.as_ref().is_some_and(|drive| has_kubevirt_shape(drive, &meta_data));
        let why = match (own, meta_data.uuid.as_deref().and_then(identifying)) {
            (Some(own), Some(uuid)) if own == uuid => Why::OwnUuid,
            (Some(_), Some(_)) => Why::NothingBetter,
            _ if has_shape => Why::Shape,
            _ => Why::Label,
        };
        Self { volume, drive, meta_data, has_shape, why }
    }
}

// === impl Why ===

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

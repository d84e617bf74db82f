//! Finds the document of a run: on a drive of this machine, or at a path from the command line.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Planner, Stop, not_kubevirt};
use crate::diagnostic::Diagnostic;
use crate::drive::{self, ConfigDrive};
use crate::formats::meta_data::{self, MetaData};
use crate::guest::options::Source;
use crate::guest::platform::{Platform, has_kubevirt_shape};
use crate::guest::report::Drive;
use crate::guest::storage::{self, Chain, Search, SearchError};

/// A document and its source, or the error of reading the document.
pub(super) struct FoundDocument {
    pub(super) drive: Option<Drive>,
    pub(super) document: Result<Option<drive::Document>, SearchError>,
    pub(super) meta_data: MetaData,
    /// Diagnostics about networks that the run does not read, on its drive and on other drives. They are reported only
    /// if there is no network document, or if the document configures nothing.
    pub(super) other_networks: Vec<Diagnostic>,
    is_kubevirts: bool,
}

/// Returns a warning for each network that is on the drive and that the run does not read.
fn other_networks(drive: &ConfigDrive) -> Vec<Diagnostic> {
    let place = |path: &String| {
        Diagnostic::warning(
            path,
            "network that is not read",
            "a file",
            "the network in the same directory as the metadata",
        )
    };
    let in_meta_data = match &drive.meta_data {
        Ok(Some(document)) => meta_data::other_network(&document.path, &document.bytes),
        _ => None,
    };
    in_meta_data.into_iter().chain(drive.other_network.as_ref().map(place)).collect()
}

/// Reads a document from a path of the command line, or from standard input. The size is limited, because the input may
/// be an endless pipe by mistake.
fn read_document(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than the limit, so that the parser reports a document that is too long.
    let most = u64::try_from(drive::MAX_FILE).unwrap_or(u64::MAX).saturating_add(1);
    from.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

// === impl Planner ===

impl Planner<'_> {
    pub(super) fn find(&mut self, platform: Platform) -> Result<FoundDocument, Stop> {
        let known = platform.is_kubevirt();
        let found = match self.options.source.clone() {
            Source::Machine => self.search(known)?,
            Source::Drive(path) => Some(self.read_path(&path, false)?),
            Source::DriveOrDocument(path) => Some(self.read_path(&path, true)?),
            Source::StandardInput => {
                let bytes = read_document(io::stdin());
                Some(self.document("standard input".to_owned(), bytes)?)
            }
            #[cfg(feature = "vmware")]
            Source::Property(_) => None,
        };
        match found {
            Some(found) if known => Ok(found),
            Some(found) if found.is_kubevirts => {
                self.report.platform = Some(Platform::kubevirt("the drive has the layout of KubeVirt drives"));
                Ok(found)
            }
            None if known => {
                let waited = self.options.wait.as_secs();
                Err(Stop::Default(format!("no config drive appeared within {waited} s")))
            }
            None => Err(not_kubevirt(&platform, "")),
            Some(_) => Err(not_kubevirt(
                &platform,
                ", and the drive does not have the layout of KubeVirt drives; --provider kubevirt sets the platform",
            )),
        }
    }

    fn search(&mut self, known: bool) -> Result<Option<FoundDocument>, Stop> {
        let search = Search {
            root: &self.options.root,
            system: self.system,
            log: self.log,
            machine_known: known,
            any_drive: self.options.any_drive,
            uses_metadata: self.uses_metadata,
            wait: self.options.wait,
            poll: Search::POLL,
        };
        let found = search.run().map_err(|e| Stop::Refused(Chain(&e).to_string()))?;
        Ok(found.map(|found| {
            let drive = Drive {
                path: found.device.display().to_string(),
                file_system: Some(found.volume.file_system.to_string()),
                label: Some(found.volume.label),
                layout: found.drive.as_ref().map(|drive| drive.layout.to_string()),
                reason: found.why.to_string(),
                waited_ms: u64::try_from(found.waited.as_millis()).unwrap_or(u64::MAX),
            };
            let expected = format!("the network on {}", found.device.display());
            let of_drive = |device: &PathBuf| {
                let path = device.display().to_string();
                Diagnostic::warning(path, "network that is not read", "another drive", &expected)
            };
            let mut others = found.drive.as_ref().map(other_networks).unwrap_or_default();
            others.extend(found.others.iter().map(of_drive));
            // On a machine of unknown platform, the search finds only drives with the shape of KubeVirt.
            let document = found.drive.map_or(Ok(None), |drive| drive.network);
            let document = document.map_err(|source| SearchError::Unreadable { device: found.device, source });
            let (drive, meta_data) = (Some(drive), found.meta_data);
            FoundDocument { drive, document, meta_data, other_networks: others, is_kubevirts: true }
        }))
    }

    /// Makes the result for a document that was not read from a drive.
    fn document(&mut self, path: String, bytes: io::Result<Vec<u8>>) -> Result<FoundDocument, Stop> {
        let bytes = bytes.map_err(|e| Stop::Refused(format!("reading {path}: {e}")))?;
        self.report.platform = Some(Platform::kubevirt("a document was named"));
        let document = Ok(Some(drive::Document { path, bytes }));
        let (meta_data, other_networks) = (MetaData::default(), Vec::new());
        Ok(FoundDocument { drive: None, document, meta_data, other_networks, is_kubevirts: false })
    }

    fn read_path(&mut self, path: &Path, or_document: bool) -> Result<FoundDocument, Stop> {
        match storage::read_path(path, self.log) {
            Ok(given) => {
                let is_kubevirts = has_kubevirt_shape(&given.drive, &given.meta_data);
                let drive = Drive {
                    path: path.display().to_string(),
                    file_system: given.volume.as_ref().map(|volume| volume.file_system.to_string()),
                    label: given.volume.map(|volume| volume.label),
                    layout: Some(given.drive.layout.to_string()),
                    reason: "named".to_owned(),
                    waited_ms: 0,
                };
                let other_networks = other_networks(&given.drive);
                let unreadable = |source| SearchError::Unreadable { device: path.to_owned(), source };
                let document = given.drive.network.map_err(unreadable);
                let (drive, meta_data) = (Some(drive), given.meta_data);
                Ok(FoundDocument { drive, document, meta_data, other_networks, is_kubevirts })
            }
            Err(SearchError::NoDrive { .. }) if or_document && path.is_file() => {
                self.document(path.display().to_string(), File::open(path).and_then(read_document))
            }
            Err(e @ SearchError::NoDrive { .. }) if path.is_file() => {
                Err(Stop::Refused(format!("{e}; glowplug check accepts a document alone")))
            }
            Err(e) => Err(Stop::Refused(Chain(&e).to_string())),
        }
    }
}

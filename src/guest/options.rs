//! Options of a run, and their values on the command line and on the kernel command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::platform::Selection;
use crate::render::{Renderer, dracut};

/// Options of one run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to decide the platform of the machine.
    pub selection: Selection,
    /// Source of the document.
    pub source: Source,
    /// Network program of the initramfs.
    pub renderer: Renderer,
    /// Kernel arguments of the distribution for a machine that has no drive, or whose drive configures nothing. `Err`:
    /// the reason why these arguments are invalid, or required and missing. Only a run that needs them then fails.
    pub default_value: Result<Option<DefaultValue>, String>,
    /// How the run handles an invalid document.
    pub on_error: OnError,
    /// How long to wait for a drive on a machine that is known to run on KubeVirt.
    pub wait: Duration,
    /// Directory below which all files are read and written: `/`, except in tests.
    pub root: PathBuf,
    /// Whether to accept the drive of another machine if this machine's own drive is missing.
    pub any_drive: bool,
    /// Whether this is a dry run, which decides but writes nothing. If the source of a dry run is a named drive or
    /// document, the run reads nothing of this machine.
    pub dry_run: bool,
    /// Whether to make dracut start the network even if nothing needs the network.
    pub neednet: bool,
}

/// Source of the document.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// A config drive of this machine.
    Machine,
    /// This drive: a directory, an image or a device.
    Drive(PathBuf),
    /// This drive, or this file as the document.
    DriveOrDocument(PathBuf),
    /// Standard input.
    StandardInput,
    /// A property of the machine: its value, `None` if the property is not set, or the error of the read.
    #[cfg(feature = "vmware")]
    Property(Result<Option<Vec<u8>>, String>),
}

/// How a run handles an invalid document.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnError {
    /// The run fails, and so does the boot.
    #[default]
    Fail,
    /// The boot continues with the default arguments of the distribution.
    Default,
}

/// Default kernel arguments of the distribution. They use the alphabet of [`dracut::is_legal`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DefaultValue(String);

/// Time to wait, in whole seconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wait(u64);

/// Error: the value of an option is invalid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OptionError {
    expected: &'static str,
}

// === impl Options ===

impl Options {
    /// Makes the options of a run for NetworkManager. The run does not wait, has no default arguments, and fails on an
    /// error.
    #[must_use]
    pub fn new(selection: Selection, source: Source, root: PathBuf) -> Self {
        let (renderer, default_value, on_error) = (Renderer::default(), Ok(None), OnError::Fail);
        let (wait, any_drive, dry_run, neednet) = (Duration::ZERO, false, false, false);
        Self { selection, source, renderer, default_value, on_error, wait, any_drive, root, dry_run, neednet }
    }
}

// === impl OnError, DefaultValue, Wait, OptionError ===

impl FromStr for OnError {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        match text {
            "fail" => Ok(Self::Fail),
            "default" => Ok(Self::Default),
            _ => Err(OptionError { expected: "fail or default" }),
        }
    }
}

impl DefaultValue {
    /// Returns the arguments as one line; `None` if there are none.
    pub(super) fn line(&self) -> Option<String> {
        Some(self.0.trim_ascii()).filter(|line| !line.is_empty()).map(str::to_owned)
    }
}

impl FromStr for DefaultValue {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        if dracut::is_legal(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(OptionError { expected: "kernel arguments of letters, digits, blanks and . _ : [ ] , / = + -" })
        }
    }
}

impl FromStr for Wait {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        text.parse().map(Self).map_err(|_| OptionError { expected: "a whole number of seconds" })
    }
}

impl From<Wait> for Duration {
    fn from(Wait(seconds): Wait) -> Self {
        Self::from_secs(seconds)
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.expected)
    }
}

impl std::error::Error for OptionError {}

//! The model, written for the program that will bring the network up.

pub mod dracut;

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// The network program of an initramfs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Renderer {
    /// `nm-initrd-generator`, which reads kernel arguments, and NetworkManager.
    #[default]
    NetworkManager,
}

/// A text that names no [`Renderer`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RendererError(String);

// === impl Renderer ===

impl FromStr for Renderer {
    type Err = RendererError;

    fn from_str(text: &str) -> Result<Self, RendererError> {
        match text {
            "network-manager" => Ok(Self::NetworkManager),
            other => Err(RendererError(other.to_owned())),
        }
    }
}

impl fmt::Display for Renderer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetworkManager => "network-manager",
        })
    }
}

// === impl RendererError ===

impl fmt::Display for RendererError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        match name.as_str() {
            "systemd-networkd" | "network-legacy" => {
                write!(f, "renderer {name:?} is not supported by this version, expected network-manager")
            }
            _ => write!(f, "unknown renderer {name:?}, expected network-manager"),
        }
    }
}

impl std::error::Error for RendererError {}

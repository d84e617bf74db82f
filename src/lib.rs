//! glowplug
#[cfg(feature = "guest")]
pub mod drive;
pub mod finding;
pub mod formats;
#[cfg(feature = "guest")]
pub mod guest;
#[cfg(feature = "guest")]
pub mod log;
pub mod network;
pub mod render;

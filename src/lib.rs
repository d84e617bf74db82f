//! glowplug
pub mod finding;

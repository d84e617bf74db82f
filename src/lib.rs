//! glowplug
pub mod finding;
pub mod formats;
pub mod network;
pub mod render;

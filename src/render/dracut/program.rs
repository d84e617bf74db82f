//! The programs that read the kernel arguments.

/// Program that reads the arguments.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(in crate::render) enum Program {
    /// `nm-initrd-generator`.
    NetworkManager,
    /// The scripts of dracut's module `network-legacy`.
    NetworkLegacy,
}

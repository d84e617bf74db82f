//! Fuzzes the library's readers of untrusted input.

mod memory;
pub mod targets;

/// Runs a target on one input, and checks the memory that the target used: a guest with 64 MiB must be able to read
/// every drive.
pub fn run(name: &str, input: &[u8]) {
    let (_, target) = targets::TARGETS.iter().find(|(target, _)| *target == name).expect("a target of that name");
    let peak = memory::peak(|| target(input));
    assert!(peak <= MAX_BYTES + MAX_FACTOR * input.len(), "{peak} bytes of memory for {} of input", input.len());
}

/// Memory that a target can use for one input, in bytes, in addition to [`MAX_FACTOR`] times the length of the input.
const MAX_BYTES: usize = 4 << 20;
const MAX_FACTOR: usize = 1024;

/// Defines the program of a target.
#[macro_export]
macro_rules! fuzz {
    ($name:ident) => {
        libfuzzer_sys::fuzz_target!(|input: &[u8]| $crate::run(stringify!($name), input));
    };
}

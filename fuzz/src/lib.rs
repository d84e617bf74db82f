//! Fuzzing of everything that reads what others wrote.

mod memory;
pub mod targets;

/// Runs a target on one input, and checks what it cost: whatever a drive says, a guest of 64 MiB has to bear it.
pub fn run(name: &str, input: &[u8]) {
    let (_, target) = targets::TARGETS.iter().find(|(target, _)| *target == name).expect("a target of that name");
    let peak = memory::peak(|| target(input));
    assert!(peak <= MAX_BYTES + MAX_FACTOR * input.len(), "{peak} bytes of memory for {} of input", input.len());
}

/// What an input may cost in memory beside a multiple of its length, in bytes.
const MAX_BYTES: usize = 4 << 20;
const MAX_FACTOR: usize = 1024;

/// The program of a target. What it does is the same for all of them.
#[macro_export]
macro_rules! fuzz {
    ($name:ident) => {
        libfuzzer_sys::fuzz_target!(|input: &[u8]| $crate::run(stringify!($name), input));
    };
}

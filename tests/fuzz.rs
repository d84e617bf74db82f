//! Runs each fuzz target without libFuzzer: on its seeds, and on thousands of inputs that are derived from the seeds.
//! The inputs are the same in every run. `make fuzz` tries further inputs.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, reason = "a target panics where something does not hold")]

#[path = "../fuzz/src/targets/mod.rs"]
mod targets;

use std::fs;
use std::path::{Path, PathBuf};

use glowplug::formats::{Meaning, read_network};

use crate::support::random::Random;
use targets::{TARGETS, Target};

/// Number of derived inputs for each target.
const INPUTS: usize = 3000;

/// Returns a copy of a seed with one to eight changes: a byte is inserted, a bit is flipped, or some bytes are
/// removed, repeated or replaced by bytes of another seed.
fn input(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(input.len() + 1);
        let end = (at + random.below(32)).min(input.len());
        match random.below(5) {
            0 => input.insert(at, random.below(256) as u8),
            1 => drop(input.drain(at..end)),
            2 => drop(input.splice(at..at, input[at..end].to_vec())),
            3 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                let to = (from + random.below(64)).min(other.len());
                drop(input.splice(at..end, other[from..to].to_vec()));
            }
            _ => input[at..end].iter_mut().take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        }
    }
    input
}

/// Collects the files below a directory, sorted by name.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// Returns the seeds with which `fuzz/run` starts a target.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    for directory in [&format!("fuzz/seeds/{name}"), "fixtures/documents", "fixtures/guest"] {
        files(&root.join(directory), &mut paths);
    }
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn holds(name: &str) {
    let (_, target): &(_, Target) = TARGETS.iter().find(|(target, _)| *target == name).unwrap();
    let seeds = seeds(name);
    seeds.iter().for_each(|seed| target(seed));
    let mut random = Random(1);
    for _ in 0..INPUTS {
        target(&input(&mut random, &seeds));
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test] fn $name() { holds(stringify!($name)); })*

        #[test]
        fn every_target_has_a_program_and_a_test() {
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/src/bin");
            let mut programs = Vec::new();
            files(&directory, &mut programs);
            let mut programs: Vec<String> =
                programs.iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
            programs.sort_by_key(|program| names.iter().position(|name| name == program));
            assert_eq!(programs, names);
            for name in names {
                let program = fs::read_to_string(directory.join(format!("{name}.rs"))).unwrap();
                assert_eq!(program, format!("#![no_main]\nglowplug_fuzz::fuzz!({name});\n"));
            }
        }
    };
}

targets! {
    network_data network_config_v1 network_config_v2 network_words meta_data command_line ssh_keys iso9660 fat pools addresses
    leases records templates vsphere
}

/// Without valid networks among its inputs, the target would test only rejections.
#[test]
fn many_inputs_of_the_target_network_words_are_valid_networks() {
    let seeds = seeds("network_words");
    let mut random = Random(1);
    let is_network = |input: Vec<u8>| {
        let document = targets::document_of_words(&input);
        matches!(read_network(document.as_bytes()).meaning, Meaning::Network(_))
    };
    let networks = (0..INPUTS).filter(|_| is_network(input(&mut random, &seeds))).count();
    assert!(networks > INPUTS / 20, "{networks} of {INPUTS}");
}

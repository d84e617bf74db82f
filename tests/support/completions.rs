//! Checks that the shell completions in `completions/` agree with the command line of the guest's program.
//!
//! The program itself cannot write its completions: every initramfs would contain the code. So the files are in the
//! repository, and `UPDATE=1 cargo test --all-features --bins completions` writes the files again.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::fs;
use std::path::Path;

use clap::Command;
use clap_complete::{Generator as _, Shell};

/// Compares the completions of a program with its command line. With `UPDATE=1`, writes the completions again.
pub(crate) fn check(mut program: Command) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("completions");
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let name = program.get_name().to_owned();
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut program, &name, &mut text);
        let (path, text) = (folder.join(shell.file_name(&name)), String::from_utf8(text).unwrap());
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, text).unwrap();
        } else {
            let found = fs::read_to_string(&path).unwrap();
            assert_eq!(found, text, "UPDATE=1 cargo test --all-features --bins completions");
        }
    }
}

//! Runs tools that build images, and shell commands. The output of a command has the form of the sessions and of the
//! pages in `docs`.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};
use std::{env, iter};

use glowplug::host::Timestamp;

/// Runs a command in a directory, with the built programs in `PATH`. Returns standard output, then each line of
/// standard error after the prefix `stderr`, then the exit status in brackets unless it is 0.
pub(crate) fn run(directory: &Path, command: &str, stderr: &str) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_glowplugctl")).parent().unwrap();
    assert_eq!(Some(programs), Path::new(env!("CARGO_BIN_EXE_glowplug")).parent());
    let inherited = env::var_os("PATH").unwrap();
    let path = iter::once(programs.to_owned()).chain(env::split_paths(&inherited));
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(directory).env("PATH", env::join_paths(path).unwrap()).env("LC_ALL", "C");
    let Output { status, stdout, stderr: complaints } = shell.output().unwrap();
    let [mut printed, complaints] = [stdout, complaints].map(|text| without_times(&String::from_utf8(text).unwrap()));
    printed.extend(complaints.lines().map(|line| format!("{stderr}{line}\n")));
    match status.code().unwrap() {
        0 => printed,
        code => format!("{printed}[{code}]\n"),
    }
}

/// Runs a program of a Debian package and returns its standard output. The test fails if the program is missing or fails.
pub(crate) fn run_tool(package: &str, program: &str, arguments: &[&str]) -> Vec<u8> {
    let path = format!("{}:/usr/sbin:/sbin", env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", path).env("LC_ALL", "C").env("MTOOLS_SKIP_CHECK", "1");
    let output = match command.output() {
        Ok(output) => output,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            panic!("{program} is missing: install the Debian package {package}")
        }
        Err(e) => panic!("{program}: {e}"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?} (of the Debian package {package}): {errors}");
    output.stdout
}

/// Replaces each time from 2021 on with TIME. The times of fixtures are in 2020, so they are kept.
fn without_times(text: &str) -> String {
    const LENGTH: usize = "2020-11-25T10:00:00Z".len();
    let (mut rest, mut printed) = (text, String::new());
    while let Some(next) = rest.chars().next() {
        let time: Option<Timestamp> = rest.get(..LENGTH).and_then(|text| text.parse().ok());
        let is_time = time.is_some_and(|time| time.to_string().as_str() > "2021");
        let (piece, length) = if is_time { ("TIME", LENGTH) } else { (&rest[..next.len_utf8()], next.len_utf8()) };
        printed.push_str(piece);
        rest = &rest[length..];
    }
    printed
}

//! A fake machine: a directory that the program uses as the root directory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

pub(crate) struct FakeMachine {
    root: TempDir,
}

/// Output and exit status of a run.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl FakeMachine {
    /// Creates a machine without any information about its platform.
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    /// Creates a KubeVirt machine.
    pub(crate) fn kubevirt() -> Self {
        Self::new().with("sys/class/dmi/id/sys_vendor", "KubeVirt\n")
    }

    pub(crate) fn with(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Adds a disk with this content.
    pub(crate) fn with_disk(self, name: &str, image: impl AsRef<[u8]>) -> Self {
        let sectors = image.as_ref().len() / 512;
        self.with(&format!("dev/{name}"), image).with(&format!("sys/class/block/{name}/size"), format!("{sectors}\n"))
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Runs the program with the directory of this machine as `--root`.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        let root = self.root.path().to_str().unwrap();
        run(&[arguments, &["--root", root]].concat())
    }

    pub(crate) fn network_kargs(&self, arguments: &[&str]) -> Run {
        self.run(&[&["network-kargs"], arguments].concat())
    }

    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    pub(crate) fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.path(path)).unwrap().permissions().mode() & 0o7777
    }

    pub(crate) fn fragment(&self) -> Option<String> {
        self.read("etc/cmdline.d/50-glowplug-network-kargs.conf")
    }

    /// Returns every file of the machine with its content.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(self.root.path(), &mut files);
        files
    }
}

fn collect(directory: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
}

/// Builds a config drive in a directory, with this network document.
pub(crate) fn drive(document: impl AsRef<[u8]>) -> FakeMachine {
    FakeMachine::new()
        .with("openstack/latest/meta_data.json", r#"{"instance_id":"worker-0.clusters","hostname":"worker-0"}"#)
        .with("openstack/latest/network_data.json", document)
}

pub(crate) fn run(arguments: &[&str]) -> Run {
    Run::of(Command::new(env!("CARGO_BIN_EXE_glowplug")).args(arguments))
}

impl Run {
    pub(crate) fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }
}

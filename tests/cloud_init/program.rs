//! Runs cloud-init in a process. The process answers questions about the meaning of documents until the test ends.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// The required version of cloud-init. Other versions differ from glowplug in other ways.
pub(crate) const VERSION: &str = "22.4.2";

/// Debian's Python, to which the modules of cloud-init belong.
const PYTHON: &str = "/usr/bin/python3";

pub(crate) struct CloudInit {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// A document for cloud-init to read.
#[derive(Clone, Copy)]
pub(crate) enum Question<'a> {
    /// The text of a document.
    Text(&'a str),
    /// The values of a document.
    Tree(&'a Value),
}

impl CloudInit {
    /// Starts cloud-init. Panics if cloud-init is missing or has another version.
    pub(crate) fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cloud_init/cloud_init.py");
        // `tests/setup` unpacks the package into this directory if cloud-init is not installed.
        let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cloud-init/usr/lib/python3/dist-packages");
        let mut process = Command::new(PYTHON)
            .args([Path::new("-B"), &script, &unpacked])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("running {PYTHON}: {e}"));
        let questions = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut cloud_init = Self { process, questions, answers };
        let version = cloud_init.line();
        assert_eq!(version, VERSION, "the version of cloud-init; tests/setup brings it");
        cloud_init
    }

    /// Returns the values that cloud-init reads from a document, and the network that cloud-init makes of them, in the
    /// form of `meaning::of`.
    pub(crate) fn ask(&mut self, is_openstack: bool, question: Question<'_>) -> (Value, Value) {
        let format = if is_openstack { "openstack" } else { "nocloud" };
        let request = match question {
            Question::Text(text) => json!({"format": format, "text": text}),
            Question::Tree(tree) => json!({"format": format, "tree": tree}),
        };
        writeln!(self.questions, "{request}").unwrap();
        self.questions.flush().unwrap();
        let mut answer: Value = serde_json::from_str(&self.line()).unwrap();
        (answer["read"].take(), answer["understood"].take())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for CloudInit {
    fn drop(&mut self) {
        // The process would also end at the end of its input, but its output is no longer needed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

//! cloud-init itself, in a process that answers as long as the test runs.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// The version with which the meanings are compared. Another one differs in other ways.
pub(crate) const VERSION: &str = "22.4.2";

/// Debian's interpreter, for which its modules are.
const PYTHON: &str = "/usr/bin/python3";

pub(crate) struct CloudInit {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// How cloud-init is asked.
#[derive(Clone, Copy)]
pub(crate) enum Question<'a> {
    /// A document as it was written.
    Text(&'a str),
    /// What stands in a document.
    Tree(&'a Value),
}

impl CloudInit {
    /// Starts it. Fails when it is not there, or is another version.
    pub(crate) fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/elder/elder.py");
        // Where `tests/setup` unpacks the package when it is not installed.
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

    /// What stands in a document as it reads it, and what it understands: a meaning as `meaning::of` makes it.
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
        // It would end with its input, but nothing of it is wanted any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

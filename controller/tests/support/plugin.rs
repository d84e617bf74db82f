//! The plugin of kubectl as a process.

use std::path::{Path, PathBuf};

use kube::Config;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::program::kubeconfig;

/// The plugin, with a kubeconfig of its own.
pub struct Plugin {
    folder: TempDir,
    kubeconfig: PathBuf,
}

// === impl Plugin ===

impl Plugin {
    /// Returns the plugin with the rights of an administrator. Its kubeconfig has a second context whose cluster does
    /// not exist.
    pub fn new(config: &Config) -> Self {
        Self::of_user(config, None)
    }

    /// Returns the plugin with the rights of a user. `None`: the rights of an administrator.
    pub fn of_user(config: &Config, user: Option<&str>) -> Self {
        let mut file = kubeconfig(config);
        let members = file["users"][0]["user"].as_object_mut().unwrap();
        members.remove("as");
        members.extend(user.map(|user| ("as".to_owned(), user.into())));
        let nowhere = json!({"name": "nowhere", "context": {"cluster": "absent", "user": "controller"}});
        file["contexts"].as_array_mut().unwrap().push(nowhere);
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, file.to_string()).unwrap();
        Self { folder, kubeconfig }
    }

    /// Writes a file into the folder of the plugin, and returns its path.
    pub fn file(&self, name: &str, content: &Value) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content.to_string()).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    /// Returns the command line that the plugin prints after a run with these arguments.
    pub fn command_line(&self, arguments: &[&str]) -> String {
        format!("kubectl glowplug {} --kubeconfig {}", arguments.join(" "), self.kubeconfig.display())
    }

    /// Returns the start of a command line of kubectl that the plugin prints.
    pub fn kubectl(&self) -> String {
        format!("kubectl --kubeconfig {}", self.kubeconfig.display())
    }

    /// Runs the plugin. Returns its exit status, its output and its errors.
    pub async fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        self.run_with(&self.kubeconfig, arguments).await
    }

    /// Runs the plugin with another kubeconfig.
    pub async fn run_with(&self, kubeconfig: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-glowplug"));
        let output = command.args(arguments).arg("--kubeconfig").arg(kubeconfig).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Runs the plugin with `--json`, and checks that it prints no error. Returns its exit status and the JSON.
    pub async fn json(&self, arguments: &[&str]) -> (Option<i32>, Value) {
        let (status, output, errors) = self.run(&[arguments, &["--json"]].concat()).await;
        assert_eq!(errors, "");
        (status, serde_json::from_str(&output).unwrap())
    }
}

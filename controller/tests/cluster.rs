//! Runs every scenario against a real API server: `make test-cluster`. Words on the command line select scenarios by
//! name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "the objects come from the test, so their managed fields are readable")]

mod support;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;

use futures::FutureExt;

use support::Cluster;
use support::real::RealServer;
use support::scenarios::{ALL, REAL};

#[tokio::main]
async fn main() -> ExitCode {
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") else {
        eprintln!(
            "KUBEBUILDER_ASSETS: not set, expected a folder with kube-apiserver and etcd: see `make test-cluster`"
        );
        return ExitCode::FAILURE;
    };
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let server = RealServer::start(&PathBuf::from(assets)).await;
    let cluster = Cluster::new(server.config()).await;
    let mut failed = 0;
    let all = ALL.iter().chain(REAL);
    let chosen = all.filter(|(name, _)| words.is_empty() || words.iter().any(|word| name.contains(word.as_str())));
    for (name, scenario) in chosen {
        let result = AssertUnwindSafe(scenario(&cluster)).catch_unwind().await;
        println!("scenario {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        failed += usize::from(result.is_err());
    }
    println!("{failed} scenarios failed against the real API server");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! Compares the table of versions in README.md with the programs that the tests run.

use std::collections::BTreeMap;
use std::fs;

use super::repository;
use crate::cloud_init::CLOUD_INIT_VERSION;
use crate::support::shell::run_tool;
use crate::support::versions::{tested, upstream};

/// The release of Debian whose versions are in the table. `tests/setup` installs packages of this release. The boots
/// also use a newer release: its versions follow a `;`, and `tests/boot/newer.rs` checks these versions.
const DEBIAN: &str = "12";

/// Programs of the table, each with its Debian package.
const PACKAGES: [(&str, &str); 4] = [
    ("NetworkManager", "network-manager"),
    ("dracut", "dracut-core"),
    ("systemd", "systemd"),
    ("Ignition", "ignition"),
];

/// Programs that stand-ins replace in the controller's tests, each with the stand-in's file and strings of this file.
const STAND_INS: [(&str, &str, &[&str]); 6] = [
    ("KubeVirt", "hosted/definitions.rs", &["\"kubevirt.io\", \"v1\""]),
    (
        "cluster-api-provider-kubevirt (capk)",
        "hosted/definitions.rs",
        &["\"infrastructure.cluster.x-k8s.io\", \"v1alpha1\""],
    ),
    ("Cluster API", "cluster_api.rs", &["\"v1beta1\", \"v1beta2\"", "\"ipam.cluster.x-k8s.io\""]),
    ("HyperShift", "hosted/definitions.rs", &["\"hypershift.openshift.io\", \"v1beta1\""]),
    ("KubeMacPool", "hosted/provider.rs", &["as KubeMacPool does"]),
    ("OpenShift's Machine API on vSphere", "machine_api.rs", &["\"machine.openshift.io\"", "\"v1beta1\""]),
];

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the string between two other strings.
fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no {start:?}"));
    rest.split_once(end).unwrap_or_else(|| panic!("no {end:?} after {start:?}")).0
}

#[test]
fn the_table_of_versions_has_the_programs_that_the_tests_run() {
    let mut rows = tested();
    let mut take = |program: &str| rows.remove(program).unwrap_or_else(|| panic!("no row {program}"));

    let server = read("controller/tests/kube-apiserver");
    let server = between(&server, "gitVersion=v", " ");
    assert_eq!(take("Kubernetes"), format!("{server}, as an API server alone"));

    let makefile = read("Makefile");
    assert_eq!(take("afterburn"), between(&makefile, "AFTERBURN_VERSION := ", "\n"));
    assert_eq!(take("cloud-init"), CLOUD_INIT_VERSION);

    for (program, file, names) in STAND_INS {
        let row = take(program);
        assert!(row.starts_with("stand-in, "), "{program}: {row}");
        let stand_in = read(&format!("controller/tests/support/{file}"));
        let missing: Vec<&&str> = names.iter().filter(|name| !stand_in.contains(**name)).collect();
        assert_eq!(missing, [] as [&&str; 0], "{program}");
    }

    let release = read("/etc/os-release");
    let is_debian = release.contains("ID=debian\n") && release.contains(&format!("VERSION_ID=\"{DEBIAN}\""));
    for (program, package) in PACKAGES {
        let row = take(program);
        let row = row.split(';').next().unwrap_or_default();
        if is_debian {
            let installed = run_tool("dpkg", "dpkg-query", &["-W", "-f", "${Version}", package]);
            let installed = String::from_utf8(installed).unwrap();
            let installed = upstream(&installed);
            assert!(installed == row || installed.starts_with(&format!("{row}.")), "{program}: {row}, is {installed}");
        }
    }

    for program in ["OpenShift", "Fedora CoreOS, RHEL CoreOS"] {
        assert!(take(program).starts_with("no"), "{program}");
    }
    assert_eq!(rows, BTreeMap::new(), "rows without a check");
}

//! Runs the command of `docs/backup.md` that prepares saved objects for a restore.

use std::fs;

use serde_json::{Value, json};

use super::repository;
use crate::support::shell;

#[test]
fn objects_of_a_backup_are_restored_without_the_uids_of_the_earlier_cluster() {
    let page = fs::read_to_string(repository().join("docs/backup.md")).unwrap();
    let commands = page.lines().filter_map(|line| line.strip_prefix("$ "));
    let command = commands.into_iter().find(|command| command.ends_with(" > restored.json")).unwrap();
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "db-0", "uid": "v-1"});
    let saved = json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
            "metadata": {
                "name": "db-0.net1", "namespace": "tenants", "labels": {"kubevirt.io/vm": "db-0"},
                "ownerReferences": [owner], "resourceVersion": "7", "uid": "c-1",
            },
            "spec": {"network": "tenant-net"}, "status": {"ips": ["192.168.1.10/24"]},
        },
        {
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "db-0-network", "namespace": "tenants", "resourceVersion": "8", "uid": "s-1"},
            "data": {"resourceVersion": "MQ==", "uid": "Mg=="},
        },
    ]});
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("ipamclaims.json"), saved.to_string()).unwrap();
    assert_eq!(shell::run(directory.path(), command, ""), "");
    let restored: Value = serde_json::from_slice(&fs::read(directory.path().join("restored.json")).unwrap()).unwrap();
    let expected = json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
            "metadata": {"name": "db-0.net1", "namespace": "tenants", "labels": {"kubevirt.io/vm": "db-0"}},
            "spec": {"network": "tenant-net"}, "status": {"ips": ["192.168.1.10/24"]},
        },
        {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db-0-network", "namespace": "tenants"},
            "data": {"resourceVersion": "MQ==", "uid": "Mg=="},
        },
    ]});
    assert_eq!(restored, expected);
}

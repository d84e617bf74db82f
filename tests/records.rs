//! Reads lists of Kubernetes objects in the forms that `kubectl get -o json` and the API server write.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::io::{self, Read};

use glowplug::host::records::{Inventory, Objects, ReadError};
use serde_json::{Value, json};

const KEY: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";

/// A list like the output of `kubectl get kubevirtmachines -o json`. Its text is generated piece by piece and is never
/// completely in memory.
struct Machines {
    next: usize,
    number: usize,
    text: Vec<u8>,
    at: usize,
}

impl Machines {
    fn new(number: usize) -> Self {
        let text = b"{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n".to_vec();
        Self { next: 0, number, text, at: 0 }
    }

    fn machine(index: usize) -> Value {
        let mut machine = worker(&format!("worker-{index}"), &format!("u-{index}"), &address(index));
        machine["spec"] = json!({"virtualMachineTemplate": {"spec": {"template": {"spec": {
            "domain": {"devices": {"interfaces": [{"acpiIndex": 101, "bridge": {}, "name": "default"}]}},
            "networks": [{"multus": {"networkName": "clusters/net"}, "name": "default"}],
        }}}}});
        machine["status"] = json!({"allocatedBootstrapAddresses": {"eno101": [address(index)]}, "ready": true});
        machine
    }
}

impl Read for Machines {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.text.len() {
            self.at = 0;
            self.text = match self.next {
                next if next < self.number => {
                    let comma = if next == 0 { "" } else { "," };
                    format!("{comma}{:#}\n", Self::machine(next)).into_bytes()
                }
                next if next == self.number => {
                    b"], \"kind\": \"List\", \"metadata\": {\"resourceVersion\": \"\"}}\n".to_vec()
                }
                _ => Vec::new(),
            };
            self.next += 1;
        }
        let some = buffer.len().min(self.text.len() - self.at);
        buffer[..some].copy_from_slice(&self.text[self.at..self.at + some]);
        self.at += some;
        Ok(some)
    }
}

fn address(index: usize) -> String {
    format!("10.{}.{}.{}/8", index >> 16, index >> 8 & 255, index & 255)
}

fn worker(name: &str, uid: &str, address: &str) -> Value {
    json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
        "kind": "KubevirtMachine",
        "metadata": {
            "annotations": {"cluster.x-k8s.io/cloned-from-name": "np", KEY: format!("[{address:?}]")},
            "creationTimestamp": "2026-08-01T10:00:00Z",
            "labels": {"cluster.x-k8s.io/cluster-name": "guest"},
            "name": name,
            "namespace": "clusters",
            "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": name, "uid": "o"}],
            "uid": uid,
        },
    })
}

fn inventory(list: &str) -> Result<Inventory, ReadError> {
    let mut objects = Objects::default();
    objects.read("list", list.as_bytes())?;
    Ok(objects.inventory())
}

/// Reads a list and returns the machine, interface and first address of each record as a string.
fn records(list: &Value) -> Vec<String> {
    let inventory = inventory(&list.to_string()).unwrap();
    assert_eq!(inventory.diagnostics, []);
    let record = |record: &glowplug::host::claim::Record| {
        format!("{} {} {}", record.claimant.machine, record.claimant.interface, record.addresses[0])
    };
    inventory.records.iter().map(record).collect()
}

fn refusal(list: &str) -> String {
    inventory(list).unwrap_err().to_string()
}

#[test]
fn lists_of_every_form_are_read() {
    let machine = || worker("worker-0", "u-0", "10.0.0.5/24");
    let of = |kind: &str, item: Value| json!({"apiVersion": "v1", "items": [item], "kind": kind, "metadata": {}});
    let mut without_kind = machine();
    without_kind.as_object_mut().unwrap().remove("kind");
    let mut metadata_only = machine();
    metadata_only["kind"] = json!("PartialObjectMetadata");
    metadata_only["apiVersion"] = json!("meta.k8s.io/v1");
    for list in [
        of("List", machine()),
        of("KubevirtMachineList", machine()),
        of("KubevirtMachineList", without_kind),
        of("PartialObjectMetadataList", metadata_only),
        machine(),
    ] {
        assert_eq!(records(&list), ["clusters/worker-0 (u-0) eno101 10.0.0.5/24"]);
    }
}

#[test]
fn objects_without_a_kind_are_recognised_by_owners_and_labels() {
    let partial = |metadata: Value| {
        let mut metadata = metadata;
        metadata["annotations"] = json!({KEY: "10.0.0.5/24"});
        metadata["namespace"] = json!("infra");
        json!({"kind": "PartialObjectMetadata", "metadata": metadata})
    };
    let labels = json!({
        "capk.cluster.x-k8s.io/kubevirt-machine-namespace": "clusters",
        "capk.cluster.x-k8s.io/kubevirt-machine-name": "worker-0",
    });
    let owner = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "v-0"}]);
    let items = [
        partial(json!({"name": "vm", "uid": "i-0", "ownerReferences": owner})),
        partial(json!({"name": "vm", "uid": "v-0", "labels": labels})),
    ];
    assert_eq!(records(&json!({"items": items})), ["infra/vm (v-0) eno101 10.0.0.5/24"]);
}

#[test]
fn an_empty_list_is_not_an_error() {
    for list in [r#"{"items":[]}"#, r#"{"items":null,"kind":"List"}"#, r#"{"kind":"List", "items" : [ ] }"#] {
        assert_eq!(inventory(list).unwrap(), Inventory::default());
    }
}

#[test]
fn a_list_that_continues_on_another_page_is_refused() {
    let items = json!([worker("worker-0", "u-0", "10.0.0.5/24")]);
    let with = |metadata: Value| json!({"items": items, "kind": "KubevirtMachineList", "metadata": metadata});
    let reason = "expected the whole list: machines that are not in it would lose their addresses";
    assert_eq!(
        refusal(&with(json!({"continue": "eyJ2", "remainingItemCount": 1500})).to_string()),
        format!("metadata.continue: part of a list without 1500 objects, {reason}")
    );
    assert_eq!(
        refusal(&with(json!({"continue": "eyJ2"})).to_string()),
        format!("metadata.continue: part of a list, {reason}")
    );
    assert_eq!(records(&with(json!({"continue": "", "remainingItemCount": null}))).len(), 1);
}

#[test]
fn a_file_that_is_not_a_list_is_refused_with_its_position() {
    let cases = [
        (" ", r#"document: invalid JSON "an empty input" from byte 2"#),
        (" [1]", r#"document: invalid JSON "expected `{`" from byte 2"#),
        ("apiVersion: v1\nitems: []\n", r#"document: invalid JSON "expected `{`" from byte 1"#),
        (r#"{"items": [{}, {"a" 1}]}"#, r#"items[1]: invalid JSON "expected `:`" from byte 16"#),
        (r#"{"items": [{}, {"a":"#, r#"items[1]: invalid JSON "EOF while parsing a value" from byte 16"#),
        (r#"{"items": [{} {}]}"#, r#"items[0]: invalid JSON "expected `,` or `]`" from byte 15"#),
        (r#"{"items": [{},]}"#, r#"items[1]: invalid JSON "expected value" from byte 15"#),
        (r#"{"items": [{}]"#, r#"items: invalid JSON "expected `,` or `}`" from byte 15"#),
        (r#"{"items": []} x"#, r#"document: invalid JSON "data after its end" from byte 15"#),
        (r#"{"items": 7}"#, r#"items: invalid JSON "expected `[`" from byte 11"#),
        (r#"{"a": 7, "b": 8"#, r#"b: invalid JSON "expected `,` or `}`" from byte 16"#),
        (
            r#"{"items": [], "metadata": 7}"#,
            r#"metadata: invalid JSON "invalid type: integer `7`, expected struct ListMetadata" from byte 27"#,
        ),
    ];
    for (list, expected) in cases {
        let expectation = "expected a list of objects as kubectl get -o json prints it";
        assert_eq!(refusal(list), format!("{expected} on, {expectation}"));
    }
}

#[test]
fn an_object_that_is_too_large_is_refused() {
    // One object is slightly larger than the limit, the other is ten times the limit.
    for size in [4 * 1024 * 1024, 40 * 1024 * 1024] {
        let list = format!("{{\"items\": [{{\"a\": \"{}\"}}]}}", "x".repeat(size));
        let mut objects = Objects::default();
        let refusal = objects.read("list", list.as_bytes()).unwrap_err().to_string();
        assert_eq!(refusal, "items[0]: too large, expected at most 4194304 bytes");
    }
}

#[test]
fn a_failed_read_of_a_list_is_an_error_with_its_cause() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("connection reset"))
        }
    }
    let error = Objects::default().read("list", Broken).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!((error.to_string(), cause), ("reading the list".to_owned(), "connection reset".to_owned()));
}

#[test]
fn a_hundred_thousand_machines_are_read_as_a_stream() {
    let mut objects = Objects::default();
    assert_eq!(objects.read("machines.json", Machines::new(100_000)).unwrap(), 100_000);
    let inventory = objects.inventory();
    assert_eq!((inventory.records.len(), inventory.diagnostics), (100_000, Vec::new()));
    // Machines are sorted by name as a string, so this machine is the last one.
    let last = inventory.records.last().unwrap();
    assert_eq!(last.claimant.machine.name, "worker-99999");
    assert_eq!(last.addresses, [address(99_999).parse().unwrap()]);
    assert_eq!(last.source, format!("machines.json: items[99999].metadata.annotations.{KEY:?}"));
}

//! The manifests in `config/crd` are what the program prints, and every member of them has a description.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use glowplug_controller::api::definitions;
use serde_json::Value;

fn manifest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/crd/glowplug.yaml")
}

#[test]
fn the_manifest_is_what_the_program_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_glowplug-controller")).arg("crd").output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        fs::read_to_string(manifest()).is_ok_and(|written| written == printed),
        "{} differs: write it with `glowplug-controller crd`",
        manifest().display()
    );
}

#[test]
fn the_names_are_those_that_cluster_api_computes() {
    let names: BTreeSet<String> =
        definitions().into_iter().map(|definition| definition.metadata.name.unwrap()).collect();
    let expected = ["globalstaticippools", "staticipleases", "staticippools"];
    assert_eq!(names, expected.map(|plural| format!("{plural}.ipam.glowplug.dev")).into());
}

#[test]
fn every_member_has_a_description_and_what_can_be_written_an_example() {
    fn walk(schema: &Value, at: &str, lacking: &mut Vec<String>) {
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            let description = member["description"].as_str().unwrap_or_default();
            // Of the types of Kubernetes itself the descriptions are Kubernetes' own.
            let is_foreign = ["machineSelector", "conditions"].contains(&name.as_str());
            let is_leaf = member.get("properties").is_none();
            let has_example = description.contains("Example: `")
                || description.contains("`IPv4`")
                || description.contains("`KubevirtMachine`");
            if description.is_empty() || (is_leaf && !is_foreign && !has_example && name != "families") {
                lacking.push(at.clone());
            }
            if !is_foreign {
                walk(member, &at, lacking);
                walk(&member["items"], &at, lacking);
            }
        }
    }
    let mut lacking = Vec::new();
    for definition in definitions() {
        let definition = serde_json::to_value(definition).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        for part in ["spec", "status"] {
            walk(&schema["properties"][part], &format!("{kind}.{part}"), &mut lacking);
        }
    }
    assert_eq!(lacking, [] as [String; 0]);
}

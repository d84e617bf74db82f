//! Builds config drives for the boots, as KubeVirt and other tools write them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Public key that was made for these tests. Its private half is deleted.
pub(crate) const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEv9U5iRybj5IBUW2zRL/z9SnzOOQJIDHukL0jTMeLHG owner@example";

/// A string with characters that are special to systemd or to a shell.
pub(crate) const HOSTILE: &str = r#" u1 "large" 'x' $HOME `id` $(id) \n \\ # ; %i é "#;

fn run(program: &str, package: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}; install the Debian package {package}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the files of a config drive. Each file has its path below `openstack/latest` and its content.
fn files(uuid: &str, network_data: Option<&str>, user_data: &str) -> Vec<(&'static str, String)> {
    let meta_data = serde_json::json!({
        "instance_id": "worker-0.clusters",
        "uuid": uuid,
        "hostname": "worker-0",
        "instance_type": HOSTILE,
        "public_keys": {"0": format!("{KEY}\n")},
    });
    let mut files = vec![("meta_data.json", meta_data.to_string()), ("user_data", user_data.to_owned())];
    files.extend(network_data.map(|document| ("network_data.json", document.to_owned())));
    files
}

fn write(root: &Path, files: &[(&str, String)]) {
    let directory = root.join("openstack/latest");
    fs::create_dir_all(&directory).unwrap();
    for (name, content) in files {
        fs::write(directory.join(name), content).unwrap();
    }
}

/// Builds an ISO 9660 drive for the machine with this UUID.
pub(crate) fn iso(label: &str, uuid: &str, network_data: &str) -> Vec<u8> {
    iso_of(label, &files(uuid, Some(network_data), ""))
}

/// Builds a drive with user data for Ignition, and without a network document.
pub(crate) fn iso_without_network(uuid: &str, user_data: &str) -> Vec<u8> {
    iso_of("config-2", &files(uuid, None, user_data))
}

/// Builds a drive with a network document and with user data for Ignition.
pub(crate) fn iso_with_user_data(uuid: &str, network_data: &str, user_data: &str) -> Vec<u8> {
    iso_of("config-2", &files(uuid, Some(network_data), user_data))
}

fn iso_of(label: &str, files: &[(&str, String)]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (root, image) = (directory.path().join("root"), directory.path().join("image"));
    write(&root, files);
    let (root, image) = (root.to_str().unwrap(), image.to_str().unwrap());
    run("xorrisofs", "xorriso", &["-quiet", "-V", label, "-joliet", "-rock", "-o", image, root]);
    fs::read(image).unwrap()
}

/// Returns the drive that glowplugctl builds for the first machine of a pool. The NIC of the machine has this MAC
/// address.
pub(crate) fn of_the_host(mac_address: &str, user_data: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let glowplugctl = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_glowplugctl"))
            .args(arguments)
            .current_dir(&directory)
            .output()
            .unwrap_or_else(|e| panic!("glowplugctl: {e}"));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let pool = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/host/workers.yaml");
    let machine = "clusters/worker-0";
    glowplugctl(&["init", "--ledger", "ledger", "--pool", pool]);
    let claim = ["claim", "--pool", pool, "--ledger", "ledger", machine, "--uid", "5d30"];
    let network_data = glowplugctl(&[&claim[..], &["--mac", mac_address, "--format", "network-data"]].concat());
    fs::write(path("network_data.json"), network_data).unwrap();
    fs::write(path("user_data"), user_data).unwrap();
    let drive = ["config-drive", machine, "--network-data", "network_data.json", "--user-data", "user_data"];
    glowplugctl(&[&drive[..], &["--output", "drive"]].concat());
    fs::read(path("drive")).unwrap()
}

/// Returns the drive of the first machine of a NodePool that the controller serves. The machine has this UUID, and its
/// NIC has this MAC address. The drive is built from the Secrets of the machine, as KubeVirt does it.
pub(crate) fn of_the_controller(uuid: &str, mac_address: &str, user_data: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).into_os_string().into_string().unwrap();
    fs::write(path("user_data"), user_data).unwrap();
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/controller/Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["test", "--locked", "--quiet", "--manifest-path", manifest, "--test", "demo", "--"])
        .args([uuid, mac_address, &path("user_data"), &path("drive")])
        .output()
        .unwrap_or_else(|e| panic!("cargo: {e}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read(path("drive")).unwrap()
}

/// Builds a FAT drive with the same files as [`iso`].
pub(crate) fn fat(label: &str, uuid: &str, network_data: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (root, image) = (directory.path().join("root"), directory.path().join("image"));
    write(&root, &files(uuid, Some(network_data), ""));
    fs::write(&image, vec![0; 1024 * 1024]).unwrap();
    let (tree, image) = (root.join("openstack"), image.to_str().unwrap());
    run("mkfs.vfat", "dosfstools", &["-n", label, image]);
    run("mcopy", "mtools", &["-s", "-i", image, tree.to_str().unwrap(), "::"]);
    fs::read(image).unwrap()
}

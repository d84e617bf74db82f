//! The names of the Secrets with network data, and the marks that the controller puts into the template of a
//! VirtualMachine.
//!
//! A VirtualMachine has no UID before it is stored, and a later VirtualMachine may have the same name. So each
//! VirtualMachine refers to a Secret with a new random name. The marks are a label and an annotation of the template.
//! KubeVirt copies both into the instance. If a user copies the VirtualMachine, the copy has both, too.

use glowplug::host::claim::is_object_name;

/// Label of the template of a VirtualMachine with network data of the controller: its instance starts only with this
/// data.
pub const NETWORK_DATA_LABEL: &str = "ipam.glowplug.dev/network-data";
/// Value of [`NETWORK_DATA_LABEL`] when the template refers to a Secret.
pub const ISSUED: &str = "issued";
/// Prefix of the values of [`NETWORK_DATA_LABEL`] that request a Secret with a new name from the webhook. The leader or
/// a user sets such a value. The rest of the value differs from the value of every earlier request, because API servers
/// call the webhook only for a change.
pub const REQUESTED: &str = "requested";
/// Prefix of the value of [`NETWORK_DATA_LABEL`] that the webhook writes in place of a value with [`REQUESTED`]. If the
/// webhook is called again for the same change, it recognizes the request by this value. The leader replaces the value
/// when it has seen the new reference.
const RENEWED: &str = "renewed";
/// Annotation of the template with `namespace/name` of the VirtualMachine that the network data belongs to.
pub const VM_ANNOTATION: &str = "ipam.glowplug.dev/virtual-machine";
/// Annotation of a VirtualMachine with the names of Secrets that its manifest named and that the webhook replaced. The
/// names are separated by commas, the newest name is last.
pub const REPLACED_ANNOTATION: &str = "ipam.glowplug.dev/replaced-network-data";
/// Annotation of the object that holds the addresses of a VirtualMachine: its KubevirtMachine, or the VirtualMachine
/// itself. The value is the digest of the network data in the Secret of the machine. If the Secret was updated, the
/// digest is followed by a `@` and the time of the last update.
pub const DIGEST_ANNOTATION: &str = "ipam.glowplug.dev/secret-digest";

/// Part of the name of a Secret between the name of its machine and the random part.
const INFIX: &str = "-networkdata-";
/// Number of random characters, each of five bits.
const RANDOM: usize = 16;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Maximum number of bytes of the name of a VirtualMachine in the name of its Secret.
const MOST_OF_NAME: usize = 200;

/// Returns a new name for the Secret of a VirtualMachine: the name of the machine, and 80 random bits.
///
/// # Errors
///
/// The operating system has no random numbers.
pub fn new_name(vm: &str) -> Result<String, &'static str> {
    let mut bytes = [0; RANDOM];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).map_err(|_| "no random numbers")?;
    let random: String = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect();
    Ok(format!("{}{INFIX}{random}", named_part(vm)))
}

/// Returns the value of [`NETWORK_DATA_LABEL`] for a name that replaces an earlier name.
#[must_use]
pub fn renewed(name: &str) -> String {
    format!("{RENEWED}-{}", name.rsplit_once('-').map_or("", |(_, random)| random))
}

/// Whether a value of [`NETWORK_DATA_LABEL`] requests a new name, or is the value that the webhook writes for such a
/// request.
#[must_use]
pub fn is_change_of_name(label: &str) -> bool {
    label.starts_with(REQUESTED) || label.starts_with(RENEWED)
}

/// Whether a name has the form of [`new_name`]. A user may write any text as the name of a Secret, and the name becomes
/// a part of a path.
#[must_use]
pub fn is_issued(name: &str) -> bool {
    let random = name.rsplit_once(INFIX).map(|(_, random)| random);
    let is_random = |text: &str| text.len() == RANDOM && text.bytes().all(|byte| ALPHABET.contains(&byte));
    is_object_name(name) && random.is_some_and(is_random)
}

/// Whether a name has the form of [`new_name`] for the VirtualMachine `vm`.
#[must_use]
pub fn is_issued_for(name: &str, vm: &str) -> bool {
    is_issued(name) && name.rsplit_once(INFIX).is_some_and(|(of, _)| of == named_part(vm))
}

/// Returns the part of the name of a VirtualMachine that is in the name of its Secret.
fn named_part(vm: &str) -> &str {
    vm.get(..MOST_OF_NAME).unwrap_or(vm).trim_end_matches(['-', '.'])
}

/// Returns the name that version 0.2.0 gave to the Secret of a VirtualMachine.
#[must_use]
pub fn name_of_0_2_0(vm: &str) -> String {
    format!("{vm}-networkdata")
}

/// Whether the controller gives such a name to Secrets: a name in the form of [`new_name`] for any machine, or the name
/// that version 0.2.0 gave to the Secret of `vm`.
#[must_use]
pub fn is_of_controller(name: &str, vm: &str) -> bool {
    is_issued(name) || name == name_of_0_2_0(vm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_new_and_has_the_name_of_its_machine() {
        let [first, second] = [(); 2].map(|()| new_name("w-0").unwrap());
        assert_ne!(first, second);
        for name in [first, second] {
            assert!(name.starts_with("w-0-networkdata-") && name.len() == 32 && is_issued(&name), "{name}");
        }
    }

    #[test]
    fn the_secret_of_any_machine_gets_a_valid_name() {
        for vm in ["w", &"w".repeat(253), &format!("{}.{}", "w".repeat(199), "x".repeat(53))] {
            let name = new_name(vm).unwrap();
            assert!(is_object_name(&name) && is_issued_for(&name, vm) && !is_issued_for(&name, "x"), "{name}");
        }
    }

    #[test]
    fn only_names_in_the_form_of_the_controller_are_issued() {
        for name in [
            "w-0-networkdata",
            "w-0-networkdata-",
            "-networkdata-abcdefghijklmnop",
            "w-0-networkdata-abcdefghijklmno",
            "w-0-networkdata-abcdefghijklmno1",
            "w-0-networkdata-abcdefghijklmnopq",
            "w-0-userdata-abcdefghijklmnop",
            "../secrets/w-networkdata-abcdefghijklmnop",
            "W-networkdata-abcdefghijklmnop",
        ] {
            assert!(!is_issued(name), "{name}");
        }
        assert!(is_of_controller("w-0-networkdata", "w-0") && !is_of_controller("w-0-networkdata", "w-1"));
    }
}

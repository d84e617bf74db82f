//! The two ways in which KubeVirt gets a document: inline in the object of the machine, or in a Secret.

use serde_json::{Value, json};

use super::Document;
use crate::host::claim::Machine;
use crate::host::image::MAX_INLINE;
use crate::host::records::API_VERSION;

impl Document {
    /// Whether KubeVirt accepts the document inline in the object. Otherwise the document needs a Secret.
    #[must_use]
    pub fn fits_inline(&self) -> bool {
        self.text().len() <= MAX_INLINE
    }

    /// The manifest of the Secret `<machine>-networkdata` for `networkDataSecretRef`, with the key that KubeVirt reads.
    ///
    /// Create the Secret before any reference to it. A machine waits for a missing Secret, but KubeVirt ignores a
    /// Secret without the key, and the guest boots without a network. Kubernetes deletes the Secret together with its
    /// KubevirtMachine. The Secret is immutable, because a guest would use another address from a changed Secret at its
    /// next start.
    #[must_use]
    pub fn secret(&self, machine: &Machine) -> Value {
        let Machine { namespace, name, uid, .. } = machine;
        let mut labels = json!({"app.kubernetes.io/managed-by": "glowplug"});
        // A label has at most 63 characters, the name of an object at most 253.
        for (label, value) in [("name", name), ("namespace", namespace)].into_iter().filter(|(_, it)| it.len() <= 63) {
            labels[format!("capk.cluster.x-k8s.io/kubevirt-machine-{label}")] = value.as_str().into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": format!("{name}-networkdata"),
                "namespace": namespace,
                "labels": labels,
                "ownerReferences": [{"apiVersion": API_VERSION, "kind": "KubevirtMachine", "name": name, "uid": uid}],
            },
            "immutable": true,
            "type": "Opaque",
            // `data` and not `stringData`: the API server never returns `stringData`, so a reader could not compare the
            // written content with the stored content.
            "data": {"networkdata": base64(self.text().as_bytes())},
        })
    }
}

/// Encodes base64, RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let index = bits >> (18 - 6 * digit) & 63;
            text.push(if digit <= group.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_gives_the_test_vectors_of_its_rfc() {
        let vectors = ["", "f", "fo", "foo", "foob", "fooba", "foobar", "\u{ff}>?"];
        assert_eq!(
            vectors.map(|text| base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy", "w78+Pw=="]
        );
    }
}

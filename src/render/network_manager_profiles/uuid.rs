//! UUIDs of version 5 (RFC 9562), which are hashes of names.

use std::fmt;

/// Namespace of the names of profiles. This number must not change, because users may refer to a profile by its UUID.
pub(super) const NAMESPACE: [u8; 16] = 0x71c8_9cdc_a1ee_4d7a_8aa7_8be4_8d7e_dbb8_u128.to_be_bytes();

/// A UUID.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Uuid([u8; 16]);

// === impl Uuid ===

impl Uuid {
    /// Returns the UUID of a name in a namespace.
    pub(super) fn of(namespace: [u8; 16], name: &str) -> Self {
        let hash = sha1(&[&namespace[..], name.as_bytes()].concat());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        bytes[6] = bytes[6] & 0x0f | 0x50;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// The SHA-1 hash of a message (RFC 3174). UUIDs of version 5 require this hash; no security depends on it.
fn sha1(message: &[u8]) -> [u8; 20] {
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - message.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let end = padded.len() - 8;
    padded[end..].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    for block in padded.chunks_exact(64) {
        let mut words = [0_u32; 80];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        for at in 16..80 {
            words[at] = (words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16]).rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (at, word) in words.into_iter().enumerate() {
            let (mixed, constant) = match at {
                0..20 => (b & c | !b & d, 0x5a82_7999),
                20..40 => (b ^ c ^ d, 0x6ed9_eba1),
                40..60 => (b & c | b & d | c & d, 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6_u32),
            };
            let next = a.rotate_left(5).wrapping_add(mixed).wrapping_add(e).wrapping_add(constant).wrapping_add(word);
            (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
        }
        for (sum, word) in state.iter_mut().zip([a, b, c, d, e]) {
            *sum = sum.wrapping_add(word);
        }
    }
    let mut hash = [0; 20];
    for (bytes, word) in hash.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_around_the_length_of_a_block_have_the_same_hash_as_with_sha1sum() {
        let hex = |message: &str| sha1(message.as_bytes()).map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(hex("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        // The expected hashes are from `sha1sum`.
        for (length, expected) in [
            (55, "c1c8bbdc22796e28c0e15163d20899b65621d65a"),
            (56, "c2db330f6083854c99d4b5bfb6e8f29f201be699"),
            (63, "03f09f5b158a7a8cdad920bddc29b81c18a551f5"),
            (64, "0098ba824b5c16427bd7a1122a5a442a25ec644d"),
            (119, "ee971065aaa017e0632a8ca6c77bb3bf8b1dfc56"),
            (120, "f34c1488385346a55709ba056ddd08280dd4c6d6"),
        ] {
            assert_eq!(hex(&"a".repeat(length)), expected, "{length}");
        }
    }

    /// The name and the UUID are the example of RFC 9562.
    #[test]
    fn the_example_of_rfc_9562_has_the_expected_uuid() {
        let of_dns = 0x6ba7_b810_9dad_11d1_80b4_00c0_4fd4_30c8_u128.to_be_bytes();
        assert_eq!(Uuid::of(of_dns, "www.example.com").to_string(), "2ed6657d-e927-568b-95e1-2665a8aea6a2");
    }
}

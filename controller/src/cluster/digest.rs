//! Digests of bytes.

/// Returns the first 32 hexadecimal digits of the SHA-256 digest of `text`. `None`: the TLS library has no hash
/// function.
pub(crate) fn digest(text: &[u8]) -> Option<String> {
    let suite = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let hash = suite.tls13()?.common.hash_provider.hash(text);
    Some(hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_digest_is_the_first_half_of_the_sha_256() {
        assert_eq!(super::digest(b"abc"), Some("ba7816bf8f01cfea414140de5dae2223".to_owned()));
    }
}

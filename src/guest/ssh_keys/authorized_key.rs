//! Parses lines of `authorized_keys` into keys that sshd can use.

use std::fmt;
use std::str::FromStr;

use crate::diagnostic::{Diagnostic, Diagnostics};

/// One line of an `authorized_keys` file that sshd can use: options, kind, key, comment (sshd(8)).
///
/// The line is written again from its parsed parts. The key must be complete: its base64 string is canonical, and its
/// bytes are a whole key of the kind that the line names. So a truncated key is rejected here, and not only at the
/// first login. The names of options are not checked, because newer versions of sshd have further options.
///
/// Two kinds of whole keys are refused, too: DSA keys, which sshd no longer supports, and certificates, which sshd does
/// not look for in this file.
///
/// ```
/// use glowplug::guest::ssh_keys::{AuthorizedKey, AuthorizedKeyError};
///
/// let line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA  me@example";
/// assert_eq!(line.parse::<AuthorizedKey>().unwrap().to_string(), line.replace("  ", " "));
/// assert_eq!(line.replace("AAAA  me", "  me").parse::<AuthorizedKey>(), Err(AuthorizedKeyError::Key));
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AuthorizedKey(String);

/// Error: a line is not an [`AuthorizedKey`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AuthorizedKeyError {
    /// The line is longer than [`AuthorizedKey::MAX`].
    TooLong,
    /// The line has a control character other than a tab.
    ControlCharacter,
    /// The string before the kind is not a list of options.
    Options,
    /// The kind is missing or unknown.
    Kind,
    /// The key is a certificate.
    Certificate,
    /// The key is not base64, or not a complete key of its kind.
    Key,
}

/// Kinds of keys, each with the number of fields in a key of this kind.
const KINDS: [(&str, usize); 7] = [
    ("ssh-ed25519", 2),
    ("ssh-rsa", 3),
    ("ecdsa-sha2-nistp256", 3),
    ("ecdsa-sha2-nistp384", 3),
    ("ecdsa-sha2-nistp521", 3),
    ("sk-ssh-ed25519@openssh.com", 3),
    ("sk-ecdsa-sha2-nistp256@openssh.com", 4),
];

/// Characters that separate the parts of a line.
const BLANKS: [char; 2] = [' ', '\t'];

/// Reads the keys of a value that KubeVirt copies from a Secret: one key on each line. The value may have empty lines,
/// comments and Windows line ends.
///
/// A line that is not a key becomes a warning, and the other lines are kept. A message shows only the first characters
/// of a line. If the value contains a private key by mistake, only the first line of this key is reported.
pub fn keys_in(text: &str, path: &str, diagnostics: &mut Diagnostics) -> Vec<AuthorizedKey> {
    const SHOWN: usize = 16;
    let mut keys = Vec::new();
    let mut in_private_key = false;
    let several = text.trim_end().contains('\n');
    for (number, line) in (1..).zip(text.split('\n')) {
        let line = line.strip_suffix('\r').unwrap_or(line).trim_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_edge = |word| line.starts_with("----") && line.contains(word);
        let begins = is_edge("BEGIN ");
        match line.parse::<AuthorizedKey>() {
            Ok(key) => keys.push(key),
            Err(_) if in_private_key && !begins => in_private_key = !is_edge("END "),
            Err(e) => {
                in_private_key = begins;
                let value = match line.char_indices().nth(SHOWN) {
                    Some((end, _)) => format!("{}…", &line[..end]),
                    None => line.to_owned(),
                };
                let (problem, expected) = e.text();
                diagnostics.push(if several {
                    Diagnostic::warning(format_args!("{path} line {number}"), problem, value, expected)
                } else {
                    Diagnostic::warning(path, problem, value, expected)
                });
            }
        }
    }
    keys
}

// === impl AuthorizedKey ===

impl AuthorizedKey {
    /// Longest line, in bytes. OpenSSH has the same limit.
    pub const MAX: usize = 16 * 1024;
}

impl FromStr for AuthorizedKey {
    type Err = AuthorizedKeyError;

    fn from_str(line: &str) -> Result<Self, AuthorizedKeyError> {
        if line.len() > Self::MAX {
            return Err(AuthorizedKeyError::TooLong);
        }
        if line.chars().any(|c| c.is_control() && c != '\t') {
            return Err(AuthorizedKeyError::ControlCharacter);
        }
        let line = line.trim_matches(BLANKS);
        let is_none = |word| kind_of(word) == Err(AuthorizedKeyError::Kind);
        // As in sshd, a line that does not begin with a kind begins with options.
        let (options, rest) = match kind_of(word(line).0) {
            Ok(_) => ("", line),
            // If no word of the line is a kind, the missing kind is the error to report.
            Err(e) if e == AuthorizedKeyError::Certificate || line.split(BLANKS).all(is_none) => return Err(e),
            Err(_) => split_options(line)?,
        };
        let (kind, rest) = word(rest);
        let (key, comment) = word(rest);
        let (kind, fields) = kind_of(kind)?;
        if !decode_base64(key).is_some_and(|key| is_whole(&key, kind, fields)) {
            return Err(AuthorizedKeyError::Key);
        }
        let mut written = String::new();
        for part in [options, kind, key, comment].into_iter().filter(|part| !part.is_empty()) {
            if !written.is_empty() {
                written.push(' ');
            }
            written.push_str(part);
        }
        Ok(Self(written))
    }
}

impl fmt::Display for AuthorizedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the kind of key with this name, and the number of fields in a key of this kind.
fn kind_of(name: &str) -> Result<(&'static str, usize), AuthorizedKeyError> {
    match KINDS.into_iter().find(|(kind, _)| *kind == name) {
        Some(kind) => Ok(kind),
        None if name.ends_with("-cert-v01@openssh.com") => Err(AuthorizedKeyError::Certificate),
        None => Err(AuthorizedKeyError::Kind),
    }
}

/// Splits a string at its first blanks, and returns both parts without these blanks.
fn word(text: &str) -> (&str, &str) {
    text.split_once(BLANKS).map_or((text, ""), |(word, rest)| (word, rest.trim_start_matches(BLANKS)))
}

/// Splits the options from the rest of the line. An option is a name, or `name="value"`; commas separate options.
fn split_options(line: &str) -> Result<(&str, &str), AuthorizedKeyError> {
    let mut rest = line;
    loop {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-');
        if after.len() == rest.len() {
            return Err(AuthorizedKeyError::Options);
        }
        rest = match after.strip_prefix("=\"") {
            Some(value) => after_value(value).ok_or(AuthorizedKeyError::Options)?,
            None => after,
        };
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None if rest.is_empty() || rest.starts_with(BLANKS) => break,
            None => return Err(AuthorizedKeyError::Options),
        }
    }
    Ok((&line[..line.len() - rest.len()], rest.trim_start_matches(BLANKS)))
}

/// Returns the string after the quote that ends a value. A backslash escapes only a quote.
fn after_value(value: &str) -> Option<&str> {
    let bytes = value.as_bytes();
    let mut at = 0;
    loop {
        match (bytes.get(at)?, bytes.get(at + 1)) {
            (b'\\', Some(b'"')) => at += 2,
            (b'"', _) => return Some(&value[at + 1..]),
            _ => at += 1,
        }
    }
}

/// Decodes a canonical base64 string (RFC 4648, section 4): padded, and with all unused bits zero.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0).then_some(bytes)
}

/// Returns whether the bytes are a complete key of this kind, with this number of fields. Each field comes after its
/// length, and the first field is the kind (RFC 4253, section 6.6).
fn is_whole(key: &[u8], kind: &str, fields: usize) -> bool {
    let (mut rest, mut count) = (key, 0);
    while let Some((length, after)) = rest.split_first_chunk() {
        let Some((field, after)) = after.split_at_checked(u32::from_be_bytes(*length) as usize) else { return false };
        if count == 0 && field != kind.as_bytes() {
            return false;
        }
        (rest, count) = (after, count + 1);
    }
    rest.is_empty() && count == fields
}

// === impl AuthorizedKeyError ===

impl AuthorizedKeyError {
    /// Returns the problem and the expectation, for a message.
    fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::TooLong => ("line too long", "at most 16384 bytes"),
            Self::ControlCharacter => ("control character", "a line without control characters"),
            Self::Options => ("invalid options", "name or name=\"value\", between commas, before the kind of key"),
            Self::Kind => (
                "no known kind of key",
                "a public key of ssh-ed25519, ssh-rsa, ecdsa-sha2-nistp256, -384 or -521, or of a security key",
            ),
            Self::Certificate => {
                ("certificate", "a public key, such as that of the authority with cert-authority before it")
            }
            Self::Key => ("damaged key", "the whole base64 text of a key of the kind before it"),
        }
    }
}

impl fmt::Display for AuthorizedKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (problem, expected) = self.text();
        write!(f, "{problem}, expected {expected}")
    }
}

impl std::error::Error for AuthorizedKeyError {}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEvOyfbMc45QK4WHdcfY2I+o08HFV62AVFgSIDtGR1K+";

    fn encode_base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let bits = (0..3).fold(0, |bits, i| bits << 8 | usize::from(chunk.get(i).copied().unwrap_or(0)));
            for digit in 0..4 {
                text.push(if digit > chunk.len() { '=' } else { char::from(DIGITS[bits >> (18 - 6 * digit) & 63]) });
            }
        }
        text
    }

    /// Encodes a key as a line: the kind, then these fields.
    fn key(kind: &str, fields: &[&[u8]]) -> String {
        let mut bytes = Vec::new();
        for field in [kind.as_bytes()].iter().chain(fields) {
            bytes.extend(u32::try_from(field.len()).unwrap().to_be_bytes());
            bytes.extend(*field);
        }
        format!("{kind} {}", encode_base64(&bytes))
    }

    fn read(line: &str) -> Result<String, AuthorizedKeyError> {
        line.parse().map(|key: AuthorizedKey| key.to_string())
    }

    macro_rules! accepts {
        ($($name:ident: $line:expr => $written:expr;)*) => {
            $(#[test] fn $name() {
                assert_eq!(read(&$line), Ok(String::from($written)));
            })*
        };
    }

    macro_rules! rejects {
        ($($name:ident: $line:expr => $error:ident;)*) => {
            $(#[test] fn $name() {
                assert_eq!(read(&$line), Err(AuthorizedKeyError::$error));
            })*
        };
    }

    accepts! {
        a_key_without_options_and_comment_is_accepted: ED25519 => ED25519;
        a_comment_of_several_words_is_kept: format!("{ED25519} José on his laptop")
            => format!("{ED25519} José on his laptop");
        other_blanks_between_the_parts_become_single_blanks: format!("\t {}\t a  b \t", ED25519.replace(' ', " \t"))
            => format!("{ED25519} a  b");
        options_before_the_key_are_kept: format!("no-pty,restrict  {ED25519}") => format!("no-pty,restrict {ED25519}");
        options_with_blanks_and_quotes_are_kept:
            format!(r#"command="echo \"a, b\" \\n",from="10.0.0.0/8,!*.example",X11-forwarding {ED25519} c"#)
            => format!(r#"command="echo \"a, b\" \\n",from="10.0.0.0/8,!*.example",X11-forwarding {ED25519} c"#);
        an_option_with_an_empty_value_is_accepted: format!(r#"from="" {ED25519}"#) => format!(r#"from="" {ED25519}"#);
        the_longest_line_is_accepted: format!("{ED25519} {}", "c".repeat(AuthorizedKey::MAX - ED25519.len() - 1))
            => format!("{ED25519} {}", "c".repeat(AuthorizedKey::MAX - ED25519.len() - 1));
        the_key_of_a_security_key_is_accepted: key("sk-ssh-ed25519@openssh.com", &[&[1; 32], b"ssh:"])
            => key("sk-ssh-ed25519@openssh.com", &[&[1; 32], b"ssh:"]);
        the_key_of_an_older_security_key_is_accepted:
            key("sk-ecdsa-sha2-nistp256@openssh.com", &[b"nistp256", &[4; 65], b"ssh:"])
            => key("sk-ecdsa-sha2-nistp256@openssh.com", &[b"nistp256", &[4; 65], b"ssh:"]);
    }

    rejects! {
        an_empty_line_is_not_a_key: "" => Kind;
        a_comment_line_is_not_a_key: format!("# {ED25519}") => Options;
        a_line_of_one_word_is_not_a_key: "hello" => Kind;
        a_key_without_its_kind_is_rejected: ED25519.replace("ssh-ed25519 ", "") => Kind;
        a_kind_in_capitals_is_rejected: ED25519.replace("ssh-ed", "SSH-ED") => Kind;
        a_dsa_key_is_rejected: key("ssh-dss", &[&[1; 9], &[1; 9], &[1; 9], &[1; 9]]) => Kind;
        a_private_key_is_rejected: "-----BEGIN OPENSSH PRIVATE KEY-----" => Kind;
        two_words_of_options_are_rejected: format!("no-pty restrict {ED25519}") => Kind;
        an_option_value_without_quotes_is_rejected: format!("from=10.0.0.1 {ED25519}") => Options;
        an_option_with_an_open_quote_is_rejected: format!(r#"command="a {ED25519}"#) => Options;
        an_escaped_quote_does_not_end_an_option: format!(r#"command="a\" {ED25519}"#) => Options;
        a_string_after_the_closing_quote_of_an_option_is_rejected: format!(r#"command="a"b {ED25519}"#) => Options;
        an_empty_option_between_commas_is_rejected: format!("no-pty,,restrict {ED25519}") => Options;
        a_comma_after_the_last_option_is_rejected: format!("no-pty, {ED25519}") => Options;
        a_certificate_is_rejected: key("ssh-ed25519-cert-v01@openssh.com", &[&[1; 32], &[1; 32]]) => Certificate;
        a_certificate_after_options_is_rejected: format!("no-pty {}", key("ssh-rsa-cert-v01@openssh.com", &[]))
            => Certificate;
        a_kind_without_a_key_is_rejected: "ssh-ed25519" => Key;
        a_kind_that_differs_from_the_kind_in_the_key_is_rejected: ED25519.replace("ssh-ed25519", "ssh-rsa") => Key;
        a_key_without_its_last_four_digits_is_rejected: &ED25519[..ED25519.len() - 4] => Key;
        a_key_with_further_digits_is_rejected: format!("{ED25519}AAAA") => Key;
        a_key_without_its_last_digit_is_rejected: &ED25519[..ED25519.len() - 1] => Key;
        the_alphabet_of_base64_for_urls_is_rejected: ED25519.replace('+', "-") => Key;
        a_key_with_too_few_fields_is_rejected: key("ssh-rsa", &[&[1; 3]]) => Key;
        a_key_with_too_many_fields_is_rejected: key("ssh-ed25519", &[&[1; 32], b""]) => Key;
        a_field_that_is_longer_than_the_key_is_rejected:
            format!("ssh-ed25519 {}", encode_base64(b"\xff\xff\xff\xffssh-ed25519"))
            => Key;
        a_key_without_its_padding_is_rejected: key("ssh-ed25519", &[&[1; 33]]).replace('=', "") => Key;
        padding_in_the_middle_of_a_key_is_rejected: key("ssh-ed25519", &[&[1; 33]]).replace('=', "=A") => Key;
        a_key_whose_unused_bits_are_not_zero_is_rejected: key("ssh-ed25519", &[&[0; 33]]).replace("A==", "B==") => Key;
        padding_without_digits_is_rejected: "ssh-ed25519 ====" => Key;
        a_newline_in_a_line_is_rejected: format!("{ED25519} a\nssh-rsa") => ControlCharacter;
        a_carriage_return_in_a_line_is_rejected: format!("{ED25519} a\rb") => ControlCharacter;
        an_escape_character_in_a_line_is_rejected: format!("{ED25519} \u{1b}[2J") => ControlCharacter;
        a_nul_byte_in_a_line_is_rejected: format!("{ED25519}\0") => ControlCharacter;
        a_line_that_is_too_long_is_rejected: format!("{ED25519} {}", "c".repeat(AuthorizedKey::MAX - ED25519.len()))
            => TooLong;
    }

    #[test]
    fn base64_of_every_length_is_decoded() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..=bytes.len() {
            assert_eq!(decode_base64(&encode_base64(&bytes[..length])).as_deref(), Some(&bytes[..length]));
        }
    }

    /// Reads a value, and returns its keys and its diagnostics.
    fn keys_and_diagnostics(text: &str) -> (Vec<String>, Vec<String>) {
        let mut diagnostics = Diagnostics::default();
        let keys = keys_in(text, "public_keys[1]", &mut diagnostics);
        assert!(!diagnostics.has_errors());
        let expected_diagnostics = diagnostics.kept().iter().map(Diagnostic::to_string).collect();
        (keys.iter().map(AuthorizedKey::to_string).collect(), expected_diagnostics)
    }

    #[test]
    fn a_value_can_have_several_keys_and_comments() {
        let text = format!("# mine\r\n{ED25519} a\r\n\r\n  \t\n #another\n\t{ED25519} b\n\n");
        assert_eq!(keys_and_diagnostics(&text), (vec![format!("{ED25519} a"), format!("{ED25519} b")], vec![]));
        assert_eq!(keys_and_diagnostics(""), (vec![], vec![]));
        assert_eq!(keys_and_diagnostics("\n# nothing\n"), (vec![], vec![]));
    }

    #[test]
    fn an_invalid_line_does_not_affect_the_other_lines() {
        let cut = &ED25519[..ED25519.len() - 4];
        let text = format!("{ED25519} a\n{cut}\n{ED25519} b\nno,,pty {ED25519}\nssh-dss A\u{7} me\n");
        let expected_diagnostics = [
            (2, r#"damaged key "ssh-ed25519 AAAA…""#, "the whole base64 text of a key of the kind before it"),
            (
                4,
                r#"invalid options "no,,pty ssh-ed25…""#,
                r#"name or name="value", between commas, before the kind of key"#,
            ),
            (5, r#"control character "ssh-dss A\u{7} me""#, "a line without control characters"),
        ]
        .map(|(line, problem, expected)| format!("public_keys[1] line {line}: {problem}, expected {expected}"));
        let keys = vec![format!("{ED25519} a"), format!("{ED25519} b")];
        assert_eq!(keys_and_diagnostics(&text), (keys, expected_diagnostics.to_vec()));
    }

    #[test]
    fn diagnostics_of_a_value_of_one_line_have_no_line_number() {
        let long = "x".repeat(16385);
        for (text, problem, expected) in [
            (
                "ssh-dss AAAA\n",
                r#"no known kind of key "ssh-dss AAAA""#,
                "a public key of ssh-ed25519, ssh-rsa, ecdsa-sha2-nistp256, -384 or -521, or of a security key",
            ),
            (
                "ssh-rsa-cert-v01@openssh.com AAAA",
                r#"certificate "ssh-rsa-cert-v01…""#,
                "a public key, such as that of the authority with cert-authority before it",
            ),
            (&long, r#"line too long "xxxxxxxxxxxxxxxx…""#, "at most 16384 bytes"),
        ] {
            let expected_diagnostics = format!("public_keys[1]: {problem}, expected {expected}");
            assert_eq!(keys_and_diagnostics(text), (vec![], vec![expected_diagnostics]));
        }
    }

    #[test]
    fn of_a_private_key_only_the_first_line_is_reported() {
        let (begin, end) = ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----");
        let (keys, expected_diagnostics) =
            keys_and_diagnostics(&format!("{begin}\nc2VjcmV0\nc2VjcmV0\n{end}\n{ED25519}\nbad\n"));
        let expected = AuthorizedKeyError::Kind.text().1;
        let shown = [(1, "-----BEGIN OPENS…"), (6, "bad")];
        let shown = shown.map(|(line, value)| {
            format!(r#"public_keys[1] line {line}: no known kind of key "{value}", expected {expected}"#)
        });
        assert_eq!((keys, expected_diagnostics), (vec![ED25519.to_owned()], shown.to_vec()));
        let (keys, expected_diagnostics) = keys_and_diagnostics(&format!("{begin}\nc2VjcmV0\n{ED25519}\n"));
        assert_eq!((keys.len(), expected_diagnostics.len()), (1, 1));
    }

    #[test]
    fn accepted_keys_are_the_keys_that_openssh_reads() {
        let directory = tempfile::tempdir().unwrap();
        let keygen = |arguments: &[&str]| {
            let output = Command::new("ssh-keygen").current_dir(&directory).args(arguments).output();
            let output = output.expect("running ssh-keygen of the package openssh-client");
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let mut lines = vec![key("sk-ssh-ed25519@openssh.com", &[&[1; 32], b"ssh:"])];
        for (kind, bits) in [("ed25519", "256"), ("rsa", "2048"), ("ecdsa", "256"), ("ecdsa", "384"), ("ecdsa", "521")]
        {
            let name = format!("{kind}{bits}");
            keygen(&["-q", "-t", kind, "-b", bits, "-N", "", "-C", "a comment", "-f", &name]);
            lines.push(fs::read_to_string(directory.path().join(name + ".pub")).unwrap());
        }
        lines.push(format!(r#"command="echo \"a b\"",no-pty {ED25519} with options"#));
        let (keys, expected_diagnostics) = keys_and_diagnostics(&lines.join("\n"));
        assert_eq!((keys.len(), expected_diagnostics), (7, vec![]));
        fs::write(directory.path().join("authorized_keys"), keys.join("\n")).unwrap();
        let read = keygen(&["-l", "-f", "authorized_keys"]);
        let kinds: Vec<_> = read.lines().filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(kinds, ["(ED25519-SK)", "(ED25519)", "(RSA)", "(ECDSA)", "(ECDSA)", "(ECDSA)", "(ED25519)"]);
    }
}

//! Reads from the DER encoding of a certificate when the certificate expires: RFC 5280, section 4.1.

use k8s_openapi::jiff::Timestamp;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// Tag of the version. A certificate of version 1 does not have this value.
const VERSION: u8 = 0xa0;

/// Returns the end of the validity of a certificate. `None`: the bytes are not a certificate.
pub(super) fn expiry(certificate: &[u8]) -> Option<Timestamp> {
    let (content, _) = read(certificate, SEQUENCE)?;
    let (content, _) = read(content, SEQUENCE)?;
    let content = read(content, VERSION).map_or(content, |(_, rest)| rest);
    let (_serial, content) = read(content, INTEGER)?;
    let (_algorithm, content) = read(content, SEQUENCE)?;
    let (_issuer, content) = read(content, SEQUENCE)?;
    let (validity, _) = read(content, SEQUENCE)?;
    let [begin, end] = [UTC_TIME, GENERALIZED_TIME].map(|tag| read(validity, tag));
    let (_, end_of_validity) = begin.or(end)?;
    match read(end_of_validity, UTC_TIME) {
        Some((text, _)) => {
            let text = str::from_utf8(text).ok()?;
            let century = if text.get(..2)?.parse::<u8>().ok()? < 50 { "20" } else { "19" };
            time(&format!("{century}{text}"))
        }
        None => time(str::from_utf8(read(end_of_validity, GENERALIZED_TIME)?.0).ok()?),
    }
}

/// Reads a value with this tag. Returns the content of the value, and the bytes that follow the value.
fn read(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, length], rest) = input.split_first_chunk()?;
    let (length, rest) = match usize::from(length) {
        short @ 0..0x80 => (short, rest),
        long => {
            let (bytes, rest) =
                rest.split_at_checked(long & 0x7f).filter(|(bytes, _)| (1..=4).contains(&bytes.len()))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
    };
    rest.split_at_checked(length).filter(|_| found == tag)
}

/// Parses a time such as `20260814100000Z`.
fn time(text: &str) -> Option<Timestamp> {
    let digits =
        text.strip_suffix('Z').filter(|digits| digits.len() == 14 && digits.bytes().all(|b| b.is_ascii_digit()))?;
    // RFC 5280: a certificate with this time has no expiry.
    if digits == "99991231235959" {
        return Some(Timestamp::MAX);
    }
    let [date, time] = [&digits[..8], &digits[8..]];
    format!("{}-{}-{}T{}:{}:{}Z", &date[..4], &date[4..6], &date[6..], &time[..2], &time[2..4], &time[4..]).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_validity_of_a_certificate_is_read_in_both_forms() {
        for year in [2049, 2050, 4096] {
            let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
            parameters.not_after = rcgen::date_time_ymd(year, 3, 7);
            let certificate = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
            let expected: Timestamp = format!("{year}-03-07T00:00:00Z").parse().unwrap();
            assert_eq!(expiry(certificate.der()), Some(expected));
        }
        assert_eq!(time("99991231235959Z"), Some(Timestamp::MAX));
    }

    #[test]
    fn a_truncated_certificate_has_no_expiry_and_a_damaged_certificate_causes_no_panic() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let der = made.cert.der().to_vec();
        // The first quarter of the certificate does not contain the end of the validity.
        assert!((0..der.len() / 4).all(|length| expiry(&der[..length]).is_none()));
        for at in 0..der.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut damaged = der.clone();
                damaged[at] = byte;
                let _ = expiry(&damaged);
            }
        }
        for text in ["", "20260814100000", "2026081410000Z", "20261314100000Z", "+0260814100000Z"] {
            assert_eq!(time(text), None, "{text}");
        }
    }
}

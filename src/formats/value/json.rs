//! What is passed over in JSON that people write: comments on lines of their own, and trailing commas.
//!
//! Both become blanks, so that line and column of everything else stay the same. A string of JSON ends on its line, so a
//! line that begins with a comment is never inside of a string.

use crate::finding::Finding;

/// Whether a line without its leading blanks is a comment.
pub(super) fn is_comment(line: &[u8]) -> bool {
    line.starts_with(b"#") || line.starts_with(b"//")
}

/// The same document with blanks in place of what is passed over, and a warning for each such place.
pub(super) fn without_comments_and_trailing_commas(document: &[u8]) -> (Vec<u8>, Vec<Finding>) {
    let mut cleaned = document.to_vec();
    let mut findings = Vec::new();
    let mut is_in_string = false;
    let mut is_escaped = false;
    // The last byte that is neither blank nor comment, and a comma that may be a trailing one, with its place.
    let mut before = 0;
    let mut comma: Option<(usize, String)> = None;
    let mut start = 0;
    for (index, line) in document.split(|byte| *byte == b'\n').enumerate() {
        let first = line.len() - line.trim_ascii_start().len();
        if is_comment(&line[first..]) {
            cleaned[start..start + line.len()].fill(b' ');
            let (place, text) = (format!("line {} column {}", index + 1, first + 1), line[first..].trim_ascii_end());
            let text = String::from_utf8_lossy(text);
            findings.push(Finding::warning(place, "comment", text, "JSON, which has no comments"));
            start += line.len() + 1;
            continue;
        }
        for (column, byte) in line.iter().enumerate() {
            match byte {
                _ if is_in_string => {
                    is_in_string = is_escaped || *byte != b'"';
                    is_escaped = !is_escaped && *byte == b'\\';
                }
                b' ' | b'\t' | b'\r' => continue,
                b'"' => is_in_string = true,
                b'}' | b']' => {
                    if let Some((at, place)) = comma.take() {
                        cleaned[at] = b' ';
                        let expected = "no comma before a closing bracket";
                        findings.push(Finding::warning(place, "trailing comma", ",", expected));
                    }
                }
                _ => {}
            }
            // Where no value comes before it, it is no trailing comma.
            let is_trailing = *byte == b',' && !matches!(before, 0 | b',' | b':' | b'[' | b'{');
            comma = is_trailing.then(|| (start + column, format!("line {} column {}", index + 1, column + 1)));
            before = *byte;
        }
        start += line.len() + 1;
    }
    (cleaned, findings)
}

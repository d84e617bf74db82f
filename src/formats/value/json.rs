//! Removes trailing commas, and comments that have a line of their own: people write both in JSON, although JSON does
//! not allow them.
//!
//! Blanks replace the removed characters, so that the line and the column of all other characters stay the same. A JSON
//! string ends on the line on which it begins, so a line that begins with a comment is never inside a string.

use crate::diagnostic::Diagnostic;

/// Whether a line is a comment. The line has no leading blanks.
pub(super) fn is_comment(line: &[u8]) -> bool {
    line.starts_with(b"#") || line.starts_with(b"//")
}

/// Returns the document with blanks in place of comments and trailing commas, and a warning for each comment and each
/// comma.
pub(super) fn without_comments_and_trailing_commas(document: &[u8]) -> (Vec<u8>, Vec<Diagnostic>) {
    let mut cleaned = document.to_vec();
    let mut diagnostics = Vec::new();
    let mut is_in_string = false;
    let mut is_escaped = false;
    // `before` is the last byte outside of blanks and comments. `comma` is a comma that may be a trailing comma, with
    // its position.
    let mut before = 0;
    let mut comma: Option<(usize, String)> = None;
    let mut start = 0;
    for (index, line) in document.split(|byte| *byte == b'\n').enumerate() {
        let first = line.len() - line.trim_ascii_start().len();
        if is_comment(&line[first..]) {
            cleaned[start..start + line.len()].fill(b' ');
            let (path, text) = (format!("line {} column {}", index + 1, first + 1), line[first..].trim_ascii_end());
            let text = String::from_utf8_lossy(text);
            diagnostics.push(Diagnostic::warning(path, "comment", text, "JSON, which has no comments"));
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
                    if let Some((at, path)) = comma.take() {
                        cleaned[at] = b' ';
                        let expected = "no comma before a closing bracket";
                        diagnostics.push(Diagnostic::warning(path, "trailing comma", ",", expected));
                    }
                }
                _ => {}
            }
            // A trailing comma follows a value.
            let is_trailing = *byte == b',' && !matches!(before, 0 | b',' | b':' | b'[' | b'{');
            comma = is_trailing.then(|| (start + column, format!("line {} column {}", index + 1, column + 1)));
            before = *byte;
        }
        start += line.len() + 1;
    }
    (cleaned, diagnostics)
}

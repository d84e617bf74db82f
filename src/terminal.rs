//! Output for people: escaped strings and tables.

/// Escapes a string from outside the program, so that the string stays on one line and does not act on a terminal.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.chars().map(|c| if acts_on_terminal(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Returns whether a terminal acts on the character: the character moves the cursor, starts a line, or changes the
/// direction of the text.
#[must_use]
pub fn acts_on_terminal(c: char) -> bool {
    let is_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_direction || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Maximum width of a column, in characters. Without this limit, one long string would make every row as long.
const MAX_WIDTH: usize = 1024;

/// Formats a table. A cell is a list of strings, each on its own line. Every string is escaped.
///
/// A column is as wide as its longest string, but at most `max_width` and at most 1024 characters. A longer string is
/// not cut: it moves the cells after it to the right.
#[must_use]
pub fn table<const N: usize>(rows: Vec<[Vec<String>; N]>, max_width: usize) -> String {
    let escape = |cell: Vec<String>| cell.iter().map(|line| escaped(line)).collect::<Vec<_>>();
    let rows: Vec<[Vec<String>; N]> = rows.into_iter().map(|row| row.map(escape)).collect();
    let width = |column: usize| rows.iter().flat_map(|row| &row[column]).map(|line| line.chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0).min(max_width).min(MAX_WIDTH));
    let mut table = String::new();
    for row in &rows {
        let height = row.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..height {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                let text = cell.get(at).map_or("", String::as_str);
                line.push_str(&format!("{text:width$}  "));
            }
            table.push_str(line.trim_end());
            table.push('\n');
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_printed_string_contains_characters_that_act_on_a_terminal() {
        let hostile = "a\u{1b}[2J\r\nerror: b\u{9b}31m\u{202e}\u{61c}c";
        assert_eq!(escaped(hostile), "a\\u{1b}[2J\\r\\nerror: b\\u{9b}31m\\u{202e}\\u{61c}c");
        assert_eq!(escaped("ä 10.0.0.5/24 \"b\""), "ä 10.0.0.5/24 \"b\"");
        assert_eq!(table(vec![[vec!["\u{1b}".to_owned()]]], 60), "\\u{1b}\n");
    }

    #[test]
    fn a_cell_can_have_several_lines_and_be_wider_than_its_column() {
        let cell = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let rows = vec![[cell(&["a"]), cell(&["b", "c"])], [cell(&["wide"]), cell(&["d"])]];
        assert_eq!(table(rows, 3), "a    b\n     c\nwide  d\n");
        let long = "x".repeat(70_000);
        let rows = vec![[cell(&[&long]), cell(&["b"])], [cell(&["a"]), cell(&["d"])]];
        let expected = format!("{long}  b\n{:1024}  d\n", "a");
        assert_eq!(table(rows, usize::MAX), expected);
    }
}

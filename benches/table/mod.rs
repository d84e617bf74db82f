//! Prints the rows of the table of both benches. Each row has its limit or a comparison.

pub(crate) fn row(what: &str, measured: &str, beside: &str) {
    println!("{}", format!("{what:<64} {measured:<44} {beside}").trim_end());
}

//! Prints the rows of the tables of both benches. A row may have a limit, or a value to compare with.

pub(crate) fn row(what: &str, measured: &str, beside: &str) {
    println!("{}", format!("{what:<64} {measured:<44} {beside}").trim_end());
}

//! The table that both benches print, each row beside its limit or its peer.

pub(crate) fn row(what: &str, measured: &str, beside: &str) {
    println!("{}", format!("{what:<64} {measured:<44} {beside}").trim_end());
}

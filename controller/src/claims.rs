//! Claims of Cluster API: serves each IPAddressClaim on our pools with an IPAddress.

#[allow(dead_code, reason = "the task that applies decisions follows")]
mod decision;

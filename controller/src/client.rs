//! The client of the API server.

use std::time::Duration;

use kube::{Client, Config};

/// Connects to the API server of `config`.
///
/// The client never sends a request again by itself: by default kube repeats a request 15 times, up to 1,000 seconds apart,
/// also a `POST` that may have been stored.
///
/// # Errors
///
/// The configuration has no usable address or certificate.
pub fn connect(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Client::try_from(config)
}

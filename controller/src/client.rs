//! The client of the API server.

use std::time::Duration;

use kube::api::ApiResource;
use kube::{Client, Config};

/// Connects to the API server of `config`.
///
/// The client never repeats a request on its own. By default, kube repeats a request 15 times, up to 1,000 seconds
/// apart, and would repeat a `POST` that may have been stored.
///
/// # Errors
///
/// The configuration has no usable address or certificate.
pub fn connect(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Client::try_from(config)
}

/// Whether the API server serves a kind in the version of `resource`.
///
/// # Errors
///
/// The request failed.
pub async fn serves(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    match client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => Ok(list.resources.iter().any(|served| served.name == resource.plural)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

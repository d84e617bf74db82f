//! What `kubectl glowplug` says about pools and machines. It reads objects and changes nothing.
//!
//! [`machine`] and [`pools`] are pure: their input is objects, their output is an answer that serializes as JSON.

pub mod machine;
pub mod pools;

use kube::api::{Api, ListParams};

use crate::cluster::object::Object;
use crate::cluster::request::{Refusal, refusal};

/// Number of objects that are requested at once.
const PAGE: u32 = 500;
/// Most objects of one kind that are read.
const MOST: usize = 1_000_000;

/// Lists all objects of a kind, page by page. Empty if the API server does not serve the kind.
///
/// # Errors
///
/// A request failed, or there are more than a million objects.
pub async fn list(api: &Api<Object>, params: &ListParams) -> anyhow::Result<Vec<Object>> {
    let (mut objects, mut params) = (Vec::new(), params.clone().limit(PAGE));
    loop {
        let page = match api.list(&params).await {
            Ok(page) => page,
            Err(error) if objects.is_empty() && refusal(&error) == Some(Refusal::Absent) => return Ok(objects),
            Err(error) => return Err(error.into()),
        };
        objects.extend(page.items);
        anyhow::ensure!(objects.len() <= MOST, "too many objects, expected at most {MOST}");
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

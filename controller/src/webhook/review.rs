//! Reads the admission reviews in the bodies of requests. Every pod of the cluster can send a body, so the memory of
//! all reviews together is limited.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use kube::core::admission::{AdmissionRequest, AdmissionReview};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::cluster::object::Object;

/// Maximum number of JSON values in a review. A review contains at most two objects of 1.5 MiB, and real objects of
/// this size have far fewer values.
const MOST_VALUES: u32 = 250_000;
/// Maximum number of JSON values in all reviews that are handled at the same time. A value takes about 100 bytes of
/// memory.
const VALUES: usize = 500_000;

/// Number of JSON values up to which a review does not count in [`VALUES`]. Most reviews have fewer values.
const FEW_VALUES: u32 = 2_000;
/// Maximum time for which a review waits for free capacity.
const PATIENCE: Duration = Duration::from_secs(4);

/// Reads reviews, and limits the number of values in all of them.
#[derive(Clone)]
pub(super) struct Reader(Arc<Semaphore>);

// === impl Reader ===

impl Default for Reader {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(VALUES)))
    }
}

impl Reader {
    /// Reads a review. The permit is the capacity that the review uses. While other reviews use all the capacity, a
    /// review with many values waits.
    ///
    /// # Errors
    ///
    /// If the review cannot be read, the status and the text of the response.
    pub(super) async fn read(
        &self,
        body: &[u8],
    ) -> Result<(AdmissionRequest<Object>, Option<OwnedSemaphorePermit>), (StatusCode, &'static str)> {
        let values = values_at_most(body);
        if values > MOST_VALUES {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "the review has too many values\n"));
        }
        let room = match values {
            0..=FEW_VALUES => None,
            _ => {
                let room = timeout(PATIENCE, Arc::clone(&self.0).acquire_many_owned(values)).await;
                let busy = (StatusCode::SERVICE_UNAVAILABLE, "there are too many large reviews\n");
                Some(room.ok().and_then(Result::ok).ok_or(busy)?)
            }
        };
        let review = serde_json::from_slice::<AdmissionReview<Object>>(body).ok();
        let expected = "expected an AdmissionReview of admission.k8s.io/v1 with a request\n";
        let request = review.and_then(|review| review.try_into().ok()).ok_or((StatusCode::BAD_REQUEST, expected))?;
        Ok((request, room))
    }
}

/// Returns an upper bound for the number of values in a JSON text: one, plus one for each comma, list and object
/// outside of strings.
fn values_at_most(text: &[u8]) -> u32 {
    let (mut values, mut is_string, mut is_escaped) = (1_u32, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b',' | b'[' | b'{' if !is_string => values = values.saturating_add(1),
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_bound_of_json_values_ignores_commas_and_brackets_in_strings() {
        let cases = [
            ("", 1),
            ("[]", 2),
            ("[0,0,0]", 4),
            (r#"{"a":{"b":1},"c":[1,2]}"#, 6),
            (r#"{"a,[{":"b,\\\",[","c":1}"#, 3),
        ];
        for (text, expected) in cases {
            assert_eq!(values_at_most(text.as_bytes()), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn a_review_with_too_many_values_is_not_read() {
        let text = |values: usize| format!("[{}]", vec!["0"; values].join(","));
        let read = async |text: String| Reader::default().read(text.as_bytes()).await.map(drop).unwrap_err();
        let expected = "expected an AdmissionReview of admission.k8s.io/v1 with a request\n";
        assert_eq!(read(text(249_998)).await, (StatusCode::BAD_REQUEST, expected));
        let too_many = (StatusCode::PAYLOAD_TOO_LARGE, "the review has too many values\n");
        assert_eq!(read(text(250_000)).await, too_many);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_review_with_many_values_waits_for_free_capacity() {
        let reader = Reader::default();
        let held = Arc::clone(&reader.0).acquire_many_owned(VALUES as u32).await.unwrap();
        let text = |values: usize| format!("[{}]", vec!["0"; values].join(","));
        let read = async |values: usize| reader.read(text(values).as_bytes()).await.map(drop).unwrap_err().0;
        assert_eq!(read(1_998).await, StatusCode::BAD_REQUEST);
        assert_eq!(read(2_000).await, StatusCode::SERVICE_UNAVAILABLE);
        let mut next = Box::pin(read(2_000));
        assert!(futures::poll!(&mut next).is_pending());
        drop(held);
        assert_eq!(next.await, StatusCode::BAD_REQUEST);
    }
}

//! A read whose result several callers share.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};

/// Reads of the same objects, of which only one runs at a time. A caller gets the result of a read that began after its
/// call, so the result is as new as that of a read of its own. Callers that come while a read runs share the next read.
/// So the cost does not grow with the number of callers: users decide how many requests come at the same time.
pub(crate) struct SharedRead<T> {
    running: Arc<tokio::sync::Mutex<()>>,
    next: Arc<Mutex<Option<Pending<T>>>>,
}

/// A read that has not begun yet. It begins when the running read has ended.
type Pending<T> = Shared<BoxFuture<'static, Result<Arc<T>, Arc<kube::Error>>>>;

// === impl SharedRead ===

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self { running: Arc::default(), next: Arc::default() }
    }
}

impl<T: Send + Sync + 'static> SharedRead<T> {
    /// Returns the result of a read that begins now or later. Calls `read` unless another caller has prepared this read.
    ///
    /// # Errors
    ///
    /// The read failed.
    pub(crate) async fn get<F>(&self, read: impl FnOnce() -> F) -> Result<Arc<T>, Arc<kube::Error>>
    where
        F: Future<Output = kube::Result<T>> + Send + 'static,
    {
        let pending = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let prepare = || {
                let (running, next, read) = (Arc::clone(&self.running), Arc::clone(&self.next), read());
                let pending = async move {
                    let _running = running.lock().await;
                    // This read begins, so later callers need a new read.
                    next.lock().unwrap_or_else(PoisonError::into_inner).take();
                    read.await.map(Arc::new).map_err(Arc::new)
                };
                pending.boxed().shared()
            };
            next.get_or_insert_with(prepare).clone()
        };
        pending.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use tokio::sync::Semaphore;
    use tokio::task::yield_now;

    use super::*;

    /// Starts a read that returns its number and waits for a permit.
    async fn get(shared: &SharedRead<usize>, begun: &Arc<AtomicUsize>, permits: &Arc<Semaphore>) -> usize {
        let (begun, permits) = (Arc::clone(begun), Arc::clone(permits));
        let read = || async move {
            let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
            permits.acquire().await.unwrap().forget();
            Ok(number)
        };
        *shared.get(read).await.unwrap()
    }

    #[tokio::test]
    async fn callers_that_come_while_a_read_runs_share_the_next_read() {
        let (shared, begun, permits) = (SharedRead::default(), Arc::default(), Arc::new(Semaphore::new(0)));
        let first = get(&shared, &begun, &permits);
        let later = async {
            while begun.load(Ordering::SeqCst) == 0 {
                yield_now().await;
            }
            let all = (0..100).map(|_| get(&shared, &begun, &permits));
            let release = async { permits.add_permits(2) };
            tokio::join!(join_all(all), release).0
        };
        assert_eq!(tokio::join!(first, later), (1, vec![2; 100]));
        permits.add_permits(1);
        assert_eq!(get(&shared, &begun, &permits).await, 3);
    }

    #[tokio::test]
    async fn a_caller_that_no_longer_waits_stops_no_other_caller() {
        let (shared, begun, permits) = (SharedRead::default(), Arc::default(), Arc::new(Semaphore::new(0)));
        let mut running = Box::pin(get(&shared, &begun, &permits));
        let mut pending = Box::pin(get(&shared, &begun, &permits));
        assert!(running.as_mut().now_or_never().is_none());
        let mut waiting = Box::pin(get(&shared, &begun, &permits));
        assert!(pending.as_mut().now_or_never().is_none());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop((running, pending));
        permits.add_permits(1);
        assert_eq!((waiting.await, begun.load(Ordering::SeqCst)), (2, 2));
    }
}

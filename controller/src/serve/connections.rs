//! Counts the connections of a server, and decides which connection makes room for a new connection.
//!
//! A new connection never waits until an idle connection has ended. The idle connection loses its place at once, and
//! then has little time to end the request that it reads. Otherwise, a client that opens many connections and stalls
//! each of them would delay all other clients.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Time in which a connection must end its request after it has lost its place.
const GIVE_WAY: Duration = Duration::from_secs(1);
/// For each `ENDING` places, one connection that has lost its place may still end its request. Further connections
/// without a place end at once.
const ENDING: u32 = 4;

/// The places and the connections of a server.
pub(super) struct Connections {
    most: u32,
    free: Arc<Semaphore>,
    open: Arc<Mutex<Open>>,
}

/// The open connections.
struct Open {
    most: u32,
    /// Number that the next connection or completed request gets.
    next: u64,
    /// Number of connections that wait for a place.
    waiting: usize,
    connections: BTreeMap<u64, Connection>,
}

struct Connection {
    /// The client: an IPv4 address, or the /64 network of an IPv6 address.
    client: IpAddr,
    /// Number of the last completed request. Before the first request: the number of the connection itself.
    last: u64,
    /// Number of requests that are being served now.
    serving: usize,
    /// Whether a request has begun on the connection.
    was_used: bool,
    /// Time limit for the connection to end its request after the loss of its place. `None`: the connection still has
    /// its place.
    gives_way: Option<Duration>,
    told: Arc<Notify>,
    /// The place of the connection. `None`: the connection has lost its place.
    permit: Option<OwnedSemaphorePermit>,
}

/// One connection. Its place becomes free when the connection loses it, or when all clones of the slot are dropped.
#[derive(Clone)]
pub(super) struct Slot(Arc<Place>);

struct Place {
    number: u64,
    open: Arc<Mutex<Open>>,
    told: Arc<Notify>,
}

/// A connection that waits for a place.
struct Waiting(Arc<Mutex<Open>>);

/// A request that is being served. Its connection keeps its place until the request ends.
pub(super) struct Serving(Slot);

// === impl Connections ===

impl Connections {
    pub(super) fn new(most: u32) -> Self {
        let open = Open { most, next: 0, waiting: 0, connections: BTreeMap::new() };
        Self { most, free: Arc::new(Semaphore::new(most as usize)), open: Arc::new(Mutex::new(open)) }
    }

    /// Waits until all connections have ended, except those that have lost their place.
    pub(super) async fn have_ended(&self) {
        // This never fails, because the semaphore is never closed.
        let _ = self.free.acquire_many(self.most).await;
    }

    /// Waits for a free place. If all places are taken, a connection without a running request loses its place.
    pub(super) async fn enter(&self, client: IpAddr) -> Slot {
        let permit = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                let _waiting = Waiting::begin(&self.open);
                // This never fails, because the semaphore is never closed.
                Arc::clone(&self.free).acquire_owned().await.ok()
            }
        };
        let mut open = lock(&self.open);
        let number = open.next;
        open.next += 1;
        let told = Arc::<Notify>::default();
        let (client, of_open) = (network(client), Arc::clone(&told));
        let connection =
            Connection { client, last: number, serving: 0, was_used: false, gives_way: None, told: of_open, permit };
        open.connections.insert(number, connection);
        Slot(Arc::new(Place { number, open: Arc::clone(&self.open), told }))
    }
}

/// Returns the client of an address: the address itself for IPv4, and its /64 network for IPv6.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        ipv4 @ IpAddr::V4(_) => ipv4,
    }
}

// === impl Open ===

impl Open {
    /// Takes the place away from a connection that serves no request. Chooses the client with the most such
    /// connections, and of these the connection whose last complete request is the oldest.
    fn close_one(&mut self) {
        let mut idle: BTreeMap<IpAddr, (usize, (u64, u64))> = BTreeMap::new();
        let mut ending = 0;
        for (number, connection) in &self.connections {
            if connection.gives_way.is_some() {
                ending += 1;
            } else if connection.serving == 0 {
                let this = (connection.last, *number);
                let (count, oldest) = idle.entry(connection.client).or_insert((0, this));
                (*count, *oldest) = (*count + 1, this.min(*oldest));
            }
        }
        let most = idle.into_values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)));
        if let Some(connection) = most.and_then(|(_, (_, number))| self.connections.get_mut(&number)) {
            tracing::debug!("a connection gives way, because there are too many");
            connection.gives_way = Some(if ending < self.most / ENDING { GIVE_WAY } else { Duration::ZERO });
            connection.permit = None;
            connection.told.notify_one();
        }
    }
}

// === impl Slot ===

impl Slot {
    /// Waits until the connection loses its place. Returns the time limit for ending its request.
    pub(super) async fn is_told_to_end(&self) -> Duration {
        self.0.told.notified().await;
        let open = lock(&self.0.open);
        open.connections.get(&self.0.number).and_then(|connection| connection.gives_way).unwrap_or_default()
    }

    /// Marks a request as being served, until the returned value is dropped.
    pub(super) fn serving(&self) -> Serving {
        self.change(|connection| connection.serving += 1);
        Serving(self.clone())
    }

    /// Notes that a request has begun.
    pub(super) fn note_request(&self) {
        self.change(|connection| connection.was_used = true);
    }

    /// Whether a request has begun on the connection.
    pub(super) fn was_used(&self) -> bool {
        lock(&self.0.open).connections.get(&self.0.number).is_some_and(|connection| connection.was_used)
    }

    fn change(&self, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = lock(&self.0.open).connections.get_mut(&self.0.number) {
            change(connection);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.open).connections.remove(&self.number);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut open = lock(&self.0.0.open);
        let last = open.next;
        open.next += 1;
        if let Some(connection) = open.connections.get_mut(&self.0.0.number) {
            (connection.serving, connection.last) = (connection.serving - 1, last);
        }
        if open.waiting > 0 {
            open.close_one();
        }
    }
}

impl Waiting {
    fn begin(all: &Arc<Mutex<Open>>) -> Self {
        let mut open = lock(all);
        open.waiting += 1;
        open.close_one();
        Self(Arc::clone(all))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.0).waiting -= 1;
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a connection that ends as soon as it loses its place.
    async fn enter(connections: &Connections, client: &str) -> (Slot, tokio::task::JoinHandle<Duration>) {
        let slot = connections.enter(client.parse().unwrap()).await;
        let held = slot.clone();
        (slot, tokio::spawn(async move { held.is_told_to_end().await }))
    }

    #[tokio::test]
    async fn a_new_connection_never_waits_until_an_idle_connection_has_ended() {
        let connections = Connections::new(8);
        let api_server = connections.enter("192.0.2.1".parse().unwrap()).await;
        // These connections never end, like connections whose bodies never arrive.
        let mut stalled = Vec::new();
        for _ in 0..20 {
            stalled.push(connections.enter("192.0.2.2".parse().unwrap()).await);
        }
        let mut told = Vec::new();
        for slot in [&api_server].into_iter().chain(&stalled) {
            told.push(lock(&slot.0.open).connections[&slot.0.number].gives_way.map(|limit| limit.as_secs()));
        }
        // The first two connections that lose their place have one second each. The next eleven must end at once.
        let expected = [vec![None], vec![Some(1); 2], vec![Some(0); 11], vec![None; 7]].concat();
        assert_eq!(told, expected);
    }

    #[tokio::test]
    async fn the_longest_idle_connection_of_a_client_loses_its_place() {
        let connections = Connections::new(2);
        let client = "192.0.2.1".parse().unwrap();
        let [used, unused] = [connections.enter(client).await, connections.enter(client).await];
        drop(used.serving());
        let _new = connections.enter(client).await;
        let gives_way = |slot: &Slot| lock(&slot.0.open).connections[&slot.0.number].gives_way.is_some();
        assert_eq!([&used, &unused].map(gives_way), [false, true]);
    }

    #[tokio::test]
    async fn the_client_with_the_most_idle_connections_loses_its_oldest_connection() {
        let connections = Connections::new(4);
        let (_, own) = enter(&connections, "192.0.2.1").await;
        let mut others = Vec::new();
        for host in ["2001:db8::1", "2001:db8::2", "2001:db8::3"] {
            others.push(enter(&connections, host).await);
        }
        let _serving = others[0].0.serving();
        let (slots, tasks): (Vec<_>, Vec<_>) = others.into_iter().unzip();
        drop(slots);
        let (_new, _) = enter(&connections, "::ffff:192.0.2.2").await;
        let mut ended = Vec::new();
        for task in [own].into_iter().chain(tasks) {
            tokio::task::yield_now().await;
            ended.push(task.is_finished());
        }
        assert_eq!(ended, [false, false, true, false]);
    }

    #[tokio::test]
    async fn a_connection_loses_its_place_only_after_its_request() {
        let connections = Connections::new(1);
        let (slot, task) = enter(&connections, "192.0.2.1").await;
        let serving = slot.serving();
        drop(slot);
        let mut next = Box::pin(connections.enter("192.0.2.2".parse().unwrap()));
        assert!(futures::poll!(&mut next).is_pending());
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        // The connection loses its place as soon as its request is served.
        drop(serving);
        next.await;
        task.await.unwrap();
    }
}

//! Serves the machines of KubeVirt: creates a Secret with network data for each VirtualMachine that a pool selects.
//!
//! Watches fill an index of objects. When a machine may need a change, its name gets a pass. A pass decides the next
//! request, sends the request, and decides again. The module stays correct while two leaders run at the same time: the
//! API server rejects a second lease or Secret of the same name, and a write to an outdated version of an object.
//!
//! At the start, the registry first adopts all addresses that objects record and guests report. Only then does the
//! registry allocate addresses: it processes the outstanding claims together with those of Cluster API, in the order of
//! their creation.

mod authority;
mod decision;
#[cfg(test)]
mod hostile;
mod index;
mod kind;
mod pass;
mod proof;
mod recorded;
mod secret;
mod serve;
mod settle;
mod source;
mod sources;
mod start;
mod step;
mod view;
mod work;

use std::convert::Infallible;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use futures::{Stream, StreamExt as _, stream};
use glowplug::host::records::Objects;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::cluster::key::Key;
use crate::cluster::request::{DISCOVERY, discover, until_other};
use crate::cluster::watch::Change;
use crate::kinds::kubevirt_machine::read_records;
use crate::ledger::types::{Holders, Stopped};
use crate::machines::kind::{Kind, Kinds};
pub use crate::machines::work::Machines;
use crate::machines::work::{PART, Work};
use crate::passes::{self, Names, Until};
use crate::pools::facts::Facts;
use crate::pools::selection::Selection;

/// The kinds of this part, for log messages.
const KINDS: &str = "kinds of KubeVirt";

// === impl Machines ===

impl Machines {
    /// Serves machines until the future is dropped. Calls `is_ready` after the claims of the machines that existed at
    /// the start are processed.
    ///
    /// `pools` has the pools after the registry has them, and `served` receives the machines with new addresses.
    ///
    /// # Errors
    ///
    /// [`Stopped`]: the registry has ended.
    pub async fn run(
        &self,
        mut pools: watch::Receiver<Option<Facts>>,
        mut served: Holders,
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let question = || Kinds::discover(&self.client);
        loop {
            let found = discover(KINDS, &question).await;
            let Some(kinds) = found else {
                self.opening.claim(PART, Vec::new()).await?;
                is_ready();
                sleep(DISCOVERY).await;
                continue;
            };
            tracing::info!(has_kubevirt_machines = kinds.has_kubevirt_machines, "serving the machines of KubeVirt");
            let (others, mut of_others) = mpsc::unbounded_channel();
            let (index, has_status_map) = (Mutex::default(), AtomicBool::new(true));
            let work = Work { machines: self, kinds, index, has_status_map, others };
            tokio::select! {
                result = work.run(&mut pools, (&mut served, &mut of_others), &is_ready) => return result,
                () = until_other(KINDS, &question, &found) => {}
            }
        }
    }
}

// === impl Work ===

impl Work<'_> {
    async fn run(
        &self,
        pools: &mut watch::Receiver<Option<Facts>>,
        messages: (&mut Holders, &mut mpsc::UnboundedReceiver<Key>),
        is_ready: impl Fn(),
    ) -> Result<Infallible, Stopped> {
        let mut selections = self.machines.selection.subscribe();
        let selection = selections.wait_for(Option::is_some).await.map_err(|_| Stopped)?.clone().unwrap_or_default();
        self.index().set_selection(selection);
        self.machines.macs.restart();
        let mut changes = Box::pin(self.changes());
        let mut lists = self.kinds.all().count();
        let mut records = Objects::default();
        while lists > 0 {
            let Some((kind, change)) = changes.next().await else { return Err(Stopped) };
            lists -= usize::from(matches!(change, Change::Listed));
            if let Change::Apply(object) = &change
                && kind.has_records()
            {
                read_records(&mut records, &kind.resource().kind, object);
            }
            self.note_change(kind, change);
        }
        self.machines.macs.listed();
        // The registry cannot attribute a record to a pool that it does not have yet.
        pools.wait_for(Option::is_some).await.map_err(|_| Stopped)?;
        self.rebuild(records).await?;
        passes::start("machine", || self.start()).await?;
        is_ready();
        self.serve(changes, selections, messages).await
    }

    async fn serve(
        &self,
        changes: impl Stream<Item = (Kind, Change)> + Unpin,
        mut selections: watch::Receiver<Option<Arc<Selection>>>,
        (served, of_others): (&mut Holders, &mut mpsc::UnboundedReceiver<Key>),
    ) -> Result<Infallible, Stopped> {
        let changes = changes.map(|(kind, change)| -> Names { Some(self.note_change(kind, change)) });
        let selections = passes::each_value(&mut selections, |selection| {
            selection.map(|selection| self.index().set_selection(selection)).unwrap_or_default()
        });
        let served = passes::each_message(served, |holder| self.index().homes_of(&Key::of_machine(&holder)));
        let of_others = passes::each_message(of_others, |key| [key].into());
        let messages = stream::select(served, of_others);
        let wakes = stream::select(changes.chain(stream::iter([None])), stream::select(selections, messages));
        let names = self.names_at_the_start().await?;
        Err(passes::serve("machine", names, Box::pin(wakes), |key| self.pass(key, Until::Nothing)).await)
    }
}

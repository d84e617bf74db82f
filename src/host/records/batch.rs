//! Objects that are cut out of their list and not parsed yet.
//!
//! One thread reads and cuts, another one parses: of a long list each takes about as long. Batches go to the one and come
//! back empty, so that there are only a few more than may wait.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender};

use serde_json::Value;

use super::list::{ReadError, message};
use super::object::{Item, Texts, Unreadable};
use crate::finding::Place;

/// What was read at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) text: Vec<u8>,
    /// What matters of objects, one after the other.
    pub(super) kept: Vec<u8>,
    pub(super) cuts: Vec<Cut>,
}

/// One object.
#[derive(Debug)]
pub(super) struct Cut {
    /// Where it is in the text.
    pub(super) text: Range<usize>,
    /// Where that is what matters of it, if it was read fast.
    pub(super) kept: Range<usize>,
    /// Where it begins in the input.
    pub(super) position: u64,
}

/// The way to whoever parses, and the way back.
#[derive(Debug)]
pub(super) struct Pipe {
    full: SyncSender<Batch>,
    empty: Receiver<Batch>,
    /// So many went and have not come back.
    under_way: usize,
}

// === impl Batch ===

impl Batch {
    /// Calls `each` with the objects, of which the first one is number `first` of its list.
    ///
    /// # Errors
    ///
    /// An object is no JSON, which its text alone does not show: half a character as an escape.
    pub(super) fn parse(
        &self,
        first: usize,
        each: &mut impl FnMut(Option<usize>, Result<Item<'_>, Unreadable<'_>>),
    ) -> Result<(), ReadError> {
        for (index, Cut { text, kept, position }) in (first..).zip(&self.cuts) {
            // It is ASCII, and serde_json need not look at each text of it.
            let kept = str::from_utf8(&self.kept[kept.clone()]).ok().filter(|kept| !kept.is_empty());
            if let Some(item) = kept.and_then(|kept| serde_json::from_str::<Item<'_, Texts<'_>>>(kept).ok()) {
                each(Some(index), Ok(item.any()));
                continue;
            }
            let text = &self.text[text.clone()];
            match serde_json::from_slice::<Item<'_, Value>>(text) {
                Ok(item) => each(Some(index), Ok(item.any())),
                Err(error) if error.is_data() => each(Some(index), Err(Unreadable { error, text })),
                Err(error) => {
                    let place = Place::Document.field("items").index(index).to_string();
                    return Err(ReadError::Syntax { place, byte: position + 1, problem: message(&error) });
                }
            }
        }
        Ok(())
    }

    /// Without anything in it, but with its room.
    pub(super) fn cleared(mut self) -> Self {
        self.text.clear();
        self.kept.clear();
        self.cuts.clear();
        self
    }
}

// === impl Pipe ===

impl Pipe {
    pub(super) fn new(full: SyncSender<Batch>, empty: Receiver<Batch>) -> Self {
        Self { full, empty, under_way: 0 }
    }

    /// One that came back, or else a new one.
    pub(super) fn next(&mut self) -> Batch {
        match self.empty.try_recv() {
            Ok(batch) => {
                self.under_way -= 1;
                batch
            }
            Err(_) => Batch::default(),
        }
    }

    pub(super) fn send(&mut self, batch: Batch) {
        // Who parses is gone only after an error, and tells that.
        if self.full.send(batch).is_ok() {
            self.under_way += 1;
        }
    }

    /// Waits until everything is parsed, and keeps no room.
    pub(super) fn drain(&mut self) {
        while self.under_way > 0 && self.empty.recv().is_ok() {
            self.under_way -= 1;
        }
    }
}

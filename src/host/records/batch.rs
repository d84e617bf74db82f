//! Objects that are cut out of their list and not parsed yet.
//!
//! One thread reads and cuts, another one parses: of a long list each takes about as long. Batches go to the one and come
//! back empty, so that there are never more than those that may wait, and two.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender};

use super::list::{ReadError, message};
use super::object::{Item, Unreadable};
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
    pub(super) full: SyncSender<Batch>,
    pub(super) empty: Receiver<Batch>,
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
            if let Some(item) = kept.and_then(|kept| serde_json::from_str(kept).ok()) {
                each(Some(index), Ok(item));
                continue;
            }
            let text = &self.text[text.clone()];
            match serde_json::from_slice(text) {
                Ok(item) => each(Some(index), Ok(item)),
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

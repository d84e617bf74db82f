//! Ledgers that several processes share. A test can make the next commit fail.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::Path;
use std::rc::Rc;

use glowplug::host::change::{Change, Update};
use glowplug::host::ledger::{Ledger, LedgerError, MemoryLedger, SqliteLedger, Transaction};

/// A fault of the next commit, whichever process makes the commit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Fault {
    #[default]
    None,
    /// The commit writes nothing.
    Refused,
    /// The commit writes everything, but reports an error to the process.
    AnswerLost,
}

/// A function that opens the ledger for one process.
pub(super) type Open = Rc<dyn Fn() -> Box<dyn Ledger>>;

/// The ledger as one process uses it. Its commits can fail.
pub(super) struct Store {
    open: Open,
    inner: Box<dyn Ledger>,
    fault: Rc<Cell<Fault>>,
    is_answer_lost: bool,
}

struct Write<'a> {
    inner: Box<dyn Transaction + 'a>,
    fault: &'a Cell<Fault>,
    is_answer_lost: &'a mut bool,
}

/// A ledger in memory as one process sees it.
struct Shared {
    ledger: Rc<RefCell<(MemoryLedger, u64)>>,
    seen: Option<u64>,
}

/// Creates a ledger in memory.
pub(super) fn in_memory() -> Open {
    let ledger = Rc::new(RefCell::new((MemoryLedger::default(), 0)));
    Rc::new(move || Box::new(Shared { ledger: Rc::clone(&ledger), seen: None }))
}

/// Creates a ledger in a file.
pub(super) fn in_file(path: &Path) -> Open {
    drop(SqliteLedger::create(path).unwrap());
    let path = path.to_owned();
    Rc::new(move || Box::new(SqliteLedger::open(&path).unwrap()))
}

// === impl Store ===

impl Store {
    pub(super) fn new(open: &Open, fault: &Rc<Cell<Fault>>) -> Self {
        Self { open: Rc::clone(open), inner: open(), fault: Rc::clone(fault), is_answer_lost: false }
    }

    /// Reads the ledger from the start if the process does not know whether its last commit was written.
    fn find_out(&mut self) {
        if std::mem::take(&mut self.is_answer_lost) {
            self.inner = (self.open)();
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

impl Ledger for Store {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        self.find_out();
        self.inner.catch_up()
    }

    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        self.find_out();
        let Self { inner, fault, is_answer_lost, .. } = self;
        Ok(Box::new(Write { inner: inner.begin()?, fault, is_answer_lost }))
    }
}

impl Transaction for Write<'_> {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        self.inner.catch_up()
    }

    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError> {
        let failed = || LedgerError::Store { doing: "writing", source: "planned fault".into() };
        match self.fault.take() {
            Fault::None => self.inner.commit(changes),
            Fault::Refused => Err(failed()),
            Fault::AnswerLost => {
                self.inner.commit(changes)?;
                *self.is_answer_lost = true;
                Err(failed())
            }
        }
    }
}

// === impl Shared ===

impl Ledger for Shared {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        let (ledger, version) = &mut *self.ledger.borrow_mut();
        if self.seen.replace(*version) == Some(*version) {
            return Ok(Update::Delta(Vec::new()));
        }
        *ledger = std::mem::take(ledger).reopened();
        ledger.catch_up()
    }

    fn begin(&mut self) -> Result<Box<dyn Transaction + '_>, LedgerError> {
        Ok(Box::new(self))
    }
}

impl Transaction for &mut Shared {
    fn catch_up(&mut self) -> Result<Update, LedgerError> {
        Ledger::catch_up(*self)
    }

    fn commit(self: Box<Self>, changes: &[Change]) -> Result<(), LedgerError> {
        let (ledger, version) = &mut *self.ledger.borrow_mut();
        ledger.begin()?.commit(changes)?;
        *version += 1;
        self.seen = Some(*version);
        Ok(())
    }
}

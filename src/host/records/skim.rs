//! What matters of an object, cut out of its text.
//!
//! Of an object as `kubectl` prints it most is indentation, and most of the rest is of no interest here. To pass over that
//! several times as fast as a parser does, this looks at several bytes at once and keeps nothing, and what reads exactly as
//! it did in the object before is not read again: machines of one template are alike. It decides nothing: what it cuts out
//! is parsed, and what it does not take for a plain object, of which a part may be cut off or broken, is parsed as a whole.

/// What is kept of an object, or of each object of a list. Anything else is kept as a whole.
#[derive(Debug)]
pub(super) struct Members(pub(super) &'static [(Key, Kept)]);

/// Which members.
#[derive(Debug)]
pub(super) enum Key {
    Is(&'static str),
    BeginsWith(&'static str),
}

/// How much of a value.
#[derive(Debug)]
pub(super) enum Kept {
    All,
    Only(&'static Members),
}

/// Cuts out one object after the other.
#[derive(Default)]
pub(super) struct Skimmer {
    /// Of the object before.
    pieces: Vec<Piece>,
    /// Room for those of the next.
    room: Vec<Piece>,
}

/// A part of an object of which it is known what it is.
#[derive(Clone, Copy)]
struct Piece {
    start: usize,
    end: usize,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    /// A text, a list or an object. So many pieces of it follow.
    Value(usize),
    /// What stands before the value of a member, without the comma.
    Key(Known),
}

#[derive(Clone, Copy)]
struct Known {
    /// Bytes before the name.
    blanks: usize,
    /// Among which members it was looked up, and what was found.
    members: &'static Members,
    how: Option<&'static Kept>,
}

/// A text, and how much of it was read.
struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    /// The pieces before `at`.
    pieces: &'t mut Vec<Piece>,
    /// The object before, and those pieces of it that stand where what comes next does.
    before: &'t [u8],
    known: &'t [Piece],
}

/// Values in one another; a parser has such a limit, too.
const MAX_DEPTH: usize = 100;

/// Of an object of which everything is kept, without the blanks.
pub(super) static EVERYTHING: Members = Members(&[(Key::BeginsWith(""), Kept::Only(&EVERYTHING))]);

/// Of an object of which nothing is kept.
static NOTHING: Members = Members(&[]);

// === impl Key ===

impl Key {
    fn fits(&self, name: &[u8]) -> bool {
        match self {
            Self::Is(key) => name == key.as_bytes(),
            Self::BeginsWith(start) => name.starts_with(start.as_bytes()),
        }
    }
}

// === impl Skimmer ===

impl Skimmer {
    /// Writes the object at the start of `text` without the members that are not among `members`, and returns how long it
    /// is. `None`: the text is no plain object, or ends before the object does.
    ///
    /// `before` is the object of the last call that returned a length, or empty.
    pub(super) fn skim(
        &mut self,
        before: &[u8],
        text: &[u8],
        members: &'static Members,
        kept: &mut Vec<u8>,
    ) -> Option<usize> {
        let known = if before.is_empty() { &[][..] } else { &self.pieces };
        self.room.clear();
        let mut scanner = Scanner { text, at: 0, pieces: &mut self.room, before, known };
        scanner.nest(|scanner| scanner.object(members, 0, Some(kept)))?;
        let length = scanner.at;
        std::mem::swap(&mut self.pieces, &mut self.room);
        Some(length)
    }
}

// === impl Scanner ===

impl<'t> Scanner<'t> {
    /// An object. What matters of it is kept, where there is room for that.
    fn object(&mut self, members: &'static Members, depth: usize, mut kept: Option<&mut Vec<u8>>) -> Option<()> {
        self.byte(b'{')?;
        let begin = kept.as_mut().map(|kept| {
            kept.push(b'{');
            kept.len()
        });
        let mut separator = if self.peek()? == b'}' { self.byte(b'}')? } else { b',' };
        while separator == b',' {
            let key = self.at;
            let Known { blanks, how, .. } = self.key(members)?;
            match (how, &mut kept) {
                (Some(how), Some(kept)) => {
                    if Some(kept.len()) != begin {
                        kept.push(b',');
                    }
                    kept.extend_from_slice(&self.text[key + blanks..self.at]);
                    self.kept(how, depth + 1, kept)?;
                }
                _ => self.value(depth + 1)?,
            }
            separator = self.one_of(b',', b'}')?;
        }
        kept.into_iter().for_each(|kept| kept.push(b'}'));
        Some(())
    }

    /// The name of a member, and the colon.
    #[inline]
    fn key(&mut self, members: &'static Members) -> Option<Known> {
        while let Some((Piece { what: What::Value(inner), .. }, rest)) = self.known.split_first() {
            self.known = &rest[*inner..];
        }
        if let Some((piece, rest)) = self.known.split_first() {
            self.known = rest;
            if let What::Key(known) = piece.what
                && std::ptr::eq(known.members, members)
                && self.is_again(piece)
            {
                return Some(known);
            }
        }
        let start = self.at;
        self.blanks();
        let blanks = self.at - start;
        let has_escapes = self.string()?;
        let name = &self.text[start + blanks + 1..self.at - 1];
        let how = members.0.iter().find(|(key, _)| key.fits(name)).map(|(_, how)| how);
        // An escape may stand for any letter.
        if has_escapes && !members.0.is_empty() {
            return None;
        }
        self.byte(b':')?;
        self.blanks();
        let known = Known { blanks, members, how };
        self.pieces.push(Piece { start, end: self.at, what: What::Key(known) });
        Some(known)
    }

    fn kept(&mut self, how: &'static Kept, depth: usize, kept: &mut Vec<u8>) -> Option<()> {
        match (self.peek()?, how) {
            (b'{', Kept::Only(members)) if depth <= MAX_DEPTH => {
                self.nest(|scanner| scanner.object(members, depth, Some(kept)))
            }
            (b'[', Kept::Only(_)) if depth <= MAX_DEPTH => self.nest(|scanner| {
                let begin = kept.len();
                scanner.list(|scanner| {
                    kept.push(if kept.len() == begin { b'[' } else { b',' });
                    scanner.kept(how, depth + 1, kept)
                })?;
                kept.extend_from_slice(if kept.len() == begin { b"[]" } else { b"]" });
                Some(())
            }),
            _ => {
                let value = self.at;
                self.value(depth)?;
                kept.extend_from_slice(&self.text[value..self.at]);
                Some(())
            }
        }
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'"' | b'{' | b'[' if self.is_known() => Some(()),
            b'"' => self.nest(|scanner| scanner.string().map(drop)),
            b'{' => self.nest(|scanner| scanner.object(&NOTHING, depth, None)),
            b'[' => self.nest(|scanner| scanner.list(|scanner| scanner.value(depth + 1))),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.integer(),
        }
    }

    /// Passes over the next value if what stood here in the object before reads the same.
    #[inline]
    fn is_known(&mut self) -> bool {
        let Some((piece, rest)) = self.known.split_first() else { return false };
        let What::Value(inner) = piece.what else { return false };
        let is_again = self.is_again(&Piece { what: What::Value(0), ..*piece });
        if is_again {
            self.known = &rest[inner..];
        }
        is_again
    }

    /// Passes over a piece of the object before if it stands here again.
    #[inline]
    fn is_again(&mut self, piece: &Piece) -> bool {
        let is_again = self.text[self.at..].starts_with(&self.before[piece.start..piece.end]);
        if is_again {
            let start = self.at;
            self.at += piece.end - piece.start;
            self.pieces.push(Piece { start, end: self.at, what: piece.what });
        }
        is_again
    }

    /// A value that is read, in which pieces may be known.
    fn nest(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let (inner, further) = match self.known.split_first() {
            Some((Piece { what: What::Value(inner), .. }, rest)) => rest.split_at(*inner),
            _ => (&[][..], self.known),
        };
        let index = self.pieces.len();
        self.pieces.push(Piece { start: self.at, end: self.at, what: What::Value(0) });
        self.known = inner;
        read(self)?;
        self.known = further;
        let inner = self.pieces.len() - index - 1;
        self.pieces[index].end = self.at;
        self.pieces[index].what = What::Value(inner);
        Some(())
    }

    fn list(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.at += 1;
        if self.peek()? == b']' {
            return self.byte(b']').map(drop);
        }
        loop {
            element(self)?;
            if self.one_of(b',', b']')? == b']' {
                return Some(());
            }
        }
    }

    /// Returns whether there is an escape in it.
    fn string(&mut self) -> Option<bool> {
        if *self.text.get(self.at)? != b'"' {
            return None;
        }
        self.at += 1;
        let mut has_escapes = false;
        loop {
            self.letters();
            match *self.text.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some(has_escapes);
                }
                b'\\' => {
                    has_escapes = true;
                    self.escape()?;
                }
                0x20..0x80 => self.at += 1,
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        match *self.text.get(self.at + 1)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 2,
            b'u' => {
                let digits = self.text.get(self.at + 2..self.at + 6)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                self.at += 6;
            }
            _ => return None,
        }
        Some(())
    }

    /// Passes over plain letters of a string; of its last ones some may be left.
    fn letters(&mut self) {
        let mut rest = &self.text[self.at..];
        while let Some((eight, further)) = rest.split_first_chunk() {
            let ends = ends_in(u64::from_le_bytes(*eight));
            if ends != 0 {
                rest = &rest[ends.trailing_zeros() as usize / 8..];
                break;
            }
            rest = further;
        }
        self.at = self.text.len() - rest.len();
    }

    /// Other numbers are rare, and a parser's.
    fn integer(&mut self) -> Option<()> {
        self.at += usize::from(self.text.get(self.at) == Some(&b'-'));
        let digits = self.text.get(self.at..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let has_zero = digits > 1 && self.text[self.at] == b'0';
        self.at += digits;
        let goes_on = matches!(*self.text.get(self.at)?, b'.' | b'e' | b'E');
        (digits > 0 && !has_zero && !goes_on).then_some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.text.get(self.at..)?.strip_prefix(word)?;
        self.at += word.len();
        Some(())
    }

    fn byte(&mut self, byte: u8) -> Option<u8> {
        self.one_of(byte, byte)
    }

    fn one_of(&mut self, one: u8, other: u8) -> Option<u8> {
        let found = self.peek()?;
        self.at += 1;
        (found == one || found == other).then_some(found)
    }

    /// The next byte that is no blank, which is then the next one.
    fn peek(&mut self) -> Option<u8> {
        self.blanks();
        self.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while let Some((b'\n' | b' ' | b'\t' | b'\r', mut rest)) = self.text[self.at..].split_first() {
            // Indentation, mostly.
            while let Some((sixteen, further)) = rest.split_first_chunk() {
                let others = u128::from_le_bytes(*sixteen) ^ u128::from_ne_bytes([b' '; 16]);
                if others != 0 {
                    rest = &rest[others.trailing_zeros() as usize / 8..];
                    break;
                }
                rest = further;
            }
            self.at = self.text.len() - rest.len();
        }
    }
}

fn repeated(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The highest bit of each byte that is no plain letter of a string: a quote, a backslash, a control character, or one
/// beyond ASCII. Above the lowest such byte there may be bits of others, too.
fn ends_in(eight: u64) -> u64 {
    let is_zero = |bytes: u64| bytes.wrapping_sub(repeated(1)) & !bytes;
    let quotes = is_zero(eight ^ repeated(b'"')) | is_zero(eight ^ repeated(b'\\'));
    let controls = eight.wrapping_sub(repeated(0x20));
    (quotes | controls | eight) & repeated(0x80)
}

//! What matters of an object, cut out of its text.
//!
//! Of an object as `kubectl` prints it most is indentation, and most of the rest is of no interest here. To pass over that
//! several times as fast as a parser does, this looks at several bytes at once and keeps nothing, and what reads exactly as
//! it did in the object before is not read again: machines of one template are alike. It decides nothing: what it cuts out
//! is parsed, and what it does not take for a plain object, of which a part may be cut off or broken, is parsed as a whole.

/// What is kept of an object, or of each object of a list. Anything else is kept as a whole.
pub(super) struct Members(pub(super) &'static [(Key, Kept)]);

/// Which members.
pub(super) enum Key {
    Is(&'static str),
    BeginsWith(&'static str),
}

/// How much of a value.
pub(super) enum Kept {
    All,
    Only(&'static Members),
}

/// Cuts out one object after the other.
#[derive(Default)]
pub(super) struct Skimmer {
    /// The lists and objects in the object before, each behind the one that it is in.
    nests: Vec<Nest>,
    /// Room for those of the next.
    room: Vec<Nest>,
}

/// A list or an object of which it is known that it is one.
#[derive(Clone, Copy)]
struct Nest {
    start: usize,
    end: usize,
    depth: usize,
    /// So many are in it.
    inner: usize,
}

/// A text, and how much of it was read.
struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    /// The object before, and the nests in it.
    before: &'t [u8],
    known: &'t [Nest],
    /// The nests before `at`.
    nests: &'t mut Vec<Nest>,
}

/// Values in one another; a parser has such a limit, too.
const MAX_DEPTH: usize = 100;

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
    pub(super) fn skim(&mut self, before: &[u8], text: &[u8], members: &Members, kept: &mut Vec<u8>) -> Option<usize> {
        let known = if before.is_empty() { &[][..] } else { &self.nests };
        self.room.clear();
        let mut scanner = Scanner { text, at: 0, before, known, nests: &mut self.room };
        let is_plain = scanner.nest(0, |scanner| scanner.members(members, 0, kept));
        let length = scanner.at;
        is_plain?;
        std::mem::swap(&mut self.nests, &mut self.room);
        Some(length)
    }
}

// === impl Scanner ===

impl Scanner<'_> {
    /// An object of which only some members are kept.
    fn members(&mut self, members: &Members, depth: usize, kept: &mut Vec<u8>) -> Option<()> {
        self.byte(b'{')?;
        kept.push(b'{');
        let mut separator = if self.peek()? == b'}' { self.byte(b'}')? } else { b',' };
        let begin = kept.len();
        while separator == b',' {
            self.blanks();
            let key = self.at;
            // An escape may stand for any letter.
            if self.string()? {
                return None;
            }
            let name = &self.text[key + 1..self.at - 1];
            let how = members.0.iter().find(|(key, _)| key.fits(name)).map(|(_, how)| how);
            if how.is_some() {
                if kept.len() > begin {
                    kept.push(b',');
                }
                kept.extend_from_slice(&self.text[key..self.at]);
                kept.push(b':');
            }
            self.byte(b':')?;
            match how {
                Some(how) => self.kept(how, depth + 1, kept)?,
                None => self.value(depth + 1)?,
            }
            separator = self.one_of(b',', b'}')?;
        }
        kept.push(b'}');
        Some(())
    }

    fn kept(&mut self, how: &Kept, depth: usize, kept: &mut Vec<u8>) -> Option<()> {
        match (self.peek()?, how) {
            (b'{', Kept::Only(members)) => self.nest(depth, |scanner| scanner.members(members, depth, kept)),
            (b'[', Kept::Only(_)) if depth <= MAX_DEPTH => self.nest(depth, |scanner| {
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
            b'"' => self.string().map(drop),
            b'{' | b'[' if self.is_known(depth) => Some(()),
            b'{' => self.nest(depth, |scanner| scanner.object(depth)),
            b'[' => self.nest(depth, |scanner| scanner.list(|scanner| scanner.value(depth + 1))),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.integer(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.at += 1;
        if self.peek()? == b'}' {
            return self.byte(b'}').map(drop);
        }
        loop {
            self.blanks();
            self.string()?;
            self.byte(b':')?;
            self.value(depth + 1)?;
            if self.one_of(b',', b'}')? == b'}' {
                return Some(());
            }
        }
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

    /// Passes over a list or an object if the one that stood here in the object before reads the same.
    fn is_known(&mut self, depth: usize) -> bool {
        let Some((first, rest)) = self.known.split_first() else { return false };
        let is_same = first.depth == depth && self.text[self.at..].starts_with(&self.before[first.start..first.end]);
        if is_same {
            let (at, start) = (self.at, first.start);
            let same = self.known[..=first.inner].iter();
            self.nests.extend(same.map(|nest| Nest {
                start: at + (nest.start - start),
                end: at + (nest.end - start),
                ..*nest
            }));
            self.at += first.end - start;
            self.known = &rest[first.inner..];
        }
        is_same
    }

    /// A list or an object that is read, in which those may be known that stood in the one before.
    fn nest(&mut self, depth: usize, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let (inner, further) = match self.known.split_first() {
            Some((first, rest)) => rest.split_at(first.inner),
            None => (&[][..], &[][..]),
        };
        let index = self.nests.len();
        self.nests.push(Nest { start: self.at, end: self.at, depth, inner: 0 });
        self.known = inner;
        read(self)?;
        self.known = further;
        self.nests[index].end = self.at;
        self.nests[index].inner = self.nests.len() - index - 1;
        Some(())
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

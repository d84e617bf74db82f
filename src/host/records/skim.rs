//! What matters of an object, cut out of its text.
//!
//! Of an object as `kubectl` prints it most is indentation, and most of the rest is of no interest here. To pass over that
//! several times as fast as a parser does, this looks at several bytes at once and keeps nothing. It decides nothing: what it
//! cuts out is parsed, and what it does not take for a plain object, of which a part may be cut off or broken, is parsed as
//! a whole.

/// Members that are kept, and of those that are not kept as a whole, what of them is.
pub(super) struct Members(pub(super) &'static [(&'static str, Option<&'static Members>)]);

/// A text, and how much of it was read.
struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
}

/// Values in one another; a parser has such a limit, too.
const MAX_DEPTH: usize = 100;

/// Writes the object at the start of `text` without the members that are not among `members`, and returns how long it is.
/// `None`: the text is no plain object, or ends before the object does.
pub(super) fn skim(text: &[u8], members: &Members, kept: &mut Vec<u8>) -> Option<usize> {
    let mut scanner = Scanner { text, at: 0 };
    scanner.members(members, 0, kept)?;
    Some(scanner.at)
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
            self.string()?;
            let name = &self.text[key + 1..self.at - 1];
            // An escape may stand for any letter.
            if name.contains(&b'\\') {
                return None;
            }
            let member = members.0.iter().find(|(member, _)| member.as_bytes() == name);
            if member.is_some() {
                if kept.len() > begin {
                    kept.push(b',');
                }
                kept.extend_from_slice(&self.text[key..self.at]);
                kept.push(b':');
            }
            self.byte(b':')?;
            let value = self.peek()?;
            match member {
                Some((_, Some(members))) if value == b'{' => self.members(members, depth + 1, kept)?,
                Some(_) => {
                    let value = self.at;
                    self.value(depth + 1)?;
                    kept.extend_from_slice(&self.text[value..self.at]);
                }
                None => self.value(depth + 1)?,
            }
            separator = self.one_of(b',', b'}')?;
        }
        kept.push(b'}');
        Some(())
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'"' => self.string(),
            b'{' => {
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
            b'[' => {
                self.at += 1;
                if self.peek()? == b']' {
                    return self.byte(b']').map(drop);
                }
                loop {
                    self.value(depth + 1)?;
                    if self.one_of(b',', b']')? == b']' {
                        return Some(());
                    }
                }
            }
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.integer(),
        }
    }

    fn string(&mut self) -> Option<()> {
        if *self.text.get(self.at)? != b'"' {
            return None;
        }
        self.at += 1;
        loop {
            self.letters();
            match *self.text.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => match *self.text.get(self.at + 1)? {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 2,
                    b'u' => {
                        let digits = self.text.get(self.at + 2..self.at + 6)?;
                        if !digits.iter().all(u8::is_ascii_hexdigit) {
                            return None;
                        }
                        self.at += 6;
                    }
                    _ => return None,
                },
                0x20..0x80 => self.at += 1,
                _ => return None,
            }
        }
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

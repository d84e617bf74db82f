//! Bytes of an image, read with care: few reads where structures are neighbours, and never more than a bound.

use std::io;

use super::{ReadAt, ReadError};

/// Wide enough for all directories of a drive that KubeVirt made, so they cost one read together.
const WIDTH: usize = 16 * 1024;

/// What one question about a file may cost. A file of 1 MiB in scattered clusters of 512 bytes takes 2,048 reads; whoever
/// asks for more leads us in circles.
const BUDGET: u32 = 4096;

/// A source, seen through the part of it that was read last. One is made for each question.
pub(super) struct Window<'a, S: ReadAt + ?Sized> {
    source: &'a S,
    bytes: Vec<u8>,
    start: Option<u64>,
    budget: u32,
}

impl<'a, S: ReadAt + ?Sized> Window<'a, S> {
    pub(super) fn new(source: &'a S) -> Self {
        Self { source, bytes: vec![0; WIDTH], start: None, budget: BUDGET }
    }

    /// Fills `buffer` from `offset` on. An error is told about `what`.
    pub(super) fn read(&mut self, what: &str, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        if self.copy(offset, buffer) {
            return Ok(());
        }
        self.spend(what)?;
        if buffer.len() < WIDTH {
            let aligned = offset - offset % WIDTH as u64;
            let fits = offset - aligned <= (WIDTH - buffer.len()) as u64;
            let start = if fits { aligned } else { offset };
            // The end of the device, or a bad sector in what nobody asked for, is no reason to give up.
            self.start = self.source.read_at(start, &mut self.bytes).is_ok().then_some(start);
            if self.copy(offset, buffer) {
                return Ok(());
            }
        }
        self.source.read_at(offset, buffer).map_err(|e| ReadError::io(what, e))
    }

    /// Counts one step, also where it costs no read: a bound of the time as well.
    pub(super) fn spend(&mut self, what: &str) -> Result<(), ReadError> {
        match self.budget.checked_sub(1) {
            Some(rest) => {
                self.budget = rest;
                Ok(())
            }
            None => {
                let source = io::Error::new(io::ErrorKind::InvalidData, "more reads than a config drive takes");
                Err(ReadError::io(what, source))
            }
        }
    }

    fn copy(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let found = self
            .start
            .and_then(|start| usize::try_from(offset.checked_sub(start)?).ok())
            .and_then(|at| self.bytes.get(at..at.checked_add(buffer.len())?));
        if let Some(found) = found {
            buffer.copy_from_slice(found);
        }
        found.is_some()
    }
}

/// A little-endian number. What is out of reach reads as zero: there is no place for a panic in front of hostile bytes,
/// and no caller looks beyond what it has measured.
pub(super) fn u16_le(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |found| u16::from_le_bytes(*found))
}

/// As [`u16_le`].
pub(super) fn u32_le(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |found| u32::from_le_bytes(*found))
}

/// A label without its padding.
pub(super) fn label(padded: &[u8]) -> String {
    String::from_utf8_lossy(padded).trim_end_matches([' ', '\0']).to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Records where it was read.
    struct Watched(Vec<u8>, RefCell<Vec<(u64, usize)>>);

    impl ReadAt for Watched {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.1.borrow_mut().push((offset, buffer.len()));
            self.0.as_slice().read_at(offset, buffer)
        }
    }

    fn watched(bytes: usize) -> Watched {
        Watched((0..bytes).map(|at| at as u8).collect(), RefCell::default())
    }

    #[test]
    fn neighbours_cost_one_read() {
        let source = watched(40_000);
        let mut window = Window::new(&source);
        let mut byte = [0; 2];
        window.read("a", 16_500, &mut byte).unwrap();
        window.read("b", 32_766, &mut byte).unwrap();
        window.read("c", 16_384, &mut byte).unwrap();
        assert_eq!((byte, source.1.take()), ([0, 1], vec![(16_384, 16_384)]));
    }

    #[test]
    fn the_end_of_the_source_is_read_without_its_surroundings() {
        let source = watched(20_000);
        let mut byte = [0];
        Window::new(&source).read("end", 19_999, &mut byte).unwrap();
        assert_eq!((byte, source.1.take()), ([19_999_u32 as u8], vec![(16_384, 16_384), (19_999, 1)]));
    }

    #[test]
    fn beyond_the_end_is_an_error_that_names_the_place() {
        let source = watched(100);
        let error = Window::new(&source).read("user-data", 100, &mut [0]).unwrap_err();
        assert_eq!(error.to_string(), "reading user-data");
    }

    #[test]
    fn reading_in_circles_comes_to_an_end() {
        let source = watched(3 * WIDTH);
        let mut window = Window::new(&source);
        let reads = (0..).take_while(|turn| window.read("loop", turn % 2 * 20_000, &mut [0]).is_ok()).count();
        assert_eq!(reads, 4096);
    }

    #[test]
    fn a_number_out_of_reach_is_zero() {
        assert_eq!((u16_le(&[1, 2, 3], 1), u16_le(&[1, 2, 3], 2), u32_le(&[1, 2, 3], 9)), (0x0302, 0, 0));
    }
}

//! Reads bytes of an image: with few reads for neighbouring structures, and with a limit on the number of reads.

use std::cell::Cell;
use std::io::{self, ErrorKind};

use super::source::{ReadAt, ReadError};

/// Size of one read, in bytes. On a drive from KubeVirt, one read of this size covers all directories.
const WIDTH: usize = 16 * 1024;

/// Largest number of steps for all lookups of files in one image. A path of 32 directories, each with 1 MiB of records,
/// needs about 2,000 reads. A hostile image with many continuation areas, or with many directories that are looked into,
/// would need far more.
pub(super) const BUDGET: u32 = 4096;

/// Source of bytes with a buffer for the last read. Each lookup of a file creates a new window. The windows of one image
/// share the number of steps that are left.
pub(super) struct Window<'a, S: ReadAt + ?Sized> {
    source: &'a S,
    bytes: Vec<u8>,
    start: Option<u64>,
    budget: &'a Cell<u32>,
}

impl<'a, S: ReadAt + ?Sized> Window<'a, S> {
    pub(super) fn new(source: &'a S, budget: &'a Cell<u32>) -> Self {
        Self { source, bytes: vec![0; WIDTH], start: None, budget }
    }

    /// Fills `buffer` with the bytes from `offset` on. `what` names the structure in an error.
    pub(super) fn read(&mut self, what: &str, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        if self.copy(offset, buffer) {
            return Ok(());
        }
        self.spend(what)?;
        if buffer.len() < WIDTH {
            let aligned = offset - offset % WIDTH as u64;
            let fits = offset - aligned <= (WIDTH - buffer.len()) as u64;
            let start = if fits { aligned } else { offset };
            // This wide read can fail at the end of the device, or at a bad sector near the requested bytes. In this
            // case only the requested bytes are read below.
            self.start = self.source.read_at(start, &mut self.bytes).is_ok().then_some(start);
            if self.copy(offset, buffer) {
                return Ok(());
            }
        }
        self.source.read_at(offset, buffer).map_err(|e| {
            let is_cut = e.kind() == ErrorKind::UnexpectedEof;
            let end = || format!("the image ends before byte {}, expected a whole image", offset + buffer.len() as u64);
            ReadError::io(what, if is_cut { io::Error::new(e.kind(), end()) } else { e })
        })
    }

    /// Counts one step. A step without a read counts too, because it also takes time.
    pub(super) fn spend(&mut self, what: &str) -> Result<(), ReadError> {
        match self.budget.get().checked_sub(1) {
            Some(rest) => {
                self.budget.set(rest);
                Ok(())
            }
            None => {
                let source = io::Error::new(ErrorKind::InvalidData, "more reads than a config drive needs");
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

/// Reads a little-endian number. A number that is not wholly inside `bytes` reads as zero, because hostile bytes must
/// not cause a panic. Callers check the length first.
pub(super) fn u16_le(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |found| u16::from_le_bytes(*found))
}

/// Reads a little-endian number, as [`u16_le`].
pub(super) fn u32_le(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |found| u32::from_le_bytes(*found))
}

/// Decodes a label and removes the padding.
pub(super) fn label(padded: &[u8]) -> String {
    String::from_utf8_lossy(padded).trim_end_matches([' ', '\0']).to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A source that records the offset and the length of each read.
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
    fn neighbouring_bytes_need_only_one_read() {
        let source = watched(40_000);
        let budget = Cell::new(BUDGET);
        let mut window = Window::new(&source, &budget);
        let mut byte = [0; 2];
        window.read("a", 16_500, &mut byte).unwrap();
        window.read("b", 32_766, &mut byte).unwrap();
        window.read("c", 16_384, &mut byte).unwrap();
        assert_eq!((byte, source.1.take()), ([0, 1], vec![(16_384, 16_384)]));
    }

    #[test]
    fn bytes_at_the_end_of_the_source_are_read_alone_after_the_wide_read_failed() {
        let source = watched(20_000);
        let mut byte = [0];
        Window::new(&source, &Cell::new(BUDGET)).read("end", 19_999, &mut byte).unwrap();
        assert_eq!((byte, source.1.take()), ([19_999_u32 as u8], vec![(16_384, 16_384), (19_999, 1)]));
    }

    #[test]
    fn a_read_beyond_the_end_is_an_error_that_names_the_structure() {
        let source = watched(100);
        let error = Window::new(&source, &Cell::new(BUDGET)).read("user-data", 100, &mut [0]).unwrap_err();
        assert_eq!(error.to_string(), "reading user-data");
    }

    #[test]
    fn a_lookup_fails_after_4096_reads() {
        let source = watched(3 * WIDTH);
        let budget = Cell::new(BUDGET);
        let mut window = Window::new(&source, &budget);
        let reads = (0..).take_while(|turn| window.read("loop", turn % 2 * 20_000, &mut [0]).is_ok()).count();
        assert_eq!(reads, 4096);
    }

    #[test]
    fn a_number_beyond_the_end_of_the_bytes_is_zero() {
        assert_eq!((u16_le(&[1, 2, 3], 1), u16_le(&[1, 2, 3], 2), u32_le(&[1, 2, 3], 9)), (0x0302, 0, 0));
    }
}

//! The free space of one family: which numbers may be given, as ranges and not one by one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::{Bound, RangeBounds};

use foldhash::fast::RandomState;

/// The free numbers: ranges of blocks of 128 that are free as a whole, and a bit for each number of a block that is free
/// in part.
///
/// Each operation costs at most the logarithm of the number of gaps, on average, and memory grows with that number, never
/// with the size of the space: a /8 or a /64 that is empty, or full, or taken from below costs one range and a block. The
/// blocks are for the space with many holes: ranges alone would be one for each number there, and five times as slow.
///
/// ```
/// use glowplug::host::free_ranges::{FreeRanges, FreeRangesError};
///
/// let mut free = FreeRanges::default();
/// free.give_back_range(5, 9)?;
/// assert_eq!(free.take_lowest(), Some(5));
/// free.take(7)?;
/// assert_eq!((free.count(), free.lowest(), free.lowest_from(7)), (3, Some(6), Some(8)));
/// assert_eq!(free.give_back(8), Err(FreeRangesError::AlreadyFree(8)));
/// # Ok::<(), FreeRangesError>(())
/// ```
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FreeRanges {
    // From the last block of a range to its first one, neither overlapping nor touching. What changes most often is the
    // first block of the lowest range, and a value is changed where it stands, while a key would have to be moved.
    whole: BTreeMap<u128, u128>,
    partial: Partial,
    count: u128,
}

/// The blocks that are free in part, each with its free numbers: some, and not all.
///
/// Mostly a bit of a block changes that stays such a block, so their order is kept apart and asked for the lowest only.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Partial {
    bits: HashMap<u128, u128, RandomState>,
    blocks: BTreeSet<u128>,
}

/// What cannot be taken or given back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FreeRangesError {
    /// The number to be taken is not free.
    NotFree(u128),
    /// This number of what is to be given back is free already. Who gives it back has lost count of what he holds.
    AlreadyFree(u128),
    /// All 2^128 numbers would be free at once, which is one more than a `u128` counts. No pool comes near: the
    /// unspecified address and the multicast addresses are in none.
    Uncountable,
}

/// A number is a block and a bit of it.
const BITS: u32 = 7;

// === impl FreeRanges ===

impl FreeRanges {
    /// How many numbers are free.
    #[must_use]
    pub fn count(&self) -> u128 {
        self.count
    }

    /// The lowest free number, which stays free.
    #[must_use]
    pub fn lowest(&self) -> Option<u128> {
        let partial = self.partial.first(..).map(|(block, bits)| lowest_of(block, bits));
        let whole = self.whole.first_key_value().map(|(_, &first)| first << BITS);
        least(partial, whole)
    }

    /// The lowest free number that is not below `number`.
    #[must_use]
    pub fn lowest_from(&self, number: u128) -> Option<u128> {
        let (block, bit) = split(number);
        let own = self.partial.get(block).map_or(0, |bits| bits & from(bit));
        if own != 0 {
            return Some(lowest_of(block, own));
        }
        let above = self.partial.first((Bound::Excluded(block), Bound::Unbounded));
        let partial = above.map(|(block, bits)| lowest_of(block, bits));
        let whole = self.whole.range(block..).next().map(|(_, &first)| number.max(first << BITS));
        least(partial, whole)
    }

    /// Whether a number is free.
    #[must_use]
    pub fn contains(&self, number: u128) -> bool {
        let (block, bit) = split(number);
        match self.partial.get(block) {
            Some(bits) => bits & (1 << bit) != 0,
            None => is_whole(&self.whole, block),
        }
    }

    /// Takes the lowest free number.
    pub fn take_lowest(&mut self) -> Option<u128> {
        let number = self.lowest()?;
        self.take(number).ok()?;
        Some(number)
    }

    /// Takes one number.
    ///
    /// # Errors
    ///
    /// [`FreeRangesError::NotFree`] when it is not free.
    pub fn take(&mut self, number: u128) -> Result<(), FreeRangesError> {
        let (block, bit) = split(number);
        if self.take_bits(block, 1 << bit) { Ok(()) } else { Err(FreeRangesError::NotFree(number)) }
    }

    /// Takes what is free of `first` to `last`, which may be nothing.
    pub fn take_range(&mut self, first: u128, last: u128) {
        if last < first {
            return;
        }
        let ((first, low), (last, high)) = (split(first), split(last));
        if first == last {
            self.take_bits(first, from(low) & to(high));
            return;
        }
        self.take_bits(first, from(low));
        self.take_bits(last, to(high));
        self.take_blocks(first + 1, last - 1);
    }

    /// Gives one number back.
    ///
    /// # Errors
    ///
    /// [`FreeRangesError::AlreadyFree`] when it is free; nothing is changed.
    pub fn give_back(&mut self, number: u128) -> Result<(), FreeRangesError> {
        let (block, bit) = split(number);
        let bits = 1 << bit;
        let count = self.count.checked_add(1).ok_or(FreeRangesError::Uncountable)?;
        match self.partial.get_mut(block) {
            Some(free) if *free & bits != 0 => return Err(FreeRangesError::AlreadyFree(number)),
            Some(free) if *free | bits == u128::MAX => {
                self.partial.remove(block);
                self.give_back_blocks(block, block);
            }
            Some(free) => *free |= bits,
            None if is_whole(&self.whole, block) => return Err(FreeRangesError::AlreadyFree(number)),
            None => self.partial.insert(block, bits),
        }
        self.count = count;
        Ok(())
    }

    /// Gives the numbers from `first` to `last` back. The other way round they are none.
    ///
    /// # Errors
    ///
    /// [`FreeRangesError::AlreadyFree`] when one of them is free: it names the lowest; nothing is changed.
    pub fn give_back_range(&mut self, first: u128, last: u128) -> Result<(), FreeRangesError> {
        let Some(more) = last.checked_sub(first) else { return Ok(()) };
        if let Some(free) = self.lowest_from(first).filter(|free| *free <= last) {
            return Err(FreeRangesError::AlreadyFree(free));
        }
        let count = more.checked_add(1).and_then(|more| self.count.checked_add(more));
        self.count = count.ok_or(FreeRangesError::Uncountable)?;
        let ((first, low), (last, high)) = (split(first), split(last));
        if first == last {
            self.give_back_bits(first, from(low) & to(high));
        } else {
            self.give_back_bits(first, from(low));
            self.give_back_blocks(first + 1, last - 1);
            self.give_back_bits(last, to(high));
        }
        Ok(())
    }

    /// Takes what is free of some numbers of a block, and says whether anything was.
    fn take_bits(&mut self, block: u128, bits: u128) -> bool {
        let taken = match self.partial.get_mut(block) {
            Some(free) => {
                let taken = *free & bits;
                *free ^= taken;
                if *free == 0 {
                    self.partial.remove(block);
                }
                taken
            }
            None => {
                let is_whole = take_whole(&mut self.whole, block, block) != 0;
                if is_whole && bits != u128::MAX {
                    self.partial.insert(block, !bits);
                }
                if is_whole { bits } else { 0 }
            }
        };
        self.count -= u128::from(taken.count_ones());
        taken != 0
    }

    fn take_blocks(&mut self, first: u128, last: u128) {
        if last < first {
            return;
        }
        while let Some((block, bits)) = self.partial.first(first..=last) {
            self.partial.remove(block);
            self.count -= u128::from(bits.count_ones());
        }
        self.count -= take_whole(&mut self.whole, first, last) << BITS;
    }

    /// Adds numbers of a block that are known not to be free.
    fn give_back_bits(&mut self, block: u128, bits: u128) {
        let all = bits | self.partial.get(block).unwrap_or(0);
        if all == u128::MAX {
            self.partial.remove(block);
            self.give_back_blocks(block, block);
        } else {
            self.partial.insert(block, all);
        }
    }

    /// Adds blocks that are known not to be free in any part.
    fn give_back_blocks(&mut self, first: u128, last: u128) {
        if last < first {
            return;
        }
        // The one below first, so that the one above can be changed where it stands.
        let start = first.checked_sub(1).and_then(|end| self.whole.remove(&end)).unwrap_or(first);
        match self.whole.range_mut(first..).next() {
            Some((_, above)) if *above == last + 1 => *above = start,
            _ => {
                self.whole.insert(last, start);
            }
        }
    }
}

// === impl Partial ===

impl Partial {
    /// The lowest one of some blocks.
    fn first(&self, blocks: impl RangeBounds<u128>) -> Option<(u128, u128)> {
        let block = *self.blocks.range(blocks).next()?;
        Some((block, self.get(block)?))
    }

    fn get(&self, block: u128) -> Option<u128> {
        self.bits.get(&block).copied()
    }

    fn get_mut(&mut self, block: u128) -> Option<&mut u128> {
        self.bits.get_mut(&block)
    }

    fn insert(&mut self, block: u128, bits: u128) {
        if self.bits.insert(block, bits).is_none() {
            self.blocks.insert(block);
        }
    }

    fn remove(&mut self, block: u128) {
        if self.bits.remove(&block).is_some() {
            self.blocks.remove(&block);
            // A table keeps its room by itself, also when the space is full or empty again.
            if self.bits.capacity() > 64 && self.bits.len() < self.bits.capacity() / 8 {
                self.bits.shrink_to(2 * self.bits.len());
            }
        }
    }
}

fn split(number: u128) -> (u128, u32) {
    (number >> BITS, (number & ((1 << BITS) - 1)) as u32)
}

fn lowest_of(block: u128, bits: u128) -> u128 {
    (block << BITS) + u128::from(bits.trailing_zeros())
}

fn from(bit: u32) -> u128 {
    u128::MAX << bit
}

fn to(bit: u32) -> u128 {
    u128::MAX >> (127 - bit)
}

fn least(a: Option<u128>, b: Option<u128>) -> Option<u128> {
    a.into_iter().chain(b).min()
}

fn is_whole(whole: &BTreeMap<u128, u128>, block: u128) -> bool {
    whole.range(block..).next().is_some_and(|(_, &first)| first <= block)
}

/// Takes what there is of the blocks from `first` to `last`, and says how many these were.
fn take_whole(whole: &mut BTreeMap<u128, u128>, first: u128, last: u128) -> u128 {
    let mut taken = 0;
    while let Some((&end, start)) = whole.range_mut(first..).next() {
        let below = *start;
        if last < below {
            break;
        }
        taken += end.min(last) - below.max(first) + 1;
        if last < end {
            *start = last + 1;
        } else {
            whole.remove(&end);
        }
        if below < first {
            whole.insert(first - 1, below);
        }
        if last <= end {
            break;
        }
    }
    taken
}

// === impl FreeRangesError ===

impl fmt::Display for FreeRangesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFree(number) => write!(f, "number {number} is not free"),
            Self::AlreadyFree(number) => write!(f, "number {number} is free already"),
            Self::Uncountable => f.write_str("2^128 numbers are one more than can be counted"),
        }
    }
}

impl std::error::Error for FreeRangesError {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn free(ranges: &[(u128, u128)]) -> FreeRanges {
        let mut free = FreeRanges::default();
        for &(first, last) in ranges {
            free.give_back_range(first, last).unwrap();
        }
        free
    }

    #[test]
    fn a_block_that_is_given_back_joins_its_neighbours() {
        type Ranges<'a> = &'a [(u128, u128)];
        let cases: [(Ranges<'_>, Ranges<'_>); 4] = [
            (&[(128, 511), (896, 1023)], &[(128, 511), (640, 767), (896, 1023)]),
            (&[(128, 639), (896, 1023)], &[(128, 767), (896, 1023)]),
            (&[(128, 511), (768, 1023)], &[(128, 511), (640, 1023)]),
            (&[(128, 639), (768, 1023)], &[(128, 1023)]),
        ];
        for (before, after) in cases {
            let mut before = free(before);
            for number in 640..768 {
                before.give_back(number).unwrap();
            }
            assert_eq!(before, free(after));
        }
    }

    #[test]
    fn a_number_is_taken_from_each_place_of_a_range() {
        for (first, last) in [(1, 3), (0, 1023), (100, 900)] {
            for number in [first, first + 1, last] {
                let mut before = free(&[(first, last)]);
                before.take(number).unwrap();
                assert_eq!(before.take(number), Err(FreeRangesError::NotFree(number)));
                let mut after = FreeRanges::default();
                if first < number {
                    after.give_back_range(first, number - 1).unwrap();
                }
                after.give_back_range(number + 1, last).unwrap();
                assert_eq!(before, after);
                before.give_back(number).unwrap();
                assert_eq!(before, free(&[(first, last)]));
            }
        }
    }

    #[test]
    fn the_greatest_and_the_least_number_are_numbers_like_others() {
        let mut ends = free(&[(0, 0), (u128::MAX, u128::MAX)]);
        assert_eq!(ends.take_lowest(), Some(0));
        ends.take(u128::MAX).unwrap();
        assert_eq!(ends, FreeRanges::default());
        ends.give_back(u128::MAX).unwrap();
        ends.give_back(u128::MAX - 1).unwrap();
        ends.give_back(0).unwrap();
        assert_eq!(ends, free(&[(0, 0), (u128::MAX - 1, u128::MAX)]));
        assert_eq!((ends.lowest_from(1), ends.lowest_from(u128::MAX)), (Some(u128::MAX - 1), Some(u128::MAX)));
        ends.take_range(0, u128::MAX);
        assert_eq!(ends, FreeRanges::default());
    }

    #[test]
    fn one_less_than_all_numbers_is_counted_and_all_of_them_are_refused() {
        let mut most = free(&[(1, u128::MAX)]);
        assert_eq!(most.count(), u128::MAX);
        assert_eq!(most.give_back(0), Err(FreeRangesError::Uncountable));
        assert_eq!(FreeRanges::default().give_back_range(0, u128::MAX), Err(FreeRangesError::Uncountable));
        assert_eq!(most, free(&[(1, u128::MAX)]));
        most.take(2).unwrap();
        most.give_back(0).unwrap();
        assert_eq!(most.count(), u128::MAX);
    }

    #[test]
    fn what_is_free_already_is_named_and_nothing_is_changed() {
        let mut some = free(&[(5, 6)]);
        for (first, last, named) in [(5, 5, 5), (1, 5, 5), (6, 9, 6), (1, 9, 5)] {
            assert_eq!(some.give_back_range(first, last), Err(FreeRangesError::AlreadyFree(named)));
        }
        assert_eq!(some, free(&[(5, 6)]));
    }

    #[test]
    fn a_space_that_is_filled_and_emptied_in_order_stays_small() {
        let mut space = free(&[(0, 9999)]);
        for number in 0..10_000 {
            assert_eq!(space.take_lowest(), Some(number));
            assert!(space.whole.len() <= 1 && space.partial.bits.len() <= 2);
        }
        for number in (0..10_000).rev() {
            space.give_back(number).unwrap();
            assert!(space.whole.len() <= 1 && space.partial.bits.len() <= 2);
        }
    }

    #[test]
    fn what_many_holes_took_is_given_back_with_them() {
        for last_state in [FreeRanges::take, FreeRanges::give_back] {
            let mut space = free(&[(0, 99_999)]);
            (0..100_000).step_by(2).for_each(|number| space.take(number).unwrap());
            assert_eq!(space.partial.bits.len(), 782);
            for number in 0..100_000 {
                let _ = last_state(&mut space, number);
            }
            assert!(space.whole.len() <= 1 && space.partial.bits.len() <= 1 && space.partial.bits.capacity() <= 64);
        }
    }

    #[test]
    fn the_first_million_of_a_slash_8_and_of_a_64_are_given_in_order() {
        for (first, last) in [(10 << 24, (11 << 24) - 1), (0xfd00 << 112, (0xfd00 << 112) + u128::from(u64::MAX))] {
            let mut space = free(&[(first, last)]);
            assert!((0..1_000_000).all(|at| space.take_lowest() == Some(first + at)));
            assert_eq!(space, free(&[(first + 1_000_000, last)]));
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(u128),
        TakeLowest,
        TakeRange(u128, u128),
        GiveBack(u128, u128),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Some blocks, so that whole ones, broken ones and their borders all come up.
        let number = prop_oneof![0..64_u128, 0..1024_u128];
        prop_oneof![
            number.clone().prop_map(Step::Take),
            Just(Step::TakeLowest),
            (number.clone(), 0..400_u128).prop_map(|(first, more)| Step::TakeRange(first, first + more)),
            (number, prop_oneof![Just(0), 0..400_u128]).prop_map(|(first, more)| Step::GiveBack(first, first + more)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_history_is_that_of_a_plain_set(steps in prop::collection::vec(step(), 0..60)) {
            let (mut ours, mut model) = (FreeRanges::default(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Take(number) => {
                        let expected = if model.remove(&number) { Ok(()) } else { Err(FreeRangesError::NotFree(number)) };
                        prop_assert_eq!(ours.take(number), expected);
                    }
                    Step::TakeLowest => prop_assert_eq!(ours.take_lowest(), model.pop_first()),
                    Step::TakeRange(first, last) => {
                        ours.take_range(first, last);
                        model.retain(|number| *number < first || last < *number);
                    }
                    Step::GiveBack(first, last) => {
                        let taken = model.range(first..=last).next().copied();
                        let expected = taken.map_or(Ok(()), |number| Err(FreeRangesError::AlreadyFree(number)));
                        prop_assert_eq!(ours.give_back_range(first, last), expected);
                        if taken.is_none() {
                            model.extend(first..=last);
                        }
                    }
                }
                prop_assert_eq!((ours.count(), ours.lowest()), (model.len() as u128, model.first().copied()));
            }
            prop_assert!((0..1500).all(|number| ours.contains(number) == model.contains(&number)));
            prop_assert!((0..1500).all(|number| ours.lowest_from(number) == model.range(number..).next().copied()));
            // What it looks like depends on what is free, not on how that came about.
            let mut again = FreeRanges::default();
            for &number in &model {
                again.give_back(number).unwrap();
            }
            prop_assert_eq!(&ours, &again);
        }
    }
}

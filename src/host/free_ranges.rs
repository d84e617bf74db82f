//! The free numbers of one family of addresses, as ranges.

use std::fmt;
use std::ops::RangeInclusive;

use rangemap::RangeInclusiveSet;

/// A set of free numbers, kept as ranges.
///
/// The cost of an operation is at most logarithmic in the number of ranges. Memory grows with the number of ranges,
/// never with the size of the address space: a completely free /8 or /64 is one range.
///
/// ```
/// use glowplug::host::free_ranges::{FreeRanges, FreeRangesError};
///
/// let mut free = FreeRanges::default();
/// free.add_range(5, 9)?;
/// assert_eq!(free.take_lowest(), Some(5));
/// free.take(7)?;
/// assert_eq!((free.count(), free.lowest(), free.lowest_from(7)), (3, Some(6), Some(8)));
/// assert_eq!(free.add(8), Err(FreeRangesError::AlreadyFree(8)));
/// # Ok::<(), FreeRangesError>(())
/// ```
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FreeRanges {
    ranges: RangeInclusiveSet<u128>,
    count: u128,
}

/// Why numbers cannot be taken or added.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FreeRangesError {
    /// The number to take is not free.
    NotFree(u128),
    /// The number to add is already free.
    AlreadyFree(u128),
    /// All 2^128 numbers would be free, one more than a `u128` can count. No pool has all numbers: the unspecified
    /// address and the multicast addresses are never in a pool.
    Uncountable,
}

// === impl FreeRanges ===

impl FreeRanges {
    /// Counts the free numbers.
    #[must_use]
    pub fn count(&self) -> u128 {
        self.count
    }

    /// Returns the lowest free number, which stays free.
    #[must_use]
    pub fn lowest(&self) -> Option<u128> {
        self.ranges.first().map(|range| *range.start())
    }

    /// Returns the lowest free number that is not below `number`.
    #[must_use]
    pub fn lowest_from(&self, number: u128) -> Option<u128> {
        self.met(number..=u128::MAX).next().map(|range| *range.start())
    }

    /// Whether a number is free.
    #[must_use]
    pub fn contains(&self, number: u128) -> bool {
        self.ranges.contains(&number)
    }

    /// Takes the lowest free number. Returns `None` if no number is free.
    pub fn take_lowest(&mut self) -> Option<u128> {
        let number = self.lowest()?;
        self.take(number).ok()?;
        Some(number)
    }

    /// Takes one number.
    ///
    /// # Errors
    ///
    /// [`FreeRangesError::NotFree`] when the number is not free.
    pub fn take(&mut self, number: u128) -> Result<(), FreeRangesError> {
        if !self.contains(number) {
            return Err(FreeRangesError::NotFree(number));
        }
        self.ranges.remove(number..=number);
        self.count -= 1;
        Ok(())
    }

    /// Takes the free numbers from `first` to `last`, and skips numbers that are not free.
    pub fn take_range(&mut self, first: u128, last: u128) {
        if last < first {
            return;
        }
        self.count -= self.met(first..=last).map(|range| range.end() - range.start() + 1).sum::<u128>();
        self.ranges.remove(first..=last);
    }

    /// Adds one number to the free numbers.
    ///
    /// # Errors
    ///
    /// [`FreeRangesError::AlreadyFree`] when the number is free; nothing is changed.
    pub fn add(&mut self, number: u128) -> Result<(), FreeRangesError> {
        self.add_range(number, number)
    }

    /// Adds the numbers from `first` to `last` to the free numbers. Does nothing if `last` is below `first`.
    ///
    /// # Errors
    ///
    /// [`FreeRangesError::AlreadyFree`] with the lowest number that is already free, or
    /// [`FreeRangesError::Uncountable`]; nothing is changed.
    pub fn add_range(&mut self, first: u128, last: u128) -> Result<(), FreeRangesError> {
        let Some(more) = last.checked_sub(first) else { return Ok(()) };
        if let Some(free) = self.lowest_from(first).filter(|free| *free <= last) {
            return Err(FreeRangesError::AlreadyFree(free));
        }
        let count = more.checked_add(1).and_then(|more| self.count.checked_add(more));
        self.count = count.ok_or(FreeRangesError::Uncountable)?;
        self.ranges.insert(first..=last);
        Ok(())
    }

    /// The free numbers of a range, as ranges.
    fn met(&self, range: RangeInclusive<u128>) -> impl Iterator<Item = RangeInclusive<u128>> + '_ {
        let (first, last) = range.clone().into_inner();
        self.ranges.overlapping(range).map(move |met| *met.start().max(&first)..=*met.end().min(&last))
    }
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
            free.add_range(first, last).unwrap();
        }
        free
    }

    #[test]
    fn freed_numbers_join_the_adjacent_ranges() {
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
                before.add(number).unwrap();
            }
            assert_eq!(before, free(after));
        }
    }

    #[test]
    fn a_number_is_taken_from_each_position_of_a_range() {
        for (first, last) in [(1, 3), (0, 1023), (100, 900)] {
            for number in [first, first + 1, last] {
                let mut before = free(&[(first, last)]);
                before.take(number).unwrap();
                assert_eq!(before.take(number), Err(FreeRangesError::NotFree(number)));
                let mut after = FreeRanges::default();
                if first < number {
                    after.add_range(first, number - 1).unwrap();
                }
                after.add_range(number + 1, last).unwrap();
                assert_eq!(before, after);
                before.add(number).unwrap();
                assert_eq!(before, free(&[(first, last)]));
            }
        }
    }

    #[test]
    fn the_lowest_and_the_highest_number_can_be_taken_and_added() {
        let mut ends = free(&[(0, 0), (u128::MAX, u128::MAX)]);
        assert_eq!(ends.take_lowest(), Some(0));
        ends.take(u128::MAX).unwrap();
        assert_eq!(ends, FreeRanges::default());
        ends.add(u128::MAX).unwrap();
        ends.add(u128::MAX - 1).unwrap();
        ends.add(0).unwrap();
        assert_eq!(ends, free(&[(0, 0), (u128::MAX - 1, u128::MAX)]));
        assert_eq!((ends.lowest_from(1), ends.lowest_from(u128::MAX)), (Some(u128::MAX - 1), Some(u128::MAX)));
        ends.take_range(0, u128::MAX);
        assert_eq!(ends, FreeRanges::default());
    }

    #[test]
    fn all_numbers_except_one_can_be_free_but_not_all_numbers() {
        let mut most = free(&[(1, u128::MAX)]);
        assert_eq!(most.count(), u128::MAX);
        assert_eq!(most.add(0), Err(FreeRangesError::Uncountable));
        assert_eq!(FreeRanges::default().add_range(0, u128::MAX), Err(FreeRangesError::Uncountable));
        assert_eq!(most, free(&[(1, u128::MAX)]));
        most.take(2).unwrap();
        most.add(0).unwrap();
        assert_eq!(most.count(), u128::MAX);
    }

    #[test]
    fn a_number_that_is_already_free_is_reported_and_nothing_is_changed() {
        let mut some = free(&[(5, 6)]);
        for (first, last, named) in [(5, 5, 5), (1, 5, 5), (6, 9, 6), (1, 9, 5)] {
            assert_eq!(some.add_range(first, last), Err(FreeRangesError::AlreadyFree(named)));
        }
        assert_eq!(some, free(&[(5, 6)]));
    }

    #[test]
    fn a_space_that_is_filled_and_emptied_in_order_stays_one_range() {
        let mut space = free(&[(0, 9999)]);
        for number in 0..10_000 {
            assert_eq!(space.take_lowest(), Some(number));
            assert!(space.ranges.len() <= 1);
        }
        for number in (0..10_000).rev() {
            space.add(number).unwrap();
            assert_eq!(space.ranges.len(), 1);
        }
    }

    #[test]
    fn the_first_million_numbers_of_a_slash_8_and_of_a_slash_64_are_taken_in_order() {
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
        Add(u128, u128),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Small numbers are more likely, so that many steps concern the same numbers.
        let number = prop_oneof![0..64_u128, 0..1024_u128];
        prop_oneof![
            number.clone().prop_map(Step::Take),
            Just(Step::TakeLowest),
            (number.clone(), 0..400_u128).prop_map(|(first, more)| Step::TakeRange(first, first + more)),
            (number, prop_oneof![Just(0), 0..400_u128]).prop_map(|(first, more)| Step::Add(first, first + more)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn free_ranges_agree_with_a_plain_set_after_any_steps(steps in prop::collection::vec(step(), 0..60)) {
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
                    Step::Add(first, last) => {
                        let taken = model.range(first..=last).next().copied();
                        let expected = taken.map_or(Ok(()), |number| Err(FreeRangesError::AlreadyFree(number)));
                        prop_assert_eq!(ours.add_range(first, last), expected);
                        if taken.is_none() {
                            model.extend(first..=last);
                        }
                    }
                }
                prop_assert_eq!((ours.count(), ours.lowest()), (model.len() as u128, model.first().copied()));
            }
            prop_assert!((0..1500).all(|number| ours.contains(number) == model.contains(&number)));
            prop_assert!((0..1500).all(|number| ours.lowest_from(number) == model.range(number..).next().copied()));
            // The value depends only on the free numbers, not on the steps that led to them.
            let mut again = FreeRanges::default();
            for &number in &model {
                again.add(number).unwrap();
            }
            prop_assert_eq!(&ours, &again);
        }
    }
}

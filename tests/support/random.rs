//! Random numbers for tests of both packages.

#![allow(dead_code, unreachable_pub, reason = "each test program uses other functions")]

/// The random number generator SplitMix64. Its code is short, and a seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

// === impl Random ===

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, or zero if `limit` is zero. The bias of the remainder is negligible in tests.
    pub(crate) fn number(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// Returns a number below `limit`, or zero if `limit` is zero.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.number(limit as u64) as usize
    }

    /// Returns a number from `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.number(most - least + 1)
    }

    /// Returns true with probability `of` in `out_of`.
    pub(crate) fn chance(&mut self, of: u64, out_of: u64) -> bool {
        self.number(out_of) < of
    }

    /// Returns a number from `least` to `most` with probability 1 in `out_of`.
    pub(crate) fn maybe(&mut self, out_of: u64, least: u64, most: u64) -> Option<u64> {
        self.chance(1, out_of).then(|| self.between(least, most))
    }

    /// Returns a number from `least` to `most` with probability 1 in `out_of`, and else zero.
    pub(crate) fn one_in(&mut self, out_of: u64, least: u64, most: u64) -> u64 {
        self.maybe(out_of, least, most).unwrap_or(0)
    }

    /// Returns an item. There must be an item.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Returns an item, or `None` if there is no item.
    pub(crate) fn one_of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() { None } else { Some(self.pick(items)) }
    }

    /// Returns a choice. The number of each choice is its weight.
    pub(crate) fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let mut at = self.number(choices.iter().map(|(weight, _)| weight).sum());
        for (weight, choice) in choices {
            if at < *weight {
                return *choice;
            }
            at -= weight;
        }
        unreachable!("the sum of the weights is the limit")
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

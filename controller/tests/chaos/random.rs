//! Random numbers from a seed (SplitMix64). A run with the same seed makes the same choices, but the answers of the
//! programs may come at other times.

#[derive(Clone, Debug)]
pub struct Random(u64);

// === impl Random ===

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    /// Returns a random choice. The number of each choice is its weight.
    pub fn weighted<T: Copy>(&mut self, choices: &[(usize, T)]) -> T {
        let mut at = self.below(choices.iter().map(|(weight, _)| weight).sum());
        for (weight, choice) in choices {
            if at < *weight {
                return *choice;
            }
            at -= weight;
        }
        unreachable!("the sum of the weights is the limit")
    }

    pub fn of<'t, T>(&mut self, items: &'t [T]) -> Option<&'t T> {
        if items.is_empty() { None } else { Some(&items[self.below(items.len())]) }
    }
}

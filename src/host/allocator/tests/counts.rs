//! Tests how addresses are counted by namespace. The order of waiting machines and the share of a namespace depend on
//! these counts.

use super::*;
use crate::host::allocator::pool_state::{Counts, Recorders};

const NAMESPACES: [&str; 3] = ["a", "b", "c"];

/// Numbers from a linear congruential generator.
struct Random(u64);

// === impl Random ===

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    /// One of two pools of a network, with random addresses and namespaces. The addresses of the two pools may overlap.
    fn pool(&mut self) -> Pool {
        let name = ["one", "two"][self.below(2)];
        let first = [10, 14, 30][self.below(3)];
        let text = format!("addresses: [10.0.0.{first}-10.0.0.{}], machineNetwork: [{{cidr: 10.0.0.0/24}}]", first + 9);
        let namespaces: Vec<&str> = NAMESPACES.into_iter().filter(|_| self.below(2) == 0).collect();
        let of = || Namespaces::only(namespaces.iter().copied());
        on("vlan10", name, &text).with_namespaces(of(), of())
    }

    fn machine(&mut self) -> Machine {
        Machine::new(NAMESPACES[self.below(3)], format!("w-{}", self.below(8)), "1")
    }

    fn address(&mut self) -> String {
        format!("10.0.0.{}/24", 10 + self.below(30))
    }
}

/// Counts the held addresses of a pool, and the addresses that records reserve, from each lease and each record.
fn counted(allocator: &Allocator, name: &str) -> (Counts<String>, Counts<Recorders>) {
    let pool = |name: &str| allocator.pools.get(name).map(|state| state.pool());
    let (mut held, mut all) = (Counts::new(), Counts::new());
    for (_, address, lease) in allocator.leases() {
        let machine = &lease.claimant.machine;
        let having: Vec<&str> =
            allocator.pools.keys().map(|name| &**name).filter(|name| pool(name).unwrap().contains(address)).collect();
        let serving = having.iter().copied().filter(|name| pool(name).unwrap().serves_holder(machine));
        let serving: Vec<&str> = serving.collect();
        let counts = match (&serving[..], &having[..]) {
            ([], []) => &*lease.pool == name,
            ([], having) => having.contains(&name),
            (serving, _) => serving.contains(&name),
        };
        if counts {
            *held.entry((Family::of(address), machine.namespace.clone())).or_default() += 1;
        }
    }
    let mut recorded = BTreeSet::new();
    for (_, address, conflict) in allocator.conflicts() {
        if pool(name).is_some_and(|pool| pool.contains(address)) {
            recorded.insert((address, Recorders::of(&conflict.claimant.machine)));
        }
    }
    for (address, recorders) in recorded {
        *all.entry((Family::of(address), recorders)).or_default() += 1;
    }
    (held, all)
}

#[test]
fn the_counts_of_each_namespace_equal_its_leases_and_records_in_random_histories() {
    let (mut held, mut recorded) = (0, 0);
    for seed in 0..40 {
        let (mut random, mut allocator) = (Random(seed), allocator([], []));
        for now in 0..60 {
            match random.below(5) {
                0 => {
                    drop(allocator.resize(vec![random.pool()], &[], at(now), &mut Journal::default()));
                    allocator.open_growths(u64::MAX);
                }
                1 => drop(allocator.release(&random.machine(), at(now), &mut Journal::default())),
                2 => {
                    let mut record = record("", &random.address());
                    record.claimant.machine = random.machine();
                    drop(allocator.adopt([record], at(now), &mut Journal::default()));
                }
                _ => {
                    let pools = [["n/one"], ["n/two"]][random.below(2)];
                    let claim = Claim { machine: random.machine(), ..claim("", "1", &pools) };
                    drop(allocator.claim(&claim, at(now), &mut Journal::default()));
                }
            }
            for (name, state) in &allocator.pools {
                let counts = (state.held.clone(), state.recorded.clone());
                assert_eq!(counts, counted(&allocator, name), "seed {seed}, step {now}, {name}");
                (held, recorded) = (held + state.held.len(), recorded + state.recorded.len());
            }
        }
    }
    assert!(held > 500 && recorded > 500, "{held} and {recorded}, expected histories with leases and records");
}

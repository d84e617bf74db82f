use std::fmt::Write as _;

use glowplug::host::pool::Namespaces;
use kube::api::ObjectMeta;

use super::*;
use crate::kinds::guest::Reported;
use crate::kinds::pool::{MachineNetwork, PoolSpec};
use crate::pools::facts::PoolObject;
use crate::pools::selection::MachinePool;

pub(in crate::reports) fn key(name: &str) -> Key {
    let (namespace, name) = name.split_once('/').unwrap();
    Key { namespace: namespace.to_owned(), name: name.to_owned() }
}

/// A pool that serves only the namespace in its name.
pub(in crate::reports) fn pool(name: &str, network: &str, addresses: &[&str], excluded: &[&str]) -> Pool {
    let texts = |texts: &[&str]| -> Vec<String> { texts.iter().map(|text| (*text).to_owned()).collect() };
    let (network, addresses, excluded_addresses) = (network.to_owned(), texts(addresses), texts(excluded));
    pool_of(name, PoolSpec { network, addresses, excluded_addresses, ..PoolSpec::default() })
}

fn pool_of(name: &str, spec: PoolSpec) -> Pool {
    let machine_network = ["10.0.0.0/16", "fd00::/64"].map(|cidr| MachineNetwork { cidr: cidr.to_owned() }).into();
    let spec = PoolSpec { machine_network, ..spec };
    let Key { namespace, name } = key(name);
    let namespaces = || Namespaces::only([namespace.clone()]);
    let metadata = ObjectMeta { namespace: Some(namespace.clone()), name: Some(name), ..ObjectMeta::default() };
    let pool = MachinePool::read(PoolObject { metadata, spec: Ok(spec), status: None });
    pool.pool.unwrap().with_namespaces(namespaces(), namespaces())
}

/// A guest in the phase Running that reports these addresses on the network `n/net`.
pub(in crate::reports) fn guest(addresses: &[&str]) -> Guest {
    on(&[("n/net", addresses)])
}

fn on(networks: &[(&str, &[&str])]) -> Guest {
    let networks = networks.iter().map(|(network, addresses)| ((*network).to_owned(), reported("eth0", addresses)));
    Guest { uid: "u".to_owned(), life: Life::Running, networks: networks.collect(), inside: BTreeSet::new() }
}

/// A whole report of an interface of this name.
fn reported(name: &str, addresses: &[&str]) -> Reported {
    let row = |address: &&str| (address.parse().unwrap(), Some(Arc::from(name)));
    Reported { addresses: addresses.iter().map(row).collect(), is_whole: true }
}

/// A guest whose VLAN has the MAC address of its interface, so that KubeVirt shows the name of the VLAN.
fn with_vlan(addresses: &[&str]) -> Guest {
    Guest { networks: [("n/net".to_owned(), reported("eth0.100", addresses))].into(), ..guest(&[]) }
}

/// A guest whose agent is not connected.
fn silent() -> Guest {
    let mut guest = guest(&[]);
    guest.networks.get_mut("n/net").unwrap().is_whole = false;
    guest
}

/// The inputs of [`Reservations`]. Each method returns the resulting changes of the reservations.
trait Change {
    fn learn(&mut self, key: &Key, guest: &Guest, now: Instant) -> Changes;
    fn lose(&mut self, key: &Key) -> Changes;
    fn give(&mut self, pools: Vec<Pool>) -> Changes;
    fn wait(&mut self, now: Instant) -> Changes;
}

impl Change for Reservations {
    fn learn(&mut self, key: &Key, guest: &Guest, now: Instant) -> Changes {
        self.apply(key, guest, now);
        self.take_changes()
    }

    fn lose(&mut self, key: &Key) -> Changes {
        self.remove(key);
        self.take_changes()
    }

    fn give(&mut self, pools: Vec<Pool>) -> Changes {
        self.set_pools(pools);
        self.take_changes()
    }

    fn wait(&mut self, now: Instant) -> Changes {
        self.expire(now);
        self.take_changes()
    }
}

/// The changes as text: `+` before a reservation that has begun, and `-` before a reservation that has ended.
fn text(changes: &Changes) -> String {
    let mut all: Vec<_> =
        changes.begun.iter().map(|it| ('+', it)).chain(changes.ended.iter().map(|it| ('-', it))).collect();
    all.sort_by_key(|(sign, it)| ((*it).clone(), *sign));
    let mut text = String::new();
    for (sign, Reservation { place, .. }) in all {
        write!(text, "{sign}{} {} ", place.guest, place.address).unwrap();
    }
    text.trim_end().to_owned()
}

/// Reservations with the pool `n/p` for the namespace `n`. The pool has the addresses 10.0.0.1 to 10.0.0.`last` and
/// fd00::/120.
fn reservations(last: u8) -> Reservations {
    let mut reservations = Reservations::default();
    let changes =
        reservations.give(vec![pool("n/p", "n/net", &[&format!("10.0.0.1-10.0.0.{last}"), "fd00::/120"], &[])]);
    assert_eq!(changes, Changes::default());
    reservations
}

fn reserved(reservations: &Reservations) -> Vec<String> {
    let mut all = Vec::new();
    for (key, known) in &reservations.guests {
        for (address, tracked) in known.networks.values().flatten() {
            all.extend(tracked.standing.is_reserved().then(|| format!("{key} {address}")));
        }
    }
    all
}

#[test]
fn a_reservation_begins_when_a_running_guest_reports_an_address() {
    let (mut reservations, now, w) = (reservations(99), Instant::now(), key("n/w"));
    let pending = Guest { life: Life::Starting, ..guest(&["10.0.0.8"]) };
    assert_eq!(reservations.learn(&w, &pending, now), Changes::default());
    let changes = reservations.learn(&w, &guest(&["10.0.0.8", "10.0.1.8", "fe80::1"]), now);
    assert_eq!(text(&changes), "+n/w 10.0.0.8");
    assert_eq!(changes.begun[0].uid, "u");
    // If the guest repeats its report, nothing changes.
    assert_eq!(reservations.learn(&w, &guest(&["10.0.0.8"]), now), Changes::default());
    // The other network has no pool, so nothing is reserved there.
    assert_eq!(text(&reservations.learn(&key("n/v"), &on(&[("n/other", &["10.0.0.9"])]), now)), "");
}

#[test]
fn a_reservation_ends_with_its_instance() {
    let (mut reservations, now, w) = (reservations(99), Instant::now(), key("n/w"));
    reservations.learn(&w, &guest(&["10.0.0.8"]), now);
    assert_eq!(text(&reservations.lose(&w)), "-n/w 10.0.0.8");
    assert_eq!(reservations.lose(&w), Changes::default());
    reservations.learn(&w, &guest(&["10.0.0.8"]), now);
    let ended = Guest { life: Life::Ended, ..guest(&["10.0.0.8"]) };
    assert_eq!(text(&reservations.learn(&w, &ended, now)), "-n/w 10.0.0.8");
    reservations.learn(&w, &guest(&["10.0.0.8"]), now);
    // An instance of the same name with another UID is another guest.
    let next = Guest { uid: "u-2".to_owned(), life: Life::Starting, ..guest(&["10.0.0.8"]) };
    assert_eq!(text(&reservations.learn(&w, &next, now)), "-n/w 10.0.0.8");
    let next = Guest { life: Life::Running, ..next };
    assert_eq!(reservations.learn(&w, &next, now).begun[0].uid, "u-2");
}

#[test]
fn a_disconnected_agent_ends_no_reservation() {
    let (mut reservations, now, w) = (reservations(99), Instant::now(), key("n/w"));
    reservations.learn(&w, &guest(&["10.0.0.8"]), now);
    let starting = Guest { life: Life::Starting, ..guest(&[]) };
    for silent in [silent(), on(&[]), on(&[("n/other", &[])]), starting] {
        assert_eq!(reservations.learn(&w, &silent, now), Changes::default());
        assert_eq!((reservations.next_end(), reservations.wait(now + 10 * ABSENCE)), (None, Changes::default()));
    }
}

#[test]
fn a_reservation_ends_if_the_guest_reports_only_other_addresses_for_ten_minutes() {
    let (mut reservations, start, w) = (reservations(99), Instant::now(), key("n/w"));
    let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
    reservations.learn(&w, &guest(&["10.0.0.8", "10.0.0.9"]), at(0));
    assert_eq!(reservations.learn(&w, &guest(&["10.0.0.9"]), at(1)), Changes::default());
    assert_eq!(reservations.next_end(), Some(at(11)));
    // A further report without the address does not restart the ten minutes. If the agent is disconnected, the ten
    // minutes are cancelled.
    reservations.learn(&w, &guest(&["10.0.0.9"]), at(5));
    assert_eq!(
        (reservations.next_end(), reservations.wait(at(11) - Duration::from_nanos(1))),
        (Some(at(11)), Changes::default())
    );
    reservations.learn(&w, &silent(), at(6));
    assert_eq!((reservations.next_end(), reservations.wait(at(20))), (None, Changes::default()));
    reservations.learn(&w, &guest(&["10.0.0.9"]), at(20));
    reservations.learn(&w, &guest(&["10.0.0.8", "10.0.0.9"]), at(29));
    assert_eq!((reservations.next_end(), reservations.wait(at(40))), (None, Changes::default()));
    reservations.learn(&w, &guest(&["10.0.0.9"]), at(40));
    assert_eq!(text(&reservations.wait(at(50))), "-n/w 10.0.0.8");
    assert_eq!((reservations.next_end(), reserved(&reservations)), (None, vec!["n/w 10.0.0.9".to_owned()]));
    // When the instance ends, the reservations of absent addresses end, too.
    reservations.learn(&w, &guest(&["10.0.0.20"]), at(51));
    assert_eq!(reservations.next_end(), Some(at(61)));
    assert_eq!(text(&reservations.lose(&w)), "-n/w 10.0.0.9 -n/w 10.0.0.20");
    assert_eq!(reservations.next_end(), None);
}

#[test]
fn an_address_stays_reserved_while_another_interface_of_its_mac_address_may_hide_it() {
    let (mut reservations, now, w) = (reservations(99), Instant::now(), key("n/w"));
    reservations.learn(&w, &guest(&["10.0.0.8"]), now);
    let without = [
        with_vlan(&["172.16.0.5"]),
        with_vlan(&[]),
        guest(&[]),
        guest(&["fd01::8"]),
        // No pool has this address. It may be the address of a second VLAN that has given the entry its name.
        guest(&["172.16.0.5"]),
        // The entry has the name of the VLAN, even with the address of the interface.
        with_vlan(&["10.0.0.8"]),
        with_vlan(&["172.16.0.5"]),
    ];
    for report in without {
        assert_eq!(reservations.learn(&w, &report, now), Changes::default());
        assert_eq!(reservations.wait(now + 10 * ABSENCE), Changes::default());
    }
    reservations.learn(&w, &guest(&["10.0.0.9"]), now);
    assert_eq!(text(&reservations.wait(now + ABSENCE)), "-n/w 10.0.0.8");
}

#[test]
fn a_hidden_address_that_no_pool_has_is_reserved_when_a_pool_gets_it() {
    let (mut reservations, now, w) = (Reservations::default(), Instant::now(), key("n/w"));
    reservations.learn(&w, &guest(&["10.0.0.8"]), now);
    reservations.learn(&w, &with_vlan(&["172.16.0.5"]), now);
    assert_eq!(reservations.wait(now + 10 * ABSENCE), Changes::default());
    let pool = || pool("n/p", "n/net", &["10.0.0.1-10.0.0.99"], &[]);
    assert_eq!(text(&reservations.give(vec![pool()])), "+n/w 10.0.0.8");
    // While no pool has the address, any other address replaces it, but not when a pool has it again.
    assert_eq!(text(&reservations.give(vec![])), "-n/w 10.0.0.8");
    reservations.learn(&w, &guest(&["172.16.0.5"]), now);
    assert_eq!(text(&reservations.give(vec![pool()])), "+n/w 10.0.0.8");
    assert_eq!((reservations.next_end(), reservations.wait(now + ABSENCE)), (None, Changes::default()));
}

#[test]
fn a_pool_that_serves_only_the_namespace_of_a_guest_reserves_256_addresses_for_it() {
    let mut reservations = Reservations::default();
    reservations.give(vec![pool("n/p", "n/net", &["10.0.0.0/22"], &[])]);
    let now = Instant::now();
    let texts: Vec<String> = (0..400).map(|n: usize| format!("10.0.{}.{}", 1 + n / 200, 1 + n % 200)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(reservations.learn(&key("n/w"), &guest(&texts[..200]), now).begun.len(), 200);
    assert_eq!(reservations.learn(&key("n/w"), &guest(&texts), now).begun.len(), 56);
    // Absent addresses count in the limit, too.
    assert_eq!(reservations.learn(&key("n/w"), &guest(&texts[300..]), now), Changes::default());
    assert_eq!(reservations.wait(now + ABSENCE).ended.len(), 256);
    assert_eq!(reservations.beyond(), BTreeMap::new());
}

#[test]
fn a_pool_of_another_namespace_reserves_four_addresses_per_family_of_a_guest() {
    let (mut reservations, now, lying) = (reservations(99), Instant::now(), key("evil/w"));
    let first = ["10.0.0.15", "10.0.0.16", "10.0.0.17", "fd00::15"];
    assert_eq!(reservations.learn(&lying, &guest(&first), now).begun.len(), 4);
    let more = ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2", "fd00::3", "fd00::4", "10.9.9.9"];
    let all: Vec<&str> = first.into_iter().chain(more).collect();
    let changes = reservations.learn(&lying, &guest(&all), now);
    assert_eq!(text(&changes), "+evil/w 10.0.0.1 +evil/w fd00::1 +evil/w fd00::2 +evil/w fd00::3");
    let beyond = |addresses| Beyond { addresses, guests: 1, first: vec![key("evil/w")] };
    assert_eq!(reservations.beyond(), [("n/p".to_owned(), beyond(2))].into());
    // The first addresses stay reserved. When one of these reservations ends, the next address is reserved.
    reservations.learn(&lying, &guest(&all[1..]), now);
    assert_eq!(text(&reservations.wait(now + ABSENCE)), "+evil/w 10.0.0.2 -evil/w 10.0.0.15");
    assert_eq!(reservations.beyond(), [("n/p".to_owned(), beyond(1))].into());
    reservations.lose(&lying);
    assert_eq!((reservations.beyond(), reservations.queues.len(), reservations.absent.len()), (BTreeMap::new(), 0, 0));
}

#[test]
fn one_namespace_reserves_at_most_a_quarter_of_a_pool_that_does_not_serve_it() {
    // The pool has 40 IPv4 addresses.
    let (mut reservations, now) = (reservations(40), Instant::now());
    let three = |first: u8| {
        let texts: Vec<String> = (first..first + 3).map(|last| format!("10.0.0.{last}")).collect();
        guest(&texts.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for (name, first) in [("evil/a", 1), ("evil/b", 4), ("evil/c", 7)] {
        assert_eq!(reservations.learn(&key(name), &three(first), now).begun.len(), 3);
    }
    assert_eq!(text(&reservations.learn(&key("evil/d"), &three(10), now)), "+evil/d 10.0.0.10");
    assert_eq!(text(&reservations.learn(&key("evil/e"), &three(13), now)), "");
    // Another namespace has a share of its own. The namespace of the pool has no bound.
    assert_eq!(reservations.learn(&key("other/a"), &three(20), now).begun.len(), 3);
    assert_eq!(reservations.learn(&key("n/a"), &three(30), now).begun.len(), 3);
    let first = vec![key("evil/d"), key("evil/e")];
    assert_eq!(reservations.beyond(), [("n/p".to_owned(), Beyond { addresses: 5, guests: 2, first })].into());
    let ended = "-evil/a 10.0.0.1 -evil/a 10.0.0.2 -evil/a 10.0.0.3";
    let begun = "+evil/d 10.0.0.11 +evil/d 10.0.0.12 +evil/e 10.0.0.13";
    assert_eq!(text(&reservations.lose(&key("evil/a"))), format!("{ended} {begun}"));
}

#[test]
fn exclusions_and_gateways_of_a_pool_do_not_change_the_share_of_another_namespace() {
    let (mut reservations, now) = (Reservations::default(), Instant::now());
    let of_eight = |reserved: PoolSpec| {
        let addresses = vec!["10.0.0.1-10.0.0.8".to_owned()];
        pool_of("n/p", PoolSpec { network: "n/net".to_owned(), addresses, ..reserved })
    };
    let keeping = |kept: &[(&str, &str)]| {
        let kept = kept.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned()));
        of_eight(PoolSpec { pre_allocations: kept.collect(), ..PoolSpec::default() })
    };
    reservations.give(vec![of_eight(PoolSpec::default())]);
    assert_eq!(
        text(&reservations.learn(&key("o/a"), &guest(&["10.0.0.1", "10.0.0.2"]), now)),
        "+o/a 10.0.0.1 +o/a 10.0.0.2"
    );
    assert_eq!(text(&reservations.learn(&key("o/b"), &guest(&["10.0.0.3"]), now)), "");
    for kept in [&[("n/w", "10.0.0.8")][..], &[("n/w", "10.0.0.8"), ("o/a", "10.0.0.2")]] {
        assert_eq!(text(&reservations.give(vec![keeping(kept)])), "");
        assert_eq!(reserved(&reservations), ["o/a 10.0.0.1", "o/a 10.0.0.2"]);
    }
    let texts = |text: &str| vec![text.to_owned()];
    for others in [
        PoolSpec { excluded_addresses: texts("10.0.0.3-10.0.0.8"), ..PoolSpec::default() },
        PoolSpec { gateway: texts("10.0.0.7"), nameservers: texts("10.0.0.8"), ..PoolSpec::default() },
    ] {
        assert_eq!(text(&reservations.give(vec![of_eight(others)])), "");
        assert_eq!(reserved(&reservations), ["o/a 10.0.0.1", "o/a 10.0.0.2"]);
    }
}

#[test]
fn a_small_pool_reserves_one_address_of_another_namespace() {
    let mut reservations = Reservations::default();
    reservations.give(vec![pool("n/p", "n/net", &["10.0.0.8-10.0.0.9"], &[])]);
    let changes = reservations.learn(&key("evil/w"), &guest(&["10.0.0.8", "10.0.0.9"]), Instant::now());
    assert_eq!(text(&changes), "+evil/w 10.0.0.8");
}

#[test]
fn an_address_outside_all_pools_does_not_count_and_an_excluded_address_is_reserved() {
    let mut reservations = Reservations::default();
    reservations.give(vec![pool("n/p", "n/net", &["10.0.0.1-10.0.0.40"], &["10.0.0.1-10.0.0.20"])]);
    let now = Instant::now();
    let outside: Vec<String> = (50..=70).map(|last| format!("10.0.0.{last}")).collect();
    let outside: Vec<&str> = outside.iter().map(String::as_str).collect();
    assert_eq!(text(&reservations.learn(&key("evil/w"), &guest(&outside), now)), "");
    let all: Vec<&str> = outside.iter().copied().chain(["10.0.0.8", "10.0.0.30"]).collect();
    assert_eq!(text(&reservations.learn(&key("evil/w"), &guest(&all), now)), "+evil/w 10.0.0.8 +evil/w 10.0.0.30");
}

#[test]
fn a_pool_with_addresses_of_another_program_reserves_reported_addresses_within_the_bounds() {
    let spec = serde_json::json!({
        "network": "n/net", "addressesFrom": {"ipamClaim": {}}, "gateway": ["10.0.0.1"], "machineSelector": {},
        "machineNetwork": [{"cidr": "10.0.0.0/16"}],
    });
    let spec: PoolSpec = serde_json::from_value(spec).unwrap();
    let namespaces = || Namespaces::only(["n".to_owned()]);
    let pool = spec.check(Some("n"), "p").0.unwrap().with_namespaces(namespaces(), namespaces());
    let (mut reservations, now) = (Reservations::default(), Instant::now());
    reservations.give(vec![pool]);
    let lie = |at: usize| -> Vec<String> { (10..20).map(|last: usize| format!("10.0.{at}.{last}")).collect() };
    let learn = |reservations: &mut Reservations, name: &str, at: usize| {
        let texts = lie(at);
        reservations.learn(&key(name), &guest(&texts.iter().map(String::as_str).collect::<Vec<_>>()), now).begun.len()
    };
    assert_eq!(text(&reservations.learn(&key("n/router"), &guest(&["10.0.0.1"]), now)), "");
    assert_eq!(learn(&mut reservations, "n/w", 1), 10);
    // For guests of another namespace the bound is constant, because the size of the pool is unknown.
    let begun: Vec<usize> = (2..20).map(|at| learn(&mut reservations, &format!("evil/w-{at}"), at)).collect();
    assert_eq!((begun[0], begun.iter().sum::<usize>()), (4, 64));
}

#[test]
fn a_pool_that_serves_claims_of_every_namespace_limits_reports_from_other_namespaces() {
    let (mut reservations, now) = (Reservations::default(), Instant::now());
    let global = pool("n/p", "n/net", &["10.0.0.1-10.0.0.99"], &[]);
    reservations.give(vec![global.with_namespaces(Namespaces::only(None::<String>), Namespaces::every())]);
    let texts: Vec<String> = (1..=9).map(|last| format!("10.0.0.{last}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(reservations.learn(&key("evil/w"), &guest(&texts), now).begun.len(), 4);
    assert_eq!(reservations.learn(&key("n/w"), &guest(&texts), now).begun.len(), 9);
}

#[test]
fn a_pool_of_several_namespaces_reserves_one_address_for_each_guest_and_a_few_more() {
    let (mut reservations, now) = (Reservations::default(), Instant::now());
    let both = || Namespaces::only(["n", "evil"]);
    // The namespace of the pool has no guest, as with a GlobalStaticIPPool.
    let common = pool("x/p", "n/net", &["10.0.0.1-10.0.0.40"], &[]).with_namespaces(both(), both());
    reservations.give(vec![common]);
    let all: Vec<String> = (1..=40).map(|last| format!("10.0.0.{last}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    // A guest with false reports reserves its own address and four further addresses.
    assert_eq!(reservations.learn(&key("evil/w-0"), &guest(&all), now).begun.len(), 5);
    // Each guest of the namespace reserves one address. In addition, all of them together reserve at most a quarter of
    // the pool.
    let begun: Vec<usize> =
        (1..6).map(|at| reservations.learn(&key(&format!("evil/w-{at}")), &guest(&all), now).begun.len()).collect();
    assert_eq!(begun, [5, 3, 1, 1, 1]);
    // Each guest of another namespace still reserves its own address.
    let honest =
        (1..=40).map(|at| reservations.learn(&key(&format!("n/w-{at}")), &guest(&all[at - 1..at]), now).begun.len());
    assert_eq!(honest.sum::<usize>(), 40);
    // When a guest is gone, other guests can reserve as many addresses as this guest had in the share.
    assert_eq!(reservations.lose(&key("evil/w-0")).begun.len(), 4);
    let beyond: Vec<String> = reservations.beyond().into_keys().collect();
    assert_eq!(beyond, ["x/p"]);
    for at in 1..=40 {
        reservations.lose(&key(&format!("n/w-{at}")));
    }
    (1..6).for_each(|at| drop(reservations.lose(&key(&format!("evil/w-{at}")))));
    assert_eq!((reservations.guests.len(), reservations.queues.len(), reservations.beyond.len()), (0, 0, 0));
}

#[test]
fn reported_addresses_are_reserved_when_their_pool_is_created_later() {
    let (mut reservations, now) = (Reservations::default(), Instant::now());
    let addresses: Vec<String> = (1..=9).map(|last| format!("10.0.0.{last}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    reservations.learn(&key("n/w"), &guest(&addresses[..2]), now);
    reservations.learn(&key("evil/w"), &guest(&addresses[2..]), now);
    assert_eq!(reserved(&reservations), [""; 0]);
    let of_n = |addresses: &[&str]| pool("n/p", "n/net", addresses, &[]);
    let begun = "+evil/w 10.0.0.3 +evil/w 10.0.0.4 +evil/w 10.0.0.5 +evil/w 10.0.0.6 +n/w 10.0.0.1 +n/w 10.0.0.2";
    assert_eq!(text(&reservations.give(vec![of_n(&["10.0.0.1-10.0.0.99"])])), begun);
    assert_eq!(reservations.give(vec![of_n(&["10.0.0.1-10.0.0.99"])]), Changes::default());
    // A pool on another network changes nothing. If a pool loses addresses, the reservations of these addresses end.
    let other = || pool("n/q", "n/other", &["10.0.0.1-10.0.0.99"], &[]);
    assert_eq!(reservations.give(vec![of_n(&["10.0.0.1-10.0.0.99"]), other()]), Changes::default());
    let ended = "-evil/w 10.0.0.4 -evil/w 10.0.0.5 -evil/w 10.0.0.6";
    assert_eq!(text(&reservations.give(vec![of_n(&["10.0.0.1-10.0.0.3"]), other()])), ended);
    // From now on the pool serves every namespace, so every address is reserved.
    let both =
        pool("n/p", "n/net", &["10.0.0.1-10.0.0.99"], &[]).with_namespaces(Namespaces::every(), Namespaces::every());
    assert_eq!(reservations.give(vec![both]).begun.len(), 6);
    assert_eq!(reservations.beyond(), BTreeMap::new());
    assert_eq!(reservations.give(vec![]).ended.len(), 9);
}

#[test]
fn false_reports_of_many_guests_stay_within_the_bounds_and_leave_no_entries_behind() {
    let mut reservations = Reservations::default();
    reservations.give(vec![pool("n/p", "n/net", &["10.0.0.0/16"], &[])]);
    let now = Instant::now();
    let lie = |at: usize| {
        let texts: Vec<String> = (0..256).map(|n: usize| format!("10.0.{}.{}", at % 250 + 1, n)).collect();
        guest(&texts.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for at in 0..1000 {
        let name = Key { namespace: format!("evil-{}", at % 2), name: format!("w-{at}") };
        reservations.learn(&name, &lie(at), now);
        reservations.learn(&name, &lie(at + 1), now);
    }
    let tracked = reservations.guests.values().flat_map(|known| known.networks.values()).map(BTreeMap::len);
    assert_eq!(tracked.max(), Some(MOST_REPORTED));
    assert_eq!(reserved(&reservations).len(), 4000);
    assert_eq!(reservations.beyond()["n/p"].guests, 1000);
    for at in 0..1000 {
        reservations.lose(&Key { namespace: format!("evil-{}", at % 2), name: format!("w-{at}") });
    }
    assert_eq!(
        (reservations.guests.len(), reservations.queues.len(), reservations.absent.len(), reservations.beyond.len()),
        (0, 0, 0, 0)
    );
}

#[test]
fn an_object_without_a_network_reserves_its_addresses_on_each_network_with_a_pool_that_has_them() {
    let start = Instant::now();
    let mut reservations = Reservations::default();
    let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<BTreeSet<IpAddr>>();
    let rows = |reservations: &[Reservation]| -> Vec<String> {
        let row = |Reservation { place, uid }: &Reservation| format!("{} {} {uid}", place.network, place.address);
        reservations.iter().map(row).collect()
    };
    let changed = |reservations: &mut Reservations| {
        let changes = reservations.take_changes();
        (rows(&changes.begun), rows(&changes.ended))
    };
    let none = || (Vec::<String>::new(), Vec::<String>::new());
    let row = |text: &str| vec![text.to_owned()];
    reservations.apply_anywhere(&key("n/web"), "u", addresses(&["10.0.0.8", "10.0.9.9"]));
    assert_eq!(changed(&mut reservations), none());
    let pools = |second: &[&str]| vec![pool("n/a", "n/one", &["10.0.0.0/24"], &[]), pool("n/b", "n/two", second, &[])];
    reservations.set_pools(pools(&["10.0.0.0/28"]));
    assert_eq!(
        changed(&mut reservations),
        (vec!["n/one 10.0.0.8 u".to_owned(), "n/two 10.0.0.8 u".to_owned()], vec![])
    );
    // The pool of the network `n/two` now has the other address of the object.
    reservations.set_pools(pools(&["10.0.9.0/24"]));
    assert_eq!(changed(&mut reservations), (row("n/two 10.0.9.9 u"), row("n/two 10.0.0.8 u")));
    reservations.apply_anywhere(&key("n/web"), "u", addresses(&["10.0.0.9", "10.0.9.9"]));
    assert_eq!(changed(&mut reservations), (row("n/one 10.0.0.9 u"), row("n/one 10.0.0.8 u")));
    reservations.apply_anywhere(&key("n/web"), "other", addresses(&["10.0.0.9"]));
    let ended = vec!["n/one 10.0.0.9 u".to_owned(), "n/two 10.0.9.9 u".to_owned()];
    assert_eq!(changed(&mut reservations), (row("n/one 10.0.0.9 other"), ended));
    reservations.expire(start + ABSENCE * 2);
    assert_eq!(changed(&mut reservations), none());
    reservations.apply_anywhere(&key("n/web"), "other", addresses(&[]));
    assert_eq!(changed(&mut reservations), (vec![], row("n/one 10.0.0.9 other")));
    assert_eq!((reservations.guests().count(), reservations.next_end()), (0, None));
}

#[test]
fn the_objects_of_a_namespace_without_a_network_reserve_at_most_a_quarter_of_a_pool_of_several_namespaces() {
    let mut reservations = Reservations::default();
    let both = || Namespaces::only(["n", "evil"]);
    // The pool has eight addresses. The namespace of the pool has no object, as with a GlobalStaticIPPool.
    let common = pool("x/p", "n/net", &["10.0.0.1-10.0.0.8"], &[]).with_namespaces(both(), both());
    reservations.give(vec![common]);
    let create = |reservations: &mut Reservations, name: &str, last: u8| {
        reservations.apply_anywhere(&key(name), "u", [IpAddr::from([10, 0, 0, last])].into());
        text(&reservations.take_changes())
    };
    let of_evil = (1..=4).map(|last| create(&mut reservations, &format!("evil/c-{last}"), last));
    assert_eq!(of_evil.collect::<Vec<_>>(), ["+evil/c-1 10.0.0.1", "+evil/c-2 10.0.0.2", "", ""]);
    let first = vec![key("evil/c-3"), key("evil/c-4")];
    assert_eq!(reservations.beyond(), [("x/p".to_owned(), Beyond { addresses: 2, guests: 2, first })].into());
    // Another namespace has a share of its own.
    assert_eq!(create(&mut reservations, "n/c", 5), "+n/c 10.0.0.5");
    assert_eq!(text(&reservations.lose(&key("evil/c-1"))), "-evil/c-1 10.0.0.1 +evil/c-3 10.0.0.3");
    for name in ["evil/c-2", "evil/c-3", "evil/c-4", "n/c"] {
        reservations.lose(&key(name));
    }
    assert_eq!((reservations.guests().count(), reservations.queues.len(), reservations.beyond.len()), (0, 0, 0));
}

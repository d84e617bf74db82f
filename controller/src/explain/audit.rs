//! Compares the leases of a cluster with its objects, by the same rules as `glowplugctl audit`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use glowplug::host::allocator::{Adoption, Allocator, Conflicted, Mismatch, OtherUser, Problem};
use glowplug::host::audit::{Audit, Disagreement, Options, Store, audit as compare};
use glowplug::host::claim::{Claimant, Machine};
use glowplug::host::ledger::MemoryLedger;
use glowplug::host::may_record::State;
use glowplug::host::records::Inventory;
use glowplug::host::registry::Registry;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize as _, Serialize};

use crate::explain::leader::Recorded;
use crate::explain::lists::Lists;
use crate::explain::machines::{self, Facts, Of, leased, title};
use crate::explain::read::Reader;
use crate::explain::reserved::{HEAD, Reserved, User, reserved};
use crate::explain::text::{rows_of, write_section};
use crate::kinds::kubevirt_machine::is_deleted;
use crate::kinds::lease_name::parse_lease_name;
use crate::kinds::mac_pool::{MAC_NETWORK, parse_mac_lease_name};
use crate::kinds::pool::LeaseSpec;
use crate::kinds::schema::lines;
use crate::kinds::virtual_machine::VirtualMachine;
use crate::ledger::leases::holder_of;

/// The answer of `kubectl glowplug audit`.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Version of the structure.
    pub version: u32,
    /// Number of the held leases, including those of MAC addresses.
    pub leases: usize,
    /// Number of machines and claims that were compared.
    pub objects: usize,
    /// The differences, sorted.
    pub findings: Vec<Finding>,
    /// Addresses that no other machine gets, because an object or a guest has them without a lease.
    pub reserved: Vec<Reserved>,
    /// The kinds of objects that were not compared, because the user has no right to read them.
    pub not_compared: Vec<&'static str>,
}

/// A difference between the leases and the objects.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Kind of the difference.
    pub finding: Word,
    /// The address. `null`: the finding names no address.
    pub address: Option<String>,
    /// Name of the lease, or kind and name of the claim, or namespace and name of the machine.
    pub object: String,
    /// The difference on one line.
    pub message: String,
}

/// The kinds of differences.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Word {
    /// `twoUsers`: two machines or claims have the address.
    TwoUsers,
    /// `leaseWithoutHolder`: the object that holds the address does not exist.
    LeaseWithoutHolder,
    /// `leaseWithoutRecord`: no object of the holder records the address.
    LeaseWithoutRecord,
    /// `recordWithoutLease`: an object records the address, and the machine or claim would get the lease, but has none.
    RecordWithoutLease,
    /// `recordMismatch`: an object records an address that cannot become a lease of its machine or claim: no pool
    /// offers the address, or the machine or claim holds another address.
    RecordMismatch,
    /// `leftAlone`: no pool gives the machine an address, and a person has to decide. For example, the addresses of a
    /// machine that keeps a network of its own are unknown.
    LeftAlone,
    /// `schemaViolated`: a lease was stored under an earlier schema, and violates the current schema.
    SchemaViolated,
    /// `unreadable`: a lease or a record cannot be read.
    Unreadable,
}

/// Compares the leases with the objects. Leaves out kinds of objects that the user has no right to read.
///
/// An object that changes while the lists are read can look like a difference. So if there is a difference, everything
/// is read a second time. The answer has only the differences that both readings show.
///
/// # Errors
///
/// A request failed, or the user has no right to list the leases or the pools.
pub async fn audit(reader: &Reader) -> anyhow::Result<Answer> {
    let first = once(reader).await?;
    if first.findings.is_empty() {
        return Ok(first);
    }
    let mut second = once(reader).await?;
    second.findings.retain(|finding| first.findings.binary_search(finding).is_ok());
    Ok(second)
}

async fn once(reader: &Reader) -> anyhow::Result<Answer> {
    let mut lists = Lists::read(reader, &[]).await?;
    lists.read_neighbours(reader).await?;
    lists.read_claims(reader).await?;
    lists.read_secrets(reader).await?;
    lists.read_secrets_of_users(reader, &[]).await?;
    answer(lists, Timestamp::now())
}

/// Compares the leases with the objects in the lists of a cluster.
fn answer(mut lists: Lists, now: Timestamp) -> anyhow::Result<Answer> {
    let pools = lists.pools.clone();
    let (mut registry, damaged) = lists.registry(&pools, now)?;
    let mut recorded = lists.recorded(registry.state()?);
    if !lists.has_machines {
        // If one of the lists is missing, the objects of one machine can look like the objects of another machine.
        recorded.inventory.records.retain(|record| record.claimant.machine.kind.is_claim());
        recorded.last.records.clear();
    }
    let (mut leader, _) = lists.registry(&pools, now)?;
    let leased = leased(leader.state()?);
    let adoption = recorded.adopt(&lists, &mut leader, now)?;
    let mut findings = Vec::new();
    findings.extend(damaged.into_iter().map(|(name, problem)| of_lease(Word::Unreadable, name, &problem)));
    for lease in &lists.leases {
        let spec = lease.data.get("spec").and_then(|spec| LeaseSpec::deserialize(spec).ok());
        let Some(lines) = spec.and_then(|spec| lines(&spec.beyond_schema())) else { continue };
        let name = lease.metadata.name.clone().unwrap_or_default();
        findings.push(of_lease(Word::SchemaViolated, name, &lines.replace('\n', "; ")));
    }
    let facts = Facts::new(&lists, &recorded, &leased, &adoption, leader.state()?);
    findings.extend(of_conflicts(facts.leader));
    findings.extend(of_records(&lists, &mut registry, &facts, &recorded, now)?);
    findings.extend(of_secrets(&recorded, &mut registry, &facts, now)?);
    findings.extend(left_alone(&lists, &facts));
    findings.extend(of_mac_leases(&lists, &recorded.inventory));
    findings.sort();
    findings.dedup();
    let claims = recorded.inventory.claims.as_ref().map_or(0, BTreeSet::len);
    let mut not_compared = Vec::new();
    not_compared.extend((!lists.has_machines).then_some("machines"));
    not_compared.extend(recorded.inventory.claims.is_none().then_some("claims"));
    not_compared.extend((!lists.has_secrets).then_some("secrets"));
    Ok(Answer {
        version: 1,
        leases: lists.held().count(),
        objects: lists.vms.keys().chain(lists.machines.keys()).collect::<BTreeSet<_>>().len() + claims,
        findings,
        reserved: reserved(facts.leader, &facts.users),
        not_compared,
    })
}

/// Returns the addresses with two users. The condition `DuplicateRecords` has the same rule.
fn of_conflicts(leader: &Allocator) -> impl Iterator<Item = Finding> {
    // An unreadable lease has a placeholder as its holder. The audit reports such a lease separately, not as a user of
    // the address.
    let exists = |claimant: &Claimant| claimant.machine.may_exist();
    let conflicted = leader.conflicted().into_iter().filter(move |it| it.holder.as_ref().is_none_or(exists));
    conflicted.flat_map(|Conflicted { network, address, holder, others }| {
        let with = match &holder {
            Some(holder) => format!("{holder} holds it"),
            None => "no machine holds it".to_owned(),
        };
        others.into_iter().map(move |OtherUser { claimant, source, is_report }| {
            let verb = if is_report { "reports" } else { "records" };
            let message = format!("{source} {verb} {address} of network {network} for {claimant}, and {with}");
            finding(Word::TwoUsers, Some(address), &claimant.machine, message)
        })
    })
}

/// Returns the differences between the leases and the records of machines and claims.
fn of_records(
    lists: &Lists,
    registry: &mut Registry<MemoryLedger>,
    facts: &Facts<'_>,
    recorded: &Recorded,
    now: Timestamp,
) -> anyhow::Result<Vec<Finding>> {
    let options = Options { fetched: now, dry_run: true, ..Options::default() };
    let mut inventory = recorded.inventory.clone();
    inventory.records.extend(recorded.last.records.iter().cloned());
    let Audit { adoption, mut disagreements, missing, .. } = compare(registry, &inventory, &options, now)?;
    let is_compared = |machine: &Machine| machine.kind.is_claim() || lists.has_machines;
    disagreements.retain(|it| match it {
        Disagreement::NotRecorded { claimant, .. } => is_compared(&claimant.machine),
        Disagreement::NotLeased { .. } | Disagreement::Reported { .. } => true,
    });
    let mut findings = of_differences(facts, &adoption, disagreements);
    for diagnostic in &inventory.diagnostics {
        let object = diagnostic.claimant.as_ref().map_or_else(|| diagnostic.source.clone(), |it| it.machine.title());
        let address = diagnostic.addresses.first().map(ToString::to_string);
        findings.push(Finding { finding: Word::Unreadable, address, object, message: diagnostic.to_string() });
    }
    let missing = missing.into_iter().map(|missing| missing.machine);
    for machine in missing.filter(|it| it.may_exist() && is_compared(it) && !lists.has(it)) {
        for (network, address, lease) in registry.state()?.leases_of(&machine) {
            let message = format!(
                "StaticIPLease of {address} of network {network}, allocated from pool {} at {:.0}: its holder {machine} does not exist",
                lease.pool, lease.since
            );
            findings.push(finding(Word::LeaseWithoutHolder, Some(address), &machine, message));
        }
    }
    Ok(findings)
}

/// Returns findings about Secrets with addresses that their machines do not hold. Only Secrets to which a
/// VirtualMachine refers are compared. Any other Secret has no effect, and a user can create it with any content.
fn of_secrets(
    recorded: &Recorded,
    registry: &mut Registry<MemoryLedger>,
    facts: &Facts<'_>,
    now: Timestamp,
) -> anyhow::Result<Vec<Finding>> {
    let mut inventory = Inventory::default();
    inventory.records.clone_from(&recorded.secrets);
    let options = Options { fetched: now, dry_run: true, ..Options::default() };
    let Audit { adoption, disagreements, .. } = compare(registry, &inventory, &options, now)?;
    let mut findings = of_differences(facts, &adoption, disagreements);
    findings.extend(
        adoption
            .mismatches
            .iter()
            .filter(|it| is_of_user(it))
            .map(|it| finding(Word::TwoUsers, Some(it.address), &it.claimant.machine, it.to_string())),
    );
    Ok(findings)
}

fn of_differences(facts: &Facts<'_>, adoption: &Adoption, disagreements: Vec<Disagreement>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for disagreement in disagreements {
        let message = disagreement.text(Store::Leases);
        let (word, address, claimant) = match &disagreement {
            Disagreement::NotRecorded { claimant, address } => (Word::LeaseWithoutRecord, *address, claimant),
            Disagreement::NotLeased { claimant, address, .. } if is_reserved(facts, claimant, *address) => continue,
            Disagreement::NotLeased { claimant, address, .. } => (Word::RecordWithoutLease, *address, claimant),
            // `of_conflicts` returns the reports of addresses that have another user. Any other report is not a
            // difference.
            Disagreement::Reported { .. } => continue,
        };
        findings.push(finding(word, Some(address), &claimant.machine, message));
    }
    let mismatches = adoption.mismatches.iter().filter(|it| !is_duplicate(it));
    findings.extend(
        mismatches.map(|it| finding(Word::RecordMismatch, Some(it.address), &it.claimant.machine, it.to_string())),
    );
    findings
}

/// Whether a mismatch reports another user of the address. For the records of machines and claims, `of_conflicts`
/// returns such addresses.
fn is_duplicate(mismatch: &Mismatch) -> bool {
    matches!(mismatch.problem, Problem::Duplicate(_))
}

/// Whether the other user in a mismatch is a machine or claim, and not an unreadable lease.
fn is_of_user(mismatch: &Mismatch) -> bool {
    matches!(&mismatch.problem, Problem::Duplicate(other) if other.machine.may_exist())
}

/// Whether a leader reserves the recorded address for the machine of the record. Such a record needs no lease.
fn is_reserved(facts: &Facts<'_>, claimant: &Claimant, address: IpAddr) -> bool {
    let mut networks = facts.leader.conflicts_of(&claimant.machine).filter(|(_, at)| *at == address);
    networks.any(|(network, _)| {
        let is_own = |user: &User| user.claimant == *claimant && user.state.is_some_and(|it| it != State::Mismatch);
        facts.users.at(network, address).iter().any(is_own)
    })
}

/// Returns a finding for each machine that gets no address of its pools and about which a person has to decide: the
/// machine is left alone, or its addresses are only reserved.
fn left_alone(lists: &Lists, facts: &Facts<'_>) -> Vec<Finding> {
    let selection = lists.selection(&lists.pools);
    let mut findings = Vec::new();
    let is_listed = |vm: &&VirtualMachine| lists.has_machines && !is_deleted(&vm.metadata);
    for vm in lists.vms.values().filter(is_listed) {
        for selected in selection.of(vm).unwrap_or_default() {
            let pools = selected.pools().filter_map(|pool| selection.pool(pool)?.pool.as_ref().ok());
            let pools = pools.filter(|pool| !pool.is_external());
            let rows: Vec<_> = pools.map(|pool| facts.decide(vm, &selected, Of { pool, is_stored: true }).0).collect();
            let has_no_lease = |row: &machines::Row| {
                matches!(row.result, machines::Word::LeftAlone | machines::Word::Reserved) && row.needs_decision
            };
            // A machine with a lease in any of its pools is no finding: the lease may be in an overflow pool.
            if rows.iter().all(has_no_lease)
                && let Some(row) = rows.into_iter().next()
            {
                let message = format!("pool {} gives the machine no address: {}", selected.pool, row.reason);
                findings.push(Finding { finding: Word::LeftAlone, address: None, object: row.machine, message });
            }
        }
    }
    findings
}

/// Returns a finding for each lease of a MAC address whose holder does not exist.
fn of_mac_leases(lists: &Lists, inventory: &Inventory) -> Vec<Finding> {
    let leases = lists.held().filter(|lease| lease.network == MAC_NETWORK && lists.has_machines);
    let findings = leases.filter_map(|lease| {
        let machine = holder_of(&lease.holder);
        let message = format!("StaticIPLease of {}: its holder {machine} does not exist", lease.address);
        (!inventory.is_there(&machine) && !lists.has(&machine)).then(|| Finding {
            address: Some(lease.address),
            ..finding(Word::LeaseWithoutHolder, None, &machine, message)
        })
    });
    findings.collect()
}

/// Returns a finding about the lease of this name. Reads the address of the lease from the name.
fn of_lease(finding: Word, name: String, problem: &str) -> Finding {
    let of_mac = || parse_mac_lease_name(&name).map(|address| address.to_string());
    let address = parse_lease_name(&name).map(|(address, _)| address.to_string()).or_else(of_mac);
    Finding { finding, address, message: format!("StaticIPLease {name}: {problem}"), object: name }
}

fn finding(finding: Word, address: Option<IpAddr>, machine: &Machine, message: String) -> Finding {
    let address = address.map(|address| address.to_string());
    Finding { finding, address, object: title(machine), message }
}

// === impl Answer ===

impl Answer {
    /// Whether all kinds of objects were compared, and no difference was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.not_compared.is_empty()
    }
}

/// Writes the answer as tables for people.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [self.leases, self.objects, self.findings.len(), self.reserved.len()];
        let head = ["LEASES", "OBJECTS", "FINDINGS", "RESERVED"];
        f.write_str(&rows_of(head, vec![counts.map(|count| count.to_string())]))?;
        let none = || "-".to_owned();
        let findings = self
            .findings
            .iter()
            .cloned()
            .map(|it| [it.finding.to_string(), it.address.unwrap_or_else(none), it.object, it.message]);
        write_section(f, ["FINDING", "ADDRESS", "OBJECT", "MESSAGE"], findings.collect())?;
        write_section(f, HEAD, self.reserved.iter().cloned().map(<[String; 4]>::from).collect())?;
        let not_compared = self.not_compared.iter().map(|it| [(*it).to_owned()]);
        write_section(f, ["NOT COMPARED"], not_compared.collect())
    }
}

// === impl Word ===

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::key::Key;
    use crate::cluster::object::object;
    use crate::kinds::kubevirt_machine::{Given, secret};
    use crate::kinds::network_data::new_name;

    fn lease(name: &str, address: &str, holder: Value) -> Value {
        json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
            "spec": {
                "network": "n/vlan10", "address": address, "prefix": 24, "pool": "n/p", "holder": holder,
                "since": "2026-08-14T10:00:00.000000Z",
            },
        })
    }

    fn claim(name: &str) -> Value {
        let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
        json!({"metadata": {"namespace": "n", "name": name, "uid": name}, "spec": {"poolRef": pool}})
    }

    fn address(name: &str, address: &str) -> Value {
        let mut object = claim(name);
        object["spec"]["claimRef"] = json!({"name": name});
        object["spec"]["address"] = address.into();
        object["spec"]["prefix"] = 24.into();
        object
    }

    /// The lists of a cluster with one pool, and with these leases, claims and IPAddresses.
    fn lists(leases: Vec<Value>, claims: &[Value], addresses: &[Value]) -> Lists {
        let leases = leases.into_iter().map(object).collect();
        let mut lists = Lists::default();
        lists.add_pool(object(json!({
            "metadata": {"namespace": "n", "name": "p", "finalizers": ["ipam.glowplug.dev/protect-pool"]},
            "spec": {"network": "vlan10", "addresses": ["10.0.0.8/29"], "machineNetwork": [{"cidr": "10.0.0.0/24"}]},
        })));
        lists.leases = leases;
        (lists.has_machines, lists.has_claims, lists.has_ipam_claims, lists.has_secrets) = (true, true, true, true);
        claims.iter().for_each(|claim| lists.add_claim(object(claim.clone())));
        addresses.iter().for_each(|address| lists.add_address(object(address.clone())));
        lists
    }

    fn holder(kind: &str, name: &str) -> Value {
        json!({"kind": kind, "namespace": "n", "name": name, "uid": name, "interface": "eno101"})
    }

    fn findings(lists: Lists) -> Vec<(Word, Option<String>, String)> {
        let answer = answer(lists, Timestamp::UNIX_EPOCH).unwrap();
        answer.findings.into_iter().map(|it| (it.finding, it.address, it.object)).collect()
    }

    fn found(word: Word, address: Option<&str>, object: &str) -> (Word, Option<String>, String) {
        (word, address.map(str::to_owned), object.to_owned())
    }

    #[test]
    fn a_claim_with_a_lease_and_an_ipaddress_causes_no_finding() {
        let leases = vec![lease("10-0-0-8.n.vlan10", "10.0.0.8", holder("IPAddressClaim", "a"))];
        assert_eq!(findings(lists(leases, &[claim("a")], &[address("a", "10.0.0.8")])), []);
    }

    #[test]
    fn a_lease_without_a_claim_or_ipaddress_and_an_ipaddress_without_a_lease_are_findings() {
        let leases = vec![
            lease("10-0-0-8.n.vlan10", "10.0.0.8", holder("IPAddressClaim", "gone")),
            lease("10-0-0-9.n.vlan10", "10.0.0.9", holder("IPAddressClaim", "bare")),
            lease("10-0-0-14.n.vlan10", "10.0.0.14", holder("KubevirtMachine", "w")),
        ];
        let lists = || {
            lists(
                leases.clone(),
                &[claim("bare"), claim("free")],
                &[address("free", "10.0.0.10"), address("alone", "10.0.0.11")],
            )
        };
        let of_claims = [
            found(Word::LeaseWithoutHolder, Some("10.0.0.8"), "IPAddressClaim n/gone"),
            found(Word::LeaseWithoutRecord, Some("10.0.0.9"), "IPAddressClaim n/bare"),
            found(Word::RecordWithoutLease, Some("10.0.0.10"), "IPAddressClaim n/free"),
        ];
        let of_machine = found(Word::LeaseWithoutHolder, Some("10.0.0.14"), "n/w");
        assert_eq!(findings(lists()), [of_machine, of_claims[0].clone(), of_claims[1].clone(), of_claims[2].clone()]);
        let reserved = answer(lists(), Timestamp::UNIX_EPOCH).unwrap().reserved;
        let reserved: Vec<[String; 4]> = reserved.into_iter().map(<[String; 4]>::from).collect();
        assert_eq!(reserved, [["10.0.0.11", "n/vlan10", "byRecord", "n/alone"].map(str::to_owned)]);
        // If the list of machines or of claims is missing, the leases of machines or claims are not compared.
        let mut without_machines = lists();
        without_machines.has_machines = false;
        assert_eq!(findings(without_machines), of_claims);
        let mut without_claims = self::lists(leases.clone(), &[], &[]);
        without_claims.has_claims = false;
        assert_eq!(findings(without_claims), [found(Word::LeaseWithoutHolder, Some("10.0.0.14"), "n/w")]);
    }

    #[test]
    fn a_lease_that_cannot_be_read_is_a_finding_and_has_no_holder() {
        let mut damaged = lease("10-0-0-8.n.vlan10", "10.0.0.9", holder("VirtualMachine", "w"));
        let other = lease("x", "10.0.0.9", holder("VirtualMachine", "w"));
        let expected =
            [found(Word::Unreadable, None, "x"), found(Word::Unreadable, Some("10.0.0.8"), "10-0-0-8.n.vlan10")];
        assert_eq!(findings(lists(vec![damaged.clone(), other.clone()], &[], &[])), expected);
        damaged["spec"] = json!(7);
        assert_eq!(findings(lists(vec![damaged, other], &[], &[])), expected);
    }

    #[test]
    fn a_lease_that_violates_the_current_schema_is_a_finding() {
        let mut long = lease("10-0-0-8.n.vlan10", "10.0.0.8", holder("IPAddressClaim", "a"));
        long["spec"]["pool"] = "p".repeat(400).into();
        let mut found = findings(lists(vec![long], &[claim("a")], &[address("a", "10.0.0.8")]));
        found.retain(|(word, ..)| *word == Word::SchemaViolated);
        assert_eq!(found, [self::found(Word::SchemaViolated, Some("10.0.0.8"), "10-0-0-8.n.vlan10")]);
    }

    #[test]
    fn a_secret_is_compared_only_if_the_virtual_machine_refers_to_it() {
        let name = new_name("w").unwrap();
        let volume = json!({"name": "c", "cloudInitConfigDrive": {"networkDataSecretRef": {"name": name}}});
        let lists = |volumes: Value| {
            let mut lists = lists(vec![], &[], &[]);
            let spec = json!({"template": {"spec": {"volumes": volumes}}});
            lists.add_vm(object(json!({"metadata": {"namespace": "n", "name": "w", "uid": "w"}, "spec": spec})));
            let vm = &lists.vms[&Key::from(("n", "w"))];
            let given = Given {
                interface: "eno101".parse().unwrap(),
                network: "n/vlan10".to_owned(),
                pool: "n/p".to_owned(),
                addresses: vec!["10.0.0.8/24".parse().unwrap()],
            };
            let network = json!({"id": "a", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.8", "netmask": "255.255.255.0"});
            let document = json!({"links": [{"id": "eno101", "type": "phy"}], "networks": [network]});
            let secret = secret(vm, &name, &lists.holder(vm), vec![given], &document.to_string());
            lists.add_secret(object(serde_json::to_value(secret).unwrap()));
            lists
        };
        // The pool of this test selects no machine.
        let expected = [found(Word::RecordMismatch, Some("10.0.0.8"), "n/w")];
        assert_eq!(findings(lists(json!([volume]))), expected);
        assert_eq!(findings(lists(json!([]))), []);
    }

    /// Network data with these addresses of one interface.
    fn document(addresses: &[&str]) -> String {
        let network = |address: &&str| json!({"id": address, "type": "ipv4", "link": "eno101", "ip_address": address, "netmask": "255.255.255.0"});
        let networks: Vec<Value> = addresses.iter().map(network).collect();
        json!({"links": [{"id": "eno101", "type": "phy"}], "networks": networks}).to_string()
    }

    /// The specification of a machine on the network `n/vlan10` with this source of network data.
    fn spec(source: Value) -> Value {
        let networks = json!([{"name": "net1", "multus": {"networkName": "n/vlan10"}}]);
        let devices = json!({"interfaces": [{"name": "net1", "bridge": {}}]});
        let volumes = json!([{"name": "c", "cloudInitNoCloud": source}]);
        json!({"networks": networks, "domain": {"devices": devices}, "volumes": volumes})
    }

    /// The lists of a cluster with a pool for the machines of the namespace.
    fn with_selector() -> Lists {
        let mut lists = lists(vec![], &[], &[]);
        lists.add_pool(object(json!({
            "metadata": {"namespace": "n", "name": "q", "finalizers": ["ipam.glowplug.dev/protect-pool"]},
            "spec": {
                "network": "vlan10", "addresses": ["10.0.0.16/29"], "machineNetwork": [{"cidr": "10.0.0.0/24"}],
                "machineSelector": {},
            },
        })));
        lists
    }

    fn add_vm(lists: &mut Lists, name: &str, source: Value) {
        let metadata = json!({"namespace": "n", "name": name, "uid": name});
        lists.add_vm(object(json!({"metadata": metadata, "spec": {"template": {"spec": spec(source)}}})));
    }

    /// Adds the running guest of a machine, which reports this interface.
    fn add_guest(lists: &mut Lists, name: &str, source: Value, interface: Value) {
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": name});
        let metadata = json!({"namespace": "n", "name": name, "uid": format!("{name}-i"), "ownerReferences": [owner]});
        let status = json!({"phase": "Running", "interfaces": [interface]});
        lists.add_instance(object(json!({"metadata": metadata, "spec": spec(source), "status": status})));
    }

    fn reserved_in(answer: &Answer) -> Vec<[&str; 3]> {
        answer.reserved.iter().map(|it| [&*it.address, it.state, &*it.object]).collect()
    }

    #[test]
    fn the_addresses_in_network_data_of_users_are_reserved_and_can_have_two_users() {
        let answer_of = |reported: Option<&str>| {
            let mut lists = with_selector();
            add_vm(&mut lists, "inline", json!({"networkData": document(&["10.0.0.17"])}));
            add_vm(&mut lists, "secret", json!({"networkDataSecretRef": {"name": "mine"}}));
            let data = json!({"networkdata": ByteString(document(&["10.0.0.18"]).into_bytes())});
            lists.add_secret(object(json!({"metadata": {"namespace": "n", "name": "mine"}, "data": data})));
            // The guest runs with earlier network data of a user.
            add_vm(&mut lists, "guest", json!({}));
            add_guest(&mut lists, "guest", json!({"networkData": document(&["10.0.0.19"])}), json!({}));
            if let Some(address) = reported {
                add_vm(&mut lists, "other", json!({}));
                add_guest(&mut lists, "other", json!({}), json!({"name": "net1", "ipAddresses": [address]}));
            }
            answer(lists, Timestamp::UNIX_EPOCH).unwrap()
        };
        let expected = [
            ["10.0.0.17", "byRecord", "n/inline"],
            ["10.0.0.18", "byRecord", "n/secret"],
            ["10.0.0.19", "byRecord", "n/guest"],
        ];
        assert_eq!(reserved_in(&answer_of(None)), expected);
        let answer = answer_of(Some("10.0.0.17"));
        let two_users = |it: &&Finding| it.finding == Word::TwoUsers;
        let found = answer.findings.iter().filter(two_users).map(|it| (&*it.object, &*it.message));
        let records = "VirtualMachine n/inline records 10.0.0.17 of network n/vlan10 for eno101 of n/inline (inline), and no machine holds it";
        let reports = "VirtualMachineInstance n/other reports 10.0.0.17 of network n/vlan10 for eno101 of n/other (other-i), and no machine holds it";
        assert_eq!(found.collect::<Vec<_>>(), [("n/inline", records), ("n/other", reports)]);
    }

    #[test]
    fn an_address_that_a_user_has_added_to_a_secret_of_the_controller_is_reserved() {
        let mut lists = with_selector();
        let name = new_name("w").unwrap();
        add_vm(&mut lists, "w", json!({"networkDataSecretRef": {"name": name}}));
        let vm = &lists.vms[&Key::from(("n", "w"))];
        let given = Given {
            interface: "eno101".parse().unwrap(),
            network: "n/vlan10".to_owned(),
            pool: "n/q".to_owned(),
            addresses: vec!["10.0.0.17/24".parse().unwrap()],
        };
        let secret = secret(vm, &name, &lists.holder(vm), vec![given], &document(&["10.0.0.17", "10.0.0.18"]));
        lists.add_secret(object(serde_json::to_value(secret).unwrap()));
        let mut held = lease("10-0-0-17.n.vlan10", "10.0.0.17", holder("VirtualMachine", "w"));
        (held["spec"]["pool"], held["spec"]["secrets"]) = (json!("n/q"), json!([name]));
        lists.leases.push(object(held));
        let answer = answer(lists, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(reserved_in(&answer), [["10.0.0.18", "byRecord", "n/w"]]);
    }

    #[test]
    fn a_guest_that_reports_only_addresses_without_a_pool_is_a_finding() {
        let reporting = |address: &str| {
            let mut lists = with_selector();
            add_vm(&mut lists, "w", json!({}));
            let interface = json!({"name": "net1", "interfaceName": "eth0.100", "ipAddresses": [address]});
            add_guest(&mut lists, "w", json!({}), interface);
            lists
        };
        assert_eq!(findings(reporting("172.16.0.5")), [found(Word::LeftAlone, None, "n/w")]);
        // The address of the other pool is known.
        assert_eq!(findings(reporting("10.0.0.8")), []);
    }

    #[test]
    fn a_lease_of_a_mac_address_without_its_machine_is_a_finding() {
        let mut mac = lease("02-00-00-00-00-01.mac", "02:00:00:00:00:01", holder("VirtualMachine", "w"));
        mac["spec"]["network"] = "mac".into();
        let vm = json!({"metadata": {"namespace": "n", "name": "w", "uid": "w"}, "spec": {}});
        let mut with_vm = lists(vec![mac.clone()], &[], &[]);
        with_vm.add_vm(object(vm));
        assert_eq!(findings(with_vm), []);
        let expected = [found(Word::LeaseWithoutHolder, Some("02:00:00:00:00:01"), "n/w")];
        assert_eq!(findings(lists(vec![mac], &[], &[])), expected);
    }
}

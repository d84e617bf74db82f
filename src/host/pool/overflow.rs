//! Checks whether a pool can be the overflow of another pool.

use std::fmt;
use std::net::IpAddr;

use super::Pool;

/// Why a pool cannot be the overflow of another pool. Machines must be able to use the addresses of both pools in the
/// same way.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct NoOverflow {
    /// Names of the preferred pool and of its overflow.
    pub pools: [String; 2],
    /// Member that differs: `network`, `interface`, `families` or `addressesFrom`.
    pub member: &'static str,
    /// Value of the member in the overflow.
    pub value: String,
    /// Expected value of the member.
    pub expected: String,
}

// === impl Pool ===

impl Pool {
    /// Checks that machines can get addresses of the pool `overflow` when this pool is exhausted. Both pools must have
    /// the same network, interface and families, and allocate addresses of their own.
    ///
    /// # Errors
    ///
    /// [`NoOverflow`]: the first member that differs.
    pub fn check_overflow(&self, overflow: &Self) -> Result<(), NoOverflow> {
        let families = |pool: &Self| {
            let families: Vec<String> = pool.spaces().map(|space| space.family().to_string()).collect();
            families.join(" and ")
        };
        let source = |pool: &Self| if pool.is_external { "another program" } else { "none" }.to_owned();
        let is_external = self.is_external || overflow.is_external;
        let members = [
            ("network", overflow.network.clone(), self.network.clone()),
            ("interface", overflow.interface.to_string(), self.interface.to_string()),
            ("families", families(overflow), families(self)),
        ];
        let differs = members.into_iter().find(|(_, value, expected)| !is_external && value != expected);
        let external = ("addressesFrom", source(if self.is_external { self } else { overflow }), "none".to_owned());
        let Some((member, value, expected)) = differs.or(is_external.then_some(external)) else { return Ok(()) };
        Err(NoOverflow { pools: [self.name.clone(), overflow.name.clone()], member, value, expected })
    }
}

/// Returns the pool of a group to which the lease of an address belongs:
///
/// - the pool `own` of the lease, if it is in the group and has the address
/// - else the first pool of the group that has the address
/// - else the pool `own`, if it is in the group
/// - else the first pool of the group
#[doc(hidden)]
#[must_use]
pub fn home_in_group<'p>(group: &[&'p Pool], own: &str, address: IpAddr) -> Option<&'p Pool> {
    let find = |is_meant: &dyn Fn(&Pool) -> bool| group.iter().copied().find(|pool| is_meant(pool));
    let own = find(&|pool| pool.name == own);
    let having = find(&|pool| pool.contains(address));
    own.filter(|own| own.contains(address)).or(having).or(own).or_else(|| group.first().copied())
}

// === impl NoOverflow ===

impl fmt::Display for NoOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pools: [pool, overflow], member, value, expected } = self;
        write!(f, "pool {overflow} cannot be the overflow of pool {pool}: {member} {value}, expected {expected}")
    }
}

impl std::error::Error for NoOverflow {}

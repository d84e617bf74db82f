//! The namespaces that a pool serves.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Namespaces of the objects that a pool can serve.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[doc(hidden)]
pub struct Namespaces(Which);

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Which {
    #[default]
    Every,
    Only(BTreeSet<String>),
    /// The namespaces that HyperShift can create for the clusters of this namespace.
    OfClustersIn(String),
    /// The union of at least two sets. No member is `Every` or `AnyOf`, and at most one member is `Only`.
    AnyOf(Vec<Namespaces>),
}

// === impl Namespaces ===

impl Namespaces {
    /// Every namespace.
    #[must_use]
    pub fn every() -> Self {
        Self(Which::Every)
    }

    /// These namespaces only.
    #[must_use]
    pub fn only<T: Into<String>>(namespaces: impl IntoIterator<Item = T>) -> Self {
        Self(Which::Only(namespaces.into_iter().map(Into::into).collect()))
    }

    /// The namespaces of the machines of all hosted clusters of a namespace, for a NodePool whose cluster is unknown.
    /// HyperShift names such a namespace after the namespace and the cluster, with a hyphen between them.
    #[must_use]
    pub fn of_clusters_in(namespace: impl Into<String>) -> Self {
        Self(Which::OfClustersIn(namespace.into()))
    }

    /// The union of these sets.
    #[must_use]
    pub fn any_of(sets: impl IntoIterator<Item = Self>) -> Self {
        let sets: Vec<Self> = sets.into_iter().collect();
        let mut merged = Self::merged(&sets);
        if merged.iter().any(Self::is_every) {
            return Self::every();
        }
        let is_empty = |set: &Self| set.0 == Which::Only(BTreeSet::new());
        if merged.len() > 1 {
            merged.retain(|set| !is_empty(set));
        }
        if merged.len() == 1 { merged.swap_remove(0) } else { Self(Which::AnyOf(merged)) }
    }

    /// Whether a namespace is in this set.
    #[must_use]
    pub fn has(&self, namespace: &str) -> bool {
        match &self.0 {
            Which::Every => true,
            Which::Only(namespaces) => namespaces.contains(namespace),
            Which::OfClustersIn(of) => {
                namespace.strip_prefix(of.as_str()).is_some_and(|cluster| cluster.starts_with('-'))
            }
            Which::AnyOf(sets) => sets.iter().any(|set| set.has(namespace)),
        }
    }

    /// Whether every namespace of the other set is in this set.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Which::Every, _) => true,
            (_, Which::Only(others)) => others.iter().all(|namespace| self.has(namespace)),
            (_, Which::AnyOf(others)) => others.iter().all(|other| self.covers(other)),
            (Which::AnyOf(sets), _) => sets.iter().any(|set| set.covers(other)),
            (Which::OfClustersIn(of), Which::OfClustersIn(other)) => of == other || self.has(other),
            (_, Which::Every) | (Which::Only(_), Which::OfClustersIn(_)) => false,
        }
    }

    /// Merges sets of namespaces into fewer sets, so that a search is fast. All names are in one set.
    pub(crate) fn merged<'n>(all: impl IntoIterator<Item = &'n Self>) -> Vec<Self> {
        let (mut merged, mut names) = (Vec::new(), BTreeSet::new());
        for namespaces in all {
            match &namespaces.0 {
                Which::Only(only) => names.extend(only.iter().cloned()),
                Which::AnyOf(sets) => {
                    for set in Self::merged(sets) {
                        match set.0 {
                            Which::Only(only) => names.extend(only),
                            _ if merged.contains(&set) => {}
                            _ => merged.push(set),
                        }
                    }
                }
                _ if merged.contains(namespaces) => {}
                _ => merged.push(namespaces.clone()),
            }
        }
        merged.push(Self(Which::Only(names)));
        merged
    }

    /// Whether the set lists several names or parts. `false` for all namespaces, and for those of the clusters in one
    /// namespace.
    pub(crate) fn are_several(&self) -> bool {
        match &self.0 {
            Which::Every | Which::OfClustersIn(_) => false,
            Which::Only(namespaces) => namespaces.len() > 1,
            Which::AnyOf(_) => true,
        }
    }

    /// Whether the set has exactly the namespaces that HyperShift can create for the clusters of one namespace.
    pub(crate) fn are_of_clusters(&self) -> bool {
        matches!(self.0, Which::OfClustersIn(_))
    }

    /// Whether the set has every namespace.
    #[must_use]
    pub fn is_every(&self) -> bool {
        self.0 == Which::Every
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_exactly_the_namespaces_that_it_describes() {
        let names = ["a", "a-blue", "a-", "ab", "b"];
        let has = |namespaces: Namespaces| names.map(|name| namespaces.has(name));
        assert_eq!(has(Namespaces::every()), [true; 5]);
        assert_eq!(has(Namespaces::only(["a", "b"])), [true, false, false, false, true]);
        assert_eq!(has(Namespaces::only([""; 0])), [false; 5]);
        assert_eq!(has(Namespaces::of_clusters_in("a")), [false, true, true, false, false]);
    }

    #[test]
    fn merging_sets_of_namespaces_keeps_all_namespaces() {
        let sets = [
            Namespaces::only(["a"]),
            Namespaces::of_clusters_in("b"),
            Namespaces::only(["c", "a"]),
            Namespaces::of_clusters_in("b"),
        ];
        assert_eq!(Namespaces::merged(&sets), [Namespaces::of_clusters_in("b"), Namespaces::only(["a", "c"])]);
    }

    #[test]
    fn several_sets_of_namespaces_can_be_joined_into_one_set() {
        let of = |namespace: &str| Namespaces::of_clusters_in(namespace);
        let both = Namespaces::any_of([Namespaces::only(["c"]), of("a"), Namespaces::only(["d"]), of("a")]);
        let names = ["a", "a-blue", "c", "d", "e"];
        assert_eq!(names.map(|name| both.has(name)), [false, true, true, true, false]);
        assert_eq!(Namespaces::any_of([both.clone(), both.clone()]), both);
        assert_eq!(Namespaces::any_of([both.clone(), Namespaces::every()]), Namespaces::every());
        assert_eq!(Namespaces::any_of([of("a"), Namespaces::only([""; 0])]), of("a"));
        assert_eq!(Namespaces::any_of([]), Namespaces::only([""; 0]));
        assert_eq!(Namespaces::merged([&both, &of("b")]), [of("a"), of("b"), Namespaces::only(["c", "d"])]);
        let all = [both.clone(), of("a-blue"), Namespaces::only(["c", "a-red"]), Namespaces::only(["e"])];
        assert_eq!(all.each_ref().map(|set| both.covers(set)), [true, true, true, false]);
        assert_eq!([of("a").covers(&both), Namespaces::every().covers(&both)], [false, true]);
        let sets = [both, Namespaces::only(["a", "b"]), Namespaces::only(["a"]), of("a"), Namespaces::every()];
        assert_eq!(sets.map(|set| set.are_several()), [true, true, false, false, false]);
    }

    #[test]
    fn a_set_of_namespaces_covers_exactly_the_sets_that_it_contains() {
        let sets = [
            Namespaces::every(),
            Namespaces::of_clusters_in("a"),
            Namespaces::only(["a-blue", "b"]),
            Namespaces::only(["a-blue"]),
            Namespaces::only([""; 0]),
        ];
        let covers = |set: &Namespaces| [0, 1, 2, 3, 4].map(|at| set.covers(&sets[at]));
        assert_eq!(covers(&sets[0]), [true; 5]);
        assert_eq!(covers(&sets[1]), [false, true, false, true, true]);
        assert_eq!(covers(&sets[2]), [false, false, true, true, true]);
        assert_eq!(covers(&sets[3]), [false, false, false, true, true]);
        assert_eq!(covers(&sets[4]), [false, false, false, false, true]);
    }
}

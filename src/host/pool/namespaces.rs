//! The namespaces that a pool serves.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Namespaces of the objects that a pool may serve.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[doc(hidden)]
pub struct Namespaces(Which);

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Which {
    #[default]
    Every,
    Only(BTreeSet<String>),
    /// The namespaces that HyperShift may create for the clusters of this namespace.
    OfClustersIn(String),
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

    /// Whether a namespace is one of these.
    #[must_use]
    pub fn has(&self, namespace: &str) -> bool {
        match &self.0 {
            Which::Every => true,
            Which::Only(namespaces) => namespaces.contains(namespace),
            Which::OfClustersIn(of) => {
                namespace.strip_prefix(of.as_str()).is_some_and(|cluster| cluster.starts_with('-'))
            }
        }
    }

    /// Whether every one of the other namespaces is one of these.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Which::Every, _) => true,
            (_, Which::Only(others)) => others.iter().all(|namespace| self.has(namespace)),
            (Which::OfClustersIn(of), Which::OfClustersIn(other)) => of == other || self.has(other),
            (_, Which::Every) | (Which::Only(_), Which::OfClustersIn(_)) => false,
        }
    }

    /// The same namespaces in few sets, so that a search is fast: all names are in one set.
    pub(crate) fn merged<'n>(all: impl IntoIterator<Item = &'n Self>) -> Vec<Self> {
        let (mut merged, mut names) = (Vec::new(), BTreeSet::new());
        for namespaces in all {
            match &namespaces.0 {
                Which::Only(only) => names.extend(only.iter().cloned()),
                _ if merged.contains(namespaces) => {}
                _ => merged.push(namespaces.clone()),
            }
        }
        merged.push(Self(Which::Only(names)));
        merged
    }

    /// Whether this is every namespace.
    #[must_use]
    pub fn is_every(&self) -> bool {
        self.0 == Which::Every
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_serves_the_namespaces_that_it_names() {
        let names = ["a", "a-blue", "a-", "ab", "b"];
        let has = |namespaces: Namespaces| names.map(|name| namespaces.has(name));
        assert_eq!(has(Namespaces::every()), [true; 5]);
        assert_eq!(has(Namespaces::only(["a", "b"])), [true, false, false, false, true]);
        assert_eq!(has(Namespaces::only([""; 0])), [false; 5]);
        assert_eq!(has(Namespaces::of_clusters_in("a")), [false, true, true, false, false]);
    }

    #[test]
    fn merged_namespaces_are_the_same_namespaces() {
        let sets = [
            Namespaces::only(["a"]),
            Namespaces::of_clusters_in("b"),
            Namespaces::only(["c", "a"]),
            Namespaces::of_clusters_in("b"),
        ];
        assert_eq!(Namespaces::merged(&sets), [Namespaces::of_clusters_in("b"), Namespaces::only(["a", "c"])]);
    }

    #[test]
    fn a_set_of_namespaces_covers_each_smaller_one() {
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

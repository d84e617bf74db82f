//! The newest known version of each object. Watches and responses report objects in any order, so an object never
//! replaces a newer version of itself. Versions of objects are compared only here.
//!
//! The caller stores a type with the members that it needs, never a whole object: users write objects of any size.

use std::collections::BTreeMap;

/// The newest known version of each object, by name.
///
/// A recreated object has a higher version than every version of the object before it, so a name is enough.
#[derive(Debug)]
pub(crate) struct Newest<K, T>(BTreeMap<K, Known<T>>);

#[derive(Debug)]
struct Known<T> {
    version: u64,
    /// `None`: the object is gone. The entry is kept until a watch reports the deletion, because the watch may report
    /// older versions before.
    object: Option<T>,
}

// === impl Newest ===

impl<K, T> Default for Newest<K, T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, T> Newest<K, T> {
    /// Returns an object that exists.
    pub(crate) fn get(&self, key: &K) -> Option<&T> {
        self.0.get(key)?.object.as_ref()
    }

    /// Returns the newest known version of an object. `None`: the object is unknown.
    pub(crate) fn version(&self, key: &K) -> Option<u64> {
        self.0.get(key).map(|known| known.version)
    }

    /// Whether neither this version nor a newer version of an object is known.
    pub(crate) fn is_news(&self, key: &K, version: u64) -> bool {
        self.version(key).is_none_or(|known| known < version)
    }

    /// Stores a version of an object. Returns `false` if this version or a newer version is already known.
    pub(crate) fn apply(&mut self, key: K, version: u64, object: T) -> bool {
        let is_news = self.is_news(&key, version);
        if is_news {
            self.0.insert(key, Known { version, object: Some(object) });
        }
        is_news
    }

    /// Removes an object that a watch reports as deleted at `version`. `None`: a list no longer contains the object.
    /// Returns `false` if the object is unknown or newer.
    pub(crate) fn remove(&mut self, key: &K, version: Option<u64>) -> bool {
        let is_gone = self.version(key).is_some_and(|known| version.is_none_or(|version| known <= version));
        is_gone && self.0.remove(key).is_some()
    }

    /// Records that an object no longer exists: a consistent read after `version` did not find the object, or `version`
    /// was its last version. The watch reports the deletion later.
    ///
    /// An unknown object stays unknown: the watch has reported its deletion.
    pub(crate) fn forget(&mut self, key: &K, version: u64) {
        if let Some(known) = self.0.get_mut(key).filter(|known| known.version <= version) {
            *known = Known { version, object: None };
        }
    }

    /// The objects that exist, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &T)> {
        self.0.iter().filter_map(|(key, known)| Some((key, known.object.as_ref()?)))
    }

    /// The objects that exist whose names are `first` or later, in the order of their names.
    pub(crate) fn since(&self, first: &K) -> impl Iterator<Item = (&K, &T)> {
        self.0.range(first..).filter_map(|(key, known)| Some((key, known.object.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(newest: &Newest<&'static str, u64>) -> Vec<(&'static str, u64)> {
        newest.iter().map(|(key, object)| (*key, *object)).collect()
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let mut newest = Newest::default();
        assert!(newest.apply("a", 9, 9));
        assert!(!newest.apply("a", 8, 8) && !newest.apply("a", 9, 0));
        assert_eq!(known(&newest), [("a", 9)]);
        assert!(newest.apply("a", 10, 10) && newest.apply("b", 1, 1));
        assert_eq!(known(&newest), [("a", 10), ("b", 1)]);
    }

    #[test]
    fn a_deletion_removes_only_versions_before_it() {
        let mut newest = Newest::default();
        newest.apply("a", 9, 9);
        assert!(!newest.remove(&"a", Some(8)) && !newest.remove(&"b", None));
        assert!(newest.remove(&"a", Some(10)));
        newest.apply("a", 12, 12);
        assert!(newest.remove(&"a", None));
        assert_eq!(known(&newest), []);
    }

    #[test]
    fn an_object_that_is_gone_is_not_revived_by_an_older_event() {
        let mut newest = Newest::default();
        newest.apply("a", 5, 5);
        newest.forget(&"a", 7);
        assert!(!newest.apply("a", 6, 6) && !newest.apply("a", 7, 7));
        assert_eq!((known(&newest), newest.version(&"a")), (Vec::new(), Some(7)));
        assert!(newest.remove(&"a", Some(8)));
        assert_eq!(newest.version(&"a"), None);
    }

    #[test]
    fn an_answer_that_is_older_than_a_known_version_ends_nothing() {
        let mut newest = Newest::default();
        newest.apply("a", 9, 9);
        newest.forget(&"a", 8);
        newest.forget(&"b", 8);
        assert_eq!((known(&newest), newest.version(&"b")), (vec![("a", 9)], None));
    }
}

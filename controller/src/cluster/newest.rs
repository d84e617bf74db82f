//! The newest known version of each object. Watches and responses report objects in any order, so an object never
//! replaces a newer version of itself. Versions of objects are compared only here.
//!
//! The caller stores only the members that it needs, never a whole object, because users can write objects of any size.

use std::collections::{BTreeMap, BTreeSet};

/// The newest known version of each object, by name.
///
/// A recreated object has a higher version than the objects of the same name before it, so the name is enough as a key.
///
/// A watch reports a deletion only if it has reported the object before. If an object was created and deleted between
/// two lists, only a response has reported it, and its entry would never be removed. Therefore [`Newest::follow`]
/// returns the objects whose versions the watch has passed without a report: they no longer exist.
#[derive(Debug)]
pub(crate) struct Newest<K, T> {
    known: BTreeMap<K, Known<T>>,
    /// Objects that only a response has reported, sorted by their version.
    unseen: BTreeSet<(u64, K)>,
    /// Whether the watch now reports changes in the order of their versions. During a list, reports have the order of
    /// the names.
    is_ordered: bool,
    /// The highest version that the watch has reported since its last list began. The list is at least as new as every
    /// version in the list.
    reported: u64,
}

/// How far a watch has come.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Progress<K> {
    /// A list begins.
    Lists,
    /// A list is complete.
    Listed,
    /// The watch has reported this version of an object.
    Reported(K, u64),
}

#[derive(Debug)]
struct Known<T> {
    version: u64,
    /// `None`: the object is gone. The entry is kept until a watch reports the deletion, because the watch may still
    /// report older versions.
    object: Option<T>,
}

// === impl Newest ===

impl<K, T> Default for Newest<K, T> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), unseen: BTreeSet::new(), is_ordered: false, reported: 0 }
    }
}

impl<K: Clone + Ord, T> Newest<K, T> {
    /// Returns an object. `None`: the object is unknown or gone.
    pub(crate) fn get(&self, key: &K) -> Option<&T> {
        self.known.get(key)?.object.as_ref()
    }

    /// Returns the newest known version of an object. `None`: the object is unknown.
    pub(crate) fn version(&self, key: &K) -> Option<u64> {
        self.known.get(key).map(|known| known.version)
    }

    /// Whether this version of an object is newer than the known version, or the object is unknown.
    pub(crate) fn is_news(&self, key: &K, version: u64) -> bool {
        self.version(key).is_none_or(|known| known < version)
    }

    /// Stores a version of an object. Returns `false` if this version or a newer version is already known.
    pub(crate) fn apply(&mut self, key: K, version: u64, object: T) -> bool {
        let is_news = self.is_news(&key, version);
        if is_news {
            self.move_unseen(&key, version);
            self.known.insert(key, Known { version, object: Some(object) });
        }
        is_news
    }

    /// Notes that the watch has not reported an object yet, because the object comes from a response.
    pub(crate) fn expect(&mut self, key: &K) {
        self.unseen.extend(self.version(key).map(|version| (version, key.clone())));
    }

    /// Notes the progress of the watch. Call this method after the reported object is stored. Returns the objects whose
    /// versions the watch has passed without a report. The caller must remove these objects.
    pub(crate) fn follow(&mut self, progress: &Progress<K>) -> Vec<K> {
        match progress {
            Progress::Lists => (self.is_ordered, self.reported) = (false, 0),
            Progress::Listed => self.is_ordered = true,
            Progress::Reported(key, version) => {
                self.reported = self.reported.max(*version);
                if self.version(key).is_some_and(|known| known <= *version) {
                    self.see(key);
                }
            }
        }
        let passed = self.unseen.iter().take_while(|(version, _)| self.is_ordered && *version <= self.reported);
        passed.map(|(_, key)| key.clone()).collect()
    }

    /// Removes an object that a watch reports as deleted at `version`. If `version` is `None`, a list no longer
    /// contains the object. Returns `false` if the object is unknown or newer.
    pub(crate) fn remove(&mut self, key: &K, version: Option<u64>) -> bool {
        let Some(known) = self.version(key) else { return false };
        if version.is_some_and(|version| version < known) {
            // A response has reported an object that was created again after this deletion. The watch has not reported
            // the new object yet.
            self.expect(key);
            return false;
        }
        self.see(key);
        self.known.remove(key).is_some()
    }

    /// Records that an object no longer exists: a consistent read after `version` did not find the object, or `version`
    /// was its last version. The watch reports the deletion later.
    ///
    /// An unknown object stays unknown, because the watch has already reported its deletion.
    pub(crate) fn forget(&mut self, key: &K, version: u64) {
        if self.version(key).is_some_and(|known| known <= version) {
            self.move_unseen(key, version);
            self.known.insert(key.clone(), Known { version, object: None });
        }
    }

    /// Updates the version of an object that no watch has reported yet.
    fn move_unseen(&mut self, key: &K, version: u64) {
        if self.see(key) {
            self.unseen.insert((version, key.clone()));
        }
    }

    /// Removes an object from `unseen`. Returns whether the object was there.
    fn see(&mut self, key: &K) -> bool {
        let known = self.version(key).filter(|_| !self.unseen.is_empty());
        known.is_some_and(|known| self.unseen.remove(&(known, key.clone())))
    }

    /// The objects that exist, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &T)> {
        self.known.iter().filter_map(|(key, known)| Some((key, known.object.as_ref()?)))
    }

    /// The objects that exist, from the name `first` on, in the order of their names.
    pub(crate) fn since(&self, first: &K) -> impl Iterator<Item = (&K, &T)> {
        self.known.range(first..).filter_map(|(key, known)| Some((key, known.object.as_ref()?)))
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
    fn a_deletion_removes_an_object_unless_a_newer_version_is_known() {
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
    fn an_object_is_gone_if_the_watch_passes_its_version_without_a_report() {
        let mut newest = Newest::default();
        let answer = |newest: &mut Newest<&'static str, u64>, key, version| {
            newest.apply(key, version, version);
            newest.expect(&key);
        };
        // A list is not sorted by version. An object whose version is higher than every version in the list may be
        // newer than the list.
        answer(&mut newest, "early", 20);
        answer(&mut newest, "late", 31);
        newest.apply("listed", 30, 30);
        assert_eq!(newest.follow(&Progress::Reported("listed", 30)), [""; 0]);
        assert_eq!(newest.follow(&Progress::Listed), ["early"]);
        assert!(newest.remove(&"early", None));
        assert_eq!(newest.follow(&Progress::Reported("late", 31)), [""; 0]);
        // The watch reports `new` later, and never reports `ghost`.
        answer(&mut newest, "new", 52);
        answer(&mut newest, "ghost", 54);
        newest.apply("ghost", 55, 55);
        assert_eq!(newest.follow(&Progress::Reported("new", 52)), [""; 0]);
        assert_eq!(newest.follow(&Progress::Reported("other", 54)), [""; 0]);
        assert_eq!(newest.follow(&Progress::Reported("other", 56)), ["ghost"]);
        assert!(newest.remove(&"ghost", None));
        assert_eq!(newest.follow(&Progress::Listed), [""; 0]);
        assert_eq!(newest.follow(&Progress::Lists), [""; 0]);
        answer(&mut newest, "between two lists", 60);
        newest.forget(&"between two lists", 61);
        assert_eq!(newest.follow(&Progress::Reported("listed", 70)), [""; 0]);
        assert_eq!(newest.follow(&Progress::Listed), ["between two lists"]);
        assert_eq!(known(&newest), [("late", 31), ("listed", 30), ("new", 52)]);
    }

    #[test]
    fn an_object_that_was_created_again_is_expected_after_the_deletion_of_the_earlier_object() {
        let mut newest = Newest::default();
        newest.apply("a", 5, 5);
        newest.follow(&Progress::Listed);
        // A response reports the new object before the watch reports the deletion of the earlier one.
        newest.apply("a", 12, 12);
        assert!(!newest.remove(&"a", Some(10)));
        assert_eq!(newest.follow(&Progress::Reported("a", 10)), [""; 0]);
        assert_eq!(newest.follow(&Progress::Reported("b", 14)), ["a"]);
    }

    #[test]
    fn an_absence_that_is_older_than_the_known_version_is_ignored() {
        let mut newest = Newest::default();
        newest.apply("a", 9, 9);
        newest.forget(&"a", 8);
        newest.forget(&"b", 8);
        assert_eq!((known(&newest), newest.version(&"b")), (vec![("a", 9)], None));
    }
}

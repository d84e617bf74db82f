//! Times, as Kubernetes writes them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time in milliseconds since 1970-01-01, 00:00 UTC, as in pools and ledgers.
///
/// ```
/// use glowplug::host::timestamp::Timestamp;
///
/// let created = Timestamp::parse("2024-02-29T12:00:01Z").unwrap();
/// assert_eq!(created, Timestamp(1_709_208_001_000));
/// assert_eq!(created.to_string(), "2024-02-29T12:00:01Z");
/// assert_eq!(Timestamp::parse("2024-02-30T12:00:01Z"), None);
/// ```
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time of this host's clock. A time before 1970 becomes 1970.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Reads a time of RFC 3339, from 1970 on. Kubernetes writes times in UTC, with whole seconds or with microseconds.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let time: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(time.as_millisecond()).ok().map(Self)
    }
}

/// Prints whole seconds. A time after the year 9999 is printed as the end of that year.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latest = jiff::Timestamp::MAX.as_second();
        let seconds = i64::try_from(self.0 / 1000).map_or(latest, |seconds| seconds.min(latest));
        jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_calendar_has_its_leap_years() {
        let dates = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_763_651_621_000, "2025-11-20T15:13:41Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (253_402_207_200_000, "9999-12-30T22:00:00Z"),
        ];
        for (number, text) in dates {
            assert_eq!(
                (Timestamp(number).to_string().as_str(), Timestamp::parse(text)),
                (text, Some(Timestamp(number)))
            );
        }
    }

    #[test]
    fn a_string_that_is_not_a_time_is_none() {
        for text in [
            "",
            "2025-11-20",
            "2025-11-20T15:13:41",
            "2025-11-20T24:00:00Z",
            "2025-13-01T00:00:00Z",
            "2025-02-29T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "+025-11-20T15:13:41Z",
            "2025-11-2öT15:13:41Z",
        ] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_zone_and_a_fraction_are_read() {
        let read = |text: &str| Timestamp::parse(text).map(|time| time.0);
        assert_eq!(read("2025-11-20T16:13:41+01:00"), Some(1_763_651_621_000));
        assert_eq!(read("2025-11-20T15:13:41.500000Z"), Some(1_763_651_621_500));
    }

    #[test]
    fn the_last_time_of_all_is_written_as_the_end_of_the_calendar() {
        assert_eq!(Timestamp(u64::MAX).to_string(), "9999-12-30T22:00:00Z");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(seconds in 0_u64..253_402_207_200) {
            let time = Timestamp(seconds * 1000);
            prop_assert_eq!(Timestamp::parse(&time.to_string()), Some(time));
        }
    }
}

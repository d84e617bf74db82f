//! Times, as Kubernetes writes them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time in milliseconds since 1970, which is how pools and ledgers count.
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

const DAY: u64 = 24 * 60 * 60;
/// Of four hundred years, after which the calendar repeats.
const DAYS_OF_AN_ERA: u64 = 146_097;

impl Timestamp {
    /// The time by the clock of this host. Before 1970 it is 1970.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Reads the one form in which Kubernetes writes a time, RFC 3339 in UTC with whole seconds, from 1970 to 9999.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        const FORM: &[u8] = b"0000-00-00T00:00:00Z";
        let fits = |(is, form): (&u8, &u8)| if *form == b'0' { is.is_ascii_digit() } else { is == form };
        if text.len() != FORM.len() || !text.as_bytes().iter().zip(FORM).all(fits) {
            return None;
        }
        let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let is_date = year >= 1970 && (1..=12).contains(&month) && (1..=days_of_month(year, month)).contains(&day);
        if !is_date || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let leaps = |year: u64| year / 4 - year / 100 + year / 400;
        let years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
        let months = (1..month).map(|month| days_of_month(year, month)).sum::<u64>();
        let days = years + months + day - 1;
        Some(Self((days * DAY + (hour * 60 + minute) * 60 + second) * 1000))
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// In whole seconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let days = seconds / DAY;
        let (mut year, mut month, mut day) = (1970 + days / DAYS_OF_AN_ERA * 400, 1, days % DAYS_OF_AN_ERA);
        while day >= days_of_year(year) {
            day -= days_of_year(year);
            year += 1;
        }
        while day >= days_of_month(year, month) {
            day -= days_of_month(year, month);
            month += 1;
        }
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", day + 1)
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
            (253_402_300_799_000, "9999-12-31T23:59:59Z"),
        ];
        for (number, text) in dates {
            assert_eq!(
                (Timestamp(number).to_string().as_str(), Timestamp::parse(text)),
                (text, Some(Timestamp(number)))
            );
        }
    }

    #[test]
    fn what_is_no_time_of_kubernetes_is_none() {
        for text in [
            "",
            "2025-11-20",
            "2025-11-20T15:13:41+01:00",
            "2025-11-20T15:13:41.5Z",
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
    fn the_last_time_of_all_is_written() {
        assert_eq!(Timestamp(u64::MAX).to_string(), "584556019-04-03T14:25:51Z");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(seconds in 0_u64..253_402_300_800) {
            let time = Timestamp(seconds * 1000);
            prop_assert_eq!(Timestamp::parse(&time.to_string()), Some(time));
        }
    }
}

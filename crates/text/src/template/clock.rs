//! `strftime` over a time that is passed in.

use std::fmt::Write;

/// A wall-clock time, for templates that print the date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallTime {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub unix_seconds: i64,
    /// Seconds by which the engines' local time is ahead of UTC.
    pub offset_seconds: i32,
}

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Civil {
    year: i64,
    /// 1 to 12.
    month: i64,
    /// 1 to 31.
    day: i64,
    /// 0 is Sunday.
    weekday: usize,
    /// 1 to 366.
    year_day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl WallTime {
    /// The proleptic Gregorian date; the arithmetic is Howard Hinnant's `civil_from_days`.
    fn civil(self) -> Civil {
        let local = self.unix_seconds.saturating_add(self.offset_seconds.into());
        let (days, rest) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        let z = days.saturating_add(719_468);
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        let year = yoe + era * 400 + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let year_day = if month > 2 {
            doy + 60 + i64::from(leap)
        } else {
            doy - 305
        };
        Civil {
            year,
            month,
            day: doy - (153 * mp + 2) / 5 + 1,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or_default(),
            year_day,
            hour: rest / 3_600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }

    /// Python's `datetime.strftime` in the C locale. Directives that it does not know stay as they
    /// are.
    #[must_use]
    pub fn format(self, format: &str) -> String {
        let civil = self.civil();
        let mut out = String::with_capacity(format.len() + 16);
        let mut chars = format.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let bare = chars.next_if_eq(&'-').is_some();
            match chars.next() {
                Some(directive) => self.directive(&civil, directive, bare, &mut out),
                None => out.push('%'),
            }
        }
        out
    }

    fn directive(self, civil: &Civil, directive: char, bare: bool, out: &mut String) {
        let mut padded = |value: i64, width: usize| {
            let width = if bare { 0 } else { width };
            let _ = write!(out, "{value:0width$}");
        };
        let half_day = if civil.hour % 12 == 0 {
            12
        } else {
            civil.hour % 12
        };
        match directive {
            'Y' => padded(civil.year, 1),
            'y' => padded(civil.year.rem_euclid(100), 2),
            'm' => padded(civil.month, 2),
            'd' => padded(civil.day, 2),
            'H' => padded(civil.hour, 2),
            'I' => padded(half_day, 2),
            'M' => padded(civil.minute, 2),
            'S' => padded(civil.second, 2),
            'j' => padded(civil.year_day, 3),
            'f' => padded(0, 6),
            'w' => padded(i64::try_from(civil.weekday).unwrap_or_default(), 1),
            's' => padded(self.unix_seconds, 1),
            'e' if bare => padded(civil.day, 1),
            'e' => {
                let _ = write!(out, "{:2}", civil.day);
            }
            'p' => out.push_str(if civil.hour < 12 { "AM" } else { "PM" }),
            'B' => out.push_str(month_name(civil)),
            'b' | 'h' => out.push_str(month_name(civil).get(..3).unwrap_or_default()),
            'A' => out.push_str(DAYS.get(civil.weekday).unwrap_or(&"")),
            'a' => out.push_str(
                DAYS.get(civil.weekday)
                    .and_then(|d| d.get(..3))
                    .unwrap_or(""),
            ),
            'F' => out.push_str(&self.format("%Y-%m-%d")),
            'D' | 'x' => out.push_str(&self.format("%m/%d/%y")),
            'T' | 'X' => out.push_str(&self.format("%H:%M:%S")),
            'R' => out.push_str(&self.format("%H:%M")),
            'c' => out.push_str(&self.format("%a %b %e %H:%M:%S %Y")),
            // A naive time has no zone: Python prints nothing.
            'z' | 'Z' => {}
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            other => {
                out.push('%');
                if bare {
                    out.push('-');
                }
                out.push(other);
            }
        }
    }
}

fn month_name(civil: &Civil) -> &'static str {
    let index = usize::try_from(civil.month - 1).unwrap_or_default();
    MONTHS.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_seconds: i64) -> WallTime {
        WallTime {
            unix_seconds,
            offset_seconds: 0,
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // 2024-02-29 13:05:09 UTC.
        let leap = at(1_709_211_909);
        assert_eq!(leap.format("%Y-%m-%d %H:%M:%S"), "2024-02-29 13:05:09");
        assert_eq!(
            leap.format("%d %B %Y, %A, day %j"),
            "29 February 2024, Thursday, day 060"
        );
        assert_eq!(leap.format("%-d %b %y %I %p %% %Q"), "29 Feb 24 01 PM % %Q");
        assert_eq!(at(0).format("%c"), "Thu Jan  1 00:00:00 1970");
        assert_eq!(at(-1).format("%F %j"), "1969-12-31 365");
        assert_eq!(at(1_735_603_200).format("%F %j"), "2024-12-31 366");
        assert_eq!(at(1_709_251_200).format("%F %j"), "2024-03-01 061");
        let ahead = WallTime {
            unix_seconds: 0,
            offset_seconds: -3_600,
        };
        assert_eq!(ahead.format("%F %T"), "1969-12-31 23:00:00");
    }
}

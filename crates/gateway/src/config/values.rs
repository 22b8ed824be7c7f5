//! Values that need reading: durations, sizes, addresses, names.

use super::problem::Problem;
use super::settings::AllowRule;
use super::tree::{Field, Section, Value};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Longest duration that is taken: a year. Beyond it, somebody mixed up units.
const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// Reads `500ms`, `30s`, `10m`, `2h`, or bare seconds.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let seconds = match unit.trim() {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3_600.0,
        "d" => number * 86_400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|d| *d <= DURATION_MAX)
}

/// Reads `64MiB`, `64MB`, `64k`, or bare bytes.
fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "k" | "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// A host name, an address, or a range in CIDR form.
pub(super) fn parse_allow_rule(text: &str) -> Option<AllowRule> {
    let text = text.trim();
    let (base, prefix) = match text.split_once('/') {
        Some((base, prefix)) => (base, Some(prefix.parse::<u8>().ok()?)),
        None => (text, None),
    };
    if let Ok(address) = base.parse::<IpAddr>() {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(bits);
        return (prefix <= bits).then_some(AllowRule::Range { address, prefix });
    }
    let is_host = !base.is_empty()
        && base
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-');
    (prefix.is_none() && is_host).then(|| AllowRule::Host(base.to_ascii_lowercase()))
}

/// Whether a text may name a pool or a worker: it becomes a metric label and part of a path.
pub(crate) fn valid_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._:-/[]".contains(c))
}

pub(super) const NAME_RULE: &str = "must be 1 to 128 letters, digits or . _ : - / [ ]";

impl<'a> Field<'a> {
    pub(super) fn text(&self) -> Result<&'a str, Problem> {
        match &self.node.value {
            Value::Text(text) if !text.trim().is_empty() => Ok(text.trim()),
            Value::Text(_) => Err(self.problem("must not be empty")),
            _ => Err(self.wrong_kind("a text")),
        }
    }

    pub(super) fn name(&self) -> Result<String, Problem> {
        let name = self.text()?;
        if valid_name(name) {
            Ok(name.to_owned())
        } else {
            Err(self.problem(NAME_RULE))
        }
    }

    pub(super) fn flag(&self) -> Result<bool, Problem> {
        match self.node.value {
            Value::Flag(flag) => Ok(flag),
            _ => Err(self.wrong_kind("true or false")),
        }
    }

    pub(super) fn duration(&self) -> Result<Duration, Problem> {
        const WANTED: &str = "a duration such as 500ms, 30s or 10m, at most a year";
        let parsed = match &self.node.value {
            Value::Integer(seconds) => u64::try_from(*seconds).ok().map(Duration::from_secs),
            Value::Number(seconds) => Duration::try_from_secs_f64(*seconds).ok(),
            Value::Text(text) => parse_duration(text),
            _ => return Err(self.wrong_kind(WANTED)),
        };
        parsed
            .filter(|d| *d <= DURATION_MAX)
            .ok_or_else(|| self.problem(format!("must be {WANTED}")))
    }

    pub(super) fn bytes(&self, range: &RangeInclusive<u64>) -> Result<u64, Problem> {
        let parsed = match &self.node.value {
            Value::Integer(bytes) => u64::try_from(*bytes).ok(),
            Value::Text(text) => parse_bytes(text),
            _ => return Err(self.wrong_kind("a number of bytes such as 65536 or 64MiB")),
        };
        let bytes = parsed
            .ok_or_else(|| self.problem("must be a number of bytes such as 65536 or 64MiB"))?;
        self.in_range(bytes, range)
    }

    pub(super) fn count(&self, range: &RangeInclusive<u64>) -> Result<u64, Problem> {
        let Value::Integer(count) = self.node.value else {
            return Err(self.wrong_kind("a whole number"));
        };
        match u64::try_from(count) {
            Ok(count) => self.in_range(count, range),
            Err(_) => Err(self.out_of_range(range)),
        }
    }

    pub(super) fn number(&self) -> Result<f64, Problem> {
        match self.node.value {
            Value::Integer(n) => Ok(n as f64),
            Value::Number(n) => Ok(n),
            _ => Err(self.wrong_kind("a number")),
        }
    }

    fn in_range(&self, value: u64, range: &RangeInclusive<u64>) -> Result<u64, Problem> {
        if range.contains(&value) {
            Ok(value)
        } else {
            Err(self.out_of_range(range))
        }
    }

    fn out_of_range(&self, range: &RangeInclusive<u64>) -> Problem {
        let (low, high) = (range.start(), range.end());
        if *high == u64::MAX {
            self.problem(format!("must be at least {low}"))
        } else {
            self.problem(format!("must be {low} to {high}"))
        }
    }

    pub(super) fn address(&self) -> Result<SocketAddr, Problem> {
        let text = self.text()?;
        text.parse()
            .map_err(|_| self.problem("must be an address with a port, such as 127.0.0.1:8080"))
    }

    /// A list, or one value in its place.
    pub(super) fn items(&self) -> Vec<Field<'a>> {
        match &self.node.value {
            Value::List(list) => list
                .iter()
                .enumerate()
                .map(|(index, node)| Field {
                    path: format!("{}[{index}]", self.path),
                    node,
                })
                .collect(),
            _ => vec![self.clone()],
        }
    }

    pub(super) fn texts(&self, problems: &mut Vec<Problem>) -> Vec<String> {
        let mut texts = Vec::new();
        for item in self.items() {
            match item.text() {
                Ok(text) => texts.push(text.to_owned()),
                Err(problem) => problems.push(problem),
            }
        }
        texts
    }

    pub(super) fn header_name(&self) -> Result<String, Problem> {
        let name = self.text()?.to_ascii_lowercase();
        match http::HeaderName::from_bytes(name.as_bytes()) {
            Ok(_) => Ok(name),
            Err(_) => Err(self.problem("must be a header's name")),
        }
    }
}

/// Takes fields of one mapping, noting what is wrong and leaving the default there.
impl<'a> Section<'a> {
    /// Takes `key` into `target` as `read` understands it.
    pub(super) fn set<T>(
        &mut self,
        problems: &mut Vec<Problem>,
        key: &'static str,
        target: &mut T,
        read: impl FnOnce(&Field<'a>) -> Result<T, Problem>,
    ) {
        if let Some(field) = self.take(key) {
            match read(&field) {
                Ok(value) => *target = value,
                Err(problem) => problems.push(problem),
            }
        }
    }

    pub(super) fn set_duration(
        &mut self,
        problems: &mut Vec<Problem>,
        key: &'static str,
        target: &mut Duration,
    ) {
        self.set(problems, key, target, Field::duration);
    }

    /// A duration that must not be zero.
    pub(super) fn set_period(
        &mut self,
        problems: &mut Vec<Problem>,
        key: &'static str,
        target: &mut Duration,
    ) {
        self.set(problems, key, target, |field| {
            let period = field.duration()?;
            if period.is_zero() {
                return Err(field.problem("must be more than zero"));
            }
            Ok(period)
        });
    }

    pub(super) fn set_count<T: TryFrom<u64>>(
        &mut self,
        problems: &mut Vec<Problem>,
        key: &'static str,
        target: &mut T,
        range: RangeInclusive<u64>,
    ) {
        self.set(problems, key, target, |field| {
            let count = field.count(&range)?;
            T::try_from(count).map_err(|_| field.out_of_range(&range))
        });
    }

    pub(super) fn set_bytes<T: TryFrom<u64>>(
        &mut self,
        problems: &mut Vec<Problem>,
        key: &'static str,
        target: &mut T,
        range: RangeInclusive<u64>,
    ) {
        self.set(problems, key, target, |field| {
            let bytes = field.bytes(&range)?;
            T::try_from(bytes).map_err(|_| field.out_of_range(&range))
        });
    }

    /// Opens a mapping in the field `key`, if it is set.
    pub(super) fn section(
        &mut self,
        problems: &mut Vec<Problem>,
        key: &'static str,
    ) -> Option<Section<'a>> {
        let field = self.take(key)?;
        Section::open(&field)
            .map_err(|problem| problems.push(problem))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_allow_rule, parse_bytes, parse_duration};
    use crate::config::AllowRule;
    use std::time::Duration;

    #[test]
    fn durations_by_hand() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5s"), Some(Duration::from_millis(1_500)));
        assert_eq!(parse_duration("10m"), Some(Duration::from_secs(600)));
        assert_eq!(parse_duration("2 h"), Some(Duration::from_secs(7_200)));
        assert_eq!(parse_duration("30"), Some(Duration::from_secs(30)));
        for bad in ["", "s", "-1s", "1 fortnight", "1e99s", "900000h"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_by_hand() {
        assert_eq!(parse_bytes("64MiB"), Some(67_108_864));
        assert_eq!(parse_bytes("64MB"), Some(64_000_000));
        assert_eq!(parse_bytes("17"), Some(17));
        assert_eq!(parse_bytes("99999999999999999999"), None);
        assert_eq!(parse_bytes("18446744073709551615G"), None);
    }

    #[test]
    fn ranges_contain_what_they_say() {
        let range = parse_allow_rule("10.1.0.0/16");
        let contains = |ip: &str| {
            range
                .as_ref()
                .zip(ip.parse().ok())
                .is_some_and(|(rule, ip)| rule.contains(ip))
        };
        assert!(contains("10.1.255.3"));
        assert!(!contains("10.2.0.1"));
        assert!(!contains("::1"));
        assert_eq!(
            parse_allow_rule("Engine-1.local"),
            Some(AllowRule::Host("engine-1.local".to_owned()))
        );
        assert_eq!(parse_allow_rule("10.0.0.0/33"), None);
        assert_eq!(parse_allow_rule("host/8"), None);
    }
}

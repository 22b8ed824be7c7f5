//! A record's JSON line, written field by field.
//!
//! It says to the letter what the record's `Serialize` says (a test holds it to that). It is here
//! because a record is written for every attempt: the general serialiser looks for escapes in every
//! field's name and costs three times as much.

use crate::attempt::{AttemptRecord, BeliefRecord, CandidateRecord, MissRecord, StayRecord};

/// Appends the record and a line feed.
pub(crate) fn write(record: &AttemptRecord, out: &mut Vec<u8>) {
    let r = record;
    let mut line = Line { out };
    line.number(b"{\"schema\":", u64::from(r.schema));
    line.number(b",\"time_ms\":", r.time_ms);
    line.text(b",\"request_id\":", &r.request_id);
    line.number(b",\"attempt\":", u64::from(r.attempt));
    line.hex(b",\"tenant\":", Some(r.tenant));
    line.text(b",\"pool\":", &r.pool);
    line.text(b",\"model\":", &r.model);
    line.text(b",\"route\":", &r.route);
    line.flag(b",\"stream\":", r.stream);
    line.number(b",\"turn\":", u64::from(r.turn));
    line.hex(b",\"session\":", r.session);
    line.text(b",\"session_source\":", &r.session_source);
    line.text(b",\"identity\":", &r.identity);
    line.some_text(b",\"identity_fallback\":", r.identity_fallback.as_deref());
    line.number(b",\"roles_renamed\":", u64::from(r.roles_renamed));
    line.some_text(b",\"policy\":", r.policy.as_deref());
    line.some_text(b",\"reason\":", r.reason.as_deref());
    line.some_text(b",\"worker\":", r.worker.as_deref());
    line.candidates(&r.candidates);
    line.number(b",\"candidates_count\":", u64::from(r.candidates_count));
    line.some_text(b",\"fairness\":", r.fairness.as_deref());
    line.some_text(b",\"line\":", r.line.as_deref());
    line.count(b",\"band\":", r.band.map(u64::from));
    line.count(b",\"charge\":", r.charge);
    line.real(
        b",\"predicted_start_ms\":",
        r.predicted_start_ms.map(to_micros),
    );
    line.real(b",\"ttft_expected_ms\":", r.ttft_expected_ms.map(to_micros));
    line.number(b",\"passed_by\":", u64::from(r.passed_by));
    line.number(b",\"prompt_bytes\":", r.prompt_bytes);
    line.count(
        b",\"prompt_tokens_estimated\":",
        r.prompt_tokens_estimated.map(u64::from),
    );
    line.count(b",\"prompt_tokens\":", r.prompt_tokens.map(u64::from));
    line.count(
        b",\"predicted_cached_tokens\":",
        r.predicted_cached_tokens.map(u64::from),
    );
    line.belief(r.belief.as_ref());
    line.count(b",\"cached_tokens\":", r.cached_tokens.map(u64::from));
    line.misses(r.misses.as_ref());
    line.stay(r.stay.as_ref());
    line.count(b",\"output_tokens\":", r.output_tokens.map(u64::from));
    line.real(b",\"queue_ms\":", Some(to_micros(r.queue_ms)));
    line.real(b",\"ttft_ms\":", r.ttft_ms.map(to_micros));
    line.real(b",\"e2e_ms\":", Some(to_micros(r.e2e_ms)));
    line.count(b",\"report_age_ms\":", r.report_age_ms);
    line.flag(b",\"stale\":", r.stale);
    line.text(b",\"outcome\":", r.outcome.as_str());
    line.some_text(b",\"failure\":", r.failure.as_deref());
    line.some_text(b",\"pull\":", r.pull.as_deref());
    line.some_text(b",\"lost\":", r.lost.as_deref());
    line.count(b",\"status\":", r.status.map(u64::from));
    line.hex(b",\"seed\":", Some(r.seed));
    line.out.extend_from_slice(b"}\n");
}

/// Milliseconds to the microsecond: more digits are noise.
pub(crate) fn to_micros(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

struct Line<'a> {
    out: &'a mut Vec<u8>,
}

impl Line<'_> {
    fn null(&mut self) {
        self.out.extend_from_slice(b"null");
    }

    fn number(&mut self, key: &[u8], value: u64) {
        self.out.extend_from_slice(key);
        self.out
            .extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    fn count(&mut self, key: &[u8], value: Option<u64>) {
        match value {
            Some(value) => self.number(key, value),
            None => {
                self.out.extend_from_slice(key);
                self.null();
            }
        }
    }

    /// A number that JSON cannot hold is null, as an unknown one.
    fn real(&mut self, key: &[u8], value: Option<f64>) {
        self.out.extend_from_slice(key);
        match value.filter(|value| value.is_finite()) {
            Some(value) => self
                .out
                .extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes()),
            None => self.null(),
        }
    }

    fn flag(&mut self, key: &[u8], value: bool) {
        self.out.extend_from_slice(key);
        let word: &[u8] = if value { b"true" } else { b"false" };
        self.out.extend_from_slice(word);
    }

    fn hex(&mut self, key: &[u8], value: Option<u64>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.out.extend_from_slice(key);
        let Some(value) = value else {
            return self.null();
        };
        let mut text = *b"\"0000000000000000\"";
        for (place, digit) in text[1..17].iter_mut().enumerate() {
            *digit = DIGITS[(value >> (60 - 4 * place) & 15) as usize];
        }
        self.out.extend_from_slice(&text);
    }

    fn text(&mut self, key: &[u8], value: &str) {
        self.out.extend_from_slice(key);
        let plain = |b: u8| b >= 0x20 && b != b'"' && b != b'\\';
        if value.bytes().all(plain) {
            self.out.push(b'"');
            self.out.extend_from_slice(value.as_bytes());
            self.out.push(b'"');
        } else {
            // A text always has a JSON form, and a vector takes all of it.
            let _ = serde_json::to_writer(&mut *self.out, value);
        }
    }

    fn some_text(&mut self, key: &[u8], value: Option<&str>) {
        match value {
            Some(value) => self.text(key, value),
            None => {
                self.out.extend_from_slice(key);
                self.null();
            }
        }
    }

    fn belief(&mut self, belief: Option<&BeliefRecord>) {
        self.out.extend_from_slice(b",\"belief\":");
        let Some(belief) = belief else {
            return self.null();
        };
        self.text(b"{\"source\":", &belief.source);
        self.number(b",\"blocks\":", u64::from(belief.blocks));
        self.number(b",\"observed\":", u64::from(belief.observed));
        self.count(b",\"device\":", belief.device.map(u64::from));
        self.count(b",\"host\":", belief.host.map(u64::from));
        self.count(b",\"rank\":", belief.rank.map(u64::from));
        self.number(b",\"leaving\":", u64::from(belief.leaving));
        self.number(b",\"predicted\":", u64::from(belief.predicted));
        self.flag(b",\"uncertain\":", belief.uncertain);
        self.count(b",\"age_ms\":", belief.age_ms);
        self.out.push(b'}');
    }

    fn misses(&mut self, misses: Option<&MissRecord>) {
        self.out.extend_from_slice(b",\"misses\":");
        let Some(misses) = misses else {
            return self.null();
        };
        self.number(b"{\"new\":", u64::from(misses.new));
        self.number(b",\"diverged\":", u64::from(misses.diverged));
        self.number(b",\"scope\":", u64::from(misses.scope));
        self.number(b",\"moved\":", u64::from(misses.moved));
        self.some_text(b",\"moved_why\":", misses.moved_why.as_deref());
        self.number(b",\"evicted\":", u64::from(misses.evicted));
        self.number(b",\"restarted\":", u64::from(misses.restarted));
        self.number(b",\"unknown\":", u64::from(misses.unknown));
        self.count(b",\"common_tokens\":", misses.common_tokens.map(u64::from));
        self.some_text(b",\"ancestor_worker\":", misses.ancestor_worker.as_deref());
        self.out.push(b'}');
    }

    fn stay(&mut self, stay: Option<&StayRecord>) {
        self.out.extend_from_slice(b",\"stay\":");
        let Some(stay) = stay else {
            return self.null();
        };
        self.text(b"{\"worker\":", &stay.worker);
        self.number(b",\"matched_tokens\":", u64::from(stay.matched_tokens));
        self.real(
            b",\"ttft_expected_ms\":",
            stay.ttft_expected_ms.map(to_micros),
        );
        self.out.push(b'}');
    }

    fn candidates(&mut self, candidates: &[CandidateRecord]) {
        self.out.extend_from_slice(b",\"candidates\":[");
        for (index, c) in candidates.iter().enumerate() {
            let first: &[u8] = if index == 0 {
                b"{\"worker\":"
            } else {
                b",{\"worker\":"
            };
            self.text(first, &c.worker);
            self.real(b",\"score\":", c.score);
            self.number(b",\"running\":", u64::from(c.running));
            self.number(b",\"prefill_tokens\":", c.prefill_tokens);
            self.number(b",\"matched_tokens\":", u64::from(c.matched_tokens));
            self.flag(b",\"seat\":", c.seat);
            self.out.push(b'}');
        }
        self.out.push(b']');
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::write;
    use crate::attempt::{
        AttemptRecord, BeliefRecord, CandidateRecord, MissRecord, Outcome, StayRecord,
    };
    use crate::name::Name;
    use std::borrow::Cow;

    /// Both ways to write it, which must be equal to the letter.
    fn check(record: &AttemptRecord) {
        let mut line = Vec::new();
        write(record, &mut line);
        let mut expected = serde_json::to_vec(record).unwrap();
        expected.push(b'\n');
        assert_eq!(
            String::from_utf8(line).unwrap(),
            String::from_utf8(expected).unwrap()
        );
    }

    fn full(text: &str, real: f64) -> AttemptRecord {
        let candidate = |score| CandidateRecord {
            worker: Name::from(text),
            score,
            running: 3,
            prefill_tokens: 1 << 40,
            matched_tokens: 17,
            seat: false,
        };
        AttemptRecord {
            time_ms: u64::MAX,
            request_id: Name::from(text),
            attempt: 2,
            tenant: 0x00ab_cdef_0123_4567,
            pool: Name::from(text),
            model: Name::from(text),
            route: Cow::Owned(text.to_owned()),
            stream: true,
            turn: 7,
            session: Some(9),
            policy: Some(Cow::Owned(text.to_owned())),
            reason: Some(Cow::Borrowed("home")),
            worker: Some(Name::from(text)),
            candidates: vec![
                candidate(Some(real)),
                candidate(None),
                candidate(Some(f64::NAN)),
            ],
            candidates_count: 3,
            fairness: Some("promise".into()),
            line: Some("new".into()),
            band: Some(1),
            charge: Some(1_300),
            predicted_start_ms: Some(1_234.567_8),
            ttft_expected_ms: Some(2_345.678_9),
            passed_by: 1,
            prompt_bytes: 12,
            prompt_tokens_estimated: Some(1),
            prompt_tokens: Some(2),
            predicted_cached_tokens: Some(0),
            belief: Some(BeliefRecord {
                source: "observed".into(),
                blocks: 4,
                observed: 4,
                device: Some(3),
                host: Some(4),
                rank: Some(0),
                leaving: 1,
                predicted: 2,
                uncertain: true,
                age_ms: Some(7),
            }),
            cached_tokens: Some(3),
            misses: Some(MissRecord {
                new: 1,
                diverged: 2,
                scope: 3,
                moved: 4,
                moved_why: Some("escape".into()),
                evicted: 5,
                restarted: 6,
                unknown: 7,
                common_tokens: Some(8),
                ancestor_worker: Some(Name::from(text)),
            }),
            stay: Some(StayRecord {
                worker: Name::from(text),
                matched_tokens: 9,
                ttft_expected_ms: Some(real),
            }),
            output_tokens: Some(4),
            queue_ms: real,
            ttft_ms: Some(real),
            e2e_ms: real * 3.0,
            report_age_ms: Some(5),
            stale: true,
            outcome: Outcome::Cancelled,
            failure: Some(Cow::Borrowed("reset")),
            pull: Some(Cow::Borrowed("horde")),
            lost: Some(Cow::Borrowed("expired")),
            status: Some(499),
            seed: u64::MAX,
            ..AttemptRecord::default()
        }
    }

    #[test]
    fn equal_to_the_general_serialiser() {
        check(&AttemptRecord::default());
        for text in ["", "plain-1", "quote \" back \\ line \n \u{1} ü 北 \u{7f}"] {
            for real in [0.0, 1.0, 0.1, 1.234_567_8, 12_345.678, 1e-9, 1e21, -2.5] {
                check(&full(text, real));
            }
        }
    }
}

//! The line as the admin API and the metrics see it.

use super::Scheduler;
use crate::limits::TENANTS_SHOWN_MAX;
use crate::line::{Class, ClassView, LineView, LinesView};
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;

impl Scheduler {
    /// The queue: who waits, how long it would take, what came of it.
    #[must_use]
    pub fn lines(&self, now: Nanos) -> LinesView {
        let counts = &self.line.counts;
        let (tenants, tenants_waiting) = counts.tenants(TENANTS_SHOWN_MAX, now);
        let [jain_service, jain_slowdown] = counts.jain(now);
        let mut lines = counts.views(now);
        self.ages(&mut lines, now);
        // The class in which most wait speaks for the line.
        let most = self.line.classes().max_by_key(|(_, class)| class.waiting);
        if let Some((_, class)) = most {
            for line in &mut lines {
                let order = class.order(line.band);
                line.predicted_start = predicted(class, line, now);
                line.drain_rate = class.drain.rate();
                line.share = order.share(line.line);
                line.share_floor = order.share_floor(line.line);
            }
        }
        let classes = self.line.classes().map(|(_, class)| class);
        let classes = classes.filter(|class| class.waiting > 0);
        let class = |class: &Class| ClassView {
            workers: class.workers.clone(),
            waiting: class.waiting,
            holding: class.holding,
            drain_rate: class.drain.rate(),
            starts: lines
                .iter()
                .map(|line| (line.band, line.line, predicted(class, line, now)))
                .collect(),
        };
        LinesView {
            fairness: self.config.fairness.name(),
            classes: classes.map(class).collect(),
            lines,
            tenants,
            tenants_waiting,
            jain_service,
            jain_slowdown,
            service_seconds: counts.service(),
        }
    }

    /// The oldest of each line, and those who wait longer than was promised: they stand in front.
    fn ages(&self, lines: &mut [LineView], now: Nanos) {
        let promised = |line: &LineView| {
            let classes = self.line.classes();
            let limit = |class: &Class| class.order(line.band).start_within(line.line);
            classes.filter_map(|(_, class)| limit(class)).max()
        };
        let limits: Vec<Option<Duration>> = lines.iter().map(promised).collect();
        let least = limits.iter().flatten().min().copied();
        let mut unseen = lines.iter().filter(|line| line.waiting > 0).count();
        for (_, id) in self.line.iter() {
            let Some(request) = self.requests.get(&id) else {
                continue;
            };
            let wait = now.since(request.arrived);
            if unseen == 0 && least.is_none_or(|least| wait <= least) {
                break;
            }
            let ticket = &request.ticket;
            let own = |l: &LineView| l.band == ticket.band && l.line == ticket.line;
            let Some(at) = lines.iter().position(own) else {
                continue;
            };
            let line = &mut lines[at];
            if line.oldest.is_none() {
                line.oldest = Some(wait);
                unseen -= 1;
            }
            let late = limits[at].is_some_and(|limit| wait > limit);
            line.overdue += usize::from(late && request.attempts == 0);
        }
    }
}

/// When one with the line's usual charge would start if it came now.
fn predicted(class: &Class, line: &LineView, now: Nanos) -> Option<Duration> {
    let order = class.order(line.band);
    let each = line.dispatched_charge.checked_div(line.dispatched);
    let ahead = order.ahead(line.line, each.unwrap_or(0) as f64, None);
    class.drain.time_for(ahead, order.quantile(), now)
}

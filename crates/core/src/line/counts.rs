//! What waits of each flow, tenant and band, and what came of each line.

use super::terms::{Band, LineKind, LineLimits, Tenants};
use super::ticket::Ticket;
use super::view::{LineView, TenantView};
use crate::ids::TenantId;
use crate::request::Refusal;
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    requests: u32,
    bytes: u64,
}

impl Sum {
    fn fits(self, limits: LineLimits, bytes: u64) -> bool {
        limits.requests_max.is_none_or(|most| self.requests < most)
            && limits
                .bytes_max
                .is_none_or(|most| self.bytes.saturating_add(bytes) <= most)
    }

    fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn sub(&mut self, bytes: u64) {
        self.requests = self.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// What each further time of service counts for in the mean of late.
const SERVICE_NEWEST: f64 = 1.0 / 16.0;

/// When those who wait came, added up: how long they have waited together follows from it.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    count: u64,
    nanos: u128,
}

impl Arrivals {
    fn add(&mut self, at: Nanos) {
        self.count += 1;
        self.nanos += u128::from(at.0);
    }

    fn sub(&mut self, at: Nanos) {
        self.count = self.count.saturating_sub(1);
        self.nanos = self.nanos.saturating_sub(u128::from(at.0));
    }

    fn waited(self, now: Nanos) -> Duration {
        let nanos = (u128::from(now.0) * u128::from(self.count)).saturating_sub(self.nanos);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[derive(Debug)]
struct Tenant {
    sum: Sum,
    flows: u32,
    band: u16,
    weight: f64,
    served: f64,
    arrivals: Arrivals,
    /// Slowdowns of its requests that ended, added up, and how many.
    slowdowns: (f64, u64),
}

impl Tenant {
    fn slowdown(&self, service: f64, now: Nanos) -> f64 {
        let waiting = self.arrivals.count as f64;
        let waits = self.arrivals.waited(now).as_secs_f64() / service + waiting;
        (self.slowdowns.0 + waits) / (self.slowdowns.1 as f64 + waiting).max(1.0)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    flows: HashMap<u64, Sum, FxBuildHasher>,
    tenants: HashMap<TenantId, Tenant, FxBuildHasher>,
    /// Both lines of every band.
    pub(crate) lines: Vec<[LineView; 2]>,
    /// The same for when those who wait came.
    arrivals: Vec<[Arrivals; 2]>,
    /// How long a served request takes its seat, lately, in seconds.
    service: Option<f64>,
}

impl Counts {
    pub(crate) fn line(&mut self, band: u16, line: LineKind) -> &mut LineView {
        let at = usize::from(band);
        while self.lines.len() <= at {
            let band = self.lines.len() as u16;
            let of = |line| LineView {
                band,
                line,
                ..LineView::default()
            };
            self.lines.push(LineKind::ALL.map(of));
            self.arrivals.push(Default::default());
        }
        &mut self.lines[at][line as usize]
    }

    /// What of the limits would not hold with this one more.
    pub(crate) fn full(
        &self,
        ticket: &Ticket,
        flow_limits: LineLimits,
        tenants: &Tenants,
        bands: &[Band],
    ) -> Option<Refusal> {
        let bytes = ticket.bytes;
        let flow = self.flows.get(&ticket.flow).copied().unwrap_or_default();
        if !flow.fits(flow_limits, bytes) {
            return Some(Refusal::FlowFull);
        }
        let tenant = self.tenants.get(&ticket.tenant).map(|t| t.sum);
        if !tenant
            .unwrap_or_default()
            .fits(tenants.of(ticket.tenant).limits, bytes)
        {
            return Some(Refusal::TenantFull);
        }
        let band = bands.get(usize::from(ticket.band));
        let mut sum = Sum::default();
        if let Some(lines) = self.lines.get(usize::from(ticket.band)) {
            for line in lines {
                sum.requests += line.waiting as u32;
                sum.bytes += line.bytes;
            }
        }
        band.is_some_and(|band| !sum.fits(band.limits, bytes))
            .then_some(Refusal::BandFull)
    }

    pub(crate) fn enter(&mut self, ticket: &Ticket) {
        let bytes = ticket.bytes;
        let flow = self.flows.entry(ticket.flow).or_default();
        flow.add(bytes);
        let first = flow.requests == 1;
        let tenant = self.tenants.entry(ticket.tenant).or_insert_with(|| Tenant {
            sum: Sum::default(),
            flows: 0,
            band: ticket.band,
            weight: ticket.weight,
            served: 0.0,
            arrivals: Arrivals::default(),
            slowdowns: (0.0, 0),
        });
        tenant.sum.add(bytes);
        tenant.flows += u32::from(first);
        tenant.arrivals.add(ticket.arrived);
        let line = self.line(ticket.band, ticket.line);
        line.waiting += 1;
        line.bytes += bytes;
        line.charge += ticket.charge() as u64;
        self.arrivals[usize::from(ticket.band)][ticket.line as usize].add(ticket.arrived);
    }

    pub(crate) fn exit(&mut self, ticket: &Ticket) {
        let bytes = ticket.bytes;
        let mut last = false;
        if let Some(flow) = self.flows.get_mut(&ticket.flow) {
            flow.sub(bytes);
            last = flow.requests == 0;
        }
        if last {
            self.flows.remove(&ticket.flow);
        }
        if let Some(tenant) = self.tenants.get_mut(&ticket.tenant) {
            tenant.sum.sub(bytes);
            tenant.flows = tenant.flows.saturating_sub(u32::from(last));
            tenant.arrivals.sub(ticket.arrived);
            if tenant.sum.requests == 0 {
                self.tenants.remove(&ticket.tenant);
            }
        }
        let line = self.line(ticket.band, ticket.line);
        line.waiting = line.waiting.saturating_sub(1);
        line.bytes = line.bytes.saturating_sub(bytes);
        line.charge = line.charge.saturating_sub(ticket.charge() as u64);
        self.arrivals[usize::from(ticket.band)][ticket.line as usize].sub(ticket.arrived);
    }

    /// One is dispatched for the first time.
    pub(crate) fn dispatched(&mut self, ticket: &Ticket) {
        let charge = ticket.charge();
        self.charged(ticket.tenant, charge);
        let other = match ticket.line {
            LineKind::New => LineKind::Returning,
            LineKind::Returning => LineKind::New,
        };
        let contested = self.line(ticket.band, other).waiting > 0;
        let line = self.line(ticket.band, ticket.line);
        line.dispatched += 1;
        line.dispatched_charge += charge as u64;
        if contested {
            line.contested_charge += charge as u64;
        }
    }

    /// One was served: how long it waited, and how long it took its seat.
    pub(crate) fn ended(&mut self, tenant: TenantId, wait: Duration, service: Duration) {
        let seconds = service.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let mean = self.service.unwrap_or(seconds);
        self.service = Some(mean + SERVICE_NEWEST * (seconds - mean));
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.slowdowns.0 += wait.as_secs_f64() / seconds + 1.0;
            tenant.slowdowns.1 += 1;
        }
    }

    /// Both lines of every band, with how long those who wait have waited.
    pub(crate) fn views(&self, now: Nanos) -> Vec<LineView> {
        let lines = self.lines.iter().flatten();
        let arrivals = self.arrivals.iter().flatten();
        let view = |(line, arrivals): (&LineView, &Arrivals)| LineView {
            waited: arrivals.waited(now),
            ..line.clone()
        };
        lines.zip(arrivals).map(view).collect()
    }

    /// How long a served request takes its seat, lately, in seconds.
    pub(crate) fn service(&self) -> Option<f64> {
        self.service
    }

    /// Jain's index over service by weight, and over slowdowns, of all tenants that wait.
    pub(crate) fn jain(&self, now: Nanos) -> [Option<f64>; 2] {
        let tenants = || self.tenants.values();
        let service = jain(tenants().map(|t| t.served / t.weight));
        let slowdown = self
            .service
            .and_then(|service| jain(tenants().map(|t| t.slowdown(service, now))));
        [service, slowdown]
    }

    pub(crate) fn charged(&mut self, tenant: TenantId, charge: f64) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.served += charge;
        }
    }

    /// The tenants with most requests, and how many wait.
    pub(crate) fn tenants(&self, most: usize, now: Nanos) -> (Vec<TenantView>, usize) {
        let view = |(id, tenant): (&TenantId, &Tenant)| TenantView {
            tenant: *id,
            band: tenant.band,
            weight: tenant.weight,
            waiting: tenant.sum.requests as usize,
            bytes: tenant.sum.bytes,
            flows: tenant.flows as usize,
            served_charge: tenant.served,
            slowdown: self.service.map(|service| tenant.slowdown(service, now)),
        };
        let mut all: Vec<TenantView> = self.tenants.iter().map(view).collect();
        all.sort_unstable_by(|a, b| b.waiting.cmp(&a.waiting).then(a.tenant.cmp(&b.tenant)));
        let count = all.len();
        all.truncate(most);
        (all, count)
    }
}

/// (sum of x)^2 / (n x sum of x^2). Source: Jain, Chiu, Hawe, DEC-TR-301 (1984).
fn jain(shares: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        (count, sum, squares) = (count + 1.0, sum + share, squares + share * share);
    }
    (count > 1.0 && squares > 0.0).then(|| sum * sum / (count * squares))
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn jains_index_by_hand() {
        let of = |shares: &[f64]| jain(shares.iter().copied());
        assert_eq!(of(&[5.0]), None);
        assert_eq!(of(&[0.0, 0.0]), None);
        assert_eq!(of(&[4.0, 4.0]), Some(1.0));
        assert_eq!(of(&[4.0, 0.0]), Some(0.5));
        // (1 + 3)^2 / (2 x (1 + 9))
        assert_eq!(of(&[1.0, 3.0]), Some(0.8));
    }
}

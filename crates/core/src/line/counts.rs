//! What waits of each flow, tenant and band, and what came of each line.

use super::terms::{Band, LineKind, LineLimits, Tenants};
use super::ticket::Ticket;
use super::view::{LineView, TenantView};
use crate::ids::TenantId;
use crate::request::Refusal;
use alloc::vec::Vec;
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

#[derive(Debug)]
struct Tenant {
    sum: Sum,
    flows: u32,
    band: u16,
    weight: f64,
    served: f64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    flows: HashMap<u64, Sum, FxBuildHasher>,
    tenants: HashMap<TenantId, Tenant, FxBuildHasher>,
    /// Both lines of every band.
    pub(crate) lines: Vec<[LineView; 2]>,
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
        });
        tenant.sum.add(bytes);
        tenant.flows += u32::from(first);
        let line = self.line(ticket.band, ticket.line);
        line.waiting += 1;
        line.bytes += bytes;
        line.charge += ticket.charge() as u64;
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
            if tenant.sum.requests == 0 {
                self.tenants.remove(&ticket.tenant);
            }
        }
        let line = self.line(ticket.band, ticket.line);
        line.waiting = line.waiting.saturating_sub(1);
        line.bytes = line.bytes.saturating_sub(bytes);
        line.charge = line.charge.saturating_sub(ticket.charge() as u64);
    }

    pub(crate) fn charged(&mut self, tenant: TenantId, charge: f64) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.served += charge;
        }
    }

    /// The tenants with most requests, and how many wait.
    pub(crate) fn tenants(&self, most: usize) -> (Vec<TenantView>, usize) {
        let view = |(id, tenant): (&TenantId, &Tenant)| TenantView {
            tenant: *id,
            band: tenant.band,
            weight: tenant.weight,
            waiting: tenant.sum.requests as usize,
            bytes: tenant.sum.bytes,
            flows: tenant.flows as usize,
            served_charge: tenant.served,
        };
        let mut all: Vec<TenantView> = self.tenants.iter().map(view).collect();
        all.sort_unstable_by(|a, b| b.waiting.cmp(&a.waiting).then(a.tenant.cmp(&b.tenant)));
        let count = all.len();
        all.truncate(most);
        (all, count)
    }
}

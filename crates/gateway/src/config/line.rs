//! Who goes next in a pool: `fairness`, `bands`, `flow_limits` and `forward_priority`.

use super::options;
use super::problem::Problem;
use super::settings::PoolSettings;
use super::tenants::read_limits;
use super::tree::Section;
use maitred_core::limits::BANDS_MAX;
use maitred_core::line::{Band, LineLimits};
use maitred_core::scheduler::PoolConfig;
use serde_json::{Value, json};

/// Takes a pool's settings.
pub(super) fn read(
    section: &mut Section<'_>,
    pool: &mut PoolSettings,
    problems: &mut Vec<Problem>,
) {
    read_bands(section, &mut pool.core, problems);
    if let Some(field) = section.take("forward_priority") {
        match field.flag() {
            Ok(flag) => pool.forward_priority = flag,
            Err(problem) => problems.push(problem),
        }
        if pool.forward_priority && pool.core.bands.len() < 2 {
            problems.push(field.problem("needs `bands`, two at least: a priority is one's band"));
        }
    }
}

fn read_bands(section: &mut Section<'_>, core: &mut PoolConfig, problems: &mut Vec<Problem>) {
    section.set(problems, "fairness", &mut core.fairness, options::read);
    if let Some(mut limits) = section.section(problems, "flow_limits") {
        read_limits(&mut limits, &mut core.flow_limits, problems);
        limits.finish(problems);
    }
    let Some(field) = section.take("bands") else {
        return;
    };
    for item in field.items() {
        match Section::open(&item) {
            Ok(section) => {
                let band = read_band(section, problems);
                if core.bands.iter().any(|known| known.name == band.name) {
                    problems.push(item.problem(format!("`{}` is there already", band.name)));
                }
                core.bands.push(band);
            }
            Err(_) => problems.push(item.wrong_kind("a mapping with `name`")),
        }
    }
    if core.bands.len() > BANDS_MAX {
        problems.push(field.problem(format!("there are at most {BANDS_MAX} bands")));
    }
}

fn read_band(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Band {
    let mut band = Band::default();
    match section.take("name") {
        Some(field) => match field.name() {
            Ok(name) => band.name = name,
            Err(problem) => problems.push(problem),
        },
        None => problems.push(section.problem("name", "is missing")),
    }
    section.set(problems, "floor", &mut band.floor, |field| {
        let floor = field.number()?;
        if (0.0..=1.0).contains(&floor) {
            Ok(floor)
        } else {
            Err(field.problem("must be 0 to 1, and together at most 1"))
        }
    });
    read_limits(&mut section, &mut band.limits, problems);
    section.finish(problems);
    band
}

/// Each band that a tenant names must be one of some pool's.
pub(super) fn check_bands(
    named: Vec<(String, Problem)>,
    pools: &[PoolSettings],
    problems: &mut Vec<Problem>,
) {
    for (name, problem) in named {
        let mut bands = pools.iter().flat_map(|pool| &pool.core.bands);
        if !bands.any(|band| band.name == name) {
            problems.push(problem);
        }
    }
}

/// As the effective configuration shows it, under the names in the file.
pub(super) fn show(core: &PoolConfig) -> [(&'static str, Value); 3] {
    let band = |band: &Band| {
        json!({
            "name": band.name,
            "floor": band.floor,
            "requests_max": band.limits.requests_max,
            "bytes_max": band.limits.bytes_max,
        })
    };
    let LineLimits {
        requests_max,
        bytes_max,
    } = core.flow_limits;
    [
        ("fairness", json!(core.fairness.name())),
        ("bands", core.bands.iter().map(band).collect()),
        (
            "flow_limits",
            json!({ "requests_max": requests_max, "bytes_max": bytes_max }),
        ),
    ]
}

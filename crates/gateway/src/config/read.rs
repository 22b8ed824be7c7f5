//! From the file's text to a checked configuration.

use super::line;
use super::pools::read_pools;
use super::problem::Problem;
use super::settings::{AllowRule, Config, Secret};
use super::tenants;
use super::tree::{Field, Section, parse};
use super::values::parse_allow_rule;
use std::path::PathBuf;

/// Checks a configuration file's text.
///
/// # Errors
/// Everything that is wrong with it, in the order of the file's lines.
pub fn check(text: &str) -> Result<Config, Vec<Problem>> {
    let root = parse(text).map_err(|problem| vec![problem])?;
    let field = Field {
        path: String::new(),
        node: &root,
    };
    let top = Section::open(&field).map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    let config = read_top(top, &mut problems);
    if problems.is_empty() {
        return Ok(config);
    }
    problems.sort_by_key(|problem| (problem.line, problem.column));
    Err(problems)
}

fn read_top(mut top: Section<'_>, problems: &mut Vec<Problem>) -> Config {
    let mut config = Config::default();
    top.set(problems, "listen", &mut config.listen, Field::address);
    read_admin(&mut top, &mut config, problems);
    top.set_count(problems, "threads", &mut config.threads, 0..=1_024);
    top.set(problems, "strict", &mut config.strict, Field::flag);
    read_limits(&mut top, &mut config, problems);
    read_timeouts(&mut top, &mut config, problems);
    top.set(
        problems,
        "tolerate_half_close",
        &mut config.tolerate_half_close,
        Field::flag,
    );
    config.trusted_proxies = rules(&mut top, "trusted_proxies", problems);
    if let Some(field) = top.take("cors_origins") {
        config.cors_origins = read_origins(&field, problems);
    }
    top.set(problems, "expose", &mut config.expose, Field::flag);
    read_identity(&mut top, &mut config, problems);
    read_records(&mut top, &mut config, problems);
    top.set_duration(problems, "shutdown_grace", &mut config.shutdown_grace);
    if let Some(field) = top.take("seed") {
        match field.count(&(0..=u64::MAX)) {
            Ok(seed) => config.seed = Some(seed),
            Err(problem) => problems.push(problem),
        }
    }
    let mut named = super::pull::Named::default();
    config.pull = super::pull::read(&mut top, &mut named, problems);
    let bands = tenants::read(&mut top, &mut config, problems);
    config.pools = read_pools(&mut top, config.salt_secret.is_some(), problems);
    line::check_bands(bands, &config.pools, problems);
    named.check(&config, problems);
    top.finish(problems);
    config
}

fn read_admin(top: &mut Section<'_>, config: &mut Config, problems: &mut Vec<Problem>) {
    let admin = top.take("admin");
    if let Some(field) = &admin {
        match field.address() {
            Ok(address) => config.admin = address,
            Err(problem) => problems.push(problem),
        }
    }
    if let Some(field) = top.take("admin_token") {
        match field.text() {
            Ok(token) => config.admin_token = Some(Secret::new(token)),
            Err(problem) => problems.push(problem),
        }
    } else if let Some(field) = &admin
        && !config.admin.ip().is_loopback()
    {
        problems.push(field.problem("must be a loopback address unless `admin_token` is set"));
    }
    if let Some(field) = &admin
        && config.admin == config.listen
        && config.admin.port() != 0
    {
        problems.push(field.problem("must be another address than `listen`"));
    }
    config.worker_allow = rules(top, "worker_allow", problems);
}

fn read_limits(top: &mut Section<'_>, config: &mut Config, problems: &mut Vec<Problem>) {
    let Some(mut limits) = top.section(problems, "limits") else {
        return;
    };
    let l = &mut config.limits;
    limits.set_bytes(
        problems,
        "body_max_bytes",
        &mut l.body_max_bytes,
        1..=(4 << 30),
    );
    limits.set_bytes(
        problems,
        "header_max_bytes",
        &mut l.header_max_bytes,
        1_024..=(16 << 20),
    );
    limits.set_count(problems, "headers_max", &mut l.headers_max, 8..=10_000);
    limits.set_count(
        problems,
        "connections_max",
        &mut l.connections_max,
        1..=10_000_000,
    );
    limits.set_count(problems, "json_depth_max", &mut l.json_depth_max, 8..=512);
    limits.finish(problems);
}

fn read_timeouts(top: &mut Section<'_>, config: &mut Config, problems: &mut Vec<Problem>) {
    let Some(mut section) = top.section(problems, "timeouts") else {
        return;
    };
    let timeouts = &mut config.timeouts;
    section.set_period(problems, "connect", &mut timeouts.connect);
    section.set_period(problems, "first_byte", &mut timeouts.first_byte);
    section.set_period(problems, "idle", &mut timeouts.idle);
    section.set_duration(problems, "total", &mut timeouts.total);
    section.set_period(problems, "header_read", &mut timeouts.header_read);
    section.finish(problems);
}

fn read_identity(top: &mut Section<'_>, config: &mut Config, problems: &mut Vec<Problem>) {
    if let Some(field) = top.take("session_header") {
        config.session_headers = Vec::new();
        for item in field.items() {
            match item.header_name() {
                Ok(name) => config.session_headers.push(name),
                Err(problem) => problems.push(problem),
            }
        }
    }
    top.set(
        problems,
        "scenario_header",
        &mut config.scenario_header,
        Field::header_name,
    );
}

fn read_records(top: &mut Section<'_>, config: &mut Config, problems: &mut Vec<Problem>) {
    let Some(mut section) = top.section(problems, "records") else {
        return;
    };
    let records = &mut config.records;
    section.set(problems, "dir", &mut records.dir, |field| {
        field.text().map(|dir| Some(PathBuf::from(dir)))
    });
    section.set_bytes(
        problems,
        "rotate_bytes",
        &mut records.rotate_bytes,
        4_096..=(1 << 40),
    );
    section.set_count(
        problems,
        "keep_files",
        &mut records.keep_files,
        1..=1_000_000,
    );
    section.set_count(problems, "buffer", &mut records.buffer, 1..=1_000_000);
    section.finish(problems);
}

fn rules(top: &mut Section<'_>, key: &'static str, problems: &mut Vec<Problem>) -> Vec<AllowRule> {
    let Some(field) = top.take(key) else {
        return Vec::new();
    };
    let mut rules = Vec::new();
    for item in field.items() {
        match item.text().map(parse_allow_rule) {
            Ok(Some(rule)) => rules.push(rule),
            Ok(None) => problems
                .push(item.problem("must be a host, an address or a range such as 10.0.0.0/8")),
            Err(problem) => problems.push(problem),
        }
    }
    rules
}

fn read_origins(field: &Field<'_>, problems: &mut Vec<Problem>) -> Vec<String> {
    let mut origins = Vec::new();
    for item in field.items() {
        match item.text() {
            Ok(origin) if origin == "*" || is_origin(origin) => origins.push(origin.to_owned()),
            Ok(_) => problems.push(item.problem("must be * or an origin such as https://host")),
            Err(problem) => problems.push(problem),
        }
    }
    origins
}

fn is_origin(text: &str) -> bool {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|host| {
        !host.is_empty() && !host.contains('/') && http::HeaderValue::from_str(host).is_ok()
    })
}

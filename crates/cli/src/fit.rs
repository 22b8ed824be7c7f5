//! `maitred fit`: the engine model's constants from records of a real engine.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use maitred_enginesim::model;
use maitred_lab::fit::{Errors, Fit, Sample, fit};
use maitred_records::{Records, expand};

/// Find the engine model's constants in attempt records, and say how far off they are on records that were held out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Record files, or directories of them.
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// Only records of this pool.
    #[arg(long)]
    pool: Option<String>,
    /// Tokens that one step of the engine computes at most (vLLM: max_num_batched_tokens).
    #[arg(long, value_name = "TOKENS", default_value_t = model::Config::default().max_batch_tokens)]
    batch_tokens: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match found(&args) {
        Ok(text) => {
            // A closed pipe is the reader's choice.
            let _ = write!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "maitred fit: {message}");
            ExitCode::FAILURE
        }
    }
}

fn found(args: &Args) -> Result<String, String> {
    let (mut samples, mut read, mut unreadable) = (Vec::new(), 0_u64, 0);
    for path in expand(&args.records).map_err(|error| error.to_string())? {
        let mut records = Records::open(&path).map_err(|error| error.to_string())?;
        for record in records.by_ref() {
            if args
                .pool
                .as_ref()
                .is_none_or(|pool| record.pool.as_str() == pool)
            {
                read += 1;
                samples.extend(Sample::of(&record));
            }
        }
        unreadable += records.unreadable();
    }
    let fit = fit(&samples, args.batch_tokens).map_err(|error| error.to_string())?;
    if args.json {
        let told = serde_json::json!({
            "records": read,
            "unreadable": unreadable,
            "used": samples.len(),
            "fit": fit,
        });
        return Ok(format!("{told:#}\n"));
    }
    Ok(format!(
        "records            {read}, of which {} say what is needed; {unreadable} lines are not records\n{}",
        samples.len(),
        shown(&fit, args.batch_tokens)
    ))
}

fn shown(fit: &Fit, batch_tokens: usize) -> String {
    let errors = |errors: &Option<Errors>| match errors {
        Some(errors) => format!(
            "off by {:.1} % at the median, {:.1} % at the 90th percentile, bias {:+.1} % ({} held-out requests)",
            errors.p50 * 100.0,
            errors.p90 * 100.0,
            errors.bias * 100.0,
            errors.count
        ),
        None => "unknown: no held-out request has one".to_owned(),
    };
    let rate = fit.prefill_tokens_per_second;
    format!(
        "step               {:.3} ms + {:.3} ms for each running request\n\
         prefill            {} tokens/s\n\
         concurrency seen   {}\n\
         time to first      {}\n\
         time per token     {}\n\n\
         maitred simulate --step-us {} --sequence-us {} --prefill-rate {} --batch-tokens {batch_tokens}\n",
        fit.base_step_ns as f64 / 1e6,
        fit.per_sequence_ns as f64 / 1e6,
        rate.map_or("so many that it cannot be seen:".to_owned(), |rate| rate
            .to_string()),
        fit.concurrency,
        errors(&fit.ttft),
        errors(&fit.tpot),
        fit.base_step_ns / 1_000,
        fit.per_sequence_ns / 1_000,
        rate.unwrap_or(1_000_000_000),
    )
}

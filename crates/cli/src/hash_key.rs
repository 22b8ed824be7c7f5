//! `maitred hash-key`: what stands in the configuration for a tenant's key.

use maitred_gateway::config::digest_of;
use std::io::{Read, Write};
use std::process::ExitCode;

/// Keys are short; whatever is longer is not one.
const KEY_MAX: u64 = 4_096;

/// Print the `key_sha256` of a tenant's key, which is read from standard input.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// The key comes by standard input, because arguments can be seen by others on the machine.
pub(crate) fn run(_args: Args) -> ExitCode {
    let mut key = Vec::new();
    let read = std::io::stdin().take(KEY_MAX + 1).read_to_end(&mut key);
    let problem = match read {
        Err(error) => error.to_string(),
        Ok(_) if key.trim_ascii().is_empty() => {
            "give the key on standard input: printf %s KEY | maitred hash-key".to_owned()
        }
        Ok(_) if key.len() as u64 > KEY_MAX => "the key is too long".to_owned(),
        Ok(_) => {
            let digits: String = digest_of(&key).iter().map(|b| format!("{b:02x}")).collect();
            return match writeln!(std::io::stdout(), "{digits}") {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
    };
    // Nobody reads standard error: then the exit code must do.
    let _ = writeln!(std::io::stderr(), "maitred hash-key: {problem}");
    ExitCode::FAILURE
}

//! What is measured: engines, nginx, maitred, and other routers that somebody else started.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bodies::MODEL;

/// How many engines stand behind every proxy.
pub(crate) const ENGINES: u16 = 4;

/// The name of the gateway, and of the one that knows prompts by their tokens.
pub(crate) const MAITRED: &str = "maitred";
pub(crate) const TOKENS: &str = "maitred in tokens";

/// Something that answers requests and, unless it is the engine itself, has a process to measure.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) addr: SocketAddr,
    pub(crate) pid: Option<u32>,
}

/// A child process that ends with this value.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
}

impl Running {
    fn start(command: &mut Command, log: &Path) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let log_file = std::fs::File::create(log).map_err(|error| format!("{log:?}: {error}"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log_file))
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { child })
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until every address accepts, or fails with the process's last words.
    fn wait_until_listening(&mut self, addrs: &[SocketAddr], log: &Path) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        for addr in addrs {
            while TcpStream::connect(addr).is_err() {
                let ended = self.child.try_wait().map_err(|error| error.to_string())?;
                if ended.is_some() || Instant::now() > deadline {
                    let words = std::fs::read_to_string(log).unwrap_or_default();
                    return Err(format!("not listening on {addr} ({ended:?}):\n{words}"));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address that was free a moment ago.
pub(crate) fn free_addr() -> Result<SocketAddr, String> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|error| format!("bind: {error}"))
}

/// A run of [`ENGINES`] free loopback ports.
fn free_run() -> Result<Vec<SocketAddr>, String> {
    for _ in 0..100 {
        let first = free_addr()?.port();
        let Some(end) = first.checked_add(ENGINES) else {
            continue;
        };
        let held: Result<Vec<_>, _> = (first..end)
            .map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)))
            .collect();
        if held.is_ok() {
            return Ok((first..end)
                .map(|port| (Ipv4Addr::LOCALHOST, port).into())
                .collect());
        }
    }
    Err("no run of free ports".to_owned())
}

/// Starts the zero-delay engines in one process.
pub(crate) fn engines(
    maitred: &Path,
    first_port: Option<u16>,
    dir: &Path,
) -> Result<(Running, Vec<SocketAddr>), String> {
    let addrs = match first_port {
        Some(port) => (port..port.saturating_add(ENGINES))
            .map(|port| (Ipv4Addr::LOCALHOST, port).into())
            .collect(),
        None => free_run()?,
    };
    let log = dir.join("engine.log");
    let mut command = Command::new(maitred);
    // Chunks a millisecond apart: engines emit tokens in steps, and nobody can merge them.
    command.args(["engine", "--zero", "--zero-gap-ms", "1", "--model", MODEL]);
    command.args([
        "--replicas",
        &ENGINES.to_string(),
        "--port",
        &addrs[0].port().to_string(),
    ]);
    let mut running = Running::start(&mut command, &log)?;
    running.wait_until_listening(&addrs, &log)?;
    Ok((running, addrs))
}

/// How the gateway is started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Serve<'a> {
    pub(crate) policy: &'a str,
    /// Threads of the data path.
    pub(crate) threads: usize,
    /// The directory of the model whose tokens prompts are known by; none: by bytes.
    pub(crate) model_dir: Option<&'a Path>,
}

/// Starts the gateway with records on; also says where its admin listener is.
pub(crate) fn maitred(
    binary: &Path,
    serve: Serve<'_>,
    engines: &[SocketAddr],
    dir: &Path,
) -> Result<(Running, Target, SocketAddr), String> {
    let (port, threads) = (free_addr()?.port(), serve.threads.to_string());
    let records = dir.join(format!("records-{port}")).display().to_string();
    let mut arguments = vec!["--policy", serve.policy, "--threads", &threads];
    arguments.extend(["--records", &records]);
    let config = dir.join("tokens.yaml");
    let path = config.display().to_string();
    let urls: Vec<String> = engines.iter().map(|e| format!("http://{e}")).collect();
    if let Some(model_dir) = serve.model_dir {
        let text = tokens_config(engines, model_dir)?;
        std::fs::write(&config, text).map_err(|error| format!("{config:?}: {error}"))?;
        arguments.extend(["--config", &path]);
    } else {
        arguments.extend(urls.iter().flat_map(|url| ["--worker", url]));
    }
    let (running, addr, admin) = self::serve(binary, &arguments, dir)?;
    let name = if serve.model_dir.is_some() {
        TOKENS
    } else {
        MAITRED
    };
    let target = Target {
        name: name.to_owned(),
        addr,
        pid: Some(running.pid()),
    };
    Ok((running, target, admin))
}

/// Starts `maitred serve` with these further arguments; says where clients and operators connect.
pub(crate) fn serve(
    binary: &Path,
    arguments: &[&str],
    dir: &Path,
) -> Result<(Running, SocketAddr, SocketAddr), String> {
    let (addr, admin) = (free_addr()?, free_addr()?);
    let log = dir.join("maitred.log");
    let mut command = Command::new(binary);
    command
        .args(["serve", "--listen", &addr.to_string()])
        .args(["--admin", &admin.to_string(), "--log", "warn"])
        .args(arguments);
    let mut running = Running::start(&mut command, &log)?;
    running.wait_until_listening(&[addr, admin], &log)?;
    Ok((running, addr, admin))
}

fn tokens_config(engines: &[SocketAddr], model_dir: &Path) -> Result<String, String> {
    let model_dir = std::fs::canonicalize(model_dir)
        .map_err(|error| format!("{}: {error}", model_dir.display()))?;
    let mut text = format!(
        "pools:\n  - name: default\n    model: {MODEL}\n    identity: {:?}\n    workers:\n",
        model_dir.display().to_string()
    );
    for engine in engines {
        let _ = writeln!(text, "      - http://{engine}");
    }
    Ok(text)
}

/// The text of a gateway's metrics.
///
/// # Errors
/// Where they cannot be read.
pub(crate) fn metrics(admin: SocketAddr) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(admin)?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = ask().map_err(|error| format!("metrics: {error}"))?;
    if !text.starts_with("HTTP/1.1 200") {
        let first = text.lines().next().unwrap_or_default();
        return Err(format!("metrics: {first}"));
    }
    Ok(text)
}

/// How many prompts a gateway knew by their tokens and how many by their bytes, by its own metrics.
///
/// # Errors
/// Where they cannot be read.
pub(crate) fn identities(admin: SocketAddr) -> Result<(f64, f64), String> {
    let text = metrics(admin)?;
    let sum = |label: &str| {
        text.lines()
            .filter(|line| line.starts_with("maitred_identity_requests") && line.contains(label))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .fold(0.0, std::ops::Add::add)
    };
    Ok((sum("identity=\"tokens\""), sum("identity=\"bytes\"")))
}

/// Starts nginx with keep-alive to the engines and buffering off; `Ok(None)` when not installed.
pub(crate) fn nginx(
    engines: &[SocketAddr],
    dir: &Path,
) -> Result<Option<(Running, Target)>, String> {
    let Some(binary) = nginx_binary() else {
        return Ok(None);
    };
    let addr = free_addr()?;
    let config = dir.join("nginx.conf");
    std::fs::write(&config, nginx_config(addr, engines, dir))
        .map_err(|error| format!("{config:?}: {error}"))?;
    let log = dir.join("nginx.log");
    let mut command = Command::new(binary);
    command.arg("-p").arg(dir).arg("-c").arg(&config);
    let mut running = Running::start(&mut command, &log)?;
    running.wait_until_listening(&[addr], &log)?;
    let target = Target {
        name: "nginx".to_owned(),
        addr,
        pid: Some(running.pid()),
    };
    Ok(Some((running, target)))
}

fn nginx_binary() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|dir| dir.join("nginx"))
        .find(|file| file.is_file())
}

/// One process, as one nginx worker: `master_process off` only spares the idle master.
fn nginx_config(addr: SocketAddr, engines: &[SocketAddr], dir: &Path) -> String {
    let mut servers = String::new();
    for engine in engines {
        let _ = writeln!(servers, "    server {engine};");
    }
    let dir = dir.display();
    format!(
        "daemon off;
master_process off;
worker_processes 1;
error_log stderr warn;
pid {dir}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  keepalive_requests 10000000;
  upstream engines {{
{servers}    keepalive 64;
    keepalive_requests 10000000;
  }}
  server {{
    listen {addr};
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_buffering off;
    }}
  }}
}}
"
    )
}

/// Reads `NAME=URL=PID`.
pub(crate) fn rival(text: &str) -> Result<Target, String> {
    let wrong = || format!("--rival {text}: not NAME=http://ADDRESS:PORT=PID");
    let mut parts = text.splitn(3, '=');
    let (Some(name), Some(url), Some(pid)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong());
    };
    let addr = url.trim_start_matches("http://").trim_end_matches('/');
    Ok(Target {
        name: name.to_owned(),
        addr: addr.parse().map_err(|_| wrong())?,
        pid: Some(pid.parse().map_err(|_| wrong())?),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rivals_are_read() {
        let target = rival("smg=http://127.0.0.1:9000=12").unwrap();
        assert_eq!((target.name.as_str(), target.pid), ("smg", Some(12)));
        assert!(rival("smg=12").is_err());
    }
}

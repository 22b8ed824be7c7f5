use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::OnceLock;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::{Client, Response, within};

/// The `maitred` binary of the build these tests belong to; built first when needed.
///
/// Cargo names binaries only to tests of their own package, so it is found beside the test's own
/// executable (`target/PROFILE/deps/TEST`), and `cargo build` makes sure that it is current.
pub fn maitred_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let test = std::env::current_exe().expect("own path");
        let profile_dir = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
        let target_dir = profile_dir.parent().expect("target");
        let mut build = std::process::Command::new(env!("CARGO"));
        build
            .args([
                "build",
                "--quiet",
                "--locked",
                "-p",
                "maitred",
                "--target-dir",
            ])
            .arg(target_dir)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        if profile_dir.ends_with("release") {
            build.arg("--release");
        }
        let built = build.output().expect("cargo runs");
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(
            built.status.success(),
            "cargo build -p maitred failed:\n{said}"
        );
        profile_dir.join("maitred")
    })
}

/// Runs `maitred` with these arguments to its end.
pub async fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(maitred_path());
    command
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    within("maitred to end", command.output())
        .await
        .expect("maitred runs")
}

/// A running `maitred serve`, killed when dropped.
pub struct Process {
    child: Child,
    /// Where clients connect.
    pub addr: SocketAddr,
    /// Where the admin API listens.
    pub admin: SocketAddr,
    /// Where workers that pull connect, if any may.
    pub pull: Option<SocketAddr>,
    log: std::sync::Arc<std::sync::Mutex<String>>,
}

impl Process {
    /// Starts `maitred serve` on loopback ports of the system's choice, with these further arguments.
    /// It says where it listens once it does.
    pub async fn serve(arguments: &[&str]) -> Self {
        let any = "127.0.0.1:0";
        let mut command = Command::new(maitred_path());
        command
            .args(["serve", "--listen", any, "--admin", any])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("maitred starts");
        let log = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let said = child.stderr.take().expect("stderr");
        let kept = std::sync::Arc::clone(&log);
        let keeping = tokio::spawn(async move {
            let mut lines = BufReader::new(said).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let mut log = kept.lock().expect("log");
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut greeting = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let first = within("maitred to listen", greeting.next_line()).await;
        let Some((addr, admin, pull)) = first.ok().flatten().as_deref().and_then(addresses) else {
            let _ = keeping.await;
            panic!("maitred ended at start:\n{}", log.lock().expect("log"));
        };
        // Read on, so that it is never held up by what nobody reads.
        tokio::spawn(async move { while let Ok(Some(_)) = greeting.next_line().await {} });
        Self {
            child,
            addr,
            admin,
            pull,
            log,
        }
    }

    /// What it wrote to stderr so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("log").clone()
    }

    /// Asks it to read its tenants again (SIGHUP).
    pub fn hang_up(&self) {
        let pid = self.pid().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-HUP", &pid])
            .status();
        assert!(sent.expect("kill runs").success());
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("running")
    }

    /// A new connection to the client listener.
    pub async fn client(&self) -> Client {
        Client::connect(self.addr).await
    }

    /// One JSON POST on a connection of its own.
    pub async fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Response {
        self.client().await.post(path, body).await
    }

    /// One GET of the admin listener on a connection of its own.
    pub async fn admin_get(&self, path: &str) -> Response {
        self.admin_send("GET", path, "").await
    }

    /// One request to the admin listener on a connection of its own.
    pub async fn admin_send(&self, method: &str, path: &str, body: &str) -> Response {
        // The admin listener answers local names only, against DNS rebinding.
        let host = self.admin.to_string();
        let headers = [
            ("host", host.as_str()),
            ("content-type", "application/json"),
        ];
        let bytes = crate::request(method, path, &headers, body);
        Client::connect(self.admin).await.exchange(&bytes).await
    }
}

/// The addresses of `maitred serves http://ADDR, admin http://ADDR, pull http://ADDR`.
fn addresses(greeting: &str) -> Option<(SocketAddr, SocketAddr, Option<SocketAddr>)> {
    let (data, admin) = greeting
        .strip_prefix("maitred serves http://")?
        .split_once(", admin http://")?;
    let (admin, pull) = match admin.split_once(", pull http://") {
        Some((admin, pull)) => (admin, Some(pull.trim().parse().ok()?)),
        None => (admin, None),
    };
    Some((data.parse().ok()?, admin.trim().parse().ok()?, pull))
}

/// A running `maitred agent`, killed when dropped.
pub struct Agent {
    child: Child,
}

impl Agent {
    /// Starts `maitred agent` with these arguments.
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(maitred_path());
        command
            .arg("agent")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        Self {
            child: command.spawn().expect("maitred starts"),
        }
    }

    /// Ends it at once, as a machine that fails.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("killed");
    }

    /// Asks it to end (SIGTERM).
    pub fn stop(&self) {
        let pid = self.child.id().expect("running").to_string();
        let sent = std::process::Command::new("kill").arg(pid).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits until it has ended by itself; returns whether it says that all went well.
    pub async fn ended(mut self) -> bool {
        let status = within("the agent to end", self.child.wait()).await;
        status.expect("a child").success()
    }
}

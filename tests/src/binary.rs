use std::net::{SocketAddr, TcpListener};
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
    log: std::sync::Arc<std::sync::Mutex<String>>,
}

impl Process {
    /// Starts `maitred serve` on free loopback ports with these further arguments and waits until
    /// both listeners accept.
    pub async fn serve(arguments: &[&str]) -> Self {
        let (addr, admin) = (free_address(), free_address());
        let (listen, admin_text) = (addr.to_string(), admin.to_string());
        let mut command = Command::new(maitred_path());
        command
            .args(["serve", "--listen", &listen, "--admin", &admin_text])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("maitred starts");
        let log = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        if let Some(stderr) = child.stderr.take() {
            let log = std::sync::Arc::clone(&log);
            tokio::spawn(async move {
                let mut lines = BufReader::new(stderr).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let mut log = log.lock().expect("log");
                    log.push_str(&line);
                    log.push('\n');
                }
            });
        }
        let mut process = Self {
            child,
            addr,
            admin,
            log,
        };
        process.wait_until_listening().await;
        process
    }

    async fn wait_until_listening(&mut self) {
        let (addr, admin) = (self.addr, self.admin);
        let both = async {
            for address in [addr, admin] {
                while tokio::net::TcpStream::connect(address).await.is_err() {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            }
        };
        let outcome = tokio::select! {
            () = within("maitred to listen", both) => None,
            status = self.child.wait() => Some(status),
        };
        if let Some(status) = outcome {
            panic!("maitred ended at start ({status:?}):\n{}", self.log());
        }
    }

    /// What it wrote to stderr so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("log").clone()
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

/// A loopback address that was free a moment ago.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).expect("bind");
    listener.local_addr().expect("bound address")
}

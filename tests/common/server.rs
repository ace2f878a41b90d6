//! A real server with the module, on a free loopback port, in a folder of its own, gone when dropped.

use super::process::{free_port, in_repository, spawn_bound_to_this_process, TempDir};
use super::resp::Raw;
use super::{cmd, deadline, eventually, ok};
use redis::{Connection, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// The server binary that the tests run on.
pub fn server_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("RMQ_SERVER") {
        return path.into();
    }
    let fetched = in_repository(".servers/redis-7.0/bin/redis-server");
    if fetched.exists() {
        fetched
    } else {
        "redis-server".into()
    }
}

/// The module under test. `cargo test` does not build a cdylib, so a missing one is built here, once.
pub fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        if let Some(path) = std::env::var_os("RMQ_MODULE") {
            return fs::canonicalize(&path).unwrap_or_else(|e| panic!("RMQ_MODULE {path:?}: {e}"));
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| in_repository("target"), PathBuf::from);
        let path = target.join("release/librmq.so");
        if !path.exists() {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let built =
                Command::new(cargo).args(["build", "--release"]).current_dir(env!("CARGO_MANIFEST_DIR")).status();
            assert!(
                built.is_ok_and(|status| status.success()) && path.exists(),
                "`cargo build --release` did not make {path:?}"
            );
        } else if modified(&path) < newest_source() {
            eprintln!("note: {path:?} is older than src/; `cargo build --release` renews it");
        }
        path
    })
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}

fn newest_source() -> Option<SystemTime> {
    let mut newest = None;
    let mut folders = vec![in_repository("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                newest = newest.max(modified(&entry.path()));
            }
        }
    }
    newest
}

/// How a server is to start.
#[derive(Clone, Default)]
pub struct Builder {
    binary: Option<PathBuf>,
    without_module: bool,
    module_args: Vec<String>,
    config_lines: Vec<String>,
    args: Vec<(String, String)>,
    cluster_node: bool,
}

impl Builder {
    /// A setting on the command line: `.arg("appendonly", "yes")`. It wins over the configuration file.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push((name.into(), value.into()));
        self
    }

    /// A line of the configuration file, after `loadmodule`.
    pub fn config_line(mut self, line: &str) -> Self {
        self.config_lines.push(line.into());
        self
    }

    pub fn without_module(mut self) -> Self {
        self.without_module = true;
        self
    }

    /// Arguments of `loadmodule`.
    pub fn module_args(mut self, args: &[&str]) -> Self {
        self.module_args = args.iter().map(ToString::to_string).collect();
        self
    }

    pub fn server_binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// A node for a cluster, of which it is not yet a part.
    pub fn cluster_node(mut self) -> Self {
        self.cluster_node = true;
        self
    }

    /// Starts, or panics with the server's log.
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|log| panic!("the server did not start; its log:\n{log}"))
    }

    /// Starts, or gives the log of the server that would not.
    pub fn try_start(self) -> Result<Server, String> {
        const PORTS_TO_TRY: usize = 5;
        let mut last = String::new();
        for _ in 0..PORTS_TO_TRY {
            let server = Server {
                builder: self.clone(),
                port: free_port(),
                cluster_port: if self.cluster_node { free_port() } else { 0 },
                dir: TempDir::new(),
                child: Mutex::new(None),
            };
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(log) if port_was_taken(&log) => last = log,
                Err(log) => return Err(log),
            }
        }
        Err(last)
    }

    /// The server binary that will run.
    pub fn binary(&self) -> PathBuf {
        self.binary.clone().unwrap_or_else(server_binary)
    }

    fn config_file(&self, dir: &Path, port: u16, cluster_port: u16) -> String {
        let mut lines = vec![
            "bind 127.0.0.1".to_string(),
            format!("port {port}"),
            format!("dir \"{}\"", dir.display()),
            "save \"\"".into(),
            "appendonly no".into(),
            // No test waits for a replica that is not there, neither to join nor to leave.
            "repl-diskless-sync-delay 0".into(),
        ];
        if knows_settings_of_7(&self.binary()) {
            lines.push("enable-debug-command local".into());
            lines.push("enable-module-command yes".into());
            lines.push("shutdown-timeout 0".into());
        }
        if self.cluster_node {
            lines.push("cluster-enabled yes".into());
            lines.push(format!("cluster-port {cluster_port}"));
            lines.push("cluster-node-timeout 3000".into());
        }
        if !self.without_module {
            let mut line = format!("loadmodule \"{}\"", module().display());
            for arg in &self.module_args {
                line.push(' ');
                line.push_str(arg);
            }
            lines.push(line);
        }
        lines.extend(self.config_lines.iter().cloned());
        lines.join("\n") + "\n"
    }
}

fn port_was_taken(log: &str) -> bool {
    log.contains("Address already in use") || log.contains("Failed listening on port")
}

/// Older servers stop at a setting that they do not know, before they come to the module.
fn knows_settings_of_7(binary: &Path) -> bool {
    static KNOWN: Mutex<Option<HashMap<PathBuf, bool>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
    *known.get_or_insert_with(HashMap::new).entry(binary.into()).or_insert_with(|| {
        let output = Command::new(binary).arg("--version").output();
        let text = output.map_or_else(
            |e| panic!("cannot run the server binary {binary:?}: {e}"),
            |o| String::from_utf8_lossy(&o.stdout).into_owned(),
        );
        let version = text.split("v=").nth(1).unwrap_or_default();
        parse_version(version).0 >= 7
    })
}

fn parse_version(text: &str) -> (u32, u32, u32) {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// A running server. Methods take `&self`, so threads may share it while one of them kills and restarts it.
pub struct Server {
    builder: Builder,
    port: u16,
    /// 0 unless it is a cluster node.
    cluster_port: u16,
    dir: TempDir,
    child: Mutex<Option<Child>>,
}

impl Server {
    /// A server with the module and the settings of the harness.
    pub fn start() -> Server {
        Server::builder().start()
    }

    pub fn builder() -> Builder {
        Builder::default()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of the cluster bus; 0 outside of a cluster.
    pub fn cluster_port(&self) -> u16 {
        self.cluster_port
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn pid(&self) -> u32 {
        let child = self.child();
        child.as_ref().expect("the server is running").id()
    }

    pub fn is_alive(&self) -> bool {
        let mut child = self.child();
        matches!(child.as_mut().map(Child::try_wait), Some(Ok(None)))
    }

    /// A fresh connection, RESP2.
    pub fn con(&self) -> Connection {
        self.connect(RedisConnectionInfo::default())
    }

    pub fn con_resp3(&self) -> Connection {
        self.connect(RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3))
    }

    /// A fresh connection of an ACL user.
    pub fn con_as(&self, user: &str, password: &str) -> Connection {
        let who = RedisConnectionInfo::default();
        self.connect(who.set_username(user).set_password(password))
    }

    fn connect(&self, settings: RedisConnectionInfo) -> Connection {
        self.try_connect(settings)
            .unwrap_or_else(|e| panic!("cannot connect to the server: {e}; its log:\n{}", self.log()))
    }

    /// A fresh connection, or the error: for tests that kill the server meanwhile.
    pub fn try_con(&self) -> redis::RedisResult<Connection> {
        self.try_connect(RedisConnectionInfo::default())
    }

    fn try_connect(&self, settings: RedisConnectionInfo) -> redis::RedisResult<Connection> {
        // CLIENT SETINFO would show up in the statistics and in the ACL log.
        let info = ConnectionAddr::Tcp("127.0.0.1".into(), self.port)
            .into_connection_info()?
            .set_redis_settings(settings.set_skip_set_lib_name());
        let con = redis::Client::open(info)?.get_connection()?;
        // A reply that never comes fails the test instead of hanging it.
        con.set_read_timeout(Some(deadline() * 4))?;
        Ok(con)
    }

    /// The server's name and number, such as `(7, 0, 15)`; Valkey's own number on Valkey.
    pub fn version(&self) -> (u32, u32, u32) {
        let info = self.info("server");
        let version = info.get("valkey_version").or(info.get("redis_version"));
        parse_version(version.expect("INFO server has a version"))
    }

    pub fn is_valkey(&self) -> bool {
        self.info("server").contains_key("valkey_version")
    }

    /// The fields of an INFO section; `info("rmq")` for the module's own.
    pub fn info(&self, section: &str) -> HashMap<String, String> {
        let text: String = redis::cmd("INFO").arg(section).query(&mut self.con()).expect("INFO");
        text.lines()
            .filter_map(|line| line.trim_end().split_once(':'))
            .map(|(field, value)| (field.to_string(), value.to_string()))
            .collect()
    }

    /// DEBUG DIGEST: equal for equal data.
    pub fn digest(&self) -> String {
        let mut digest = redis::cmd("DEBUG");
        digest.arg("DIGEST");
        digest.query(&mut self.con()).expect("DEBUG DIGEST")
    }

    /// What INFO commandstats says of a command; zeros if it was never called.
    pub fn commandstats(&self, command: &str) -> CommandStats {
        // The names of a module's commands are there in the case that the module registered.
        let field = format!("cmdstat_{command}");
        let stats = self.info("commandstats");
        let stats = stats.iter().find(|(name, _)| name.eq_ignore_ascii_case(&field));
        CommandStats::parse(stats.map_or("", |(_, stats)| stats))
    }

    pub fn used_memory(&self) -> u64 {
        self.info("memory")["used_memory"].parse().unwrap()
    }

    /// Whether the server has the command.
    pub fn supports(&self, command: &str) -> bool {
        let info: Vec<redis::Value> =
            redis::cmd("COMMAND").arg("INFO").arg(command).query(&mut self.con()).expect("COMMAND INFO");
        matches!(info.first(), Some(value) if *value != redis::Value::Nil)
    }

    /// SIGKILL, as a crash does it; returns when the process is gone.
    pub fn kill9(&self) {
        if let Some(mut child) = self.child().take() {
            child.kill().expect("SIGKILL");
            child.wait().expect("the process ends");
        }
    }

    /// SHUTDOWN NOSAVE, and SIGKILL if that does not help.
    pub fn stop(&self) {
        let Some(mut child) = self.child().take() else {
            return;
        };
        if matches!(child.try_wait(), Ok(None)) && self.asked_to_shut_down() {
            let gone = || !matches!(child.try_wait(), Ok(None));
            let _ = eventually(deadline(), gone);
        }
        let _ = child.kill();
        let _ = child.wait();
    }

    fn asked_to_shut_down(&self) -> bool {
        let Ok(mut raw) = Raw::try_connect(self.port) else {
            return false;
        };
        raw.send(&["SHUTDOWN", "NOSAVE"]);
        // A server that obeys closes the connection; one that answers has refused.
        matches!(raw.try_read_raw(), Ok(None))
    }

    /// Starts again in the same folder, on the same port, with the same arguments; stops it first if it runs.
    pub fn restart(&self) {
        self.stop();
        let mut launched = Ok(());
        // A child that was just forked when its parent was killed holds the port for a moment.
        let _ = eventually(deadline(), || {
            launched = self.launch();
            !launched.as_ref().is_err_and(|log| port_was_taken(log))
        });
        launched.unwrap_or_else(|log| panic!("the server did not restart; its log:\n{log}"));
    }

    /// Spawns the process and waits until *it* answers, or returns its log.
    fn launch(&self) -> Result<(), String> {
        let config = self.dir().join("server.conf");
        fs::write(&config, self.config_file()).expect("config file");
        let logged_before = fs::metadata(self.log_path()).map_or(0, |m| m.len() as usize);
        let log = OpenOptions::new().create(true).append(true).open(self.log_path()).expect("log file");

        let binary = self.builder.binary();
        let mut command = Command::new(&binary);
        command.arg(&config);
        for (name, value) in &self.builder.args {
            command.arg(format!("--{name}")).arg(value);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("log file")).stderr(log);
        let mut child = spawn_bound_to_this_process(command)
            .map_err(|e| format!("cannot run the server binary {binary:?}: {e}"))?;

        let end = Instant::now() + deadline();
        loop {
            let ended = !matches!(child.try_wait(), Ok(None));
            if ended || Instant::now() > end {
                let _ = child.kill();
                let _ = child.wait();
                let log = fs::read(self.log_path()).unwrap_or_default();
                let log = String::from_utf8_lossy(&log[logged_before.min(log.len())..]).into_owned();
                let why = if ended { "" } else { "(no answer before the deadline)\n" };
                return Err(format!("{why}{log}"));
            }
            if answers_as(self.port, child.id()) {
                *self.child() = Some(child);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn config_file(&self) -> String {
        self.builder.config_file(self.dir(), self.port, self.cluster_port)
    }

    fn log_path(&self) -> PathBuf {
        self.dir().join("server.log")
    }
}

/// Whether the server on the port is ready and is this process, not another that was faster to bind.
fn answers_as(port: u16, pid: u32) -> bool {
    let Ok(mut raw) = Raw::try_connect(port) else {
        return false;
    };
    raw.set_timeout(Duration::from_secs(2));
    raw.send(&["INFO", "server"]);
    let Ok(Some(info)) = raw.try_read_raw() else {
        return false;
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    if info.starts_with("-NOAUTH") || info.starts_with("-NOPERM") {
        return true;
    }
    let is_it = info.lines().any(|line| line == format!("process_id:{pid}"));
    raw.send(&["PING"]);
    is_it && matches!(raw.try_read_raw(), Ok(Some(reply)) if !reply.starts_with(b"-LOADING"))
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(30)..];
            eprintln!("--- log of the server on port {}:\n{}", self.port, tail.join("\n"));
        }
        self.stop();
    }
}

/// One line of INFO commandstats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CommandStats {
    pub calls: u64,
    pub usec: u64,
    pub usec_per_call: f64,
    pub rejected_calls: u64,
    pub failed_calls: u64,
}

impl CommandStats {
    fn parse(line: &str) -> CommandStats {
        let fields: HashMap<_, _> = line.split(',').filter_map(|f| f.split_once('=')).collect();
        let number = |name| fields.get(name).and_then(|v| v.parse().ok()).unwrap_or(0);
        CommandStats {
            calls: number("calls"),
            usec: number("usec"),
            usec_per_call: fields.get("usec_per_call").and_then(|v| v.parse().ok()).unwrap_or(0.0),
            rejected_calls: number("rejected_calls"),
            failed_calls: number("failed_calls"),
        }
    }
}

//! A real Redis Cluster on loopback.

use super::{ask, deadline, eventually, ok, Builder, Server};
use redis::cluster::{ClusterClient, ClusterClientBuilder, ClusterConnection};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const SLOTS: usize = 16_384;

/// Nodes of a cluster; the first ones are the primaries it started with.
pub struct Cluster {
    nodes: Vec<Server>,
    primaries: usize,
}

impl Cluster {
    /// `Cluster::start(3, 1)`: three primaries with a replica each, all agreed and in sync when this returns.
    pub fn start(primaries: usize, replicas_each: usize) -> Cluster {
        Cluster::start_as(Server::builder(), primaries, replicas_each)
    }

    /// The same with nodes of a kind: `Cluster::start_as(Server::builder().without_module(), 3, 0)`.
    pub fn start_as(builder: Builder, primaries: usize, replicas_each: usize) -> Cluster {
        let count = primaries * (1 + replicas_each);
        let nodes: Vec<Server> = (0..count).map(|_| builder.clone().cluster_node().start()).collect();
        let cluster = Cluster { nodes, primaries };
        match redis_cli(&builder) {
            // redis-cli insists on three primaries.
            Some(cli) if primaries >= 3 => cluster.create_with(cli, replicas_each),
            _ => cluster.create_by_hand(),
        }
        assert!(
            eventually(deadline(), || cluster.agrees()),
            "the cluster did not come up; the first node says:\n{}\n{}",
            cluster.nodes[0].ask_cluster("NODES"),
            cluster.nodes[0].log()
        );
        cluster
    }

    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The live nodes that are primaries by their own account.
    pub fn primaries(&self) -> Vec<&Server> {
        self.live().filter(|node| node.is_primary()).collect()
    }

    /// The live replicas of a primary.
    pub fn replicas_of(&self, primary: &Server) -> Vec<&Server> {
        let port = primary.port().to_string();
        let is_its = |node: &&Server| node.info("replication").get("master_port") == Some(&port);
        self.live().filter(is_its).collect()
    }

    /// A client of the whole cluster.
    pub fn client(&self) -> ClusterClient {
        let urls = self.live().map(|node| format!("redis://127.0.0.1:{}", node.port()));
        ClusterClientBuilder::new(urls.collect::<Vec<_>>())
            .response_timeout(deadline())
            .build()
            .expect("a cluster client")
    }

    /// A connection of the whole cluster; `cmd!`, `ok!`, `ask!` and `err!` take it.
    pub fn con(&self) -> ClusterConnection {
        self.client().get_connection().expect("a cluster connection")
    }

    /// The slot of a key, as the cluster computes it.
    pub fn slot_of(&self, key: &str) -> u16 {
        ask!(self.any().con(), "CLUSTER", "KEYSLOT", key)
    }

    /// The primary that owns a slot, as the cluster sees it now.
    pub fn node_for_slot(&self, slot: u16) -> &Server {
        let port = self.any().slot_owners()[usize::from(slot)];
        let owner = self.nodes.iter().find(|node| Some(node.port()) == port);
        owner.unwrap_or_else(|| panic!("nobody owns slot {slot}"))
    }

    /// The primary that owns a key.
    pub fn node_for_key(&self, key: &str) -> &Server {
        self.node_for_slot(self.slot_of(key))
    }

    /// SIGKILL of one node.
    pub fn kill(&self, node: usize) {
        self.nodes[node].kill9();
    }

    /// Waits until every live node reports the cluster as ok.
    pub fn wait_ok(&self) {
        let ok = || self.live().all(|node| node.cluster_state() == "ok");
        // After a failure the cluster stays ok until the failure is noticed.
        assert!(eventually(deadline(), ok), "the cluster did not recover");
    }

    fn live(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_alive())
    }

    fn any(&self) -> &Server {
        self.live().next().expect("a live node")
    }

    fn create_with(&self, cli: PathBuf, replicas_each: usize) {
        let output = Command::new(&cli)
            .args(["--cluster", "create"])
            .args(self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())))
            .args(["--cluster-replicas", &replicas_each.to_string(), "--cluster-yes"])
            .output()
            .expect("redis-cli runs");
        assert!(
            output.status.success(),
            "{cli:?} --cluster create failed:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn create_by_hand(&self) {
        let (primaries, replicas) = self.nodes.split_at(self.primaries);
        for (i, node) in self.nodes.iter().enumerate() {
            ok!(node.con(), "CLUSTER", "SET-CONFIG-EPOCH", i + 1);
        }
        for (i, node) in primaries.iter().enumerate() {
            let share = |i| i * SLOTS / self.primaries;
            ok!(node.con(), "CLUSTER", "ADDSLOTSRANGE", share(i), share(i + 1) - 1);
        }
        let mut first = self.nodes[0].con();
        for node in &self.nodes[1..] {
            let (port, bus) = (node.port(), node.cluster_port());
            ok!(first, "CLUSTER", "MEET", "127.0.0.1", port, bus);
        }
        let all_met = || {
            let count = self.nodes.len();
            let knows_all = |node: &Server| node.ask_cluster("NODES").lines().count() == count;
            self.nodes.iter().all(|node| knows_all(node) && !node.ask_cluster("NODES").contains("handshake"))
        };
        assert!(eventually(deadline(), all_met), "the nodes did not meet");
        for (i, node) in replicas.iter().enumerate() {
            let primary = primaries[i % self.primaries].ask_cluster("MYID");
            ok!(node.con(), "CLUSTER", "REPLICATE", primary);
        }
    }

    /// Every node sees the same owner of every slot, every replica is in sync, and each node knows each.
    fn agrees(&self) -> bool {
        let owners = self.nodes[0].slot_owners();
        let replicas = self.nodes.len() - self.primaries;
        self.nodes.iter().all(|node| {
            let view = node.ask_cluster("NODES");
            let link = node.info("replication").get("master_link_status").cloned();
            node.cluster_state() == "ok"
                && node.slot_owners() == owners
                && view.lines().count() == self.nodes.len()
                && view.lines().filter(|line| line.contains("slave")).count() == replicas
                && link.is_none_or(|status| status == "up")
        }) && owners.iter().all(Option::is_some)
    }
}

/// What a node says of its cluster.
impl Server {
    pub fn is_primary(&self) -> bool {
        self.info("replication")["role"] == "master"
    }

    pub fn ask_cluster(&self, what: &str) -> String {
        ask!(self.con(), "CLUSTER", what)
    }

    fn cluster_state(&self) -> String {
        let info = self.ask_cluster("INFO");
        let state = info.lines().find_map(|line| line.strip_prefix("cluster_state:"));
        state.unwrap_or_default().to_string()
    }

    /// The port of each slot's primary.
    pub fn slot_owners(&self) -> Vec<Option<u16>> {
        let ranges: Vec<Vec<redis::Value>> = ask!(self.con(), "CLUSTER", "SLOTS");
        let mut owners = vec![None; SLOTS];
        for range in ranges {
            let number = |value: &redis::Value| match value {
                redis::Value::Int(n) => *n as usize,
                other => panic!("a number was expected, not {other:?}"),
            };
            let (first, last) = (number(&range[0]), number(&range[1]));
            let primary = super::items(range[2].clone());
            owners[first..=last].fill(Some(number(&primary[1]) as u16));
        }
        owners
    }
}

/// redis-cli from next to the server, or from PATH.
fn redis_cli(builder: &Builder) -> Option<PathBuf> {
    let binary = builder.binary();
    let next_to_it = |name| binary.parent().map(|folder| folder.join(name));
    let known = [
        next_to_it("redis-cli").filter(|path| path.exists()),
        next_to_it("valkey-cli").filter(|path| path.exists()),
        Some("redis-cli".into()),
    ];
    let runs = |path: &PathBuf| Command::new(path).arg("--version").output().is_ok_and(|o| o.status.success());
    known.into_iter().flatten().find(runs)
}

//! A slot of a cluster on its way from one node to another, key by key.

use super::{ask, deadline, eventually, ok, Cluster, Server};

/// Half way: both nodes know of it, and each has some of the keys.
pub struct Moving<'c> {
    pub from: &'c Server,
    pub to: &'c Server,
    pub slot: u16,
}

impl<'c> Moving<'c> {
    /// The slot of a key begins to move to some other primary, with all keys still on the old one.
    pub fn begin(cluster: &'c Cluster, key: &str) -> Moving<'c> {
        let slot = cluster.slot_of(key);
        let from = cluster.node_for_slot(slot);
        let to = *cluster.primaries().iter().find(|node| node.port() != from.port()).expect("another node");
        Moving::between(from, to, slot)
    }

    pub fn between(from: &'c Server, to: &'c Server, slot: u16) -> Moving<'c> {
        ok!(to.con(), "CLUSTER", "SETSLOT", slot, "IMPORTING", from.ask_cluster("MYID"));
        ok!(from.con(), "CLUSTER", "SETSLOT", slot, "MIGRATING", to.ask_cluster("MYID"));
        Moving { from, to, slot }
    }

    /// The keys that are still on the old node.
    pub fn keys(&self) -> Vec<String> {
        ask!(self.from.con(), "CLUSTER", "GETKEYSINSLOT", self.slot, 100)
    }

    /// NOKEY if there is none, or none any more.
    pub fn move_key(&self, key: &str) {
        ok!(self.from.con(), "MIGRATE", "127.0.0.1", self.to.port(), key, 0, 5000);
    }

    /// Moves all keys, also those that traffic makes meanwhile; `between` is called after each.
    pub fn move_keys(&self, mut order: impl FnMut(&mut Vec<String>), mut between: impl FnMut()) {
        loop {
            let mut keys = self.keys();
            if keys.is_empty() {
                return;
            }
            order(&mut keys);
            for key in keys {
                self.move_key(&key);
                between();
            }
        }
    }

    pub fn digests(&self) -> [String; 2] {
        [self.from, self.to].map(Server::digest)
    }

    /// The new node owns the slot, and all nodes know it when this returns.
    pub fn end(&self, cluster: &Cluster) {
        let new = self.to.ask_cluster("MYID");
        ok!(self.to.con(), "CLUSTER", "SETSLOT", self.slot, "NODE", &new);
        for node in cluster.primaries() {
            ok!(node.con(), "CLUSTER", "SETSLOT", self.slot, "NODE", &new);
        }
        // A node that does not know the new owner's epoch yet may believe an older message of the old one.
        let epoch_seen_by = |node: &Server| {
            let nodes = node.ask_cluster("NODES");
            let line = nodes.lines().find(|line| line.starts_with(&new)).map(str::to_string);
            line.and_then(|line| line.split(' ').nth(6).map(str::to_string))
        };
        let owner_seen_by = |node: &Server| node.slot_owners()[usize::from(self.slot)];
        let agrees = |node: &Server| {
            owner_seen_by(node) == Some(self.to.port()) && epoch_seen_by(node) == epoch_seen_by(self.to)
        };
        let agreed = || cluster.nodes().iter().all(agrees);
        assert!(eventually(deadline(), agreed), "the nodes do not agree on the owner of slot {}", self.slot);
    }
}

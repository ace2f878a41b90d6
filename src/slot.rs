//! The cluster slot of a key: CRC16 of its hash tag, or of all of it. The module API has it on new servers only.

const SLOTS: u16 = 16384;

pub fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % SLOTS
}

/// What is between the first `{` and the `}` after it, if that is not empty.
pub fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let inner = &key[open + 1..];
    match inner.iter().position(|byte| *byte == b'}') {
        None | Some(0) => None,
        Some(close) => Some(&inner[..close]),
    }
}

/// The node that owns a slot by the lines of CLUSTER NODES, as `host:port`. None if it is the one that was asked, if the
/// slot is being migrated to it, or if no node owns it.
pub fn other_owner(nodes: &str, slot: u16) -> Option<String> {
    // Only the node that was asked shows slots that migrate.
    if nodes.contains(&format!(" [{slot}-<-")) {
        return None;
    }
    for node in nodes.lines() {
        let words: Vec<&str> = node.split(' ').collect();
        let [_, address, flags, ..] = words[..] else { continue };
        let is_asked = flags.split(',').any(|flag| flag == "myself");
        let slots = words.get(8..).unwrap_or_default();
        let has_it = |word: &&str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let bounds = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
            bounds.is_some_and(|(first, last)| (first..=last).contains(&slot))
        };
        if slots.iter().any(has_it) {
            return (!is_asked).then(|| address.split('@').next().unwrap_or(address).to_string());
        }
    }
    None
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) ^ u16::from(*byte))])
}

/// CRC-16/XMODEM, polynomial 0x1021.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b""), 0);
    }

    #[test]
    fn the_owner_of_a_slot_is_found_among_the_nodes() {
        let nodes = "bb 127.0.0.1:7002@17002 master - 0 0 2 connected 100-199 300-400\n\
                     aa 127.0.0.1:7001@17001,host myself,master - 0 0 1 connected 0-99 200 [300-<-bb] [50->-bb]\n\
                     cc 127.0.0.1:7003@17003 slave bb 0 0 2 connected\n";
        assert_eq!(other_owner(nodes, 150).as_deref(), Some("127.0.0.1:7002"));
        assert_eq!(other_owner(nodes, 399).as_deref(), Some("127.0.0.1:7002"));
        assert_eq!(other_owner(nodes, 50), None, "it is ours");
        assert_eq!(other_owner(nodes, 200), None);
        assert_eq!(other_owner(nodes, 300), None, "it is on its way here");
        assert_eq!(other_owner(nodes, 500), None, "nobody has it");
        assert_eq!(other_owner("nonsense", 1), None);
    }

    #[test]
    fn only_the_hash_tag_counts_where_there_is_one() {
        assert_eq!(slot(b"{orders}:pending"), slot(b"orders"));
        assert_eq!(slot(b"a{orders}b{x}"), slot(b"orders"));
        assert_eq!(hash_tag(b"foo{}{bar}"), None);
        assert_eq!(hash_tag(b"foo{{bar}}zap"), Some(&b"{bar"[..]));
        assert_eq!(hash_tag(b"{open"), None);
    }
}

//! Every error that a user can see.

use std::fmt;

use crate::redis::log::printable;

#[derive(Debug, PartialEq)]
pub enum Error {
    WrongArity,
    TooManyArguments,
    WrongType {
        argument: &'static str,
        expected: &'static str,
    },
    /// A key that is not an argument has another type.
    KeyWrongType {
        key: Vec<u8>,
        expected: &'static str,
    },
    /// A key that the call uses already, in another role.
    KeyInUse(Vec<u8>),
    SameKey {
        one: &'static str,
        other: &'static str,
    },
    /// An argument that is not as expected.
    Invalid {
        argument: &'static str,
        expected: &'static str,
    },
    UnknownOption(Vec<u8>),
    RepeatedOption(&'static str),
    OptionNeedsValue(&'static str),
    /// A word that is there, and what has to follow it.
    Incomplete(&'static str, &'static str),
    /// A queue's name that cannot be used.
    QueueName,
    ReservedId,
    NoMessage,
    UnknownQueue,
    /// A delivery that cannot go back to its queue.
    NoQueue(Vec<u8>),
    NoPermission {
        derived_key: Vec<u8>,
    },
    /// A client lost its permission while it waited.
    PermissionWithdrawn,
    CrossSlot {
        derived_key: Vec<u8>,
    },
    /// In a cluster: a namespace whose keys would be in different slots.
    NoHashTag(Vec<u8>),
    /// PUBLISH of an id that a message of another queue has.
    Exists {
        id: Vec<u8>,
        queue: Vec<u8>,
    },
    /// Words that cannot be given together.
    NotTogether(&'static str, &'static str),
    /// A word that has to be there, and what follows it.
    Missing(&'static str, &'static str),
    OptionTooLate {
        option: &'static str,
        word: &'static str,
    },
    /// In a cluster: another node has the slot.
    Moved {
        slot: u16,
        node: String,
    },
    /// In a cluster: the slot is being migrated.
    SlotMoves {
        derived_key: Vec<u8>,
    },
    OutOfMemory,
    /// A panic was caught; the log has the rest.
    Internal,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::WrongArity => write!(f, "ERR wrong number of arguments"),
            Error::TooManyArguments => write!(f, "ERR a call can have at most {} arguments", crate::args::MOST_ARGUMENTS),
            Error::WrongType { argument, expected } => {
                write!(f, "WRONGTYPE {argument} must be a {expected}")
            }
            Error::KeyWrongType { key, expected } => {
                write!(f, "WRONGTYPE the key '{}' must be a {expected}", printable(key))
            }
            Error::KeyInUse(key) => write!(f, "ERR the key '{}' has two roles in this call", printable(key)),
            Error::SameKey { one, other } => {
                write!(f, "ERR {one} and {other} must be different keys")
            }
            Error::Invalid { argument, expected } => write!(f, "ERR {argument} must be {expected}"),
            Error::UnknownOption(word) => write!(f, "ERR unknown option '{}'", printable(word)),
            Error::RepeatedOption(word) => write!(f, "ERR option {word} must be given once only"),
            Error::OptionNeedsValue(word) => write!(f, "ERR option {word} must be followed by its value"),
            Error::Incomplete(word, what) => write!(f, "ERR {word} must be followed by {what}"),
            Error::QueueName => write!(f, "ERR queue must not be empty, '*', COUNT or BLOCK, and must have no ':'"),
            Error::ReservedId => {
                write!(f, "ERR id must not end in ':queue', ':attempts' or ':death', which the hashes use for their own fields")
            }
            Error::NoMessage => {
                write!(f, "NOMSG id is neither in payload_map nor in processing: the message was settled already")
            }
            Error::UnknownQueue => write!(
                f,
                "ERR the queue of id is unknown: payload_map has no '<id>:queue', and processing is not named '<queue>:processing'"
            ),
            Error::NoQueue(id) => {
                write!(f, "ERR the queue of id '{}' is unknown or belongs to another namespace", printable(id))
            }
            Error::NoPermission { derived_key } => {
                write!(f, "NOPERM no permission to access the key '{}'", printable(derived_key))
            }
            Error::PermissionWithdrawn => write!(
                f,
                "NOPERM the permission to run this command was withdrawn while the client waited"
            ),
            Error::CrossSlot { derived_key } => {
                write!(f, "CROSSSLOT the derived key '{}' is not in the slot of the keys given", printable(derived_key))
            }
            Error::NoHashTag(name) => write!(
                f,
                "CROSSSLOT in a cluster the namespace must have a hash tag, which brings its keys into one slot, such as '{{{}}}'",
                if name.is_empty() { "app".into() } else { printable(name) }
            ),
            Error::Exists { id, queue } => write!(
                f,
                "EXISTS the id '{}' belongs to a message of the queue '{}'",
                printable(id),
                printable(queue)
            ),
            Error::NotTogether(one, other) => write!(f, "ERR {one} and {other} must not be given together"),
            Error::Missing(word, what) => write!(f, "ERR {word} must be given, followed by {what}"),
            Error::OptionTooLate { option, word } => write!(f, "ERR option {option} must come before {word}"),
            Error::Moved { slot, node } => write!(f, "MOVED {slot} {node}"),
            Error::SlotMoves { derived_key } => write!(
                f,
                "TRYAGAIN the key '{}' is not here while its slot moves between nodes",
                printable(derived_key)
            ),
            Error::OutOfMemory => write!(f, "OOM command not allowed when used memory > 'maxmemory'."),
            Error::Internal => write!(f, "ERR internal error in the rmq module, see the server's log"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_never_carries_bytes_that_would_break_the_protocol() {
        let hostile = b"\r\n\0%s\xff".to_vec();
        for error in [
            Error::UnknownOption(hostile.clone()),
            Error::NoPermission { derived_key: hostile.clone() },
            Error::CrossSlot { derived_key: hostile.clone() },
            Error::SlotMoves { derived_key: hostile },
        ] {
            let text = error.to_string();
            assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
        }
    }

    #[test]
    fn a_long_name_is_cut_in_an_error() {
        let text = Error::UnknownOption(vec![b'x'; 1 << 20]).to_string();
        assert!(text.len() < 200);
    }
}

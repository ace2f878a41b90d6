//! Every error that a user can see.

use std::fmt;

use crate::redis::log::printable;

#[derive(Debug, PartialEq)]
pub enum Error {
    WrongArity,
    WrongType {
        argument: &'static str,
        expected: &'static str,
    },
    SameKey {
        one: &'static str,
        other: &'static str,
    },
    /// An argument that is not what it has to be.
    Invalid {
        argument: &'static str,
        expected: &'static str,
    },
    UnknownOption(Vec<u8>),
    RepeatedOption(&'static str),
    OptionNeedsValue(&'static str),
    ReservedId,
    NoMessage,
    NoPermission {
        derived_key: Vec<u8>,
    },
    /// Lost by a client while it waited.
    PermissionWithdrawn,
    CrossSlot {
        derived_key: Vec<u8>,
    },
    /// In a cluster: a slot is on its way from one node to another.
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
            Error::WrongType { argument, expected } => {
                write!(f, "WRONGTYPE {argument} must be a {expected}")
            }
            Error::SameKey { one, other } => {
                write!(f, "ERR {one} and {other} must be different keys")
            }
            Error::Invalid { argument, expected } => write!(f, "ERR {argument} must be {expected}"),
            Error::UnknownOption(word) => write!(f, "ERR unknown option '{}'", printable(word)),
            Error::RepeatedOption(word) => write!(f, "ERR option {word} must be given once only"),
            Error::OptionNeedsValue(word) => write!(f, "ERR option {word} must be followed by its value"),
            Error::ReservedId => write!(
                f,
                "ERR id must not end in ':queue' or ':attempts', which payload_map uses for its own fields"
            ),
            Error::NoMessage => write!(
                f,
                "NOMSG id is neither in payload_map nor in processing: the message was settled already"
            ),
            Error::NoPermission { derived_key } => write!(
                f,
                "NOPERM no permission to access the derived key '{}'",
                printable(derived_key)
            ),
            Error::PermissionWithdrawn => write!(
                f,
                "NOPERM the permission to run this command on these keys was withdrawn while the client waited"
            ),
            Error::CrossSlot { derived_key } => write!(
                f,
                "CROSSSLOT the derived key '{}' is not in the slot of the keys given",
                printable(derived_key)
            ),
            Error::SlotMoves { derived_key } => write!(
                f,
                "TRYAGAIN the derived key '{}' is not here while its slot moves between nodes",
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
            Error::NoPermission {
                derived_key: hostile.clone(),
            },
            Error::CrossSlot {
                derived_key: hostile.clone(),
            },
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

//! Many commands in one write, all replies in one go: a hundred thousand steps with a look at the keys after each
//! would take minutes one round trip at a time.

use crate::common::resp::{encode, parse};
use crate::common::{deadline, Reply, Server};
use std::io::{Read, Write};
use std::net::TcpStream;

/// A command and its arguments.
pub type Command = Vec<Vec<u8>>;

pub fn words<A: AsRef<[u8]>>(words: &[A]) -> Command {
    words.iter().map(|word| word.as_ref().to_vec()).collect()
}

/// A command as one readable line; long arguments are cut.
pub fn line(command: &Command) -> String {
    const SHOWN: usize = 120;
    let word = |word: &Vec<u8>| match word.len() {
        0 => "\"\"".to_string(),
        1..=SHOWN => word.escape_ascii().to_string(),
        length => format!("{}…({length} bytes)", word[..SHOWN].escape_ascii()),
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

pub struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub fn connect(server: &Server) -> Wire {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection to the server");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(deadline() * 4)).expect("a timeout");
        Wire { stream, buffer: Vec::new() }
    }

    /// The replies in the order of the commands; an error text if the server went away.
    pub fn pipeline(&mut self, commands: &[Command]) -> Result<Vec<Reply>, String> {
        let mut bytes = Vec::new();
        for command in commands {
            bytes.extend_from_slice(&encode(command));
        }
        self.stream.write_all(&bytes).map_err(|e| format!("cannot write: {e}"))?;
        let mut replies = Vec::with_capacity(commands.len());
        let mut at = 0;
        let mut chunk = vec![0; 256 * 1024];
        while replies.len() < commands.len() {
            while let Some((reply, length)) = self.buffer.get(at..).filter(|rest| !rest.is_empty()).and_then(parse) {
                at += length;
                replies.push(reply);
            }
            if replies.len() == commands.len() {
                break;
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) => return Err(format!("no reply to {}: {e}", line(&commands[replies.len()]))),
            }
        }
        assert_eq!(at, self.buffer.len(), "more replies than commands");
        self.buffer.clear();
        Ok(replies)
    }
}

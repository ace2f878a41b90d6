//! Looking and mending: the commands for operators.

pub mod audit;
pub mod cancel;
pub mod peek;
pub mod purge;
pub mod repair;
pub mod reschedule;
pub mod stats;

use crate::error::Error;
use crate::namespace::Namespace;
use crate::redis::command::{optional, required, Arg, Kind};
use crate::redis::{OwnedStr, StrRef};

/// States of messages, of all queues or of one.
const DELAYED: Arg = required("delayed", Kind::Group(&[required("delayed", Kind::Word("DELAYED")), OF_QUEUE]));
const OVERDUE: Arg = required("overdue", Kind::Group(&[required("overdue", Kind::Word("OVERDUE")), OF_QUEUE]));
const DEAD: Arg = required("dead", Kind::Group(&[required("dead", Kind::Word("DEAD")), OF_QUEUE]));
const OF_QUEUE: Arg = optional("queue", Kind::Text);

/// The words before the first that names a state, that state, and the words behind it.
fn split_at_state<'w, 'c>(
    words: &'w [StrRef<'c>],
    states: &[&'static str],
) -> Option<(&'w [StrRef<'c>], &'static str, &'w [StrRef<'c>])> {
    let state_of = |word: &StrRef| states.iter().find(|state| word.bytes().eq_ignore_ascii_case(state.as_bytes()));
    let (position, state) = words.iter().enumerate().find_map(|(at, word)| Some((at, *state_of(word)?)))?;
    Some((&words[..position], state, &words[position + 1..]))
}

/// The queue behind a state, if there is one. An option there is too late, and no queue.
fn queue_after(
    ns: &Namespace,
    state: &'static str,
    words: &[StrRef],
    options: &[&'static str],
) -> Result<Option<OwnedStr>, Error> {
    let is_it = |option: &&&str| words.iter().any(|word| word.bytes().eq_ignore_ascii_case(option.as_bytes()));
    if let Some(option) = options.iter().find(is_it) {
        return Err(Error::OptionTooLate { option, word: state });
    }
    match words {
        [] => Ok(None),
        [queue] => ns.queue(*queue).map(Some),
        [_, more, ..] => Err(Error::UnknownOption(more.bytes().to_vec())),
    }
}

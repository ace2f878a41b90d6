//! Dead letters: how a message dies.

use crate::error::Error;
use crate::message::queue_field;
use crate::processing::Processing;
use crate::redis::list::{MayBeThere, Place};
use crate::redis::{HashKey, Invocation, KeyArg, ListKey, OwnedStr, StrRef};
use serde_json::json;

pub struct DeadLetters<'c> {
    pub map: HashKey<'c>,
    pub list: ListKey<'c>,
}

impl<'c> DeadLetters<'c> {
    pub fn open(call: &'c Invocation<'c>, map: KeyArg<'c>, list: KeyArg<'c>) -> Result<Self, Error> {
        Ok(DeadLetters { map: HashKey::open(call, map)?, list: ListKey::open(call, list)? })
    }
}

/// Why and when a message died.
pub struct Death<'a> {
    /// `attempts`, `lease` or `rejected`.
    pub reason: &'static str,
    /// The last one.
    pub error: &'a [u8],
    pub attempts: i64,
    /// Unix ms.
    pub at: i64,
}

impl Death<'_> {
    pub fn to_json(&self) -> Vec<u8> {
        let error = String::from_utf8_lossy(self.error);
        let death = json!({"reason": self.reason, "error": error, "attempts": self.attempts, "at": self.at});
        death.to_string().into_bytes()
    }
}

pub fn death_field(id: StrRef) -> OwnedStr {
    OwnedStr::concat(id.bytes(), b":death")
}

impl DeadLetters<'_> {
    /// The newest dead letter is at the left. A second death of an id replaces the first.
    pub fn bury(&mut self, id: StrRef, payload: StrRef, queue: Option<StrRef>, death: Option<&Vec<u8>>) {
        let again = self.map.has(id);
        self.map.set(id, payload);
        match queue {
            Some(queue) => drop(self.map.set(queue_field(id).as_ref(), queue)),
            None if again => drop(self.map.delete(queue_field(id).as_ref())),
            None => (),
        }
        match death {
            Some(death) => drop(self.map.set(death_field(id).as_ref(), OwnedStr::new(death).as_ref())),
            None if again => drop(self.map.delete(death_field(id).as_ref())),
            None => (),
        }
        self.list.push_left_once(id, if again { MayBeThere::Anywhere } else { MayBeThere::Nowhere });
    }

    /// Deletes the fields of a dead letter. Whether there was one.
    pub fn forget(&mut self, id: StrRef) -> bool {
        let was_there = self.map.delete(id);
        self.map.delete(queue_field(id).as_ref());
        self.map.delete(death_field(id).as_ref());
        was_there
    }

    /// Where these dead letters are in the list, in one pass.
    pub fn places_of<'a>(&mut self, ids: impl Iterator<Item = &'a OwnedStr>) -> Vec<(Place, OwnedStr)> {
        let ids: Vec<StrRef> = ids.map(OwnedStr::as_ref).collect();
        let found = Processing::of(&mut self.list).pass(&ids);
        found.into_iter().map(|(index, place)| (place, OwnedStr::retain(ids[index]))).collect()
    }

    /// Whether this id is that far from the right end, counted from 1, and others are behind it.
    pub fn goes_on_behind(&mut self, distance: usize, id: &[u8]) -> bool {
        let index = self.list.len().checked_sub(distance).filter(|index| *index > 0);
        index.and_then(|index| self.list.at(index)).is_some_and(|found| found.bytes() == id)
    }

    pub fn remove_from_list(&mut self, leaving: &[(Place, OwnedStr)]) {
        let mut places: Vec<(Place, StrRef)> = leaving.iter().map(|(place, id)| (*place, id.as_ref())).collect();
        self.list.remove(&mut places);
    }
}

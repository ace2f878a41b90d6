//! Where the next walk over a key resumes, after one that met many ids that had to stay. Kept in memory only, for a few
//! keys: without it a walk starts from the beginning.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::redis::{Invocation, StrRef};

const PLACES_MAX: usize = 64;

/// A score, or a distance from the right end of a list; there with the id before it, which shows that the list is still the
/// same.
pub type Place = (f64, Vec<u8>);

type Places = HashMap<(i32, Vec<u8>), Place>;

lazy_static::lazy_static! {
    static ref PLACES: Mutex<Places> = Mutex::default();
}
/// How many there are, so that the usual call needs no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The place in this key.
pub fn get(call: &Invocation, key: StrRef) -> Option<Place> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    with(|places| places.get(&(call.selected_db(), key.bytes().to_vec())).cloned())
}

pub fn set(call: &Invocation, key: StrRef, place: Option<Place>) {
    if place.is_none() && COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let key = (call.selected_db(), key.bytes().to_vec());
    with(|places| match place {
        None => {
            places.remove(&key);
        }
        Some(place) => {
            if places.len() >= PLACES_MAX {
                places.clear();
            }
            places.insert(key, place);
        }
    });
}

fn with<T>(act: impl FnOnce(&mut Places) -> T) -> T {
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let result = act(&mut places);
    COUNT.store(places.len(), Ordering::Relaxed);
    result
}

//! Where the next walk over a key resumes, after one that met many ids that had to stay. Kept in memory only, for a few
//! keys: without it a walk starts from the beginning.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::redis::{Invocation, StrRef};

const PLACES_MAX: usize = 64;

type Places = HashMap<(i32, Vec<u8>), f64>;

lazy_static::lazy_static! {
    static ref PLACES: Mutex<Places> = Mutex::default();
}
/// How many there are, so that the usual call needs no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The place in this key: a score, or a distance from the right end.
pub fn get(call: &Invocation, key: StrRef) -> Option<f64> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    with(|places| places.get(&(call.selected_db(), key.bytes().to_vec())).copied())
}

pub fn set(call: &Invocation, key: StrRef, place: Option<f64>) {
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

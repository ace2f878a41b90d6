//! A worker for one queue. Start as many as you like; Ctrl-C or SIGTERM ends one, after the messages in hand.
use redis::{Connection, FromRedisValue, RedisResult, ToRedisArgs};
use std::sync::atomic::{AtomicBool, Ordering};

const RESERVE: &str = "RMQ.RESERVE app:orders:pending app:orders:processing app:payloads app:expires";
const ACK: &str = "RMQ.ACK app:payloads app:orders:processing app:expires";
const NACK: &str = "RMQ.NACK app:payloads app:delays app:expires app:orders:processing";
const DEADLETTER: &str = "RMQ.DEADLETTER app:dlq:data app:dlq app:expires app:payloads app:orders:processing";
const TIMEOUTS: &str = "RMQ.TIMEOUTS app:expires app:payloads *";
const LEASE_MS: u32 = 30_000;
const MAX_ATTEMPTS: u64 = 3;
static STOP: AtomicBool = AtomicBool::new(false);
extern "C" fn stop(_signal: i32) {
    STOP.store(true, Ordering::Relaxed);
}

fn call<T: FromRedisValue>(con: &mut Connection, command: &str, args: impl ToRedisArgs) -> RedisResult<T> {
    let words: Vec<&str> = command.split(' ').collect();
    redis::Cmd::new().arg(words).arg(args).query(con)
}

/// Your work. This one takes as long and fails as often as the message asks.
fn handle(payload: &[u8], attempts: u64) -> Result<(), String> {
    let order: serde_json::Value = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    std::thread::sleep(std::time::Duration::from_millis(order["work_ms"].as_u64().unwrap_or(0)));
    let fails = order["fails"].as_u64().unwrap_or(0);
    (attempts > fails).then_some(()).ok_or("asked to fail".into())
}

/// Messages whose delay is over become pending; those of workers that died are tried again.
fn tick(con: &mut Connection) -> RedisResult<()> {
    call::<()>(con, "RMQ.DELAYTICK app:delays app:payloads", 100)?;
    for (id, payload, queue) in call::<Vec<(String, Vec<u8>, String)>>(con, TIMEOUTS, (100, "CLAIM", LEASE_MS))? {
        let message = (queue + ":processing", id, payload, 0); // NOMSG, an error, if it was settled meanwhile
        call::<()>(con, "RMQ.RETRY app:payloads app:delays app:expires", message).ok();
    }
    Ok(())
}

fn main() -> RedisResult<()> {
    // SAFETY: the handler only sets a flag.
    let _ = [libc::SIGINT, libc::SIGTERM].map(|signal| unsafe { libc::signal(signal, stop as *const () as usize) });
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let con = &mut redis::Client::open(url)?.get_connection()?;
    while !STOP.load(Ordering::Relaxed) {
        tick(con)?;
        let taken: Vec<(String, Vec<u8>, String, u64)> = call(con, RESERVE, (LEASE_MS, "COUNT", 10, "BLOCK", 1000))?;
        for (id, payload, lease, attempts) in taken {
            let result = (attempts <= MAX_ATTEMPTS).then(|| handle(&payload, attempts));
            println!("{id}, attempt {attempts}: {result:?}");
            match result {
                Some(Ok(())) => call::<()>(con, ACK, (id, lease))?,
                Some(Err(_)) if attempts < MAX_ATTEMPTS => call(con, NACK, (id, lease, 200 << attempts))?,
                _ => call(con, DEADLETTER, (id, payload, "LEASE", lease))?, // None: it kills its workers
            }
        }
    }
    Ok(())
}

//! A worker for two queues, by priority. Retries, backoff, dead letters, recovery of killed workers are the server's.
use redis::{cmd, RedisResult};

/// Your work. This one takes as long and fails as often as the message asks.
fn handle(payload: &[u8], attempts: u64) -> Result<(), String> {
    let order: serde_json::Value = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    std::thread::sleep(std::time::Duration::from_millis(order["work_ms"].as_u64().unwrap_or(0)));
    (attempts > order["fails"].as_u64().unwrap_or(0)).then_some(()).ok_or("asked to fail".into())
}

fn main() -> RedisResult<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let mut con = redis::Client::open(url)?.get_connection()?;
    loop {
        let words = ("app", 10_000, "BLOCK", 2000, "FROM", "urgent", "orders");
        let taken: Vec<(String, Vec<u8>, String, u64, String)> = cmd("RMQ.RESERVE").arg(words).query(&mut con)?;
        for (id, payload, receipt, attempts, _queue) in taken {
            match handle(&payload, attempts) {
                Ok(()) => cmd("RMQ.ACK").arg(("app", id, receipt)).exec(&mut con)?,
                Err(error) => cmd("RMQ.NACK").arg(("app", id, receipt, "ERROR", error)).exec(&mut con)?,
            }
        }
    }
}

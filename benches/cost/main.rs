//! What RMQ costs, beside what people would use instead. `make bench` measures time, counts instructions, and writes
//! docs/performance.md and docs/bench/; `make instructions` compares the counts with those in docs/bench/.

#[path = "../../tests/common/mod.rs"]
mod common;

mod client;
mod instructions;
mod lab;
mod page;
mod systems;
mod table;
mod time;
mod twins;

fn main() {
    let is_set = |name| std::env::var(name).is_ok_and(|value| !value.is_empty() && value != "0");
    let part = std::env::args().nth(1).unwrap_or_default();
    let good = match part.as_str() {
        "instructions" => instructions::count(is_set("UPDATE"), is_set("FULL")),
        "page" => true,
        "time" => {
            time::measure(is_set("QUICK"));
            true
        }
        _ => panic!("instructions or time, not {part:?}"),
    };
    if is_set("UPDATE") || part != "instructions" {
        page::write();
    }
    std::process::exit(i32::from(!good));
}

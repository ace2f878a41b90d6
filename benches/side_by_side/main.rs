mod client;
#[path = "../../tests/common/mod.rs"]
mod common;
mod lab;
mod life;
mod workload;
use lab::*;
use std::time::Duration;
use workload::*;
fn main() {
    if std::env::var_os("RMQ_SERVER").is_none() {
        std::env::set_var(
            "RMQ_SERVER",
            concat!(env!("CARGO_MANIFEST_DIR"), "/.servers/redis-8/bin/redis-server"),
        );
    }
    let mut lab = Lab::start();
    let vs = [Variant::Lua, Variant::Native, Variant::Plain];
    let b = Duration::from_millis(60);
    fn show(n: &str, c: &[Vec<f64>]) {
        let m: Vec<f64> = c.iter().map(|c| median(c)).collect();
        println!(
            "{n:40} Lua {:9.2} native {:8.2} plain {:8.2} | x{:.1} | {:.2}",
            m[0],
            m[1],
            m[2],
            m[0] / m[1],
            m[1] / m[2]
        );
    }
    for size in [100, 1000, 10_000, 100_000] {
        let mut works: Vec<Settle> = vs
            .iter()
            .map(|v| Settle::new(What::Complete, *v, 1, size, &lab.scripts))
            .collect();
        for w in &mut works {
            lab.fill(|x| w.fill(x));
        }
        for order in [Order::OldestFirst, Order::NewestFirst, Order::Random] {
            let mut c = vec![vec![]; 3];
            for _ in 0..5 {
                for (i, w) in works.iter_mut().enumerate() {
                    w.order = order;
                    c[i].push(lab.server_cost(w, b));
                }
            }
            show(&format!("COMPLETE {size} {order:?}"), &c);
        }
        for w in &mut works {
            lab.fill(|x| w.shuffle_deadlines(x));
        }
        let mut c = vec![vec![]; 3];
        for _ in 0..5 {
            for (i, w) in works.iter_mut().enumerate() {
                c[i].push(lab.server_cost(w, b));
            }
        }
        show(&format!("COMPLETE {size} random shuffled"), &c);
        lab.delete_all();
    }
    let mut run = |name: &str, mk: &mut dyn FnMut(&mut Lab, Variant) -> Box<dyn Workload>, per: f64| {
        let mut works: Vec<_> = vs.iter().map(|v| mk(&mut lab, *v)).collect();
        let mut c = vec![vec![]; 3];
        for _ in 0..5 {
            for (i, w) in works.iter_mut().enumerate() {
                c[i].push(lab.server_cost(w.as_mut(), b) / per);
            }
        }
        show(name, &c);
        lab.delete_all();
    };
    run(
        "COMPLETE 100 ids of 10k, per id",
        &mut |lab, v| {
            let mut w = Settle::new(What::Complete, v, 1, 10_000, &lab.scripts).ids_per_call(100);
            w.order = Order::Random;
            lab.fill(|x| w.fill(x));
            Box::new(w)
        },
        100.0,
    );
    run(
        "RETRY 100",
        &mut |lab, v| {
            let mut w = Settle::new(What::Retry, v, 1, 100, &lab.scripts);
            lab.fill(|x| w.fill(x));
            Box::new(w)
        },
        1.0,
    );
    for (trim, expire) in [(false, false), (true, false), (true, true)] {
        run(
            &format!("PARSEERR trim {trim} expire {expire}"),
            &mut |lab, v| {
                let mut w = Settle::new(What::ParseError { trim, expire }, v, 1, 100, &lab.scripts);
                lab.fill(|x| w.fill(x));
                Box::new(w)
            },
            1.0,
        );
    }
    for q in [1, 10, 100] {
        for batch in [100, 1000] {
            run(
                &format!("DELAYTICK batch {batch} queues {q} per msg"),
                &mut |lab, v| {
                    let mut w = Tick::new(v, q, batch, 2, &lab.scripts);
                    lab.fill(|x| w.fill(x));
                    Box::new(w)
                },
                batch as f64,
            );
        }
    }
    for q in [1000, 10000] {
        for batch in [100, 1000] {
            run(
                &format!("TIMEOUTS batch {batch} stuck {q} per msg"),
                &mut |lab, v| {
                    let mut w = Stuck::new(v, 1, q, batch, &lab.scripts);
                    lab.fill(|x| w.fill(x));
                    Box::new(w)
                },
                batch as f64,
            );
        }
    }
    run(
        "TIMEOUTS shuffled 1000 of 10000",
        &mut |lab, v| {
            let mut w = Stuck::new(v, 1, 10000, 1000, &lab.scripts).shuffled();
            lab.fill(|x| w.fill(x));
            Box::new(w)
        },
        1000.0,
    );
}

//! docs/performance.md from performance.md beside this file: `{{lives/aof/life 1 at a time/RMQ/messages_per_s}}` is a figure
//! of docs/bench/lives.csv, `{{one / other}}` with spaces a ratio of two, `{{about/server}}` a fact about the run.

use std::fmt::Write;
use std::fs;

use super::common::process::in_repository;
use super::lab::AOF;
use super::table::{read_facts, Table};

pub fn write() {
    let mut rest = include_str!("performance.md");
    let mut page = String::new();
    while let Some((text, (name, behind))) = rest.split_once("{{").and_then(|(a, b)| Some((a, b.split_once("}}")?))) {
        page += text;
        page += &match name.split_once(" / ") {
            _ if name.starts_with("about/") => read_facts().get(&name[6..]).cloned().unwrap_or_else(|| "?".into()),
            Some((one, other)) => shown(figure(one) / figure(other)),
            None => shown(figure(name)),
        };
        rest = behind;
    }
    fs::write(in_repository("docs/performance.md"), page + rest).expect("docs/performance.md");
    fs::write(in_repository("docs/growth.svg"), plot()).expect("docs/growth.svg");
}

fn figure(name: &str) -> f64 {
    let parts: Vec<&str> = name.split('/').collect();
    let [file, keys @ .., column] = &parts[..] else { panic!("{name} is file/key/…/figure") };
    Table::read(file, keys.len()).get(keys, column)
}

fn shown(number: f64) -> String {
    match number {
        _ if number.is_nan() => "not measured".into(),
        _ if number < 9.995 => format!("{number:.2}"),
        _ if number < 99.95 => format!("{number:.1}"),
        _ => {
            let digits = format!("{number:.0}");
            let groups: Vec<&str> =
                digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or("")).collect();
            groups.join(",")
        }
    }
}

/// Server time per life against the messages in processing, both scales logarithmic.
fn plot() -> String {
    const COLOURS: [(&str, &str); 4] =
        [("RMQ", "#c0392b"), ("mx-rmq", "#2c3e50"), ("Streams", "#2980b9"), ("bare list", "#7f8c8d")];
    let table = Table::read("growth", 3);
    let x = |size: f64| 70.0 + 150.0 * (size.log10() - 2.0);
    let y = |cost: f64| 300.0 - 70.0 * cost.max(1.0).log10();
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 350\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"640\" height=\"350\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"14\">server CPU per message, µs</text><text x=\"400\" y=\"340\">messages in processing</text>\n",
    );
    for power in 0..4 {
        let (cost, size) = (10f64.powi(power), 10f64.powi(power + 2));
        let _ =
            writeln!(svg, "<path d=\"M70 {0}H520\" stroke=\"#ddd\"/><text x=\"30\" y=\"{0}\">{cost}</text>", y(cost));
        let _ = writeln!(svg, "<text x=\"{}\" y=\"320\">{size}</text>", x(size) - 10.0);
    }
    for (place, (name, colour)) in COLOURS.into_iter().enumerate() {
        let mut points = String::new();
        for (keys, figures) in table.rows.iter().filter(|(keys, _)| keys[0] == AOF && keys[2] == name) {
            let _ = write!(points, "{:.0},{:.0} ", x(keys[1].parse().unwrap_or(100.0)), y(figures[0]));
        }
        let top = 40 + 18 * place;
        let _ = writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        let _ = writeln!(svg, "<text x=\"540\" y=\"{top}\" fill=\"{colour}\">{name}</text>");
    }
    svg + "</svg>\n"
}

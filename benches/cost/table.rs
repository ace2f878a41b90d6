//! Results as CSV under docs/bench/: each line has some columns of text, which are its key, then numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::common::process::in_repository;

pub struct Table {
    path: PathBuf,
    header: Vec<String>,
    keys: usize,
    pub rows: Vec<Row>,
}

/// The columns of text, then the numbers.
pub type Row = (Vec<String>, Vec<f64>);

impl Table {
    pub fn new(name: &str, keys: &str, figures: &str) -> Table {
        let header: Vec<String> = keys.split(',').chain(figures.split(',')).map(str::to_string).collect();
        Table { path: path(name), header, keys: keys.split(',').count(), rows: Vec::new() }
    }

    /// What the last run wrote; no rows if there was none.
    pub fn read(name: &str, keys: usize) -> Table {
        let text = fs::read_to_string(path(name)).unwrap_or_default();
        let mut lines = text.lines().map(|line| line.split(',').map(str::to_string).collect::<Vec<_>>());
        let header = lines.next().unwrap_or_default();
        let rows = lines.map(|mut cells| {
            let figures = cells.split_off(keys).iter().map(|cell| cell.parse().unwrap_or(f64::NAN)).collect();
            (cells, figures)
        });
        Table { path: path(name), rows: rows.collect(), header, keys }
    }

    /// Adds a line and prints it.
    pub fn add(&mut self, keys: &[&str], figures: &[f64]) {
        assert_eq!(keys.len() + figures.len(), self.header.len());
        assert!(keys.iter().all(|key| !key.contains(',')), "no comma in {keys:?}");
        let named =
            self.header[self.keys..].iter().zip(figures).map(|(name, figure)| format!("{name} {}", cell(*figure)));
        println!("{:60} {}", keys.join(" | "), named.collect::<Vec<_>>().join(", "));
        self.rows.push((keys.iter().map(ToString::to_string).collect(), figures.to_vec()));
    }

    pub fn write(&self) {
        let mut text = self.header.join(",") + "\n";
        for (keys, figures) in &self.rows {
            let cells: Vec<String> = keys.iter().cloned().chain(figures.iter().map(|figure| cell(*figure))).collect();
            text += &(cells.join(",") + "\n");
        }
        fs::create_dir_all(self.path.parent().expect("a folder")).expect("docs/bench");
        fs::write(&self.path, text).expect("a CSV file");
    }

    /// A figure by its keys and the name of its column; not a number where there is none.
    pub fn get(&self, keys: &[&str], figure: &str) -> f64 {
        let column = self.header.iter().skip(self.keys).position(|name| name == figure);
        let row = self.rows.iter().find(|(own, _)| own.iter().map(String::as_str).eq(keys.iter().copied()));
        row.and_then(|(_, figures)| figures.get(column?).copied()).unwrap_or(f64::NAN)
    }
}

/// Facts about the run: name and text.
pub fn read_facts() -> BTreeMap<String, String> {
    let text = fs::read_to_string(path("about")).unwrap_or_default();
    let facts = text.lines().skip(1).filter_map(|line| line.split_once(','));
    facts.map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

pub fn write_facts(new: &[(&str, String)]) {
    let mut facts = read_facts();
    facts.extend(new.iter().map(|(name, value)| (name.to_string(), value.clone())));
    let lines: String = facts.iter().map(|(name, value)| format!("{name},{value}\n")).collect();
    fs::create_dir_all(path("about").parent().expect("a folder")).expect("docs/bench");
    fs::write(path("about"), format!("fact,value\n{lines}")).expect("about.csv");
}

fn path(name: &str) -> PathBuf {
    in_repository(&format!("docs/bench/{name}.csv"))
}

/// Three digits that say something.
fn cell(number: f64) -> String {
    match number.abs() {
        _ if number.is_nan() => String::new(),
        size if size >= 100.0 || size == 0.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

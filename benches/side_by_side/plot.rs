//! A line chart with logarithmic axes, as SVG.

use std::fmt::Write;

use super::report::count;

pub struct Chart {
    pub title: String,
    pub x_label: &'static str,
    pub y_label: &'static str,
    pub lines: Vec<Line>,
}

pub struct Line {
    pub label: String,
    pub colour: &'static str,
    pub dashed: bool,
    /// Both numbers are above 0.
    pub points: Vec<(f64, f64)>,
}

pub const LUA: &str = "#c0392b";
pub const NATIVE: &str = "#1f6fb2";
pub const PLAIN: &str = "#6b7280";

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;

impl Chart {
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = Axis::over(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Axis::over(points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#1f2937\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"28\" font-size=\"16\" font-weight=\"bold\">{}</text>\n",
            self.title
        );
        self.grid(&mut svg, &x, &y);
        for (index, line) in self.lines.iter().enumerate() {
            self.line(&mut svg, &x, &y, index, line);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn grid(&self, svg: &mut String, x: &Axis, y: &Axis) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for decade in x.decades() {
            let at = x.at(decade);
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#e5e7eb\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 20.0,
                plain_number(decade)
            );
        }
        for decade in y.decades() {
            let at = y.at(decade);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#e5e7eb\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                at + 4.0,
                plain_number(decade)
            );
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {TOP} V{bottom} H{right}\" fill=\"none\" stroke=\"#374151\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(22 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 16.0,
            self.x_label,
            (TOP + bottom) / 2.0,
            self.y_label
        );
    }

    fn line(&self, svg: &mut String, x: &Axis, y: &Axis, index: usize, line: &Line) {
        let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let colour = line.colour;
        let places: Vec<String> =
            line.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x.at(*px), y.at(*py))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"{dash}/>",
            places.join(" ")
        );
        for (px, py) in &line.points {
            let (cx, cy) = (x.at(*px), y.at(*py));
            let _ = writeln!(svg, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
        }
        let (legend, row) = (WIDTH - RIGHT + 20.0, TOP + 10.0 + 24.0 * index as f64);
        let _ = writeln!(
            svg,
            "<line x1=\"{legend}\" y1=\"{row}\" x2=\"{}\" y2=\"{row}\" stroke=\"{colour}\" stroke-width=\"2.5\"{dash}/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            legend + 30.0,
            legend + 38.0,
            row + 4.0,
            line.label
        );
    }
}

/// From whole decade to whole decade.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(numbers: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (low, high) = numbers.fold((f64::MAX, f64::MIN), |(low, high), n| (low.min(n), high.max(n)));
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        Axis { low, high: if high > low { high } else { low + 1.0 }, from, to }
    }

    fn at(&self, number: f64) -> f64 {
        self.from + (number.log10() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.low as i32..=self.high as i32).map(|decade| 10f64.powi(decade))
    }
}

fn plain_number(number: f64) -> String {
    if number < 1.0 {
        number.to_string()
    } else {
        count(number)
    }
}

//! A report as a page for people: one file, with its plots in it.

use std::fmt::Write;

use super::{report::Report, series::Stretch};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 220.0;
/// Room for the numbers beside the axes.
const LEFT: f64 = 70.0;
const BELOW: f64 = 30.0;
/// Colours that are told apart without seeing red or green.
const COLOURS: [&str; 2] = ["#005ab5", "#dc7814"];

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>kvtide storm</title><style>\
body{font:15px/1.5 sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}pre{background:#f3f3f3;padding:1rem;\
overflow:auto}svg{width:100%;height:auto}text{font:12px sans-serif;fill:#333}h2{font-size:1rem;margin:2rem 0 0}\
</style></head><body>\n";

/// What a line shows, and of each stretch how much.
type Line = (&'static str, fn(&Stretch) -> Option<f64>);

/// One plot: its title, and its lines.
const PLOTS: [(&str, &[Line]); 5] = [
    ("Events visible, a second", &[("events", |stretch| Some(stretch.events_s))]),
    ("Lag, ms", &[("p50", |stretch| Some(stretch.lag_p50_ms)), ("p99", |stretch| Some(stretch.lag_p99_ms))]),
    ("Lookups, a second", &[("lookups", |stretch| Some(stretch.lookups_s))]),
    (
        "Lookup, us",
        &[("p50", |stretch| Some(stretch.lookup_p50_us)), ("p99", |stretch| Some(stretch.lookup_p99_us))],
    ),
    ("Memory, MB", &[("rss", |stretch| stretch.rss_mb)]),
];

/// The whole page.
pub(super) fn write(report: &Report) -> String {
    let mut page = String::from(HEAD);
    let name = escape(&report.scenario);
    // Memory takes whatever is written to it, here and below.
    let _ = write!(page, "<h1>{name} into {}</h1>\n<pre>{}</pre>\n", report.target, escape(&report.text()));
    for (title, lines) in PLOTS {
        let _ = write!(page, "<h2>{title}</h2>\n{}\n", plot(&report.stretches, lines));
    }
    page.push_str("</body></html>\n");
    page
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Lines over time, from 0 on.
fn plot(stretches: &[Stretch], lines: &[Line]) -> String {
    let values = lines.iter().flat_map(|(_, value)| stretches.iter().filter_map(value));
    let most = round_up(values.fold(0.0, f64::max));
    let end = stretches.last().map_or(1.0, |last| last.at_s).max(1e-9);
    let across = |at_s: f64| LEFT + (WIDTH - LEFT - 10.0) * at_s / end;
    let up = |value: f64| 10.0 + (HEIGHT - BELOW - 10.0) * (1.0 - value / most);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for part in 0..=4 {
        let (value, at_s) = (most * f64::from(part) / 4.0, end * f64::from(part) / 4.0);
        let (x, y, right) = (across(at_s), up(value), WIDTH - 10.0);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{at_s:.0} s</text>",
            LEFT - 6.0,
            y + 4.0,
            HEIGHT - 8.0
        );
    }
    for (number, (name, value)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points = stretches.iter().filter_map(|stretch| Some((stretch.at_s, value(stretch)?)));
        let points: Vec<_> =
            points.map(|(at, value)| format!("{:.1},{:.1}", across(at), up(value))).collect();
        let _ = write!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\
             <text x=\"{}\" y=\"22\" fill=\"{colour}\">{name}</text>",
            points.join(" "),
            LEFT + 12.0 + 50.0 * number as f64
        );
    }
    svg + "</svg>"
}

/// The next number of one digit, times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    (value / power).ceil() * power
}

#[cfg(test)]
mod tests {
    use super::round_up;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, expected) in [(0.0, 1.0), (1.0, 1.0), (1.2, 2.0), (950.0, 1000.0), (0.031, 0.04)] {
            assert!((round_up(value) - expected).abs() < 1e-9, "{value}: {}", round_up(value));
        }
    }
}

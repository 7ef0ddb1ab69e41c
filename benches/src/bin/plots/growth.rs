//! A plot of how lookups change while an index grows.

use std::path::Path;

use kvtide_benches::Latency;
use plotters::prelude::{
    ChartBuilder, Circle, Color, IntoDrawingArea, IntoLogRange, LineSeries, PathElement, SVGBackend,
};
use plotters::style::WHITE;

use crate::{
    Failed,
    bars::{COLOURS, FONT, decades},
    lines::Step,
};

/// What a line shows, by its name.
type Line = (&'static str, fn(&Latency) -> f64);

const SIZE: (u32, u32) = (640, 420);

pub(crate) fn draw(steps: &[Step], path: &Path) -> Result<(), Failed> {
    let lines: [Line; 2] = [("p50", |one| one.p50), ("p99", |one| one.p99)];
    let held = decades(steps.iter().map(|step| step.held_blocks as f64));
    let times = decades(steps.iter().flat_map(|step| lines.map(|(_, part)| part(&step.lookup_ns))));
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("A lookup while the index grows", (FONT, 21))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(90)
        .build_cartesian_2d(held.log_scale(), times.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("held blocks")
        .y_desc("ns")
        .y_label_formatter(&|time| time.to_string())
        .x_label_formatter(&|held| format!("{held:.0e}"))
        .label_style((FONT, 16))
        .draw()?;
    for (&colour, (name, part)) in COLOURS.iter().zip(lines) {
        let points = || steps.iter().map(|step| (step.held_blocks as f64, part(&step.lookup_ns)));
        let drawn = chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?.label(name);
        drawn.legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], colour.stroke_width(2)));
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).label_font((FONT, 16)).draw()?;
    Ok(area.present()?)
}

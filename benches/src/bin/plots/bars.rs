//! A plot of one figure: bars in groups of one workload, a colour an index.
//!
//! The axis is logarithmic, so that the same distance is the same ratio everywhere.

use std::path::Path;

use plotters::{
    prelude::{ChartBuilder, Color, IntoDrawingArea, IntoLogRange, Rectangle, SVGBackend, Text, TextStyle},
    style::{
        BLACK, IntoFont, RGBColor, WHITE,
        text_anchor::{HPos, Pos, VPos},
    },
};

use crate::{
    Failed,
    lines::{Lines, Peer},
};

/// Colours that are told apart without seeing red or green.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 90, 181),
    RGBColor(220, 120, 20),
    RGBColor(120, 60, 150),
    RGBColor(90, 180, 220),
    RGBColor(150, 150, 150),
    RGBColor(40, 40, 40),
];
pub(crate) const FONT: &str = "sans-serif";
/// Pixels.
const GROUP_WIDTH: u32 = 120;
/// Room at the right for the names of the indexes, in groups.
const LEGEND: f64 = 1.4;
const HEIGHT: u32 = 420;
const MARGIN: u32 = 90;

/// One figure of all lines.
pub(crate) struct Bars {
    /// The plot's file.
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) figure: fn(&Peer) -> f64,
}

/// Powers of ten around values.
pub(crate) fn decades(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) = values
        .filter(|value| *value > 0.0)
        .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    10_f64.powf(low.log10().floor())..10_f64.powf(high.log10().ceil())
}

impl Bars {
    pub(crate) fn draw(&self, lines: &Lines, path: &Path) -> Result<(), Failed> {
        let (indexes, groups) = (lines.indexes(), lines.groups());
        let all = lines.peers.iter().map(self.figure);
        let range = decades(all);
        let size = (MARGIN + 40 + (f64::from(GROUP_WIDTH) * (groups.len() as f64 + LEGEND)) as u32, HEIGHT);
        let area = SVGBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, (FONT, 21))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(MARGIN)
            .build_cartesian_2d(0.0..groups.len() as f64 + LEGEND, range.clone().log_scale())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc(self.unit)
            .y_label_formatter(&|value| value.to_string())
            .label_style((FONT, 16))
            .draw()?;
        let width = 0.84 / indexes.len() as f64;
        for (place, &index) in indexes.iter().enumerate() {
            let style = COLOURS[place % COLOURS.len()].filled();
            let bars = groups.iter().enumerate().filter_map(|(number, &group)| {
                let left = number as f64 + 0.08 + place as f64 * width;
                let top = lines.find(index, group).map(self.figure)?;
                Some(Rectangle::new([(left, range.start), (left + width * 0.92, top)], style))
            });
            let drawn = chart.draw_series(bars)?.label(index);
            drawn.legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], style));
        }
        let legend = WHITE.mix(0.8);
        chart.configure_series_labels().background_style(legend).label_font((FONT, 16)).draw()?;
        let middle =
            TextStyle::from((FONT, 16).into_font()).color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top));
        for (number, (workload, ranks)) in groups.into_iter().enumerate() {
            let (x, y) = chart.backend_coord(&(number as f64 + 0.5, range.start));
            area.draw(&Text::new(workload.to_owned(), (x, y + 6), middle.clone()))?;
            area.draw(&Text::new(format!("{ranks} ranks"), (x, y + 22), middle.clone()))?;
        }
        Ok(area.present()?)
    }
}

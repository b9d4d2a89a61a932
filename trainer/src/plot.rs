//! Plots as SVG text: a scatter of predicted against actual, and bars by class. For `eval`; no library draws them,
//! because a plot of three shapes needs none.

use std::fmt::Write;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 20.0;

/// Most points that are drawn; beyond, they are thinned evenly.
const MAX_POINTS: usize = 2000;

/// Text that is safe inside SVG.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn frame(title: &str, x: &str, y: &str, body: &str) -> String {
    let (middle, base) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - BOTTOM);
    let (title, x, y) = (escaped(title), escaped(x), escaped(y));
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
<text x="{middle}" y="22" text-anchor="middle" font-size="15">{title}</text>
<text x="{middle}" y="{}" text-anchor="middle">{x}</text>
<text transform="translate(16 {}) rotate(-90)" text-anchor="middle">{y}</text>
<path d="M{LEFT} {TOP}V{base}H{}" fill="none" stroke="#333"/>
{body}</svg>
"##,
        HEIGHT - 12.0,
        (TOP + base) / 2.0,
        WIDTH - RIGHT,
    )
}

/// Predicted against actual, both in ms on log scales, with the diagonal on which they are equal.
#[must_use]
pub fn scatter(title: &str, pairs: &[(f32, f32)]) -> String {
    let good = |value: f32| value.is_finite() && value > 0.0;
    let pairs: Vec<(f64, f64)> = pairs
        .iter()
        .filter(|(predicted, actual)| good(*predicted) && good(*actual))
        .map(|(predicted, actual)| (f64::from(*predicted).log10(), f64::from(*actual).log10()))
        .collect();
    let all = || pairs.iter().flat_map(|(predicted, actual)| [*predicted, *actual]);
    let low = all().fold(f64::INFINITY, f64::min).floor();
    let high = all().fold(f64::NEG_INFINITY, f64::max).ceil();
    if pairs.is_empty() {
        return frame(title, "actual, ms", "predicted, ms", "");
    }
    let high = high.max(low + 1.0);
    let x = |value: f64| LEFT + (value - low) / (high - low) * (WIDTH - RIGHT - LEFT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP);
    let mut body = format!(
        "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"#999\" stroke-dasharray=\"4\"/>\n",
        x(low),
        y(low),
        x(high),
        y(high)
    );
    // Writing to a string cannot fail.
    for decade in (low as i32)..=(high as i32) {
        let (at, text) = (f64::from(decade), 10f64.powi(decade));
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            x(at),
            HEIGHT - BOTTOM + 18.0,
            LEFT - 6.0,
            y(at) + 4.0
        );
    }
    for (predicted, actual) in pairs.iter().step_by(pairs.len().div_ceil(MAX_POINTS)) {
        let _ = writeln!(
            body,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2\" fill=\"#1565c0\" fill-opacity=\"0.35\"/>",
            x(*actual),
            y(*predicted)
        );
    }
    frame(title, "actual, ms", "predicted, ms", &body)
}

/// One bar a class, shares of 1 as percentages, with a dashed line where they should be if there is one.
#[must_use]
pub fn bars(title: &str, y_label: &str, bars: &[(String, f64)], wanted: Option<f64>) -> String {
    let most = bars.iter().map(|(_, value)| *value).chain(wanted).fold(0.0, f64::max).max(1e-9) * 1.1;
    let (base, width) = (HEIGHT - BOTTOM, (WIDTH - RIGHT - LEFT) / bars.len().max(1) as f64);
    let mut body = String::new();
    for (index, (name, value)) in bars.iter().enumerate() {
        let height = value / most * (base - TOP);
        let left = LEFT + width * index as f64;
        let _ = writeln!(
            body,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"#1565c0\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.1} %</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left + 0.15 * width,
            base - height,
            0.7 * width,
            left + 0.5 * width,
            base - height - 5.0,
            100.0 * value,
            left + 0.5 * width,
            base + 16.0,
            escaped(name)
        );
    }
    if let Some(wanted) = wanted {
        let y = base - wanted / most * (base - TOP);
        let _ = writeln!(
            body,
            "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#c62828\" stroke-dasharray=\"5\"/>",
            WIDTH - RIGHT
        );
    }
    frame(title, "", y_label, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_on_the_diagonal_are_drawn_on_it_and_text_is_escaped() {
        let svg = scatter("a < b & \"c\"", &[(10.0, 10.0), (1000.0, 1000.0), (f32::NAN, 5.0), (0.0, 5.0)]);
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(
            svg.contains("cx=\"70.0\" cy=\"350.0\"") && svg.contains("cx=\"500.0\" cy=\"40.0\""),
            "{svg}"
        );
        assert!(scatter("none", &[]).ends_with("</svg>\n"));
        assert!(scatter("many", &vec![(1.0, 2.0); 50_000]).matches("<circle").count() <= MAX_POINTS);
    }

    #[test]
    fn bars_are_in_proportion_and_say_their_value() {
        let svg = bars("t", "y", &[("idle".to_owned(), 0.1), ("full".to_owned(), 0.2)], Some(0.9));
        assert!(svg.contains("10.0 %") && svg.contains("20.0 %") && svg.contains("idle"));
        assert!(svg.contains("stroke-dasharray"));
    }
}

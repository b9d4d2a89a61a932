//! One self-contained page of a report: inline SVG, no script, no network.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::cell::{Around, Cell};
use super::matrix::Report;
use super::policies::{ABLATIONS, FORETOKEN};
use super::summary::{Place, by_place, median};
use crate::rivals::{ORACLES, RIVALS};

const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;\
    color:#222}table{border-collapse:collapse;margin:1em 0}td,th{padding:2px 10px;text-align:right;\
    border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}h2{margin-top:2em}\
    .ok{color:#17692f}.no{color:#a11}svg{background:#fafafa;margin:4px}.grid{display:flex;flex-wrap:wrap}\
    text{font:11px system-ui,sans-serif}";

/// A goal: its name, what was reached, the bound, and whether less is better.
type Goal = (&'static str, Option<f64>, f64, bool);

/// The figures that the bench is held to.
#[must_use]
pub fn goals(report: &Report) -> Vec<Goal> {
    let s = &report.summary;
    vec![
        ("mean TTFT against queue + KV, equal pods", s.vs_queue_kv.ttft_equal, 0.40, true),
        ("mean TTFT against queue + KV, mixed pods", s.vs_queue_kv.ttft_mixed, 0.40, true),
        ("mean TPOT against queue + KV, equal pods", s.vs_queue_kv.tpot_equal, 0.70, true),
        ("mean TPOT against queue + KV, mixed pods", s.vs_queue_kv.tpot_mixed, 0.60, true),
        ("mean E2E against GIE default, equal pods", s.vs_gie.e2e_equal, 0.85, true),
        ("mean E2E against GIE default, mixed pods", s.vs_gie.e2e_mixed, 0.80, true),
        ("mean E2E against sticky, equal pods", s.vs_sticky.e2e_equal, 0.92, true),
        ("mean E2E against sticky, mixed pods", s.vs_sticky.e2e_mixed, 0.85, true),
        (
            "mean E2E against each cell's best rival, worst, load up to 80 %",
            s.vs_best_rival.worst_80,
            1.03,
            true,
        ),
        ("the same at 95 %", s.vs_best_rival.worst_95, 1.05, true),
        ("mean E2E against each cell's best oracle, geometric mean", s.vs_oracle.e2e_geomean, 1.05, true),
        ("the same, worst cell", s.vs_oracle.e2e_worst, 1.10, true),
        ("mean TTFT against the lowest oracle's, geometric mean", s.vs_oracle.ttft_geomean, 1.15, true),
        ("p99 TTFT against the lowest oracle's, worst cell", s.vs_oracle.ttft_p99_worst, 1.5, true),
        ("sustained rate on churn over the best", s.churn_rate_vs_best, 0.97, false),
        ("sustained rate over the best, worst traffic", s.rate_vs_best_worst, 0.95, false),
        ("SLO attainment at the highest load over the best rival's", s.goodput_vs_best, 1.10, false),
        ("change of mean E2E with scrapes every second", s.scrape_1s_change, 0.02, true),
    ]
}

/// The page.
#[must_use]
pub fn page(report: &Report) -> String {
    let mut out = String::with_capacity(1 << 20);
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>foretoken policy bench</title>\
         <style>{STYLE}</style><h1>foretoken policy bench</h1>\
         <p>{} runs in virtual time, {:.0} s. Ratios are ours / theirs. TPOT excludes the first token. Read ratios, \
         not milliseconds.</p>",
        report.cells.len(),
        report.wall_s
    );
    summary(&mut out, report);
    ratios(&mut out, report);
    load_curves(&mut out, report);
    distributions(&mut out, report);
    ablations(&mut out, report);
    pool_changes(&mut out, report);
    wins_nothing(&mut out, report);
    cells(&mut out, report);
    out.push_str("</html>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn summary(out: &mut String, report: &Report) {
    out.push_str("<h2>Goals</h2><table><tr><th>figure<th>reached<th>goal<th></tr>");
    for (name, reached, goal, less) in goals(report) {
        let Some(reached) = reached else { continue };
        let met = if less { reached <= goal } else { reached >= goal };
        let (class, word) = if met { ("ok", "met") } else { ("no", "missed") };
        let sign = if less { "≤" } else { "≥" };
        let _ = write!(
            out,
            "<tr><td>{}<td>{reached:.3}<td>{sign} {goal:.2}<td class=\"{class}\">{word}</tr>",
            escape(name)
        );
    }
    let s = &report.summary;
    for (name, value, unit) in [
        ("median regret", s.regret_ms_median, "ms"),
        ("pairs of pods that predicted TTFT orders rightly", s.ttft_rank_agreement, ""),
        ("median error of predicted TTFT", s.ttft_error, ""),
        ("median error of predicted TPOT", s.tpot_error, ""),
        ("a million requests on 256 pods", s.million_requests_s, "s"),
    ] {
        if let Some(value) = value {
            let _ = write!(out, "<tr><td>{name}<td>{value:.3} {unit}<td><td></tr>");
        }
    }
    out.push_str("</table>");
}

fn title(place: &Place) -> String {
    format!("{}, load {} %, {} pods, {}", place.0, place.1, place.2, place.3.name())
}

/// Mean E2E of every policy over the best oracle's, as bars.
fn ratios(out: &mut String, report: &Report) {
    out.push_str("<h2>Mean E2E over the best oracle's</h2><div class=\"grid\">");
    for (place, policies) in &by_place(&report.cells) {
        let e2e_ms = |name: &str| policies.get(name).map(|cells| median(cells, |cell| cell.e2e_ms.mean));
        let Some(best) = ORACLES.iter().filter_map(|name| e2e_ms(name)).min_by(f64::total_cmp) else {
            continue;
        };
        let names = std::iter::once(FORETOKEN).chain(RIVALS).chain(ORACLES);
        let names: Vec<&str> = names.filter(|name| policies.contains_key(*name)).collect();
        let height = 20 + 16 * names.len();
        let _ = write!(
            out,
            "<svg width=\"340\" height=\"{height}\"><text x=\"4\" y=\"13\" font-weight=\"bold\">{}</text>",
            escape(&title(place))
        );
        for (at, name) in names.iter().enumerate() {
            let Some(ratio) = e2e_ms(name).map(|ms| ms / best) else { continue };
            let y = 20 + 16 * at;
            // Bars end at three times the oracle.
            let width = (ratio.min(3.0) / 3.0 * 180.0).max(1.0);
            let colour = if *name == FORETOKEN {
                "#c33"
            } else if name.starts_with("oracle") {
                "#888"
            } else {
                "#48c"
            };
            let _ = write!(
                out,
                "<text x=\"4\" y=\"{}\">{name}</text><rect x=\"100\" y=\"{y}\" width=\"{width:.0}\" height=\"13\" \
                 fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{}\">{ratio:.2}</text>",
                y + 11,
                104.0 + width,
                y + 11
            );
        }
        out.push_str("</svg>");
    }
    out.push_str("</div>");
}

/// A line chart: named series of (x, y), y on a logarithmic axis.
fn chart(out: &mut String, title: &str, series: &[(String, Vec<(f64, f64)>)], unit: &str) {
    let points = || series.iter().flat_map(|(_, points)| points.iter()).filter(|point| point.1 > 0.0);
    let (mut x, mut y) = ((f64::INFINITY, f64::NEG_INFINITY), (f64::INFINITY, f64::NEG_INFINITY));
    for point in points() {
        x = (x.0.min(point.0), x.1.max(point.0));
        y = (y.0.min(point.1.ln()), y.1.max(point.1.ln()));
    }
    if x.0 >= x.1 || y.0 > y.1 {
        return;
    }
    let place = |point: &(f64, f64)| {
        let across = 45.0 + (point.0 - x.0) / (x.1 - x.0) * 210.0;
        let up = 190.0 - (point.1.max(1e-9).ln() - y.0) / (y.1 - y.0).max(1e-9) * 160.0;
        (across, up)
    };
    let _ = write!(
        out,
        "<svg width=\"400\" height=\"215\"><text x=\"4\" y=\"13\" font-weight=\"bold\">{}</text>\
         <text x=\"2\" y=\"34\">{:.0} {unit}</text><text x=\"2\" y=\"192\">{:.0}</text>\
         <text x=\"45\" y=\"208\">{:.2}</text><text x=\"240\" y=\"208\">{:.2}</text>",
        escape(title),
        y.1.exp(),
        y.0.exp(),
        x.0,
        x.1
    );
    for (at, (name, points)) in series.iter().enumerate() {
        let hue = at * 360 / series.len().max(1);
        let width = if name == FORETOKEN { 3 } else { 1 };
        let line: Vec<String> =
            points.iter().map(place).map(|(across, up)| format!("{across:.1},{up:.1}")).collect();
        let _ = write!(
            out,
            "<polyline fill=\"none\" stroke-width=\"{width}\" stroke=\"hsl({hue},70%,45%)\" points=\"{}\"/>\
             <text x=\"262\" y=\"{}\" fill=\"hsl({hue},70%,40%)\">{name}</text>",
            line.join(" "),
            30 + 12 * at
        );
    }
    out.push_str("</svg>");
}

fn load_curves(out: &mut String, report: &Report) {
    out.push_str("<h2>Mean E2E by load</h2><div class=\"grid\">");
    let places = by_place(&report.cells);
    let mut heads: Vec<_> = places.keys().map(|place| (place.0.clone(), place.2, place.3)).collect();
    heads.dedup();
    heads.sort();
    heads.dedup();
    for (workload, pods, pool) in heads {
        let series: Vec<(String, Vec<(f64, f64)>)> = std::iter::once(FORETOKEN)
            .chain(RIVALS)
            .chain(ORACLES)
            .map(|name| {
                let of = places
                    .iter()
                    .filter(|(place, _)| (&place.0, place.2, place.3) == (&workload, pods, pool));
                let points = of.filter_map(|(place, policies)| {
                    let cells = policies.get(name)?;
                    Some((f64::from(place.1) / 100.0, median(cells, |cell| cell.e2e_ms.mean)))
                });
                (name.to_owned(), points.collect())
            })
            .filter(|(_, points): &(String, Vec<_>)| points.len() > 1)
            .collect();
        chart(out, &format!("{workload}, {pods} pods, {}", pool.name()), &series, "ms");
    }
    out.push_str("</div>");
}

fn distributions(out: &mut String, report: &Report) {
    distribution(out, report, "TTFT", |cell| &cell.ttft_curve_ms);
    distribution(out, report, "E2E", |cell| &cell.e2e_curve_ms);
}

fn distribution(out: &mut String, report: &Report, name: &str, of: fn(&Cell) -> &[f64]) {
    let _ = write!(out, "<h2>{name} by share of requests</h2><div class=\"grid\">");
    let shown = [FORETOKEN, "queue-kv", "gie-default", "sticky", "radix", "kv-cost", "oracle-full"];
    for (place, policies) in &by_place(&report.cells) {
        let series: Vec<(String, Vec<(f64, f64)>)> = shown
            .iter()
            .filter_map(|name| {
                let cell = policies.get(*name)?.first()?;
                let points = of(cell).iter().enumerate();
                Some(((*name).to_owned(), points.map(|(at, ms)| ((at as f64 + 0.5) / 20.0, *ms)).collect()))
            })
            .collect();
        chart(out, &title(place), &series, "ms");
    }
    out.push_str("</div>");
}

fn ablations(out: &mut String, report: &Report) {
    if report.summary.ablations.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Ablations</h2><p>Mean E2E over foretoken's, geometric mean over cells; and the worst cell.</p>\
        <table><tr><th>without<th>ratio<th>worst<th>what</tr>",
    );
    let places = by_place(&report.cells);
    for (name, ratio) in &report.summary.ablations {
        let worst = places
            .values()
            .filter_map(|policies| {
                let of = |name: &str| Some(median(policies.get(name)?, |cell| cell.e2e_ms.mean));
                Some(of(name)? / of(FORETOKEN)?)
            })
            .fold(0.0, f64::max);
        let what = ABLATIONS.iter().find(|(known, _)| known == name).map_or("", |(_, what)| what);
        let _ = write!(out, "<tr><td>{}<td>{ratio:.3}<td>{worst:.3}<td>{}</tr>", escape(name), escape(what));
    }
    out.push_str("</table>");
}

fn pool_changes(out: &mut String, report: &Report) {
    let mut rows: BTreeMap<_, Vec<&Cell>> = BTreeMap::new();
    for cell in &report.cells {
        if let Some(event) = cell.event {
            rows.entry((event, &cell.workload, cell.pods, cell.pool, &cell.policy)).or_default().push(cell);
        }
    }
    if rows.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Pools that change on the way</h2><p>Half of the requests arrive before: pods are added (a quarter of \
         the pool), take twice the time (an eighth) or die (an eighth). Medians over seeds; lost are requests that \
         the dead pod had begun to answer.</p><table><tr><th>change<th>traffic<th>pods<th>policy<th>TTFT before\
         <th>after<th>p99 before<th>after<th>E2E before<th>after<th>lost</tr>",
    );
    for ((event, workload, pods, pool, policy), cells) in rows {
        let cells: Vec<Cell> = cells.into_iter().cloned().collect();
        let of = |figure: fn(&Around) -> f64| median(&cells, |cell| cell.around.as_ref().map_or(0.0, figure));
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{pods} {}<td>{}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}</tr>",
            event.name(),
            escape(workload),
            pool.name(),
            escape(policy),
            of(|around| around.before.ttft_ms.mean),
            of(|around| around.after.ttft_ms.mean),
            of(|around| around.before.ttft_ms.p99),
            of(|around| around.after.ttft_ms.p99),
            of(|around| around.before.e2e_ms.mean),
            of(|around| around.after.e2e_ms.mean),
            median(&cells, |cell| cell.lost as f64),
        );
    }
    out.push_str("</table>");
}

fn wins_nothing(out: &mut String, report: &Report) {
    out.push_str("<h2>Where foretoken wins nothing</h2>");
    if report.summary.wins_nothing.is_empty() {
        out.push_str(
            "<p>Nowhere in these cells: it is 2 % or more ahead of every rival somewhere in each regime.</p>",
        );
        return;
    }
    out.push_str(
        "<p>Traffic and hardware where its mean E2E is not 2 % below the best rival's at any load up to 80 %. Where \
         even the best oracle is not, there is nothing to win for any router.</p>\
         <table><tr><th>traffic<th>hardware<th>ours / best rival<th>best oracle / best rival</tr>",
    );
    for even in &report.summary.wins_nothing {
        let oracle = even.oracle_vs_best_rival.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{:.3}<td>{oracle}</tr>",
            escape(&even.workload),
            even.pool.name(),
            even.vs_best_rival
        );
    }
    out.push_str("</table>");
}

fn cells(out: &mut String, report: &Report) {
    out.push_str(
        "<h2>All cells</h2><details><summary>medians over seeds</summary><table><tr><th>cell<th>policy<th>TTFT mean\
         <th>p50<th>p90<th>p99<th>TPOT mean<th>p90<th>E2E mean<th>p90<th>hits<th>SLO</tr>",
    );
    for (place, policies) in &by_place(&report.cells) {
        for (name, cells) in policies {
            let of = |figure: fn(&Cell) -> f64| median(cells, figure);
            let _ = write!(
                out,
                "<tr><td>{}<td>{}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.1}<td>{:.1}<td>{:.0}<td>{:.0}<td>{:.2}\
                 <td>{:.3}</tr>",
                escape(&title(place)),
                escape(name),
                of(|cell| cell.ttft_ms.mean),
                of(|cell| cell.ttft_ms.p50),
                of(|cell| cell.ttft_ms.p90),
                of(|cell| cell.ttft_ms.p99),
                of(|cell| cell.tpot_ms.mean),
                of(|cell| cell.tpot_ms.p90),
                of(|cell| cell.e2e_ms.mean),
                of(|cell| cell.e2e_ms.p90),
                of(|cell| cell.hit_rate),
                of(|cell| cell.slo_attainment),
            );
        }
    }
    out.push_str("</table></details>");
}

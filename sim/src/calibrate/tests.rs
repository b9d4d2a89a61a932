//! The fit finds what made the data, and never a negative time.

use super::nnls::solve;
use super::*;

#[test]
fn coefficients_that_made_the_table_are_found_again() {
    let truth = [30.0, 0.05, 2e-6, 0.25, 5e-5];
    let mut rows = Vec::new();
    for prompt_size in [128, 512, 1024, 4096] {
        for batch_size in [1, 8, 64] {
            let (p, b) = (f64::from(prompt_size), f64::from(batch_size));
            rows.push(SplitwiseRow {
                model: "m".to_owned(),
                hardware: "h".to_owned(),
                tensor_parallel: 8,
                prompt_size,
                batch_size,
                token_size: 128,
                prompt_time_ms: truth[0] + truth[1] * b * p + truth[2] * b * p * p / 2.0,
                token_time_ms: truth[0] + truth[3] * b + truth[4] * b * (p + 64.0),
            });
        }
    }
    let fits = fit_splitwise(&rows);
    let fit = &fits[0];
    assert_eq!((fits.len(), fit.points, fit.group.as_str()), (1, 24, "splitwise m h tp8"));
    assert!(fit.first_error < 1e-6 && fit.token_error < 1e-6 && fit.left_out_error < 1e-6, "{fit:?}");
    assert!((fit.coefficients.prefill_ms_per_token / truth[1] - 1.0).abs() < 1e-6, "{fit:?}");
    let other = Coefficients { floor_ms: 60.0, ..fit.coefficients };
    assert!(judge_splitwise(&rows, "splitwise m h tp8", &other).unwrap().1 > 0.3);
}

#[test]
fn what_would_be_negative_is_zero_and_the_rest_is_refitted() {
    // y = 2·x0 - 1·x1, so the best non-negative x1 is 0 and x0 the plain mean of the rest.
    let rows: Vec<([f64; 6], f64)> = (1..20)
        .map(|at| {
            let (x0, x1) = (f64::from(at), f64::from(at * at % 7));
            ([x0, x1, 0.0, 0.0, 0.0, 0.0], 2.0 * x0 - x1)
        })
        .collect();
    let x = solve(&rows);
    let best =
        rows.iter().map(|(t, y)| t[0] * y).sum::<f64>() / rows.iter().map(|(t, _)| t[0] * t[0]).sum::<f64>();
    assert!(x[1] == 0.0 && (x[0] - best).abs() < 1e-9, "{x:?} {best}");
}

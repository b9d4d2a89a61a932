use super::*;
use crate::dataset::example;
use crate::{synthetic, xgb};
use foretoken_core::model::contract;

fn examples(seed: u64, count: usize) -> Vec<Example> {
    synthetic::samples(seed, count).iter().filter_map(example).collect()
}

#[test]
fn a_fit_halves_the_priors_error_is_proven_and_says_so_in_its_metadata() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let examples = examples(3, 3000);
    let mut rounds = 0u64;
    let options = FitOptions::default();
    let fitted = fit(&xgboost, &examples, None, None, &options, &mut || {
        rounds += 1;
        true
    })
    .unwrap();
    assert!(rounds <= max_total_rounds(&options));
    let (model, prior) = (fitted.scores.model.ttft.unwrap(), fitted.scores.prior.ttft.unwrap());
    assert!(model.ape_median < 0.5 * prior.ape_median, "{:?}", fitted.scores);
    // The hold-out has 600: two standard errors are 2.5 %.
    assert!((0.86..=0.94).contains(&model.coverage_p90), "{:?}", fitted.scores);
    let (model, prior) = (fitted.scores.model.tpot.unwrap(), fitted.scores.prior.tpot.unwrap());
    assert!(model.ape_median < 0.5 * prior.ape_median, "{:?}", fitted.scores);
    let assembled = fitted.assemble(&xgboost, &examples).unwrap();
    assert!(assembled.parity.rows > 3000);
    let published = Model::from_onnx(&assembled.onnx).unwrap();
    assert!(fitted.ttft.half.card.importances[0].1 > 0.1, "{:?}", fitted.ttft.half.card);
    assert_eq!(published.card().model_id, fitted.model_id);
    assert_eq!(published.card().get(contract::KEY_XGBOOST_VERSION), Some(xgb::VERSION));
    assert_eq!(published.card().get(contract::KEY_SAMPLES), Some(examples.len().to_string().as_str()));
    assert!(published.card().get(contract::KEY_SCORES).unwrap().contains("ape_median"));
}

#[test]
fn the_same_samples_give_the_same_trees() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let examples = examples(5, 400);
    let trees = || {
        let fitted = fit(&xgboost, &examples, None, None, &FitOptions::default(), &mut || true).unwrap();
        foretoken_core::model::onnx::read(&fitted.assemble(&xgboost, &examples).unwrap().onnx).unwrap().1
    };
    assert_eq!(trees(), trees());
}

#[test]
fn the_hold_out_is_what_the_live_model_has_not_seen_within_bounds() {
    let examples = examples(5, 1000);
    let through = |index: usize| Some(examples[index].at_ms);
    assert_eq!(holdout_size(&examples, None), 200);
    assert_eq!(holdout_size(&examples, through(899)), 100);
    assert_eq!(holdout_size(&examples, through(990)), MIN_HOLDOUT);
    assert_eq!(holdout_size(&examples, through(5)), 200);
    assert_eq!(holdout_size(&examples[..60], None), 12);
}

#[test]
fn too_few_samples_of_a_target_are_named() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let mut examples = examples(5, 200);
    for example in examples.iter_mut().skip(20) {
        example.tpot = None;
    }
    let error = fit(&xgboost, &examples, None, None, &FitOptions::default(), &mut || true).unwrap_err();
    assert!(matches!(error, FitError::TooFew { target: "tpot", .. }), "{error}");
}

#[test]
fn a_fit_stops_when_asked() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let error =
        fit(&xgboost, &examples(5, 200), None, None, &FitOptions::default(), &mut || false).unwrap_err();
    assert!(matches!(error, FitError::Stopped), "{error}");
}

#[test]
#[ignore = "prints figures; run in release with --nocapture"]
fn how_long_a_fit_takes_and_how_large_a_model_is() {
    let Some(xgboost) = xgb::for_tests() else { return };
    for count in [300, 2000, 20_000] {
        let examples = examples(7, count);
        let start = std::time::Instant::now();
        let fitted = fit(&xgboost, &examples, None, None, &FitOptions::default(), &mut || true).unwrap();
        let onnx = fitted.assemble(&xgboost, &examples).unwrap().onnx;
        let packed = foretoken_core::model::packed::pack(&onnx);
        println!(
            "{count} samples: {:.2} s, rounds {:?}, ONNX {} bytes, packed {} bytes, {}",
            start.elapsed().as_secs_f64(),
            fitted.rounds(),
            onnx.len(),
            packed.len(),
            serde_json::to_string(&fitted.scores).unwrap()
        );
    }
}

/// Coverage of the 90th percentile on later samples of the same kind.
fn coverage(fitted: &Fitted, later: &[Example]) -> (f64, f64) {
    let xgboost = xgb::for_tests().unwrap();
    let served = |fit: &TargetFit| fit.half.served(&xgboost).unwrap();
    let model = half::model_of(&served(&fitted.ttft), &served(&fitted.tpot)).unwrap();
    let score = score_model(&model, later);
    (score.ttft.unwrap().coverage_p90, score.tpot.unwrap().coverage_p90)
}

#[test]
fn the_corrected_90th_percentile_covers_88_to_92_percent_of_what_comes_later() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let all = examples(11, 9000);
    let (seen, later) = all.split_at(4000);
    let fitted = fit(&xgboost, seen, None, None, &FitOptions::default(), &mut || true).unwrap();
    let (ttft, tpot) = coverage(&fitted, later);
    assert!((0.88..=0.92).contains(&ttft) && (0.88..=0.92).contains(&tpot), "{ttft} {tpot}");
}

#[test]
fn a_continued_fit_adds_rounds_to_the_live_boosters_and_is_no_worse_than_they_were() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let all = examples(12, 6000);
    let options = FitOptions::default();
    let first = fit(&xgboost, &all[..4000], None, None, &options, &mut || true).unwrap();
    let through_ms = first.window_ms.1;
    let live = Halves { ttft: first.ttft.half, tpot: first.tpot.half };
    assert!(can_continue(&live, 5000, &options) && !can_continue(&live, 1999, &options));
    let second = fit(&xgboost, &all[..5000], Some(&live), Some(through_ms), &options, &mut || true).unwrap();
    let card = &second.ttft.half.card;
    assert_eq!(card.how, How::Continued);
    assert!((live.ttft.card.rounds + 1..=live.ttft.card.rounds + 20).contains(&card.rounds), "{card:?}");
    let later = &all[5000..];
    let served = |half: &Half| half.served(&xgboost).unwrap();
    let ape = |ttft: &Half, tpot: &Half| {
        let score = score_model(&half::model_of(&served(ttft), &served(tpot)).unwrap(), later);
        score.ttft.unwrap().pinball_p50
    };
    let (before, after) = (ape(&live.ttft, &live.tpot), ape(&second.ttft.half, &second.tpot.half));
    assert!(after < 1.05 * before, "{before} {after}");
    let grown = Halves { ttft: second.ttft.half, tpot: second.tpot.half };
    let few = FitOptions { max_rounds: 20, ..options };
    assert!(!can_continue(&grown, 5000, &few));
}

#[test]
fn a_fuller_kv_cache_never_shortens_a_prediction() {
    use foretoken_core::features::Feature;
    let Some(xgboost) = xgb::for_tests() else { return };
    let all = examples(13, 2000);
    let fitted = fit(&xgboost, &all, None, None, &FitOptions::default(), &mut || true).unwrap();
    let violations = |model: &Model| {
        let mut count = 0;
        for example in &all[..100] {
            let mut rows = vec![example.row; 41];
            for (step, row) in rows.iter_mut().enumerate() {
                row.set(Feature::KvUsage, step as f32 / 40.0);
            }
            let mut out = Vec::new();
            model.predict(&rows, &mut out);
            let times = |p: &foretoken_core::model::Prediction| {
                [p.ttft_ms_p50, p.ttft_ms_p90, p.tpot_ms_p50, p.tpot_ms_p90]
            };
            count += out
                .windows(2)
                .flat_map(|pair| times(&pair[0]).into_iter().zip(times(&pair[1])))
                .filter(|(before, after)| *after < before * (1.0 - 1e-6))
                .count();
        }
        count
    };
    assert_eq!(violations(&fitted.judged), 0);
    let free = FitOptions { monotone: false, ..FitOptions::default() };
    let free = fit(&xgboost, &all, None, None, &free, &mut || true).unwrap();
    assert!(violations(&free.judged) > 100, "without the constraints nothing would be tested");
}

/// Samples of a file named by FORETOKEN_SAMPLES, for the figures of the module's choices.
#[test]
#[ignore = "prints figures of a file of real samples; FORETOKEN_SAMPLES names it"]
fn constraints_and_corrections_on_real_samples() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let Some(path) = std::env::var_os("FORETOKEN_SAMPLES") else { return };
    let text = std::fs::read(path).unwrap();
    let mut examples: Vec<Example> = text
        .split(|&byte| byte == b'\n')
        .filter_map(|line| example(&crate::ingest::read_line(line, u64::MAX).ok()?))
        .collect();
    examples.sort_by_key(|example| example.at_ms);
    for monotone in [false, true] {
        let options = FitOptions { monotone, ..FitOptions::default() };
        let fitted = fit(&xgboost, &examples, None, None, &options, &mut || true).unwrap();
        println!("monotone {monotone}: {:?} {:?}", fitted.rounds(), fitted.scores.model);
    }
}

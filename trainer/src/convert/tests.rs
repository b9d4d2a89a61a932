//! Small models by hand; those of other versions of XGBoost are in `tests/models_of_other_xgboosts.rs`.

use super::*;
use foretoken_core::model::scalar;
use proptest::prelude::*;

/// A model of one tree in the form of XGBoost 3.4.1, with a pruned node left in the arrays.
fn json() -> String {
    let text = r#"{"learner":{"attributes":{},"feature_names":[],"gradient_booster":{"model":{
        "tree_info":[0,1],"trees":[
        {"default_left":[1,0,0,0],"left_children":[1,-1,-1,-1],"right_children":[3,-1,-1,-1],
         "split_conditions":[5.1E-1,1E0,9E9,3E0],"split_indices":[2,0,0,0],"split_type":[0,0,0,0],
         "tree_param":{"size_leaf_vector":"1"}},
        {"default_left":[0],"left_children":[-1],"right_children":[-1],"split_conditions":[-0E0],
         "split_indices":[0],"split_type":[0],"tree_param":{"size_leaf_vector":"1"}}]},"name":"gbtree"},
        "learner_model_param":{"base_score":"[1E1,2E1]","num_class":"0","num_feature":"COUNT"},
        "objective":{"name":"reg:quantileerror","quantile_loss_param":{"quantile_alpha":"[5E-1,9E-1]"}}}}"#;
    text.replace("COUNT", &COUNT.to_string())
}

fn refusal(from: &str, to: &str) -> String {
    let changed = json().replace(from, to);
    assert_ne!(changed, json(), "{from} is not in the text");
    convert(changed.as_bytes(), Rounds::Undoubted).unwrap_err().to_string()
}

#[test]
fn outputs_get_their_trees_and_bases_and_pruned_nodes_are_dropped() {
    let converted = convert(json().as_bytes(), Rounds::Undoubted).unwrap();
    assert_eq!(converted.alphas, [0.5, 0.9]);
    let [low, high] = converted.outputs.as_slice() else { panic!("two outputs") };
    assert_eq!((low.node_count(), high.node_count()), (4, 2));
    let mut row = [0.0; COUNT];
    assert_eq!((scalar::eval(low, &row), scalar::eval(high, &row)), (11.0, 20.0));
    row[2] = 0.51;
    assert_eq!(scalar::eval(low, &row), 13.0);
    row[2] = f32::NAN;
    assert_eq!(scalar::eval(low, &row), 11.0);
}

#[test]
fn a_scalar_base_score_serves_every_output() {
    let converted = convert(json().replace("[1E1,2E1]", "5E-1").as_bytes(), Rounds::Undoubted).unwrap();
    assert_eq!(scalar::eval(&converted.outputs[1], &[0.0; COUNT]), 0.5);
}

#[test]
fn what_has_no_exact_form_is_refused_by_name() {
    assert!(refusal("\"gbtree\"", "\"gblinear\"").contains("gblinear"));
    assert!(refusal("\"tree_info\"", "\"weight_drop\":[1],\"tree_info\"").contains("tree 1: weight_drop"));
    for (objective, why) in [
        ("reg:logistic", "probability"),
        ("survival:cox", "hazard"),
        ("rank:ndcg", "rank"),
        ("my:own", "not known"),
    ] {
        let message = refusal("reg:quantileerror", objective);
        assert!(message.contains(objective) && message.contains(why), "{message}");
    }
    assert!(refusal("\"num_class\":\"0\"", "\"num_class\":\"3\"").contains("classifier"));
    assert!(refusal("\"split_type\":[0,0,0,0]", "\"split_type\":[1,0,0,0]").contains("by category"));
    assert!(refusal("\"size_leaf_vector\":\"1\"", "\"size_leaf_vector\":\"3\"").contains("leaves"));
    assert!(refusal(&format!("\"num_feature\":\"{COUNT}\""), "\"num_feature\":\"3\"").contains("3 features"));
    assert!(refusal("\"feature_names\":[]", "\"feature_names\":[\"f0\"]").contains("\"f0\""));
    let twice = "\"feature_names\":[\"kv_usage\",\"kv_usage\"]";
    assert!(refusal("\"feature_names\":[]", twice).contains("two features \"kv_usage\""));
    assert!(refusal("\"feature_names\":[]", "\"feature_names\":[\"kv_usage\"]").contains("with 1 names"));
    let named = r#""cats":{"enc":[{"type":15,"values":[0,1,2]},{"type":15,"values":[10,20]}]},"tree_info""#;
    assert!(refusal("\"tree_info\"", named).contains("named categories of \"uncached_tokens\""));
    let named = r#""cats":{"enc":[{"offsets":[0,1],"values":[0]}]},"tree_info""#;
    assert!(refusal("\"tree_info\"", named).contains("named categories of \"prompt_tokens\""));
    assert!(refusal("[1E1,2E1]", "[1E1,2E1,3E1,4E1],").contains("is not a number"));
}

#[test]
fn rounds_after_the_best_one_need_a_word() {
    let best = |round| {
        json().replace("\"attributes\":{}", &format!("\"attributes\":{{\"best_iteration\":\"{round}\"}}"))
    };
    let bounds = |json: String, bounds: &str| {
        json.replace("\"tree_info\"", &format!("\"iteration_indptr\":{bounds},\"tree_info\""))
    };
    assert_eq!(best_round(best(7).as_bytes()).unwrap(), Some(7));
    assert_eq!(best_round(json().as_bytes()).unwrap(), None);
    let one_round = bounds(best(0), "[0,2]");
    assert!(convert(one_round.as_bytes(), Rounds::Undoubted).is_ok());
    for doubtful in [bounds(best(0), "[0,1,2]"), best(0)] {
        let error = convert(doubtful.as_bytes(), Rounds::Undoubted).unwrap_err().to_string();
        assert!(error.contains("--rounds best") && error.contains("2 rounds"), "{error}");
        assert!(convert(doubtful.as_bytes(), Rounds::All).is_ok());
    }
    assert!(
        convert(best(-1).as_bytes(), Rounds::Undoubted).unwrap_err().to_string().contains("best_iteration")
    );
}

#[test]
fn names_of_columns_move_features_to_them() {
    let named = json()
        .replace("\"feature_names\":[]", r#""feature_names":["kv_usage","prompt_tokens","prior_step_ms"]"#)
        .replace(&format!("\"num_feature\":\"{COUNT}\""), "\"num_feature\":\"3\"");
    let converted = convert(named.as_bytes(), Rounds::Undoubted).unwrap();
    let place = |name| COLUMNS.iter().position(|column| column.name == name).unwrap();
    assert_eq!(converted.columns, [place("kv_usage"), place("prompt_tokens"), place("prior_step_ms")]);
    let mut row = [0.0; COUNT];
    row[place("prior_step_ms")] = 0.51;
    assert_eq!(scalar::eval(&converted.outputs[0], &row), 13.0);
}

#[test]
fn weights_of_dart_and_the_exponential_are_part_of_the_prediction() {
    let dart = json().replace("\"tree_info\"", "\"weight_drop\":[5E-1,2E0],\"tree_info\"");
    let converted = convert(dart.as_bytes(), Rounds::Undoubted).unwrap();
    assert_eq!(scalar::eval(&converted.outputs[0], &[0.0; COUNT]), 10.5);
    let gamma = json().replace("reg:quantileerror", "reg:gamma");
    let converted = convert(gamma.as_bytes(), Rounds::Undoubted).unwrap();
    let value = scalar::eval(&converted.outputs[0], &[0.0; COUNT]);
    assert!((value - 10.0 * 1.0f32.exp()).abs() < 1e-4, "{value}");
    let gamma = gamma.replace("[1E1,2E1]", "[-1E1,2E1]");
    assert!(
        convert(gamma.as_bytes(), Rounds::Undoubted).unwrap_err().to_string().contains("positive base_score")
    );
}

/// A booster that splits the first column by these categories: 1 to the left, 2 to the right.
fn by_category(set: &[i64], unknown_left: bool) -> String {
    let sizes = set.len();
    json()
        .replace("\"split_type\":[0,0,0,0]", &format!(
            "\"split_type\":[1,0,0,0],\"categories\":{set:?},\"categories_nodes\":[0],\"categories_segments\":[0],\"categories_sizes\":[{sizes}]"
        ))
        .replace("\"split_conditions\":[5.1E-1,1E0,9E9,3E0]", "\"split_conditions\":[NaN,1E0,9E9,2E0]")
        .replace("\"default_left\":[1,0,0,0]", &format!("\"default_left\":[{},0,0,0]", u8::from(unknown_left)))
        .replace("\"split_indices\":[2,", "\"split_indices\":[0,")
        .replace("[1E1,2E1]", "[0E0,0E0]")
}

#[test]
fn a_set_of_categories_that_are_none_is_refused() {
    for set in [vec![], vec![-1], vec![1 << 24]] {
        let error = convert(by_category(&set, false).as_bytes(), Rounds::Undoubted).unwrap_err().to_string();
        assert!(error.contains("tree 0: a split by category"), "{error}");
    }
    let many: Vec<i64> = (0..80_000).map(|category| 2 * category).collect();
    let error = convert(by_category(&many, false).as_bytes(), Rounds::Undoubted).unwrap_err().to_string();
    assert!(error.contains("max_cat_threshold"), "{error}");
}

proptest! {
    #[test]
    fn a_split_by_category_is_the_same_question_asked_by_comparing(
        set in prop::collection::btree_set(prop_oneof![4 => 0i64..40, 1 => (1i64 << 24) - 3..1 << 24], 1..20),
        unknown_left in any::<bool>(),
        values in prop::collection::vec(
            prop_oneof![
                4 => -2.0f32..42.0,
                4 => (-2i32..42).prop_map(|whole| whole as f32),
                1 => Just(f32::NAN),
                1 => prop_oneof![Just(-0.0f32), Just(f32::MAX), Just(f32::MIN), Just(16_777_216.0), Just(16_777_215.0)],
            ],
            1..60,
        ),
    ) {
        let set: Vec<i64> = set.into_iter().collect();
        let converted = convert(by_category(&set, unknown_left).as_bytes(), Rounds::Undoubted).unwrap();
        for value in values {
            let mut row = [0.0; COUNT];
            row[0] = value;
            // XGBoost's rule: what is negative or 2^24 and more is no category and goes left, as does what is not in the set.
            let right = if value.is_nan() {
                !unknown_left
            } else {
                (0.0..16_777_216.0).contains(&value) && set.contains(&(value as i64))
            };
            prop_assert_eq!(scalar::eval(&converted.outputs[0], &row), if right { 2.0 } else { 1.0 }, "{}", value);
        }
    }

    #[test]
    fn a_model_file_with_changed_bytes_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = by_category(&[1, 3, 4], true).into_bytes();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(converted) = convert(&bytes, Rounds::All) {
            let _ = converted.outputs.iter().map(|output| scalar::eval(output, &[1.0; COUNT])).sum::<f32>();
        }
    }
}

#[test]
fn a_model_file_cut_anywhere_is_refused() {
    let whole = by_category(&[1, 3, 4], true).into_bytes();
    assert!(convert(&whole, Rounds::Undoubted).is_ok());
    for end in 0..whole.len() {
        assert!(convert(&whole[..end], Rounds::Undoubted).is_err(), "{end}");
    }
}

#[test]
fn broken_trees_are_refused_and_never_loop() {
    assert!(refusal("\"left_children\":[1,-1,-1,-1]", "\"left_children\":[0,-1,-1,-1]").contains("tree 0"));
    assert!(refusal("\"right_children\":[3,-1,-1,-1]", "\"right_children\":[9,-1,-1,-1]").contains("child"));
    assert!(refusal("\"right_children\":[3,-1,-1,-1]", "\"right_children\":[3,-1,-1]").contains("lengths"));
    assert!(refusal("5.1E-1", "\"x\"").contains("split_conditions"));
    assert!(
        refusal("\"split_indices\":[2", "\"split_indices\":[77").contains("feature that the model has not")
    );
}

#[test]
fn a_split_of_the_unknown_from_the_known_is_converted_exactly() {
    use foretoken_core::model::contract::{Target, Unit};
    let Some(xgboost) = crate::xgb::for_tests() else { return };
    let rows: Vec<f32> = (0..400 * COUNT as u16).map(|index| f32::from(index % 7)).collect();
    let labels: Vec<f32> = (0..400u16).map(|index| f32::from(index % 5)).collect();
    let matrix = xgboost.matrix(&rows, COUNT).unwrap();
    matrix.set_labels(&labels).unwrap();
    let booster = xgboost.booster(&matrix, [("nthread", "1"), ("max_depth", "1")]).unwrap();
    booster.update(0, &matrix).unwrap();
    // Which way XGBoost writes such a split depends on rounding, so it is written here.
    let mut json = String::from_utf8(booster.to_json().unwrap()).unwrap();
    for (key, value) in [("\"split_conditions\":[", "-Infinity"), ("\"default_left\":[", "1")] {
        let start = json.find(key).unwrap() + key.len();
        let end = start + json[start..].find(',').unwrap();
        json.replace_range(start..end, value);
    }
    let booster = xgboost.load_booster(json.as_bytes()).unwrap();
    assert!(String::from_utf8(booster.to_json().unwrap()).unwrap().contains("-Infinity"));
    let facts = crate::export::Facts { model_id: "m".to_owned(), ..Default::default() };
    let boosters = [(Target::Ttft, Unit::Ratio, &booster), (Target::Tpot, Unit::Ratio, &booster)];
    let (onnx, parts) = crate::export::export(&facts, &boosters).unwrap();
    crate::parity::prove(&onnx, &parts, &[]).unwrap();
}

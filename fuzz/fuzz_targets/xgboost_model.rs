//! Model files of a user: the check before XGBoost sees them, and the conversion of what it would write. No panic, and
//! what is converted can be evaluated.

#![no_main]

use foretoken_core::features::COUNT;
use foretoken_core::model::scalar;
use foretoken_trainer::convert::{Rounds, best_round, convert};
use foretoken_trainer::xgb::check_shape;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let _ = check_shape(file);
    let _ = best_round(file);
    if let Ok(converted) = convert(file, Rounds::All) {
        for row in [[f32::NAN; COUNT], [1.0; COUNT]] {
            for output in &converted.outputs {
                let _ = scalar::eval(output, &row);
            }
        }
        assert!(converted.columns.iter().all(|&column| column < COUNT));
    }
});

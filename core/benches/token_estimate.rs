//! How far the estimates of prompt tokens are off, as one line of JSON: the median relative error of requests 201
//! to 1000, by kind of text and with all kinds in turn, for the vocabulary o200k.
//!
//! `cargo bench -q -p foretoken-core --bench token_estimate`

#[path = "../tests/corpus/mod.rs"]
mod corpus;

use corpus::{Corpus, Kind, median_error};
use serde_json::json;

fn main() {
    let corpus = Corpus::of_this_repository();
    let tokenizer = tiktoken_rs::o200k_base().expect("the vocabulary is compiled in");
    let error = |kinds: &[Kind]| median_error(&corpus, &tokenizer, kinds, 200, 1000, 11);
    let result = json!({
        "en": error(&[Kind::English]),
        "zh": error(&[Kind::Chinese]),
        "code": error(&[Kind::Code]),
        "mixed": error(&Kind::ALL),
    });
    println!("{result}");
}

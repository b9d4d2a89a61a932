//! After 200 answers the estimate of a prompt's tokens is within five percent, in the median, of what a real
//! tokenizer counts: on English, on Chinese, on code, and on all three in turn.

mod corpus;

use corpus::{Corpus, Kind, median_error};
use tiktoken_rs::{cl100k_base, o200k_base};

#[test]
fn after_200_answers_the_median_error_is_below_five_percent() {
    let corpus = Corpus::of_this_repository();
    for (name, tokenizer) in [("o200k", o200k_base().unwrap()), ("cl100k", cl100k_base().unwrap())] {
        for kinds in Kind::ALL.iter().map(std::slice::from_ref).chain([&Kind::ALL[..]]) {
            let error = median_error(&corpus, &tokenizer, kinds, 200, 300, 7);
            assert!(error < 0.05, "{name} {kinds:?}: {error}");
        }
    }
}

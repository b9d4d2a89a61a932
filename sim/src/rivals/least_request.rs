//! Least requests in flight over all pods. Source: Envoy's `least_request` policy with
//! `selection_method: FULL_SCAN`.

use super::books::{Books, Rule};
use crate::virtual_time::policy::Ask;

/// The pod with the fewest requests in flight.
#[derive(Debug)]
pub struct LeastRequest;

impl Rule for LeastRequest {
    fn name(&self) -> &'static str {
        "least-request"
    }

    fn choose(&mut self, _ask: &Ask<'_>, books: &mut Books) -> usize {
        books.highest(|book, _| -f64::from(book.requests))
    }
}

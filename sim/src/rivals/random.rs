//! Random. Source: Envoy's `random` load-balancing policy.

use super::books::{Books, Rule};
use crate::virtual_time::policy::Ask;

/// Draws a pod.
#[derive(Debug)]
pub struct Random;

impl Rule for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn choose(&mut self, _ask: &Ask<'_>, books: &mut Books) -> usize {
        books.any()
    }
}

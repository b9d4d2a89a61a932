//! Round robin: Envoy's and every proxy's default. Source: Envoy's `round_robin` load-balancing policy.

use super::books::{Books, Rule};
use crate::virtual_time::policy::Ask;

/// Takes pods in turn.
#[derive(Debug, Default)]
pub struct RoundRobin(usize);

impl Rule for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn choose(&mut self, _ask: &Ask<'_>, books: &mut Books) -> usize {
        self.0 += 1;
        let count = books.up().count().max(1);
        books.up().nth(self.0 % count).unwrap_or(0)
    }
}

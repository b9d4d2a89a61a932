//! Power of two choices: of two drawn pods the one with fewer requests in flight. Source: Envoy's
//! `least_request` policy with its default `choice_count` of 2 and equal weights.

use super::books::{Books, Rule};
use crate::virtual_time::policy::Ask;

/// The less loaded of two.
#[derive(Debug)]
pub struct PowerOfTwo;

impl Rule for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power-of-two"
    }

    fn choose(&mut self, _ask: &Ask<'_>, books: &mut Books) -> usize {
        let (one, two) = (books.any(), books.any());
        if books.pods[two].requests < books.pods[one].requests { two } else { one }
    }
}

//! Monotone constraints: columns of which it is certain that more of it never makes a request faster.
//!
//! The model learns a *ratio to the prior*, so a constraint on it is one on TTFT only where the prior does not
//! move with the column: the prior already grows with the tokens queued ahead and with the request's own
//! uncached tokens, and where it grows too fast the true ratio falls. Such a column must stay free, however
//! certain the physics of TTFT itself is. What is left are signals that the prior does not read:
//!
//! * `kv_usage`: with everything else equal, a fuller KV cache leaves less room: requests wait or are preempted,
//!   which lengthens both the first token and every further one.
//! * `running_requests` for TPOT: the prior's decode step reads what this Envoy has in flight; requests beyond
//!   that share every step's memory traffic.
//!
//! `waiting_requests`, `foreign_requests` and `unscraped_requests` look alike, but enter the prior as foreign
//! tokens or are traded against the ledger's own columns, and a stale scrape flips their meaning.

use foretoken_core::features::COLUMNS;
use foretoken_core::model::contract::Target;

/// Column and targets that it can only lengthen.
const RISING: [(&str, &[Target]); 2] =
    [("kv_usage", &[Target::Ttft, Target::Tpot]), ("running_requests", &[Target::Tpot])];

/// XGBoost's `monotone_constraints` for a target: a number a column, 1 for rising and 0 for free.
#[must_use]
pub fn monotone(target: Target) -> String {
    let rising = |name: &str| RISING.iter().any(|(column, of)| *column == name && of.contains(&target));
    let signs: Vec<&str> = COLUMNS.iter().map(|column| if rising(column.name) { "1" } else { "0" }).collect();
    format!("({})", signs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constrained_column_is_in_the_schema_and_no_part_of_the_prior() {
        for (column, _) in RISING {
            assert!(COLUMNS.iter().any(|known| known.name == column), "{column}");
        }
        assert_eq!(monotone(Target::Ttft).matches('1').count(), 1);
        assert_eq!(monotone(Target::Tpot).matches('1').count(), 2);
        assert_eq!(monotone(Target::Tpot).split(',').count(), COLUMNS.len());
    }
}

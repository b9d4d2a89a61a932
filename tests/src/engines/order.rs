//! Whether two worlds put policies into the same order.
//!
//! A seed's requests are the same for every policy, so policies are compared seed by seed. Two policies are told apart
//! where one is ahead in every seed and by more than twice the standard error of the difference. Only such pairs can
//! be ordered wrongly; the others are ties in that world.

use serde::Serialize;

/// One policy's figure in each seed, less is better.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The policy.
    pub name: String,
    /// By seed.
    pub values: Vec<f64>,
}

impl Series {
    /// Over the seeds.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len().max(1) as f64
    }
}

/// Two policies that both worlds do not order alike.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disagreement {
    /// Ahead in the real world.
    pub ahead: String,
    /// Behind there.
    pub behind: String,
    /// Real mean of the one behind over the one ahead.
    pub real_ratio: f64,
    /// The same simulated: below 1.
    pub simulated_ratio: f64,
}

/// Two orders of the same policies, compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Order {
    /// Policies by their real means, best first.
    pub real: Vec<String>,
    /// The same simulated.
    pub simulated: Vec<String>,
    /// Spearman's rank correlation of the means.
    pub rank_correlation: f64,
    /// Pairs of policies.
    pub pairs: usize,
    /// Of those, pairs that the real world tells apart.
    pub told_apart: usize,
    /// Of those, pairs that the simulator orders alike.
    pub agreed: usize,
    /// The rest of them.
    pub disagreements: Vec<Disagreement>,
    /// Pairs that the simulator tells apart and the real world does not.
    pub only_simulated: usize,
}

/// -1: the first is ahead, 1: the second is, 0: they cannot be told apart.
fn ahead(one: &Series, other: &Series) -> i32 {
    let differences: Vec<f64> = one.values.iter().zip(&other.values).map(|(a, b)| a - b).collect();
    let count = differences.len() as f64;
    if count < 2.0 {
        return 0;
    }
    let mean = differences.iter().sum::<f64>() / count;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let error = (variance / count).sqrt();
    let same_sign = differences.iter().all(|d| *d < 0.0 && mean < 0.0)
        || differences.iter().all(|d| *d > 0.0 && mean > 0.0);
    match same_sign && mean.abs() > 2.0 * error {
        true if mean < 0.0 => -1,
        true => 1,
        false => 0,
    }
}

fn sorted(series: &[Series]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..series.len()).collect();
    order.sort_by(|a, b| series[*a].mean().total_cmp(&series[*b].mean()));
    order
}

/// Compares; both have the same policies in the same order.
#[must_use]
pub fn compare(real: &[Series], simulated: &[Series]) -> Order {
    let (real_order, simulated_order) = (sorted(real), sorted(simulated));
    let names = |order: &[usize]| order.iter().map(|at| real[*at].name.clone()).collect();
    let n = real.len() as f64;
    let squares: f64 = real_order
        .iter()
        .enumerate()
        .filter_map(|(rank, policy)| {
            let other = simulated_order.iter().position(|known| known == policy)?;
            Some((rank as f64 - other as f64).powi(2))
        })
        .sum();
    let mut order = Order {
        real: names(&real_order),
        simulated: names(&simulated_order),
        rank_correlation: if n > 1.0 { 1.0 - 6.0 * squares / (n * (n * n - 1.0)) } else { 1.0 },
        pairs: 0,
        told_apart: 0,
        agreed: 0,
        disagreements: Vec::new(),
        only_simulated: 0,
    };
    for one in 0..real.len() {
        for other in one + 1..real.len() {
            order.pairs += 1;
            let side = ahead(&real[one], &real[other]);
            if side == 0 {
                order.only_simulated += usize::from(ahead(&simulated[one], &simulated[other]) != 0);
                continue;
            }
            order.told_apart += 1;
            let (first, last) = if side < 0 { (one, other) } else { (other, one) };
            let simulated_ratio = simulated[last].mean() / simulated[first].mean();
            if simulated_ratio > 1.0 {
                order.agreed += 1;
            } else {
                order.disagreements.push(Disagreement {
                    ahead: real[first].name.clone(),
                    behind: real[last].name.clone(),
                    real_ratio: real[last].mean() / real[first].mean(),
                    simulated_ratio,
                });
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, values: [f64; 4]) -> Series {
        Series { name: name.to_owned(), values: values.to_vec() }
    }

    #[test]
    fn pairs_that_are_told_apart_must_be_ordered_alike() {
        let real = [
            series("a", [10.0, 11.0, 10.0, 12.0]),
            series("b", [20.0, 22.0, 19.0, 23.0]),
            series("c", [21.0, 20.0, 22.0, 22.0]),
            series("d", [40.0, 42.0, 41.0, 44.0]),
        ];
        let order = compare(&real, &real);
        assert_eq!((order.pairs, order.told_apart, order.agreed), (6, 5, 5));
        assert!((order.rank_correlation - 1.0).abs() < 1e-12 && order.disagreements.is_empty());

        // b and c, which cannot be told apart, may change places; a and b may not.
        let other = [
            series("a", [25.0, 26.0, 25.0, 26.0]),
            series("b", [22.0, 22.0, 22.0, 22.0]),
            series("c", [21.0, 21.0, 21.0, 21.0]),
            series("d", [50.0, 50.0, 50.0, 50.0]),
        ];
        let order = compare(&real, &other);
        assert_eq!((order.told_apart, order.agreed, order.only_simulated), (5, 3, 1));
        let behind: Vec<&str> = order.disagreements.iter().map(|one| one.behind.as_str()).collect();
        assert_eq!(behind, ["b", "c"]);
        assert_eq!(order.real, ["a", "b", "c", "d"]);
        assert_eq!(order.simulated, ["c", "b", "a", "d"]);
        assert!((order.rank_correlation - (1.0 - 6.0 * 8.0 / 60.0)).abs() < 1e-12);
    }
}

//! Gradient boosting of regression trees for squared error: the rival's learner.
//!
//! The mean model that `xgboost` with `hist` and `reg:squarederror` fits, in small: quantile bins, depth-first
//! splits of the highest gain, L2 on leaves. Written here so that the rival needs no library; foretoken's own
//! models come from the trainer and real XGBoost.

/// Bins of a feature.
const BINS: usize = 64;

/// How trees are grown.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Trees.
    pub trees: usize,
    /// Levels of splits.
    pub depth: usize,
    /// Share of each tree's answer that is added.
    pub rate: f64,
    /// Rows that a leaf needs.
    pub min_rows: f64,
    /// L2 on leaves.
    pub lambda: f64,
    /// Gain that a split needs.
    pub gamma: f64,
}

#[derive(Debug, Clone, Copy)]
enum Node {
    Leaf(f64),
    /// Below or equal goes to `left`, else to the node after it.
    Split {
        feature: usize,
        at: f64,
        left: usize,
    },
}

/// A fitted model.
#[derive(Debug, Clone, Default)]
pub struct Booster {
    base: f64,
    trees: Vec<Vec<Node>>,
}

impl Booster {
    /// Fits rows (all of the same length) to targets.
    #[must_use]
    pub fn fit(rows: &[Vec<f64>], targets: &[f64], settings: &Settings) -> Self {
        let count = rows.len().min(targets.len());
        let width = rows.first().map_or(0, Vec::len);
        let base = targets.iter().sum::<f64>() / count.max(1) as f64;
        let cuts: Vec<Vec<f64>> = (0..width).map(|feature| cuts(rows, feature)).collect();
        let bins: Vec<Vec<u8>> = rows
            .iter()
            .map(|row| {
                row.iter()
                    .zip(&cuts)
                    .map(|(value, cuts)| cuts.partition_point(|cut| cut < value) as u8)
                    .collect()
            })
            .collect();
        let mut model = Self { base, trees: Vec::with_capacity(settings.trees) };
        let mut residuals: Vec<f64> = targets.iter().take(count).map(|target| target - base).collect();
        for _ in 0..settings.trees {
            let mut grower =
                Grower { bins: &bins, cuts: &cuts, residuals: &residuals, settings, nodes: Vec::new() };
            grower.nodes.push(Node::Leaf(0.0));
            grower.grow(0, (0..count as u32).collect(), settings.depth);
            let tree = grower.nodes;
            for (residual, row) in residuals.iter_mut().zip(rows) {
                *residual -= answer(&tree, row);
            }
            model.trees.push(tree);
        }
        model
    }

    /// The prediction for a row.
    #[must_use]
    pub fn predict(&self, row: &[f64]) -> f64 {
        self.base + self.trees.iter().map(|tree| answer(tree, row)).sum::<f64>()
    }
}

/// Upper bounds of the bins but the last.
fn cuts(rows: &[Vec<f64>], feature: usize) -> Vec<f64> {
    let mut values: Vec<f64> = rows.iter().map(|row| row[feature]).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.dedup();
    if values.len() <= BINS {
        values.pop();
        return values;
    }
    let mut cuts: Vec<f64> = (1..BINS).map(|bin| values[bin * values.len() / BINS]).collect();
    cuts.dedup();
    cuts
}

fn answer(tree: &[Node], row: &[f64]) -> f64 {
    let mut at = 0;
    loop {
        match tree[at] {
            Node::Leaf(value) => return value,
            Node::Split { feature, at: cut, left } => at = if row[feature] <= cut { left } else { left + 1 },
        }
    }
}

struct Grower<'a> {
    bins: &'a [Vec<u8>],
    cuts: &'a [Vec<f64>],
    residuals: &'a [f64],
    settings: &'a Settings,
    nodes: Vec<Node>,
}

impl Grower<'_> {
    fn grow(&mut self, node: usize, rows: Vec<u32>, depth: usize) {
        let sum: f64 = rows.iter().map(|row| self.residuals[*row as usize]).sum();
        let count = rows.len() as f64;
        let settings = self.settings;
        self.nodes[node] = Node::Leaf(settings.rate * sum / (count + settings.lambda));
        if depth == 0 || count < 2.0 * settings.min_rows {
            return;
        }
        let Some((feature, bin)) = self.best_split(&rows, sum, count) else { return };
        let (left, right): (Vec<u32>, Vec<u32>) =
            rows.into_iter().partition(|row| usize::from(self.bins[*row as usize][feature]) <= bin);
        let first = self.nodes.len();
        self.nodes.extend([Node::Leaf(0.0), Node::Leaf(0.0)]);
        self.nodes[node] = Node::Split { feature, at: self.cuts[feature][bin], left: first };
        self.grow(first, left, depth - 1);
        self.grow(first + 1, right, depth - 1);
    }

    fn best_split(&self, rows: &[u32], sum: f64, count: f64) -> Option<(usize, usize)> {
        let settings = self.settings;
        let score = |sum: f64, count: f64| sum * sum / (count + settings.lambda);
        let mut best = (2.0 * settings.gamma, None);
        for (feature, cuts) in self.cuts.iter().enumerate() {
            let mut histogram = [(0.0, 0.0); BINS];
            for row in rows {
                let bin = &mut histogram[usize::from(self.bins[*row as usize][feature])];
                bin.0 += self.residuals[*row as usize];
                bin.1 += 1.0;
            }
            let (mut left_sum, mut left_count) = (0.0, 0.0);
            for (bin, (bin_sum, bin_count)) in histogram.iter().enumerate().take(cuts.len()) {
                left_sum += bin_sum;
                left_count += bin_count;
                if left_count < settings.min_rows || count - left_count < settings.min_rows {
                    continue;
                }
                let gain = score(left_sum, left_count) + score(sum - left_sum, count - left_count)
                    - score(sum, count);
                if gain > best.0 {
                    best = (gain, Some((feature, bin)));
                }
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_and_a_product_are_learned() {
        let rows: Vec<Vec<f64>> =
            (0..2000).map(|at| vec![f64::from(at % 50), f64::from(at * 7 % 40), f64::from(at % 3)]).collect();
        let truth = |row: &[f64]| row[0] * row[1] / 10.0 + if row[2] > 1.0 { 100.0 } else { 0.0 };
        let targets: Vec<f64> = rows.iter().map(|row| truth(row)).collect();
        let settings = Settings { trees: 100, depth: 6, rate: 0.1, min_rows: 5.0, lambda: 0.1, gamma: 0.2 };
        let model = Booster::fit(&rows, &targets, &settings);
        let error =
            rows.iter().map(|row| (model.predict(row) - truth(row)).abs()).sum::<f64>() / rows.len() as f64;
        assert!(error < 3.0, "{error}");
        let flat = Booster::fit(&rows[..1], &targets[..1], &settings);
        assert_eq!(flat.predict(&[9.0, 9.0, 9.0]), targets[0]);
    }
}

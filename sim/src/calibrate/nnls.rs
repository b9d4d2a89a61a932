//! Least squares with non-negative unknowns, of six.
//!
//! With so few unknowns the answer is found by trying every set of them that may be above zero: the best set whose
//! plain least-squares solution is non-negative is the constrained optimum (the problem is convex). 63
//! small systems, no iteration, no tolerance.

/// Unknowns of a fit.
pub const UNKNOWNS: usize = 6;

/// Least squares of `sum(terms × x) = value` over rows, all x at least 0.
#[must_use]
pub fn solve(rows: &[([f64; UNKNOWNS], f64)]) -> [f64; UNKNOWNS] {
    let mut normal = [[0.0; UNKNOWNS]; UNKNOWNS];
    let mut right = [0.0; UNKNOWNS];
    let mut square = 0.0;
    for (terms, value) in rows {
        for i in 0..UNKNOWNS {
            right[i] += terms[i] * value;
            for j in 0..UNKNOWNS {
                normal[i][j] += terms[i] * terms[j];
            }
        }
        square += value * value;
    }
    let mut best = ([0.0; UNKNOWNS], square);
    for set in 1_u32..1 << UNKNOWNS {
        let chosen: Vec<usize> = (0..UNKNOWNS).filter(|at| set >> at & 1 == 1).collect();
        let Some(x) = solve_chosen(&normal, &right, &chosen) else { continue };
        if x.iter().any(|value| *value < 0.0) {
            continue;
        }
        // |Ax - y|² = xᵀNx - 2xᵀr + y².
        let mut error = square;
        for i in 0..UNKNOWNS {
            error -= 2.0 * x[i] * right[i];
            for j in 0..UNKNOWNS {
                error += x[i] * normal[i][j] * x[j];
            }
        }
        if error < best.1 {
            best = (x, error);
        }
    }
    best.0
}

/// Gauss elimination on the chosen unknowns, columns scaled; `None` when they do not tell themselves apart.
fn solve_chosen(
    normal: &[[f64; UNKNOWNS]; UNKNOWNS],
    right: &[f64; UNKNOWNS],
    chosen: &[usize],
) -> Option<[f64; UNKNOWNS]> {
    let n = chosen.len();
    let scale: Vec<f64> = chosen.iter().map(|at| normal[*at][*at].sqrt()).collect();
    if scale.iter().any(|scale| *scale <= 0.0) {
        return None;
    }
    let mut system: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let row = (0..n).map(|j| normal[chosen[i]][chosen[j]] / scale[i] / scale[j]);
            row.chain(std::iter::once(right[chosen[i]] / scale[i])).collect()
        })
        .collect();
    for at in 0..n {
        let pivot = (at..n).max_by(|a, b| system[*a][at].abs().total_cmp(&system[*b][at].abs()))?;
        system.swap(at, pivot);
        let pivot_row = system[at].clone();
        if pivot_row[at].abs() < 1e-10 {
            return None;
        }
        for (row, values) in system.iter_mut().enumerate() {
            let factor = values[at] / pivot_row[at];
            if row != at {
                values.iter_mut().zip(&pivot_row).for_each(|(value, pivot)| *value -= factor * pivot);
            }
        }
    }
    let mut x = [0.0; UNKNOWNS];
    for at in 0..n {
        x[chosen[at]] = system[at][n] / system[at][at] / scale[at];
    }
    Some(x)
}

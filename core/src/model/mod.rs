//! Models: what a file must promise, how it is read, how it is evaluated.
//!
//! One kernel and two ways into it. [`onnx`] is the lean reader of the form that the trainer writes
//! and what the default filter uses; [`tract`] (feature `tract`) runs any ONNX graph with the same
//! kernel behind its tree nodes. [`contract`] is what both check, [`packed`] the form in which a file
//! travels. A model predicts a ratio to the analytic prior or milliseconds; either way
//! [`Model::predict`] answers in milliseconds.
//!
//! What it is not: it does not fit, and it does not decide what to do with a prediction.

pub mod contract;
pub mod ensemble;
#[cfg(test)]
mod golden;
pub mod kernel;
pub mod onnx;
pub mod packed;
pub mod scalar;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(feature = "tract")]
pub mod tract;

use self::contract::{Output, Quantile, Target, Unit};
use self::kernel::{Block, Forest, LANES};
use crate::features::Row;

/// What a model file says of itself (its ONNX `metadata_props`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelCard {
    /// Unique id of the model.
    pub model_id: String,
    /// Everything that was written, by key; the keys are in [`contract`].
    pub properties: Vec<(String, String)>,
}

impl ModelCard {
    /// Value of a property.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.properties.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// Ratios below this are taken for this. Trees that saw times near zero (tokens that came all at once on a starved
/// machine) sum up to a little less than nothing, and no time is negative.
const LEAST_RATIO: f32 = 0.01;

/// One row's outputs. A target the model does not have is NaN. Ratio outputs are multiplied by the prior.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Median TTFT.
    pub ttft_ms_p50: f32,
    /// 90th percentile of TTFT.
    pub ttft_ms_p90: f32,
    /// Median TPOT.
    pub tpot_ms_p50: f32,
    /// 90th percentile of TPOT.
    pub tpot_ms_p90: f32,
}

impl Prediction {
    /// A prediction that knows nothing.
    pub const UNKNOWN: Self =
        Self { ttft_ms_p50: f32::NAN, ttft_ms_p90: f32::NAN, tpot_ms_p50: f32::NAN, tpot_ms_p90: f32::NAN };

    /// The value of an output, whatever its unit.
    #[must_use]
    pub fn get(mut self, output: Output) -> f32 {
        *self.slot(output.target, output.quantile)
    }

    /// Sets the value of an output, whatever its unit.
    pub fn set(&mut self, output: Output, value: f32) {
        *self.slot(output.target, output.quantile) = value;
    }

    /// Sorts the quantiles of each target: trees fitted per quantile can cross. XGBoost's own prediction
    /// sorts them too.
    pub fn sort(&mut self) {
        for (low, high) in
            [(&mut self.ttft_ms_p50, &mut self.ttft_ms_p90), (&mut self.tpot_ms_p50, &mut self.tpot_ms_p90)]
        {
            if *low > *high {
                std::mem::swap(low, high);
            }
        }
    }

    fn slot(&mut self, target: Target, quantile: Quantile) -> &mut f32 {
        match (target, quantile) {
            (Target::Ttft, Quantile::P50) => &mut self.ttft_ms_p50,
            (Target::Ttft, Quantile::P90) => &mut self.ttft_ms_p90,
            (Target::Tpot, Quantile::P50) => &mut self.tpot_ms_p50,
            (Target::Tpot, Quantile::P90) => &mut self.tpot_ms_p90,
        }
    }
}

/// Why a model was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The bytes are not what the contract asks for.
    #[error("model refused: {0}")]
    Contract(String),
    /// Larger than is read.
    #[error(
        "model refused: {what} of {bytes} bytes or more, at most {limit} are read: use fewer or shallower trees"
    )]
    Size {
        /// What was too large.
        what: &'static str,
        /// Its size, or where reading stopped.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// The packed text cannot be unpacked.
    #[error("model refused: `onnx_deflate_base64` is {0}")]
    Packed(String),
}

/// A model ready to predict. Shared freely between threads: predicting changes nothing in it.
#[derive(Debug)]
pub struct Model {
    card: ModelCard,
    outputs: Vec<Output>,
    program: Program,
}

/// Which outputs are evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    Medians,
}

#[derive(Debug)]
enum Program {
    /// One forest per output.
    Trees(Vec<Forest>),
    #[cfg(feature = "tract")]
    Graph(tract::Graph),
}

impl Model {
    /// Reads an ONNX file by the flavour's reader and checks it against the contract.
    ///
    /// # Errors
    /// [`ModelError`] names what is missing or wrong.
    pub fn from_onnx(bytes: &[u8]) -> Result<Self, ModelError> {
        #[cfg(feature = "tract")]
        return Self::from_onnx_tract(bytes);
        #[cfg(not(feature = "tract"))]
        return Self::from_onnx_lean(bytes);
    }

    /// Reads an ONNX file by the lean reader, whatever the flavour.
    ///
    /// # Errors
    /// As for [`Self::from_onnx`].
    pub fn from_onnx_lean(bytes: &[u8]) -> Result<Self, ModelError> {
        let (card, ensembles) = onnx::read(bytes)?;
        let (outputs, forests) =
            ensembles.into_iter().map(|(output, trees)| (output, Forest::new(trees))).unzip();
        Ok(Self { card, outputs, program: Program::Trees(forests) })
    }

    /// Reads an ONNX file through tract, whatever its nodes.
    ///
    /// # Errors
    /// As for [`Self::from_onnx`].
    #[cfg(feature = "tract")]
    pub fn from_onnx_tract(bytes: &[u8]) -> Result<Self, ModelError> {
        let (card, outputs, graph) = tract::Graph::read(bytes)?;
        Ok(Self { card, outputs, program: Program::Graph(graph) })
    }

    /// Reads the form that travels in the configuration: base64 of raw-deflated ONNX.
    ///
    /// # Errors
    /// [`ModelError`], as for [`Self::from_onnx`]; also when inflating would pass the size bound.
    pub fn from_packed(packed: &str) -> Result<Self, ModelError> {
        Self::from_onnx(&packed::unpack(packed)?)
    }

    /// What the file says of itself.
    #[must_use]
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// The outputs that the model has.
    #[must_use]
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Predicts all rows in one batch, into `out` (cleared first). Quantiles of one target are sorted per
    /// row; a target of which the model has one quantile gets it for both. Allocates nothing beyond `out`
    /// for tree models.
    pub fn predict(&self, rows: &[Row], out: &mut Vec<Prediction>) {
        self.predict_wanted(rows, Wanted::All, out);
    }

    /// As [`Self::predict`], of tree models with medians alone, which is all that an order of pods needs and half of
    /// the work: the other percentiles are NaN, and where a target's trees cross ([`Prediction::sort`]) the median is
    /// the unsorted one. A target that has no median gets what it has.
    pub fn predict_medians(&self, rows: &[Row], out: &mut Vec<Prediction>) {
        self.predict_wanted(rows, Wanted::Medians, out);
    }

    fn predict_wanted(&self, rows: &[Row], wanted: Wanted, out: &mut Vec<Prediction>) {
        self.evaluate_wanted(rows, wanted, out);
        for (row, prediction) in rows.iter().zip(out.iter_mut()) {
            for output in &self.outputs {
                if output.unit == Unit::Ratio {
                    let value = prediction.slot(output.target, output.quantile);
                    // An unknown (NaN) and an infinity stay what they are, for the router to refuse.
                    if value.is_finite() && *value < LEAST_RATIO {
                        *value = LEAST_RATIO;
                    }
                    *value *= contract::prior_ms(row, output.target);
                }
            }
        }
        for target in [Target::Ttft, Target::Tpot] {
            self.fill_lone(target, out);
        }
    }

    /// Whether it is a target's median, or what stands for it.
    fn is_median(&self, output: Output) -> bool {
        let is_lone = || self.outputs.iter().filter(|other| other.target == output.target).count() == 1;
        output.quantile == Quantile::P50 || is_lone()
    }

    /// A target with one quantile gets it for both: half an answer would send every request to the prior.
    fn fill_lone(&self, target: Target, out: &mut [Prediction]) {
        let mut of_target = self.outputs.iter().filter(|output| output.target == target);
        if let (Some(only), None) = (of_target.next(), of_target.next()) {
            let (p50, p90) = (Quantile::P50, Quantile::P90);
            let other = if only.quantile == p50 { p90 } else { p50 };
            for prediction in out {
                *prediction.slot(target, other) = *prediction.slot(target, only.quantile);
            }
        }
    }

    /// The graph's own numbers (ratios stay ratios), quantiles sorted: what is compared with XGBoost.
    /// An output that the model does not have is NaN.
    pub fn evaluate(&self, rows: &[Row], out: &mut Vec<Prediction>) {
        self.evaluate_wanted(rows, Wanted::All, out);
    }

    fn evaluate_wanted(&self, rows: &[Row], wanted: Wanted, out: &mut Vec<Prediction>) {
        out.clear();
        out.resize(rows.len(), Prediction::UNKNOWN);
        match &self.program {
            Program::Trees(forests) => self.evaluate_trees(forests, rows, wanted, out),
            #[cfg(feature = "tract")]
            Program::Graph(graph) => graph.evaluate(&self.outputs, rows, out),
        }
        for prediction in out {
            prediction.sort();
        }
    }

    fn evaluate_trees(&self, forests: &[Forest], rows: &[Row], wanted: Wanted, out: &mut [Prediction]) {
        let whole = rows.len() / LANES * LANES;
        let (rows, tail) = rows.split_at_checked(whole).unwrap_or((rows, &[]));
        let (out, tail_out) = out.split_at_mut_checked(whole).unwrap_or((&mut [], &mut []));
        for (rows, out) in rows.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)) {
            self.evaluate_block::<LANES>(forests, rows, wanted, out);
        }
        match tail.len() {
            // Lanes without a row cost as much as any: one or two rows are faster one by one.
            0..=2 => {
                for (row, out) in tail.chunks_exact(1).zip(tail_out.chunks_exact_mut(1)) {
                    self.evaluate_block::<1>(forests, row, wanted, out);
                }
            }
            3..=4 => self.evaluate_block::<4>(forests, tail, wanted, tail_out),
            _ => self.evaluate_block::<LANES>(forests, tail, wanted, tail_out),
        }
    }

    /// Up to `L` rows; lanes without a row are evaluated and dropped.
    fn evaluate_block<const L: usize>(
        &self,
        forests: &[Forest],
        rows: &[Row],
        wanted: Wanted,
        out: &mut [Prediction],
    ) {
        let slices = rows.iter().map(|row| row.0.as_slice());
        let block = Block::<L>::load(slices.clone());
        for (output, forest) in self.outputs.iter().zip(forests) {
            if wanted == Wanted::Medians && !self.is_median(*output) {
                continue;
            }
            let sums = forest.eval(&block, slices.clone());
            for (prediction, sum) in out.iter_mut().zip(sums) {
                *prediction.slot(output.target, output.quantile) = sum;
            }
        }
    }
}

#[cfg(test)]
mod tests;

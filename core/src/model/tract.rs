//! The other way into the kernel: any ONNX graph, run by tract, its tree nodes by ours.
//!
//! For users who bring models of their own: other boosters, a small net, nodes before and after the
//! trees. Stock tract has no `TreeEnsembleRegressor`, and the evaluator behind its classifier fetches a
//! leaf by stepping over all earlier ones (2.7 ms a row for 100 trees of depth 6), so the operator is
//! registered here and runs [`super::kernel`]. Graph, shapes and every other node stay tract's.
//!
//! It is optional because it is large: about 8 MB more wasm and seconds more to start an Envoy.

use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use prost::Message;
use tract_onnx::data_resolver::ModelDataResolver;
use tract_onnx::model::ParsingContext;
use tract_onnx::tract_hir::internal::*;

use super::contract::{self, Output};
use super::kernel::{Block, Forest, LANES};
use super::onnx::proto::NodeProto;
use super::onnx::{self, tree};
use super::{ModelCard, ModelError, Prediction};
use crate::features::{COUNT, Row};

/// A graph ready to run on `[n, COUNT]` for any n.
pub struct Graph {
    plan: Arc<TypedRunnableModel>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("nodes", &self.plan.model().nodes().len()).finish()
    }
}

impl Graph {
    /// Reads a file, checks it against the contract and prepares the graph.
    ///
    /// # Errors
    /// [`ModelError`] names what is missing, wrong or not implemented by tract.
    pub fn read(bytes: &[u8]) -> Result<(ModelCard, Vec<Output>, Self), ModelError> {
        let model = onnx::decode(bytes)?;
        let card = onnx::card(&model)?;
        let names = model.graph.iter().flat_map(|graph| &graph.output).map(|output| output.name.as_str());
        let outputs: Vec<Output> = contract::outputs(names)?.into_iter().map(|(_, output)| output).collect();
        drop(model);
        let plan = prepare(bytes).map_err(|error| ModelError::Contract(format!("{error:#}")))?;
        let graph = Self { plan };
        graph.check_shapes(&outputs)?;
        Ok((card, outputs, graph))
    }

    /// Shapes may depend on values; one row through the graph shows that every output is `[n, 1]`.
    fn check_shapes(&self, outputs: &[Output]) -> Result<(), ModelError> {
        for n in [1, LANES + 1] {
            let results = self
                .run(&vec![Row::default(); n])
                .map_err(|error| ModelError::Contract(format!("the graph cannot be run: {error:#}")))?;
            if results.len() != outputs.len() {
                return Err(ModelError::Contract(format!(
                    "{} outputs, expected {}",
                    results.len(),
                    outputs.len()
                )));
            }
            for (output, result) in outputs.iter().zip(&results) {
                if result.datum_type() != DatumType::F32 || result.shape() != [n, 1] {
                    return Err(ModelError::Contract(format!(
                        "output `{}` is {:?} {:?} for {n} rows, expected float32 [{n}, 1]",
                        output.name(),
                        result.datum_type(),
                        result.shape()
                    )));
                }
            }
        }
        Ok(())
    }

    fn run(&self, rows: &[Row]) -> TractResult<TVec<TValue>> {
        let mut values = Vec::with_capacity(rows.len() * COUNT);
        for row in rows {
            values.extend_from_slice(&row.0);
        }
        let input = Tensor::from_shape(&[rows.len(), COUNT], &values)?;
        self.plan.run(tvec!(input.into_tvalue()))
    }

    /// Runs the graph and writes each output to its place. What cannot be computed stays NaN.
    pub(super) fn evaluate(&self, outputs: &[Output], rows: &[Row], out: &mut [Prediction]) {
        if rows.is_empty() {
            return;
        }
        match self.run(rows) {
            Ok(results) => {
                for (output, result) in outputs.iter().zip(&results) {
                    let Ok(view) = result.try_as_plain_ram() else {
                        continue;
                    };
                    let Ok(values) = view.as_slice::<f32>() else {
                        continue;
                    };
                    for (prediction, value) in out.iter_mut().zip(values) {
                        *prediction.slot(output.target, output.quantile) = *value;
                    }
                }
            }
            // The caller sees NaN and falls back with a counted reason; the cause is only known here.
            Err(error) => log::warn!("model graph: {error:#}"),
        }
    }
}

fn prepare(bytes: &[u8]) -> TractResult<Arc<TypedRunnableModel>> {
    let mut framework = tract_onnx::onnx();
    framework.op_register.insert(tree::OPERATOR, build);
    // A model that arrives over the network must not name files to read.
    framework.provider = Arc::new(NoFiles);
    let model = tract_onnx::pb::ModelProto::decode(bytes)?;
    let mut parsed = framework.parse(&model, None)?;
    let [input] = parsed.model.input_outlets()? else {
        bail!("expected one graph input named `{}`", contract::INPUT);
    };
    let name = parsed.model.node(input.node).name.clone();
    ensure!(name == contract::INPUT, "the input is `{name}`, expected `{}`", contract::INPUT);
    let rows = parsed.model.symbols.sym("rows");
    parsed.model.set_input_fact(0, f32::fact([rows.to_dim(), COUNT.to_dim()]).into())?;
    parsed.model.into_optimized()?.into_runnable()
}

struct NoFiles;

impl ModelDataResolver for NoFiles {
    fn read_bytes_from_path(
        &self,
        _: &mut Vec<u8>,
        path: &Path,
        _: usize,
        _: Option<usize>,
    ) -> TractResult<()> {
        bail!("external data ({}) is not read: put it into the file", path.display())
    }
}

/// The parser's node, kept as read until the width of its input is known.
#[derive(Debug, Clone)]
struct Parsed(Arc<NodeProto>);

fn build(
    _: &ParsingContext<'_>,
    node: &tract_onnx::pb::NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    // tract's messages and ours are the same wire format; ours are what the shared reader takes.
    let node = NodeProto::decode(node.encode_to_vec().as_slice())?;
    Ok((expand(Parsed(Arc::new(node))), vec![]))
}

impl Expansion for Parsed {
    fn name(&self) -> StaticName {
        tree::OPERATOR.into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        let ([input], [output]) = (inputs, outputs) else { bail!("expected one input and one output") };
        s.equals(&input.rank, 2)?;
        s.equals(&output.rank, 2)?;
        s.equals(&output.datum_type, DatumType::F32)?;
        s.equals(&output.shape[0], &input.shape[0])?;
        let targets = self.0.attribute.iter().find(|attribute| attribute.name == "n_targets");
        s.equals(&output.shape[1], targets.map_or(1, |targets| targets.i).to_dim())
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let [input] = inputs else { bail!("expected one input") };
        let width = match &*model.outlet_fact(*input)?.shape {
            [_, width] => width.to_usize()?,
            shape => bail!("expected input [n, columns], got {shape:?}"),
        };
        ensure!(width > 0, "expected rows of at least one column");
        let sums = tree::read(&self.0, width, tree::Form::Wide)?;
        let input = model.wire_node(
            format!("{prefix}.float32"),
            tract_core::ops::cast::cast(f32::datum_type()),
            &[*input],
        )?;
        let targets = sums.into_iter().map(|sum| (Forest::new(sum.trees), sum.base)).collect();
        model.wire_node(prefix, TreeSum { width, targets: Arc::new(targets) }, &input)
    }
}

/// The operator: one forest per target over rows of `width` columns.
#[derive(Debug, Clone)]
struct TreeSum {
    width: usize,
    targets: Arc<Vec<(Forest, Option<f32>)>>,
}

// tract merges equal nodes. Two tree sums are the same only if they are one object: comparing the trees
// would be slow and no exporter writes one ensemble twice.
impl PartialEq for TreeSum {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.targets, &other.targets)
    }
}

impl Eq for TreeSum {}

impl Hash for TreeSum {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.targets).hash(state);
    }
}

impl Op for TreeSum {
    fn name(&self) -> StaticName {
        tree::OPERATOR.into()
    }

    op_as_typed_op!();
}

impl EvalOp for TreeSum {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = args_1!(inputs);
        let view = input.try_as_plain_ram()?;
        let values = view.as_slice::<f32>()?;
        let targets = self.targets.len();
        let rows = values.len().checked_div(self.width).unwrap_or(0);
        let mut out = vec![0.0f32; rows * targets];
        for (values, out) in values.chunks(self.width * LANES).zip(out.chunks_mut(targets * LANES)) {
            match out.len() / targets {
                1 => self.block::<1>(values, out),
                2..=4 => self.block::<4>(values, out),
                _ => self.block::<LANES>(values, out),
            }
        }
        Ok(tvec!(Tensor::from_shape(&[rows, targets], &out)?.into_tvalue()))
    }
}

impl TreeSum {
    fn block<const L: usize>(&self, values: &[f32], out: &mut [f32]) {
        let rows = values.chunks_exact(self.width);
        let block = Block::<L>::load(rows.clone());
        for (target, (forest, base)) in self.targets.iter().enumerate() {
            let sums = forest.eval(&block, rows.clone());
            for (row, sum) in out.chunks_exact_mut(self.targets.len()).zip(sums) {
                if let Some(slot) = row.get_mut(target) {
                    *slot = base.map_or(sum, |base| sum + base);
                }
            }
        }
    }
}

impl TypedOp for TreeSum {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let [input] = inputs else { bail!("expected one input") };
        let Some(rows) = input.shape.iter().next() else { bail!("expected input [n, columns]") };
        Ok(tvec!(f32::fact([rows.clone(), self.targets.len().to_dim()])))
    }

    as_op!();
}

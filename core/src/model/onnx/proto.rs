//! The messages of `onnx.proto` that a model of the contract uses, and only their fields in use.
//!
//! Field numbers are those of the ONNX specification. Written by hand because a dozen small structs
//! replace a protobuf compiler at build time and half a megabyte of unused messages in the filter.
//! Fields that the reader must refuse are kept as opaque bytes, so that their presence is seen.

use prost::Message;

/// `ModelProto`: the file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// Program that wrote the file.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// The graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Operator sets by domain.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetId>,
    /// Free key-value pairs: where the contract's facts are.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringPair>,
}

/// `OperatorSetIdProto`.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetId {
    /// Domain; empty for `ai.onnx`.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Version of its operator set.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// `StringStringEntryProto`.
#[derive(Clone, PartialEq, Message)]
pub struct StringPair {
    /// Key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `GraphProto`.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// Nodes in topological order.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Name of the graph.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constant tensors, unread.
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub initializer: Vec<Vec<u8>>,
    /// Inputs with their types.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfo>,
    /// Outputs with their types.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfo>,
}

/// `NodeProto`: one operator.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of its inputs.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of its outputs.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Name of the node.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Its attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<Attribute>,
    /// Operator domain.
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// `AttributeProto`.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// One integer.
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// One string.
    #[prost(bytes = "vec", tag = "4")]
    pub s: Vec<u8>,
    /// Floats.
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    /// Integers.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// Strings.
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub strings: Vec<Vec<u8>>,
    /// Which of the above holds the value: one of the constants below.
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

/// `AttributeProto.INT`.
pub const TYPE_INT: i32 = 2;
/// `AttributeProto.STRING`.
pub const TYPE_STRING: i32 = 3;
/// `AttributeProto.FLOATS`.
pub const TYPE_FLOATS: i32 = 6;
/// `AttributeProto.INTS`.
pub const TYPE_INTS: i32 = 7;
/// `AttributeProto.STRINGS`.
pub const TYPE_STRINGS: i32 = 8;

/// `ValueInfoProto`: a named value and its type.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfo {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// `TypeProto`, of which only the tensor case is read.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// The tensor case.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
}

/// `TypeProto.Tensor`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    /// Element type; [`ELEMENT_FLOAT`] is the one in use.
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// Shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShape>,
}

/// `TensorProto.FLOAT`: 32-bit float.
pub const ELEMENT_FLOAT: i32 = 1;

/// `TensorShapeProto`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShape {
    /// Dimensions.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// `TensorShapeProto.Dimension`.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    /// A number or a name.
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
}

/// How long a dimension is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum DimensionValue {
    /// A number.
    #[prost(int64, tag = "1")]
    Number(i64),
    /// A name that stands for any number.
    #[prost(string, tag = "2")]
    Symbol(String),
}

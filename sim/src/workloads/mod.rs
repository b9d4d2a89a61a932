//! Traffic for virtual time: readers of the public trace formats, and generators that need no trace.
//!
//! * [`trace`]: rows of any trace, and the requests that they become. [`formats`]: the formats.
//! * [`synthetic`]: generators, by name.

pub mod formats;
pub mod synthetic;
pub mod trace;

pub use formats::{Format, TraceError, read_file, read_trace};
pub use synthetic::{SHAPES, Shape, Synthetic};
pub use trace::{TraceOptions, TraceRow, arrivals};

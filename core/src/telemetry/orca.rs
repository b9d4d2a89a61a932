//! Load reports that responses carry.

/// What a response said of its pod's load. NaN is unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadReport {
    /// Requests in the engine's queue.
    pub waiting_requests: f32,
    /// Requests running.
    pub running_requests: f32,
    /// Share of the KV cache in use, 0..1.
    pub kv_usage: f32,
}

impl Default for LoadReport {
    fn default() -> Self {
        Self { waiting_requests: f32::NAN, running_requests: f32::NAN, kv_usage: f32::NAN }
    }
}

//! Text Generation Inference's series.
//!
//! The queue and the batch, and little else: no gauge of the KV cache's use, no size of it, and no count of what
//! was found in it, so none of that is known. Source of the names: TGI's `docs/source/reference/metrics.md` and
//! the batching loops of its router.

use super::expected::Missing;
use super::gather::Gathered;
use super::text::Series;
use super::{Dialect, Scrape, TelemetryError};

pub(super) const PREFIX: &[u8] = b"tgi_";

/// What has been read so far.
#[derive(Debug, Default)]
pub(super) struct Tgi {
    queued: Gathered,
    batch: Gathered,
}

impl Tgi {
    /// Takes one series; `name` is without the prefix.
    pub(super) fn take(&mut self, name: &[u8], series: &Series<'_>) {
        match name {
            b"queue_size" => self.queued.add_series(series),
            b"batch_current_size" => self.batch.add_series(series),
            _ => {}
        }
    }

    /// What the page said.
    pub(super) fn scrape(&self) -> Result<Scrape, TelemetryError> {
        if self.queued.is_unknown() && self.batch.is_unknown() {
            return Err(TelemetryError::Missing("tgi_queue_size"));
        }
        Ok(Scrape {
            waiting_requests: self.queued.count(),
            running_requests: self.batch.count(),
            missing: Missing::of(&[self.queued.is_unknown(), self.batch.is_unknown()]),
            ..Scrape::unknown(Dialect::Tgi)
        })
    }
}

//! SGLang's series (its server needs `--enable-metrics`).
//!
//! Every scheduler process writes its own series. Those of one data-parallel rank (label `dp_rank`) that differ
//! in `tp_rank` or `pp_rank` tell the same queue again: the largest counts, never their sum. Data-parallel ranks
//! are queues of their own and add up. With priority scheduling the whole stands under an empty `priority`, and
//! the same requests once more under each priority. The counters of whole requests come from the process in
//! front, without ranks.
//!
//! Source of the names: SGLang's `python/sglang/srt/observability/metrics_collector.py` and, before it moved,
//! `python/sglang/srt/metrics/collector.py`. Some exporters write `sglang_` for `sglang:`.
//!
//! What was found in the cache is told three times over, newest and finest first: `prefill_effective_tokens_total`
//! by tier, `realtime_tokens_total` by what was computed, and the counters of finished requests.

use super::expected::Missing;
use super::gather::Gathered;
use super::text::Series;
use super::{Dialect, Scrape, TelemetryError};

pub(super) const PREFIX: &[u8] = b"sglang:";
pub(super) const OTHER_PREFIX: &[u8] = b"sglang_";

/// Data-parallel ranks behind one address; further ones are not read.
const MAX_RANKS: usize = 256;

/// What one scheduler tells. The order is that of [`Rank`]'s values.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
enum Field {
    Running,
    Queued,
    GrammarQueued,
    Usage,
    Capacity,
    PageSize,
    HostUsed,
    HostCapacity,
    Retracted,
    AdaptersUsed,
    AdaptersMax,
    Input,
    DeviceHit,
    HostHit,
    StorageHit,
    Computed,
    Cached,
    Decoded,
}

const FIELDS: usize = Field::Decoded as usize + 1;

/// One data-parallel rank: the largest over its processes of each value.
#[derive(Debug)]
struct Rank {
    number: u32,
    values: [Gathered; FIELDS],
}

/// What has been read so far.
#[derive(Debug, Default)]
pub(super) struct Sglang {
    ranks: Vec<Rank>,
    prompt_tokens: Gathered,
    generation_tokens: Gathered,
    cached_device_tokens: Gathered,
    cached_elsewhere_tokens: Gathered,
}

impl Sglang {
    /// Takes one series; `name` is without the prefix.
    pub(super) fn take(&mut self, name: &[u8], series: &Series<'_>) {
        let field = match name {
            b"num_running_reqs" => Field::Running,
            b"num_queue_reqs" => Field::Queued,
            b"num_grammar_queue_reqs" => Field::GrammarQueued,
            b"token_usage" => Field::Usage,
            b"max_total_num_tokens" => Field::Capacity,
            b"page_size" => Field::PageSize,
            b"hicache_host_used_tokens" => Field::HostUsed,
            b"hicache_host_total_tokens" => Field::HostCapacity,
            b"num_retracted_requests_total" => Field::Retracted,
            b"lora_pool_slots_used" => Field::AdaptersUsed,
            b"lora_pool_slots_total" => Field::AdaptersMax,
            b"prefill_effective_tokens_total" => match label(series, b"mode") {
                Some(b"input") => Field::Input,
                Some(b"device_hit") => Field::DeviceHit,
                Some(b"host_hit") => Field::HostHit,
                Some(b"storage_hit") => Field::StorageHit,
                _ => return,
            },
            b"realtime_tokens_total" => match label(series, b"mode") {
                Some(b"prefill_compute") => Field::Computed,
                Some(b"prefill_cache") => Field::Cached,
                Some(b"decode") => Field::Decoded,
                _ => return,
            },
            b"cache_config_info" => return self.take_page_size(series),
            b"prompt_tokens_total" => return self.prompt_tokens.add_series(series),
            b"generation_tokens_total" => return self.generation_tokens.add_series(series),
            b"cached_tokens_total" => {
                // Before the tiers were told apart there was only the device.
                return match label(series, b"cache_source") {
                    None | Some(b"device" | b"total") => self.cached_device_tokens.add_series(series),
                    Some(_) => self.cached_elsewhere_tokens.add_series(series),
                };
            }
            _ => return,
        };
        if label(series, b"priority").is_some_and(|priority| !priority.is_empty()) {
            return;
        }
        self.raise(series, field, series.value().unwrap_or(f64::NAN));
    }

    /// Versions before the gauge `page_size` told it as a label.
    fn take_page_size(&mut self, series: &Series<'_>) {
        for label in series.labels() {
            if label.name == b"page_size" {
                self.raise(series, Field::PageSize, label.number().unwrap_or(f64::NAN));
            }
        }
    }

    fn raise(&mut self, series: &Series<'_>, field: Field, value: f64) {
        let number = label(series, b"dp_rank")
            .and_then(|rank| core::str::from_utf8(rank).ok()?.parse().ok())
            .unwrap_or(0_u32);
        let at = self.ranks.iter().position(|rank| rank.number == number).unwrap_or_else(|| {
            if self.ranks.len() < MAX_RANKS {
                self.ranks.push(Rank { number, values: [Gathered::default(); FIELDS] });
            }
            self.ranks.len() - 1
        });
        if let Some(rank) = self.ranks.get_mut(at).filter(|rank| rank.number == number)
            && let Some(slot) = rank.values.get_mut(field as usize)
        {
            slot.raise(value);
        }
    }

    fn values(&self, field: Field) -> impl Iterator<Item = f64> {
        self.ranks.iter().filter_map(move |rank| rank.values.get(field as usize)).map(|value| value.0)
    }

    /// Over all ranks; unknown where no rank tells it.
    fn sum(&self, field: Field) -> Gathered {
        let mut sum = Gathered::default();
        self.values(field).for_each(|value| sum.add(value));
        sum
    }

    /// Of the fullest rank.
    fn most(&self, field: Field) -> Gathered {
        let mut most = Gathered::default();
        self.values(field).for_each(|value| most.raise(value));
        most
    }

    /// Prompt tokens found on the device, found in a tier behind it, and written to the device.
    fn prompt(&self) -> (f64, f64, f64) {
        let input = self.sum(Field::Input);
        if !input.is_unknown() {
            let behind = self.sum(Field::HostHit).or_zero() + self.sum(Field::StorageHit).or_zero();
            return (self.sum(Field::DeviceHit).or_zero(), behind, input.0 + behind);
        }
        let computed = self.sum(Field::Computed);
        if !computed.is_unknown() {
            return (self.sum(Field::Cached).or_zero(), self.cached_elsewhere_tokens.0, computed.0);
        }
        let device = self.cached_device_tokens.0;
        (device, self.cached_elsewhere_tokens.0, self.prompt_tokens.0 - device)
    }

    /// What the page said.
    pub(super) fn scrape(&self) -> Result<Scrape, TelemetryError> {
        let (running, queued) = (self.sum(Field::Running), self.sum(Field::Queued));
        if running.is_unknown() && queued.is_unknown() {
            return Err(TelemetryError::Missing("sglang:num_running_reqs"));
        }
        let usage = self.most(Field::Usage);
        let capacity = self.sum(Field::Capacity);
        let (hits, behind, written) = self.prompt();
        let decoded = self.sum(Field::Decoded).or(self.generation_tokens).0;
        let host_capacity = self.sum(Field::HostCapacity);
        let computed = written + decoded;
        Ok(Scrape {
            waiting_requests: Gathered(queued.0 + self.sum(Field::GrammarQueued).or_zero()).count(),
            running_requests: running.count(),
            kv_usage: usage.share(),
            kv_capacity_tokens: capacity.size(),
            block_tokens: self.most(Field::PageSize).size(),
            host_kv_capacity_tokens: host_capacity.size(),
            host_kv_usage: Gathered(self.sum(Field::HostUsed).0 / host_capacity.0).share(),
            prefix_query_tokens: hits + written,
            prefix_hit_tokens: hits,
            host_hit_tokens: behind,
            computed_tokens_total: computed,
            preemptions: self.sum(Field::Retracted).0,
            running_adapters: self.most(Field::AdaptersUsed).count(),
            max_adapters: self.most(Field::AdaptersMax).size(),
            missing: Missing::of(&[
                running.is_unknown(),
                queued.is_unknown(),
                usage.is_unknown(),
                capacity.is_unknown(),
                // The counters begin with the first request.
                computed.is_nan() && (running.0 > 0.0 || self.prompt_tokens.0 > 0.0),
            ]),
            ..Scrape::unknown(Dialect::Sglang)
        })
    }
}

fn label<'a>(series: &Series<'a>, name: &[u8]) -> Option<&'a [u8]> {
    series.labels().find(|label| label.name == name).map(|label| label.value)
}

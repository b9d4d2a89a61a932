//! The proxy-wasm ABI 0.2.1, as Envoy implements it. The one place with unsafe code.
//!
//! Unsafe is needed for two things: calling imports, and taking over blocks that the host has written. The
//! host allocates such a block through the SDK's exported `proxy_on_memory_allocate`, which makes a boxed
//! slice of exactly the size asked for with this module's own allocator; so pointer and size are a `Vec` of
//! that length and capacity, and dropping it frees the block.
//!
//! The SDK has functions for all of this. They panic on a status that they do not expect, and a panic costs
//! the VM with all its streams, hence imports of our own. Callouts are the exception: the SDK's dispatcher
//! must know their tokens. It expects every status that Envoy's implementation returns (ok, bad argument,
//! internal failure).
#![allow(unsafe_code)]

use core::cell::RefCell;
use core::hash::{BuildHasher, Hasher};
use core::ptr::null_mut;
use std::hash::RandomState;
use std::time::Duration;

use super::resolver::Resolver;
use super::{Buffer, Callout, Headers, Host, HostError, MetricKind, Shared, pairs};

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_log(level: u32, message: *const u8, message_size: usize) -> u32;
    fn proxy_get_log_level(level: *mut u32) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        max_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, name: *const u8, name_size: usize) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
    fn proxy_get_property(path: *const u8, path_size: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_set_property(path: *const u8, path_size: usize, value: *const u8, value_size: usize) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        cas: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
        cas: u32,
    ) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, name_size: usize, id: *mut u32) -> u32;
    fn proxy_increment_metric(id: u32, offset: i64) -> u32;
    fn proxy_record_metric(id: u32, value: u64) -> u32;
    fn proxy_done() -> u32;
    /// Envoy's own addition to the ABI.
    fn envoy_resolve_dns(name: *const u8, name_size: usize, token: *mut u32) -> u32;
}

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn clock_time_get(clock: u32, precision_ns: u64, time_ns: *mut u64) -> u32;
}

/// WASI's clocks.
const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;

/// Statuses of the ABI that are answers rather than failures.
const OK: u32 = 0;
const NOT_FOUND: u32 = 1;

/// A resolver's answer is read up to here: 50 B for each of [`foretoken_core::fleet::MAX_PODS`] addresses.
const MAX_ANSWER_BYTES: usize = 64 << 10;

unsafe extern "C" {
    fn __wasm_call_ctors();
}

/// What Envoy calls first in a new VM.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    // SAFETY: made by the linker; a reactor module runs it exactly once, before anything else.
    unsafe { __wasm_call_ctors() };
    crate::sdk::start();
}

thread_local! {
    static RESOLVER: RefCell<Resolver> = const { RefCell::new(Resolver::new()) };
}

/// A resolver's answer to root context `root`: Envoy's own addition to the ABI.
#[unsafe(no_mangle)]
extern "C" fn envoy_on_resolve_dns(root: u32, token: u32, size: usize) {
    const CALL_DATA: u32 = 8;
    let answer = taken("proxy_get_buffer_bytes", |data, taken| {
        // SAFETY: pointers to locals that the host writes one value of their types to.
        unsafe { proxy_get_buffer_bytes(CALL_DATA, 0, size.min(MAX_ANSWER_BYTES), data, taken) }
    });
    // An answer that cannot be had is one without addresses.
    let answer = answer.ok().flatten().unwrap_or_default();
    let goes = RESOLVER.with(|resolver| {
        resolver.try_borrow_mut().is_ok_and(|mut resolver| resolver.answered(token, root, answer))
    });
    if goes {
        // SAFETY: no arguments. Envoy deletes the root when this callback has returned.
        unsafe { proxy_done() };
    }
}

/// Envoy.
#[derive(Debug)]
pub(crate) struct Envoy;

fn map_of(headers: Headers) -> u32 {
    match headers {
        Headers::Request => 0,
        Headers::Response => 2,
        Headers::Callout => 6,
    }
}

fn buffer_of(buffer: Buffer) -> u32 {
    match buffer {
        Buffer::RequestBody => 0,
        Buffer::ResponseBody => 1,
        Buffer::CalloutBody => 4,
        Buffer::Configuration => 7,
    }
}

fn check(call: &'static str, status: u32) -> Result<(), HostError> {
    if status == OK { Ok(()) } else { Err(HostError { call, status }) }
}

/// A call that hands over a block: `None` when there is none.
fn taken(
    call: &'static str,
    ask: impl FnOnce(*mut *mut u8, *mut usize) -> u32,
) -> Result<Option<Vec<u8>>, HostError> {
    let (mut data, mut size) = (null_mut::<u8>(), 0_usize);
    match ask(&mut data, &mut size) {
        OK if data.is_null() => Ok(Some(Vec::new())),
        // SAFETY: see the module's head; the host gives each block away once.
        OK => Ok(Some(unsafe { Vec::from_raw_parts(data, size, size) })),
        NOT_FOUND => Ok(None),
        status => Err(HostError { call, status }),
    }
}

fn clock_us(clock: u32) -> u64 {
    let mut time_ns = 0;
    // SAFETY: writes one u64 to a place that is there. A clock that fails leaves 0: time stands still,
    // nothing breaks.
    unsafe { clock_time_get(clock, 1000, &mut time_ns) };
    time_ns / 1000
}

/// Writes a line to Envoy's log. A line that cannot be written has nowhere else to go.
pub(super) fn log(level: u32, message: &str) {
    // SAFETY: pointer and size of one slice.
    unsafe { proxy_log(level, message.as_ptr(), message.len()) };
}

/// The level of Envoy's wasm log, if it says.
pub(super) fn log_level() -> Option<u32> {
    let mut level = 0;
    // SAFETY: writes one u32 to a place that is there.
    (unsafe { proxy_get_log_level(&mut level) } == OK).then_some(level)
}

// SAFETY of the calls below: every pointer and size is of one slice that outlives the call, or of a local that
// the host writes one value of its type to.
impl Host for Envoy {
    fn now_us(&self) -> u64 {
        clock_us(MONOTONIC)
    }

    fn wall_ms(&self) -> u64 {
        clock_us(REALTIME) / 1000
    }

    fn random(&self) -> u64 {
        // Seeded by WASI's random_get.
        RandomState::new().build_hasher().finish()
    }

    fn headers(&self, map: Headers) -> Result<Vec<u8>, HostError> {
        taken("proxy_get_header_map_pairs", |data, size| unsafe {
            proxy_get_header_map_pairs(map_of(map), data, size)
        })
        .map(Option::unwrap_or_default)
    }

    fn header(&self, map: Headers, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        taken("proxy_get_header_map_value", |data, size| unsafe {
            proxy_get_header_map_value(map_of(map), name.as_ptr(), name.len(), data, size)
        })
    }

    fn set_header(&self, map: Headers, name: &str, value: &str) -> Result<(), HostError> {
        check("proxy_replace_header_map_value", unsafe {
            proxy_replace_header_map_value(
                map_of(map),
                name.as_ptr(),
                name.len(),
                value.as_ptr(),
                value.len(),
            )
        })
    }

    fn remove_header(&self, map: Headers, name: &str) -> Result<(), HostError> {
        check("proxy_remove_header_map_value", unsafe {
            proxy_remove_header_map_value(map_of(map), name.as_ptr(), name.len())
        })
    }

    fn answer(
        &self,
        status: u16,
        headers: &[(&str, &str)],
        body: &str,
        details: &str,
    ) -> Result<(), HostError> {
        /// The answer is no gRPC answer.
        const NO_GRPC: i32 = -1;
        let packed = pairs::pack(headers);
        check("proxy_send_local_response", unsafe {
            proxy_send_local_response(
                u32::from(status),
                details.as_ptr(),
                details.len(),
                body.as_ptr(),
                body.len(),
                packed.as_ptr(),
                packed.len(),
                NO_GRPC,
            )
        })
    }

    fn bytes(&self, buffer: Buffer, max_bytes: usize) -> Result<Vec<u8>, HostError> {
        taken("proxy_get_buffer_bytes", |data, size| unsafe {
            proxy_get_buffer_bytes(buffer_of(buffer), 0, max_bytes, data, size)
        })
        .map(Option::unwrap_or_default)
    }

    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError> {
        let path = path.join("\0");
        taken("proxy_get_property", |data, size| unsafe {
            proxy_get_property(path.as_ptr(), path.len(), data, size)
        })
    }

    fn set_property(&self, name: &str, value: &[u8]) -> Result<(), HostError> {
        check("proxy_set_property", unsafe {
            proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len())
        })
    }

    fn shared(&self, key: &str) -> Result<Shared, HostError> {
        let mut cas = 0;
        let value = taken("proxy_get_shared_data", |data, size| unsafe {
            proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &mut cas)
        })?;
        Ok((value.unwrap_or_default(), (cas != 0).then_some(cas)))
    }

    fn set_shared(&self, key: &str, value: &[u8], cas: Option<u32>) -> Result<(), HostError> {
        check("proxy_set_shared_data", unsafe {
            // 0 stands for "whatever the number is".
            proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas.unwrap_or(0))
        })
    }

    fn define_metric(&self, kind: MetricKind, name: &str) -> Result<u32, HostError> {
        let kind = match kind {
            MetricKind::Counter => 0,
            MetricKind::Gauge => 1,
            MetricKind::Histogram => 2,
        };
        let mut id = 0;
        check("proxy_define_metric", unsafe {
            proxy_define_metric(kind, name.as_ptr(), name.len(), &mut id)
        })?;
        Ok(id)
    }

    fn add_to_metric(&self, id: u32, amount: u32) -> Result<(), HostError> {
        check("proxy_increment_metric", unsafe { proxy_increment_metric(id, i64::from(amount)) })
    }

    fn record_metric(&self, id: u32, value: u64) -> Result<(), HostError> {
        check("proxy_record_metric", unsafe { proxy_record_metric(id, value) })
    }

    fn set_tick_period(&self, period_ms: u32) -> Result<(), HostError> {
        check("proxy_set_tick_period_milliseconds", unsafe { proxy_set_tick_period_milliseconds(period_ms) })
    }

    fn call(&self, callout: &Callout<'_>) -> Result<u32, HostError> {
        proxy_wasm::hostcalls::dispatch_http_call(
            callout.cluster,
            callout.headers.to_vec(),
            (!callout.body.is_empty()).then_some(callout.body),
            Vec::new(),
            Duration::from_millis(u64::from(callout.timeout_ms)),
        )
        .map_err(|status| HostError {
            call: "proxy_http_call",
            status: match status {
                proxy_wasm::types::Status::BadArgument => 2,
                _ => 10,
            },
        })
    }

    fn resolve(&self, root: u32, name: &str) -> Result<u32, HostError> {
        let mut token = 0;
        check("envoy_resolve_dns", unsafe { envoy_resolve_dns(name.as_ptr(), name.len(), &mut token) })?;
        RESOLVER.with(|resolver| {
            if let Ok(mut resolver) = resolver.try_borrow_mut() {
                resolver.asked(token, root);
            }
        });
        Ok(token)
    }

    fn resolved(&self, token: u32) -> Option<Vec<u8>> {
        RESOLVER.with(|resolver| resolver.try_borrow_mut().ok()?.take(token))
    }

    fn leave(&self, root: u32) -> bool {
        RESOLVER.with(|resolver| resolver.try_borrow_mut().is_ok_and(|mut resolver| resolver.leave(root)))
    }
}

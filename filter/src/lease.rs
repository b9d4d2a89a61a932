//! Which VM of the Envoy polls admin and pods: the one that holds the lease in shared data.
//!
//! Parsing a listing of a thousand pods takes milliseconds, so the main thread's VM should do it, which
//! carries no streams. A VM cannot ask which thread it is on; it knows whether it has served. So a VM that has
//! served waits a little before it takes a free lease, and a holder that has served gives the lease up when a
//! VM that has not says that it is there.
//!
//! The lease expires by itself, so a VM that trapped does not hold it for ever.

use foretoken_core::codec::{Reader, Writer};

use crate::host::{Host, HostError};
use crate::keys::Keys;

/// How long a lease holds without renewal.
const LEASE_US: u64 = 2_000_000;

/// It is renewed when less than this is left.
const RENEW_US: u64 = 1_000_000;

/// How long a VM that has served lets others go first.
const DEFER_US: u64 = 1_500_000;

/// How often a VM that would rather hold the lease says so, and for how long that counts.
const IDLE_EVERY_US: u64 = 250_000;
const IDLE_COUNTS_US: u64 = 1_000_000;

/// First byte of both values.
const FORMAT: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    incarnation: u64,
    expires_us: u64,
    served: bool,
}

fn read_lease(bytes: &[u8]) -> Option<Held> {
    let mut input = Reader::new(bytes);
    (input.u8()? == FORMAT).then_some(())?;
    Some(Held { incarnation: input.u64()?, expires_us: input.u64()?, served: input.u8()? == 1 })
}

fn write_lease(held: &Held) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(FORMAT);
    out.u64(held.incarnation);
    out.u64(held.expires_us);
    out.u8(u8::from(held.served));
    out.finish()
}

fn read_idle(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut input = Reader::new(bytes);
    (input.u8()? == FORMAT).then_some(())?;
    Some((input.u64()?, input.u64()?))
}

fn write_idle(incarnation: u64, now_us: u64) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(FORMAT);
    out.u64(incarnation);
    out.u64(now_us);
    out.finish()
}

/// One VM's part in it.
#[derive(Debug)]
pub struct Lease {
    incarnation: u64,
    /// Before there was any lease, this stands for when the last one expired.
    born_us: u64,
    said_idle_us: u64,
}

impl Lease {
    /// For a VM that came up at `now_us`.
    #[must_use]
    pub fn new(incarnation: u64, now_us: u64) -> Self {
        Self { incarnation, born_us: now_us, said_idle_us: 0 }
    }

    /// Takes, renews or gives up the lease. Returns whether this VM holds it.
    ///
    /// # Errors
    /// When the host does not give or take the value: then this VM does not hold it.
    pub fn step(
        &mut self,
        host: &dyn Host,
        keys: &Keys,
        served: bool,
        now_us: u64,
    ) -> Result<bool, HostError> {
        let (bytes, cas) = host.shared(&keys.lease)?;
        let held = read_lease(&bytes);
        let set = |expires_us: u64| {
            let value = write_lease(&Held { incarnation: self.incarnation, expires_us, served });
            match host.set_shared(&keys.lease, &value, cas) {
                Ok(()) => Ok(true),
                Err(error) if error.is_cas_mismatch() => Ok(false),
                Err(error) => Err(error),
            }
        };
        match held {
            Some(held) if held.expires_us > now_us && held.incarnation == self.incarnation => {
                if served && Self::somebody_idles(host, keys, self.incarnation, now_us)? {
                    set(now_us)?;
                    return Ok(false);
                }
                if held.served != served || held.expires_us - now_us < RENEW_US {
                    return set(now_us + LEASE_US);
                }
                Ok(true)
            }
            Some(held) if held.expires_us > now_us => {
                if !served && held.served && self.said_idle_us + IDLE_EVERY_US <= now_us {
                    self.said_idle_us = now_us;
                    host.set_shared(&keys.idle, &write_idle(self.incarnation, now_us), None)?;
                }
                Ok(false)
            }
            free => {
                let since_us = free.map_or(self.born_us, |held| held.expires_us);
                if served && now_us < since_us + DEFER_US {
                    return Ok(false);
                }
                set(now_us + LEASE_US)
            }
        }
    }

    fn somebody_idles(
        host: &dyn Host,
        keys: &Keys,
        incarnation: u64,
        now_us: u64,
    ) -> Result<bool, HostError> {
        let (bytes, _) = host.shared(&keys.idle)?;
        Ok(read_idle(&bytes).is_some_and(|(who, at_us)| {
            who != incarnation && at_us + IDLE_COUNTS_US > now_us && at_us <= now_us
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::mock::MockHost;

    struct Vm {
        lease: Lease,
        served: bool,
        holds: bool,
    }

    fn vms(served: [bool; 3]) -> Vec<Vm> {
        let vm = |(at, served)| Vm { lease: Lease::new(at as u64 + 1, 0), served, holds: false };
        served.into_iter().enumerate().map(vm).collect()
    }

    /// Ticks every 50 ms; returns the holders after the last tick.
    fn run(host: &MockHost, vms: &mut [Vm], from_ms: u64, to_ms: u64) -> Vec<usize> {
        let keys = Keys::new("p", "c");
        for at_ms in (from_ms..to_ms).step_by(50) {
            for vm in vms.iter_mut() {
                vm.holds = vm.lease.step(host, &keys, vm.served, at_ms * 1000).unwrap();
            }
            assert!(vms.iter().filter(|vm| vm.holds).count() <= 1, "two holders at {at_ms} ms");
        }
        vms.iter().enumerate().filter(|(_, vm)| vm.holds).map(|(at, _)| at).collect()
    }

    #[test]
    fn the_first_vm_takes_it_and_keeps_it() {
        let host = MockHost::default();
        let mut vms = vms([false, false, false]);
        assert_eq!(run(&host, &mut vms, 0, 100), [0]);
        assert_eq!(run(&host, &mut vms, 100, 10_000), [0]);
    }

    #[test]
    fn a_vm_that_serves_lets_one_that_does_not_go_first() {
        let host = MockHost::default();
        let mut vms = vms([true, true, false]);
        assert_eq!(run(&host, &mut vms, 0, 1_000), [2]);
    }

    #[test]
    fn among_vms_that_all_serve_one_takes_it_in_the_end() {
        let host = MockHost::default();
        let mut vms = vms([true, true, true]);
        assert_eq!(run(&host, &mut vms, 0, 1_000), [0_usize; 0]);
        assert_eq!(run(&host, &mut vms, 1_000, 3_000), [0]);
    }

    #[test]
    fn a_holder_that_begins_to_serve_hands_over_to_one_that_does_not() {
        let host = MockHost::default();
        let mut vms = vms([false, false, false]);
        assert_eq!(run(&host, &mut vms, 0, 1_000), [0]);
        vms[0].served = true;
        vms[1].served = true;
        assert_eq!(run(&host, &mut vms, 1_000, 2_000), [2]);
    }

    #[test]
    fn when_the_holder_dies_another_takes_over() {
        let host = MockHost::default();
        let mut vms = vms([false, true, true]);
        assert_eq!(run(&host, &mut vms, 0, 1_000), [0]);
        vms.remove(0);
        assert_eq!(run(&host, &mut vms, 1_000, 6_000).len(), 1);
    }
}

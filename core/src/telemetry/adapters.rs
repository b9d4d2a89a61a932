//! Which LoRA adapters an engine has in its batch or its queue.
//!
//! Names become keys ([`crate::request::model_key`]), the same as those of the models that requests name:
//! an adapter is asked for as a model. Their number is bounded, because a page's text is not.

use crate::codec::{Reader, Writer};
use crate::request::model_key;

/// Adapters kept of one pod; engines hold a handful at a time (vLLM's `max_loras` is 1 by default).
pub const MAX_ADAPTERS: usize = 16;

/// Keys of adapters, without duplicates, in the order of the page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Adapters {
    keys: [u64; MAX_ADAPTERS],
    count: u8,
}

impl Adapters {
    /// The keys.
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        self.keys.get(..usize::from(self.count)).unwrap_or_default()
    }

    /// Whether an adapter of this key is among them.
    #[must_use]
    pub fn contains(&self, model_key: u64) -> bool {
        self.keys().contains(&model_key)
    }

    /// Adds a key; ignored when it is there already or [`MAX_ADAPTERS`] are.
    pub fn insert(&mut self, model_key: u64) {
        if self.contains(model_key) {
            return;
        }
        if let Some(slot) = self.keys.get_mut(usize::from(self.count)) {
            *slot = model_key;
            self.count += 1;
        }
    }

    /// Adds the names of a comma-separated list and returns how many names it has.
    pub(super) fn insert_list(&mut self, names: &[u8]) -> u32 {
        let mut count = 0;
        for name in names.split(|byte| *byte == b',') {
            let name = name.trim_ascii();
            if name.is_empty() {
                continue;
            }
            count += 1;
            if let Ok(name) = core::str::from_utf8(name) {
                self.insert(model_key(name));
            }
        }
        count
    }

    /// Packs the keys.
    pub(crate) fn write(&self, out: &mut Writer) {
        out.u8(self.count);
        for key in self.keys() {
            out.u64(*key);
        }
    }

    /// Unpacks keys.
    pub(crate) fn read(input: &mut Reader<'_>) -> Option<Self> {
        let mut adapters = Self::default();
        for _ in 0..input.u8()? {
            adapters.insert(input.u64()?);
        }
        Some(adapters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_counted_whole_and_kept_up_to_its_bound() {
        let mut adapters = Adapters::default();
        assert_eq!(adapters.insert_list(b" a, b,,a "), 3);
        assert_eq!(adapters.keys(), [model_key("a"), model_key("b")]);
        let many: Vec<String> = (0..40).map(|n| format!("adapter-{n}")).collect();
        assert_eq!(adapters.insert_list(many.join(",").as_bytes()), 40);
        assert_eq!(adapters.keys().len(), MAX_ADAPTERS);
        assert!(adapters.contains(model_key("adapter-13")) && !adapters.contains(model_key("adapter-14")));
    }

    #[test]
    fn keys_are_read_as_they_were_written() {
        let mut adapters = Adapters::default();
        adapters.insert_list(b"x,y,z");
        let mut out = Writer::default();
        adapters.write(&mut out);
        let bytes = out.finish();
        assert_eq!(Adapters::read(&mut Reader::new(&bytes)), Some(adapters));
        for cut in 0..bytes.len() {
            assert_eq!(Adapters::read(&mut Reader::new(&bytes[..cut])), None, "cut at {cut}");
        }
    }
}

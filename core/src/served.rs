//! Which models a pod serves: base models and LoRA adapters, as its `/v1/models` lists them.
//!
//! A request that names a model goes to a pod that has it. Names are kept as their keys
//! ([`crate::request::model_key`]), which is all that a comparison needs, and their number is bounded.
//!
//! A pod of which no list is known may serve anything; an empty name in a request asks for whatever is there.
//! Not here: which adapters are in a pod's batch right now ([`crate::telemetry::Adapters`]).

use serde::Deserialize;

use crate::codec::{Reader, Writer};
use crate::request::model_key;

/// Models kept of one pod; a list that is longer is cut.
pub const MAX_MODELS: usize = 256;

/// Why a body is no list of models.
#[derive(Debug, thiserror::Error)]
#[error("not JSON of a list of models: {0}")]
pub struct ModelListError(#[from] serde_json::Error);

/// The models of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ServedModels {
    /// Key and whether it is an adapter, by key, without duplicates.
    models: Vec<(u64, bool)>,
}

#[derive(Deserialize)]
struct List {
    data: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    id: String,
    /// vLLM and SGLang name the base model of an adapter here.
    #[serde(default)]
    parent: Option<String>,
    /// Other names of the same model (llama.cpp).
    #[serde(default)]
    aliases: Vec<String>,
}

impl ServedModels {
    /// A list of names, each with whether it is an adapter.
    pub fn new<'a>(names: impl IntoIterator<Item = (&'a str, bool)>) -> Self {
        let mut models: Vec<(u64, bool)> = names
            .into_iter()
            .take(MAX_MODELS)
            .map(|(name, is_adapter)| (model_key(name), is_adapter))
            .collect();
        models.sort_unstable();
        models.dedup_by_key(|(key, _)| *key);
        Self { models }
    }

    /// Reads the answer to `GET /v1/models`.
    ///
    /// # Errors
    /// When it is not the JSON of such a list. A list without models is none either: it would rule the pod out.
    pub fn from_json(body: &[u8]) -> Result<Self, ModelListError> {
        let list: List = serde_json::from_slice(body)?;
        if list.data.is_empty() {
            return Err(<serde_json::Error as serde::de::Error>::custom("`data` is empty").into());
        }
        Ok(Self::new(list.data.iter().flat_map(|listed| {
            let is_adapter = listed.parent.as_ref().is_some_and(|parent| *parent != listed.id);
            let names = core::iter::once(&listed.id).chain(&listed.aliases);
            names.map(move |name| (name.as_str(), is_adapter))
        })))
    }

    fn find(&self, key: u64) -> Option<&(u64, bool)> {
        let at = self.models.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.models.get(at)
    }

    /// Whether the model of this key is in the list.
    #[must_use]
    pub fn has(&self, key: u64) -> bool {
        self.find(key).is_some()
    }

    /// Whether it is in the list as an adapter.
    #[must_use]
    pub fn has_adapter(&self, key: u64) -> bool {
        self.find(key).is_some_and(|(_, is_adapter)| *is_adapter)
    }

    /// Number of models.
    #[must_use]
    pub fn len(&self) -> usize {
        self.models.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// Packs the list.
    pub fn write(&self, out: &mut Writer) {
        out.u16(u16::try_from(self.models.len()).unwrap_or(u16::MAX));
        for (key, is_adapter) in &self.models {
            out.u64(*key);
            out.u8(u8::from(*is_adapter));
        }
    }

    /// Unpacks it.
    #[must_use]
    pub fn read(input: &mut Reader<'_>) -> Option<Self> {
        let count = usize::from(input.u16()?).min(MAX_MODELS);
        let mut models = Vec::with_capacity(count);
        for _ in 0..count {
            models.push((input.u64()?, input.u8()? == 1));
        }
        // Searching needs the order, whoever wrote the bytes.
        models.sort_unstable();
        Some(Self { models })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VLLM: &[u8] = br#"{"object":"list","data":[
        {"id":"base","object":"model","root":"base","parent":null,"permission":[{"id":"x"}]},
        {"id":"sql","object":"model","root":"/adapters/sql","parent":"base"}]}"#;

    #[test]
    fn base_models_and_adapters_are_told_apart() {
        let served = ServedModels::from_json(VLLM).unwrap();
        assert_eq!(served.len(), 2);
        assert!(served.has(model_key("base")) && !served.has_adapter(model_key("base")));
        assert!(served.has(model_key("sql")) && served.has_adapter(model_key("sql")));
        assert!(!served.has(model_key("other")));
    }

    #[test]
    fn a_model_answers_to_its_aliases() {
        let body = br#"{"models":[{"name":"tiny"}],"data":[{"id":"tiny","aliases":["tiny","t"],"meta":{"n_ctx":1}}]}"#;
        let served = ServedModels::from_json(body).unwrap();
        assert_eq!(served.len(), 2);
        assert!(served.has(model_key("t")));
    }

    #[test]
    fn what_lists_nothing_is_refused() {
        for body in [&b"{}"[..], b"{\"data\":[]}", b"{\"data\":[{}]}", b"<html>", b"[]"] {
            assert!(ServedModels::from_json(body).is_err(), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn a_list_without_end_is_cut() {
        let names: Vec<String> = (0..1000).map(|at| format!("adapter-{at}")).collect();
        let served = ServedModels::new(names.iter().map(|name| (name.as_str(), true)));
        assert_eq!(served.len(), MAX_MODELS);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(names in prop::collection::vec(("[a-z]{0,8}", any::<bool>()), 0..40)) {
            let served = ServedModels::new(names.iter().map(|(name, is_adapter)| (name.as_str(), *is_adapter)));
            let mut out = Writer::default();
            served.write(&mut out);
            let blob = out.finish();
            prop_assert_eq!(ServedModels::read(&mut Reader::new(&blob)), Some(served));
            for cut in 0..blob.len() {
                prop_assert!(ServedModels::read(&mut Reader::new(&blob[..cut])).is_none());
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ServedModels::from_json(&body);
            let _ = ServedModels::read(&mut Reader::new(&body));
        }
    }
}

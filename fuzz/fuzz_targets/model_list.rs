//! Lists of served models: no panic, a bounded number of names, and what is packed reads back.

#![no_main]

use foretoken_core::codec::{Reader, Writer};
use foretoken_core::served::{MAX_MODELS, ServedModels};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    if let Ok(models) = ServedModels::from_json(body) {
        assert!(models.len() <= MAX_MODELS);
        let mut out = Writer::default();
        models.write(&mut out);
        let bytes = out.finish();
        assert_eq!(ServedModels::read(&mut Reader::new(&bytes)), Some(models));
    }
    let _ = ServedModels::read(&mut Reader::new(body));
});

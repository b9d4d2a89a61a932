//! Segments of the sample store after any damage: no panic, records carry their checksum, and what is appended after them
//! is read.

#![no_main]

use foretoken_trainer::store::segment::{Kind, Line, decode, encode, lines};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    for line in lines(file) {
        if let Line::Record(kind, json) = line {
            let mut again = Vec::new();
            encode(kind, json, &mut again);
            assert_eq!(decode(again.strip_suffix(b"\n").unwrap()), Some((kind, json)));
        }
    }
    let mut longer = file.to_vec();
    if !longer.is_empty() {
        longer.push(b'\n');
    }
    encode(Kind::Sample, b"{}", &mut longer);
    assert_eq!(lines(&longer).last(), Some(Line::Record(Kind::Sample, b"{}")));
});

//! Where the reader is, so that an error can say so.
//!
//! serde's own messages quote what they found, which may be the client's whole text. These name the field
//! and what was expected there, and nothing of the body.

use core::cell::Cell;

use serde_json::error::Category;

use super::RequestError;

/// The field that is being read.
#[derive(Default)]
pub(super) struct Trail {
    field: Cell<&'static str>,
    /// Index and field inside `messages`.
    inside: Cell<Option<(usize, &'static str)>>,
    expected: Cell<&'static str>,
}

impl Trail {
    /// A field of the body.
    pub(super) fn at(&self, field: &'static str, expected: &'static str) {
        self.field.set(field);
        self.inside.set(None);
        self.expected.set(expected);
    }

    /// A field of one of the items of the body's field.
    pub(super) fn inside(&self, index: usize, field: &'static str, expected: &'static str) {
        self.inside.set(Some((index, field)));
        self.expected.set(expected);
    }

    /// Changes what is expected at the place where the reader is.
    pub(super) fn expect(&self, expected: &'static str) {
        self.expected.set(expected);
    }

    /// The error of a body: broken JSON, or the wrong thing at this place.
    pub(super) fn explain(&self, error: &serde_json::Error) -> RequestError {
        if error.classify() != Category::Data {
            return RequestError::NotJson(error.to_string());
        }
        let (line, column, expected) = (error.line(), error.column(), self.expected.get());
        let place = match (self.field.get(), self.inside.get()) {
            ("", _) => "the body".to_owned(),
            (field, None) => format!("`{field}`"),
            (field, Some((index, ""))) => format!("`{field}[{index}]`"),
            (field, Some((index, inner))) => format!("`{field}[{index}].{inner}`"),
        };
        let expected = if expected.is_empty() { "a JSON object" } else { expected };
        RequestError::NotRequest(format!("{place} at line {line} column {column}: expected {expected}"))
    }
}

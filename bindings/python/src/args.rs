//! Plain arguments: numbers, texts and bytes. What is none is one of the package's exceptions, to which Python adds the argument's
//! name.

use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBytes, PyString},
};

use crate::{error::Fault, tokens::list};

const WHAT: &str = "an argument";

/// A number that can be one of so many bits, and of no sign.
pub(crate) trait Whole: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr> {
    const EXPECTED: &'static str;
}

impl Whole for u32 {
    const EXPECTED: &'static str = "an integer of 0 to 4294967295";
}

impl Whole for u64 {
    const EXPECTED: &'static str = "an integer of 0 to 18446744073709551615";
}

impl Whole for usize {
    const EXPECTED: &'static str = <u64 as Whole>::EXPECTED;
}

/// A whole number.
pub(crate) fn whole<T: Whole>(given: &Bound<'_, PyAny>) -> PyResult<T> {
    given.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyTypeError>(given.py()) {
            Fault::wrong_type(WHAT, given, T::EXPECTED).into()
        } else {
            Fault::invalid(WHAT, "another integer", T::EXPECTED).into()
        }
    })
}

/// The same, or `None`.
pub(crate) fn maybe_whole<T: Whole>(given: &Bound<'_, PyAny>) -> PyResult<Option<T>> {
    if given.is_none() { Ok(None) } else { whole(given).map(Some) }
}

/// Whole numbers, one behind the other.
pub(crate) fn wholes<T: Whole>(given: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    list(given, WHAT, |_, number| whole(number))
}

/// Pairs of a worker and a rank, or `None`.
pub(crate) fn maybe_ranks(given: &Bound<'_, PyAny>) -> PyResult<Option<Vec<(u64, u32)>>> {
    const EXPECTED: &str = "pairs of worker_id and dp_rank";
    let pair = |_, given: &Bound<'_, PyAny>| {
        let pair = list(given, "ranks", |_, number| Ok(number.clone()))?;
        match pair.as_slice() {
            [worker_id, dp_rank] => Ok((whole(worker_id)?, whole(dp_rank)?)),
            _ => Err(Fault::invalid("ranks", format!("{} numbers", pair.len()), EXPECTED).into()),
        }
    };
    if given.is_none() { Ok(None) } else { list(given, "ranks", pair).map(Some) }
}

/// A text.
pub(crate) fn text(given: &Bound<'_, PyAny>) -> PyResult<String> {
    let Ok(text) = given.cast::<PyString>() else {
        return Err(Fault::wrong_type(WHAT, given, "a text").into());
    };
    // What Python says of it has the text in it.
    text.extract().map_err(|_: PyErr| Fault::invalid(WHAT, "half of a character", "a text").into())
}

/// The same, or `None`.
pub(crate) fn maybe_text(given: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if given.is_none() { Ok(None) } else { text(given).map(Some) }
}

/// Texts, one behind the other.
pub(crate) fn texts(given: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    list(given, WHAT, |_, one| text(one))
}

/// Bytes that cannot change.
pub(crate) fn bytes<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    match given.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes()),
        Err(_) => Err(Fault::wrong_type(WHAT, given, "bytes").into()),
    }
}

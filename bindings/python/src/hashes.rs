//! Hashes of 64 bits as Python has them: integers, negative ones by their bit pattern, hexadecimal digits, or bytes.

use kvtide_radix::{BlockHash, SequenceHash};
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyBytes, PyList, PyString, PyType},
};

use crate::{
    error::Fault,
    hashing::PromptHasher,
    tokens::{is_array, is_signed, list, neighbours},
};

const FORMS: &str = "an integer of 64 bits, up to 16 hexadecimal digits, or at least 8 bytes";

/// Reads one hash.
pub(crate) fn read(given: &Bound<'_, PyAny>, what: &str) -> PyResult<u64> {
    if let Ok(hash) = given.extract::<u64>() {
        return Ok(hash);
    }
    if let Ok(hash) = given.extract::<i64>() {
        return Ok(hash.cast_unsigned());
    }
    if let Ok(text) = given.cast::<PyString>() {
        let text = text.to_string();
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        let are_digits =
            (1..=16).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let hash = u64::from_str_radix(digits, 16).ok().filter(|_| are_digits);
        return hash
            .ok_or_else(|| Fault::invalid(what, format!("a text of {} letters", text.len()), FORMS).into());
    }
    if let Ok(bytes) = given.cast::<PyBytes>() {
        // Engines that name blocks by longer hashes are known by the last 8 bytes.
        let last = bytes.as_bytes().last_chunk::<8>().map(|last| u64::from_be_bytes(*last));
        let got = format!("{} bytes", bytes.as_bytes().len());
        return last.ok_or_else(|| Fault::invalid(what, got, FORMS).into());
    }
    if given.hasattr("__index__")? {
        return Err(Fault::invalid(what, "an integer of more than 64 bits", FORMS).into());
    }
    Err(Fault::wrong_type(what, given, FORMS).into())
}

/// A list of integers of 0 to 2^64 - 1 as their bytes: `array` reads one in 10 ns, what all Pythons have in common in 35.
fn packed<'py>(given: &Bound<'py, PyAny>) -> Option<Bound<'py, PyBytes>> {
    static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if !given.is_exact_instance_of::<PyList>() {
        return None;
    }
    let array = ARRAY.import(given.py(), "array", "array").ok()?.call1(("Q", given)).ok()?;
    array.call_method0("tobytes").ok()?.cast_into::<PyBytes>().ok()
}

fn read_all<T>(given: &Bound<'_, PyAny>, what: &str, hash: fn(u64) -> T) -> PyResult<Vec<T>> {
    if is_array(given)? {
        return if is_signed(given, what)? {
            let array = neighbours::<i64>(given, "int64")?;
            Ok(array.as_slice()?.iter().map(|bits| hash(bits.cast_unsigned())).collect())
        } else {
            let array = neighbours::<u64>(given, "uint64")?;
            Ok(array.as_slice()?.iter().map(|&bits| hash(bits)).collect())
        };
    }
    if let Some(bytes) = packed(given) {
        return Ok(bytes
            .as_bytes()
            .as_chunks()
            .0
            .iter()
            .map(|bits| hash(u64::from_ne_bytes(*bits)))
            .collect());
    }
    list(given, what, |_, item| Ok(hash(read(item, what)?)))
}

/// Reads a list, tuple, numpy array or other sequence of block hashes, or those of a conversation.
pub(crate) fn blocks(given: &Bound<'_, PyAny>) -> PyResult<Vec<BlockHash>> {
    if let Ok(conversation) = given.cast::<PromptHasher>() {
        return Ok(conversation.get().block_hashes(given.py()));
    }
    read_all(given, "block_hashes", BlockHash)
}

/// The same of names.
pub(crate) fn names(given: &Bound<'_, PyAny>) -> PyResult<Vec<SequenceHash>> {
    read_all(given, "sequence_hashes", SequenceHash)
}

/// Block hashes in any form as integers of 0 to 2^64 - 1.
#[pyfunction]
pub(crate) fn hash_list(block_hashes: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    Ok(blocks(block_hashes)?.into_iter().map(|hash| hash.0).collect())
}

//! A prompt's tokens as Python has them: a numpy array of `uint32` is read where it is, anything else is copied.

use kvtide_events::Hashing;
use numpy::{Element, PyArrayDescrMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::{
    exceptions::PyOverflowError,
    prelude::*,
    sync::PyOnceLock,
    types::{PyByteArray, PyBytes, PyDict, PyList, PyMapping, PyString, PyTuple, PyType},
};

use crate::error::{Fault, Kind};

/// The tokens of one prompt.
pub(crate) enum Tokens<'py> {
    Shared(PyReadonlyArray1<'py, u32>),
    Owned(Vec<u32>),
}

impl<'py> Tokens<'py> {
    /// Reads integers of 0 to 2^32 - 1: a list, a tuple, a numpy array of any integer type, or anything else with a length that
    /// can be iterated.
    pub(crate) fn read(given: &Bound<'py, PyAny>) -> PyResult<Tokens<'py>> {
        if is_array(given)? {
            return Tokens::of_array(given);
        }
        let tokens = list(given, "token_ids", |place, item| {
            item.extract::<u32>().map_err(|error| not_a_token(place, item, &error).into())
        });
        Ok(Tokens::Owned(tokens?))
    }

    fn of_array(given: &Bound<'py, PyAny>) -> PyResult<Tokens<'py>> {
        if let Some(array) = as_it_lies(given) {
            return Ok(Tokens::Shared(array));
        }
        is_signed(given, "token_ids")?;
        if given.len()? > 0 {
            let (least, most) = (given.call_method0("min")?, given.call_method0("max")?);
            if least.lt(0)? || most.gt(u32::MAX)? {
                let expected = format!("integers of 0 to {}", u32::MAX);
                return Err(Fault::invalid("token_ids", "integers beyond these", expected).into());
            }
        }
        Ok(Tokens::Shared(neighbours(given, "uint32")?))
    }

    pub(crate) fn as_slice(&self) -> PyResult<&[u32]> {
        match self {
            Tokens::Shared(array) => array.as_slice().map_err(|_| {
                Fault::invalid("token_ids", "an array with gaps", "one whose elements are neighbours").into()
            }),
            Tokens::Owned(tokens) => Ok(tokens),
        }
    }

    /// Takes what tokens have to be for blocks of these: all of them complete.
    pub(crate) fn windows(&self, hashing: Hashing, blocks: usize) -> PyResult<Vec<u32>> {
        let (tokens, expected) = (self.as_slice()?, hashing.tokens(blocks));
        if tokens.len() != expected {
            let (got, expected) = (tokens.len(), format!("{expected} for {blocks} blocks"));
            return Err(Fault::invalid("token_ids", format!("{got} tokens"), expected).into());
        }
        Ok(hashing.windows(tokens).flatten().copied().collect())
    }
}

fn not_a_token(place: usize, item: &Bound<'_, PyAny>, error: &PyErr) -> Fault {
    if error.is_instance_of::<PyOverflowError>(item.py()) {
        let got = format!("another integer at index {place}");
        Fault::invalid("token_ids", got, "integers of 0 to 4294967295")
    } else {
        Fault::wrong_type(format!("token_ids, index {place}"), item, "an integer")
    }
}

/// Whether this is a numpy array. Where nobody has imported numpy nothing is, and it need not be installed.
pub(crate) fn is_array(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = given.py();
    if given.is_exact_instance_of::<PyList>() {
        return Ok(false);
    }
    if ARRAY.get(py).is_none() {
        let modules = py.import("sys")?.getattr("modules")?;
        let Some(numpy) = modules.cast::<PyDict>()?.get_item("numpy")? else { return Ok(false) };
        let Ok(array) = numpy.getattr("ndarray") else { return Ok(false) };
        ARRAY.get_or_init(py, || {
            array.cast_into::<PyType>().map_or_else(|_| py.get_type::<PyType>().unbind(), Bound::unbind)
        });
    }
    ARRAY.get(py).map_or(Ok(false), |array| given.is_instance(array.bind(py)))
}

/// Whether an array's integers have signs. It must be of integers, and of one dimension.
pub(crate) fn is_signed(given: &Bound<'_, PyAny>, what: &str) -> PyResult<bool> {
    let array = given.cast::<PyUntypedArray>()?;
    if array.ndim() != 1 {
        let got = format!("an array of {} dimensions", array.ndim());
        return Err(Fault::invalid(what, got, "an array of one dimension").into());
    }
    match array.dtype().kind() {
        b'i' => Ok(true),
        b'u' => Ok(false),
        _ => {
            let got = format!("an array of {}", array.dtype().str()?);
            Err(Fault::new(Kind::WrongType, what, got, "an array of integers").into())
        }
    }
}

/// An array of that type whose elements are next to each other already.
fn as_it_lies<'py, T: Element>(given: &Bound<'py, PyAny>) -> Option<PyReadonlyArray1<'py, T>> {
    given.extract::<PyReadonlyArray1<'py, T>>().ok().filter(|array| array.as_slice().is_ok())
}

/// The array with its elements next to each other, as that type: copied if it has to be.
pub(crate) fn neighbours<'py, T: Element>(
    given: &Bound<'py, PyAny>,
    dtype: &str,
) -> PyResult<PyReadonlyArray1<'py, T>> {
    if let Some(array) = as_it_lies(given) {
        return Ok(array);
    }
    let numpy = given.py().import("numpy")?;
    let array = numpy.getattr("require")?.call1((given, dtype, ("C_CONTIGUOUS", "ALIGNED")))?;
    array.extract::<PyReadonlyArray1<'py, T>>()
}

/// More items are no list that anybody means: what has a length need not have it in memory.
const MOST: usize = 1 << 28;
/// Room for so many items is made beforehand.
const ROOM: usize = 1 << 16;

/// Each item, read with its index.
pub(crate) fn list<'py, T>(
    given: &Bound<'py, PyAny>,
    what: &str,
    mut read: impl FnMut(usize, &Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let mut items = Vec::with_capacity(length(given, what)?.min(ROOM));
    if let Ok(list) = given.cast_exact::<PyList>() {
        for (place, item) in list.iter().enumerate() {
            items.push(read(place, &item)?);
        }
    } else if let Ok(tuple) = given.cast_exact::<PyTuple>() {
        for (place, item) in tuple.iter_borrowed().enumerate() {
            items.push(read(place, &item)?);
        }
    } else {
        for (place, item) in given.try_iter()?.enumerate() {
            items.push(read(place, &item?)?);
        }
    }
    Ok(items)
}

/// How many items there are. Text, bytes and mappings are no lists of numbers.
fn length(given: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    // Whether something is a mapping takes 0.5 us to find out.
    if given.is_exact_instance_of::<PyList>() || given.is_exact_instance_of::<PyTuple>() {
        return given.len();
    }
    let is_none = given.is_instance_of::<PyString>()
        || given.is_instance_of::<PyBytes>()
        || given.is_instance_of::<PyByteArray>()
        || given.cast::<PyMapping>().is_ok();
    match given.len() {
        Ok(length) if !is_none && length > MOST => {
            let (got, expected) = (format!("{length} items"), format!("at most {MOST}"));
            Err(Fault::new(Kind::TooLarge, what, got, expected).into())
        }
        Ok(length) if !is_none => Ok(length),
        Ok(_) | Err(_) => {
            Err(Fault::wrong_type(what, given, "a list, a tuple, an array or another sequence").into())
        }
    }
}

/// Tokens as the service takes them: four bytes each, little-endian.
#[pyo3::pyfunction]
pub(crate) fn token_bytes<'py>(token_ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let tokens = Tokens::read(token_ids)?;
    let bytes: Vec<u8> = tokens.as_slice()?.iter().flat_map(|token| token.to_le_bytes()).collect();
    Ok(PyBytes::new(token_ids.py(), &bytes))
}

//! Reads MessagePack from a slice without building a tree of values and without trusting any length in it.
//!
//! Every array and map element takes at least one byte of input, so a declared length beyond what is left is an
//! error at once and never an allocation.

use rmp::Marker;

use crate::{DecodeError, error::Problem};

/// Nesting beyond this is refused when a value is skipped. Real frames need 8.
const DEPTH_LIMIT: u32 = 64;

/// A position in a MessagePack buffer.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
}

/// One value's head: scalars are read whole, of arrays and maps only the length.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Value<'a> {
    Nil,
    Bool,
    /// Any integer, as its 64-bit pattern.
    Int(u64),
    Float(f64),
    Str(&'a str),
    /// A string that is not UTF-8: some producers put bytes there.
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
    Ext,
}

impl Value<'_> {
    fn kind(self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Bool => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Str(_) => "a string",
            Value::Bytes(_) => "bytes",
            Value::Array(_) => "an array",
            Value::Map(_) => "a map",
            Value::Ext => "an extension",
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes, length: bytes.len() }
    }

    fn error(&self, problem: Problem) -> DecodeError {
        DecodeError::new(self.length - self.rest.len(), problem)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let Some((head, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.error(Problem::Truncated { needed: count, left: self.rest.len() }));
        };
        self.rest = rest;
        Ok(head)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn length(&mut self, bytes: usize) -> Result<usize, DecodeError> {
        let number = self.take(bytes)?;
        Ok(number.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)))
    }

    /// A length of elements that take at least `least` bytes each.
    fn count(&self, count: usize, least: usize) -> Result<usize, DecodeError> {
        if count.saturating_mul(least) > self.rest.len() {
            return Err(self.error(Problem::Truncated { needed: count, left: self.rest.len() }));
        }
        Ok(count)
    }

    fn text(&mut self, count: usize) -> Result<Value<'a>, DecodeError> {
        let bytes = self.take(count)?;
        Ok(std::str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Str))
    }

    /// Reads the next value, or the head of the next array or map.
    pub(crate) fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        let value = match Marker::from_u8(self.take(1)?[0]) {
            Marker::Null => Value::Nil,
            Marker::True | Marker::False => Value::Bool,
            Marker::FixPos(number) => Value::Int(u64::from(number)),
            Marker::FixNeg(number) => Value::Int(i64::from(number).cast_unsigned()),
            Marker::U8 => Value::Int(u64::from(u8::from_be_bytes(self.number()?))),
            Marker::U16 => Value::Int(u64::from(u16::from_be_bytes(self.number()?))),
            Marker::U32 => Value::Int(u64::from(u32::from_be_bytes(self.number()?))),
            Marker::U64 => Value::Int(u64::from_be_bytes(self.number()?)),
            Marker::I8 => Value::Int(i64::from(i8::from_be_bytes(self.number()?)).cast_unsigned()),
            Marker::I16 => Value::Int(i64::from(i16::from_be_bytes(self.number()?)).cast_unsigned()),
            Marker::I32 => Value::Int(i64::from(i32::from_be_bytes(self.number()?)).cast_unsigned()),
            Marker::I64 => Value::Int(u64::from_be_bytes(self.number()?)),
            Marker::F32 => Value::Float(f64::from(f32::from_be_bytes(self.number()?))),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.number()?)),
            Marker::FixStr(count) => self.text(usize::from(count))?,
            Marker::Str8 => self.length(1).and_then(|count| self.text(count))?,
            Marker::Str16 => self.length(2).and_then(|count| self.text(count))?,
            Marker::Str32 => self.length(4).and_then(|count| self.text(count))?,
            Marker::Bin8 => Value::Bytes(self.length(1).and_then(|count| self.take(count))?),
            Marker::Bin16 => Value::Bytes(self.length(2).and_then(|count| self.take(count))?),
            Marker::Bin32 => Value::Bytes(self.length(4).and_then(|count| self.take(count))?),
            Marker::FixArray(count) => Value::Array(self.count(usize::from(count), 1)?),
            Marker::Array16 => Value::Array(self.length(2).and_then(|count| self.count(count, 1))?),
            Marker::Array32 => Value::Array(self.length(4).and_then(|count| self.count(count, 1))?),
            Marker::FixMap(count) => Value::Map(self.count(usize::from(count), 2)?),
            Marker::Map16 => Value::Map(self.length(2).and_then(|count| self.count(count, 2))?),
            Marker::Map32 => Value::Map(self.length(4).and_then(|count| self.count(count, 2))?),
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => self.length(1).and_then(|count| self.extension(count))?,
            Marker::Ext16 => self.length(2).and_then(|count| self.extension(count))?,
            Marker::Ext32 => self.length(4).and_then(|count| self.extension(count))?,
            Marker::Reserved => return Err(self.error(Problem::Reserved)),
        };
        Ok(value)
    }

    fn extension(&mut self, count: usize) -> Result<Value<'a>, DecodeError> {
        self.take(1)?;
        self.take(count)?;
        Ok(Value::Ext)
    }

    /// Reads past the next value, whatever it is.
    pub(crate) fn skip(&mut self) -> Result<(), DecodeError> {
        // How many values are still to be read at each level that is open.
        let mut open = [0_usize; DEPTH_LIMIT as usize];
        let mut depth = 0;
        loop {
            let inside = match self.value()? {
                Value::Array(count) => count,
                Value::Map(count) => count * 2,
                _scalar => 0,
            };
            if inside > 0 {
                let Some(level) = open.get_mut(depth) else {
                    return Err(self.error(Problem::TooDeep { limit: DEPTH_LIMIT }));
                };
                *level = inside;
                depth += 1;
            }
            loop {
                let Some(level) = depth.checked_sub(1).map(|last| &mut open[last]) else { return Ok(()) };
                if *level > 0 {
                    *level -= 1;
                    break;
                }
                depth -= 1;
            }
        }
    }

    fn expected<T>(&self, expected: &'static str, got: Value<'_>) -> Result<T, DecodeError> {
        Err(self.error(Problem::Unexpected { expected, got: got.kind() }))
    }

    /// The number of elements of the array that comes next.
    pub(crate) fn array(&mut self, expected: &'static str) -> Result<usize, DecodeError> {
        match self.value()? {
            Value::Array(count) => Ok(count),
            other => self.expected(expected, other),
        }
    }

    /// The number of entries of the map that comes next.
    pub(crate) fn map(&mut self, expected: &'static str) -> Result<usize, DecodeError> {
        match self.value()? {
            Value::Map(count) => Ok(count),
            other => self.expected(expected, other),
        }
    }

    /// The number of elements of an array, or none for nil.
    pub(crate) fn optional_array(&mut self, expected: &'static str) -> Result<Option<usize>, DecodeError> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Array(count) => Ok(Some(count)),
            other => self.expected(expected, other),
        }
    }

    /// A string.
    pub(crate) fn string(&mut self, expected: &'static str) -> Result<&'a str, DecodeError> {
        match self.value()? {
            Value::Str(text) => Ok(text),
            other => self.expected(expected, other),
        }
    }

    /// A string, or none for nil.
    pub(crate) fn optional_string(&mut self, expected: &'static str) -> Result<Option<&'a str>, DecodeError> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Str(text) => Ok(Some(text)),
            other => self.expected(expected, other),
        }
    }

    /// A byte string.
    pub(crate) fn bytes(&mut self, expected: &'static str) -> Result<&'a [u8], DecodeError> {
        match self.value()? {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Str(text) => Ok(text.as_bytes()),
            other => self.expected(expected, other),
        }
    }

    /// An integer, negative ones as their 64-bit pattern.
    pub(crate) fn integer(&mut self, expected: &'static str) -> Result<u64, DecodeError> {
        match self.value()? {
            Value::Int(number) => Ok(number),
            other => self.expected(expected, other),
        }
    }

    /// An integer, or none for nil.
    pub(crate) fn optional_integer(&mut self, expected: &'static str) -> Result<Option<u64>, DecodeError> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Int(number) => Ok(Some(number)),
            other => self.expected(expected, other),
        }
    }

    /// A number of seconds, whole or not.
    pub(crate) fn seconds(&mut self, expected: &'static str) -> Result<f64, DecodeError> {
        match self.value()? {
            Value::Float(number) => Ok(number),
            // A clock before 1970 or beyond 2^53 seconds says nothing: precision does not matter here.
            #[expect(clippy::cast_precision_loss, reason = "a timestamp in seconds, far below 2^53")]
            Value::Int(number) => Ok(number as f64),
            other => self.expected(expected, other),
        }
    }

    /// A hash: an integer by its bit pattern, or the last 8 bytes of a byte string, big-endian.
    pub(crate) fn optional_hash(&mut self, expected: &'static str) -> Result<Option<u64>, DecodeError> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Int(number) => Ok(Some(number)),
            Value::Bytes(bytes) => match bytes.last_chunk::<8>() {
                Some(tail) => Ok(Some(u64::from_be_bytes(*tail))),
                None => Err(self.error(Problem::ShortHash { bytes: bytes.len() })),
            },
            // 32 bytes that happen to be UTF-8.
            Value::Str(text) if text.len() >= 8 => {
                Ok(text.as_bytes().last_chunk::<8>().map(|tail| u64::from_be_bytes(*tail)))
            }
            other => self.expected(expected, other),
        }
    }

    /// A hash that must be there.
    pub(crate) fn hash(&mut self, expected: &'static str) -> Result<u64, DecodeError> {
        match self.optional_hash(expected)? {
            Some(hash) => Ok(hash),
            None => self.expected(expected, Value::Nil),
        }
    }

    /// An error at this position.
    pub(crate) fn refuse<T>(&self, problem: Problem) -> Result<T, DecodeError> {
        Err(self.error(problem))
    }
}

//! Lists of a msgpack document.

use super::{Hash, Lists, places};

/// The document with empty lists, and the lists. None where it is no map, or has names of another type.
pub(in crate::service) fn cut(document: &[u8]) -> Option<(Vec<u8>, Lists)> {
    let mut cut = Cut { short: Vec::new(), lists: Lists::default(), rest: document };
    cut.request(true)?;
    cut.rest.is_empty().then_some((cut.short, cut.lists))
}

struct Cut<'a> {
    short: Vec<u8>,
    lists: Lists,
    rest: &'a [u8],
}

impl<'a> Cut<'a> {
    /// A map, which may have others in its `queries`.
    fn request(&mut self, outer: bool) -> Option<()> {
        let fields = self.keep(length(self.rest, 0x80, 0xde)?);
        for _field in 0..fields {
            let (name, behind) = string(self.rest)?;
            self.keep(((), behind));
            match name {
                b"token_ids" => {
                    let list = self.list(token, places::read)?;
                    self.lists.token_ids.push_back(list);
                }
                b"block_hashes" => {
                    let list = self.list(hash, |bytes, count| (Vec::with_capacity(count), bytes))?;
                    self.lists.block_hashes.push_back(list);
                }
                b"queries" if outer => {
                    for _query in 0..self.keep(length(self.rest, 0x90, 0xdc)?) {
                        self.request(false)?;
                    }
                }
                _ => self.keep(((), skip(self.rest)?)),
            }
        }
        Some(())
    }

    /// Keeps what was read.
    fn keep<T>(&mut self, (value, behind): (T, &'a [u8])) -> T {
        self.short.extend_from_slice(&self.rest[..self.rest.len() - behind.len()]);
        self.rest = behind;
        value
    }

    /// A list, in whose place an empty one is kept. `many` reads as many of its first numbers as it can, and `number` each of
    /// the others.
    fn list<T>(
        &mut self,
        number: impl Fn(&[u8]) -> Option<(T, &[u8])>,
        many: impl Fn(&'a [u8], usize) -> (Vec<T>, &'a [u8]),
    ) -> Option<Vec<T>> {
        let (count, rest) = length(self.rest, 0x90, 0xdc)?;
        // Each takes a byte at least.
        if count > rest.len() {
            return None;
        }
        let (mut numbers, mut rest) = many(rest, count);
        while numbers.len() < count {
            let (value, behind) = number(rest)?;
            numbers.push(value);
            rest = behind;
        }
        self.short.push(0x90);
        self.rest = rest;
        Some(numbers)
    }
}

/// How much an array or a map has, by its marker: 15 at most in `small`'s low bits, or 16 bits behind `large`, or 32 bits
/// behind the marker after it.
fn length(bytes: &[u8], small: u8, large: u8) -> Option<(usize, &[u8])> {
    let (&marker, rest) = bytes.split_first()?;
    if marker & 0xf0 == small {
        return Some((usize::from(marker & 0x0f), rest));
    }
    match marker.checked_sub(large)? {
        0 => {
            let (count, rest) = rest.split_first_chunk()?;
            Some((usize::from(u16::from_be_bytes(*count)), rest))
        }
        1 => {
            let (count, rest) = rest.split_first_chunk()?;
            Some((usize::try_from(u32::from_be_bytes(*count)).ok()?, rest))
        }
        _ => None,
    }
}

/// A string of up to 255 bytes.
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    match bytes {
        [marker @ 0xa0..=0xbf, rest @ ..] => rest.split_at_checked(usize::from(marker & 0x1f)),
        [0xd9, length, rest @ ..] => rest.split_at_checked(usize::from(*length)),
        _ => None,
    }
}

/// A token in any form.
fn token(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (value, rest) = integer(bytes)?;
    Some((value.try_into().ok()?, rest))
}

/// A number, a negative one by its bit pattern, or hexadecimal digits.
fn hash(bytes: &[u8]) -> Option<(Hash, &[u8])> {
    if let Some((text, rest)) = string(bytes) {
        return Some((Hash::from_hex(str::from_utf8(text).ok()?)?, rest));
    }
    let (value, rest) = integer(bytes)?;
    let positive = u64::try_from(value).ok();
    Some((Hash(positive.or_else(|| Some(i64::try_from(value).ok()?.cast_unsigned()))?), rest))
}

/// An integer of any of the forms that there are.
fn integer(bytes: &[u8]) -> Option<(i128, &[u8])> {
    fn of<const N: usize>(rest: &[u8], signed: bool) -> Option<(i128, &[u8])> {
        let (bytes, rest) = rest.split_first_chunk::<N>()?;
        let value = bytes.iter().fold(0_i128, |value, &byte| value << 8 | i128::from(byte));
        let is_negative = signed && bytes[0] >= 0x80;
        Some((if is_negative { value - (1 << (8 * N)) } else { value }, rest))
    }
    let (&marker, rest) = bytes.split_first()?;
    match marker {
        0x00..=0x7f => Some((marker.into(), rest)),
        0xe0..=0xff => Some((i128::from(marker) - 0x100, rest)),
        0xcc => of::<1>(rest, false),
        0xcd => of::<2>(rest, false),
        0xce => of::<4>(rest, false),
        0xcf => of::<8>(rest, false),
        0xd0 => of::<1>(rest, true),
        0xd1 => of::<2>(rest, true),
        0xd2 => of::<4>(rest, true),
        0xd3 => of::<8>(rest, true),
        0x80..=0xcb | 0xd4..=0xdf => None,
    }
}

/// What comes behind a value. None for values that no request has.
fn skip(bytes: &[u8]) -> Option<&[u8]> {
    let (mut rest, mut values) = (bytes, 1_usize);
    while values > 0 {
        let marker = *rest.first()?;
        let inside;
        (inside, rest) = match marker {
            // Nothing, false and true.
            0xc0 | 0xc2 | 0xc3 => (0, &rest[1..]),
            0x80..=0x8f | 0xde | 0xdf => {
                let (fields, rest) = length(rest, 0x80, 0xde)?;
                (fields.checked_mul(2)?, rest)
            }
            0x90..=0x9f | 0xdc | 0xdd => length(rest, 0x90, 0xdc)?,
            0xa0..=0xbf | 0xd9 => (0, string(rest)?.1),
            _ => (0, integer(rest)?.1),
        };
        values = (values - 1).checked_add(inside)?;
    }
    Some(rest)
}

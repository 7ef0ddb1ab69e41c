//! Lists of a JSON document.

use std::collections::VecDeque;

use memchr::memchr;

use super::{Hash, Lists};

/// A hash in hexadecimal digits, behind `0x`.
const LONGEST_HASH: usize = 18;

/// The document with empty lists, and the lists.
pub(in crate::service) fn cut(document: &[u8]) -> Option<(Vec<u8>, Lists)> {
    let (mut short, mut lists) = (Vec::new(), Lists::default());
    let (mut kept, mut at) = (0, 0);
    while let Some(found) = memchr(b'[', &document[at..]) {
        let opening = at + found;
        at = opening + 1;
        let inside = &document[at..];
        let rest = match name_before(&document[..opening]) {
            Some(b"token_ids") => read(inside, token, &mut lists.token_ids)?,
            Some(b"block_hashes") => read(inside, hash, &mut lists.block_hashes)?,
            Some(_) | None => continue,
        };
        short.extend_from_slice(&document[kept..at]);
        at = document.len() - rest.len();
        kept = at;
    }
    short.extend_from_slice(&document[kept..]);
    Some((short, lists))
}

/// The name whose value begins behind `text`. A quote behind a backslash is amid a string, and ends no name.
fn name_before(text: &[u8]) -> Option<&[u8]> {
    let name = text.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end().strip_suffix(b"\"")?;
    let start =
        name.len() - name.iter().rev().take_while(|byte| byte.is_ascii_lowercase() || **byte == b'_').count();
    let quoted = name[..start].strip_suffix(b"\"")?;
    (quoted.last() != Some(&b'\\')).then_some(&name[start..])
}

/// Reads a list whose bracket has been opened. Returns what comes from its closing bracket on.
fn read<'a, T>(
    inside: &'a [u8],
    number: fn(&'a [u8]) -> Option<(T, &'a [u8])>,
    lists: &mut VecDeque<Vec<T>>,
) -> Option<&'a [u8]> {
    // Numbers take four bytes and more, mostly; else the list grows.
    let mut numbers = Vec::with_capacity(memchr(b']', inside)? / 4);
    let mut rest = trim(inside);
    if rest.first() != Some(&b']') {
        loop {
            let (value, behind) = number(rest)?;
            numbers.push(value);
            match trim(behind) {
                [b',', next @ ..] => rest = trim(next),
                end => {
                    rest = end;
                    break;
                }
            }
        }
    }
    lists.push_back(numbers);
    rest.starts_with(b"]").then_some(rest)
}

/// What comes behind JSON's white space.
#[inline(always)]
fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\n' | b'\t' | b'\r', next @ ..] = text {
        text = next;
    }
    text
}

#[inline(always)]
fn token(text: &[u8]) -> Option<(u32, &[u8])> {
    let (value, rest) = digits(text)?;
    Some((value.try_into().ok()?, rest))
}

/// A number, a negative one by its bit pattern, or hexadecimal digits.
fn hash(text: &[u8]) -> Option<(Hash, &[u8])> {
    match text {
        [b'"', text @ ..] => {
            let end = memchr(b'"', &text[..text.len().min(LONGEST_HASH + 1)])?;
            let hash = Hash::from_hex(str::from_utf8(&text[..end]).ok()?)?;
            Some((hash, &text[end + 1..]))
        }
        [b'-', text @ ..] => {
            let (value, rest) = digits(text)?;
            // Minus nothing is no integer in JSON.
            let value = 0_i64.checked_sub_unsigned(value).filter(|&value| value != 0)?;
            Some((Hash(value.cast_unsigned()), rest))
        }
        text => digits(text).map(|(value, rest)| (Hash(value), rest)),
    }
}

/// A number in decimal, eight digits at a time.
#[inline(always)]
fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    const POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    let (mut value, mut rest, mut all) = (0_u64, text, 0);
    loop {
        let word = match rest.first_chunk() {
            Some(word) => *word,
            None => std::array::from_fn(|index| rest.get(index).copied().unwrap_or(0)),
        };
        // Each byte that is a digit becomes its value; the high bit marks those that are none, from the first one on.
        let word = u64::from_le_bytes(word) ^ 0x3030_3030_3030_3030;
        let others = (word.wrapping_add(0x7676_7676_7676_7676) | word) & 0x8080_8080_8080_8080;
        let count = others.trailing_zeros() / 8;
        if count > 0 {
            let index = count as usize;
            value = value.checked_mul(POWERS[index])?.checked_add(eight(word << (64 - 8 * count)))?;
            (rest, all) = (&rest[index..], all + index);
        }
        if count < 8 {
            // JSON has no zeros in front.
            return (all == 1 || all > 1 && text[0] != b'0').then_some((value, rest));
        }
    }
}

/// The number of eight digits by their values, the first one lowest. In pairs, then in fours, then all.
#[inline(always)]
fn eight(digits: u64) -> u64 {
    const FOURS: u64 = 0x0000_00ff_0000_00ff;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let first = (pairs & FOURS).wrapping_mul(0x000f_4240_0000_0064);
    let second = (pairs >> 16 & FOURS).wrapping_mul(0x0000_2710_0000_0001);
    first.wrapping_add(second) >> 32
}

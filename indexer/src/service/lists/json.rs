//! Lists of a JSON document.

use std::collections::VecDeque;

use memchr::memchr;

#[cfg(target_arch = "x86_64")]
use super::hashes::read as read_at_once;
use super::{Hash, Lists};

/// A hash in hexadecimal digits, behind `0x`.
const LONGEST_HASH: usize = 18;
/// The digits of a number of 64 bits.
const LONGEST_NUMBER: usize = 20;

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
            Some(b"block_hashes") => {
                let closing = at + memchr(b']', inside)?;
                match read_at_once(document, at, closing) {
                    Some(hashes) => {
                        lists.block_hashes.push_back(hashes);
                        &document[closing..]
                    }
                    None => read(inside, hash, &mut lists.block_hashes)?,
                }
            }
            Some(_) | None => continue,
        };
        short.extend_from_slice(&document[kept..at]);
        at = document.len() - rest.len();
        kept = at;
    }
    short.extend_from_slice(&document[kept..]);
    Some((short, lists))
}

/// No other processors have what it takes.
#[cfg(not(target_arch = "x86_64"))]
fn read_at_once(_document: &[u8], _from: usize, _to: usize) -> Option<Vec<Hash>> {
    None
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
    number: impl Fn(&'a [u8]) -> Option<(T, &'a [u8])>,
    lists: &mut VecDeque<Vec<T>>,
) -> Option<&'a [u8]> {
    // Numbers take four bytes and more, mostly; else the list grows.
    let mut numbers = Vec::with_capacity(memchr(b']', inside)? / 4);
    let rest = read_all(inside, number, &mut numbers)?;
    lists.push_back(numbers);
    Some(rest)
}

/// Reads a list number by number.
#[inline(always)]
pub(super) fn read_all<'a, T>(
    inside: &'a [u8],
    number: impl Fn(&'a [u8]) -> Option<(T, &'a [u8])>,
    numbers: &mut Vec<T>,
) -> Option<&'a [u8]> {
    let mut rest = trim(inside);
    if rest.first() != Some(&b']') {
        loop {
            let (value, behind) = number(rest)?;
            numbers.push(value);
            rest = trim(behind);
            let [b',', next @ ..] = rest else { break };
            rest = trim(next);
        }
    }
    rest.starts_with(b"]").then_some(rest)
}

/// What comes behind JSON's white space.
#[inline(always)]
pub(super) fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\n' | b'\t' | b'\r', next @ ..] = text {
        text = next;
    }
    text
}

/// A token, of which few have more than seven digits.
#[inline(always)]
fn token(text: &[u8]) -> Option<(u32, &[u8])> {
    let (values, count) = digit_values(first_bytes(text));
    let (value, rest) = match count {
        1..8 if count == 1 || values & 0xff != 0 => (number(values, count), &text[count as usize..]),
        _ => decimal(text)?,
    };
    Some((value.try_into().ok()?, rest))
}

/// A number, a negative one by its bit pattern, or hexadecimal digits. Half of the numbers have a sign, as it comes: whatever
/// branches on that is wrong half of the time.
#[inline(always)]
pub(super) fn hash(text: &[u8]) -> Option<(Hash, &[u8])> {
    if let [b'"', text @ ..] = text {
        let end = memchr(b'"', &text[..text.len().min(LONGEST_HASH + 1)])?;
        let hash = Hash::from_hex(str::from_utf8(&text[..end]).ok()?)?;
        return Some((hash, &text[end + 1..]));
    }
    let sign = u64::from(*text.first()? == b'-');
    let (value, rest) = decimal(&text[sign as usize..])?;
    let (hash, too_small) = signed(value, sign);
    (!too_small).then_some((hash, rest))
}

/// The bit pattern of a number with or without (0) a sign (1), and whether it is less than any of 64 bits. Minus nothing is no
/// integer in JSON, and is too small here.
#[inline(always)]
pub(super) fn signed(value: u64, sign: u64) -> (Hash, bool) {
    let too_small = value.wrapping_sub(sign) > u64::MAX >> sign;
    (Hash((value ^ sign.wrapping_neg()).wrapping_add(sign)), too_small)
}

/// A number in decimal.
#[inline(always)]
fn decimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let (value, digits) = digits(&first_bytes(text))?;
    // JSON has no zeros in front.
    (digits == 1 || digits > 1 && text[0] != b'0').then(|| (value, &text[digits..]))
}

/// The number that the first digits make, eight at a time, and how many they are: 20 at most, or it is too large.
#[inline(always)]
fn digits(text: &[u8; LONGEST_NUMBER + 4]) -> Option<(u64, usize)> {
    const POWERS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
    let (mut value, mut digits) = (0_u64, 0);
    for word in text.as_chunks().0 {
        let (values, count) = digit_values(*word);
        // Branches, so that the next number's place does not wait for the digits of this one.
        match count {
            8 if digits == 16 => return None,
            8 => value = value * 100_000_000 + number(values, 8),
            0 => return Some((value, digits)),
            _ => {
                let power = POWERS[count as usize];
                let ahead = if digits < 16 { value * power } else { value.checked_mul(power)? };
                return Some((ahead.checked_add(number(values, count))?, digits + count as usize));
            }
        }
        digits += 8;
    }
    None
}

/// The first bytes of a text, with nothing that is a digit behind its end.
#[inline(always)]
fn first_bytes<const N: usize>(text: &[u8]) -> [u8; N] {
    match text.first_chunk() {
        Some(bytes) => *bytes,
        None => std::array::from_fn(|index| text.get(index).copied().unwrap_or(0)),
    }
}

/// How many of eight bytes are digits in a row, and their values, the first one lowest. The values of what comes behind them
/// mean nothing.
#[inline(always)]
fn digit_values(word: [u8; 8]) -> (u64, u32) {
    let values = u64::from_le_bytes(word) ^ 0x3030_3030_3030_3030;
    // The high bit marks the first byte that is no digit, if there is one.
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    (values, others.trailing_zeros() / 8)
}

/// The number of 1 to 8 digits: in pairs, then in fours, then all.
#[inline(always)]
fn number(values: u64, count: u32) -> u64 {
    const FOURS: u64 = 0x0000_00ff_0000_00ff;
    let digits = values << (64 - 8 * count);
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let first = (pairs & FOURS).wrapping_mul(0x000f_4240_0000_0064);
    let second = (pairs >> 16 & FOURS).wrapping_mul(0x0000_2710_0000_0001);
    first.wrapping_add(second) >> 32
}

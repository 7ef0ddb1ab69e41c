//! Tokens of msgpack, read at several places of a list at once. The place of each waits for the width of the one before it, and
//! several that wait beside each other take no longer than one.
//!
//! Where a token begins amid a list nobody can tell, but whoever reads a few in a row from any byte on has mostly come upon the
//! list's own. Whether that was so shows when the part in front of it has been read: it ends there, or what was read behind
//! it counts for nothing.

/// Places that are read at once.
const PLACES: usize = 4;
/// Tokens that are read at each of them before it is seen how far that was.
const STEP: usize = 48;
/// Bytes that a step may reach over, wherever an offset of one byte points to.
const STEP_BYTES: usize = 255 + WORD;
const WORD: usize = 8;
/// Tokens that are read from any byte on before they are taken for the list's own.
const RUN_UP: usize = 32;

/// Bytes that a token takes, by its marker: none where it is not one of the usual forms.
const WIDTHS: [u8; 256] = {
    let mut widths = [0; 256];
    let mut small = 0;
    while small < 0x80 {
        widths[small] = 1;
        small += 1;
    }
    [widths[0xcc], widths[0xcd], widths[0xce]] = [2, 3, 5];
    widths
};

/// The bits of a token that takes so many bytes.
const MASKS: [u32; 8] = [0, 0x7f, 0xff, 0xffff, 0, u32::MAX, 0, 0];

/// Where one place stands, where the next one began, and what was read in between.
struct Place {
    at: usize,
    end: usize,
    tokens: Vec<u32>,
}

/// The first tokens of a list of `count`, and what comes behind them. Those in forms that are not usual, and the last few bytes,
/// are left.
pub(super) fn read(bytes: &[u8], count: usize) -> (Vec<u32>, &[u8]) {
    let Some(mut places) = begin(bytes, count) else { return (Vec::with_capacity(count), bytes) };
    while step(bytes, &mut places) {}
    let [mut first, others @ ..] = places;
    first.finish(bytes);
    for mut other in others {
        let (began, room) = (first.end, count.saturating_sub(first.tokens.len()));
        other.finish(bytes);
        if first.at != began || other.tokens.len() > room {
            break;
        }
        first.tokens.append(&mut other.tokens);
        (first.at, first.end) = (other.at, other.end);
    }
    (first.tokens, &bytes[first.at..])
}

/// Places whose parts are of about the same length. None where that is too short.
fn begin(bytes: &[u8], count: usize) -> Option<[Place; PLACES]> {
    let part = bytes.len() / PLACES;
    if part < STEP_BYTES {
        return None;
    }
    let mut starts = [0; PLACES + 1];
    for (place, start) in (1..PLACES).zip(&mut starts[1..]) {
        *start = run_up(bytes, place * part)?;
    }
    starts[PLACES] = bytes.len();
    Some(std::array::from_fn(|place| {
        let room = if place == 0 { count } else { count / PLACES };
        Place { at: starts[place], end: starts[place + 1], tokens: Vec::with_capacity(room) }
    }))
}

/// Where a token seems to begin, a few behind `from`.
fn run_up(bytes: &[u8], from: usize) -> Option<usize> {
    let run = |from: usize| {
        (0..RUN_UP).try_fold(from, |at, _| match WIDTHS[usize::from(*bytes.get(at)?)] {
            0 => None,
            width => Some(at + usize::from(width)),
        })
    };
    (from..from + 5).find_map(run)
}

/// Reads a step at each place. Whether it did: it does not where one is near its end, or comes upon something else. That has no
/// width, so that the last width shows it.
#[expect(clippy::needless_range_loop, reason = "the places' lists stand beside each other")]
fn step(bytes: &[u8], places: &mut [Place; PLACES]) -> bool {
    let mut windows = [&[0; STEP_BYTES]; PLACES];
    for (window, place) in windows.iter_mut().zip(&*places) {
        let Some(bytes) = bytes[place.at..place.end].first_chunk() else { return false };
        *window = bytes;
    }
    let mut tokens = [[0; STEP]; PLACES];
    let (mut offsets, mut widths) = ([0_u8; PLACES], [0_u8; PLACES]);
    for number in 0..STEP {
        for place in 0..PLACES {
            let offset = usize::from(offsets[place]);
            let word = std::array::from_fn(|byte| windows[place][offset + byte]);
            (tokens[place][number], widths[place]) = token(word);
            offsets[place] = offsets[place].wrapping_add(widths[place]);
        }
    }
    if widths.contains(&0) {
        return false;
    }
    for ((place, tokens), offset) in places.iter_mut().zip(&tokens).zip(offsets) {
        place.tokens.extend_from_slice(tokens);
        place.at += usize::from(offset);
    }
    true
}

/// A token at the start of a word, and the bytes that it takes.
#[inline(always)]
fn token(word: [u8; WORD]) -> (u32, u8) {
    let width = WIDTHS[usize::from(word[0])];
    let behind = 64_u32.wrapping_sub(8 * u32::from(width)) % 64;
    let value = u64::from_be_bytes(word) >> behind & u64::from(MASKS[usize::from(width % 8)]);
    (value as u32, width)
}

impl Place {
    /// Reads up to where the next place began, one by one.
    fn finish(&mut self, bytes: &[u8]) {
        while self.at < self.end
            && let Some(word) = bytes[self.at..].first_chunk()
            && let (value, width @ 1..) = token(*word)
        {
            self.tokens.push(value);
            self.at += usize::from(width);
        }
    }
}

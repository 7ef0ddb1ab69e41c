//! A prompt being followed: block hashes taken from their source as they are needed.

use std::hint::black_box;

use crate::{BlockHash, contents::Contents, fold::Keys, pages::Place};

/// Hashes in a cache line.
const LINE: usize = 64 / size_of::<BlockHash>();

/// Cache lines that are fetched at once.
const LINES: usize = 8;

/// The rest of a prompt.
pub(crate) struct Prompt<I: Iterator> {
    /// The hashes that were taken last, and how many of them have been followed.
    group: Option<I::Item>,
    followed: usize,
    source: I,
    keys: &'static Keys,
}

impl<I: Iterator<Item: AsRef<[BlockHash]>>> Prompt<I> {
    pub(crate) fn new(source: I) -> Self {
        Prompt { group: None, followed: 0, source, keys: Keys::get() }
    }

    /// The hashes that have been taken and not followed: at least one, unless the prompt ends.
    fn rest(&mut self) -> &[BlockHash] {
        while self.group.as_ref().is_none_or(|group| group.as_ref().len() == self.followed) {
            self.group = self.source.next();
            self.followed = 0;
            match &self.group {
                Some(group) => fetch(group.as_ref()),
                None => return &[],
            }
        }
        self.group.as_ref().map_or(&[], |group| &group.as_ref()[self.followed..])
    }

    /// The next hash, if the prompt goes on.
    pub(crate) fn peek(&mut self) -> Option<BlockHash> {
        self.rest().first().copied()
    }

    /// Follows the contents of so many blocks at consecutive places as far as the prompt is equal. Returns how many that
    /// is.
    pub(crate) fn follow(&mut self, contents: &Contents, place: Place, count: u32) -> u32 {
        let keys = self.keys;
        let mut done = 0;
        while done < count {
            let rest = self.rest();
            let here = rest.len().min((count - done) as usize);
            let equal = contents.equal_start(place.ahead(done), &rest[..here], keys);
            self.followed += equal;
            done += equal as u32;
            if equal < here || here == 0 {
                break;
            }
        }
        done
    }
}

/// Reads a hash of each of the first cache lines. They come from memory together, while the first is waited for, instead
/// of one after the other as the walk finds out that it needs them.
fn fetch(group: &[BlockHash]) {
    black_box(group.iter().step_by(LINE).take(LINES).fold(0, |all, hash| all ^ hash.0));
}

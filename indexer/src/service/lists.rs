//! Long lists of numbers in a body, read by themselves: a prompt is a hundred thousand of them.
//!
//! They are cut out of the document, which is short then and goes the usual way. Where one of them is of any other form than
//! numbers in a row the document stays whole, so that whatever is wrong is told as ever.

#[cfg(target_arch = "x86_64")]
mod hashes;
pub(super) mod json;
pub(super) mod msgpack;
mod places;

use std::collections::VecDeque;

use super::body::Hash;

/// Lists, in the order of the document.
#[derive(Default, PartialEq, Debug)]
pub(super) struct Lists {
    token_ids: VecDeque<Vec<u32>>,
    block_hashes: VecDeque<Vec<Hash>>,
}

impl Lists {
    /// Puts the next lists where there are empty ones. None where there is another, or none is left.
    pub(super) fn put_back(
        &mut self,
        token_ids: &mut Option<Vec<u32>>,
        block_hashes: &mut Option<Vec<Hash>>,
    ) -> Option<()> {
        fn put<T>(list: &mut Option<Vec<T>>, lists: &mut VecDeque<Vec<T>>) -> Option<()> {
            if let Some(list) = list {
                if !list.is_empty() {
                    return None;
                }
                *list = lists.pop_front()?;
            }
            Some(())
        }
        put(token_ids, &mut self.token_ids)?;
        put(block_hashes, &mut self.block_hashes)
    }
}

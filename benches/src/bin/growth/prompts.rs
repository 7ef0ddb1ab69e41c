//! Prompts without an end, none of which is kept: each can be made again from its number.
//!
//! Prompts come in groups of four. A group shares a system prompt with many others, and a document of its own; behind
//! these each prompt has a part that is its own. So they have 32 to 2,048 blocks.

use std::ops::Range;

use kvtide_benches::{block, mix};
use kvtide_radix::Block;

pub(crate) const RANKS: usize = 64;
const SYSTEM_PROMPTS: u64 = 64;
const GROUP: u64 = 4;
/// Blocks that a prompt can have, by which a block's number is told from all others.
const LONGEST: u64 = 2048;

/// A prompt by its number.
#[derive(Clone, Copy)]
pub(crate) struct Prompt {
    number: u64,
    /// Where the system prompt, the document and the whole end.
    ends: [u64; 3],
}

impl Prompt {
    pub(crate) fn new(number: u64) -> Prompt {
        let group = number / GROUP;
        let system = 16 + 4 * system_of(group);
        let document = system + within(mix(3 * group), 8..896);
        let own = document + within(mix(3 * number + 1), 8..880);
        Prompt { number, ends: [system, document, own] }
    }

    /// The rank that serves it.
    pub(crate) fn rank(&self) -> usize {
        (mix(3 * self.number + 2) % RANKS as u64) as usize
    }

    /// Blocks that it has.
    pub(crate) fn len(&self) -> usize {
        self.ends[2] as usize
    }

    pub(crate) fn system(&self) -> usize {
        system_of(self.number / GROUP) as usize
    }

    /// Where what the rank lacks begins. It has the group's document if it served one of the group before.
    pub(crate) fn lacks_from(&self, has_system: bool) -> usize {
        let first = self.number / GROUP * GROUP;
        let [system, document, _] = self.ends;
        if (first..self.number).any(|other| Prompt::new(other).rank() == self.rank()) {
            document as usize
        } else if has_system {
            system as usize
        } else {
            0
        }
    }

    /// Some of its blocks.
    pub(crate) fn blocks(self, part: Range<usize>) -> impl Iterator<Item = Block> {
        part.map(move |at| self.block(at as u64))
    }

    fn block(self, at: u64) -> Block {
        let [system, document, _] = self.ends;
        let group = self.number / GROUP;
        // Whose block it is: 64 system prompts, then groups and prompts by turns.
        let owner = if at < system {
            system_of(group)
        } else if at < document {
            SYSTEM_PROMPTS + 2 * group
        } else {
            SYSTEM_PROMPTS + 2 * self.number + 1
        };
        block(owner * LONGEST + at)
    }
}

fn system_of(group: u64) -> u64 {
    mix(group.wrapping_add(0x5157_454D)) % SYSTEM_PROMPTS
}

fn within(mixed: u64, range: Range<u64>) -> u64 {
    range.start + mixed % (range.end - range.start)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn prompts_share_no_more_than_their_group_or_system_prompt_does() {
        for number in 0..400 {
            let (one, next) = (Prompt::new(number), Prompt::new(number + 1));
            assert!((32..=2048).contains(&one.len()), "{}", one.len());
            let shared = one.blocks(0..one.len()).zip(next.blocks(0..next.len()));
            let shared = shared.take_while(|(one, next)| one == next).count() as u64;
            let same_group = number / GROUP == (number + 1) / GROUP;
            let same_system = one.system() == next.system();
            let expected = if same_group { one.ends[1] } else { u64::from(same_system) * one.ends[0] };
            assert_eq!(shared, expected, "prompt {number}");
            let names: HashSet<_> = one.blocks(0..one.len()).map(|block| block.name).collect();
            assert_eq!(names.len(), one.len(), "prompt {number}");
        }
    }
}

//! Gives out numbers, the lowest free one first, so that whatever is kept by number stays short.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Which numbers are free.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// All from this one on.
    next: u32,
    /// And these below it.
    free: BinaryHeap<Reverse<u32>>,
    given: u32,
}

impl Numbers {
    pub(crate) fn give(&mut self) -> u32 {
        self.given += 1;
        match self.free.pop() {
            Some(Reverse(number)) => number,
            None => {
                self.next += 1;
                self.next - 1
            }
        }
    }

    pub(crate) fn take_back(&mut self, number: u32) {
        self.given -= 1;
        if self.given == 0 {
            *self = Numbers::default();
        } else {
            self.free.push(Reverse(number));
        }
    }
}

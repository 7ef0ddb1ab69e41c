//! A set of small numbers that lists each of them once.

/// The numbers, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marked {
    list: Vec<u32>,
    /// One bit each.
    marks: Vec<u64>,
}

impl Marked {
    fn position(number: u32) -> (usize, u64) {
        (number as usize / 64, 1 << (number % 64))
    }

    pub(crate) fn insert(&mut self, number: u32) {
        let (word, bit) = Self::position(number);
        if word >= self.marks.len() {
            self.marks.resize(word + 1, 0);
        }
        if self.marks[word] & bit == 0 {
            self.marks[word] |= bit;
            self.list.push(number);
        }
    }

    /// Takes out the number that came last.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let number = self.list.pop()?;
        let (word, bit) = Self::position(number);
        self.marks[word] &= !bit;
        if self.list.is_empty() && self.list.capacity() > KEPT {
            *self = Marked::default();
        }
        Some(number)
    }

    pub(crate) fn extend(&mut self, others: &Marked) {
        others.list.iter().for_each(|&number| self.insert(number));
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}

/// Room for so many numbers is kept when they have gone.
const KEPT: usize = 1024;

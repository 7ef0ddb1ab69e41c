//! Whether a stream's numbers continue: next, repeated, or with a gap.

/// The last number of one stream that was taken, and where the next one stands to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    last: Option<u64>,
}

/// How a number stands to the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The first number seen in this life.
    First,
    /// The one that was due.
    Next,
    /// At or below the last one: a repeat, or a late frame.
    Repeat,
    /// Ahead of the one that was due.
    Gap {
        /// How many numbers were left out.
        missing: u64,
    },
}

impl Cursor {
    /// One that has taken numbers up to `last`, or none.
    #[must_use]
    pub fn at(last: Option<u64>) -> Cursor {
        Cursor { last }
    }

    /// The last number taken.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// How `number` stands to what was taken so far. Takes nothing.
    #[must_use]
    pub fn step(&self, number: u64) -> Step {
        match self.last {
            None => Step::First,
            Some(last) if number <= last => Step::Repeat,
            Some(last) if number == last + 1 => Step::Next,
            Some(last) => Step::Gap { missing: number - last - 1 },
        }
    }

    /// Takes `number` unless it is a repeat, and says how it stood.
    pub fn take(&mut self, number: u64) -> Step {
        let step = self.step(number);
        if step != Step::Repeat {
            self.last = Some(number);
        }
        step
    }
}

//! When others are asked for what is missing here: a few at once, and again after a while, which grows and is never the same.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use rand::{RngExt, seq::SliceRandom};
use tokio::{
    task::{Id, JoinSet},
    time::Instant,
};

use crate::snapshot::Wanted;

/// Between one look at what is missing and the next.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// So many parts are asked for at once.
const ASKING: usize = 16;
/// Before the others are asked again for a part: at first, and at most.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// When each part that is missing is asked for.
#[derive(Default)]
pub(super) struct Turns {
    turns: HashMap<Wanted, Turn>,
    /// Those that are asked for now, and by which task: an answer may take longer than the wait before the next.
    asked: HashMap<Id, Wanted>,
}

/// When a part is asked for next, and how long to wait after that.
struct Turn {
    when: Instant,
    backoff: Duration,
}

impl Turns {
    /// The parts to ask for now, of those that are missing. `answers` are the tasks that ask.
    pub(super) fn due(&mut self, wanted: Vec<Wanted>, answers: &mut JoinSet<()>) -> Vec<Wanted> {
        while let Some(ended) = answers.try_join_next_with_id() {
            self.asked.remove(&ended.map_or_else(|failed| failed.id(), |(id, ())| id));
        }
        let missing: HashSet<&Wanted> = wanted.iter().collect();
        self.turns.retain(|one, _| missing.contains(one));
        let (now, asked): (_, HashSet<&Wanted>) = (Instant::now(), self.asked.values().collect());
        let has_turn = |one: &Wanted| self.turns.get(one).is_none_or(|turn| turn.when <= now);
        let mut due: Vec<Wanted> =
            wanted.into_iter().filter(|one| has_turn(one) && !asked.contains(one)).collect();
        // None of many waits for ever.
        due.shuffle(&mut rand::rng());
        due.truncate(ASKING.saturating_sub(asked.len()));
        for one in &due {
            let turn = self.turns.entry(one.clone()).or_insert(Turn { when: now, backoff: BACKOFF[0] });
            // Those that miss the same must not all ask at once.
            turn.when = now + turn.backoff.mul_f64(rand::rng().random_range(0.75..1.25));
            turn.backoff = (2 * turn.backoff).min(BACKOFF[1]);
        }
        due
    }

    /// A part is asked for by a task.
    pub(super) fn ask(&mut self, one: Wanted, task: Id) {
        self.asked.insert(task, one);
    }
}

//! The truth: what each rank holds after each of its messages, as its own caches have it, and answers held against it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use kvtide::{Answer, KnowledgeState, RankAnswer, ReachTokens};
use kvtide_radix::SequenceHash;
use rustc_hash::FxHashMap;

use super::{plan::number_of, publisher::Delta, sight::Sight};
use crate::cli::cache::TIERS;

/// So many wrong answers are described.
const DESCRIBED: usize = 5;

/// What a rank's message does.
pub(super) struct Note {
    pub(super) rank: usize,
    pub(super) life: u64,
    pub(super) position: u64,
    pub(super) deltas: Box<[Delta]>,
}

/// How answers compare with the truth.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Verdict {
    /// Answers about one rank that were compared.
    pub(super) compared: u64,
    /// Those that credit more, in some tier, than was held.
    pub(super) over: u64,
    /// Those that credit less in some tier, and more in none.
    pub(super) under: u64,
    /// Of these, answers of ranks that are said to be known wholly.
    pub(super) under_complete: u64,
    /// The first wrong ones, in words.
    pub(super) wrong: Vec<String>,
    /// All checked questions in the order in which they were answered.
    runs: Vec<Run>,
}

/// Questions one after another whose answers were right about all ranks, or were not.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    right: bool,
    /// When the first and the last of them were answered.
    first: Instant,
    last: Instant,
}

impl Verdict {
    /// Notes whether an answer was right about all ranks.
    fn note(&mut self, when: Instant, right: bool) {
        match self.runs.last_mut() {
            Some(run) if run.right == right => run.last = when,
            Some(_) | None => self.runs.push(Run { right, first: when, last: when }),
        }
    }

    /// How long after a time answers were right again and stayed so until another: no time where they were all along. None where
    /// they did not, or nobody has asked since.
    pub(super) fn exact_again(&self, from: Instant, until: Option<Instant>) -> Option<Duration> {
        let within = |run: &&Run| run.last >= from && until.is_none_or(|until| run.first < until);
        let last = self.runs.iter().rposition(|run| within(&run))?;
        let Run { right, first, .. } = self.runs[last];
        // Nothing was wrong before the first run.
        let again = if last == 0 { Duration::ZERO } else { first.saturating_duration_since(from) };
        right.then_some(again)
    }
}

/// What ranks hold, each at the last of its messages that an answer has named.
pub(super) struct Reference {
    dp_ranks: u32,
    block_size: u32,
    ranks: Vec<Held>,
    pub(super) verdict: Verdict,
}

#[derive(Default)]
struct Held {
    /// Messages that no answer has named yet.
    ahead: VecDeque<Note>,
    life: u64,
    position: u64,
    /// The tiers in which each block is held, a bit each.
    blocks: FxHashMap<SequenceHash, u8>,
    /// Whether anything has been noted of it: not every rank is checked.
    checked: bool,
}

impl Reference {
    pub(super) fn new(ranks: usize, dp_ranks: u32, block_size: u32) -> Reference {
        let ranks = (0..ranks).map(|_| Held::default()).collect();
        Reference { dp_ranks, block_size, ranks, verdict: Verdict::default() }
    }

    /// Notes what a message does, before anybody can have seen it.
    pub(super) fn note(&mut self, note: Note) {
        let held = &mut self.ranks[note.rank];
        held.checked = true;
        held.ahead.push_back(note);
    }

    /// Holds an answer against the truth. Answers come in the order in which they were asked for.
    pub(super) fn check(&mut self, when: Instant, answer: &Answer, prompt: &[SequenceHash]) {
        let wrong = self.verdict.over + self.verdict.under;
        for one in &answer.ranks {
            let Some(number) = number_of(one.rank(), self.dp_ranks, self.ranks.len()) else { continue };
            if !self.ranks[number].checked {
                continue;
            }
            // Of a rank of which nothing is known nothing is credited.
            let Some(reach) = one.reach_tokens else { continue };
            let freshness = one.freshness.as_ref();
            let said = freshness.map(|fresh| (fresh.generation, fresh.last_event_id));
            let truth = match said {
                // Its life has begun, but nothing of it is visible yet.
                Some((_, None)) | None => [0; 3],
                Some((life, Some(position))) => self.reach(number, (life, position), prompt),
            };
            self.compare(one, reach, truth);
        }
        self.verdict.note(when, self.verdict.over + self.verdict.under == wrong);
    }

    /// Leading tokens of a prompt that a rank holds on the GPU, there or in host memory, and there or on disk, after a message. It
    /// is not one before another that was asked for already.
    pub(super) fn reach(&mut self, number: usize, sight: Sight, prompt: &[SequenceHash]) -> [u32; 3] {
        let held = &mut self.ranks[number];
        held.advance(sight);
        held.reach(prompt).map(|blocks| blocks * self.block_size)
    }

    fn compare(&mut self, one: &RankAnswer, reach: ReachTokens, truth: [u32; 3]) {
        let ReachTokens { gpu, host, disk, external } = reach;
        // Nobody has a shared store: what reaches furthest is the disk.
        let pairs = [(gpu, truth[0]), (host, truth[1]), (disk, truth[2]), (external, truth[2])];
        let verdict = &mut self.verdict;
        verdict.compared += 1;
        let over = pairs.iter().any(|(got, held)| got > held);
        let under = !over && pairs.iter().any(|(got, held)| got < held);
        verdict.over += u64::from(over);
        verdict.under += u64::from(under);
        verdict.under_complete += u64::from(under && one.knowledge == KnowledgeState::Complete);
        if (over || under) && verdict.wrong.len() < DESCRIBED {
            let (worker, dp_rank, knowledge) = (one.worker_id, one.dp_rank, one.knowledge.name());
            let (life, at) =
                one.freshness.as_ref().map_or((0, None), |fresh| (fresh.generation, fresh.last_event_id));
            let at = at.unwrap_or(0);
            verdict.wrong.push(format!(
                "rank {worker}/{dp_rank}, {knowledge} at {at} of life {life}: expected {truth:?} tokens on gpu, host and disk, got \
                 [{gpu}, {host}, {disk}]"
            ));
        }
    }
}

impl Held {
    /// Applies messages up to one of them, and it.
    fn advance(&mut self, upto: Sight) {
        while let Some(note) = self.ahead.pop_front_if(|note| (note.life, note.position) <= upto) {
            if note.life != self.life {
                self.blocks.clear();
                self.life = note.life;
            }
            self.position = note.position;
            for delta in &note.deltas {
                self.apply(delta);
            }
        }
    }

    fn apply(&mut self, Delta { tier, stored, names }: &Delta) {
        let bit = 1 << tier;
        for &name in names {
            if *stored {
                *self.blocks.entry(name).or_insert(0) |= bit;
            } else if let Some(tiers) = self.blocks.get_mut(&name) {
                *tiers &= !bit;
                if *tiers == 0 {
                    self.blocks.remove(&name);
                }
            }
        }
    }

    /// Leading blocks that are held in a tier or a faster one, for each tier.
    fn reach(&self, prompt: &[SequenceHash]) -> [u32; 3] {
        let mut reach = [0; 3];
        let mut going = (1_u8 << TIERS.len()) - 1;
        for name in prompt {
            let tiers = self.blocks.get(name).copied().unwrap_or(0);
            for (tier, blocks) in reach.iter_mut().enumerate() {
                let upto = (2_u8 << tier) - 1;
                if tiers & upto == 0 {
                    going &= !(1 << tier);
                }
                *blocks += u32::from(going >> tier & 1);
            }
            if going == 0 {
                break;
            }
        }
        reach
    }
}

#[cfg(test)]
mod tests {
    use kvtide::{AnswerScope, Freshness, Prompt, Scope};

    use super::*;

    const PROMPT: [SequenceHash; 4] = [SequenceHash(1), SequenceHash(2), SequenceHash(3), SequenceHash(4)];

    fn note(position: u64, tier: usize, stored: bool, names: &[SequenceHash]) -> Note {
        let delta = Delta { tier, stored, names: names.into() };
        Note { rank: 0, life: 1, position, deltas: [delta].into() }
    }

    /// What kvtide says of the only rank: tokens by tier, at an event of a life.
    fn answer(
        knowledge: KnowledgeState,
        (life, event): (u64, Option<u64>),
        [gpu, host, disk]: [u32; 3],
    ) -> Answer {
        let freshness = Freshness {
            generation: life,
            last_event_id: event,
            last_event_age_ms: None,
            lag_ms: None,
            lag_over_best_ms: None,
            pending_events: 0,
            missing_events: 0,
            verified_age_ms: None,
        };
        let one = RankAnswer {
            worker_id: 1,
            dp_rank: 0,
            reach_tokens: Some(ReachTokens { gpu, host, disk, external: disk }),
            knowledge,
            reason: None,
            freshness: Some(freshness),
        };
        let scope = AnswerScope { fixed: Scope::new("m", 16), adapter: None, tenant: None };
        let prompt = Prompt { tokens: 64, blocks: 4 };
        Answer { scope, prompt, collected_at_ms: 0, took_us: 0, version: 1, ranks: vec![one] }
    }

    #[test]
    fn an_answer_is_compared_with_what_was_held_at_the_event_that_it_names() {
        use KnowledgeState::{Complete, Partial};
        let rows = [
            ("nothing is visible yet", Complete, (1, None), [0, 0, 0], [0, 0, 0]),
            ("credit before anything is visible", Complete, (1, None), [16, 16, 16], [1, 0, 0]),
            ("as it was at event 1", Complete, (1, Some(1)), [48, 48, 48], [0, 0, 0]),
            ("what a later event adds, too early", Complete, (1, Some(1)), [48, 64, 64], [1, 0, 0]),
            ("as it is at event 2", Complete, (1, Some(2)), [48, 64, 64], [0, 0, 0]),
            ("what event 3 removes, still credited", Complete, (1, Some(3)), [48, 64, 64], [1, 0, 0]),
            ("as it is at event 3", Complete, (1, Some(3)), [16, 16, 16], [0, 0, 0]),
            ("too little, and known wholly", Complete, (1, Some(3)), [0, 0, 0], [0, 1, 1]),
            ("a lower bound", Partial, (1, Some(3)), [0, 16, 16], [0, 1, 0]),
            ("another life", Complete, (2, Some(9)), [16, 16, 16], [1, 0, 0]),
        ];
        for (case, knowledge, sight, got, [over, under, under_complete]) in rows {
            let mut reference = Reference::new(1, 1, 16);
            reference.note(note(1, 0, true, &PROMPT[..3]));
            reference.note(note(2, 1, true, &PROMPT[3..]));
            reference.note(note(3, 0, false, &PROMPT[1..2]));
            let next_life = Delta { tier: 0, stored: true, names: PROMPT[1..].into() };
            reference.note(Note { rank: 0, life: 2, position: 1, deltas: [next_life].into() });
            reference.check(Instant::now(), &answer(knowledge, sight, got), &PROMPT);
            let Verdict { compared, over: o, under: u, under_complete: c, wrong, .. } = reference.verdict;
            assert_eq!((compared, [o, u, c]), (1, [over, under, under_complete]), "{case}");
            assert_eq!(wrong.len() as u64, over + under, "{case}");
        }
    }

    /// When an answer came, in milliseconds, and whether it was right.
    type Said = (u64, bool);

    #[test]
    fn answers_are_exact_again_once_none_is_wrong_any_more() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let answers = |all: &[Said]| {
            let mut verdict = Verdict::default();
            all.iter().for_each(|&(ms, right)| verdict.note(at(ms), right));
            verdict
        };
        let rows: [(&[Said], Option<u64>); 13] = [
            (&[], None),
            (&[(5, true)], None),
            (&[(30, true)], Some(0)),
            (&[(30, false)], None),
            // As far as anybody has asked.
            (&[(5, true), (200, true)], Some(0)),
            (&[(5, true), (30, true)], Some(0)),
            (&[(5, false), (30, true)], Some(20)),
            (&[(5, false), (30, false)], None),
            (&[(30, false), (200, true)], None),
            (&[(20, false), (30, true), (40, true)], Some(20)),
            (&[(20, false), (30, true), (40, false), (60, true)], Some(50)),
            (&[(20, true), (40, false)], None),
            // What is wrong after the next fault is that one's.
            (&[(20, false), (30, true), (90, true), (100, false)], Some(20)),
        ];
        for (all, expected) in rows {
            let again = answers(all).exact_again(at(10), Some(at(100)));
            assert_eq!(again, expected.map(Duration::from_millis), "{all:?}");
        }
    }
}

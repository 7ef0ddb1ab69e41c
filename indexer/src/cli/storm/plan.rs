//! What happens in a scenario, in the order of its time: messages that publishers send, and questions that routers ask.
//!
//! The plan is made before it is played: a fleet with caches, requests that come and are served, answers that grow. Its time is
//! the scenario's; who plays it says how fast that goes.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use kvtide::{PromptContent, Query, ScopeQuery, serving::Failure};
use kvtide_radix::{Rank, SequenceHash};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    message::Message,
    prompts::{Conversations, Owner, write_tokens},
    publisher::{Delta, Publisher},
    scenario::{Arrivals, FaultKind, PromptSource, Scenario},
    trace::{ID_TOKENS, Request, Times, mooncake},
};
use crate::cli::cache::Change;

/// The model that the fleet serves.
pub(super) const MODEL: &str = "storm";
/// The first worker's id.
pub(super) const FIRST_WORKER: u64 = 1;
/// Ranks whose answers are held against the truth: all, or so many.
const CHECKED_RANKS: usize = 256;

/// A message that is sent at its time.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) at: Duration,
    /// It is from before the clock starts.
    pub(super) warm: bool,
    /// The rank's number in the fleet.
    pub(super) rank: usize,
    /// The life of its publisher, from 1.
    pub(super) life: u64,
    /// Its number in that life, from 0.
    pub(super) sequence: u64,
    /// What an answer calls the rank's last event once it is visible.
    pub(super) position: u64,
    pub(super) events: u64,
    pub(super) blocks: u64,
    pub(super) message: Message,
    /// What it does, of a rank whose answers are held against the truth.
    pub(super) deltas: Option<Box<[Delta]>>,
}

/// A question that is asked at its time.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) at: Duration,
    owner: Arc<Owner>,
    /// The prompt: 8 bytes a block, where its tokens would take many times as much.
    texts: Box<[u64]>,
    block_size: u32,
    /// The prompt's blocks, where the answer is held against the truth.
    pub(super) names: Option<Box<[SequenceHash]>>,
}

impl Question {
    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Question>() + size_of_val(&*self.texts) + self.names.as_deref().map_or(0, size_of_val)
    }

    /// It as a router asks it, with the prompt's tokens.
    pub(super) fn query(&self) -> Query<'static> {
        let mut tokens = Vec::with_capacity(self.texts.len() * self.block_size as usize);
        self.texts.iter().for_each(|&text| write_tokens(text, self.block_size, &mut tokens));
        let Owner { adapter, tenant } = Owner::clone(&self.owner);
        let scope = ScopeQuery { model: Some(MODEL.into()), adapter, tenant, ..ScopeQuery::default() };
        Query { scope, prompt: PromptContent::Tokens(tokens.into()), ..Query::default() }
    }
}

/// One step of a plan.
#[derive(Debug)]
pub(super) enum Step {
    Frame(Frame),
    Question(Question),
}

/// What is going to happen. Of a conversation, with how many had its place before: it may have been given up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Arrive,
    Ask {
        chosen: usize,
        age: u64,
    },
    Serve {
        chosen: usize,
        age: u64,
        answer: u32,
    },
    /// So many tokens more of an answer are there, of which so many are left.
    Answer {
        chosen: usize,
        age: u64,
        tokens: u32,
        left: u32,
    },
    Flush {
        rank: usize,
    },
    /// A worker starts again.
    Restart {
        worker: u32,
    },
    /// The same, and after it the next.
    RollOn {
        worker: u32,
    },
    Wave,
}

/// A scenario that is played without an end.
pub(super) struct Plan {
    scenario: Scenario,
    random: StdRng,
    conversations: Conversations,
    trace: Vec<Request>,
    times: Option<Times>,
    publishers: Vec<Publisher>,
    agenda: BinaryHeap<Reverse<(Duration, u64, Action)>>,
    /// What was put on the agenda so far, so that of two for one time the first comes first.
    planned: u64,
    now: Duration,
    requests: usize,
    questions: u64,
    ready: VecDeque<Step>,
}

impl Plan {
    /// # Errors
    /// Where a trace, which is a part of the program, does not decode.
    pub(super) fn new(scenario: &Scenario) -> Result<Plan, Failure> {
        let mut random = StdRng::seed_from_u64(scenario.seed);
        let ranks = scenario.ranks();
        let conversations =
            Conversations::new(&scenario.prompts, scenario.fleet.block_size, ranks, &mut random);
        let is_traced = scenario.prompts.from == PromptSource::Mooncake;
        let trace =
            if is_traced || scenario.load.arrivals == Arrivals::Mooncake { mooncake()? } else { Vec::new() };
        let per_second = scenario.load.requests_per_second;
        let times = match scenario.load.arrivals {
            Arrivals::Poisson => None,
            Arrivals::Mooncake => Some(Times::mooncake(&trace, per_second)),
            Arrivals::Azure => Some(Times::azure(per_second)?),
        };
        let checked_every = ranks.div_ceil(CHECKED_RANKS);
        let publishers = (0..ranks).map(|number| {
            let rank = rank_of(number, scenario.fleet.dp_ranks);
            Publisher::new(rank, number, &scenario.fleet, number.is_multiple_of(checked_every))
        });
        let mut plan = Plan {
            publishers: publishers.collect(),
            scenario: scenario.clone(),
            random,
            conversations,
            trace,
            times,
            agenda: BinaryHeap::new(),
            planned: 0,
            now: Duration::ZERO,
            requests: 0,
            questions: 0,
            ready: VecDeque::new(),
        };
        plan.after(Duration::ZERO, Action::Arrive);
        if !plan.is_warm() {
            plan.start_clock();
        }
        Ok(plan)
    }

    /// What happens by the clock begins: before that nobody knows who was there yet.
    fn start_clock(&mut self) {
        if let Some(restarts) = self.scenario.restarts {
            self.after(Duration::from_secs_f64(restarts.every_s), Action::RollOn { worker: 0 });
        }
        if let Some(waves) = self.scenario.waves {
            self.after(Duration::from_secs_f64(waves.every_s), Action::Wave);
        }
        for fault in self.scenario.faults.clone() {
            if fault.kind == FaultKind::RestartWorkers {
                let at = Duration::from_secs_f64(fault.at_s);
                (0..fault.workers).for_each(|worker| self.after(at, Action::Restart { worker }));
            }
        }
    }

    fn after(&mut self, time: Duration, action: Action) {
        self.planned += 1;
        self.agenda.push(Reverse((self.now + time, self.planned, action)));
    }

    fn is_warm(&self) -> bool {
        self.requests < self.scenario.load.warm_requests
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Arrive => self.arrive(),
            Action::Ask { chosen, age } if self.is_same(chosen, age) => self.ask(chosen, None),
            Action::Serve { chosen, age, answer } if self.is_same(chosen, age) => self.serve(chosen, answer),
            Action::Answer { chosen, age, tokens, left } if self.is_same(chosen, age) => {
                self.answer(chosen, tokens, left);
            }
            Action::Ask { .. } | Action::Serve { .. } | Action::Answer { .. } => {}
            Action::Flush { rank } => self.flush(rank),
            Action::Restart { worker } => self.restart(worker),
            Action::RollOn { worker } => self.roll_on(worker),
            Action::Wave => self.wave(),
        }
    }

    fn is_same(&self, chosen: usize, age: u64) -> bool {
        self.conversations.open[chosen].age == age
    }

    fn arrive(&mut self) {
        let gap = match &mut self.times {
            Some(times) => times.gap(),
            None => {
                let part = 1.0 - self.random.random_range(0.0..1.0_f64);
                Duration::from_secs_f64(-part.ln() / self.scenario.load.requests_per_second)
            }
        };
        self.after(gap, Action::Arrive);
        match self.scenario.prompts.from {
            PromptSource::Conversations => {
                let chosen = self.conversations.choose(&mut self.random);
                self.conversations.ask(chosen, &mut self.random);
                self.ask(chosen, None);
            }
            PromptSource::Mooncake => {
                let (round, at) = (self.requests / self.trace.len(), self.requests % self.trace.len());
                let Request { input_length, output_length, hash_ids, .. } = &self.trace[at];
                let block_size = self.scenario.fleet.block_size;
                let per_id = u64::from(ID_TOKENS.div_ceil(block_size));
                let first = (round as u64) << 40;
                let texts = hash_ids.iter().flat_map(|&id| {
                    let start = first + u64::from(id) * per_id;
                    start..start + per_id
                });
                let blocks = (input_length / block_size) as usize;
                let (tokens, answer) = (*input_length, *output_length);
                let chosen = self.conversations.record(texts.take(blocks), tokens, &mut self.random);
                self.ask(chosen, Some(answer));
            }
        }
    }

    /// A request comes to the routers, which ask, and one of them sends it to a rank.
    fn ask(&mut self, chosen: usize, answer: Option<u32>) {
        let answer = answer.unwrap_or_else(|| self.conversations.answer_tokens(&mut self.random));
        let stays = self.random.random_bool(self.scenario.load.stay);
        let rank = self.random.random_range(0..self.publishers.len());
        let conversation = &mut self.conversations.open[chosen];
        conversation.busy = true;
        if !stays {
            conversation.rank = rank;
        }
        let age = conversation.age;
        if !self.is_warm() {
            for _ in 0..self.scenario.load.queries_per_request {
                let question = self.question(chosen);
                self.ready.push_back(Step::Question(question));
            }
        }
        self.requests += 1;
        if self.requests == self.scenario.load.warm_requests {
            self.start_clock();
        }
        let prefill = Duration::from_secs_f64(self.scenario.load.prefill_ms / 1000.0);
        self.after(prefill, Action::Serve { chosen, age, answer });
    }

    fn question(&mut self, chosen: usize) -> Question {
        let conversation = &self.conversations.open[chosen];
        let checked = self.questions.is_multiple_of(u64::from(self.scenario.load.queries_per_check));
        self.questions += 1;
        Question {
            at: self.now,
            owner: Arc::clone(&conversation.owner),
            texts: conversation.prompt.iter().map(|piece| piece.text).collect(),
            block_size: self.scenario.fleet.block_size,
            names: checked.then(|| conversation.prompt.iter().map(|piece| piece.name).collect()),
        }
    }

    fn serve(&mut self, chosen: usize, answer: u32) {
        let conversation = &self.conversations.open[chosen];
        let (rank, prompt) = (conversation.rank, conversation.prompt.as_slice());
        let publisher = &mut self.publishers[rank];
        let mut changes = Vec::new();
        publisher.caches.serve(prompt, &mut changes);
        if let Some(holes) = self.scenario.holes {
            publisher.make_holes(prompt, holes.stored_per_hole, &mut changes, &mut self.random);
        }
        let owner = Arc::clone(&conversation.owner);
        self.announce(rank, changes, &owner);
        self.answer(chosen, 0, answer);
    }

    /// An answer has grown by so many tokens, and may go on.
    fn answer(&mut self, chosen: usize, tokens: u32, left: u32) {
        if self.conversations.grow(chosen, tokens) {
            let conversation = &self.conversations.open[chosen];
            let (rank, owner) = (conversation.rank, Arc::clone(&conversation.owner));
            let mut changes = Vec::new();
            self.publishers[rank].caches.grow(&conversation.prompt, &mut changes);
            self.announce(rank, changes, &owner);
        }
        let age = self.conversations.open[chosen].age;
        if left > 0 {
            let tokens = self.conversations.to_next_block(chosen).min(left);
            let time = f64::from(tokens) / self.scenario.load.answer_tokens_per_second;
            let action = Action::Answer { chosen, age, tokens, left: left - tokens };
            return self.after(Duration::from_secs_f64(time), action);
        }
        let conversation = &mut self.conversations.open[chosen];
        self.publishers[conversation.rank].caches.free(&conversation.prompt);
        conversation.busy = conversation.calls_left > 0;
        if conversation.busy {
            let tool_ms = self.conversations.call_tool(chosen, &mut self.random);
            self.after(Duration::from_millis(u64::from(tool_ms)), Action::Ask { chosen, age });
        }
    }

    fn announce(&mut self, rank: usize, changes: Vec<Change>, owner: &Arc<Owner>) {
        let first = self.publishers[rank].announce(changes, owner);
        match self.scenario.fleet.batch_ms {
            _ if !first => {}
            0 => self.flush(rank),
            batch_ms => self.after(Duration::from_millis(u64::from(batch_ms)), Action::Flush { rank }),
        }
    }

    fn flush(&mut self, rank: usize) {
        let (now, warm) = (self.now, self.is_warm());
        let frames = self.publishers[rank].flush(now, warm, &self.scenario.fleet);
        self.ready.extend(frames.into_iter().map(Step::Frame));
    }

    /// A worker starts again, with all its ranks.
    fn restart(&mut self, worker: u32) {
        let dp_ranks = self.scenario.fleet.dp_ranks as usize;
        let first = worker as usize * dp_ranks;
        for publisher in &mut self.publishers[first..first + dp_ranks] {
            publisher.restart(&self.scenario.fleet);
        }
    }

    /// A rolling restart comes to a worker.
    fn roll_on(&mut self, worker: u32) {
        self.restart(worker);
        if let Some(restarts) = self.scenario.restarts {
            let worker = (worker + 1) % self.scenario.fleet.workers;
            self.after(Duration::from_secs_f64(restarts.every_s), Action::RollOn { worker });
        }
    }

    fn wave(&mut self) {
        let Some(waves) = self.scenario.waves else { return };
        self.after(Duration::from_secs_f64(waves.every_s), Action::Wave);
        let nobody = Arc::default();
        for rank in 0..self.publishers.len() {
            let mut changes = Vec::new();
            self.publishers[rank].caches.evict_part(waves.part, &mut changes);
            self.announce(rank, changes, &nobody);
        }
    }
}

/// Never ends.
impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return Some(step);
            }
            let Reverse((now, _, action)) = self.agenda.pop()?;
            self.now = now;
            self.act(action);
        }
    }
}

/// The rank of a number in the fleet.
pub(super) fn rank_of(number: usize, dp_ranks: u32) -> Rank {
    let number = number as u64;
    Rank {
        worker_id: FIRST_WORKER + number / u64::from(dp_ranks),
        dp_rank: (number % u64::from(dp_ranks)) as u32,
    }
}

/// The number of a rank in the fleet, if it is one of the fleet's.
pub(super) fn number_of(rank: Rank, dp_ranks: u32, ranks: usize) -> Option<usize> {
    let worker = rank.worker_id.checked_sub(FIRST_WORKER)?;
    let number = worker.checked_mul(u64::from(dp_ranks))? + u64::from(rank.dp_rank);
    usize::try_from(number).ok().filter(|&number| number < ranks && rank.dp_rank < dp_ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first messages of a scenario.
    fn frames(scenario: &Scenario, count: usize) -> impl Iterator<Item = Frame> {
        let frames = Plan::new(scenario).unwrap().filter_map(|step| match step {
            Step::Frame(frame) => Some(frame),
            Step::Question(_) => None,
        });
        frames.take(count)
    }

    #[test]
    fn nothing_starts_again_before_the_clock_does() {
        let mut scenario = Scenario::find("restarts").unwrap();
        (scenario.fleet.workers, scenario.load.warm_requests) = (4, 900);
        let (warm, timed): (Vec<_>, Vec<_>) = frames(&scenario, 20_000).partition(|frame| frame.warm);
        assert!(warm.len() > 1000, "{} warm messages", warm.len());
        assert!(warm.iter().all(|frame| frame.life == 1));
        assert!(timed.iter().any(|frame| frame.life > 1));
    }

    #[test]
    fn as_many_workers_start_again_as_a_fault_says_at_its_time_and_once() {
        let mut scenario = Scenario::find("faults").unwrap();
        (scenario.fleet.workers, scenario.fleet.dp_ranks, scenario.load.warm_requests) = (4, 2, 400);
        scenario.faults.retain(|fault| fault.kind == FaultKind::RestartWorkers);
        scenario.faults[0].at_s = 1.0;
        let timed: Vec<_> = frames(&scenario, 20_000).filter(|frame| !frame.warm).collect();
        let start = timed[0].at;
        for frame in &timed {
            let after = (frame.at - start).as_secs_f64();
            // The clock started a moment before the first message.
            let started_again = frame.rank < 4 && after > 1.0;
            assert!(frame.life == 1 + u64::from(started_again) || (0.9..=1.0).contains(&after), "{after}");
        }
        assert!((0..4).all(|rank| timed.iter().any(|frame| frame.rank == rank && frame.life == 2)));
    }
}

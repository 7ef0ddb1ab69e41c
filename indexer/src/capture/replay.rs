//! Plays a capture into a fresh index and asks it every question that the engine has answered.

use kvtide_radix::Rank;

use super::{Capture, Expectation};
use crate::{
    ApplyError, BindError, Clock, EngineStream, Format, Indexer, Limits, Message, PromptContent, Query,
    QueryError, Scope, ScopeQuery, Stream,
};

/// How the index answered, beside the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Questions: one for each prompt, worker and tier.
    pub questions: usize,
    /// Answers above the engine's, for the GPU and for GPU and host.
    pub over: [usize; 2],
    /// Answers below the engine's, for the GPU and for GPU and host.
    pub under: [usize; 2],
}

/// Why a capture cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A worker's stream cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A message cannot be applied.
    #[error("worker {worker}, message {sequence}: {error}")]
    Apply {
        /// The worker.
        worker: usize,
        /// The message.
        sequence: u64,
        /// Why.
        error: ApplyError,
    },
    /// A question has no answer.
    #[error(transparent)]
    Query(#[from] QueryError),
}

impl Verdict {
    /// Answers equal to the engine's.
    #[must_use]
    pub fn exact(&self) -> usize {
        self.questions - self.over.iter().sum::<usize>() - self.under.iter().sum::<usize>()
    }

    /// Whether no more answers are wrong than is allowed.
    #[must_use]
    pub fn is_within(&self, expected: &Expectation) -> bool {
        expected.over.covers(self.over[0], self.over[1])
            && expected.under.covers(self.under[0], self.under[1])
    }
}

/// Plays a capture into an index of its own. `progress` is called with the number of questions asked so far.
///
/// # Errors
/// [`ReplayError`] where a message or question is refused.
pub fn replay(
    capture: &Capture,
    expected: &Expectation,
    mut progress: impl FnMut(usize),
) -> Result<Verdict, ReplayError> {
    let indexer = Indexer::new(Limits::default(), Clock::default());
    let scope = Scope::new(&capture.name, capture.block_size);
    let workers = capture.workers.len();
    let streams = (0..workers).map(|worker| indexer.bind(stream(capture, expected, &scope, worker)));
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    let mut applied = vec![0; workers];
    let mut verdict = Verdict::default();
    for checkpoint in &capture.checkpoints {
        for (worker, &due) in checkpoint.applied.iter().enumerate() {
            let due = due.min(capture.workers[worker].len());
            for message in &capture.workers[worker][applied[worker].min(due)..due] {
                let sequence = message.sequence;
                let batch = Message::Batch { sequence: Some(sequence), payload: &message.payload };
                indexer.apply(&streams[worker], batch).map_err(|error| ReplayError::Apply {
                    worker,
                    sequence,
                    error,
                })?;
            }
            applied[worker] = due;
        }
        for question in &checkpoint.questions {
            let scope = ScopeQuery {
                adapter: question.adapter.clone(),
                tenant: question.tenant.clone(),
                ..ScopeQuery::default()
            };
            let prompt = PromptContent::Tokens(question.tokens.as_slice().into());
            let answer = indexer.overlap(&Query { scope, prompt, ..Query::default() });
            // Before the first message nobody is known, and nothing is held.
            let ranks = answer?.ranks;
            for worker in 0..workers {
                let found = ranks.iter().find(|answer| answer.rank() == rank(worker));
                let reach = found.and_then(|answer| answer.reach_tokens);
                let (gpu, host) = reach.map_or((0, 0), |reach| (reach.gpu, reach.host));
                verdict.note(0, gpu, question.gpu[worker]);
                if let Some(truth) = &question.host {
                    verdict.note(1, host, truth[worker]);
                }
            }
            progress(verdict.questions);
        }
    }
    Ok(verdict)
}

impl Verdict {
    fn note(&mut self, tier: usize, got: u32, truth: u32) {
        self.questions += 1;
        self.over[tier] += usize::from(got > truth);
        self.under[tier] += usize::from(got < truth);
    }
}

fn rank(worker: usize) -> Rank {
    Rank { worker_id: worker as u64, dp_rank: 0 }
}

fn stream(capture: &Capture, expected: &Expectation, scope: &Scope, worker: usize) -> Stream {
    let Rank { worker_id, dp_rank } = rank(worker);
    let engine = EngineStream {
        // A capture's workers are told apart by their files, whatever rank they claim.
        dp_rank: Some(dp_rank),
        copies: expected.stream.copies(),
        host_chunk_blocks: expected.stream.host_chunk_blocks,
        windows: expected.stream.windows().collect(),
        adapter_names: capture.adapter_ids.iter().map(|(name, &id)| (id, name.clone())).collect(),
        ..EngineStream::new(worker_id)
    };
    let stream = Stream::new(format!("w{worker}"), scope.clone(), Format::Engine(engine));
    Stream { eagle: capture.eagle, ..stream }
}

//! Workers that come before their first event, that go, and what their engines say.

use kvtide_radix::{Life, Rank, RankState, RanksFull};
use tracing::warn;

use super::{BindError, Indexer};
use crate::{FeedbackState, Observation, QueryError, Scope, ScopeQuery, telemetry};

/// Why a rank cannot be registered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterError {
    /// Its scope cannot be.
    #[error(transparent)]
    Scope(#[from] BindError),
    /// There is no room for another rank.
    #[error(transparent)]
    RanksFull(#[from] RanksFull),
}

impl Indexer {
    /// Makes ranks of a scope known from which nothing has come yet, and which nobody knows otherwise: an idle worker that
    /// was there before says nothing. They are `unknown` until something comes. Returns how many were new. A scope that is
    /// not known is created.
    ///
    /// # Errors
    /// [`RegisterError`], for the first rank that does not fit. Those before it are known then.
    pub fn register(&self, scope: &Scope, ranks: &[Rank]) -> Result<usize, RegisterError> {
        let stream = self.direct(scope)?;
        let mut mirror = stream.scope.mirror.lock();
        let mut new = 0;
        for &rank in ranks {
            new += usize::from(mirror.register(rank)?);
        }
        Ok(new)
    }

    /// Lets a worker go: all its ranks in all scopes, or that data-parallel rank, with everything that they hold. Returns
    /// how many ranks these were. What it publishes later makes it known again, in another generation.
    pub fn remove(&self, worker_id: u64, dp_rank: Option<u32>) -> usize {
        let scopes = self.scope_indexes();
        scopes.iter().map(|scope| scope.mirror.lock().remove(worker_id, dp_rank)).sum()
    }

    /// Whether anything has ever come from a rank that is known.
    pub(crate) fn is_fed(&self, scope: &Scope, rank: Rank) -> bool {
        let is_it = |state: RankState| state.rank == rank && state.watermark.life != Life(0);
        self.scope_index(scope).is_some_and(|index| index.reader.view().ranks().any(is_it))
    }

    /// Notes how many tokens of a request a rank was predicted to have, and how many its engine says that it had. A
    /// difference of a block is not counted: engines compute a prompt's last token anew.
    ///
    /// # Errors
    /// [`QueryError`] where no scope fits, or several do.
    pub fn observe(
        &self,
        scope: &ScopeQuery,
        rank: Rank,
        predicted_tokens: u32,
        cached_tokens: u32,
    ) -> Result<FeedbackState, QueryError> {
        let scope = self.find(scope)?;
        let tolerance_tokens = scope.scope.block_size;
        let observation = Observation { predicted_tokens, cached_tokens, tolerance_tokens };
        let known = scope.reader.view().ranks().find(|state| state.rank == rank);
        let life = known.map_or(Life(0), |state| state.watermark.life);
        let [before, after] = scope.feedback.note(rank, life, observation);
        telemetry::count_observation(&before, &after);
        if let (None, Some(drift)) = (before.drifting, after.drifting) {
            let Rank { worker_id, dp_rank } = rank;
            warn!(worker_id, dp_rank, ?drift, "predictions of a rank's cached tokens have gone wrong");
        }
        Ok(after)
    }
}

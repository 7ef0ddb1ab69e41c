//! What discovery says of Dynamo's publishers, and what their workers' own indexes tell.

use std::collections::BTreeSet;

use kvtide_radix::Rank;

use super::{BoundStream, Indexer};
use crate::{
    Announced, IndexAnswer, IndexRequest, Part,
    mirror::{Mirror, Refusal},
    snapshot::Wanted,
    telemetry,
};

/// Why a publisher cannot be announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AnnounceError {
    /// Another stream feeds its rank.
    #[error("another source feeds worker {}, data-parallel rank {}", .rank.worker_id, .rank.dp_rank)]
    OtherSource {
        /// The rank.
        rank: Rank,
    },
    /// As many ranks as may be are known.
    #[error("no room for another rank: worker {}, data-parallel rank {}", .rank.worker_id, .rank.dp_rank)]
    RanksFull {
        /// The rank.
        rank: Rank,
    },
}

impl AnnounceError {
    fn of(refusal: Refusal, rank: Rank) -> AnnounceError {
        match refusal {
            Refusal::OtherSource => AnnounceError::OtherSource { rank },
            Refusal::NoRoom => AnnounceError::RanksFull { rank },
        }
    }
}

impl Indexer {
    /// Discovery says that a publisher of the stream lives. Its rank is known from now on, `unknown` until something comes, and
    /// its alone, unless another publisher is announced for it too: then their frames tell. Another one that has fed it has
    /// ended, and with it what it had told.
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub fn announce(&self, stream: &BoundStream, announced: Announced) -> Result<(), AnnounceError> {
        let rank = announced.rank;
        let applied = stream.scope.mirror.lock().announce(stream.source, announced);
        let applied = applied.map_err(|refusal| AnnounceError::of(refusal, rank))?;
        telemetry::count_applied(stream, &applied);
        Ok(())
    }

    /// Discovery says that a publisher of the stream has gone. Its rank stays known, as `unknown`, unless another one is
    /// announced for it; [`Indexer::remove`] lets it go.
    pub fn withdraw(&self, stream: &BoundStream, publisher_id: u64) {
        stream.scope.mirror.lock().withdraw(publisher_id);
    }

    /// Discovery says that the ranks of a stream are these and no others: new ones are known from now on, as `unknown`, and those
    /// that have gone are let go, with everything that they hold. Returns how many went.
    ///
    /// # Errors
    /// [`AnnounceError`], for the first that cannot be known. Those before it are then.
    pub fn keep_ranks(&self, stream: &BoundStream, ranks: &BTreeSet<Rank>) -> Result<usize, AnnounceError> {
        let mut mirror = stream.scope.mirror.lock();
        let gone = mirror.remove_others(stream.source, ranks);
        for &rank in ranks {
            mirror.expect(stream.source, rank).map_err(|refusal| AnnounceError::of(refusal, rank))?;
        }
        drop(mirror);
        telemetry::count_gone(gone);
        Ok(gone)
    }

    /// Publishers of which something is missing here that their worker's own index can tell: what they had published before
    /// they were announced, what was lost, or may have been. For each get an [`Indexer::index_request`].
    #[must_use]
    pub fn wanted_indexes(&self) -> Vec<Wanted> {
        self.wanted_of(Mirror::wanted_indexes)
    }

    /// What to ask a worker for now; none if nothing is missing of it any more. Ask within a minute, and hand in whatever comes
    /// of it.
    #[must_use]
    pub fn index_request(&self, wanted: &Wanted) -> Option<IndexRequest> {
        let index = self.scope_index(&wanted.scope)?;
        match wanted.part {
            Part::Publisher(id) => index.mirror.lock().index_request(id),
            Part::Rank(_) => None,
        }
    }

    /// Goes on with what a worker's own index has answered. Whether it has: nothing is taken of an answer that does not tell
    /// what is missing, so that it may be asked again.
    pub fn apply_index(&self, wanted: &Wanted, request: IndexRequest, answer: IndexAnswer) -> bool {
        let Some(index) = self.scope_index(&wanted.scope) else { return false };
        let taken = index.mirror.lock().apply_index(request, answer);
        if let Some((source, applied)) = &taken {
            self.count(*source, applied);
        }
        taken.is_some()
    }

    /// Announced ranks of which something is missing, and whose workers have not been heard yet.
    pub(crate) fn unheard_indexes(&self) -> usize {
        self.scope_indexes().iter().map(|index| index.mirror.lock().unheard_indexes()).sum()
    }
}

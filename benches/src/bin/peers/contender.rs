//! Which indexes are measured.

use std::borrow::Cow;

use clap::ValueEnum;
use kvtide_benches::{Kind, Workload};

use crate::{
    contestant::{Crtc, KvIndex, Kvtide, Positional, Smg},
    measure::{Hashes, Round, round},
};

/// An index by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Contender {
    /// This repository's.
    Kvtide,
    /// ConcurrentRadixTreeCompressed of dynamo-kv-router, which Dynamo's router uses by default.
    DynamoCrtc,
    /// PositionalIndexer of dynamo-kv-router.
    DynamoPositional,
    /// ChainIndex of kv-index.
    KvIndex,
    /// RadixTree of smg-radix-tree.
    SmgRadixTree,
}

/// As many as `ChainIndex::with_max_workers` lets in.
const KV_INDEX_WORKERS: usize = 1024;

impl Contender {
    /// Whether readers see several events at once, as one version.
    pub(crate) fn publishes_versions(self) -> bool {
        match self {
            Contender::Kvtide => true,
            Contender::DynamoCrtc
            | Contender::DynamoPositional
            | Contender::KvIndex
            | Contender::SmgRadixTree => false,
        }
    }

    /// Why it cannot take a workload of so many ranks, if it cannot.
    pub(crate) fn lacks(self, kind: Kind, ranks: usize) -> Option<&'static str> {
        match self {
            Contender::Kvtide => None,
            Contender::DynamoCrtc
            | Contender::DynamoPositional
            | Contender::KvIndex
            | Contender::SmgRadixTree
                if kind == Kind::Engine =>
            {
                Some("it has no settings for an engine's own stream")
            }
            Contender::KvIndex if ranks > KV_INDEX_WORKERS => Some("it has 1,024 workers at most"),
            Contender::DynamoCrtc
            | Contender::DynamoPositional
            | Contender::KvIndex
            | Contender::SmgRadixTree => None,
        }
    }

    /// The workload with such names as the index needs. Other than these, all indexes get the same.
    pub(crate) fn named(self, workload: &Workload) -> Cow<'_, Workload> {
        match self {
            Contender::DynamoPositional => Cow::Owned(workload.clone().named_by_sequence()),
            Contender::Kvtide | Contender::DynamoCrtc | Contender::KvIndex | Contender::SmgRadixTree => {
                Cow::Borrowed(workload)
            }
        }
    }

    /// One round of it. With `check`, its answers are compared with the truth.
    pub(crate) fn round(self, workload: &Workload, hashes: Hashes, check: bool) -> Round {
        let round = match self {
            Contender::Kvtide => round::<Kvtide>,
            Contender::DynamoCrtc => round::<Crtc>,
            Contender::DynamoPositional => round::<Positional>,
            Contender::KvIndex => round::<KvIndex>,
            Contender::SmgRadixTree => round::<Smg>,
        };
        round(self, &self.named(workload), hashes, check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Wrong, wrong_answers};

    /// A 64th of each workload.
    fn small(kind: Kind) -> Workload {
        let ranks = kind.ranks()[0].min(16);
        kind.workload(ranks, 64).expect("the trace is built in")
    }

    fn wrong(index: Contender, workload: &Workload) -> Wrong {
        let wrong = match index {
            Contender::Kvtide => wrong_answers::<Kvtide>,
            Contender::DynamoCrtc => wrong_answers::<Crtc>,
            Contender::DynamoPositional => wrong_answers::<Positional>,
            Contender::KvIndex => wrong_answers::<KvIndex>,
            Contender::SmgRadixTree => wrong_answers::<Smg>,
        };
        wrong(&index.named(workload))
    }

    #[test]
    fn kvtide_is_right_on_every_workload() {
        for &kind in Kind::value_variants() {
            let wrong = wrong(Contender::Kvtide, &small(kind));
            assert!(wrong.of > 0, "{kind:?}");
            assert_eq!(wrong, Wrong { of: wrong.of, refused: Some(0), ..Wrong::default() }, "{kind:?}");
        }
    }

    #[test]
    fn each_peer_is_right_where_nothing_but_ends_is_evicted() {
        let workload = small(Kind::Mooncake64);
        for index in
            [Contender::DynamoCrtc, Contender::DynamoPositional, Contender::KvIndex, Contender::SmgRadixTree]
        {
            let wrong = wrong(index, &workload);
            assert_eq!((wrong.over, wrong.under), (0, 0), "{index:?}");
        }
    }

    #[test]
    fn a_round_survives_the_way_to_the_other_process() {
        let round = Contender::Kvtide.round(&small(Kind::Churn), Hashes::Cold, true);
        let line = serde_json::to_string(&round).expect("a round has only numbers");
        let back: Round = serde_json::from_str(&line).expect("it is what was written");
        assert_eq!((back.wrong, back.held_blocks), (round.wrong, round.held_blocks));
        // Numbers are read to within one unit in the last place.
        let same = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-12;
        assert!(same(back.lookup.p999, round.lookup.p999) && same(back.applied, round.applied), "{line}");
        assert!(!line.contains('\n'));
        // The first answers are what the buffer grows with.
        assert!(round.allocations < 0.01, "{line}");
    }
}

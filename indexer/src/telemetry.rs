//! Metrics: their names, what they mean, and where they are counted. docs/metrics.md lists them.

use std::{collections::BTreeMap, time::Duration};

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::{
    Applied, BoundStream, FeedbackState, Format, Freshness, Indexer, KnowledgeState, Scope, ScopeState,
};

/// A counter's name, what it counts, and how much of it a message did.
type PerMessage = (&'static str, &'static str, fn(&Applied) -> u64);

/// Counters that go up with every message, labelled with its `stream`.
const PER_MESSAGE: [PerMessage; 17] = [
    ("kvtide_events_total", "Events applied.", |applied| applied.events),
    ("kvtide_blocks_stored_total", "Blocks stored, as often as events name them.", |applied| {
        applied.blocks.stored as u64
    }),
    ("kvtide_blocks_removed_total", "Blocks removed.", |applied| applied.blocks.removed as u64),
    ("kvtide_blocks_unknown_total", "Blocks to be removed that their rank did not hold.", |applied| {
        applied.blocks.unknown as u64
    }),
    ("kvtide_blocks_parked_total", "Blocks that had to wait for their parent or name.", |applied| {
        applied.blocks.parked as u64
    }),
    ("kvtide_blocks_dropped_total", "Blocks dropped since too many waited or were in the tree.", |applied| {
        applied.blocks.dropped as u64
    }),
    (
        "kvtide_blocks_expired_total",
        "Blocks dropped that had waited too long for a parent or a name.",
        |applied| applied.expired,
    ),
    ("kvtide_events_ignored_total", "Events of unknown types, tiers or residency.", |applied| {
        applied.ignored
    }),
    ("kvtide_events_repeated_total", "Events, frames or batches that came again or too late.", |applied| {
        applied.repeated
    }),
    (
        "kvtide_events_refused_total",
        "Events of ranks that another source feeds or two publishers claim, or beyond the limit of ranks.",
        Applied::refused_events,
    ),
    ("kvtide_events_missing_total", "Events, frames or batches known to be lost.", |applied| applied.missing),
    ("kvtide_holes_total", "Holes in ranks' streams, after each of which a rank was forgotten.", |applied| {
        applied.holes
    }),
    ("kvtide_lives_total", "Lives of publishers begun.", |applied| applied.lives),
    (
        "kvtide_other_dp_rank_total",
        "Batches that name another data-parallel rank than their stream.",
        |applied| applied.other_dp_rank,
    ),
    ("kvtide_recoveries_total", "Times that a rank began to wait for what it had missed.", |applied| {
        applied.recoveries
    }),
    ("kvtide_recovered_total", "Times that a rank was given what it had missed.", |applied| {
        applied.recovered
    }),
    ("kvtide_recoveries_failed_total", "Times that a rank gave up on what it had missed.", |applied| {
        applied.given_up
    }),
];
const UNDECODABLE: &str = "kvtide_messages_undecodable_total";
const QUERY_SECONDS: &str = "kvtide_query_seconds";
const QUERIES_FAILED: &str = "kvtide_queries_failed_total";
const RANKS: &str = "kvtide_ranks";
const RANKS_BY_KNOWLEDGE: &str = "kvtide_ranks_by_knowledge";
const PENDING_EVENTS: &str = "kvtide_pending_events";
const RANKS_UNPROVEN: &str = "kvtide_ranks_unproven";
const LAG_OVER_BEST: &str = "kvtide_lag_over_best_seconds";
const VERIFIED_AGE: &str = "kvtide_verified_age_seconds";
const RUNS: &str = "kvtide_runs";
const HELD_BLOCKS: &str = "kvtide_held_blocks";
const PARKED_BLOCKS: &str = "kvtide_parked_blocks";
const OBSERVATIONS: &str = "kvtide_observations_total";
const PREDICTED_OVER: &str = "kvtide_predictions_over_total";
const PREDICTED_UNDER: &str = "kvtide_predictions_under_total";
const DRIFTING: &str = "kvtide_ranks_drifting";
const UNREACHED: &str = "kvtide_ranks_unreached";
const SNAPSHOTS: &str = "kvtide_snapshots_total";
const SNAPSHOTS_FAILED: &str = "kvtide_snapshots_failed_total";
const SNAPSHOT_SECONDS: &str = "kvtide_snapshot_seconds";
const GONE: &str = "kvtide_ranks_gone_total";
const FILES_REFUSED: &str = "kvtide_files_refused_total";
const SPANS_SENT: &str = "kvtide_spans_sent_total";
const SPANS_DROPPED: &str = "kvtide_spans_dropped_total";
const VERSION: &str = "kvtide_version";

/// Describes every metric to the recorder that is installed.
pub fn describe() {
    for (name, text, _) in PER_MESSAGE {
        describe_counter!(name, text);
    }
    describe_counter!(UNDECODABLE, "Frames and batches that did not decode.");
    describe_histogram!(QUERY_SECONDS, Unit::Seconds, "Time to answer a query, hashing included.");
    describe_counter!(QUERIES_FAILED, "Queries that had no answer.");
    describe_counter!(GONE, "Ranks removed since nothing came from them for long.");
    describe_counter!(OBSERVATIONS, "Observations of cached tokens.");
    describe_counter!(PREDICTED_OVER, "Predictions that were more than a block too high.");
    describe_counter!(PREDICTED_UNDER, "Predictions that were more than a block too low.");
    describe_counter!(SNAPSHOTS, "Snapshots written.");
    describe_counter!(SNAPSHOTS_FAILED, "Snapshots that could not be written; the one before stays.");
    describe_gauge!(SNAPSHOT_SECONDS, Unit::Seconds, "Time that the last snapshot took.");
    gauge!(SNAPSHOT_SECONDS).set(0.0);
    describe_counter!(
        FILES_REFUSED,
        "Times that a file of tokens or certificates changed and could not be used."
    );
    describe_counter!(SPANS_SENT, "Spans of requests that a collector took.");
    describe_counter!(
        SPANS_DROPPED,
        "Spans of requests that no collector took, or for which there was no room."
    );
    for counted in [
        GONE,
        OBSERVATIONS,
        PREDICTED_OVER,
        PREDICTED_UNDER,
        SNAPSHOTS,
        SNAPSHOTS_FAILED,
        FILES_REFUSED,
        SPANS_SENT,
        SPANS_DROPPED,
    ] {
        counter!(counted).increment(0);
    }
    describe_gauge!(
        UNREACHED,
        "Ranks that hold much of which a thousand queries in a row have reached nothing."
    );
    describe_gauge!(DRIFTING, "Ranks whose predictions have gone wrong.");
    describe_gauge!(RANKS, "Ranks known.");
    describe_gauge!(RANKS_BY_KNOWLEDGE, "Ranks by what is known of them.");
    describe_gauge!(PENDING_EVENTS, "Events received and not yet visible.");
    describe_gauge!(
        LAG_OVER_BEST,
        Unit::Seconds,
        "The largest lag of a rank above its best of the last minute."
    );
    describe_gauge!(
        VERIFIED_AGE,
        Unit::Seconds,
        "Age of the oldest proof of a rank that nothing was pending."
    );
    describe_gauge!(RUNS, "Runs of blocks in the tree.");
    describe_gauge!(HELD_BLOCKS, "Blocks held, summed over ranks and tiers.");
    describe_gauge!(PARKED_BLOCKS, "Blocks that wait for their parent or name.");
    describe_gauge!(VERSION, "Version of the scope's index.");
}

/// Makes a stream's counters visible before there is anything to count: what is absent cannot be watched.
pub(crate) fn introduce(stream: &BoundStream) {
    for (metric, ..) in PER_MESSAGE {
        counter!(metric, "stream" => label(stream)).increment(0);
    }
    counter!(UNDECODABLE, "stream" => label(stream)).increment(0);
}

/// Counts what messages did.
pub(crate) fn count_applied(stream: &BoundStream, applied: &Applied) {
    let name = label(stream);
    for (metric, _, value) in PER_MESSAGE {
        let value = value(applied);
        if value > 0 {
            counter!(metric, "stream" => name.clone()).increment(value);
        }
    }
}

/// Counts messages that did not decode.
pub(crate) fn count_undecodable(stream: &BoundStream, messages: usize) {
    if messages > 0 {
        counter!(UNDECODABLE, "stream" => label(stream)).increment(messages as u64);
    }
}

/// The names of direct streams are scopes, and registered ones come and go; their events are counted together.
fn label(stream: &BoundStream) -> String {
    match stream.stream().format {
        Format::Direct => "direct".to_owned(),
        Format::Engine(_) if stream.stream().registered => "registered".to_owned(),
        Format::Dynamo | Format::Engine(_) => stream.stream().name.clone(),
    }
}

/// Counts ranks that were removed.
pub(crate) fn count_gone(ranks: usize) {
    if ranks > 0 {
        counter!(GONE).increment(ranks as u64);
    }
}

/// Counts what an observation adds.
pub(crate) fn count_observation(before: &FeedbackState, after: &FeedbackState) {
    counter!(OBSERVATIONS).increment(1);
    counter!(PREDICTED_OVER).increment(after.over - before.over);
    counter!(PREDICTED_UNDER).increment(after.under - before.under);
}

/// Counts a snapshot that was written, or was not.
pub(crate) fn count_snapshot(written: bool, took: Duration) {
    counter!(if written { SNAPSHOTS } else { SNAPSHOTS_FAILED }).increment(1);
    gauge!(SNAPSHOT_SECONDS).set(took.as_secs_f64());
}

/// Counts a file that changed and cannot be used.
pub(crate) fn count_refused_file() {
    counter!(FILES_REFUSED).increment(1);
}

/// Counts spans that were sent, or dropped.
pub(crate) fn count_spans(spans: usize, sent: bool) {
    counter!(if sent { SPANS_SENT } else { SPANS_DROPPED }).increment(spans as u64);
}

/// Counts a query.
pub(crate) fn count_query(took: Duration, answered: bool) {
    histogram!(QUERY_SECONDS).record(took.as_secs_f64());
    if !answered {
        counter!(QUERIES_FAILED).increment(1);
    }
}

/// Nothing is left of a scope.
pub(crate) fn dismiss(scope: &Scope) {
    let labels = labels(scope);
    let counts = [
        RANKS,
        DRIFTING,
        UNREACHED,
        RUNS,
        HELD_BLOCKS,
        PARKED_BLOCKS,
        PENDING_EVENTS,
        RANKS_UNPROVEN,
        LAG_OVER_BEST,
    ];
    for name in counts {
        gauge!(name, &labels).set(0);
    }
    for knowledge in KnowledgeState::ALL {
        gauge!(RANKS_BY_KNOWLEDGE, &with_knowledge(&labels, knowledge)).set(0);
    }
    gauge!(VERIFIED_AGE, &labels).set(f64::NAN);
}

fn labels(scope: &Scope) -> [(&'static str, String); 6] {
    [
        ("model", scope.model.clone()),
        ("revision", scope.revision.clone().unwrap_or_default()),
        ("kv_dtype", scope.kv_dtype.clone().unwrap_or_default()),
        ("layout", scope.layout.clone().unwrap_or_default()),
        ("tokenizer", scope.tokenizer.clone().unwrap_or_default()),
        ("block_size", scope.block_size.to_string()),
    ]
}

/// Sets the gauges to how large each scope's index is now.
pub fn measure(indexer: &Indexer) {
    for state in indexer.scopes() {
        let labels = labels(&state.scope);
        #[expect(clippy::cast_precision_loss, reason = "gauges are floats; counts beyond 2^53 do not occur")]
        let set = |name, value: u64| gauge!(name, &labels).set(value as f64);
        set(RANKS, state.ranks.len() as u64);
        set(DRIFTING, state.drifting() as u64);
        set(UNREACHED, state.unreached as u64);
        set(RUNS, state.size.runs as u64);
        set(HELD_BLOCKS, state.size.held_blocks);
        set(PARKED_BLOCKS, state.size.parked_blocks as u64);
        set(VERSION, state.version);
        measure_freshness(indexer, &state, &labels);
    }
}

fn with_knowledge(
    labels: &[(&'static str, String)],
    knowledge: KnowledgeState,
) -> Vec<(&'static str, String)> {
    [labels, &[("knowledge", knowledge.name().to_owned())]].concat()
}

/// The worst of a scope's ranks.
fn measure_freshness(indexer: &Indexer, state: &ScopeState, labels: &[(&'static str, String)]) {
    let now_ms = indexer.clock().steady_ms();
    let mut known: BTreeMap<KnowledgeState, u32> = KnowledgeState::ALL.map(|state| (state, 0)).into();
    let (mut pending, mut lag_ms, mut verified_ms, mut unproven) = (0, 0, None, 0_u32);
    for rank in &state.ranks {
        *known.entry(rank.watermark.knowledge.into()).or_default() += 1;
        let fresh = Freshness::of(&rank.watermark, state.pending(rank.rank), now_ms);
        pending += fresh.pending_events;
        lag_ms = lag_ms.max(fresh.lag_over_best_ms.unwrap_or(0));
        verified_ms = verified_ms.max(fresh.verified_age_ms);
        unproven += u32::from(fresh.verified_age_ms.is_none());
    }
    for (knowledge, ranks) in known {
        gauge!(RANKS_BY_KNOWLEDGE, &with_knowledge(labels, knowledge)).set(ranks);
    }
    let seconds = |ms| Duration::from_millis(ms).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "as above")]
    gauge!(PENDING_EVENTS, labels).set(pending as f64);
    gauge!(RANKS_UNPROVEN, labels).set(unproven);
    gauge!(LAG_OVER_BEST, labels).set(seconds(lag_ms));
    // Without any proof there is no number, and a NaN is none to compare with.
    gauge!(VERIFIED_AGE, labels).set(verified_ms.map_or(f64::NAN, seconds));
}

//! How old what is known of a rank is, and whether that is good enough.

use kvtide::KnowledgeState;
use pyo3::{prelude::*, types::PyDict};

use crate::{args, error::Fault};

/// What is known of the age of a rank's numbers. Values that do not exist yet are `None`.
///
/// It says nothing of the age of the answer: that is `Overlap.collected_at_ms`.
#[pyclass(frozen, module = "kvtide", eq)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Freshness(pub(crate) kvtide::Freshness);

#[pymethods]
impl Freshness {
    /// Which life of its publisher the rank is in, from 1; 0 before the first.
    #[getter]
    fn generation(&self) -> u64 {
        self.0.generation
    }

    /// The last event taken in order: an event id (Dynamo), or a batch's sequence (engines).
    #[getter]
    fn last_event_id(&self) -> Option<u64> {
        self.0.last_event_id
    }

    /// Milliseconds since that event arrived, by this machine's steady clock.
    #[getter]
    fn last_event_age_ms(&self) -> Option<u64> {
        self.0.last_event_age_ms
    }

    /// Milliseconds from the publisher's timestamp of that event to its being visible. Negative where the publisher's clock is
    /// ahead.
    #[getter]
    fn lag_ms(&self) -> Option<i64> {
        self.0.lag_ms
    }

    /// Milliseconds that `lag_ms` is above the smallest lag of the last minute.
    #[getter]
    fn lag_over_best_ms(&self) -> Option<u64> {
        self.0.lag_over_best_ms
    }

    /// Events received and not yet visible.
    #[getter]
    fn pending_events(&self) -> u64 {
        self.0.pending_events
    }

    /// Events (Dynamo) or batches (engines) known lost in this life and not recovered.
    #[getter]
    fn missing_events(&self) -> u64 {
        self.0.missing_events
    }

    /// Milliseconds since the last proof that nothing was pending; `None` where no proof was ever made.
    #[getter]
    fn verified_age_ms(&self) -> Option<u64> {
        self.0.verified_age_ms
    }

    /// The same as a dictionary, by these names.
    pub(crate) fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kvtide::Freshness {
            generation,
            last_event_id,
            last_event_age_ms,
            lag_ms,
            lag_over_best_ms,
            pending_events,
            missing_events,
            verified_age_ms,
        } = self.0;
        let dict = PyDict::new(py);
        dict.set_item("generation", generation)?;
        dict.set_item("last_event_id", last_event_id)?;
        dict.set_item("last_event_age_ms", last_event_age_ms)?;
        dict.set_item("lag_ms", lag_ms)?;
        dict.set_item("lag_over_best_ms", lag_over_best_ms)?;
        dict.set_item("pending_events", pending_events)?;
        dict.set_item("missing_events", missing_events)?;
        dict.set_item("verified_age_ms", verified_age_ms)?;
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Freshness({})", self.to_dict(py)?.repr()?))
    }
}

/// How old and how incomplete a rank's numbers may be to go by them. What is left out may be anything.
#[pyclass(frozen, module = "kvtide")]
pub(crate) struct FreshnessLimits(pub(crate) kvtide::FreshnessLimits);

#[pymethods]
impl FreshnessLimits {
    #[new]
    #[pyo3(signature = (*, lag_over_best_ms = None, verified_age_ms = None, missing_events = None, knowledge = Vec::new()))]
    #[expect(clippy::needless_pass_by_value, reason = "as Python hands it in")]
    fn new(
        #[pyo3(from_py_with = args::maybe_whole)] lag_over_best_ms: Option<u64>,
        #[pyo3(from_py_with = args::maybe_whole)] verified_age_ms: Option<u64>,
        #[pyo3(from_py_with = args::maybe_whole)] missing_events: Option<u64>,
        #[pyo3(from_py_with = args::texts)] knowledge: Vec<String>,
    ) -> PyResult<FreshnessLimits> {
        let knowledge = knowledge.iter().map(|name| state(name)).collect::<Result<_, Fault>>()?;
        let limits = kvtide::FreshnessLimits { lag_over_best_ms, verified_age_ms, missing_events, knowledge };
        Ok(FreshnessLimits(limits))
    }
}

/// A state's name.
pub(crate) fn name(state: KnowledgeState) -> &'static str {
    match state {
        KnowledgeState::Unknown => "unknown",
        KnowledgeState::Complete => "complete",
        KnowledgeState::Partial => "partial",
        KnowledgeState::Recovering => "recovering",
        KnowledgeState::Gap => "gap",
    }
}

fn state(wanted: &str) -> Result<KnowledgeState, Fault> {
    let found = KnowledgeState::ALL.into_iter().find(|&state| name(state) == wanted);
    let names = KnowledgeState::ALL.map(name).join(", ");
    found.ok_or_else(|| Fault::invalid("knowledge", format!("{wanted:?}"), format!("of {names}")))
}

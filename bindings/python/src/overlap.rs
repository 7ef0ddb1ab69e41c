//! The answer to a question, from an index in process or from a service: the same types.

use kvtide::{Answer, RankAnswer, Reason};
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyTuple},
};
use serde::Deserialize;

use crate::{
    args,
    error::{Fault, Kind},
    freshness::{self, Freshness, FreshnessLimits},
    reach::Reach,
};

/// How much of one prompt every rank of a scope already holds. Of one version of the index.
#[pyclass(frozen, module = "kvtide")]
pub(crate) struct Overlap {
    answer: Answer,
    /// Made when they are first asked for: a caller that reads one number pays for no more.
    ranks: PyOnceLock<Py<PyTuple>>,
}

impl From<Answer> for Overlap {
    fn from(answer: Answer) -> Overlap {
        Overlap { answer, ranks: PyOnceLock::new() }
    }
}

#[pymethods]
impl Overlap {
    /// The ranks, by worker and data-parallel rank, or with a `limit` best first.
    #[getter]
    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyTuple>> {
        let made = self.ranks.get_or_try_init(py, || -> PyResult<Py<PyTuple>> {
            let ranks = self.answer.ranks.iter().map(|answer| RankOverlap(answer.clone()));
            Ok(PyTuple::new(py, ranks.collect::<Vec<_>>())?.unbind())
        });
        Ok(made?.bind(py))
    }

    /// What is known of one rank; `None` if it is not in the answer.
    #[pyo3(signature = (worker_id, dp_rank = 0))]
    fn rank<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = args::whole)] worker_id: u64,
        #[pyo3(from_py_with = args::whole)] dp_rank: u32,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let is_it = |answer: &RankAnswer| (answer.worker_id, answer.dp_rank) == (worker_id, dp_rank);
        let place = self.answer.ranks.iter().position(is_it);
        place.map(|place| self.ranks(py)?.get_item(place)).transpose()
    }

    /// Tokens of the prompt; of one given as hashes, those of its blocks.
    #[getter]
    fn prompt_tokens(&self) -> u64 {
        self.answer.prompt.tokens
    }

    /// Complete blocks of the prompt.
    #[getter]
    fn prompt_blocks(&self) -> u64 {
        self.answer.prompt.blocks
    }

    /// The model of the scope.
    #[getter]
    fn model(&self) -> &str {
        &self.answer.scope.fixed.model
    }

    /// Tokens a block.
    #[getter]
    fn block_size(&self) -> u32 {
        self.answer.scope.fixed.block_size
    }

    /// When this was collected, milliseconds since the Unix epoch by the answering machine's clock: the age of the answer, and
    /// not of what it says.
    #[getter]
    fn collected_at_ms(&self) -> u64 {
        self.answer.collected_at_ms
    }

    /// Microseconds that the lookup took, hashing included.
    #[getter]
    fn took_us(&self) -> u64 {
        self.answer.took_us
    }

    /// The version of the index: it grows by one with each publication.
    #[getter]
    fn version(&self) -> u64 {
        self.answer.version
    }

    /// The answer as the service writes it.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.answer)
            .map_err(|error| Fault::invalid("an answer", error, "one that can be written").into())
    }

    fn __len__(&self) -> usize {
        self.answer.ranks.len()
    }

    fn __repr__(&self) -> String {
        let Answer { prompt, version, ranks, .. } = &self.answer;
        let (tokens, blocks, ranks) = (prompt.tokens, prompt.blocks, ranks.len());
        format!("<kvtide.Overlap of {tokens} tokens, {blocks} blocks: {ranks} ranks, version {version}>")
    }
}

/// What one rank holds of a prompt.
#[pyclass(frozen, module = "kvtide")]
pub(crate) struct RankOverlap(RankAnswer);

#[pymethods]
impl RankOverlap {
    /// The worker.
    #[getter]
    fn worker_id(&self) -> u64 {
        self.0.worker_id
    }

    /// The data-parallel rank within the worker.
    #[getter]
    fn dp_rank(&self) -> u32 {
        self.0.dp_rank
    }

    /// Leading tokens that it could reuse; `None` where nothing is known, which is not 0.
    #[getter]
    fn reach(&self) -> Option<Reach> {
        self.0.reach_tokens.map(Reach)
    }

    /// How to read the numbers: `complete`, `partial` (a lower bound), `recovering`, `gap` or `unknown`.
    #[getter]
    fn knowledge(&self) -> &'static str {
        freshness::name(self.0.knowledge)
    }

    /// Why nothing is known although something came; `None` otherwise.
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        self.0.reason.map(|reason| match reason {
            Reason::ConflictingPublishers => "conflicting_publishers",
        })
    }

    /// How old the numbers are; `None` if the question left it out.
    #[getter]
    fn freshness(&self) -> Option<Freshness> {
        self.0.freshness.map(Freshness)
    }

    /// Why these numbers are not to be gone by: the first limit that failed. `None` if they are.
    fn unusable(&self, limits: &FreshnessLimits) -> PyResult<Option<String>> {
        let Some(freshness) = &self.0.freshness else {
            let got = "an answer asked for with freshness=False";
            return Err(Fault::invalid("unusable()", got, "an answer with freshness").into());
        };
        Ok(freshness.usable(self.0.knowledge, &limits.0).err().map(|unusable| unusable.to_string()))
    }

    /// The same as a dictionary, by the names of the service's JSON.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("worker_id", self.0.worker_id)?;
        dict.set_item("dp_rank", self.0.dp_rank)?;
        let reach = self.0.reach_tokens.map(|reach| -> PyResult<Bound<'py, PyDict>> {
            let dict = PyDict::new(py);
            dict.set_item("gpu", reach.gpu)?;
            dict.set_item("host", reach.host)?;
            dict.set_item("disk", reach.disk)?;
            dict.set_item("external", reach.external)?;
            Ok(dict)
        });
        dict.set_item("reach_tokens", reach.transpose()?)?;
        dict.set_item("knowledge", self.knowledge())?;
        if let Some(reason) = self.reason() {
            dict.set_item("reason", reason)?;
        }
        if let Some(freshness) = self.freshness() {
            dict.set_item("freshness", freshness.to_dict(py)?)?;
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let reach = self.reach().map_or_else(|| "None".to_owned(), |reach| reach.__repr__());
        let (worker, dp_rank, knowledge) = (self.0.worker_id, self.0.dp_rank, self.knowledge());
        format!("<kvtide.RankOverlap of worker {worker}, rank {dp_rank}: {reach}, {knowledge}>")
    }
}

/// Kind and place, and not the message, which may repeat what was read.
fn bad_reply(error: &serde_json::Error) -> PyErr {
    let got = format!("{:?} at line {} column {}", error.classify(), error.line(), error.column());
    Fault::new(Kind::BadReply, "a reply of the service", got, "an answer as docs/openapi.json has it").into()
}

/// Reads an answer as the service writes it.
#[pyo3::pyfunction]
pub(crate) fn read_overlap(json: &[u8]) -> PyResult<Overlap> {
    serde_json::from_slice::<Answer>(json).map(Overlap::from).map_err(|error| bad_reply(&error))
}

/// Reads the answers to several questions as the service writes them.
#[pyo3::pyfunction]
pub(crate) fn read_overlaps(json: &[u8]) -> PyResult<Vec<Overlap>> {
    #[derive(Deserialize)]
    struct Answers {
        answers: Vec<Answer>,
    }
    let read = serde_json::from_slice::<Answers>(json).map_err(|error| bad_reply(&error))?;
    Ok(read.answers.into_iter().map(Overlap::from).collect())
}

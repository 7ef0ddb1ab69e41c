//! An index in process: messages go in, questions are answered.

mod tick;

use std::{collections::HashMap, sync::Arc};

use kvtide::{
    BoundStream, Clock, EngineStream, Format, GapPolicy, Limits, Message, Query, Scope, ScopeQuery, Stream,
};
use kvtide_events::Hashing;
use kvtide_radix::{Copies, Rank, Seed};
use parking_lot::Mutex;
use pyo3::{prelude::*, types::PyDict};

use crate::{
    applied::Applied,
    args,
    error::Fault,
    events, fork, freshness, hashing,
    overlap::Overlap,
    query::{Prompt, Wanted},
};
use tick::Ticks;

/// Knows, for every worker of one model, what it holds.
///
/// Any number of threads may use one: events are applied one after the other, and lookups go on meanwhile. All that takes
/// long runs without the interpreter's lock. It is not shared with a forked child, which has a copy of its own.
#[pyclass(frozen, module = "kvtide")]
pub(crate) struct Indexer {
    indexer: kvtide::Indexer,
    scope: Scope,
    /// The scope as questions state it.
    asked: ScopeQuery,
    hashing: Hashing,
    frames: Arc<BoundStream>,
    direct: Arc<BoundStream>,
    engines: Mutex<HashMap<Engine, Arc<BoundStream>>>,
    gap_policy: GapPolicy,
    ticks: Ticks,
}

/// Whose batches these are.
type Engine = (u64, Option<u32>);

impl Indexer {
    fn engine(&self, (worker_id, dp_rank): Engine) -> Result<Arc<BoundStream>, Fault> {
        let mut engines = self.engines.lock();
        if let Some(engine) = engines.get(&(worker_id, dp_rank)) {
            return Ok(Arc::clone(engine));
        }
        let bound = self.bind(EngineStream { dp_rank, ..EngineStream::new(worker_id) })?;
        engines.insert((worker_id, dp_rank), Arc::clone(&bound));
        Ok(bound)
    }

    fn bind(&self, engine: EngineStream) -> Result<Arc<BoundStream>, Fault> {
        let rank = engine.dp_rank.map_or_else(String::new, |dp_rank| format!("/{dp_rank}"));
        let name = format!("engine {}{rank}", engine.worker_id);
        let stream = Stream::new(name, self.scope.clone(), Format::Engine(engine));
        Ok(self.indexer.bind(Stream { eagle: self.hashing.eagle, gap_policy: self.gap_policy, ..stream })?)
    }

    fn remove(&self, worker_id: u64, dp_rank: Option<u32>) -> usize {
        let goes = |&(worker, rank): &Engine| worker == worker_id && (dp_rank.is_none() || rank == dp_rank);
        let streams: Vec<_> = self.engines.lock().extract_if(|engine, _| goes(engine)).collect();
        let unbound: usize = streams.iter().map(|(_, stream)| self.indexer.unbind(stream)).sum();
        unbound + self.indexer.remove(worker_id, dp_rank)
    }

    fn apply(&self, stream: &BoundStream, message: Message<'_>) -> Result<Applied, Fault> {
        self.ticks.tick(&self.indexer);
        Applied::of(self.indexer.apply(stream, message)?, self.indexer.limits().index.ranks)
    }

    fn answer(&self, query: &Query<'_>) -> Result<Overlap, Fault> {
        self.ticks.tick(&self.indexer);
        Ok(self.indexer.overlap(query)?.into())
    }
}

#[pymethods]
impl Indexer {
    #[new]
    #[pyo3(signature = (model, block_size, *, revision = None, tokenizer = None, kv_dtype = None, layout = None, eagle = false, gap_policy = "forget"))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        #[pyo3(from_py_with = args::text)] model: String,
        #[pyo3(from_py_with = args::whole)] block_size: u32,
        #[pyo3(from_py_with = args::maybe_text)] revision: Option<String>,
        #[pyo3(from_py_with = args::maybe_text)] tokenizer: Option<String>,
        #[pyo3(from_py_with = args::maybe_text)] kv_dtype: Option<String>,
        #[pyo3(from_py_with = args::maybe_text)] layout: Option<String>,
        eagle: bool,
        gap_policy: &str,
    ) -> PyResult<Indexer> {
        let gap_policy = match gap_policy {
            "forget" => GapPolicy::Forget,
            "keep" => GapPolicy::Keep,
            other => return Err(Fault::invalid("gap_policy", format!("{other:?}"), "forget or keep").into()),
        };
        let hashing = hashing::hashing(block_size, eagle)?;
        let scope = Scope { model, revision, tokenizer, kv_dtype, layout, block_size };
        let indexer = kvtide::Indexer::new(Limits::default(), Clock::default());
        let frames = Stream { eagle, gap_policy, ..Stream::new("frames", scope.clone(), Format::Dynamo) };
        let frames = indexer.bind(frames).map_err(Fault::from)?;
        let direct = indexer.direct(&scope).map_err(Fault::from)?;
        let (asked, ticks, engines) = (ScopeQuery::from(&scope), Ticks::default(), Mutex::default());
        Ok(Indexer { indexer, scope, asked, hashing, frames, direct, engines, gap_policy, ticks })
    }

    /// Applies a raw frame of Dynamo's event plane (`...kv-events` on NATS), as one version.
    ///
    /// Raises `Undecodable`: nothing of it is applied, and the ranks that it may have been about have a hole.
    fn apply_dynamo_frame(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::bytes)] frame: &[u8],
    ) -> PyResult<Applied> {
        Ok(fork::apart(py, || self.apply(&self.frames, Message::Frame(frame)))?)
    }

    /// Says how an engine is to be read, before its first batch.
    ///
    /// `copies`: "counted" (engines announce every physical copy of a block, and one removal takes one), or "set" for one that
    /// announces again what is there. `host_chunk_blocks`: it looks host blocks up in chunks of this many. `adapter_names`: of
    /// adapters that it announces by number.
    #[pyo3(signature = (worker_id, dp_rank = None, *, copies = "counted", host_chunk_blocks = 1, adapter_names = None))]
    fn add_engine(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::whole)] worker_id: u64,
        #[pyo3(from_py_with = args::maybe_whole)] dp_rank: Option<u32>,
        copies: &str,
        #[pyo3(from_py_with = args::whole)] host_chunk_blocks: u32,
        adapter_names: Option<HashMap<u64, String>>,
    ) -> PyResult<()> {
        let copies = match copies {
            "counted" => Copies::Counted,
            "set" => Copies::Set,
            other => return Err(Fault::invalid("copies", format!("{other:?}"), "counted or set").into()),
        };
        let adapter_names = adapter_names.into_iter().flatten().collect();
        let engine = EngineStream {
            dp_rank,
            copies,
            host_chunk_blocks,
            adapter_names,
            ..EngineStream::new(worker_id)
        };
        Ok(fork::apart(py, || -> Result<(), Fault> {
            let bound = self.bind(engine)?;
            self.engines.lock().insert((worker_id, dp_rank), bound);
            Ok(())
        })?)
    }

    /// Applies a batch of an engine's own publisher (vLLM, SGLang), as one version.
    ///
    /// `dp_rank`: the data-parallel rank; left out, what the batch says. `sequence`: the batch's number, the second frame of
    /// the message. Without it nothing shows what is missing, and the rank's numbers are a lower bound. Raises `Undecodable`.
    #[pyo3(signature = (batch, worker_id, dp_rank = None, *, sequence = None))]
    fn apply_engine_batch(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::bytes)] batch: &[u8],
        #[pyo3(from_py_with = args::whole)] worker_id: u64,
        #[pyo3(from_py_with = args::maybe_whole)] dp_rank: Option<u32>,
        #[pyo3(from_py_with = args::maybe_whole)] sequence: Option<u64>,
    ) -> PyResult<Applied> {
        Ok(fork::apart(py, || {
            let stream = self.engine((worker_id, dp_rank))?;
            self.apply(&stream, Message::Batch { sequence, payload: batch })
        })?)
    }

    /// Applies events of one rank given as dictionaries, in the form of `POST /v1/events`, as one version.
    ///
    /// `first_event_id` numbers the first, counted from 1 in the rank's life, and the others follow; without it the rank's
    /// numbers are a lower bound. `adapter` and `tenant` salt chains that start with `token_ids`.
    #[pyo3(signature = (events, worker_id, dp_rank = 0, *, first_event_id = None, adapter = None, tenant = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[expect(clippy::needless_pass_by_value, reason = "as Python hands it in")]
    fn apply_events(
        &self,
        py: Python<'_>,
        events: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = args::whole)] worker_id: u64,
        #[pyo3(from_py_with = args::whole)] dp_rank: u32,
        #[pyo3(from_py_with = args::maybe_whole)] first_event_id: Option<u64>,
        #[pyo3(from_py_with = args::maybe_text)] adapter: Option<String>,
        #[pyo3(from_py_with = args::maybe_text)] tenant: Option<String>,
    ) -> PyResult<Applied> {
        if first_event_id == Some(0) {
            return Err(Fault::invalid("first_event_id", 0, "1 or more").into());
        }
        let events = events::read(events, self.hashing, Seed::of(adapter.as_deref(), tenant.as_deref()))?;
        let rank = Rank { worker_id, dp_rank };
        Ok(fork::apart(py, || -> Result<Applied, Fault> {
            self.ticks.tick(&self.indexer);
            let applied = self.indexer.apply_events(&self.direct, rank, first_event_id, &events)?;
            Applied::of(applied, self.indexer.limits().index.ranks)
        })?)
    }

    /// How much of a prompt every rank holds.
    ///
    /// `token_ids`: a list, tuple or other sequence of integers, or a numpy array, which is not copied if it is of `uint32`
    /// without gaps (and must not be written to meanwhile). Or `block_hashes`, or a `PromptHasher` in their place, which contain
    /// adapter, tenant and media already. `ranks`: only these, as pairs of worker and rank. `min_reach_tokens`: only ranks that
    /// reach so far in some tier. `limit`: only the best.
    #[pyo3(signature = (token_ids = None, *, block_hashes = None, adapter = None, tenant = None, block_mm_infos = None, mm_objects = None, ranks = None, min_reach_tokens = 0, limit = None, freshness = true))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn overlap(
        &self,
        py: Python<'_>,
        token_ids: Option<&Bound<'_, PyAny>>,
        block_hashes: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = args::maybe_text)] adapter: Option<String>,
        #[pyo3(from_py_with = args::maybe_text)] tenant: Option<String>,
        block_mm_infos: Option<&Bound<'_, PyAny>>,
        mm_objects: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = args::maybe_ranks)] ranks: Option<Vec<(u64, u32)>>,
        #[pyo3(from_py_with = args::whole)] min_reach_tokens: u32,
        #[pyo3(from_py_with = args::maybe_whole)] limit: Option<usize>,
        freshness: bool,
    ) -> PyResult<Overlap> {
        let prompt = Prompt::read(token_ids, block_hashes, block_mm_infos, mm_objects)?;
        let wanted = Wanted { adapter, tenant, ranks, min_reach_tokens, limit, freshness };
        let query = wanted.query(&self.asked, prompt.content()?);
        Ok(fork::apart(py, || self.answer(&query))?)
    }

    /// The same of several prompts, in their order and of one version: a list of what `overlap` takes as `token_ids` or
    /// `block_hashes`.
    #[pyo3(signature = (token_ids = None, *, block_hashes = None, adapter = None, tenant = None, ranks = None, min_reach_tokens = 0, limit = None, freshness = true))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn overlap_batch(
        &self,
        py: Python<'_>,
        token_ids: Option<&Bound<'_, PyAny>>,
        block_hashes: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = args::maybe_text)] adapter: Option<String>,
        #[pyo3(from_py_with = args::maybe_text)] tenant: Option<String>,
        #[pyo3(from_py_with = args::maybe_ranks)] ranks: Option<Vec<(u64, u32)>>,
        #[pyo3(from_py_with = args::whole)] min_reach_tokens: u32,
        #[pyo3(from_py_with = args::maybe_whole)] limit: Option<usize>,
        freshness: bool,
    ) -> PyResult<Vec<Overlap>> {
        let prompts = Prompt::read_all(token_ids, block_hashes)?;
        let wanted = Wanted { adapter, tenant, ranks, min_reach_tokens, limit, freshness };
        let contents = prompts.iter().map(Prompt::content).collect::<PyResult<Vec<_>>>()?;
        let queries: Vec<Query<'_>> =
            contents.into_iter().map(|content| wanted.query(&self.asked, content)).collect();
        Ok(fork::apart(py, || -> Result<Vec<Overlap>, Fault> {
            self.ticks.tick(&self.indexer);
            Ok(self.indexer.overlap_all(&queries)?.into_iter().map(Overlap::from).collect())
        })?)
    }

    /// Makes ranks known from which nothing has come yet: they are `unknown` until something does. Returns how many are new.
    #[pyo3(signature = (worker_id, dp_ranks = vec![0]))]
    fn register_worker(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::whole)] worker_id: u64,
        #[pyo3(from_py_with = args::wholes)] dp_ranks: Vec<u32>,
    ) -> PyResult<usize> {
        let ranks: Vec<Rank> = dp_ranks.into_iter().map(|dp_rank| Rank { worker_id, dp_rank }).collect();
        Ok(fork::apart(py, || {
            self.ticks.tick(&self.indexer);
            self.indexer.register(&self.scope, &ranks)
        })
        .map_err(Fault::from)?)
    }

    /// Lets a worker go, or one rank of it, with everything that it holds and what `add_engine` has said of it. Returns how many
    /// ranks these were.
    #[pyo3(signature = (worker_id, dp_rank = None))]
    fn remove_worker(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = args::whole)] worker_id: u64,
        #[pyo3(from_py_with = args::maybe_whole)] dp_rank: Option<u32>,
    ) -> usize {
        fork::apart(py, || {
            self.ticks.tick(&self.indexer);
            self.remove(worker_id, dp_rank)
        })
    }

    /// Every rank that is known, as dictionaries: `worker_id`, `dp_rank`, `knowledge`, `held_blocks` by tier, `parked_blocks`.
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let scopes = fork::apart(py, || {
            self.ticks.tick(&self.indexer);
            self.indexer.scopes()
        });
        let ranks = scopes.into_iter().flat_map(|scope| scope.ranks);
        let row = |state: kvtide_radix::RankState| {
            let (row, held) = (PyDict::new(py), PyDict::new(py));
            for (tier, blocks) in ["gpu", "host", "disk", "external"].into_iter().zip(state.held_blocks) {
                held.set_item(tier, blocks)?;
            }
            row.set_item("worker_id", state.rank.worker_id)?;
            row.set_item("dp_rank", state.rank.dp_rank)?;
            row.set_item("knowledge", freshness::name(state.watermark.knowledge.into()))?;
            row.set_item("held_blocks", held)?;
            row.set_item("parked_blocks", state.parked_blocks)?;
            Ok(row)
        };
        ranks.map(row).collect()
    }

    /// The model.
    #[getter]
    fn model(&self) -> &str {
        &self.scope.model
    }

    /// Tokens a block.
    #[getter]
    fn block_size(&self) -> u32 {
        self.scope.block_size
    }

    fn __repr__(&self) -> String {
        format!("<kvtide.Indexer of {:?}, {} tokens a block>", self.scope.model, self.scope.block_size)
    }
}

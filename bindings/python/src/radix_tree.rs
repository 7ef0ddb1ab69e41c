//! `RadixTree` as Dynamo's Python package has it, over kvtide's tree.

use std::collections::HashMap;

use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Layer, Limits, Overlap, Rank, RankSettings, RankSlot, Reader, Removed,
    SequenceHash, Stored, Writer, index,
};
use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use serde::Deserialize;

use crate::{fork, hashes};

/// How many blocks of a prompt each rank holds.
#[pyclass(frozen, module = "kvtide.compat.dynamo")]
pub(crate) struct OverlapScores(Vec<(Rank, u32)>);

#[pymethods]
impl OverlapScores {
    /// Leading blocks held, by (worker_id, dp_rank). Who holds none is left out.
    #[getter]
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let scores = PyDict::new(py);
        for &(Rank { worker_id, dp_rank }, blocks) in &self.0 {
            scores.set_item((worker_id, dp_rank), blocks)?;
        }
        Ok(scores)
    }

    /// Always empty, as it is there: accesses are not counted.
    #[getter]
    fn frequencies(&self) -> Vec<u64> {
        Vec::new()
    }
}

/// A tree of cached blocks, fed with KV cache events as JSON and asked with block hashes.
///
/// The signatures of Dynamo's `RadixTree`; safe from any number of threads. It credits no block that a worker does not hold,
/// and a block of an unknown parent waits for it.
#[pyclass(frozen, module = "kvtide.compat.dynamo")]
pub(crate) struct RadixTree {
    writing: Mutex<Writing>,
    reader: Reader,
}

struct Writing {
    writer: Writer,
    slots: HashMap<Rank, RankSlot>,
}

/// An event as Dynamo writes it.
#[derive(Deserialize)]
struct KvCacheEvent {
    #[serde(rename = "event_id")]
    _event_id: u64,
    data: Data,
    #[serde(default)]
    dp_rank: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Data {
    Stored { parent_hash: Option<u64>, blocks: Vec<StoredBlock> },
    Removed { block_hashes: Vec<u64> },
    Cleared,
}

#[derive(Deserialize)]
struct StoredBlock {
    block_hash: u64,
    tokens_hash: u64,
}

impl From<Data> for Event {
    fn from(data: Data) -> Event {
        match data {
            Data::Stored { parent_hash, blocks } => {
                let block = |StoredBlock { block_hash, tokens_hash }| Block {
                    name: SequenceHash(block_hash),
                    content: BlockHash(tokens_hash),
                };
                let blocks = Blocks::Hashed(blocks.into_iter().map(block).collect());
                Event::Stored(Stored { layer: Layer::GPU, parent: parent_hash.map(SequenceHash), blocks })
            }
            Data::Removed { block_hashes } => Event::Removed(Removed {
                layer: Layer::GPU,
                names: block_hashes.into_iter().map(SequenceHash).collect(),
            }),
            Data::Cleared => Event::Cleared,
        }
    }
}

impl RadixTree {
    fn apply(&self, rank: Rank, event: &Event) -> Result<(), String> {
        let mut writing = self.writing.lock();
        let Writing { writer, slots } = &mut *writing;
        writer.update(|update| {
            let slot = match slots.get(&rank) {
                Some(&slot) => slot,
                None => {
                    let joined = update.join(rank, RankSettings::default());
                    let slot = joined.map_err(|full| full.to_string())?;
                    slots.insert(rank, slot);
                    slot
                }
            };
            match update.apply(slot, event).dropped {
                0 => Ok(()),
                dropped => Err(format!("no room for {dropped} blocks")),
            }
        })
    }

    /// Applies an event to all ranks of a worker; without one they go.
    fn apply_to_worker(&self, worker_id: u64, event: Option<&Event>) {
        let mut writing = self.writing.lock();
        let Writing { writer, slots } = &mut *writing;
        writer.update(|update| {
            for (_, &slot) in slots.iter().filter(|(rank, _)| rank.worker_id == worker_id) {
                match event {
                    Some(event) => {
                        update.apply(slot, event);
                    }
                    None => update.leave(slot),
                }
            }
        });
        if event.is_none() {
            slots.retain(|rank, _| rank.worker_id != worker_id);
        }
    }

    fn matches(&self, sequence: &[BlockHash]) -> OverlapScores {
        let (view, mut overlap) = (self.reader.view(), Overlap::default());
        view.overlap([sequence], &mut overlap);
        let mut reaches: Vec<_> = overlap.reaches().filter(|(_, reach)| reach.gpu() > 0).collect();
        reaches.sort_unstable_by_key(|&(slot, _)| slot);
        let reach =
            |slot| reaches.binary_search_by_key(&slot, |&(slot, _)| slot).ok().map(|place| reaches[place].1);
        let scores = view.ranks().filter_map(|state| Some((state.rank, reach(state.slot)?.gpu())));
        OverlapScores(scores.collect())
    }
}

#[pymethods]
impl RadixTree {
    #[new]
    fn new() -> RadixTree {
        // Blocks of one token: what is reached is counted in blocks then.
        let (writer, reader) = index(1, Limits::default());
        RadixTree { writing: Mutex::new(Writing { writer, slots: HashMap::new() }), reader }
    }

    /// How many leading blocks of a sequence of block hashes each worker holds. `early_exit` is a hint that saves nothing here:
    /// all of the answer is always found.
    #[pyo3(signature = (sequence, early_exit = false))]
    fn find_matches(
        &self,
        py: Python<'_>,
        sequence: &Bound<'_, PyAny>,
        early_exit: bool,
    ) -> PyResult<OverlapScores> {
        let _ = early_exit;
        let sequence = hashes::blocks(sequence)?;
        Ok(fork::apart(py, || self.matches(&sequence)))
    }

    /// Applies a KV cache event, as JSON. Raises `ValueError` where it is none.
    fn apply_event(&self, py: Python<'_>, worker_id: u64, kv_cache_event_bytes: &[u8]) -> PyResult<()> {
        fork::apart(py, || {
            let read = serde_json::from_slice::<KvCacheEvent>(kv_cache_event_bytes);
            // Kind and place, and not the message, which may repeat what was read.
            let event = read.map_err(|error| {
                let (kind, line, column) = (error.classify(), error.line(), error.column());
                PyValueError::new_err(format!(
                    "Failed to deserialize KvCacheEvent: {kind:?} at line {line} column {column}"
                ))
            })?;
            let rank = Rank { worker_id, dp_rank: event.dp_rank };
            let applied = self.apply(rank, &event.data.into());
            applied.map_err(|why| PyRuntimeError::new_err(format!("Failed to apply event: {why}")))
        })
    }

    /// Lets a worker go with all its blocks.
    fn remove_worker(&self, py: Python<'_>, worker_id: u64) {
        fork::apart(py, || self.apply_to_worker(worker_id, None));
    }

    /// Takes all blocks from a worker.
    fn clear_all_blocks(&self, py: Python<'_>, worker_id: u64) {
        fork::apart(py, || self.apply_to_worker(worker_id, Some(&Event::Cleared)));
    }

    /// Everything that is held, as events in JSON that would bring it about.
    fn dump_tree_as_events(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let events = fork::apart(py, || {
            let dump = self.writing.lock().writer.dump(|_| true);
            let events = kvtide::service::router_events(&dump);
            events.map(|event| serde_json::to_string(&event)).collect::<Result<Vec<String>, _>>()
        });
        events.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

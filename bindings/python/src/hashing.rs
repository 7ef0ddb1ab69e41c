//! Block hashes, as Dynamo's router computes them, and those of a conversation that grows.

use kvtide::PromptMedia;
use kvtide_events::{Hashing, Media, PromptHasher as Conversation};
use kvtide_radix::{BlockHash, Seed};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{args, error::Fault, fork, hashes, media, tokens::Tokens};

/// How prompts are cut, if they can be.
pub(crate) fn hashing(block_size: u32, eagle: bool) -> Result<Hashing, Fault> {
    match block_size {
        0 => Err(Fault::invalid("block_size", 0, "1 token or more")),
        _ => Ok(Hashing { block_size, eagle }),
    }
}

/// The hashes of a prompt's complete blocks, in order: XXH3-64 over each block's tokens, seeded by adapter and tenant.
///
/// `eagle`: each block is hashed with the token behind it. The same numbers as Dynamo's `compute_block_hash_for_seq`.
#[pyfunction]
#[pyo3(signature = (token_ids, block_size, *, adapter = None, tenant = None, eagle = false, block_mm_infos = None, mm_objects = None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
#[expect(clippy::needless_pass_by_value, reason = "as Python hands it in")]
pub(crate) fn hash_blocks(
    py: Python<'_>,
    token_ids: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = args::whole)] block_size: u32,
    #[pyo3(from_py_with = args::maybe_text)] adapter: Option<String>,
    #[pyo3(from_py_with = args::maybe_text)] tenant: Option<String>,
    eagle: bool,
    block_mm_infos: Option<&Bound<'_, PyAny>>,
    mm_objects: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<u64>> {
    let (hashing, seed) = (hashing(block_size, eagle)?, Seed::of(adapter.as_deref(), tenant.as_deref()));
    let (tokens, media) = (Tokens::read(token_ids)?, media::read(block_mm_infos, mm_objects)?);
    let tokens = tokens.as_slice()?;
    let media = match media {
        None => Vec::new(),
        Some(PromptMedia::ByBlock(media)) => media,
        Some(PromptMedia::ByTokens(media)) => {
            Media::by_block(&media, block_size, hashing.blocks(tokens.len()))
        }
    };
    Ok(fork::apart(py, || hashing.block_hashes(tokens, &media, seed).map(|hash| hash.0).collect()))
}

/// The names that Dynamo's router gives to blocks of these hashes: a rolling XXH3-64 over them.
#[pyfunction]
pub(crate) fn sequence_hashes(block_hashes: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    Ok(kvtide_events::sequence_hashes(hashes::blocks(block_hashes)?).map(|name| name.0).collect())
}

/// The block hashes of a conversation, kept while it grows: a turn costs what it adds.
///
/// `Indexer.overlap(block_hashes=hasher)` takes it as it is.
#[pyclass(frozen, module = "kvtide")]
pub(crate) struct PromptHasher {
    conversation: Mutex<Conversation>,
}

impl PromptHasher {
    pub(crate) fn block_hashes(&self, py: Python<'_>) -> Vec<BlockHash> {
        self.with(py, |conversation| conversation.hashes().to_vec())
    }

    /// Another thread may extend it meanwhile, which takes long: it is waited for without the interpreter's lock.
    fn with<T: Send>(&self, py: Python<'_>, act: impl Send + FnOnce(&mut Conversation) -> T) -> T {
        match self.conversation.try_lock() {
            Some(mut conversation) => act(&mut conversation),
            None => fork::apart(py, || act(&mut self.conversation.lock())),
        }
    }
}

#[pymethods]
impl PromptHasher {
    #[new]
    #[pyo3(signature = (block_size, *, adapter = None, tenant = None, eagle = false))]
    #[expect(clippy::needless_pass_by_value, reason = "as Python hands it in")]
    fn new(
        #[pyo3(from_py_with = args::whole)] block_size: u32,
        #[pyo3(from_py_with = args::maybe_text)] adapter: Option<String>,
        #[pyo3(from_py_with = args::maybe_text)] tenant: Option<String>,
        eagle: bool,
    ) -> PyResult<PromptHasher> {
        let seed = Seed::of(adapter.as_deref(), tenant.as_deref());
        let conversation = Conversation::new(hashing(block_size, eagle)?, seed);
        Ok(PromptHasher { conversation: Mutex::new(conversation) })
    }

    /// Appends tokens. `block_mm_infos` are the media of the whole prompt, block by block from its start.
    #[pyo3(signature = (token_ids, block_mm_infos = None))]
    fn extend(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        block_mm_infos: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let tokens = Tokens::read(token_ids)?;
        let media = block_mm_infos.map(media::by_block).transpose()?.unwrap_or_default();
        let tokens = tokens.as_slice()?;
        fork::apart(py, || self.conversation.lock().extend(tokens, &media));
        Ok(())
    }

    /// Takes back what is behind the first so many tokens. Returns how many are still there, often fewer, since tokens of
    /// complete blocks are not kept: the prompt is to be extended from there.
    fn truncate(&self, py: Python<'_>, #[pyo3(from_py_with = args::whole)] tokens: usize) -> usize {
        self.with(py, |conversation| conversation.truncate(tokens))
    }

    /// The hashes of all complete blocks, in order.
    fn hashes(&self, py: Python<'_>) -> Vec<u64> {
        self.with(py, |conversation| conversation.hashes().iter().map(|hash| hash.0).collect())
    }

    /// How many tokens the prompt has.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> usize {
        self.with(py, |conversation| conversation.tokens())
    }

    /// A fork of the conversation.
    fn copy(&self, py: Python<'_>) -> PromptHasher {
        PromptHasher { conversation: Mutex::new(self.with(py, |conversation| conversation.clone())) }
    }

    fn __copy__(&self, py: Python<'_>) -> PromptHasher {
        self.copy(py)
    }

    /// How many complete blocks the prompt has.
    fn __len__(&self, py: Python<'_>) -> usize {
        self.with(py, |conversation| conversation.hashes().len())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let sizes = |conversation: &mut Conversation| (conversation.tokens(), conversation.hashes().len());
        let (tokens, blocks) = self.with(py, sizes);
        format!("<kvtide.PromptHasher of {tokens} tokens, {blocks} blocks>")
    }
}

//! What is asked of an index in process.

use std::collections::BTreeSet;

use kvtide::{PromptContent, PromptMedia, Query, ScopeQuery};
use kvtide_radix::{BlockHash, Rank};
use pyo3::prelude::*;

use crate::{
    error::Fault,
    hashes, media,
    tokens::{Tokens, list},
};

/// A prompt as it was given. A numpy array stays where it is.
pub(crate) enum Prompt<'py> {
    Tokens(Tokens<'py>, Option<PromptMedia>),
    Hashes(Vec<BlockHash>),
}

impl<'py> Prompt<'py> {
    /// Reads `token_ids` and perhaps its media, or `block_hashes`.
    pub(crate) fn read(
        token_ids: Option<&Bound<'py, PyAny>>,
        block_hashes: Option<&Bound<'py, PyAny>>,
        block_mm_infos: Option<&Bound<'py, PyAny>>,
        mm_objects: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Prompt<'py>> {
        match (token_ids, block_hashes) {
            (Some(tokens), None) => {
                Ok(Prompt::Tokens(Tokens::read(tokens)?, media::read(block_mm_infos, mm_objects)?))
            }
            (None, Some(_)) if block_mm_infos.is_some() || mm_objects.is_some() => {
                Err(Fault::invalid("a prompt", "block_hashes and media", "hashes that contain these already")
                    .into())
            }
            (None, Some(hashes)) => Ok(Prompt::Hashes(hashes::blocks(hashes)?)),
            (Some(_), Some(_)) => Err(neither_or_both("both")),
            (None, None) => Err(neither_or_both("neither")),
        }
    }

    /// Reads several.
    pub(crate) fn read_all(
        token_ids: Option<&Bound<'py, PyAny>>,
        block_hashes: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Prompt<'py>>> {
        match (token_ids, block_hashes) {
            (Some(given), None) => {
                list(given, "token_ids", |_, tokens| Ok(Prompt::Tokens(Tokens::read(tokens)?, None)))
            }
            (None, Some(given)) => {
                list(given, "block_hashes", |_, blocks| Ok(Prompt::Hashes(hashes::blocks(blocks)?)))
            }
            (Some(_), Some(_)) => Err(neither_or_both("both")),
            (None, None) => Err(neither_or_both("neither")),
        }
    }

    /// The prompt, for as long as this is there.
    pub(crate) fn content(&self) -> PyResult<PromptContent<'_>> {
        Ok(match self {
            Prompt::Tokens(tokens, None) => PromptContent::Tokens(tokens.as_slice()?.into()),
            Prompt::Tokens(tokens, Some(media)) => {
                PromptContent::Multimodal { tokens: tokens.as_slice()?.into(), media: media.clone() }
            }
            Prompt::Hashes(hashes) => PromptContent::Hashes(hashes.clone()),
        })
    }
}

fn neither_or_both(got: &str) -> PyErr {
    Fault::invalid("a prompt", got, "token_ids or block_hashes").into()
}

/// What an answer is to have in it, as keyword arguments.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) adapter: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) ranks: Option<Vec<(u64, u32)>>,
    pub(crate) min_reach_tokens: u32,
    pub(crate) limit: Option<usize>,
    pub(crate) freshness: bool,
}

impl Wanted {
    pub(crate) fn query<'a>(&self, scope: &ScopeQuery, prompt: PromptContent<'a>) -> Query<'a> {
        let rank = |&(worker_id, dp_rank): &(u64, u32)| Rank { worker_id, dp_rank };
        let ranks = self.ranks.as_ref().map(|ranks| ranks.iter().map(rank).collect::<BTreeSet<_>>());
        let (adapter, tenant) = (self.adapter.clone(), self.tenant.clone());
        Query {
            scope: ScopeQuery { adapter, tenant, ..scope.clone() },
            prompt,
            eagle: None,
            ranks,
            min_reach_tokens: self.min_reach_tokens,
            limit: self.limit,
            without_freshness: !self.freshness,
        }
    }
}

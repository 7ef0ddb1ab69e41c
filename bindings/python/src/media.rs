//! A prompt's media as Dynamo's users state them: block by block, or by ranges of tokens.

use kvtide::PromptMedia;
use kvtide_events::{BlockMedia, Media};
use pyo3::{prelude::*, types::PyDict};

use crate::{args, error::Fault, hashes, tokens::list};

/// Reads `block_mm_infos` or `mm_objects`, of which one at most may be there.
pub(crate) fn read(
    block_mm_infos: Option<&Bound<'_, PyAny>>,
    mm_objects: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<PromptMedia>> {
    match (block_mm_infos, mm_objects) {
        (None, None) => Ok(None),
        (Some(blocks), None) => Ok(Some(PromptMedia::ByBlock(by_block(blocks)?))),
        (None, Some(objects)) => Ok(Some(PromptMedia::ByTokens(by_tokens(objects)?))),
        (Some(_), Some(_)) => {
            Err(Fault::invalid("media", "block_mm_infos and mm_objects", "one of them").into())
        }
    }
}

/// For each block `None`, or `{"mm_objects": [{"mm_hash": 42}, ...]}`.
pub(crate) fn by_block(given: &Bound<'_, PyAny>) -> PyResult<Vec<BlockMedia>> {
    const WHAT: &str = "block_mm_infos";
    list(given, WHAT, |_, block| {
        let hash =
            |_, object: &Bound<'_, PyAny>| hashes::read(&member(object, "mm_objects", "mm_hash")?, "mm_hash");
        let media = match block.is_none() {
            true => Vec::new(),
            false => list(&member(block, WHAT, "mm_objects")?, "mm_objects", hash)?,
        };
        Ok(media.into_iter().collect())
    })
}

/// `{"mm_hash": 42, "offsets": [[5, 810], ...]}`: the tokens that each stands for, from the prompt's start.
fn by_tokens(given: &Bound<'_, PyAny>) -> PyResult<Vec<Media>> {
    const WHAT: &str = "mm_objects";
    list(given, WHAT, |_, object| {
        let hash = hashes::read(&member(object, WHAT, "mm_hash")?, "mm_hash")?;
        let range = |_, pair: &Bound<'_, PyAny>| {
            let expected = "pairs of start and end, none ending before it starts";
            match *args::wholes::<usize>(pair)? {
                [start, end] if start <= end => Ok(start..end),
                _ => Err(Fault::invalid("offsets", "another pair", expected).into()),
            }
        };
        let tokens = list(&member(object, WHAT, "offsets")?, "offsets", range)?;
        Ok(Media { hash, tokens })
    })
}

fn member<'py>(given: &Bound<'py, PyAny>, what: &str, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let expected = format!("a dictionary with {name}");
    let Ok(dict) = given.cast::<PyDict>() else {
        return Err(Fault::wrong_type(what, given, &expected).into());
    };
    dict.get_item(name)?
        .ok_or_else(|| Fault::invalid(what, format!("a dictionary without {name}"), expected).into())
}

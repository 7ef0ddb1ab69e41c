//! A prompt's media as Dynamo's users state them: block by block, or by ranges of tokens.

use kvtide::PromptMedia;
use kvtide_events::{BlockMedia, Media};
use pyo3::{prelude::*, types::PyDict};

use crate::{
    error::Fault,
    hashes,
    tokens::{each, length},
};

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
    let mut blocks = Vec::with_capacity(length(given, WHAT)?);
    each(given, WHAT, |_place, block| {
        let mut media: Vec<u64> = Vec::new();
        if !block.is_none() {
            each(&member(block, WHAT, "mm_objects")?, "mm_objects", |_place, object| {
                media.push(hashes::read(&member(object, "mm_objects", "mm_hash")?, "mm_hash")?);
                Ok(())
            })?;
        }
        blocks.push(media.into_iter().collect());
        Ok(())
    })?;
    Ok(blocks)
}

/// `{"mm_hash": 42, "offsets": [[5, 810], ...]}`: the tokens that each stands for, from the prompt's start.
fn by_tokens(given: &Bound<'_, PyAny>) -> PyResult<Vec<Media>> {
    const WHAT: &str = "mm_objects";
    let mut all = Vec::with_capacity(length(given, WHAT)?);
    each(given, WHAT, |_place, object| {
        let hash = hashes::read(&member(object, WHAT, "mm_hash")?, "mm_hash")?;
        let mut tokens = Vec::new();
        each(&member(object, WHAT, "offsets")?, "offsets", |_place, pair| {
            let expected = "pairs of start and end, none ending before it starts";
            let Ok(ends) = pair.extract::<Vec<usize>>() else {
                return Err(Fault::wrong_type("offsets", pair, expected).into());
            };
            match *ends {
                [start, end] if start <= end => tokens.push(start..end),
                _ => return Err(Fault::invalid("offsets", "another pair", expected).into()),
            }
            Ok(())
        })?;
        all.push(Media { hash, tokens });
        Ok(())
    })?;
    Ok(all)
}

fn member<'py>(given: &Bound<'py, PyAny>, what: &str, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let expected = format!("a dictionary with {name}");
    let Ok(dict) = given.cast::<PyDict>() else {
        return Err(Fault::wrong_type(what, given, &expected).into());
    };
    dict.get_item(name)?
        .ok_or_else(|| Fault::invalid(what, format!("a dictionary without {name}"), expected).into())
}

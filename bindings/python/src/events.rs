//! Events as plain dictionaries, in the form that `POST /v1/events` has.

use kvtide_events::Hashing;
use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Removed, Seed, SequenceHash, Stored, Tier, TokenBlocks,
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyString},
};

use crate::{
    error::Fault,
    hashes,
    tokens::{Tokens, list},
};

/// Reads events. Chains that start with tokens are salted with that seed.
pub(crate) fn read(given: &Bound<'_, PyAny>, hashing: Hashing, seed: Seed) -> PyResult<Vec<Event>> {
    list(given, "events", |place, event| {
        let what = format!("events, index {place}");
        let Ok(dict) = event.cast::<PyDict>() else {
            return Err(Fault::wrong_type(what, event, "a dictionary with a type").into());
        };
        Given { what, dict }.event(hashing, seed)
    })
}

/// One event as it was given.
struct Given<'a, 'py> {
    what: String,
    dict: &'a Bound<'py, PyDict>,
}

impl<'py> Given<'_, 'py> {
    fn invalid(&self, got: impl ToString, expected: impl ToString) -> PyErr {
        Fault::invalid(self.what.as_str(), got, expected).into()
    }

    /// A member that is there and not `None`.
    fn member(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.dict.get_item(name)?.filter(|member| !member.is_none()))
    }

    fn text(&self, name: &str) -> PyResult<Option<String>> {
        let Some(member) = self.member(name)? else { return Ok(None) };
        match member.cast::<PyString>() {
            Ok(text) => Ok(Some(text.to_string_lossy().into_owned())),
            Err(_) => Err(Fault::wrong_type(format!("{}: {name}", self.what), &member, "a text").into()),
        }
    }

    fn event(&self, hashing: Hashing, seed: Seed) -> PyResult<Event> {
        const STORED: &[&str] =
            &["type", "tier", "group", "parent", "blocks", "sequence_hashes", "token_ids"];
        match self.text("type")?.as_deref() {
            Some("stored") => {
                self.refuse_others("a stored event", STORED)?;
                let parent =
                    self.member("parent")?.map(|parent| hashes::read(&parent, "parent")).transpose()?;
                let (layer, blocks) = (self.layer()?, self.blocks(hashing, seed)?);
                Ok(Event::Stored(Stored { layer, parent: parent.map(SequenceHash), blocks }))
            }
            Some("removed") => {
                self.refuse_others("a removed event", &["type", "tier", "group", "sequence_hashes"])?;
                let Some(names) = self.member("sequence_hashes")? else {
                    return Err(self.invalid("a removed event without sequence_hashes", "sequence_hashes"));
                };
                Ok(Event::Removed(Removed { layer: self.layer()?, names: hashes::names(&names)? }))
            }
            Some("cleared") => {
                self.refuse_others("a cleared event", &["type"])?;
                Ok(Event::Cleared)
            }
            Some(_) => Err(self.invalid("another type", "stored, removed or cleared")),
            None => Err(self.invalid("no type", "stored, removed or cleared")),
        }
    }

    fn refuse_others(&self, event: &str, names: &[&str]) -> PyResult<()> {
        for key in self.dict.keys() {
            let key = key.to_string();
            if !names.contains(&key.as_str()) {
                return Err(self
                    .invalid(format!("{event} with {key}"), format!("no members but {}", names.join(", "))));
            }
        }
        Ok(())
    }

    fn layer(&self) -> PyResult<Layer> {
        let tier = match self.text("tier")?.as_deref() {
            None | Some("gpu") => Tier::Gpu,
            Some("host") => Tier::Host,
            Some("disk") => Tier::Disk,
            Some("external") => Tier::External,
            Some(_) => return Err(self.invalid("another tier", "gpu, host, disk or external")),
        };
        let group = match self.member("group")? {
            None => Group::FULL,
            Some(group) => {
                let known = group.extract::<u64>().ok().and_then(Group::new);
                known.ok_or_else(|| {
                    self.invalid("another group", format!("one of 0 to {}", Group::LIMIT - 1))
                })?
            }
        };
        Ok(Layer::new(tier, group))
    }

    fn blocks(&self, hashing: Hashing, root_seed: Seed) -> PyResult<Blocks> {
        let (blocks, names) = (self.member("blocks")?, self.member("sequence_hashes")?);
        match (blocks, names, self.member("token_ids")?) {
            (Some(blocks), None, None) => Ok(Blocks::Hashed(hashed(&blocks)?)),
            (None, Some(names), None) => Ok(Blocks::Named(hashes::names(&names)?)),
            (None, Some(names), Some(tokens)) => {
                let names = hashes::names(&names)?;
                let tokens = Tokens::read(&tokens)?.windows(hashing, names.len())?;
                let tokens_per_block = hashing.tokens_per_block();
                Ok(Blocks::Tokens(TokenBlocks {
                    names,
                    tokens,
                    tokens_per_block,
                    root_seed,
                    media: Vec::new(),
                }))
            }
            (Some(_), _, _) | (None, None, _) => {
                let expected = "blocks, or sequence_hashes with or without token_ids";
                Err(self.invalid("a stored event without either", expected))
            }
        }
    }
}

/// `[{"sequence_hash": ..., "block_hash": ...}, ...]`.
fn hashed(given: &Bound<'_, PyAny>) -> PyResult<Vec<Block>> {
    const EXPECTED: &str = "a dictionary with sequence_hash and block_hash";
    list(given, "blocks", |_, block| {
        let Ok(dict) = block.cast::<PyDict>() else {
            return Err(Fault::wrong_type("blocks", block, EXPECTED).into());
        };
        let (name, content) = (dict.get_item("sequence_hash")?, dict.get_item("block_hash")?);
        let (Some(name), Some(content), 2) = (name, content, dict.len()) else {
            return Err(Fault::invalid("blocks", "a dictionary with other members", EXPECTED).into());
        };
        let name = SequenceHash(hashes::read(&name, "sequence_hash")?);
        Ok(Block { name, content: BlockHash(hashes::read(&content, "block_hash")?) })
    })
}

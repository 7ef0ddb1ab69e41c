//! A prompt's media as requests state them, block by block or by ranges of tokens. The names are Dynamo's.

use kvtide_events::{BlockMedia, Media};
use serde::{Deserialize, de::IgnoredAny};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

use super::{body::Hash, problem::Problem};
use crate::{PromptContent, PromptMedia};

/// Null, or the media of one block.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(from = "Option<BlockInfo>")]
pub(super) struct Block(BlockMedia);

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "null or an object with mm_objects")]
#[schema(as = BlockMedia)]
struct BlockInfo {
    mm_objects: Vec<BlockObject>,
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with mm_hash")]
#[schema(as = BlockMediaObject)]
struct BlockObject {
    mm_hash: Hash,
    /// Where in the block it stands is no part of the block's hash.
    #[serde(rename = "offsets")]
    #[schema(value_type = Option<Vec<(usize, usize)>>)]
    _offsets: Option<IgnoredAny>,
}

/// Its schema: that of what is there, or null.
impl PartialSchema for Block {
    fn schema() -> RefOr<Schema> {
        Option::<BlockInfo>::schema()
    }
}

impl ToSchema for Block {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((BlockInfo::name().into(), BlockInfo::schema()));
        BlockInfo::schemas(schemas);
    }
}

impl From<Option<BlockInfo>> for Block {
    fn from(info: Option<BlockInfo>) -> Block {
        let objects = info.into_iter().flat_map(|info| info.mm_objects);
        Block(objects.map(|object| object.mm_hash.0).collect())
    }
}

/// A medium, and the tokens that it stands for as pairs of start and end.
#[derive(Deserialize, ToSchema, PartialEq, Debug)]
#[serde(expecting = "an object with mm_hash and offsets")]
#[schema(as = MediaObject)]
pub(super) struct Object {
    mm_hash: Hash,
    offsets: Vec<(usize, usize)>,
}

impl Object {
    fn media(self) -> Result<Media, Problem> {
        let range = |(number, (start, end))| {
            if start <= end {
                Ok(start..end)
            } else {
                Err(Problem::impossible(format!(
                    "pair {number} of offsets ends before it starts, expected an end behind"
                )))
            }
        };
        let tokens = (1_u64..).zip(self.offsets).map(range).collect::<Result<_, _>>()?;
        Ok(Media { hash: self.mm_hash.0, tokens })
    }
}

/// A prompt of tokens, with the media that are stated.
pub(super) fn prompt(
    tokens: Vec<u32>,
    block_mm_infos: Option<Vec<Block>>,
    mm_objects: Option<Vec<Object>>,
) -> Result<PromptContent<'static>, Problem> {
    let media = match (block_mm_infos, mm_objects) {
        (None, None) => return Ok(PromptContent::Tokens(tokens.into())),
        (Some(blocks), None) => PromptMedia::ByBlock(blocks.into_iter().map(|Block(media)| media).collect()),
        (None, Some(objects)) => {
            PromptMedia::ByTokens(objects.into_iter().map(Object::media).collect::<Result<_, _>>()?)
        }
        (Some(_), Some(_)) => {
            return Err(Problem::impossible("got block_mm_infos and mm_objects, expected one of them"));
        }
    };
    Ok(PromptContent::Multimodal { tokens: tokens.into(), media })
}

//! What asks how much of a prompt, or of each of several, every rank holds, and what comes back: the same over HTTP and on
//! the bus.

use std::slice;

use kvtide_radix::{BlockHash, Rank};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    ServiceLimits,
    body::{Body, Hash, Object, from_msgpack, object},
    lists::{self, Lists},
    media,
    problem::Problem,
};
use crate::{Answer, Indexer, PromptContent, Query, ScopeQuery, traces};

#[derive(Deserialize, ToSchema, PartialEq, Debug)]
#[schema(as = Overlap)]
#[serde(deny_unknown_fields, expecting = "an object with token_ids, block_hashes or queries")]
pub(super) struct Request {
    #[serde(default, deserialize_with = "object")]
    pub(super) scope: ScopeQuery,
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) block_hashes: Option<Vec<Hash>>,
    pub(super) block_mm_infos: Option<Vec<media::Block>>,
    pub(super) mm_objects: Option<Vec<media::Object>>,
    pub(super) is_eagle: Option<bool>,
    pub(super) ranks: Option<Vec<(u64, u32)>>,
    #[serde(default)]
    pub(super) min_reach_tokens: u32,
    pub(super) limit: Option<usize>,
    #[serde(default = "yes")]
    pub(super) freshness: bool,
    /// Several, in place of all else.
    #[schema(no_recursion)]
    pub(super) queries: Option<Vec<Request>>,
}

fn yes() -> bool {
    true
}

impl Default for Request {
    fn default() -> Self {
        Request {
            scope: ScopeQuery::default(),
            token_ids: None,
            block_hashes: None,
            block_mm_infos: None,
            mm_objects: None,
            is_eagle: None,
            ranks: None,
            min_reach_tokens: 0,
            limit: None,
            freshness: true,
            queries: None,
        }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Reply {
    One(Box<Answer>),
    Several { answers: Vec<Answer> },
}

impl Request {
    /// Reads JSON.
    pub(super) fn from_json(body: &Body) -> Result<Request, Problem> {
        Request::from_short_json(&body.bytes).map_or_else(|| body.json(), Ok)
    }

    /// Reads msgpack.
    pub(super) fn from_msgpack(body: &Body) -> Result<Request, Problem> {
        Request::from_short_msgpack(&body.bytes).map_or_else(|| body.msgpack(), Ok)
    }

    /// With its lists read by themselves. None where it is no request, or lists are not of the usual form.
    fn from_short_json(document: &[u8]) -> Option<Request> {
        let (short, lists) = lists::json::cut(document)?;
        serde_json::from_slice::<Object<Request>>(&short).ok()?.0.with(lists)
    }

    /// The same of msgpack.
    fn from_short_msgpack(document: &[u8]) -> Option<Request> {
        let (short, lists) = lists::msgpack::cut(document)?;
        from_msgpack::<Object<Request>>(&short).ok()?.0.with(lists)
    }

    /// The request whose empty lists are these.
    fn with(mut self, mut lists: Lists) -> Option<Request> {
        self.put_back(&mut lists)?;
        (lists == Lists::default()).then_some(self)
    }

    fn put_back(&mut self, lists: &mut Lists) -> Option<()> {
        lists.put_back(&mut self.token_ids, &mut self.block_hashes)?;
        self.queries.iter_mut().flatten().try_for_each(|query| query.put_back(lists))
    }

    /// Answers what `may_ask` allows.
    pub(super) fn answer(
        mut self,
        indexer: &Indexer,
        limits: &ServiceLimits,
        may_ask: impl Fn(&Query<'_>) -> Result<(), Problem>,
    ) -> Result<Reply, Problem> {
        let Some(queries) = self.queries.take() else {
            let query = self.query()?;
            may_ask(&query)?;
            let answer = Box::new(indexer.overlap(&query)?);
            traces::note_answers(slice::from_ref(&answer));
            return Ok(Reply::One(answer));
        };
        if self != Request::default() {
            return Err(Problem::impossible("got queries and more, expected each query to say what it asks"));
        }
        let (got, limit) = (queries.len() as u64, limits.queries as u64);
        if got > limit {
            return Err(Problem::too_large("a request's queries", "queries", Some(got), limit));
        }
        let queries: Vec<Query> = queries.into_iter().map(Request::query).collect::<Result<_, _>>()?;
        queries.iter().try_for_each(may_ask)?;
        let answers = indexer.overlap_all(&queries)?;
        traces::note_answers(&answers);
        Ok(Reply::Several { answers })
    }

    fn query(self) -> Result<Query<'static>, Problem> {
        if self.queries.is_some() {
            return Err(Problem::impossible("got queries within queries, expected a prompt"));
        }
        let prompt = match (self.token_ids, self.block_hashes) {
            (Some(tokens), None) => media::prompt(tokens, self.block_mm_infos, self.mm_objects)?,
            (None, Some(_)) if self.block_mm_infos.is_some() || self.mm_objects.is_some() => {
                return Err(Problem::impossible(
                    "got block_hashes and media, expected these to be in the hashes already",
                ));
            }
            (None, Some(hashes)) => {
                PromptContent::Hashes(hashes.into_iter().map(|hash| BlockHash(hash.0)).collect())
            }
            (Some(_), Some(_)) => {
                return Err(Problem::impossible("got token_ids and block_hashes, expected one of them"));
            }
            (None, None) => {
                return Err(Problem::impossible("expected token_ids or block_hashes, got neither"));
            }
        };
        let ranks = self
            .ranks
            .map(|ranks| ranks.into_iter().map(|(worker_id, dp_rank)| Rank { worker_id, dp_rank }).collect());
        Ok(Query {
            scope: self.scope,
            prompt,
            eagle: self.is_eagle,
            ranks,
            min_reach_tokens: self.min_reach_tokens,
            limit: self.limit,
            without_freshness: !self.freshness,
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::Request;

    type Read = Option<Request>;

    /// What comes of a document, read whole and with its lists by themselves.
    fn json(document: &[u8]) -> (Read, Read) {
        (serde_json::from_slice(document).ok(), Request::from_short_json(document))
    }

    fn msgpack(document: &[u8]) -> (Read, Read) {
        (rmp_serde::from_slice(document).ok(), Request::from_short_msgpack(document))
    }

    /// Damages a document a little and has it read, again and again.
    fn damage(document: &[u8], marks: &[u8], rounds: usize, both: fn(&[u8]) -> (Read, Read)) {
        let mut random = StdRng::seed_from_u64(7);
        let (mut read, mut refused) = (0, 0);
        for _round in 0..rounds {
            let mut bytes = document.to_vec();
            for _change in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                let mark = marks[random.random_range(0..marks.len())];
                match random.random_range(0..3) {
                    0 => bytes[at] = mark,
                    1 => bytes.insert(at, mark),
                    _ => drop(bytes.remove(at)),
                }
            }
            let (whole, short) = both(&bytes);
            assert!(short.is_none() || short == whole, "{bytes:02x?}: {short:?}, {whole:?}");
            read += usize::from(short.is_some());
            refused += usize::from(short.is_none());
        }
        assert!(read > rounds / 200 && refused > rounds / 200, "{read} and {refused}");
    }

    #[test]
    fn lists_of_numbers_are_read_by_themselves_and_are_what_they_are_in_the_document() {
        let rows = [
            r#"{"token_ids": []}"#,
            r#"{"token_ids":[0]}"#,
            r#"{"token_ids": [1, 22, 333, 4444, 55555, 666666, 7777777, 88888888, 999999999, 4294967295], "limit": 1}"#,
            "{\"token_ids\"\t:\r\n [ 1\n,\t2 , 3 ] }",
            r#"{"block_hashes": [0, -1, 18446744073709551615, -9223372036854775808, "1a", "0xFFFFFFFFFFFFFFFF"]}"#,
            r#"{"block_hashes": ["00000000000000ff"], "ranks": [[1, 2], [3, 4]], "scope": {"model": "[1]"}}"#,
            r#"{"scope": {"model": "\"token_ids\": [1]"}, "token_ids": [2]}"#,
            r#"{"queries": [{"token_ids": [1]}, {"block_hashes": [2]}, {"token_ids": [3, 4], "ranks": [[5, 6]]}, {}]}"#,
            r#"{"queries": []}"#,
        ];
        for row in rows {
            let (whole, short) = json(row.as_bytes());
            assert!(whole.is_some() && whole == short, "{row}: {short:?}");
            let row: serde_json::Value = serde_json::from_str(row).unwrap();
            let (packed, short) = msgpack(&rmp_serde::to_vec(&row).unwrap());
            assert!(packed == whole && packed == short, "{row}: {short:?}");
        }
        // Integers in each of the forms that msgpack has, and all the larger ones than they need.
        let forms = [
            &b"\x05"[..],
            b"\xcc\xff",
            b"\xcd\xff\xff",
            b"\xce\xff\xff\xff\xff",
            b"\xcf\0\0\0\0\xff\xff\xff\xff",
            b"\xd0\x7f",
            b"\xd1\x7f\xff",
            b"\xd2\x7f\xff\xff\xff",
            b"\xd3\0\0\0\0\xff\xff\xff\xff",
        ];
        let tokens = [&b"\x81\xa9token_ids\x99"[..], &forms.concat()].concat();
        let hashes =
            [&b"\x81\xacblock_hashes\x9d"[..], &forms.concat(), b"\xff\xd0\x80\xd3\x80\0\0\0\0\0\0\0\xa20a"]
                .concat();
        for document in [tokens, hashes] {
            let (whole, short) = msgpack(&document);
            assert!(whole.is_some() && whole == short, "{document:02x?}: {short:?}");
        }
    }

    #[test]
    fn what_is_of_another_form_is_left_to_the_usual_way() {
        let rows = [
            r#"{"token_ids": [01]}"#,
            r#"{"token_ids": [1,]}"#,
            r#"{"token_ids": [,1]}"#,
            r#"{"token_ids": [1 2]}"#,
            r#"{"token_ids": [1"#,
            r#"{"token_ids": [4294967296]}"#,
            r#"{"token_ids": [-1]}"#,
            r#"{"token_ids": [1.0]}"#,
            r#"{"token_ids": ["1"]}"#,
            "{\"token_ids\": [1,\x0c2]}",
            r#"{"token_ids": [1], "token_ids": [2]}"#,
            r#"{"block_hashes": [18446744073709551616]}"#,
            r#"{"block_hashes": [-9223372036854775809]}"#,
            r#"{"block_hashes": [-0]}"#,
            r#"{"block_hashes": [""]}"#,
            r#"{"block_hashes": ["x"]}"#,
            r#"{"scope": {"token_ids": [1]}}"#,
            // Names by other letters, which only serde_json reads.
            r#"{"token\u005fids": [1]}"#,
            r#"{"queries": [{"token\u005fids": []}, {"token_ids": [1]}]}"#,
        ];
        for row in rows {
            assert_eq!(Request::from_short_json(row.as_bytes()), None, "{row}");
        }
    }

    #[test]
    fn whatever_is_damaged_is_read_as_it_is_read_whole_or_not_at_all() {
        let document = r#"{"queries": [{"token_ids": [1, 22, 333333333], "limit": 1}, {"scope": {"model": "a\"b"},
                           "block_hashes": [-1, 12345678901234567890, "0x1a"]}, {"token_ids": []}]}"#;
        damage(document.as_bytes(), b"0123456789[]{},:\"\\ -+.exu\n\t\x0c\0_abtoken_ids", 100_000, json);
        let document: serde_json::Value = serde_json::from_str(document).unwrap();
        let marks: Vec<u8> = (0..=255).collect();
        damage(&rmp_serde::to_vec(&document).unwrap(), &marks, 100_000, msgpack);
    }

    /// Tokens that look like msgpack's markers, or take as few bytes as can be: where one begins is hard to tell then.
    fn tokens(random: &mut StdRng, count: usize) -> Vec<u32> {
        let usual = [0x7f, 0xff, 0xcdcd, 0xcecd, 0x00cd_cdcd, 0xcece_cdcd, 0xffff_ffff, 127_999];
        let first = random.random_range(0..usual.len());
        let (some, all) =
            (&usual[first..random.random_range(first..usual.len()) + 1], random.random_bool(0.5));
        let token = |_| {
            let token = some[random.random_range(0..some.len())];
            if all { random.random_range(0..=token) } else { token }
        };
        (0..count).map(token).collect()
    }

    #[test]
    fn long_lists_are_read_by_themselves_whatever_is_in_them() {
        let mut random = StdRng::seed_from_u64(7);
        for _list in 0..300 {
            let count = random.random_range(0..3000);
            let tokens = tokens(&mut random, count);
            let hashes: Vec<i64> = tokens.iter().map(|_| random.random()).collect();
            let request =
                serde_json::json!({"queries": [{"token_ids": tokens, "block_hashes": hashes}, {"limit": 1}]});
            let (whole, short) = json(request.to_string().as_bytes());
            assert!(whole.is_some() && whole == short, "{tokens:?}");
            let (packed, short) = msgpack(&rmp_serde::to_vec(&request).unwrap());
            assert!(packed == whole && packed == short, "{tokens:?}");
        }
    }

    #[test]
    fn long_lists_that_are_damaged_are_read_as_they_are_read_whole_or_not_at_all() {
        let mut random = StdRng::seed_from_u64(7);
        let marks: Vec<u8> = (0..=255).collect();
        for _list in 0..20 {
            let tokens = tokens(&mut random, 1500);
            let document = rmp_serde::to_vec(&serde_json::json!({"token_ids": tokens})).unwrap();
            damage(&document, &marks, 500, msgpack);
            // It has more tokens, or fewer, than it says.
            for count in [0_u16, 1, 375, 1499, 1501, 65_535] {
                let mut document = document.clone();
                document[12..14].copy_from_slice(&count.to_be_bytes());
                assert_eq!(msgpack(&document).1, None, "{count} of {tokens:?}");
            }
        }
    }
}

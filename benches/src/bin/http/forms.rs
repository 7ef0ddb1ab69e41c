//! The forms in which a prompt is sent.

use clap::ValueEnum;
use serde::Serialize;

use crate::{client::request, content::Prompt, sides::Side};

/// In what form a prompt is sent to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Form {
    /// Block hashes as JSON numbers.
    Hashes,
    /// Token ids as JSON numbers.
    Tokens,
    /// Token ids as msgpack.
    TokensMsgpack,
    /// Token ids as four bytes each.
    TokensRaw,
}

impl Form {
    pub(crate) const ALL: [Form; 4] = [Form::Hashes, Form::Tokens, Form::TokensMsgpack, Form::TokensRaw];

    /// What a side is asked with, to be compared with this.
    pub(crate) fn to(self, side: Side) -> Form {
        match (side, self) {
            (Side::Dynamo, Form::TokensMsgpack | Form::TokensRaw) => Form::Tokens,
            (Side::Kvtide | Side::Dynamo, form) => form,
        }
    }

    /// The whole request. None where the side knows no such form.
    pub(crate) fn request(self, side: Side, prompt: &Prompt) -> Option<Vec<u8>> {
        const JSON: &str = "application/json";
        // As Python's json module writes them, which is what asks Dynamo; signed, as Dynamo takes them.
        let hashes = || list(prompt.hashes.iter().map(|hash| hash.cast_signed()));
        let tokens = || list(prompt.tokens.iter());
        let of_kvtide = |content_type, body: &[u8]| Some(request("/v1/overlap", content_type, body));
        match (self, side) {
            (Form::Hashes, Side::Kvtide) => {
                let body = format!("{{\"scope\": {{\"model\": \"m\"}}, \"block_hashes\": [{}]}}", hashes());
                of_kvtide(JSON, body.as_bytes())
            }
            (Form::Tokens, Side::Kvtide) => {
                let body = format!("{{\"scope\": {{\"model\": \"m\"}}, \"token_ids\": [{}]}}", tokens());
                of_kvtide(JSON, body.as_bytes())
            }
            (Form::TokensMsgpack, Side::Kvtide) => {
                #[derive(Serialize)]
                struct Body<'a> {
                    token_ids: &'a [u32],
                }
                let body = rmp_serde::to_vec_named(&Body { token_ids: &prompt.tokens }).ok()?;
                of_kvtide("application/msgpack", &body)
            }
            (Form::TokensRaw, Side::Kvtide) => {
                let body: Vec<u8> = prompt.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
                Some(request("/v1/overlap?model=m", "application/octet-stream", &body))
            }
            (Form::Hashes, Side::Dynamo) => {
                let body = format!("{{\"model_name\": \"m\", \"block_hashes\": [{}]}}", hashes());
                Some(request("/query_by_hash", JSON, body.as_bytes()))
            }
            (Form::Tokens, Side::Dynamo) => {
                let body = format!("{{\"model_name\": \"m\", \"token_ids\": [{}]}}", tokens());
                Some(request("/query", JSON, body.as_bytes()))
            }
            (Form::TokensMsgpack | Form::TokensRaw, Side::Dynamo) => None,
        }
    }
}

fn list(numbers: impl Iterator<Item = impl ToString>) -> String {
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(", ")
}

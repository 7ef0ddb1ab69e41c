//! `POST /v1/overlap`: how much of a prompt, or of each of several, every rank holds.

use std::sync::Arc;

use axum::{
    extract::{Query as UrlQuery, State, rejection::QueryRejection},
    http::HeaderMap,
};
use serde::Deserialize;

use super::{
    Service,
    body::{Body, Json, MSGPACK, media_type},
    guard::Asker,
    problem::Problem,
    request::{Reply, Request},
};
use crate::ScopeQuery;

/// Tokens alone, each as four bytes, little-endian.
const TOKENS: &str = "application/octet-stream";

/// How much of a prompt, or of each of several, every rank holds.
#[utoipa::path(
    post,
    path = "/v1/overlap",
    tag = "query",
    params(Options),
    request_body(content((Request = "application/json"), (Request = "application/msgpack"), (Vec<u8> = "application/octet-stream"))),
    responses(
        (status = 200, description = "Of one version of the index", body = Reply),
        (status = "default", response = Problem)
    )
)]
pub(super) async fn post(
    State(service): State<Service>,
    asker: Asker,
    options: Result<UrlQuery<Options>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Reply>, Problem> {
    let UrlQuery(options) = options.map_err(|_| Options::malformed())?;
    let media_type = media_type(&headers);
    let turns = Arc::clone(&service.large);
    let answer = move |body: Body| {
        let request = match media_type.as_deref() {
            Some(TOKENS) => options.request(body.words()?),
            _ if options != Options::default() => return Err(Options::malformed()),
            Some(MSGPACK) => Request::from_msgpack(&body)?,
            // Clients that say nothing, or something else by themselves, mean JSON.
            Some(_) | None => Request::from_json(&body)?,
        };
        request.answer(&service.indexer, &service.limits, |query| asker.may_ask(query))
    };
    Ok(Json(body.work(&turns, answer).await?))
}

/// What a query string says of a prompt that is sent as it is.
#[derive(Deserialize, PartialEq, Default, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Options {
    model: Option<String>,
    revision: Option<String>,
    tokenizer: Option<String>,
    kv_dtype: Option<String>,
    layout: Option<String>,
    block_size: Option<u32>,
    adapter: Option<String>,
    tenant: Option<String>,
    min_reach_tokens: Option<u32>,
    limit: Option<usize>,
    freshness: Option<bool>,
}

impl Options {
    fn malformed() -> Problem {
        Problem::malformed(format!(
            "expected a query string with a body of type {TOKENS} only, of parts of a scope, min_reach_tokens, limit and \
             freshness; got another"
        ))
    }

    fn request(self, token_ids: Vec<u32>) -> Request {
        let Options { model, block_size, adapter, tenant, .. } = self;
        let stated = |part: Option<String>| part.map(Some);
        Request {
            scope: ScopeQuery {
                model,
                revision: stated(self.revision),
                tokenizer: stated(self.tokenizer),
                kv_dtype: stated(self.kv_dtype),
                layout: stated(self.layout),
                block_size,
                adapter,
                tenant,
            },
            token_ids: Some(token_ids),
            min_reach_tokens: self.min_reach_tokens.unwrap_or(0),
            limit: self.limit,
            freshness: self.freshness.unwrap_or(true),
            ..Request::default()
        }
    }
}

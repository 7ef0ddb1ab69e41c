//! `POST /query` and `POST /query_by_hash`: how many leading tokens of a prompt each instance holds.

use std::{collections::BTreeMap, slice};

use axum::extract::State;
use kvtide_radix::BlockHash;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Refusal, Said,
    partition::{Partition, default_group, refuse_tenant},
};
use crate::{
    Answer, PromptContent, Query, QueryError, ReachTokens, ScopeQuery,
    service::{Service, body::Json, guard::Asker, media, problem::Problem},
    traces,
};

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with token_ids and model_name")]
pub(super) struct ByTokens {
    token_ids: Vec<u32>,
    model_name: String,
    #[serde(default = "default_group")]
    routing_group: String,
    #[serde(default = "default_group")]
    tenant_id: String,
    lora_name: Option<String>,
    cache_salt: Option<String>,
    /// What follows is of Dynamo's selection service; its indexer does not know it.
    mm_routing_info: Option<RoutingInfo>,
    block_mm_infos: Option<Vec<media::Block>>,
    is_eagle: Option<bool>,
}

/// Tokens in which a medium's own stand for it, to be taken in place of `token_ids` where there are any.
#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with routing_token_ids")]
struct RoutingInfo {
    routing_token_ids: Vec<u32>,
    #[serde(default)]
    block_mm_infos: Vec<media::Block>,
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with block_hashes and model_name")]
pub(super) struct ByHashes {
    block_hashes: Vec<i64>,
    model_name: String,
    #[serde(default = "default_group")]
    routing_group: String,
    #[serde(default = "default_group")]
    tenant_id: String,
    cache_salt: Option<String>,
}

/// What is held, in tokens. `scores` is the GPU alone, by instance and rank.
#[derive(Serialize, Default, ToSchema)]
pub(super) struct Scores {
    scores: BTreeMap<u64, BTreeMap<u32, u32>>,
    /// Dynamo's clients expect the name; it is always empty there too.
    frequencies: [u32; 0],
    instances: BTreeMap<u64, Tiers>,
}

/// An instance's tiers, each with all faster ones, of its best rank in that tier.
#[derive(Serialize, Default, ToSchema)]
struct Tiers {
    longest_matched: u32,
    gpu: u32,
    dp: BTreeMap<u32, u32>,
    cpu: u32,
    disk: u32,
}

/// How many leading tokens of a prompt each instance holds.
#[utoipa::path(
    post,
    path = "/query",
    tag = "dynamo",
    request_body = ByTokens,
    responses(
        (status = 200, description = "In tokens", body = Scores),
        (status = 401, response = Problem),
        (status = 403, response = Problem),
        (status = "default", response = Refusal)
    )
)]
pub(super) async fn by_tokens(
    State(service): State<Service>,
    asker: Asker,
    Said(said): Said<ByTokens>,
) -> Result<Json<Scores>, Refusal> {
    refuse_tenant(Some(&said.tenant_id))?;
    let partition = Partition::new(said.model_name, said.routing_group, service.limits.name_bytes)?;
    let (tokens, media) = match said.mm_routing_info {
        Some(info) if !info.routing_token_ids.is_empty() => {
            (info.routing_token_ids, Some(info.block_mm_infos))
        }
        Some(_) | None => (said.token_ids, said.block_mm_infos),
    };
    let (adapter, tenant) = (said.lora_name, said.cache_salt);
    let salted = ScopeQuery { adapter, tenant, ..ScopeQuery::default() };
    let prompt = media::prompt(tokens, media, None)?;
    let query = Query { scope: salted, prompt, eagle: said.is_eagle, ..Query::default() };
    asker.may_ask(&query)?;
    answer(&service, &partition, query)
}

/// The same of a prompt by the hashes of its blocks.
#[utoipa::path(
    post,
    path = "/query_by_hash",
    tag = "dynamo",
    request_body = ByHashes,
    responses(
        (status = 200, description = "In tokens", body = Scores),
        (status = 401, response = Problem),
        (status = 403, response = Problem),
        (status = "default", response = Refusal)
    )
)]
pub(super) async fn by_hashes(
    State(service): State<Service>,
    asker: Asker,
    Said(said): Said<ByHashes>,
) -> Result<Json<Scores>, Refusal> {
    refuse_tenant(Some(&said.tenant_id))?;
    if said.cache_salt.is_some() {
        return Err(Refusal::bad(
            "cache_salt is not accepted by /query_by_hash; block_hashes must already include the intended cache salt",
        ));
    }
    let partition = Partition::new(said.model_name, said.routing_group, service.limits.name_bytes)?;
    let hashes = said.block_hashes.into_iter().map(|hash| BlockHash(hash.cast_unsigned())).collect();
    let query = Query { prompt: PromptContent::Hashes(hashes), ..Query::default() };
    asker.may_ask(&query)?;
    answer(&service, &partition, query)
}

/// Answers a query, whose scope states adapter and tenant alone.
fn answer(service: &Service, partition: &Partition, query: Query<'_>) -> Result<Json<Scores>, Refusal> {
    let (fixed, workers) = service.registry.find(partition)?;
    let ScopeQuery { adapter, tenant, .. } = query.scope;
    let scope = ScopeQuery { adapter, tenant, ..fixed };
    // Who reaches nothing is not in the answer.
    let query = Query { scope, min_reach_tokens: 1, without_freshness: true, ..query };
    let answer = service.indexer.overlap(&query).map_err(|error| match error {
        QueryError::UnknownScope { .. } => partition.unknown(),
        QueryError::SeveralScopes { .. }
        | QueryError::TooManyTokens { .. }
        | QueryError::TooManyRanks { .. }
        | QueryError::TooManyMedia { .. }
        | QueryError::OtherHashing { .. } => Problem::from(error).into(),
    })?;
    traces::note_answers(slice::from_ref(&answer));
    Ok(Json(Scores::of(&answer, |worker_id| workers.contain(worker_id))))
}

impl Scores {
    fn of(answer: &Answer, is_asked: impl Fn(u64) -> bool) -> Scores {
        let mut scores = Scores::default();
        for rank in answer.ranks.iter().filter(|rank| is_asked(rank.worker_id)) {
            let Some(ReachTokens { gpu, host, external, .. }) = rank.reach_tokens else { continue };
            if gpu > 0 {
                scores.scores.entry(rank.worker_id).or_default().insert(rank.dp_rank, gpu);
            }
            let tiers = scores.instances.entry(rank.worker_id).or_default();
            tiers.dp.insert(rank.dp_rank, gpu);
            tiers.gpu = tiers.gpu.max(gpu);
            tiers.cpu = tiers.cpu.max(host);
            // There, what is external counts with the disk.
            tiers.disk = tiers.disk.max(external);
            tiers.longest_matched = tiers.longest_matched.max(external);
        }
        scores
    }
}

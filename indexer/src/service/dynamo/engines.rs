//! `POST /register`, `POST /unregister` and `GET /workers`: engines that come and go, and who they are.

use std::collections::BTreeMap;

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::StatusCode,
};
use kvtide_radix::Rank;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    DONE, Done, Refusal, Said,
    partition::{Partition, check_name, default_group, refuse_tenant},
    registry::NewEngine,
    stated,
};
use crate::service::{
    Service,
    body::{Json, apart},
    problem::Problem,
};

/// An `additional_salt` is taken and not needed: it changes the names that an engine gives its blocks, which are opaque here.
#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with instance_id, endpoint, model_name and block_size")]
pub(super) struct Register {
    instance_id: u64,
    endpoint: String,
    model_name: String,
    #[serde(default = "default_group")]
    routing_group: String,
    #[serde(default = "default_group")]
    tenant_id: String,
    block_size: u32,
    dp_rank: Option<u32>,
    replay_endpoint: Option<String>,
    /// Dynamo's clients do not say it.
    #[serde(default)]
    is_eagle: bool,
}

/// Follows an engine from here on.
#[utoipa::path(
    post,
    path = "/register",
    tag = "dynamo",
    request_body = Register,
    responses(
        (status = 201, description = "It is followed", body = Done),
        (status = 401, response = Problem),
        (status = 403, response = Problem),
        (status = "default", response = Refusal)
    )
)]
pub(super) async fn register(
    State(service): State<Service>,
    Said(register): Said<Register>,
) -> Result<(StatusCode, Json<Done>), Refusal> {
    let limits = service.limits;
    let Register { instance_id: worker_id, endpoint, replay_endpoint, dp_rank, .. } = register;
    refuse_tenant(Some(&register.tenant_id))?;
    check_name("endpoint", &endpoint, limits.name_bytes)?;
    check_name("replay_endpoint", replay_endpoint.as_deref().unwrap_or_default(), limits.name_bytes)?;
    let engine = NewEngine {
        rank: Rank { worker_id, dp_rank: dp_rank.unwrap_or(0) },
        is_rank_stated: dp_rank.is_some(),
        partition: Partition::new(register.model_name, register.routing_group, limits.name_bytes)?,
        block_size: register.block_size,
        eagle: register.is_eagle,
        endpoint,
        replay_endpoint,
    };
    apart(move || service.registry.register(engine, limits.engines)).await?;
    Ok((StatusCode::CREATED, DONE))
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with instance_id and model_name")]
pub(super) struct Unregister {
    instance_id: u64,
    model_name: String,
    routing_group: Option<String>,
    tenant_id: Option<String>,
    dp_rank: Option<u32>,
}

/// Follows an engine no more.
#[utoipa::path(
    post,
    path = "/unregister",
    tag = "dynamo",
    request_body = Unregister,
    responses(
        (status = 200, description = "It has gone", body = Done),
        (status = 401, response = Problem),
        (status = 403, response = Problem),
        (status = "default", response = Refusal)
    )
)]
pub(super) async fn unregister(
    State(service): State<Service>,
    Said(unregister): Said<Unregister>,
) -> Result<Json<Done>, Refusal> {
    let Unregister { instance_id, model_name, routing_group, tenant_id, dp_rank } = unregister;
    refuse_tenant(tenant_id.as_deref())?;
    let gone =
        move || service.registry.unregister(instance_id, (&model_name, routing_group.as_deref()), dp_rank);
    apart(gone).await?;
    Ok(DONE)
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    model_name: Option<String>,
    routing_group: Option<String>,
    tenant_id: Option<String>,
}

/// An instance with its engines.
#[derive(Serialize, ToSchema)]
pub(super) struct Instance {
    instance_id: u64,
    source: &'static str,
    status: Status,
    model_name: String,
    routing_group: String,
    block_size: u32,
    endpoints: BTreeMap<u32, String>,
    listeners: BTreeMap<u32, Listener>,
}

/// An engine.
#[derive(Serialize, ToSchema)]
struct Listener {
    endpoint: String,
    status: Status,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    /// There is no connection; it is tried again and again.
    Pending,
    Active,
}

/// The engines that were registered.
#[utoipa::path(
    get,
    path = "/workers",
    tag = "dynamo",
    params(Which),
    responses(
        (status = 200, description = "By instance", body = Vec<Instance>),
        (status = 401, response = Problem),
        (status = 403, response = Problem),
        (status = "default", response = Refusal)
    )
)]
pub(super) async fn list(
    State(service): State<Service>,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Json<Vec<Instance>>, Refusal> {
    let Which { model_name, routing_group, tenant_id } = stated(which)?;
    refuse_tenant(tenant_id.as_deref())?;
    let mut instances: BTreeMap<(u64, Partition), Instance> = BTreeMap::new();
    for (member, engine) in service.registry.engines() {
        let Partition { model_name: model, routing_group: group } = &member.partition;
        let is_asked = model_name.as_ref().is_none_or(|name| name == model)
            && routing_group.as_ref().is_none_or(|name| name == group);
        if !is_asked {
            continue;
        }
        let Rank { worker_id, dp_rank } = member.rank;
        let status = if engine.is_connected() { Status::Active } else { Status::Pending };
        let instance = instances.entry((worker_id, member.partition.clone())).or_insert_with(|| Instance {
            instance_id: worker_id,
            source: "zmq",
            status,
            model_name: model.clone(),
            routing_group: group.clone(),
            block_size: engine.stream().stream().scope.block_size,
            endpoints: BTreeMap::new(),
            listeners: BTreeMap::new(),
        });
        // One that waits is what matters of them.
        instance.status = instance.status.min(status);
        let endpoint = engine.endpoint().to_owned();
        instance.endpoints.insert(dp_rank, endpoint.clone());
        instance.listeners.insert(dp_rank, Listener { endpoint, status });
    }
    Ok(Json(instances.into_values().collect()))
}

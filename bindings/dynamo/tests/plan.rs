//! What follows from what Dynamo's discovery says.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use std::collections::BTreeMap;

use dynamo_runtime::discovery::{DiscoveryInstance, EventScope};
use kvtide_dynamo::{Endpoint, Fleet, Kind, Plan, Planned, Refused};
use kvtide_radix::Rank;
use serde_json::{Value, json};

fn endpoint() -> Endpoint {
    Endpoint { namespace: "ns".to_owned(), component: "backend".to_owned(), name: "generate".to_owned() }
}

fn id() -> Value {
    json!({"namespace": "ns", "component": "backend", "name": "generate"})
}

fn instance(worker: u64) -> DiscoveryInstance {
    serde_json::from_value(json!({
        "type": "Endpoint", "namespace": "ns", "component": "backend", "endpoint": "generate",
        "instance_id": worker, "transport": {"tcp": "127.0.0.1:1"},
    }))
    .unwrap()
}

fn card(worker: u64, block_size: u32, config: &Value) -> DiscoveryInstance {
    DiscoveryInstance::Model {
        namespace: "ns".to_owned(),
        component: "backend".to_owned(),
        endpoint: "generate".to_owned(),
        instance_id: worker,
        card_json: json!({"display_name": "m", "kv_cache_block_size": block_size, "runtime_config": config}),
        model_suffix: None,
    }
}

fn source(publisher_id: u64, worker: u64, dp_rank: u32) -> DiscoveryInstance {
    DiscoveryInstance::EventSource {
        scope: EventScope::Endpoint { endpoint: serde_json::from_value(id()).unwrap() },
        topic: "kv-events".to_owned(),
        publisher_id,
        metadata: json!({"kv_state_endpoint": id(), "publisher_id": publisher_id,
                         "worker": {"worker_id": worker, "dp_rank": dp_rank}}),
    }
}

fn plan(said: &[DiscoveryInstance]) -> Plan {
    let mut fleet = Fleet::default();
    for one in said {
        fleet.add(one.clone()).unwrap();
    }
    fleet.plan(None, &BTreeMap::new())
}

fn ranks(plan: &Plan) -> Vec<(u64, u32)> {
    plan.ranks.keys().map(|rank| (rank.worker_id, rank.dp_rank)).collect()
}

#[test]
fn a_worker_has_the_ranks_that_its_card_declares() {
    let config = json!({"data_parallel_start_rank": 4, "data_parallel_size": 2});
    let plan = plan(&[instance(7), card(7, 64, &config)]);
    assert_eq!(ranks(&plan), [(7, 4), (7, 5)]);
    assert_eq!(plan.streams[&endpoint()].scope.block_size, 64);
    assert!(plan.publishers.is_empty() && plan.refused.is_empty());
}

#[test]
fn a_card_counts_once_its_worker_can_be_reached() {
    assert_eq!(plan(&[card(7, 64, &json!({}))]), Plan::default());
    assert_eq!(ranks(&plan(&[instance(7), card(7, 64, &json!({}))])), [(7, 0)]);
}

#[test]
fn publishers_are_announced_for_their_ranks() {
    let plan = plan(&[instance(7), card(7, 64, &json!({})), source(100, 7, 0), source(101, 8, 3)]);
    assert_eq!(ranks(&plan), [(7, 0), (8, 3)]);
    let (_, announced) = &plan.publishers[&101];
    assert_eq!((announced.rank, announced.keeps_index), (Rank { worker_id: 8, dp_rank: 3 }, false));
}

#[test]
fn a_worker_that_differs_from_its_scope_is_refused_with_both_sides() {
    let said = [
        instance(7),
        card(7, 64, &json!({})),
        instance(8),
        card(8, 16, &json!({})),
        source(108, 8, 0),
        instance(9),
        card(9, 64, &json!({"enable_eagle": true})),
        instance(10),
        card(10, 64, &json!({"data_parallel_size": 5000})),
        source(110, 10, 0),
    ];
    let plan = plan(&said);
    assert_eq!(ranks(&plan), [(7, 0)]);
    assert!(plan.publishers.is_empty());
    assert_eq!(
        plan.refused,
        [
            Refused::BlockSize { worker_id: 8, endpoint: endpoint(), expected: 64, got: 16 },
            Refused::Eagle { worker_id: 9, endpoint: endpoint(), expected: false, got: true },
            Refused::Ranks { worker_id: 10, endpoint: endpoint(), got: 5000 },
        ]
    );
}

#[test]
fn a_worker_is_refused_where_it_differs_and_nowhere_else() {
    let elsewhere =
        json!({"kv_state_endpoint": {"namespace": "ns", "component": "other", "name": "generate"}});
    let mut differs = card(7, 16, &elsewhere);
    let mut agrees = card(9, 64, &elsewhere);
    for one in [&mut differs, &mut agrees] {
        let DiscoveryInstance::Model { component, .. } = one else { unreachable!() };
        "other".clone_into(component);
    }
    let mut others = [instance(7), instance(9)];
    for one in &mut others {
        let DiscoveryInstance::Endpoint(instance) = one else { unreachable!() };
        "other".clone_into(&mut instance.component);
    }
    let [first, second] = others;
    // The scope of the other endpoint is that of the one whose card comes first.
    let said = [instance(7), card(7, 64, &json!({})), source(107, 7, 0), first, second, differs, agrees];
    let mut fleet = Fleet::default();
    said.into_iter().for_each(|one| fleet.add(one).unwrap());
    let other = Endpoint { component: "other".to_owned(), ..endpoint() };
    let followed = Planned { scope: kvtide::Scope::new("m", 64), eagle: false };
    let plan = fleet.plan(None, &BTreeMap::from([(other.clone(), followed)]));
    let refused = Refused::BlockSize { worker_id: 7, endpoint: other, expected: 64, got: 16 };
    assert_eq!(plan.refused, [refused]);
    assert_eq!(plan.publishers.keys().collect::<Vec<_>>(), [&107]);
}

#[test]
fn a_scope_that_is_followed_stays_the_one_of_its_endpoint() {
    let mut fleet = Fleet::default();
    for one in [instance(7), card(7, 16, &json!({}))] {
        fleet.add(one).unwrap();
    }
    let followed = Planned { scope: kvtide::Scope::new("m", 64), eagle: false };
    let plan = fleet.plan(None, &BTreeMap::from([(endpoint(), followed)]));
    assert_eq!(plan.refused.len(), 1);
    assert!(plan.ranks.is_empty());
}

#[test]
fn without_a_card_the_configured_scope_counts() {
    let mut fleet = Fleet::default();
    fleet.add(source(100, 7, 0)).unwrap();
    let unknown = fleet.plan(None, &BTreeMap::new());
    assert_eq!(unknown.refused, [Refused::NoModel { worker_id: 7, endpoint: endpoint() }]);
    assert!(unknown.ranks.is_empty());
    let configured = Planned { scope: kvtide::Scope::new("m", 64), eagle: false };
    assert_eq!(ranks(&fleet.plan(Some(&configured), &BTreeMap::new())), [(7, 0)]);
}

#[test]
fn a_card_that_does_not_say_how_large_blocks_are_takes_what_others_say() {
    let alone = [instance(7), card(7, 0, &json!({})), source(100, 7, 0)];
    let unsaid = plan(&alone);
    assert_eq!(unsaid.refused, [Refused::NoBlockSize { worker_id: 7, endpoint: endpoint() }]);
    assert!(unsaid.ranks.is_empty() && unsaid.publishers.is_empty());
    let both = [&alone[..], &[instance(8), card(8, 64, &json!({}))]].concat();
    assert_eq!(ranks(&plan(&both)), [(7, 0), (8, 0)]);
    let mut fleet = Fleet::default();
    alone.into_iter().for_each(|one| fleet.add(one).unwrap());
    let configured = Planned { scope: kvtide::Scope::new("m", 64), eagle: false };
    assert_eq!(ranks(&fleet.plan(Some(&configured), &BTreeMap::new())), [(7, 0)]);
}

#[test]
fn what_has_gone_or_is_told_anew_counts_no_more() {
    let mut fleet = Fleet::default();
    for one in [instance(7), card(7, 64, &json!({})), source(100, 7, 0)] {
        fleet.add(one).unwrap();
    }
    fleet.remove(source(100, 7, 0).id());
    assert!(fleet.plan(None, &BTreeMap::new()).publishers.is_empty());
    fleet.forget(Kind::Models);
    assert_eq!(fleet.plan(None, &BTreeMap::new()), Plan::default());
}

#[test]
fn what_cannot_be_read_or_contradicts_itself_is_nobodys() {
    let mut fleet = Fleet::default();
    let mut foreign = source(100, 7, 0);
    if let DiscoveryInstance::EventSource { metadata, .. } = &mut foreign {
        metadata["publisher_id"] = json!(101);
    }
    fleet.add(foreign).unwrap();
    let mut broken = source(102, 7, 0);
    if let DiscoveryInstance::EventSource { metadata, .. } = &mut broken {
        *metadata = json!({"worker": 3});
    }
    fleet.add(broken).unwrap_err();
    let adapter = DiscoveryInstance::Model {
        namespace: "ns".to_owned(),
        component: "backend".to_owned(),
        endpoint: "generate".to_owned(),
        instance_id: 7,
        card_json: json!({"display_name": "m-sql", "kv_cache_block_size": 64, "lora": {"name": "sql"}}),
        model_suffix: Some("sql".to_owned()),
    };
    fleet.add(adapter).unwrap();
    assert_eq!(fleet.plan(None, &BTreeMap::new()), Plan::default());
}

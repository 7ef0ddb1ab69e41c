//! Raw messages over HTTP: Dynamo's frames and engines' batches of configured streams.

use std::path::Path;

use kvtide::capture::Capture;
use kvtide_radix::{BlockHash, RankSettings};
use kvtide_tests::{Model, harness::Reply};
use serde_json::{Value, json};

use crate::{
    frames::{Frame, SUBJECT, event, meaning, stored},
    served::{Served, problem, rank_of, reach_of},
};

const FRAME: &str = "application/x-dynamo-kv-frame";
const BATCH: &str = "application/x-engine-kv-batch";
/// Frames are handed in here: nothing is at the address of the bus.
fn dynamo() -> Served {
    let stream = |name: &str, subject: &str| {
        format!("[[stream]]\nname = {name:?}\nsubject = {subject:?}\nmodel = \"m\"\nblock_size = 4\n")
    };
    let bus = "[nats]\nurl = \"nats://127.0.0.1:1\"\n".to_owned();
    Served::configured(&(bus + &stream("bus", SUBJECT) + &stream("other bus", "elsewhere")))
}

fn send_frame(served: &Served, stream: &str, frame: &[u8]) -> Reply {
    served.kvtide.send("POST", &format!("/v1/events?stream={stream}"), FRAME, frame)
}

/// What a message that must be taken did.
fn taken(reply: &Reply) -> Value {
    assert_eq!((reply.status, reply.content_type.as_str()), (200, "application/json"), "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

/// A frame of worker 7 that stores one block.
fn frame(publisher_id: u64, sequence: u64, block: u64) -> Vec<u8> {
    let events = vec![event(7, sequence + 1, "device", &stored(None, &[(block, block)]))];
    Frame { publisher_id, sequence, published_at: 1_700_000_000_000, events }.encode()
}

#[test]
fn every_fixture_frame_ends_as_the_model_has_it() {
    let served = dynamo();
    let mut model = Model::new(4, 65_536);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/dynamo_frames.jsonl");
    let mut publisher_id = Value::Null;
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let hex = row["hex"].as_str().unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let events = row["events"].as_array().unwrap();
        let known: Vec<Option<_>> = events.iter().map(|event| meaning(event).1).collect();
        let done = taken(&send_frame(&served, "bus", &bytes));
        let ignored = known.iter().filter(|event| event.is_none()).count();
        assert_eq!(done["ignored_events"], ignored, "{}", row["case"]);
        assert_eq!(done["applied_events"], known.len() - ignored, "{}", row["case"]);
        let new_life = std::mem::replace(&mut publisher_id, row["publisher_id"].clone()) != publisher_id;
        for (json, event) in events.iter().zip(known) {
            let rank = meaning(json).0;
            if new_life || !model.ranks().any(|known| known == rank) {
                model.join(rank, RankSettings::default());
            }
            if let Some(event) = event {
                model.apply(rank, &event);
            }
        }
        let chain = [14_643_705_804_678_351_452, 16_777_012_769_546_811_212, 3, 21].map(BlockHash);
        let single = [3, 6, 21, 22, 41, 78, 82, 84].map(BlockHash);
        for prompt in (0..4).map(|from| &chain[from..]).chain(single.chunks(1)) {
            let hashes: Vec<u64> = prompt.iter().map(|hash| hash.0).collect();
            let answer = served.overlap(&json!({"block_hashes": hashes}));
            for rank in answer["ranks"].as_array().unwrap() {
                let expected = model.reach(rank_of(rank), prompt).map(u64::from);
                assert_eq!(reach_of(rank), Some(expected), "{}: {rank} on {prompt:?}", row["case"]);
            }
        }
    }
    assert_eq!(served.ranks().keys().copied().collect::<Vec<_>>(), model.ranks().collect::<Vec<_>>());
}

#[test]
fn a_recorded_fleet_over_http_gives_the_engines_own_answers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures/sgl0523_hicache_wt");
    let capture = Capture::load(&folder).unwrap();
    let stream = |worker: usize| {
        let block_size = capture.block_size;
        format!(
            "[[stream]]\nname = \"w{worker}\"\nworker_id = {worker}\ndp_rank = 0\nmodel = \"m\"\n\
             block_size = {block_size}\n"
        )
    };
    let config: String = (0..capture.workers.len()).map(stream).collect();
    let served = Served::configured(&config);
    let mut applied = vec![0; capture.workers.len()];
    let mut questions = 0;
    for checkpoint in &capture.checkpoints {
        for (worker, &due) in checkpoint.applied.iter().enumerate() {
            for message in &capture.workers[worker][applied[worker]..due] {
                let route = format!("/v1/events?stream=w{worker}&sequence={}", message.sequence);
                taken(&served.kvtide.send("POST", &route, BATCH, &message.payload));
            }
            applied[worker] = due;
        }
        for question in &checkpoint.questions {
            let scope = json!({"adapter": question.adapter, "tenant": question.tenant});
            let answer = served.overlap(&json!({"scope": scope, "token_ids": question.tokens}));
            for rank in answer["ranks"].as_array().unwrap() {
                let worker = usize::try_from(rank_of(rank).worker_id).unwrap();
                let reach = reach_of(rank).unwrap();
                let host = question.host.as_ref().map_or(reach[1], |host| host[worker].into());
                assert_eq!((reach[0], reach[1]), (question.gpu[worker].into(), host), "{rank}");
                questions += 1;
            }
        }
    }
    assert!(questions > 2000, "{questions}");
    for worker in served.workers() {
        assert_eq!(worker["freshness"]["missing_events"], 0, "{worker}");
        assert!(worker["freshness"]["lag_over_best_ms"].is_u64(), "{worker}");
    }
}

#[test]
fn batches_without_numbers_are_a_lower_bound() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures/sgl0523_hicache_wt");
    let capture = Capture::load(&folder).unwrap();
    let config = "[[stream]]\nname = \"w0\"\nworker_id = 7\nmodel = \"m\"\nblock_size = 16\n";
    let served = Served::configured(config);
    for message in &capture.workers[0][1..30] {
        taken(&served.kvtide.send("POST", "/v1/events?stream=w0", BATCH, &message.payload));
    }
    let workers = served.workers();
    assert_eq!(workers[0]["knowledge"], "partial");
    assert_eq!(workers[0]["freshness"]["last_event_id"], Value::Null);
    assert!(workers[0]["held_blocks"]["gpu"].as_u64().unwrap() > 0);
    assert!(workers[0]["freshness"]["lag_ms"].as_i64().unwrap() > 0);
}

#[test]
fn a_frame_that_does_not_decode_is_refused_and_is_a_hole() {
    let served = dynamo();
    taken(&send_frame(&served, "bus", &frame(1, 0, 1)));
    let mut cut = frame(1, 1, 2);
    cut.truncate(cut.len() - 3);
    problem(&send_frame(&served, "bus", &cut), 400, "undecodable");
    let worker = &served.workers()[0];
    let freshness = &worker["freshness"];
    let got = (&worker["knowledge"], &worker["held_blocks"]["gpu"], &freshness["missing_events"]);
    assert_eq!(got, (&json!("partial"), &json!(0), &json!(1)), "{worker}");
    // The next frame shows how much was lost, and it is no second hole.
    let done = taken(&send_frame(&served, "bus", &frame(1, 2, 3)));
    assert_eq!((&done["applied_events"], &done["missing_events"]), (&json!(1), &json!(0)));
    let worker = &served.workers()[0];
    let got = (&worker["held_blocks"]["gpu"], &worker["freshness"]["missing_events"]);
    assert_eq!(got, (&json!(1), &json!(1)), "{worker}");
}

#[test]
fn a_batch_that_does_not_decode_is_refused_and_is_a_hole() {
    let config = "[[stream]]\nname = \"e\"\nworker_id = 7\nmodel = \"m\"\nblock_size = 4\n";
    let served = Served::configured(config);
    let store = json!(["BlockStored", [11], null, [1, 2, 3, 4], 4, null, "GPU"]);
    let batch = rmp_serde::to_vec(&json!([1.5, [store], 0])).unwrap();
    let send = |sequence: u64, batch: &[u8]| {
        served.kvtide.send("POST", &format!("/v1/events?stream=e&sequence={sequence}"), BATCH, batch)
    };
    taken(&send(0, &batch));
    assert_eq!(served.workers()[0]["knowledge"], "complete");
    // Between it and the last one two more are missing.
    problem(&send(3, &batch[..batch.len() - 2]), 400, "undecodable");
    let worker = &served.workers()[0];
    let got = (&worker["knowledge"], &worker["held_blocks"]["gpu"], &worker["freshness"]["missing_events"]);
    assert_eq!(got, (&json!("partial"), &json!(0), &json!(3)), "{worker}");
    taken(&send(4, &batch));
    assert_eq!(served.workers()[0]["freshness"]["missing_events"], 3);
}

#[test]
fn one_rank_has_one_source() {
    let served = dynamo();
    taken(&send_frame(&served, "bus", &frame(1, 0, 1)));
    let before = served.state();
    let refused = problem(&send_frame(&served, "other%20bus", &frame(2, 0, 2)), 409, "refused");
    assert_eq!(refused["refused_events"], 1);
    let cleared = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 7,
                         "events": [{"type": "cleared"}]});
    served.refused("/v1/events", &cleared, 409, "refused");
    assert_eq!(served.state(), before);
    // Beside an event that is taken, one that is refused is counted.
    let events = vec![
        event(8, 1, "device", &stored(None, &[(1, 1)])),
        event(7, 2, "device", &stored(None, &[(2, 2)])),
    ];
    let mixed = Frame { publisher_id: 3, sequence: 0, published_at: 1_700_000_000_000, events };
    let done = taken(&send_frame(&served, "other%20bus", &mixed.encode()));
    assert_eq!((&done["applied_events"], &done["refused_events"]), (&json!(1), &json!(1)));
}

#[test]
fn of_a_rank_that_two_publishers_claim_nothing_is_known() {
    let served = dynamo();
    taken(&send_frame(&served, "bus", &frame(1, 0, 1)));
    taken(&send_frame(&served, "bus", &frame(2, 0, 1)));
    assert_eq!(served.workers()[0]["freshness"]["generation"], 2);
    // A worker that holds nothing, beside the one of which nothing will be known.
    let events = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 8, "events": []});
    served.ask("/v1/events", &events);
    std::thread::sleep(std::time::Duration::from_millis(250));
    problem(&send_frame(&served, "bus", &frame(1, 1, 2)), 409, "refused");
    problem(&send_frame(&served, "bus", &frame(2, 1, 3)), 409, "refused");

    let ranks = |filter: &str, value: Value| {
        let mut ask = json!({"block_hashes": [1]});
        ask[filter] = value;
        let ranks = served.overlap(&ask)["ranks"].as_array().unwrap().clone();
        ranks
            .into_iter()
            .map(|rank| (rank["worker_id"].as_u64().unwrap(), reach_of(&rank)))
            .collect::<Vec<_>>()
    };
    let (unknown, nothing) = ((7, None), (8, Some([0; 4])));
    assert_eq!(ranks("freshness", json!(true)), [unknown, nothing]);
    assert_eq!(ranks("min_reach_tokens", json!(0)), [unknown, nothing]);
    assert_eq!(ranks("min_reach_tokens", json!(1)), []);
    assert_eq!(ranks("limit", json!(2)), [nothing, unknown]);
    assert_eq!(served.workers()[0]["knowledge"], "unknown");
    assert_eq!(served.workers()[0]["held_blocks"]["gpu"], 0);
}

#[test]
fn one_rank_more_than_there_may_be_is_refused() {
    let served = dynamo();
    let joined = |workers: std::ops::RangeInclusive<u64>| {
        let events = workers.map(|worker| event(worker, 1, "device", &json!("cleared"))).collect();
        Frame { publisher_id: 1, sequence: 0, published_at: 1_700_000_000_000, events }.encode()
    };
    let done = taken(&send_frame(&served, "bus", &joined(1..=16_385)));
    assert_eq!((&done["applied_events"], &done["refused_events"]), (&json!(16_384), &json!(1)));
    let one_more = json!({"scope": {"model": "m", "block_size": 4}, "worker_id": 99_999, "events": []});
    let refused = served.refused("/v1/events", &one_more, 507, "too-many-ranks");
    assert_eq!((&refused["limit"], &refused["limit_name"]), (&json!(16_384), &json!("ranks")));
    assert_eq!(
        served.overlap(&json!({"block_hashes": [1], "limit": 3}))["ranks"].as_array().unwrap().len(),
        3
    );
}

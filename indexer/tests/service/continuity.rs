//! Numbered events: what continues, what repeats, what is missing, and what a rank's numbers are worth then.

use serde_json::{Value, json};

use crate::served::{Served, reach_of};

fn scope() -> Value {
    json!({"model": "m", "block_size": 4})
}

fn stored(name: u64) -> Value {
    json!({"type": "stored", "blocks": [{"sequence_hash": name, "block_hash": name}]})
}

fn stored_on_host(name: u64) -> Value {
    json!({"type": "stored", "tier": "host", "blocks": [{"sequence_hash": name, "block_hash": name}]})
}

fn cleared() -> Value {
    json!({"type": "cleared"})
}

/// One request of a rank, and what is known of it then.
struct Step {
    first_event_id: Option<u64>,
    events: Vec<Value>,
    knowledge: &'static str,
    last_event_id: Option<u64>,
    missing: u64,
    /// The blocks that are held then, of 1, 2 and 3.
    held: &'static [u64],
}

fn step(
    first_event_id: Option<u64>,
    events: &[Value],
    (knowledge, last_event_id, missing): (&'static str, Option<u64>, u64),
    held: &'static [u64],
) -> Step {
    Step { first_event_id, events: events.to_vec(), knowledge, last_event_id, missing, held }
}

type Case = (&'static str, Vec<Step>);

fn numbered() -> Vec<Case> {
    vec![
        (
            "from 1 on it is complete, and stays so as long as nothing is left out",
            vec![
                step(Some(1), &[stored(1)], ("complete", Some(1), 0), &[1]),
                step(Some(2), &[stored(2), stored(3)], ("complete", Some(3), 0), &[1, 2, 3]),
            ],
        ),
        (
            "from later on it is a lower bound, and nothing is known to be missing",
            vec![
                step(Some(5), &[stored(1)], ("partial", Some(5), 0), &[1]),
                step(Some(6), &[stored(2)], ("partial", Some(6), 0), &[1, 2]),
            ],
        ),
        (
            "without numbers it is a lower bound",
            vec![
                step(None, &[stored(1)], ("partial", None, 0), &[1]),
                step(None, &[stored(2)], ("partial", None, 0), &[1, 2]),
            ],
        ),
        (
            "one request without a number ends being complete",
            vec![
                step(Some(1), &[stored(1)], ("complete", Some(1), 0), &[1]),
                step(None, &[stored(2)], ("partial", Some(1), 0), &[1, 2]),
                step(Some(2), &[stored(3)], ("partial", Some(2), 0), &[1, 2, 3]),
            ],
        ),
        (
            "a gap is a hole: what was held is forgotten, what comes is a lower bound",
            vec![
                step(Some(1), &[stored(1), stored(2)], ("complete", Some(2), 0), &[1, 2]),
                step(Some(6), &[stored(3)], ("partial", Some(6), 3), &[3]),
                step(Some(8), &[stored(1)], ("partial", Some(8), 4), &[1]),
            ],
        ),
        (
            "repeats are passed over, wholly or in part",
            vec![
                step(Some(1), &[stored(1), cleared(), stored(2)], ("complete", Some(3), 0), &[2]),
                step(Some(1), &[stored(1)], ("complete", Some(3), 0), &[2]),
                step(Some(2), &[cleared(), stored(1), stored(3)], ("complete", Some(4), 0), &[2, 3]),
            ],
        ),
    ]
}

fn cleared_or_empty() -> Vec<Case> {
    vec![
        (
            "a clear makes it complete where only the GPU was used",
            vec![
                step(Some(9), &[stored(1)], ("partial", Some(9), 0), &[1]),
                step(Some(10), &[cleared(), stored(2)], ("complete", Some(11), 0), &[2]),
            ],
        ),
        (
            "a clear leaves open what it cleared below the GPU",
            vec![
                step(Some(1), &[stored(1), stored_on_host(2)], ("complete", Some(2), 0), &[1, 2]),
                step(Some(3), &[cleared()], ("partial", Some(3), 0), &[]),
            ],
        ),
        (
            "no events at all announce a rank that holds nothing",
            vec![step(Some(1), &[], ("complete", None, 0), &[])],
        ),
    ]
}

#[test]
fn numbers_decide_what_a_ranks_answer_is_worth() {
    let served = Served::start();
    for (worker_id, (case, steps)) in (1..).zip(numbered().into_iter().chain(cleared_or_empty())) {
        for (number, step) in steps.into_iter().enumerate() {
            served.tell(&scope(), worker_id, step.first_event_id, &step.events);
            let workers = served.workers();
            let worker = workers.iter().find(|worker| worker["worker_id"] == worker_id).unwrap();
            let freshness = &worker["freshness"];
            let got = (&worker["knowledge"], &freshness["last_event_id"], &freshness["missing_events"]);
            let expected = (&json!(step.knowledge), &json!(step.last_event_id), &json!(step.missing));
            assert_eq!(got, expected, "{case}, step {number}: {worker}");
            assert_eq!(held(&served, worker_id), step.held, "{case}, step {number}");
        }
    }
}

/// Which of the blocks 1, 2 and 3 the worker holds in some tier.
fn held(served: &Served, worker_id: u64) -> Vec<u64> {
    let holds = |&block: &u64| {
        let ask = json!({"scope": {"model": "m"}, "block_hashes": [block], "ranks": [[worker_id, 0]]});
        reach_of(&served.overlap(&ask)["ranks"][0]).unwrap()[3] > 0
    };
    (1..=3).filter(holds).collect()
}

#[test]
fn numbers_at_their_ends_do_no_harm() {
    let served = Served::start();
    served.refused(
        "/v1/events",
        &json!({"scope": scope(), "worker_id": 1, "first_event_id": 0, "events": [stored(1)]}),
        422,
        "impossible",
    );
    assert_eq!(served.workers(), Vec::<Value>::new());
    served.tell(&scope(), u64::MAX, Some(1), &[stored(1)]);
    let answer = served.tell(&scope(), u64::MAX, Some(u64::MAX), &[stored(2), stored(3)]);
    assert_eq!(answer["missing_events"], u64::MAX - 2);
    assert_eq!(answer["repeated_events"], 1, "there is no number behind the last one");
    assert_eq!(held(&served, u64::MAX), [2]);
}

#[test]
fn a_repeat_does_not_look_fresh() {
    let served = Served::start();
    served.tell(&scope(), 1, Some(1), &[stored(1)]);
    std::thread::sleep(std::time::Duration::from_millis(150));
    served.tell(&scope(), 1, Some(1), &[stored(1)]);
    let age = served.workers()[0]["freshness"]["last_event_age_ms"].as_u64().unwrap();
    assert!(age >= 150, "{age} ms");
    served.tell(&scope(), 1, Some(2), &[stored(2)]);
    let age = served.workers()[0]["freshness"]["last_event_age_ms"].as_u64().unwrap();
    assert!(age < 150, "{age} ms");
}

//! An engine's recorded stream, published over a real socket as the engine does; the answers are the engine's own.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use std::{path::Path, time::Duration};

use kvtide::capture::{Capture, Message, Question};
use kvtide_tests::harness::{Kvtide, free_port, wait_for};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

/// A publisher on a port of its own.
struct Engine {
    runtime: Runtime,
    socket: PubSocket,
}

impl Engine {
    /// Binds, and waits until a subscriber that tries again and again must be there.
    fn start(port: u16) -> Engine {
        let runtime = Runtime::new().unwrap();
        let socket = runtime.block_on(async {
            let mut socket = PubSocket::new();
            socket.bind(&format!("tcp://127.0.0.1:{port}")).await.unwrap();
            socket
        });
        std::thread::sleep(Duration::from_secs(2));
        Engine { runtime, socket }
    }

    fn publish(&mut self, message: &Message) {
        let mut parts = ZmqMessage::from(message.topic.clone());
        parts.push_back(message.sequence.to_be_bytes().to_vec().into());
        parts.push_back(message.payload.clone().into());
        self.runtime.block_on(self.socket.send(parts)).unwrap();
        // A publisher drops what its queue cannot take; an engine is slower than this loop.
        std::thread::sleep(Duration::from_micros(200));
    }
}

struct World {
    capture: Capture,
    kvtide: Kvtide,
    port: u16,
}

impl World {
    fn start() -> World {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures/vllm033_xxh_a");
        let port = free_port();
        let config = std::env::temp_dir().join(format!("kvtide-zmq-{port}.toml"));
        let text = format!(
            "[[stream]]\nname = \"engine\"\nzmq = \"tcp://127.0.0.1:{port}\"\nworker_id = 5\ndp_rank = 0\n\
             model = \"m\"\nblock_size = 16\n"
        );
        std::fs::write(&config, text).unwrap();
        let arguments = ["serve", "--config", config.to_str().unwrap()];
        let kvtide = Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &arguments);
        std::fs::remove_file(config).unwrap();
        World { capture: Capture::load(&folder).unwrap(), kvtide, port }
    }

    fn worker(&self) -> Option<Value> {
        let (_, body) = self.kvtide.get("/v1/workers");
        serde_json::from_str::<Value>(&body).unwrap()["workers"].get(0).cloned()
    }

    fn wait_for_batch(&self, sequence: u64, generation: u64) -> Value {
        wait_for("the last batch", || {
            self.worker().filter(|worker| {
                let fresh = &worker["freshness"];
                fresh["last_event_id"] == sequence && fresh["generation"] == generation
            })
        })
    }

    fn reach(&self, question: &Question) -> u64 {
        let scope = json!({"model": "m", "adapter": question.adapter, "tenant": question.tenant});
        let (status, answer) =
            self.kvtide.post("/v1/overlap", &json!({"scope": scope, "token_ids": question.tokens}));
        assert_eq!(status, 200, "{answer}");
        answer["ranks"][0]["reach_tokens"]["gpu"].as_u64().unwrap()
    }
}

#[test]
fn a_stream_followed_from_its_start_is_complete_and_answers_as_the_engine_did() {
    let world = World::start();
    let mut engine = Engine::start(world.port);
    let checkpoint = &world.capture.checkpoints[world.capture.checkpoints.len() / 2];
    let messages = &world.capture.workers[0][..checkpoint.applied[0]];
    for message in messages {
        engine.publish(message);
    }
    let worker = world.wait_for_batch(messages.len() as u64 - 1, 1);
    assert_eq!((&worker["knowledge"], &worker["worker_id"]), (&json!("complete"), &json!(5)), "{worker}");
    assert_eq!(worker["freshness"]["missing_events"], 0, "{worker}");
    for question in &checkpoint.questions {
        assert_eq!(world.reach(question), u64::from(question.gpu[0]));
    }
}

#[test]
fn a_late_join_is_partial_a_lost_batch_is_a_hole_and_a_restarted_engine_a_new_life() {
    let world = World::start();
    let mut engine = Engine::start(world.port);
    let messages = &world.capture.workers[0];
    for message in &messages[100..120] {
        engine.publish(message);
    }
    let worker = world.wait_for_batch(119, 1);
    assert_eq!(
        (&worker["knowledge"], &worker["freshness"]["missing_events"]),
        (&json!("partial"), &json!(0))
    );
    for message in &messages[123..130] {
        engine.publish(message);
    }
    let worker = world.wait_for_batch(129, 1);
    assert_eq!(
        (&worker["knowledge"], &worker["freshness"]["missing_events"]),
        (&json!("partial"), &json!(3))
    );

    drop(engine);
    let mut engine = Engine::start(world.port);
    // Batches of a process that started after the last one published, with nothing in them.
    let later = |sequence: u64| Message {
        topic: messages[0].topic.clone(),
        sequence,
        payload: rmp_serde::to_vec(&(4_000_000_000_u64 + sequence, Vec::<u8>::new(), 0)).unwrap(),
    };
    engine.publish(&later(0));
    engine.publish(&later(1));
    let worker = world.wait_for_batch(1, 2);
    assert_eq!(
        (&worker["knowledge"], &worker["held_blocks"]["gpu"]),
        (&json!("complete"), &json!(0)),
        "{worker}"
    );
}

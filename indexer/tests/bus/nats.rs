//! A real nats-server, frames of Dynamo's own making, and the answers over HTTP held against the reference model.

use std::{collections::BTreeMap, path::Path};

use dynamo_kv_router::protocols::RouterEvent;
use kvtide_radix::{BlockHash, Rank, RankSettings};
use kvtide_tests::{
    Model,
    harness::{Kvtide, NatsServer, wait_for},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::frames::{Frame, SUBJECT, event, meaning, stored};

const BLOCK_SIZE: u32 = 4;

/// A bus, a kvtide that follows it, a publisher, and the model of what kvtide must know.
pub(crate) struct World {
    runtime: Runtime,
    nats: NatsServer,
    client: async_nats::Client,
    kvtide: Kvtide,
    model: Model,
    /// The last event of each rank.
    last: BTreeMap<Rank, u64>,
}

impl World {
    pub(crate) fn start() -> World {
        let nats = NatsServer::start();
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(async_nats::connect(nats.url())).unwrap();
        let arguments = ["serve", "--nats", &nats.url(), "--model", "m", "--block-size", "4"];
        let kvtide = Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &arguments);
        let mut world = World {
            runtime,
            nats,
            client,
            kvtide,
            model: Model::new(BLOCK_SIZE, 100_000),
            last: BTreeMap::new(),
        };
        world.wait_until_followed();
        world
    }

    /// Core NATS keeps nothing: what is published before the subscription is there would be lost.
    fn wait_until_followed(&mut self) {
        self.flush();
        self.kvtide.wait_for_log("connected to NATS");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }

    fn publish(&self, frame: Vec<u8>) {
        self.runtime.block_on(self.client.publish(SUBJECT, frame.into())).unwrap();
    }

    /// Returns when the bus has routed what was published.
    pub(crate) fn flush(&self) {
        self.runtime.block_on(async {
            let mut probe = self.client.subscribe(format!("{SUBJECT}.probe")).await.unwrap();
            self.client.publish(format!("{SUBJECT}.probe"), "".into()).await.unwrap();
            futures_util::StreamExt::next(&mut probe).await.unwrap();
        });
    }

    /// Tells the model what a frame's events mean.
    fn note(&mut self, events: &[Value]) {
        for event in events {
            let (rank, meaning) = meaning(event);
            if !self.last.contains_key(&rank) {
                self.model.join(rank, RankSettings::default());
            }
            self.last.insert(rank, event["event"]["event_id"].as_u64().unwrap());
            if let Some(meaning) = meaning {
                self.model.apply(rank, &meaning);
            }
        }
    }

    pub(crate) fn publish_and_note(&mut self, frame: &Frame) {
        self.publish(frame.encode());
        let events: Vec<Value> =
            frame.events.iter().map(|event| serde_json::to_value(event).unwrap()).collect();
        self.note(&events);
    }

    pub(crate) fn workers(&self) -> BTreeMap<Rank, Value> {
        let (status, body) = self.kvtide.get("/v1/workers");
        assert_eq!(status, 200);
        let list: Value = serde_json::from_str(&body).unwrap();
        list["workers"].as_array().unwrap().iter().map(|worker| (rank_of(worker), worker.clone())).collect()
    }

    /// Waits until the last event of every rank is visible.
    pub(crate) fn wait_until_applied(&self) {
        wait_for("the last event of every rank", || {
            let workers = self.workers();
            let applied = |(rank, last): (&Rank, &u64)| {
                workers.get(rank).and_then(|worker| worker["freshness"]["last_event_id"].as_u64())
                    == Some(*last)
            };
            self.last.iter().all(applied).then_some(())
        });
    }

    /// Ends the bus and starts it again. Returns when kvtide follows it.
    pub(crate) fn restart_bus(mut self) -> World {
        let port = self.nats.port();
        drop(self.nats);
        self.kvtide.wait_for_log("NATS: disconnected");
        self.nats = NatsServer::start_on(port);
        self.kvtide.wait_for_log("connected to NATS");
        self.client = self.runtime.block_on(async_nats::connect(self.nats.url())).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        self
    }

    /// Stops the process of kvtide for so long, and does something meanwhile.
    pub(crate) fn stand_still(&mut self, time: std::time::Duration, meanwhile: impl FnOnce(&mut World)) {
        self.kvtide.signal("-STOP");
        meanwhile(self);
        std::thread::sleep(time);
        self.kvtide.signal("-CONT");
    }

    fn compare(&self, prompt: &[BlockHash]) {
        let hashes: Vec<String> = prompt.iter().map(|hash| format!("{:x}", hash.0)).collect();
        let (status, answer) =
            self.kvtide.post("/v1/overlap", &json!({"scope": {"model": "m"}, "block_hashes": hashes}));
        assert_eq!(status, 200, "{answer}");
        let answers = answer["ranks"].as_array().unwrap();
        assert_eq!(answers.iter().map(rank_of).collect::<Vec<_>>(), self.model.ranks().collect::<Vec<_>>());
        for answer in answers {
            let reach = &answer["reach_tokens"];
            let got = ["gpu", "host", "disk", "external"].map(|tier| reach[tier].as_u64().unwrap());
            assert_eq!(
                got,
                self.model.reach(rank_of(answer), prompt).map(u64::from),
                "{answer} on {prompt:?}"
            );
        }
    }
}

fn rank_of(value: &Value) -> Rank {
    let number = |name: &str| value[name].as_u64().unwrap();
    Rank { worker_id: number("worker_id"), dp_rank: u32::try_from(number("dp_rank")).unwrap() }
}

/// A publisher of one worker, whose prompts come from a few contents so that they share prefixes.
pub(crate) struct Publisher {
    pub(crate) worker_id: u64,
    publisher_id: u64,
    /// Restarts so far: each begins later than all that was published before.
    restarts: u64,
    sequence: u64,
    event_id: u64,
    /// It clears its cache now and then, after which nobody knows whether its host memory is empty too.
    pub(crate) clears: bool,
    random: StdRng,
    /// Names in use and what is in front of them.
    known: Vec<Vec<u64>>,
}

impl Publisher {
    pub(crate) fn new(worker_id: u64) -> Publisher {
        let random = StdRng::seed_from_u64(worker_id);
        let publisher_id = 1000 * worker_id;
        Publisher {
            worker_id,
            publisher_id,
            restarts: 0,
            sequence: 0,
            event_id: 0,
            clears: true,
            random,
            known: Vec::new(),
        }
    }

    /// Begins again with nothing, perhaps under its old id.
    pub(crate) fn restart(&mut self, same_id: bool) {
        self.restarts += 1;
        self.publisher_id += u64::from(!same_id);
        (self.sequence, self.event_id) = (0, 0);
        self.known.clear();
    }

    /// A frame of a few random events.
    pub(crate) fn frame(&mut self) -> Frame {
        let events = (0..self.random.random_range(1..6)).map(|_| self.event()).collect();
        let frame = Frame {
            publisher_id: self.publisher_id,
            sequence: self.sequence,
            published_at: 1_700_000_000_000 + 1_000_000 * self.restarts + self.sequence,
            events,
        };
        self.sequence += 1;
        frame
    }

    fn event(&mut self) -> RouterEvent {
        self.event_id += 1;
        let tier =
            ["device", "device", "device", "host_pinned", "disk", "external"][self.random.random_range(0..6)];
        let data = match self.random.random_range(0..100) {
            0 if self.clears => json!("cleared"),
            1..30 if !self.known.is_empty() => {
                let chain = &self.known[self.random.random_range(0..self.known.len())];
                let from = self.random.random_range(0..chain.len());
                let names: Vec<u64> = (from..chain.len()).map(|end| name(&chain[..=end])).collect();
                json!({"removed": {"block_hashes": names}})
            }
            _ => {
                let mut chain = vec![self.random.random_range(1..3_u64)];
                chain
                    .extend((0..self.random.random_range(0..30)).map(|_| self.random.random_range(1..3_u64)));
                let from = self.random.random_range(0..chain.len());
                let blocks: Vec<(u64, u64)> =
                    (from..chain.len()).map(|end| (name(&chain[..=end]), chain[end])).collect();
                let parent = (from > 0).then(|| name(&chain[..from]));
                self.known.push(chain);
                stored(parent, &blocks)
            }
        };
        event(self.worker_id, self.event_id, tier, &data)
    }
}

/// A block's name: its whole prefix.
fn name(chain: &[u64]) -> u64 {
    chain.iter().fold(7, |name, content| name * 3 + content)
}

#[test]
fn every_fixture_frame_on_a_real_bus_ends_as_the_model_has_it() {
    let mut world = World::start();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/dynamo_frames.jsonl");
    let lines = std::fs::read_to_string(path).unwrap();
    let mut publisher_id = None;
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let hex = row["hex"].as_str().unwrap();
        let frame =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let subject = row["subject"].as_str().unwrap().to_owned();
        world.runtime.block_on(world.client.publish(subject, Vec::into(frame))).unwrap();
        let events = row["events"].as_array().unwrap();
        if publisher_id
            .replace(row["publisher_id"].clone())
            .is_some_and(|before| before != row["publisher_id"])
        {
            // A new life: nothing of the old one is left. Only that publisher's ranks begin anew.
            for event in events {
                world.model.forget(meaning(event).0);
            }
        }
        world.note(events);
        world.wait_until_applied();
        let chain = [14_643_705_804_678_351_452, 16_777_012_769_546_811_212, 3, 21];
        for start in 0..chain.len() {
            world.compare(&chain[start..].iter().map(|&hash| BlockHash(hash)).collect::<Vec<_>>());
        }
        for content in [21, 22, 6, 41, 78, 82, 84] {
            world.compare(&[BlockHash(content)]);
        }
    }
    let workers = world.workers();
    let complete = workers.values().filter(|worker| worker["knowledge"] == "complete").count();
    assert_eq!(complete, workers.len(), "{workers:#?}");
    assert!(workers[&Rank { worker_id: 7, dp_rank: 0 }]["freshness"]["lag_ms"].as_i64().unwrap() > 0);
}

#[test]
fn random_frames_of_dynamos_own_crate_end_as_the_model_has_them() {
    let mut world = World::start();
    let mut publishers: Vec<Publisher> = (1..=6).map(Publisher::new).collect();
    let mut random = StdRng::seed_from_u64(42);
    for _round in 0..6 {
        for _frame in 0..80 {
            let chosen = random.random_range(0..publishers.len());
            let frame = publishers[chosen].frame();
            world.publish_and_note(&frame);
        }
        world.flush();
        world.wait_until_applied();
        for _prompt in 0..40 {
            let blocks = random.random_range(1..24);
            let prompt: Vec<BlockHash> = (0..blocks).map(|_| BlockHash(random.random_range(1..3))).collect();
            world.compare(&prompt);
        }
    }
    for (rank, worker) in world.workers() {
        assert_eq!(worker["freshness"]["missing_events"], 0, "{rank:?}: {worker}");
        assert_eq!(worker["freshness"]["pending_events"], 0, "{rank:?}: {worker}");
    }
}

#[test]
fn a_restarted_bus_is_followed_again_and_a_lost_frame_is_a_hole() {
    let mut world = World::start();
    let mut publisher = Publisher::new(3);
    for _ in 0..20 {
        let frame = publisher.frame();
        world.publish_and_note(&frame);
    }
    world.flush();
    world.wait_until_applied();

    let mut world = world.restart_bus();
    for _ in 0..20 {
        let frame = publisher.frame();
        world.publish_and_note(&frame);
    }
    world.flush();
    world.wait_until_applied();
    let rank = Rank { worker_id: 3, dp_rank: 0 };
    assert_eq!(world.workers()[&rank]["freshness"]["missing_events"], 0, "nothing was published meanwhile");
    world.compare(&[1, 2, 1, 1].map(BlockHash));

    let lost = publisher.frame().events.len();
    world.model.forget(rank);
    let frame = publisher.frame();
    world.publish_and_note(&frame);
    world.flush();
    world.wait_until_applied();
    let worker = &world.workers()[&rank];
    assert_eq!(worker["knowledge"], "partial", "{worker}");
    assert_eq!(worker["freshness"]["missing_events"], lost, "{worker}");
    world.compare(&[1, 2, 1, 1].map(BlockHash));
}

#[test]
fn a_frame_that_does_not_decode_is_a_hole_and_its_content_stays_out_of_the_log() {
    let mut world = World::start();
    let mut publisher = Publisher::new(5);
    let frame = publisher.frame();
    world.publish_and_note(&frame);
    world.wait_until_applied();
    let canary = "canary-of-a-tenant";
    let mut frame = publisher.frame().encode();
    let cut = frame.len() - 10;
    frame.truncate(cut);
    frame.extend(canary.as_bytes());
    world.publish(frame);
    let line = world.kvtide.wait_for_log("message refused");
    assert!(line.contains(SUBJECT) && line.contains("bytes=") && !line.contains(canary), "{line}");
    let rank = Rank { worker_id: 5, dp_rank: 0 };
    let worker = &world.workers()[&rank];
    assert_eq!(worker["knowledge"], "partial", "{worker}");
    assert_eq!(worker["held_blocks"]["gpu"], 0, "{worker}");
    assert_eq!(worker["freshness"]["missing_events"], 1, "{worker}");
}

#[test]
fn sigterm_applies_what_has_arrived_and_ends_well() {
    const FRAMES: usize = 20_000;
    let world = World::start();
    let mut publisher = Publisher::new(9);
    for _ in 0..FRAMES {
        world.publish(publisher.frame().encode());
    }
    world.flush();
    let kvtide = world.kvtide;
    let log = kvtide.terminate();
    let line =
        log.iter().find(|line| line.contains("stopped following")).expect("a line about the feed's end");
    assert!(line.contains(&format!("after {FRAMES} messages")), "{line}");
    assert!(log.iter().any(|line| line.ends_with("stopped")), "{log:#?}");
}

//! Storms on a real bus: frames are lost, repeated, swapped, cut short, broken and of former lives, while connections are cut,
//! the bus ends and starts again, and kvtide is stopped, killed and started again. Nothing is ever credited that was not held
//! at the event that the answer names; who is said to be known wholly is; and when it is over, all is known again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    thread::sleep,
    time::{Duration, Instant},
};

use kvtide_radix::{BlockHash, Rank, RankSettings};
use kvtide_tests::{
    Folder, Model,
    harness::{Kvtide, NatsServer, Relay},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    frames::{Frame, SUBJECT, meaning},
    nats::Publisher,
};

const WORKERS: u64 = 4;
/// Frames in all, about.
const FRAMES: usize = 3000;
/// Where frames go that only one of two kvtides follows.
const ELSEWHERE: &str = "namespace.dynamo.component.backend.endpoint.other.kv-events";
const EVERYWHERE: &str = "namespace.dynamo.component.backend.endpoint.*.kv-events";
/// After the last fault, until all is known again as far as it can be. Two publishers that seem to claim one rank take ten
/// seconds of it.
const SETTLED_WITHIN: Duration = Duration::from_secs(20);

/// Leading tokens of each prompt, by tier.
type Reaches = Vec<[u64; 4]>;

/// Publishers, and what they held after each event of each life.
struct Fleet {
    publishers: Vec<Publisher>,
    held: Vec<Model>,
    truths: Vec<Vec<HashMap<u64, Reaches>>>,
    prompts: Vec<Vec<BlockHash>>,
    /// Frames of all lives, each with its worker's place.
    published: Vec<(usize, Vec<u8>)>,
}

/// What a kvtide says of a rank.
struct Said {
    knowledge: String,
    last: Option<u64>,
    pending: u64,
    reaches: Reaches,
}

impl Fleet {
    fn new(random: &mut StdRng) -> Fleet {
        let prompt = |random: &mut StdRng| (0..6).map(|_| BlockHash(random.random_range(1..3))).collect();
        let mut fleet = Fleet {
            publishers: (1..=WORKERS).map(Publisher::new).collect(),
            held: Vec::new(),
            truths: (0..WORKERS).map(|_| Vec::new()).collect(),
            prompts: (0..12).map(|_| prompt(random)).collect(),
            published: Vec::new(),
        };
        fleet.held = fleet.publishers.iter().map(nothing).collect();
        fleet.truths.iter_mut().for_each(|lives| lives.push(HashMap::new()));
        fleet
    }

    fn restart(&mut self, number: usize, same_id: bool) {
        self.publishers[number].restart(same_id);
        self.held[number] = nothing(&self.publishers[number]);
        self.truths[number].push(HashMap::new());
        if same_id {
            // Nothing tells its frames of before from those of now.
            self.published.retain(|&(of, _)| of != number);
        }
    }

    fn frame(&mut self, number: usize) -> Vec<u8> {
        let frame: Frame = self.publishers[number].frame();
        let (held, prompts) = (&mut self.held[number], &self.prompts);
        for event in &frame.events {
            let event = serde_json::to_value(event).unwrap();
            let (rank, meaning) = meaning(&event);
            if let Some(meaning) = meaning {
                held.apply(rank, &meaning);
            }
            let reaches = prompts.iter().map(|prompt| held.reach(rank, prompt).map(u64::from)).collect();
            let life = self.truths[number].last_mut().unwrap();
            life.insert(event["event"]["event_id"].as_u64().unwrap(), reaches);
        }
        let frame = frame.encode();
        self.published.push((number, frame.clone()));
        frame
    }

    /// The last event that each worker has published.
    fn last(&self, worker: u64) -> Option<u64> {
        self.truths[worker as usize - 1].last()?.keys().max().copied()
    }

    /// Asks a kvtide for everything, and holds it against what was held. Returns what it says.
    fn check(&self, name: &str, kvtide: &Kvtide) -> BTreeMap<u64, Said> {
        let mut said: BTreeMap<u64, Said> = BTreeMap::new();
        // Each answer is of a version of its own: of one that lies between two, only its own reach is compared.
        for (number, prompt) in self.prompts.iter().enumerate() {
            let hashes: Vec<String> = prompt.iter().map(|hash| format!("{:x}", hash.0)).collect();
            let body = json!({"scope": {"model": "m"}, "block_hashes": hashes});
            let (status, answer) = kvtide.post("/v1/overlap", &body);
            assert_eq!(status, 200, "{answer}");
            for rank in answer["ranks"].as_array().unwrap() {
                let worker = rank["worker_id"].as_u64().unwrap();
                let fresh = &rank["freshness"];
                let tiers = ["gpu", "host", "disk", "external"];
                let reach = tiers.map(|tier| rank["reach_tokens"][tier].as_u64().unwrap_or(0));
                let (knowledge, last) =
                    (rank["knowledge"].as_str().unwrap().to_owned(), fresh["last_event_id"].as_u64());
                self.hold_against(name, worker, &knowledge, last, number, reach);
                let pending = fresh["pending_events"].as_u64().unwrap();
                let one = Said { knowledge, last, pending, reaches: Vec::new() };
                let all = said.entry(worker).or_insert(one);
                (all.last, all.pending) = (last, pending);
                all.reaches.push(reach);
            }
        }
        said
    }

    fn hold_against(
        &self,
        name: &str,
        worker: u64,
        knowledge: &str,
        last: Option<u64>,
        prompt: usize,
        reach: [u64; 4],
    ) {
        let fits = |held: [u64; 4]| match knowledge {
            "complete" => held == reach,
            "partial" | "recovering" => held.iter().zip(reach).all(|(&held, reach)| reach <= held),
            _ => reach == [0; 4],
        };
        let lives = &self.truths[worker as usize - 1];
        // What comes late may be of the life before.
        let held: Vec<[u64; 4]> = lives.iter().filter_map(|life| Some(life.get(&last?)?[prompt])).collect();
        let right = if held.is_empty() { fits([0; 4]) } else { held.iter().any(|&held| fits(held)) };
        assert!(
            right,
            "{name}: worker {worker} is {knowledge} at event {last:?} with {reach:?} of prompt {prompt}; held was one of {held:?}"
        );
    }
}

fn nothing(publisher: &Publisher) -> Model {
    let mut model = Model::new(4, 100_000);
    model.join(Rank { worker_id: publisher.worker_id, dp_rank: 0 }, RankSettings::default());
    model
}

/// A bus, two kvtides that follow it, and whoever publishes.
struct Storm {
    runtime: Runtime,
    nats: Option<NatsServer>,
    port: u16,
    client: async_nats::Client,
    relay: Relay,
    folder: Folder,
    peer: Kvtide,
    kvtide: Option<Kvtide>,
    fleet: Fleet,
    random: StdRng,
    /// A frame that is held back until the next has gone.
    late: Option<Vec<u8>>,
}

impl Storm {
    fn start(seed: u64) -> Storm {
        let mut random = StdRng::seed_from_u64(seed);
        let nats = NatsServer::start();
        let port = nats.port();
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(async_nats::connect(nats.url())).unwrap();
        let scope = ["--model", "m", "--block-size", "4"];
        let arguments = ["serve", "--nats", &nats.url(), "--subject", EVERYWHERE];
        let peer = Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &[&arguments[..], &scope].concat());
        let fleet = Fleet::new(&mut random);
        let (relay, folder) = (Relay::start(port), Folder::new());
        let mut storm = Storm {
            runtime,
            nats: Some(nats),
            port,
            client,
            relay,
            folder,
            peer,
            kvtide: None,
            fleet,
            random,
            late: None,
        };
        storm.peer.wait_for_log("connected to NATS");
        storm.start_kvtide();
        sleep(Duration::from_millis(300));
        storm
    }

    /// It saves itself every second, and asks the other for what it has missed.
    fn start_kvtide(&mut self) {
        let file = self.folder.path("kvtide.snapshot");
        let config = format!("[snapshot]\npath = \"{file}\"\nevery_s = 1\n");
        let config = self.folder.write("kvtide.toml", config);
        let bus = format!("nats://127.0.0.1:{}", self.relay.port());
        let arguments = ["serve", "--config", &config, "--nats", &bus, "--subject", SUBJECT];
        let more = ["--model", "m", "--block-size", "4", "--peer", self.peer.url()];
        let mut kvtide = Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &[&arguments[..], &more].concat());
        kvtide.wait_for_log("connected to NATS");
        self.kvtide = Some(kvtide);
    }

    fn send(&self, subject: &'static str, frame: Vec<u8>) {
        self.runtime.block_on(self.client.publish(subject, frame.into())).unwrap();
    }

    /// A worker's next frame, and whatever a bus may do to it.
    fn publish(&mut self) {
        let number = self.random.random_range(0..WORKERS as usize);
        if self.random.random_bool(0.003) {
            self.fleet.restart(number, false);
        }
        let mut frame = self.fleet.frame(number);
        match self.random.random_range(0..1000) {
            0..20 => return,
            20..40 => return self.send(ELSEWHERE, frame),
            40..60 => self.send(SUBJECT, frame.clone()),
            60..80 if self.late.is_none() => {
                self.late = Some(frame);
                return;
            }
            80..90 => frame.truncate(self.random.random_range(0..frame.len())),
            90..100 => frame[0] ^= 0x55,
            100..103 => {
                let earlier = self.random.random_range(0..self.fleet.published.len());
                self.send(SUBJECT, self.fleet.published[earlier].1.clone());
            }
            _ => {}
        }
        self.send(SUBJECT, frame);
        if let Some(late) = self.late.take() {
            self.send(SUBJECT, late);
        }
    }

    fn publish_many(&mut self, frames: usize) {
        for number in 0..frames {
            self.publish();
            if number % 20 == 0 {
                self.check();
            }
        }
    }

    /// What both say now.
    fn check(&self) -> Vec<BTreeMap<u64, Said>> {
        let kvtides = [("the peer", Some(&self.peer)), ("kvtide", self.kvtide.as_ref())];
        let running = kvtides.into_iter().filter_map(|(name, kvtide)| Some((name, kvtide?)));
        running.map(|(name, kvtide)| self.fleet.check(name, kvtide)).collect()
    }

    /// Two begin again under their old ids. Their first frame arrives: it alone shows it.
    fn restart_under_their_ids(&mut self) {
        for number in 0..2 {
            self.fleet.restart(number, true);
            let frame = self.fleet.frame(number);
            self.send(SUBJECT, frame);
        }
    }

    fn cut(&mut self) {
        self.relay.cut();
        self.publish_many(FRAMES / 20);
    }

    fn restart_bus(&mut self) {
        self.nats = None;
        self.publish_many(FRAMES / 20);
        self.nats = Some(NatsServer::start_on(self.port));
        self.publish_many(FRAMES / 20);
    }

    fn stand_still(&mut self) {
        let kvtide = self.kvtide.take().unwrap();
        kvtide.signal("-STOP");
        self.publish_many(FRAMES / 10);
        sleep(Duration::from_secs(2));
        kvtide.signal("-CONT");
        self.kvtide = Some(kvtide);
    }

    fn kill_kvtide(&mut self) {
        self.kvtide = None;
        self.publish_many(FRAMES / 20);
        self.start_kvtide();
    }

    /// Frames go on without faults until what is said of every rank is of those states and of its last event.
    fn settle(&mut self, states: &[&str]) {
        let started = Instant::now();
        let states: BTreeSet<&str> = states.iter().copied().collect();
        loop {
            for number in 0..self.fleet.publishers.len() {
                let frame = self.fleet.frame(number);
                self.send(SUBJECT, frame);
            }
            sleep(Duration::from_millis(250));
            let said = self.check();
            let settled = |(worker, said): (&u64, &Said)| {
                states.contains(said.knowledge.as_str())
                    && said.last == self.fleet.last(*worker)
                    && said.pending == 0
            };
            if said.iter().all(|said| said.len() == WORKERS as usize && said.iter().all(settled)) {
                return;
            }
            let state = |said: &Said| (said.knowledge.clone(), said.last, said.pending, said.reaches.clone());
            let states: Vec<Vec<_>> = said.iter().map(|said| said.values().map(state).collect()).collect();
            assert!(started.elapsed() < SETTLED_WITHIN, "not within {SETTLED_WITHIN:?}: {states:?}");
        }
    }

    /// How often something was counted.
    fn counted(kvtide: &Kvtide, name: &str) -> u64 {
        let metrics = kvtide.get("/metrics").1;
        let lines = metrics.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }
}

#[test]
fn whatever_happens_on_the_bus_nothing_is_credited_that_is_not_held() {
    let mut storm = Storm::start(11);
    storm.publish_many(FRAMES / 5);
    storm.restart_under_their_ids();
    storm.publish_many(FRAMES / 20);
    storm.cut();
    storm.cut();
    storm.restart_bus();
    storm.stand_still();
    let recovered = |storm: &Storm| {
        storm.kvtide.as_ref().map_or(0, |kvtide| Storm::counted(kvtide, "kvtide_recovered_total"))
    };
    let before = recovered(&storm);
    storm.kill_kvtide();
    storm.publish_many(FRAMES / 10);
    assert!(before + recovered(&storm) > 0, "the other one has told of something that was missed");
    if let Some(late) = storm.late.take() {
        storm.send(SUBJECT, late);
    }
    storm.settle(&["complete", "partial"]);
    for number in 0..WORKERS as usize {
        storm.fleet.restart(number, false);
        storm.fleet.publishers[number].clears = false;
    }
    storm.settle(&["complete"]);
}

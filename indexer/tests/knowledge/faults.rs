//! Seeded faults between publishers and kvtide: messages are lost, repeated, swapped, delayed and broken, publishers start
//! again, answers of engines and peers are cut short or late, and kvtide itself ends and goes on with its snapshot. Whatever
//! happens, nothing is credited that is not held, and who is said to be known wholly is.
//!
//! Runs for 30 seconds, or `KVTIDE_FAULT_SECONDS`. A seed that fails is played alone with `KVTIDE_FAULT_SEED`.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use kvtide::{
    BoundStream, Clock, EngineStream, Format, Indexer, KnowledgeState, Limits, Message, PromptContent, Query,
    Scope, Stream,
};
use kvtide_radix::{BlockHash, Copies, RankSettings};
use kvtide_tests::{
    Model,
    vectors::{BLOCK_SIZE, Kind, rank},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::wire::{self, Announced, content};

/// Messages that a publisher sends in one seed, at most.
const MESSAGES: usize = 60;
/// Tokens that fill blocks: few, so that chains share their starts.
const TOKENS: u32 = 3;
const START_MS: u64 = 1_700_000_000_000;

/// Leading blocks of each prompt on the GPU, and with host memory.
type Reaches = Vec<[u32; 2]>;

/// One worker's publisher, and what it really holds.
struct Publisher {
    kind: Kind,
    worker: u64,
    id: u64,
    sequence: u64,
    event_id: u64,
    held: Model,
    /// Names in use, with the tokens of the chain up to each.
    chains: Vec<(u64, Vec<u32>)>,
    /// For each life, what was held after each batch or event.
    truths: Vec<HashMap<u64, Reaches>>,
    /// It clears its cache now and then, after which nobody knows whether its host memory is empty too.
    clears: bool,
    /// The latest life of which a message has arrived.
    arrived: usize,
    /// The latest messages, which an engine keeps.
    kept: VecDeque<(u64, Vec<u8>)>,
}

/// A message on its way.
#[derive(Clone)]
struct Sent {
    publisher: usize,
    life: usize,
    sequence: u64,
    payload: Vec<u8>,
    /// It arrives as it is: nothing but its number shows another process.
    safe: bool,
}

struct World {
    random: StdRng,
    kind: Kind,
    replays: bool,
    clock: Clock,
    indexer: Indexer,
    stream: Arc<BoundStream>,
    publishers: Vec<Publisher>,
    prompts: Vec<Vec<BlockHash>>,
    on_the_way: VecDeque<Sent>,
    /// Another kvtide that follows the same bus, and misses other things.
    peer: Option<Peer>,
}

struct Peer {
    clock: Clock,
    indexer: Indexer,
    stream: Arc<BoundStream>,
    on_the_way: VecDeque<Vec<u8>>,
}

impl Publisher {
    fn new(kind: Kind, worker: u64) -> Publisher {
        let mut publisher = Publisher {
            kind,
            worker,
            id: 1000 * worker,
            sequence: 0,
            event_id: 0,
            held: Model::new(BLOCK_SIZE, 65_536),
            chains: Vec::new(),
            truths: Vec::new(),
            clears: true,
            arrived: 0,
            kept: VecDeque::new(),
        };
        publisher.restart();
        publisher
    }

    /// A new process, which holds nothing.
    fn restart(&mut self) {
        let engine = self.kind == Kind::Engine;
        let settings = RankSettings {
            copies: if engine { Copies::Counted } else { Copies::Set },
            recent_names: if engine { 1024 } else { 0 },
            ..RankSettings::default()
        };
        self.held = Model::new(BLOCK_SIZE, 65_536);
        self.held.join(rank(self.worker), settings);
        (self.sequence, self.event_id) = (0, 0);
        self.id += 1;
        self.chains.clear();
        self.kept.clear();
        self.truths.push(HashMap::new());
    }

    /// Something that it does next.
    fn act(&mut self, random: &mut StdRng) -> Announced {
        let chain = self.chains.get(random.random_range(0..self.chains.len().max(1))).cloned();
        match (random.random_range(0..100), chain) {
            (0..2, _) if self.clears => {
                self.chains.clear();
                Announced::Cleared
            }
            (0..4, _) => Announced::Unheard,
            (4..34, Some((name, _))) => {
                Announced::Removed { names: vec![name], host: random.random_bool(0.2) }
            }
            (34..44, Some((name, tokens))) => {
                let parent = (tokens.len() > 1).then(|| name_of(&tokens[..tokens.len() - 1], self.id));
                let token = tokens[tokens.len() - 1];
                Announced::Stored { parent, blocks: vec![(name, token)], host: true }
            }
            (_, chain) => {
                let mut tokens =
                    chain.filter(|_| random.random_bool(0.7)).map_or(Vec::new(), |(_, tokens)| tokens);
                let parent = (!tokens.is_empty()).then(|| name_of(&tokens, self.id));
                let mut blocks = Vec::new();
                for _ in 0..random.random_range(1..4) {
                    tokens.push(random.random_range(1..=TOKENS));
                    let name = name_of(&tokens, self.id);
                    self.chains.push((name, tokens.clone()));
                    blocks.push((name, tokens[tokens.len() - 1]));
                }
                Announced::Stored { parent, blocks, host: false }
            }
        }
    }

    /// The next message. Notes what is held after it.
    fn publish(&mut self, random: &mut StdRng, wall_ms: u64, prompts: &[Vec<BlockHash>]) -> (u64, Vec<u8>) {
        let mut events = Vec::new();
        for _ in 0..random.random_range(0..4) {
            let event = self.act(random);
            if let Some(event) = event.meaning(self.kind) {
                self.held.apply(rank(self.worker), &event);
            }
            self.event_id += 1;
            if self.kind == Kind::Dynamo {
                self.note(self.event_id, prompts);
            }
            events.push((self.worker, self.event_id, event));
        }
        let sequence = self.sequence;
        self.sequence += 1;
        let payload = if self.kind == Kind::Dynamo {
            wire::frame(self.id, sequence, wall_ms, &events)
        } else {
            self.note(sequence, prompts);
            let events: Vec<Announced> = events.into_iter().map(|(_, _, event)| event).collect();
            wire::batch(wall_ms, &events, 0)
        };
        self.kept.push_back((sequence, payload.clone()));
        (sequence, payload)
    }

    fn note(&mut self, number: u64, prompts: &[Vec<BlockHash>]) {
        let reach = |prompt: &Vec<BlockHash>| {
            let [gpu, host, ..] = self.held.reach(rank(self.worker), prompt);
            [gpu, host]
        };
        let reaches = prompts.iter().map(reach).collect();
        self.truths.last_mut().unwrap().insert(number, reaches);
    }
}

/// A process names its blocks as it likes.
fn name_of(tokens: &[u32], process: u64) -> u64 {
    let mut bytes: Vec<u8> = process.to_le_bytes().to_vec();
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    // 0 is a name as any other, but a process that calls everything so is none.
    xxhash_rust::xxh3::xxh3_64(&bytes) | 1
}

fn start(kind: Kind, replays: bool, has_peers: bool, clock: &Clock) -> (Indexer, Arc<BoundStream>) {
    let indexer = Indexer::new(Limits::default(), clock.clone());
    let format = match kind {
        Kind::Engine => Format::Engine(EngineStream { replays, ..EngineStream::new(1) }),
        Kind::Dynamo | Kind::Direct => Format::Dynamo,
    };
    let stream = Stream { has_peers, ..Stream::new("faulty", Scope::new("m", BLOCK_SIZE), format) };
    let stream = indexer.bind(stream).unwrap();
    (indexer, stream)
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = StdRng::seed_from_u64(seed);
        let kind = if random.random_bool(0.5) { Kind::Dynamo } else { Kind::Engine };
        let replays = kind == Kind::Engine && random.random_bool(0.7);
        let clock = Clock::manual(START_MS);
        let has_peers = kind == Kind::Dynamo && random.random_bool(0.6);
        let (indexer, stream) = start(kind, replays, has_peers, &clock);
        let peer = has_peers.then(|| {
            let (indexer, stream) = start(kind, replays, true, &clock);
            Peer { clock: clock.clone(), indexer, stream, on_the_way: VecDeque::new() }
        });
        let workers = if kind == Kind::Engine { 1 } else { random.random_range(1..4) };
        let prompts =
            (0..6).map(|_| (0..8).map(|_| content(random.random_range(1..=TOKENS))).collect()).collect();
        World {
            kind,
            replays,
            clock,
            indexer,
            stream,
            publishers: (1..=workers).map(|worker| Publisher::new(kind, worker)).collect(),
            prompts,
            on_the_way: VecDeque::new(),
            random,
            peer,
        }
    }

    fn pass(&mut self, most_ms: u64) {
        let ms = self.random.random_range(0..=most_ms);
        self.advance(ms);
        self.indexer.tick();
        if let Some(peer) = &self.peer {
            peer.indexer.tick();
        }
    }

    fn advance(&self, ms: u64) {
        self.clock.advance(ms);
        // After a restart kvtide's own begins anew.
        if let Some(peer) = self.peer.as_ref().filter(|peer| peer.clock.wall_ms() < self.clock.wall_ms()) {
            peer.clock.advance(ms);
        }
    }

    fn publish(&mut self) {
        let publisher = self.random.random_range(0..self.publishers.len());
        let restarts = self.random.random_bool(0.02);
        if restarts {
            self.publishers[publisher].restart();
        }
        // Two batches of one millisecond, of which one is the other's repeat, nobody could tell apart.
        self.advance(1);
        let wall_ms = self.clock.wall_ms();
        let (sequence, payload) =
            self.publishers[publisher].publish(&mut self.random, wall_ms, &self.prompts);
        let life = self.publishers[publisher].truths.len() - 1;
        let safe = self.kind == Kind::Engine && sequence == 0;
        if let Some(peer) = &mut self.peer {
            peer.on_the_way.push_back(payload.clone());
        }
        self.on_the_way.push_back(Sent { publisher, life, sequence, payload, safe });
    }

    /// Delivers the next message, or does to it whatever a bus may do.
    fn deliver(&mut self, faulty: bool) {
        let Some(mut sent) = self.on_the_way.pop_front() else { return };
        if faulty && !sent.safe {
            match self.random.random_range(0..100) {
                0..4 => return,
                4..8 => self.on_the_way.push_front(sent.clone()),
                8..12 => {
                    let behind = self.random.random_range(0..=self.on_the_way.len().min(5));
                    self.on_the_way.insert(behind, sent);
                    return;
                }
                12..14 => {
                    let cut = self.random.random_range(0..sent.payload.len());
                    sent.payload.truncate(cut);
                }
                _ => {}
            }
        }
        // Another process is another connection.
        if sent.life > self.publishers[sent.publisher].arrived {
            self.indexer.doubt(&self.stream);
        }
        let message = match self.kind {
            Kind::Engine => Message::Batch { sequence: Some(sent.sequence), payload: &sent.payload },
            Kind::Dynamo | Kind::Direct => Message::Frame(&sent.payload),
        };
        let arrived = &mut self.publishers[sent.publisher].arrived;
        // What was cut does not decode.
        if self.indexer.apply(&self.stream, message).is_ok() {
            *arrived = sent.life.max(*arrived);
        }
    }

    /// The peer gets what comes next, or never does.
    fn deliver_to_peer(&mut self, faulty: bool) {
        let Some(peer) = &mut self.peer else { return };
        let Some(payload) = peer.on_the_way.pop_front() else { return };
        if !faulty || self.random.random_bool(0.97) {
            peer.indexer.apply(&peer.stream, Message::Frame(&payload)).unwrap();
        }
    }

    /// What one has missed the other tells, perhaps late.
    fn hand_over(&mut self) {
        if self.peer.is_none() {
            return;
        }
        let asks = self.random.random_bool(0.7);
        let Some(peer) = &self.peer else { return };
        let [asking, other] =
            if asks { [&self.indexer, &peer.indexer] } else { [&peer.indexer, &self.indexer] };
        let told: Vec<_> = asking
            .wanted()
            .into_iter()
            .map(|wanted| {
                let mut told = Vec::new();
                other.write_part(wanted.part, &mut told).unwrap();
                (wanted, told)
            })
            .collect();
        while self.random.random_bool(0.3) {
            self.publish();
            self.deliver(true);
            self.deliver_to_peer(true);
        }
        let Some(peer) = &self.peer else { return };
        let asking = if asks { &self.indexer } else { &peer.indexer };
        for (wanted, told) in told {
            asking.take_over(&wanted, told.as_slice()).unwrap();
        }
    }

    /// Nothing that a process has sent is under way for seconds after it has gone.
    fn forget_late(&mut self) {
        self.on_the_way.retain(|sent| sent.life + 1 == self.publishers[sent.publisher].truths.len());
    }

    /// The engine answers, perhaps not wholly.
    fn answer(&mut self, faulty: bool) {
        if !self.replays {
            return;
        }
        let request = self.indexer.replay_request(&self.stream);
        let engine = &self.publishers[0];
        let kept =
            if faulty && self.random.random_bool(0.3) { self.random.random_range(0..6) } else { usize::MAX };
        let skipped = engine.kept.len().saturating_sub(kept);
        let answer: Vec<_> =
            engine.kept.iter().skip(skipped).filter(|(number, _)| *number >= request.from).cloned().collect();
        if faulty && self.random.random_bool(0.3) {
            // It is long on its way.
            while self.random.random_bool(0.7) {
                self.publish();
                self.deliver(true);
            }
        }
        self.indexer.apply_replay(&self.stream, request, answer).unwrap();
    }

    /// kvtide ends and another goes on with its snapshot. What comes meanwhile is lost.
    fn restart_kvtide(&mut self, faulty: bool) {
        let mut snapshot = Vec::new();
        self.indexer.write_snapshot(&mut snapshot).unwrap();
        while faulty && self.random.random_bool(0.5) {
            self.publish();
            self.on_the_way.pop_front();
        }
        // Nothing of a process that has gone comes on a new connection.
        self.forget_late();
        self.clock = Clock::manual(self.clock.wall_ms());
        (self.indexer, self.stream) = start(self.kind, self.replays, self.peer.is_some(), &self.clock);
        self.indexer.read_snapshot(snapshot.as_slice()).unwrap();
        self.check();
        // It connects again, and asks first.
        self.answer(faulty);
    }

    /// What is known of each worker: the state, the last number, what is missing, and the reach into each prompt.
    fn known(&self, indexer: &Indexer) -> BTreeMap<u64, (KnowledgeState, Option<u64>, u64, Reaches)> {
        let mut all = BTreeMap::new();
        for prompt in &self.prompts {
            let query = Query { prompt: PromptContent::Hashes(prompt.clone()), ..Query::default() };
            for answer in indexer.overlap(&query).unwrap().ranks {
                let fresh = answer.freshness.unwrap();
                let entry = all.entry(answer.worker_id).or_insert_with(|| {
                    (answer.knowledge, fresh.last_event_id, fresh.missing_events, Vec::new())
                });
                entry.3.push(answer.reach_tokens.map_or([0, 0], |reach| [reach.gpu, reach.host]));
            }
        }
        all
    }

    fn check(&self) {
        self.check_one(&self.indexer);
        if let Some(peer) = &self.peer {
            self.check_one(&peer.indexer);
        }
    }

    fn check_one(&self, indexer: &Indexer) {
        for (worker, (state, last, missing, reaches)) in self.known(indexer) {
            let publisher = self.publishers.iter().find(|publisher| publisher.worker == worker).unwrap();
            let fits = |truth: &Reaches| match state {
                KnowledgeState::Unknown => true,
                // After a loss an engine's names in host memory may mean nothing to kvtide, which are then not counted.
                KnowledgeState::Complete if missing == 0 => *truth == reaches,
                KnowledgeState::Complete => {
                    truth.iter().zip(&reaches).all(|(truth, got)| truth[0] == got[0] && truth[1] >= got[1])
                }
                KnowledgeState::Partial | KnowledgeState::Recovering | KnowledgeState::Gap => {
                    truth.iter().zip(&reaches).all(|(truth, got)| truth[0] >= got[0] && truth[1] >= got[1])
                }
            };
            // Frames wait for others, and an answer may be on its way: then it may still be the life before.
            let waits = self.kind == Kind::Dynamo || state == KnowledgeState::Recovering;
            let lives = &publisher.truths[if waits { 0 } else { publisher.arrived }..];
            let mut truths = lives.iter().filter_map(|life| life.get(&last?)).peekable();
            let nothing = vec![[0, 0]; self.prompts.len()];
            let held = if truths.peek().is_some() { truths.any(fits) } else { fits(&nothing) };
            let truths: Vec<_> = publisher.truths.iter().map(|life| life.get(&last.unwrap_or(0))).collect();
            assert!(
                held,
                "{:?}, replays {}, arrived {}: worker {worker} is {state:?} at {last:?}: {reaches:?}, held is one of {truths:?}",
                self.kind, self.replays, publisher.arrived
            );
        }
    }

    /// Without further faults everything comes to be known again.
    fn settle(&mut self) {
        while !self.on_the_way.is_empty() {
            self.deliver(false);
        }
        if let Some(peer) = &mut self.peer {
            peer.on_the_way.clear();
        }
        self.pass(0);
        self.advance(10_000);
        self.pass(0);
        for publisher in &mut self.publishers {
            publisher.restart();
            publisher.clears = false;
        }
        for _ in 0..4 * self.publishers.len() {
            self.publish();
            self.deliver(false);
            self.deliver_to_peer(false);
        }
        for _ in 0..3 {
            self.answer(false);
        }
        self.check();
        let known = self.known(&self.indexer);
        for publisher in self.publishers.iter().filter(|publisher| publisher.event_id > 0) {
            let (state, ..) = known[&publisher.worker];
            assert_eq!(
                state,
                KnowledgeState::Complete,
                "{} of {:?} (replays: {}), sequence {} event {} {known:?}",
                publisher.worker,
                self.kind,
                self.replays,
                publisher.sequence,
                publisher.event_id
            );
        }
    }
}

fn play(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..MESSAGES {
        world.publish();
        if world.random.random_bool(0.9) {
            world.deliver(true);
        }
        if world.random.random_bool(0.9) {
            world.deliver_to_peer(true);
        }
        if world.random.random_bool(0.1) {
            world.answer(true);
        }
        if world.random.random_bool(0.1) {
            world.hand_over();
        }
        if world.random.random_bool(0.03) {
            world.restart_kvtide(true);
        }
        if world.random.random_bool(0.05) {
            world.forget_late();
            world.pass(12_000);
        } else {
            world.pass(60);
        }
        world.check();
    }
    world.settle();
}

#[test]
fn nothing_is_credited_that_is_not_held() {
    let setting = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    if let Some(seed) = setting("KVTIDE_FAULT_SEED") {
        return play(seed);
    }
    let limit = Duration::from_secs(setting("KVTIDE_FAULT_SECONDS").unwrap_or(30));
    let (started, mut seed) = (Instant::now(), 0);
    while started.elapsed() < limit {
        let played = std::panic::catch_unwind(|| play(seed));
        assert!(played.is_ok(), "seed {seed}: play it alone with KVTIDE_FAULT_SEED={seed}");
        seed += 1;
    }
    println!("{seed} seeds");
    assert!(seed > 100, "{seed} seeds in {limit:?}");
}

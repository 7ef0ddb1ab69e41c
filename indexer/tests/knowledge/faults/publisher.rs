//! Publishers of the fault simulation: what they announce, and what they then really hold.

use std::collections::{HashMap, VecDeque};

use kvtide_radix::{BlockHash, Copies, RankSettings};
use kvtide_tests::{
    Model,
    vectors::{BLOCK_SIZE, Kind, rank},
};
use rand::{RngExt, rngs::StdRng};

use super::{Reaches, TOKENS};
use crate::wire::{self, Announced};

/// One worker's publisher, and what it really holds.
pub(super) struct Publisher {
    kind: Kind,
    pub(super) worker: u64,
    pub(super) id: u64,
    /// It began under the id of the life before.
    pub(super) again: bool,
    pub(super) sequence: u64,
    pub(super) event_id: u64,
    pub(super) held: Model,
    /// Names in use, with the tokens of the chain up to each.
    pub(super) chains: Vec<(u64, Vec<u32>)>,
    /// For each life, what was held after each batch or event.
    pub(super) truths: Vec<HashMap<u64, Reaches>>,
    /// It clears its cache now and then, after which nobody knows whether its host memory is empty too.
    pub(super) clears: bool,
    /// The latest life of which a message has arrived.
    pub(super) arrived: usize,
    /// The latest messages, which an engine keeps.
    pub(super) kept: VecDeque<(u64, Vec<u8>)>,
    /// All events of this life.
    pub(super) log: Vec<(u64, Announced)>,
}

impl Publisher {
    pub(super) fn new(kind: Kind, worker: u64) -> Publisher {
        let mut publisher = Publisher {
            kind,
            worker,
            id: 1000 * worker,
            again: false,
            sequence: 0,
            event_id: 0,
            held: Model::new(BLOCK_SIZE, 65_536),
            chains: Vec::new(),
            truths: Vec::new(),
            clears: true,
            arrived: 0,
            kept: VecDeque::new(),
            log: Vec::new(),
        };
        publisher.restart(false);
        publisher
    }

    /// A new process, which holds nothing; perhaps `again` under the same id.
    pub(super) fn restart(&mut self, again: bool) {
        let engine = self.kind == Kind::Engine;
        let settings = RankSettings {
            copies: if engine { Copies::Counted } else { Copies::Set },
            recent_names: if engine { 1024 } else { 0 },
            ..RankSettings::default()
        };
        self.held = Model::new(BLOCK_SIZE, 65_536);
        self.held.join(rank(self.worker), settings);
        (self.sequence, self.event_id) = (0, 0);
        (self.again, self.id) = (again, self.id + u64::from(!again));
        self.chains.clear();
        self.kept.clear();
        self.log.clear();
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
    pub(super) fn publish(
        &mut self,
        random: &mut StdRng,
        wall_ms: u64,
        prompts: &[Vec<BlockHash>],
    ) -> (u64, Vec<u8>) {
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
            self.log.push((self.event_id, event.clone()));
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
pub(super) fn name_of(tokens: &[u32], process: u64) -> u64 {
    let mut bytes: Vec<u8> = process.to_le_bytes().to_vec();
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    // 0 is a name as any other, but a process that calls everything so is none.
    xxhash_rust::xxh3::xxh3_64(&bytes) | 1
}

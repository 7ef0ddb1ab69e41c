//! On random events, the answers are those of the reference model: by tokens, and by hashes in every form.

use std::collections::BTreeMap;

use kvtide_radix::{Event, Rank, RankSettings};
use kvtide_tests::Model;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
    served::{Served, rank_of, reach_of},
    vocabulary::{Author, BLOCK_SIZE, Chain, hash},
};

/// A service, and the model of what it must know.
struct World {
    served: Served,
    model: Model,
    random: StdRng,
    ranks: BTreeMap<Rank, Sender>,
    /// Answers of ranks that reach somewhere, and of those whose tiers reach differently far.
    reaching: usize,
    tiered: usize,
}

/// What a rank's sender knows of itself.
#[derive(Default)]
struct Sender {
    last_event_id: u64,
    missing: u64,
    partial: bool,
    lower_tier_used: bool,
}

impl World {
    fn start(seed: u64) -> World {
        World {
            served: Served::start(),
            model: Model::new(u32::try_from(BLOCK_SIZE).unwrap(), 65_536),
            random: StdRng::seed_from_u64(seed),
            ranks: BTreeMap::new(),
            reaching: 0,
            tiered: 0,
        }
    }

    /// A request of some rank: mostly the next one, now and then one behind a gap or one that came before.
    fn tell(&mut self) {
        let random = &mut self.random;
        let rank = Rank { worker_id: random.random_range(1..6), dp_rank: random.random_range(0..2) };
        let chain = Chain::random(random, 12);
        let author = Author::new(random, &chain);
        let events: Vec<(Value, Event)> =
            (0..random.random_range(1..5)).map(|_| author.event(random)).collect();
        let known = self.ranks.contains_key(&rank);
        let sender = self.ranks.entry(rank).or_default();
        let gap = if known && random.random_ratio(1, 60) { random.random_range(1..9) } else { 0 };
        let again =
            if known && gap == 0 && random.random_ratio(1, 20) { random.random_range(1..4) } else { 0 };
        let first = (sender.last_event_id + 1 + gap).saturating_sub(again).max(1);
        let repeated = (sender.last_event_id + 1).saturating_sub(first).min(events.len() as u64);
        let answer = self.served.ask(
            "/v1/events",
            &json!({
                "scope": chain.scope(),
                "worker_id": rank.worker_id,
                "dp_rank": rank.dp_rank,
                "first_event_id": first,
                "events": events.iter().map(|(json, _)| json).collect::<Vec<_>>(),
            }),
        );
        let counts =
            ["applied_events", "repeated_events", "missing_events"].map(|name| answer[name].as_u64());
        assert_eq!(counts, [events.len() as u64 - repeated, repeated, gap].map(Some), "{answer}");
        if !known {
            self.model.join(rank, RankSettings::default());
        }
        if gap > 0 {
            self.model.forget(rank);
            sender.missing += gap;
            sender.partial = true;
        }
        for (_, event) in events.iter().skip(usize::try_from(repeated).unwrap()) {
            self.model.apply(rank, event);
            sender.note(event);
        }
        sender.last_event_id = sender.last_event_id.max(first + events.len() as u64 - 1);
    }

    /// Asks for one prompt in two ways and holds both against the model.
    fn compare(&mut self) {
        let chain = Chain::random(&mut self.random, 14);
        let (contents, form) = (chain.contents(), self.random.random_range(0..5));
        let scope = chain.scope();
        let mut tokens = chain.tokens();
        // A partial last block does not count.
        tokens.extend(std::iter::repeat_n(1, self.random.random_range(0..BLOCK_SIZE)));
        let by_tokens = self.served.overlap(&json!({"scope": scope, "token_ids": tokens}));
        let hashes: Vec<Value> = contents.iter().map(|content| hash(content.0, form)).collect();
        let by_hashes = self.served.overlap(&json!({"scope": {"model": "m"}, "block_hashes": hashes}));
        assert_eq!(by_tokens["prompt"], json!({"tokens": tokens.len(), "blocks": contents.len()}));
        assert_eq!(
            by_hashes["prompt"],
            json!({"tokens": contents.len() * BLOCK_SIZE, "blocks": contents.len()})
        );
        for answer in [by_tokens, by_hashes] {
            let ranks = answer["ranks"].as_array().unwrap();
            assert_eq!(ranks.iter().map(rank_of).collect::<Vec<_>>(), self.model.ranks().collect::<Vec<_>>());
            for rank in ranks {
                let expected = self.model.reach(rank_of(rank), &contents).map(u64::from);
                assert_eq!(reach_of(rank), Some(expected), "{rank} on {chain:?}");
                self.reaching += usize::from(expected[3] > 0);
                self.tiered += usize::from(expected[0] < expected[3]);
            }
        }
    }

    fn compare_workers(&self) {
        for (rank, worker) in self.served.ranks() {
            let sender = &self.ranks[&rank];
            let freshness = &worker["freshness"];
            assert_eq!(worker["knowledge"], if sender.partial { "partial" } else { "complete" }, "{worker}");
            assert_eq!(freshness["missing_events"], sender.missing, "{worker}");
            assert_eq!(freshness["last_event_id"], sender.last_event_id, "{worker}");
            assert_eq!(worker["parked_blocks"], self.model.parked_blocks(rank), "{worker}");
        }
        let held: usize = self.model.ranks().map(|rank| self.model.held_blocks(rank)).sum();
        assert_eq!(self.served.get("/v1/scopes")["scopes"][0]["held_blocks"], held);
    }
}

impl Sender {
    /// Only a clear makes a rank's numbers complete again, and only where it says all.
    fn note(&mut self, event: &Event) {
        let layer = match event {
            Event::Stored(stored) => stored.layer,
            Event::Removed(removed) => removed.layer,
            Event::Cleared => {
                self.partial = self.lower_tier_used;
                return;
            }
        };
        self.lower_tier_used |= layer.tier() != kvtide_radix::Tier::Gpu;
    }
}

#[test]
fn random_events_end_as_the_model_has_them() {
    for seed in 0..3 {
        let mut world = World::start(seed);
        for _round in 0..8 {
            for _request in 0..60 {
                world.tell();
            }
            world.compare_workers();
            for _prompt in 0..25 {
                world.compare();
            }
        }
        // Nothing is proven where nothing is held.
        assert!(world.reaching > 500 && world.tiered > 100, "{} and {}", world.reaching, world.tiered);
    }
}

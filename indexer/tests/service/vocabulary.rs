//! Random events, each as JSON and as what it means, and every form in which JSON can say it.

use kvtide_radix::{
    Block, BlockHash, Blocks, Event, Group, Layer, Removed, Seed, SequenceHash, Stored, Tier, TokenBlocks,
};
use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

use crate::served::Served;

pub(crate) const BLOCK_SIZE: usize = 4;

/// Adapters and tenants in use: none, one, the other, both.
pub(crate) const SALTS: [(Option<&str>, Option<&str>); 4] =
    [(None, None), (Some("sql"), None), (None, Some("acme")), (Some("sql"), Some("acme"))];

/// A prompt of words, each of which fills one block.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    words: Vec<u32>,
    adapter: Option<&'static str>,
    tenant: Option<&'static str>,
}

impl Chain {
    /// Words from a small set, so that prompts share beginnings.
    pub(crate) fn random(random: &mut StdRng, longest: usize) -> Chain {
        let (adapter, tenant) = SALTS[random.random_range(0..SALTS.len())];
        let length = random.random_range(1..=longest);
        Chain { words: (0..length).map(|_| random.random_range(1..3)).collect(), adapter, tenant }
    }

    pub(crate) fn scope(&self) -> Value {
        json!({"model": "m", "block_size": BLOCK_SIZE, "adapter": self.adapter, "tenant": self.tenant})
    }

    pub(crate) fn tokens(&self) -> Vec<u32> {
        self.words.iter().flat_map(|&word| [word, 7, word, 9]).collect()
    }

    fn seed(&self) -> Seed {
        Seed::of(self.adapter, self.tenant)
    }

    pub(crate) fn contents(&self) -> Vec<BlockHash> {
        let tokens = self.tokens();
        tokens.chunks(BLOCK_SIZE).map(|block| BlockHash::of(block, &[], self.seed())).collect()
    }

    /// A block's name is its whole prefix and its salts.
    pub(crate) fn names(&self) -> Vec<SequenceHash> {
        let start = self.seed().0;
        let names = self.words.iter().scan(start, |name, &word| {
            *name = name.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(word));
            Some(SequenceHash(*name))
        });
        names.collect()
    }
}

/// A hash in one of the forms that JSON has for it.
pub(crate) fn hash(value: u64, form: usize) -> Value {
    match form % 5 {
        0 => json!(value),
        1 => json!(value.cast_signed()),
        2 => json!(format!("{value:x}")),
        3 => json!(format!("0x{value:016x}")),
        _ => json!(format!("{value:016X}")),
    }
}

/// Events of one rank, from prompts that it may or may not hold.
pub(crate) struct Author {
    /// Salts of the request: those of every chain in it.
    chain: Chain,
    tier: (&'static str, Tier),
    group: u64,
}

impl Author {
    pub(crate) fn new(random: &mut StdRng, chain: &Chain) -> Author {
        let tiers = [
            ("gpu", Tier::Gpu),
            ("gpu", Tier::Gpu),
            ("gpu", Tier::Gpu),
            ("host", Tier::Host),
            ("disk", Tier::Disk),
            ("external", Tier::External),
        ];
        let group = if random.random_ratio(1, 12) { random.random_range(1..16) } else { 0 };
        Author { chain: chain.clone(), tier: tiers[random.random_range(0..tiers.len())], group }
    }

    fn layer(&self) -> Layer {
        Layer::new(self.tier.1, Group::new(self.group).unwrap())
    }

    /// A random event, as JSON and as what it means.
    pub(crate) fn event(&self, random: &mut StdRng) -> (Value, Event) {
        let names = self.chain.names();
        let from = random.random_range(0..names.len());
        let form = random.random_range(0..5);
        match random.random_range(0..100) {
            0..2 => (json!({"type": "cleared"}), Event::Cleared),
            2..30 => self.removed(&names[from..], form),
            30..34 => self.removed(&[SequenceHash(random.random_range(0..9))], form),
            _ => self.stored(from, form, random.random_range(0..5)),
        }
    }

    fn removed(&self, names: &[SequenceHash], form: usize) -> (Value, Event) {
        let hashes: Vec<Value> = names.iter().map(|name| hash(name.0, form)).collect();
        let mut event = json!({"type": "removed", "sequence_hashes": hashes});
        self.place(&mut event);
        (event, Event::Removed(Removed { layer: self.layer(), names: names.to_vec() }))
    }

    /// The blocks of the chain `from` there on, with hashes, with tokens, or by their names alone.
    fn stored(&self, from: usize, form: usize, kind: usize) -> (Value, Event) {
        let (names, contents) = (self.chain.names(), self.chain.contents());
        let hashes: Vec<Value> = names[from..].iter().map(|name| hash(name.0, form)).collect();
        let parent = from.checked_sub(1).map(|last| names[last]);
        let mut event = json!({"type": "stored", "parent": parent.map(|name| hash(name.0, form + 1))});
        let blocks = match kind {
            0 | 1 => {
                let blocks = names[from..].iter().zip(&contents[from..]);
                let json = blocks.clone().map(|(name, content)| {
                    json!({"sequence_hash": hash(name.0, form), "block_hash": hash(content.0, form + 2)})
                });
                event["blocks"] = json.collect();
                Blocks::Hashed(blocks.map(|(&name, &content)| Block { name, content }).collect())
            }
            2 | 3 => {
                let tokens = self.chain.tokens()[from * BLOCK_SIZE..].to_vec();
                event["sequence_hashes"] = hashes.into();
                event["token_ids"] = json!(tokens);
                let (names, root_seed) = (names[from..].to_vec(), self.chain.seed());
                let tokens_per_block = BLOCK_SIZE;
                Blocks::Tokens(TokenBlocks { names, tokens, tokens_per_block, root_seed, media: Vec::new() })
            }
            _ => {
                event["sequence_hashes"] = hashes.into();
                Blocks::Named(names[from..].to_vec())
            }
        };
        self.place(&mut event);
        (event, Event::Stored(Stored { layer: self.layer(), parent, blocks }))
    }

    /// Writes down where an event happens; a GPU's full attention may be left out.
    fn place(&self, event: &mut Value) {
        if self.layer() != Layer::GPU || self.chain.words.len().is_multiple_of(2) {
            event["tier"] = json!(self.tier.0);
            event["group"] = json!(self.group);
        }
    }
}

/// A service that knows workers of random caches.
pub(crate) fn fleet(random: &mut StdRng) -> Served {
    let served = Served::start();
    for _request in 0..120 {
        let chain = Chain::random(random, 8);
        let author = Author::new(random, &chain);
        let events: Vec<Value> = (0..3).map(|_| author.event(random).0).collect();
        served.tell(&chain.scope(), random.random_range(1..20), None, &events);
    }
    served
}

//! What may happen to ranks, honest and broken.
//!
//! Contents and names come from small sets, so that chains share prefixes, names collide, parents are unknown and
//! removals miss. An honest store names a block by its whole prefix, as engines do; a broken one at random.

use kvtide_events::sequence_hashes;
use kvtide_radix::{
    Block, BlockHash, Blocks, Copies, Event, Group, Layer, Rank, RankSettings, Removed, Seed, SequenceHash,
    Stored, Tier, TokenBlocks, Window,
};
use proptest::{collection::vec, prelude::*};

pub(crate) const BLOCK_SIZE: u32 = 2;
pub(crate) const RANKS: usize = 12;
pub(crate) const PARKED: usize = 24;

pub(crate) fn rank(number: usize) -> Rank {
    Rank { worker_id: number as u64 / 2, dp_rank: number as u32 % 2 }
}

/// How a store's blocks are given. A rank has one source, which gives content either as hashes or as tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Content,
    Named,
}

/// One thing that happens to one rank.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Blocks `from..` of a prompt, named by their prefix and by who names them.
    Honest {
        prompt: Vec<u8>,
        from: usize,
        salted: bool,
        namer: u64,
        layer: Layer,
        kind: Kind,
    },
    /// Blocks of any content and name behind any parent.
    Broken {
        parent: Option<u64>,
        blocks: Vec<(u8, u64)>,
        salted: bool,
        layer: Layer,
        kind: Kind,
    },
    /// Names of blocks of a prompt, from its end or its start.
    RemoveHonest {
        prompt: Vec<u8>,
        from: usize,
        namer: u64,
        layer: Layer,
        backwards: bool,
    },
    RemoveBroken {
        names: Vec<u64>,
        layer: Layer,
    },
    Clear,
    Forget,
    /// What waits is dropped, but for what has come last.
    Expire {
        but: u64,
    },
    /// Goes, and comes back with other settings.
    Return {
        settings: usize,
    },
}

pub(crate) fn settings(number: usize) -> RankSettings {
    let window = Window { group: Group::new(1).unwrap(), tokens: 5 };
    match number {
        0 => RankSettings { copies: Copies::Set, ..RankSettings::default() },
        1 => RankSettings { copies: Copies::Counted, recent_names: 4, ..RankSettings::default() },
        2 => RankSettings { copies: Copies::Counted, host_chunk_blocks: 3, ..RankSettings::default() },
        3 => RankSettings { copies: Copies::Counted, windows: vec![window], ..RankSettings::default() },
        _ => RankSettings { copies: Copies::Set, recent_names: 1000, ..RankSettings::default() },
    }
}

fn seed(salted: bool) -> Seed {
    if salted { Seed::of(None, Some("tenant")) } else { Seed::PLAIN }
}

pub(crate) fn content(token: u8, salted: bool) -> BlockHash {
    BlockHash::of(&[u32::from(token); BLOCK_SIZE as usize], &[], seed(salted))
}

fn honest_names(prompt: &[u8], salted: bool, namer: u64) -> Vec<SequenceHash> {
    let contents = prompt.iter().map(|&token| content(token, salted));
    sequence_hashes(contents).map(|name| SequenceHash(name.0 ^ namer)).collect()
}

fn blocks(kind: Kind, hashed: bool, tokens: &[u8], names: &[SequenceHash], salted: bool) -> Blocks {
    match (kind, hashed) {
        (Kind::Content, true) => Blocks::Hashed(
            tokens
                .iter()
                .zip(names)
                .map(|(&token, &name)| Block { name, content: content(token, salted) })
                .collect(),
        ),
        (Kind::Content, false) => Blocks::Tokens(TokenBlocks {
            names: names.to_vec(),
            tokens: tokens.iter().flat_map(|&token| [u32::from(token); BLOCK_SIZE as usize]).collect(),
            tokens_per_block: BLOCK_SIZE as usize,
            root_seed: seed(salted),
            media: Vec::new(),
        }),
        (Kind::Named, _) => Blocks::Named(names.to_vec()),
    }
}

impl Act {
    pub(crate) fn event(&self, hashed: bool) -> Option<Event> {
        match self {
            Act::Honest { prompt, from, salted, namer, layer, kind } => {
                let names = honest_names(prompt, *salted, *namer);
                let from = (*from).min(prompt.len());
                Some(Event::Stored(Stored {
                    layer: *layer,
                    parent: from.checked_sub(1).map(|last| names[last]),
                    blocks: blocks(*kind, hashed, &prompt[from..], &names[from..], *salted),
                }))
            }
            Act::Broken { parent, blocks: list, salted, layer, kind } => {
                let (tokens, names): (Vec<u8>, Vec<SequenceHash>) =
                    list.iter().map(|&(token, name)| (token, SequenceHash(name))).unzip();
                Some(Event::Stored(Stored {
                    layer: *layer,
                    parent: parent.map(SequenceHash),
                    blocks: blocks(*kind, hashed, &tokens, &names, *salted),
                }))
            }
            Act::RemoveHonest { prompt, from, namer, layer, backwards } => {
                let mut names = honest_names(prompt, false, *namer).split_off((*from).min(prompt.len()));
                if *backwards {
                    names.reverse();
                }
                Some(Event::Removed(Removed { layer: *layer, names }))
            }
            Act::RemoveBroken { names, layer } => Some(Event::Removed(Removed {
                layer: *layer,
                names: names.iter().map(|&name| SequenceHash(name)).collect(),
            })),
            Act::Clear => Some(Event::Cleared),
            Act::Forget | Act::Expire { .. } | Act::Return { .. } => None,
        }
    }
}

fn layer() -> impl Strategy<Value = Layer> {
    let tier = prop_oneof![6 => Just(Tier::Gpu), 2 => Just(Tier::Host), 1 => Just(Tier::Disk), 1 => Just(Tier::External)];
    let group = prop_oneof![5 => Just(0_u64), 1 => Just(1)];
    (tier, group).prop_map(|(tier, group)| Layer::new(tier, Group::new(group).unwrap()))
}

pub(crate) fn prompt() -> impl Strategy<Value = Vec<u8>> {
    // Long stretches of one token, and few tokens: much is shared, and runs span pages.
    vec((0..3_u8, 1..14_usize), 1..4)
        .prop_map(|parts| parts.into_iter().flat_map(|(token, count)| vec![token; count]).collect())
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![7 => Just(Kind::Content), 2 => Just(Kind::Named)]
}

pub(crate) fn act() -> impl Strategy<Value = Act> {
    let honest = (prompt(), 0..20_usize, any::<bool>(), 0..2_u64, layer(), kind()).prop_map(
        |(prompt, from, salted, namer, layer, kind)| Act::Honest { prompt, from, salted, namer, layer, kind },
    );
    let whole = (prompt(), 0..2_u64, layer()).prop_map(|(prompt, namer, layer)| Act::Honest {
        prompt,
        from: 0,
        salted: false,
        namer,
        layer,
        kind: Kind::Content,
    });
    let broken =
        (proptest::option::of(0..8_u64), vec((0..3_u8, 0..8_u64), 0..6), any::<bool>(), layer(), kind())
            .prop_map(|(parent, blocks, salted, layer, kind)| Act::Broken {
                parent,
                blocks,
                salted,
                layer,
                kind,
            });
    let remove = (prompt(), 0..30_usize, 0..2_u64, layer(), any::<bool>()).prop_map(
        |(prompt, from, namer, layer, backwards)| Act::RemoveHonest { prompt, from, namer, layer, backwards },
    );
    let remove_broken =
        (vec(0..8_u64, 0..6), layer()).prop_map(|(names, layer)| Act::RemoveBroken { names, layer });
    prop_oneof![
        6 => whole,
        8 => honest,
        4 => broken,
        8 => remove,
        3 => remove_broken,
        1 => Just(Act::Clear),
        1 => Just(Act::Forget),
        1 => (0..4_u64).prop_map(|but| Act::Expire { but }),
        1 => (0..5_usize).prop_map(|settings| Act::Return { settings }),
    ]
}

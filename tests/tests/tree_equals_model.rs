//! On arbitrary streams of events, honest and broken, the tree gives the answers of the reference model.
//!
//! Contents and names come from small sets, so that chains share prefixes, names collide, parents are unknown and
//! removals miss. An honest store names a block by its whole prefix, as engines do; a broken one at random.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use kvtide_events::sequence_hashes;
use kvtide_radix::{
    Block, BlockHash, Blocks, Copies, Event, Group, Layer, Limits, Overlap, Rank, RankSettings, RankSlot,
    Reader, Removed, Seed, SequenceHash, Size, Stored, Tier, TokenBlocks, Window, Writer, index,
};
use kvtide_tests::Model;
use proptest::{collection::vec, prelude::*};

const BLOCK_SIZE: u32 = 2;
const RANKS: usize = 12;
const PARKED: usize = 24;

/// How a store's blocks are given. A rank has one source, which gives content either as hashes or as tokens.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Content,
    Named,
}

/// One thing that happens to one rank.
#[derive(Clone, Debug)]
enum Act {
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
    /// Goes, and comes back with other settings.
    Return {
        settings: usize,
    },
}

fn settings(number: usize) -> RankSettings {
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

fn content(token: u8, salted: bool) -> BlockHash {
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
    fn event(&self, hashed: bool) -> Option<Event> {
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
            Act::Forget | Act::Return { .. } => None,
        }
    }
}

fn layer() -> impl Strategy<Value = Layer> {
    let tier = prop_oneof![6 => Just(Tier::Gpu), 2 => Just(Tier::Host), 1 => Just(Tier::Disk), 1 => Just(Tier::External)];
    let group = prop_oneof![5 => Just(0_u64), 1 => Just(1)];
    (tier, group).prop_map(|(tier, group)| Layer::new(tier, Group::new(group).unwrap()))
}

fn prompt() -> impl Strategy<Value = Vec<u8>> {
    // Long stretches of one token, and few tokens: much is shared, and runs span pages.
    vec((0..3_u8, 1..14_usize), 1..4)
        .prop_map(|parts| parts.into_iter().flat_map(|(token, count)| vec![token; count]).collect())
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![7 => Just(Kind::Content), 2 => Just(Kind::Named)]
}

fn act() -> impl Strategy<Value = Act> {
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
        1 => (0..5_usize).prop_map(|settings| Act::Return { settings }),
    ]
}

/// The tree and the model, side by side.
struct Both {
    writer: Writer,
    reader: Reader,
    slots: Vec<RankSlot>,
    model: Model,
    answer: Overlap,
}

fn rank(number: usize) -> Rank {
    Rank { worker_id: number as u64 / 2, dp_rank: number as u32 % 2 }
}

impl Both {
    fn new() -> Both {
        let (mut writer, reader) = index(BLOCK_SIZE, Limits { ranks: RANKS, parked_blocks: PARKED });
        let mut model = Model::new(BLOCK_SIZE, PARKED);
        let slots = (0..RANKS)
            .map(|number| {
                let settings = settings(number % 5);
                model.join(rank(number), settings.clone());
                writer.update(|update| update.join(rank(number), settings)).unwrap()
            })
            .collect();
        Both { writer, reader, slots, model, answer: Overlap::default() }
    }

    fn act(&mut self, number: usize, act: &Act) {
        let slot = self.slots[number];
        match act {
            Act::Forget => {
                self.model.forget(rank(number));
                self.writer.update(|update| update.forget(slot));
            }
            Act::Return { settings: chosen } => {
                self.model.leave(rank(number));
                self.model.join(rank(number), settings(*chosen));
                self.slots[number] = self.writer.update(|update| {
                    update.leave(slot);
                    update.join(rank(number), settings(*chosen)).unwrap()
                });
            }
            act => {
                let event = act.event(number.is_multiple_of(2)).unwrap();
                self.model.apply(rank(number), &event);
                self.writer.update(|update| update.apply(slot, &event));
            }
        }
    }

    fn compare(&mut self, prompt: &[u8], salted: bool) -> Result<(), TestCaseError> {
        let hashes: Vec<BlockHash> = prompt.iter().map(|&token| content(token, salted)).collect();
        let view = self.reader.view();
        view.overlap(hashes.iter().copied(), &mut self.answer);
        for number in 0..RANKS {
            let reach = view.reach(&self.answer, rank(number)).unwrap();
            let got = Tier::ALL.map(|tier| reach.tokens(tier));
            prop_assert_eq!(got, self.model.reach(rank(number), &hashes), "rank {} on {:?}", number, prompt);
        }
        Ok(())
    }

    fn compare_counts(&self) -> Result<(), TestCaseError> {
        let view = self.reader.view();
        for state in view.ranks() {
            prop_assert_eq!(
                state.parked_blocks,
                self.model.parked_blocks(state.rank),
                "parked by {:?}",
                state.rank
            );
        }
        let held: usize = self.model.ranks().map(|rank| self.model.held_blocks(rank)).sum();
        prop_assert_eq!(view.size().held_blocks, held as u64);
        Ok(())
    }
}

/// At least so many cases; more by `PROPTEST_CASES`.
fn config() -> ProptestConfig {
    let given = ProptestConfig::default();
    let failures =
        proptest::test_runner::FileFailurePersistence::Direct("tests/tree_equals_model.proptest-regressions");
    ProptestConfig { cases: given.cases.max(1500), failure_persistence: Some(Box::new(failures)), ..given }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_answer_is_the_models(
        acts in vec((0..RANKS, act()), 1..80),
        prompts in vec((prompt(), any::<bool>()), 6),
    ) {
        let mut both = Both::new();
        for (number, act) in &acts {
            both.act(*number, act);
            if let Act::Honest { prompt, salted, .. } = act {
                both.compare(prompt, *salted)?;
            }
            both.compare_counts()?;
        }
        for (prompt, salted) in &prompts {
            both.compare(prompt, *salted)?;
        }
        for number in 0..RANKS {
            both.act(number, &Act::Forget);
        }
        prop_assert_eq!(both.reader.view().size(), Size::default(), "what is left when nobody holds anything");
    }
}

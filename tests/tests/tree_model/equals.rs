//! On arbitrary streams of events, honest and broken, the tree gives the answers of the reference model.

use kvtide_radix::{
    BlockHash, DumpedRank, Limits, Overlap, Rank, RankSettings, RankSlot, Reader, Size, Tier, Writer, index,
};
use kvtide_tests::Model;
use proptest::{collection::vec, prelude::*};

use crate::act::{Act, BLOCK_SIZE, PARKED, RANKS, act, content, prompt, rank, settings};

/// The tree and the model, side by side.
struct Both {
    writer: Writer,
    reader: Reader,
    slots: Vec<RankSlot>,
    settings: Vec<RankSettings>,
    model: Model,
    answer: Overlap,
}

impl Both {
    fn new() -> Both {
        let (mut writer, reader) =
            index(BLOCK_SIZE, Limits { ranks: RANKS, parked_blocks: PARKED, ..Limits::default() });
        let mut model = Model::new(BLOCK_SIZE, PARKED);
        let slots = (0..RANKS)
            .map(|number| {
                let settings = settings(number % 5);
                model.join(rank(number), settings.clone());
                writer.update(|update| update.join(rank(number), settings)).unwrap()
            })
            .collect();
        let settings = (0..RANKS).map(|number| settings(number % 5)).collect();
        Both { writer, reader, slots, settings, model, answer: Overlap::default() }
    }

    fn act(&mut self, number: usize, act: &Act) {
        let slot = self.slots[number];
        match act {
            Act::Forget => {
                self.model.forget(rank(number));
                self.writer.update(|update| update.forget(slot));
            }
            Act::Expire { but } => {
                let arrivals = self.writer.parking(slot).arrivals;
                assert_eq!(arrivals, self.model.arrivals(rank(number)));
                let before = arrivals.saturating_sub(*but);
                let expired = self.writer.update(|update| update.expire(slot, before));
                assert_eq!([expired.blocks, expired.names], self.model.expire(rank(number), before));
            }
            Act::Return { settings: chosen } => {
                self.model.leave(rank(number));
                self.model.join(rank(number), settings(*chosen));
                self.settings[number] = settings(*chosen);
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

    /// Goes on with another tree that holds what this one did.
    fn reload(&mut self) -> Result<(), TestCaseError> {
        let dump = self.writer.dump(|_| true);
        let limits = Limits { ranks: RANKS, parked_blocks: PARKED, ..Limits::default() };
        let (mut writer, reader) = index(BLOCK_SIZE, limits);
        let number = |dumped: &DumpedRank| (0..RANKS).find(|&one| rank(one) == dumped.rank).unwrap();
        let settings = |index: usize| self.settings[number(&dump.ranks[index])].clone();
        let slots = writer.update(|update| update.restore(&dump, settings)).unwrap();
        let arrivals = |slot: RankSlot| self.writer.parking(slot).arrivals;
        let ranks: Vec<Rank> = dump.ranks.iter().map(|dumped| dumped.rank).collect();
        for number in 0..RANKS {
            let at = ranks.iter().position(|&one| one == rank(number)).unwrap();
            self.model.set_arrivals(rank(number), writer.parking(slots[at]).arrivals);
            prop_assert!(writer.parking(slots[at]).arrivals <= arrivals(self.slots[number]));
            self.slots[number] = slots[at];
        }
        // The order in which ranks come decides where runs and pages begin, and nothing else.
        let counts = |reader: &Reader| {
            let size = reader.view().size();
            (size.held_blocks, size.parked_blocks)
        };
        prop_assert_eq!(counts(&reader), counts(&self.reader));
        (self.writer, self.reader) = (writer, reader);
        Ok(())
    }

    /// A rank takes over what it holds itself, in the form in which another process would write it down.
    fn adopt(&mut self, number: usize) {
        let slot = self.slots[number];
        let dump = self.writer.dump(|one| one == rank(number));
        assert_eq!(dump.ranks.len(), 1);
        self.writer.update(|update| update.adopt(slot, &dump, 0)).unwrap();
        self.model.set_arrivals(rank(number), self.writer.parking(slot).arrivals);
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
        proptest::test_runner::FileFailurePersistence::Direct("tests/tree_model/equals.proptest-regressions");
    ProptestConfig { cases: given.cases.max(1500), failure_persistence: Some(Box::new(failures)), ..given }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_answer_is_the_models(
        acts in vec((0..RANKS, act()), 1..80),
        prompts in vec((prompt(), any::<bool>()), 6),
        reloads in vec(0..80_usize, 0..3),
        adoptions in vec((0..80_usize, 0..RANKS), 0..8),
    ) {
        let mut both = Both::new();
        for (step, (number, act)) in acts.iter().enumerate() {
            if reloads.contains(&step) {
                both.reload()?;
            }
            for &(_, rank) in adoptions.iter().filter(|&&(at, _)| at == step) {
                both.adopt(rank);
            }
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

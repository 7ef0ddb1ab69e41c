//! Answers: follows a prompt down the tree and notes for every rank where it ends.

use super::Skeleton;
use crate::{
    BlockHash, Layer, RankSlot, Reach,
    pages::Place,
    prompt::Prompt,
    rank_set::RankSet,
    run::{Run, RunId},
};

/// The answer to one prompt, and the memory to find it, both to be used again for the next.
#[derive(Debug, Default)]
pub struct Overlap {
    /// Complete blocks of the prompt that were looked at: all, or as many as anyone might hold.
    pub(crate) blocks: u32,
    /// Ranks with a reach, in no order.
    pub(crate) reaches: Vec<(RankSlot, Reach)>,
    /// Ranks that hold everything so far on the GPU, and those that just fell out.
    active: RankSet,
    dropped: RankSet,
    /// The runs on the way, each with the depth up to which the prompt follows it.
    pub(super) visited: Vec<(RunId, u32)>,
}

impl Overlap {
    /// The reach of a rank in this answer.
    #[must_use]
    pub fn reach(&self, rank: RankSlot) -> Reach {
        self.reaches.iter().find(|&&(slot, _)| slot == rank).map_or(Reach::NONE, |&(_, reach)| reach)
    }

    /// Ranks that hold the first block and more, each once, in no order.
    #[must_use]
    pub fn reaches(&self) -> &[(RankSlot, Reach)] {
        &self.reaches
    }

    fn clear(&mut self) {
        self.blocks = 0;
        self.reaches.clear();
        self.visited.clear();
    }
}

impl Skeleton {
    /// Finds every rank's reach into a prompt, given by its block hashes. They are asked for as the walk needs them
    /// and not beyond where the tree ends.
    pub(crate) fn overlap<G: AsRef<[BlockHash]>>(
        &self,
        prompt: impl IntoIterator<Item = G>,
        answer: &mut Overlap,
    ) {
        answer.clear();
        let mut prompt = Prompt::new(prompt.into_iter());
        let mut at: Option<Place> = None;
        while let Some(content) = prompt.next() {
            let Some(id) = self.find((at, content)) else { break };
            let run = self.run(id);
            let end = self.follow(run, &mut prompt);
            self.visit(run, end, at.is_none(), answer);
            answer.visited.push((id, end));
            answer.blocks = end;
            if !run.has_children(end - 1) || (answer.active.is_empty() && self.totals.lower_blocks == 0) {
                break;
            }
            at = Some(run.place(end - 1));
        }
        let all = Reach::gpu_only(answer.blocks * self.block_size);
        answer.active.list(all, &mut answer.reaches);
        answer.active.clear();
        if self.totals.lower_blocks > 0 || self.totals.windowed > 0 {
            self.add_layers(answer);
        }
    }

    /// Follows the prompt along a run that starts with its next block. Returns the depth at which they part.
    fn follow(&self, run: &Run, prompt: &mut Prompt<impl Iterator<Item: AsRef<[BlockHash]>>>) -> u32 {
        let mut depth = run.blocks.start;
        for (place, count) in run.places.within(run.blocks.clone()) {
            for contents in self.contents.pieces(place, count) {
                let equal = prompt.follow(contents);
                depth += equal as u32;
                if equal < contents.len() {
                    return depth;
                }
            }
        }
        depth
    }

    /// Takes from the active ranks those that do not hold the run up to `end`, and notes where they stop.
    fn visit(&self, run: &Run, end: u32, first: bool, answer: &mut Overlap) {
        let coverage = &run.coverage;
        let Overlap { active, dropped, reaches, .. } = answer;
        if first {
            active.clone_from(&coverage.full);
            dropped.clear();
        } else {
            active.keep(&coverage.full, dropped);
        }
        let tokens = |depth: u32| Reach::gpu_only(depth * self.block_size);
        for span in &coverage.spans {
            if span.layer != Layer::GPU || span.from != run.blocks.start {
                continue;
            }
            if !first && !dropped.remove(span.rank) {
                continue;
            }
            if span.to >= end {
                active.insert(span.rank);
            } else {
                reaches.push((span.rank, tokens(span.to)));
            }
        }
        dropped.list(tokens(run.blocks.start), reaches);
    }
}

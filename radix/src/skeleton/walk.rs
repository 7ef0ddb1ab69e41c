//! Answers: follows a prompt down the tree and notes for every rank where it ends.

use super::Skeleton;
use crate::{
    BlockHash, Layer, Overlap, Reach,
    prompt::Prompt,
    run::{Children, Run, RunId},
};

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
        let mut end = 0;
        let mut next = prompt.peek().and_then(|content| self.find((None, content)));
        while let Some(id) = next {
            let run = self.run(id);
            end = self.follow(run, &mut prompt);
            self.visit(run, end, answer);
            answer.visited.push((id, end));
            if answer.active.is_empty() && self.totals.lower_blocks == 0 {
                break;
            }
            next = self.next_run(run, end, &mut prompt);
        }
        answer.add_active(Reach::gpu_only(end * self.block_size));
        if self.totals.lower_blocks > 0 || self.totals.windowed > 0 {
            self.add_layers(answer);
        }
    }

    /// The run that hangs behind the block in front of `depth` and goes on as the prompt does.
    fn next_run(
        &self,
        run: &Run,
        depth: u32,
        prompt: &mut Prompt<impl Iterator<Item: AsRef<[BlockHash]>>>,
    ) -> Option<RunId> {
        match run.children(depth - 1) {
            Children::None => None,
            // No need to look for it, which is a walk to memory.
            Children::One(id) => {
                let content = prompt.peek()?;
                (self.run(id).key().1 == content).then_some(id)
            }
            Children::Several => {
                let content = prompt.peek()?;
                self.find((Some(run.place(depth - 1)), content))
            }
        }
    }

    /// Follows the prompt along a run that starts with its next block. Returns the depth at which they part.
    fn follow(&self, run: &Run, prompt: &mut Prompt<impl Iterator<Item: AsRef<[BlockHash]>>>) -> u32 {
        let mut depth = run.blocks.start;
        for (place, count) in run.places.within(run.blocks.clone()) {
            let equal = prompt.follow(&self.contents, place, count);
            depth += equal;
            if equal < count {
                break;
            }
        }
        depth
    }

    /// Takes from the active ranks those that do not hold the run up to `end`, and notes where they stop.
    fn visit(&self, run: &Run, end: u32, answer: &mut Overlap) {
        let (start, coverage) = (run.blocks.start, &run.coverage);
        let first = start == 0;
        if first {
            answer.active.clone_from(&coverage.full);
            answer.dropped.clear();
        } else {
            answer.active.keep(&coverage.full, &mut answer.dropped);
        }
        let tokens = |depth: u32| Reach::gpu_only(depth * self.block_size);
        for span in &coverage.spans {
            if span.layer != Layer::GPU || span.from != start {
                continue;
            }
            if !first && !answer.dropped.remove(span.rank) {
                continue;
            }
            if span.to >= end {
                answer.active.insert(span.rank);
            } else {
                answer.add(span.rank, tokens(span.to));
            }
        }
        answer.add_dropped(tokens(start));
    }
}

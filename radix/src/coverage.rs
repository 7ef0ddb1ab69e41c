//! Which ranks hold how much of a run.
//!
//! Most ranks that hold anything of a run hold all of it on the GPU: one bit each. Everything else is a list of
//! spans, sorted by rank, layer and depth. A hole is one more span and cuts no run.
//!
//! Invariants:
//! - C1: spans are sorted, not empty, inside the run, and those of one rank and layer neither touch nor overlap.
//! - C2: a rank is in `full` exactly if it holds the whole run in [`Layer::GPU`]; it then has no span there.

use std::ops::Range;

use crate::{Layer, RankSlot, rank_set::RankSet};

/// Blocks that a rank holds in a layer, by depth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Span {
    pub(crate) rank: RankSlot,
    pub(crate) layer: Layer,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Span {
    /// What is left of the span in front of some blocks and behind them.
    fn without(self, blocks: &Range<u32>) -> (Option<Span>, Option<Span>) {
        let head = (self.from < blocks.start).then_some(Span { to: blocks.start.min(self.to), ..self });
        let tail = (self.to > blocks.end).then_some(Span { from: blocks.end.max(self.from), ..self });
        (head, tail)
    }
}

/// Who holds what of one run.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) full: RankSet,
    pub(crate) spans: Vec<Span>,
}

impl Clone for Coverage {
    fn clone(&self) -> Coverage {
        Coverage { full: self.full.clone(), spans: self.spans.clone() }
    }

    /// Keeps the memory.
    fn clone_from(&mut self, other: &Coverage) {
        self.full.clone_from(&other.full);
        self.spans.clone_from(&other.spans);
    }
}

impl Coverage {
    /// The spans of a rank in a layer, as a range of indices.
    fn of(&self, rank: RankSlot, layer: Layer) -> Range<usize> {
        let start = self.spans.partition_point(|span| (span.rank, span.layer) < (rank, layer));
        let behind = &self.spans[start..];
        start..start + behind.iter().take_while(|span| (span.rank, span.layer) == (rank, layer)).count()
    }

    /// The spans of a rank in a layer that are neither in front of something nor behind it, as a range of indices.
    fn between(
        &self,
        rank: RankSlot,
        layer: Layer,
        in_front: impl Fn(&Span) -> bool,
        behind: impl Fn(&Span) -> bool,
    ) -> Range<usize> {
        let of = self.of(rank, layer);
        let first = of.start + self.spans[of.clone()].iter().take_while(|span| in_front(span)).count();
        let last = of.end - self.spans[first..of.end].iter().rev().take_while(|span| behind(span)).count();
        first..last
    }

    /// All spans of a rank.
    pub(crate) fn of_rank(&self, rank: RankSlot) -> &[Span] {
        let start = self.spans.partition_point(|span| span.rank < rank);
        let behind = &self.spans[start..];
        &behind[..behind.iter().take_while(|span| span.rank == rank).count()]
    }

    /// Whether the rank holds anything of the run.
    pub(crate) fn mentions(&self, rank: RankSlot) -> bool {
        self.full.contains(rank) || !self.of_rank(rank).is_empty()
    }

    /// Whether the rank holds the whole run on the GPU, and nobody holds anything else of it.
    pub(crate) fn is_only(&self, rank: RankSlot) -> bool {
        self.spans.is_empty() && self.full.is_only(rank)
    }

    /// Whether the rank holds the block at `depth` in `layer`.
    pub(crate) fn holds(&self, rank: RankSlot, layer: Layer, depth: u32) -> bool {
        (layer == Layer::GPU && self.full.contains(rank))
            || self.spans[self.of(rank, layer)].iter().any(|span| span.from <= depth && depth < span.to)
    }

    /// Whether the rank holds any of the blocks in `layer`.
    pub(crate) fn meets(&self, rank: RankSlot, layer: Layer, blocks: &Range<u32>) -> bool {
        (layer == Layer::GPU && self.full.contains(rank))
            || self.spans[self.of(rank, layer)]
                .iter()
                .any(|span| span.from < blocks.end && blocks.start < span.to)
    }

    /// The blocks that the rank holds in `layer` without a gap around `depth`; none if it does not hold that one.
    pub(crate) fn held_around(
        &self,
        rank: RankSlot,
        layer: Layer,
        depth: u32,
        run: &Range<u32>,
    ) -> Range<u32> {
        if layer == Layer::GPU && self.full.contains(rank) {
            return run.clone();
        }
        let around =
            self.spans[self.of(rank, layer)].iter().find(|span| span.from <= depth && depth < span.to);
        around.map_or(depth..depth, |span| span.from..span.to)
    }

    /// Whether the rank holds the block at `depth` anywhere.
    pub(crate) fn holds_anywhere(&self, rank: RankSlot, depth: u32) -> bool {
        self.layers(rank, depth).next().is_some()
    }

    /// The layers in which the rank holds the block at `depth`.
    pub(crate) fn layers(&self, rank: RankSlot, depth: u32) -> impl Iterator<Item = Layer> {
        let full = self.full.contains(rank).then_some(Layer::GPU);
        let spans = self.of_rank(rank).iter().filter(move |span| span.from <= depth && depth < span.to);
        full.into_iter().chain(spans.map(|span| span.layer))
    }

    /// How many ranks but `rank` hold the run's last block, once for each layer.
    pub(crate) fn others_at_end(&self, rank: RankSlot, end: u32) -> usize {
        let spans = self.spans.iter().filter(|span| span.to == end && span.rank != rank).count();
        self.full.len() - usize::from(self.full.contains(rank)) + spans
    }

    /// Whether more than `most` ranks hold the last block of this run, whose blocks end at `end`, and not the
    /// first of the one behind it, or the other way round; once for each layer.
    pub(crate) fn differs_across(&self, behind: &Coverage, end: u32, most: usize) -> bool {
        let mut apart = self.full.difference_count(&behind.full);
        if apart > most + self.spans.len() + behind.spans.len() {
            return true;
        }
        // A rank that is in one bitset only may still hold the other block by a span.
        let here = self.spans.iter().filter(|span| span.to == end);
        let there = behind.spans.iter().filter(|span| span.from == end);
        for span in here.clone() {
            match behind.holds(span.rank, span.layer, end) {
                true if span.layer == Layer::GPU && behind.full.contains(span.rank) => apart -= 1,
                true => {}
                false => apart += 1,
            }
        }
        for span in there {
            match self.holds(span.rank, span.layer, end - 1) {
                true if span.layer == Layer::GPU && self.full.contains(span.rank) => apart -= 1,
                true => {}
                false => apart += 1,
            }
        }
        apart > most
    }

    /// The depth behind the last block that anyone holds, at least `start`.
    pub(crate) fn end(&self, run: &Range<u32>) -> u32 {
        if !self.full.is_empty() {
            return run.end;
        }
        self.spans.iter().map(|span| span.to).max().unwrap_or(run.start)
    }

    /// The rank now holds `blocks` of the run in `layer`. Returns how many it did not hold before.
    pub(crate) fn cover(
        &mut self,
        rank: RankSlot,
        layer: Layer,
        blocks: Range<u32>,
        run: &Range<u32>,
    ) -> u32 {
        if layer == Layer::GPU && self.full.contains(rank) {
            return 0;
        }
        // The spans that `blocks` touches or overlaps become one with it (C1).
        let place = self.between(rank, layer, |span| span.to < blocks.start, |span| span.from > blocks.end);
        let joined = &self.spans[place.clone()];
        let from = joined.first().map_or(blocks.start, |span| span.from.min(blocks.start));
        let to = joined.last().map_or(blocks.end, |span| span.to.max(blocks.end));
        let before: u32 = joined.iter().map(|span| span.to - span.from).sum();
        if layer == Layer::GPU && (from..to) == *run {
            self.full.insert(rank);
            self.replace(place, None, None);
        } else {
            self.replace(place, Some(Span { rank, layer, from, to }), None);
        }
        to - from - before
    }

    /// The rank no longer holds `blocks` of the run in `layer`. Returns how many it held before.
    pub(crate) fn uncover(
        &mut self,
        rank: RankSlot,
        layer: Layer,
        blocks: Range<u32>,
        run: &Range<u32>,
    ) -> u32 {
        if layer == Layer::GPU && self.full.remove(rank) {
            let at = self.of(rank, layer).start;
            let (head, tail) = Span { rank, layer, from: run.start, to: run.end }.without(&blocks);
            self.replace(at..at, head, tail);
            return blocks.end - blocks.start;
        }
        let place = self.between(rank, layer, |span| span.to <= blocks.start, |span| span.from >= blocks.end);
        let cut = &self.spans[place.clone()];
        let held = |span: &Span| span.to.min(blocks.end) - span.from.max(blocks.start);
        let removed = cut.iter().map(held).sum();
        let head = cut.first().and_then(|span| span.without(&blocks).0);
        let tail = cut.last().and_then(|span| span.without(&blocks).1);
        self.replace(place, head, tail);
        removed
    }

    /// Puts up to two spans in the place of others. Nearly always it is one for one, which moves nothing.
    fn replace(&mut self, place: Range<usize>, head: Option<Span>, tail: Option<Span>) {
        let mut at = place.start;
        for span in head.into_iter().chain(tail) {
            if at < place.end {
                self.spans[at] = span;
            } else {
                self.spans.insert(at, span);
            }
            at += 1;
        }
        if at < place.end {
            self.spans.drain(at..place.end);
        }
    }

    /// Takes the rank out altogether.
    pub(crate) fn remove_rank(&mut self, rank: RankSlot) {
        self.full.remove(rank);
        self.spans.retain(|span| span.rank != rank);
    }

    /// The run has grown: who held all of it holds all of it but the new blocks.
    pub(crate) fn grow(&mut self, old: &Range<u32>) {
        if self.full.is_empty() {
            return;
        }
        let full = std::mem::take(&mut self.full);
        let spans = full.iter().map(|rank| Span { rank, layer: Layer::GPU, from: old.start, to: old.end });
        self.spans.extend(spans);
        self.spans.sort_unstable();
    }

    /// The run has lost blocks at its end that nobody held.
    pub(crate) fn shrink(&mut self, run: &Range<u32>) {
        self.promote(run);
    }

    /// Cuts the coverage in two at `depth`.
    pub(crate) fn split(&mut self, depth: u32, run: &Range<u32>) -> Coverage {
        let mut tail = Coverage { full: self.full.clone(), spans: Vec::new() };
        tail.spans.extend(
            self.spans
                .iter()
                .filter(|span| span.to > depth)
                .map(|&span| Span { from: span.from.max(depth), ..span }),
        );
        self.spans.retain_mut(|span| {
            span.to = span.to.min(depth);
            span.from < span.to
        });
        self.promote(&(run.start..depth));
        tail.promote(&(depth..run.end));
        tail
    }

    /// Joins the coverage of the run behind this one. `own` and `behind` are the two runs' blocks.
    pub(crate) fn join(&mut self, other: Coverage, own: &Range<u32>, behind: &Range<u32>) {
        let both = own.start..behind.end;
        let expand = |full: &RankSet, run: &Range<u32>, keep: &RankSet| -> Vec<Span> {
            let partial = full.iter().filter(|&rank| !keep.contains(rank));
            partial.map(|rank| Span { rank, layer: Layer::GPU, from: run.start, to: run.end }).collect()
        };
        let mut spans = std::mem::take(&mut self.spans);
        spans.extend(expand(&self.full, own, &other.full));
        spans.extend(expand(&other.full, behind, &self.full));
        spans.extend(other.spans);
        spans.sort_unstable();
        self.full.intersect(&other.full);
        for span in spans {
            match self.spans.last_mut() {
                Some(last) if (last.rank, last.layer, last.to) == (span.rank, span.layer, span.from) => {
                    last.to = span.to;
                }
                Some(_) | None => self.spans.push(span),
            }
        }
        self.promote(&both);
    }

    /// Restores C2: a span over the whole run becomes a bit.
    fn promote(&mut self, run: &Range<u32>) {
        let full = &mut self.full;
        self.spans.retain(|span| {
            let whole = span.layer == Layer::GPU && (span.from..span.to) == *run;
            if whole {
                full.insert(span.rank);
            }
            !whole
        });
    }

    /// How many spans begin or end at `depth`.
    pub(crate) fn cuts(&self, depth: u32) -> usize {
        self.spans.iter().filter(|span| span.from == depth || span.to == depth).count()
    }
}

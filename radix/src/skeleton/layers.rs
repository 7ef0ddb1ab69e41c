//! Reach where the GPU alone does not decide: lower tiers, chunks and windows, by intervals of blocks.

use super::Skeleton;
use crate::{Group, Layer, Overlap, RankSettings, RankSlot, Reach, Tier, run::RunId};

/// Blocks `from..to`.
type Interval = (u32, u32);

impl Skeleton {
    fn settings(&self, rank: RankSlot) -> Option<&RankSettings> {
        self.roster.get(rank).map(|member| &*member.settings)
    }

    /// Works out anew the reach of every rank that holds anything on the way in another layer than the GPU's, or
    /// that has windows.
    pub(super) fn add_layers(&self, answer: &mut Overlap) {
        let mut ranks = std::mem::take(&mut answer.layered);
        ranks.clear();
        for &(id, end) in &answer.visited {
            for span in &self.run(id).coverage.spans {
                if span.layer != Layer::GPU && span.from < end {
                    ranks.insert(span.rank);
                }
            }
        }
        if self.totals.windowed > 0 {
            for (rank, _) in answer.reaches() {
                if self.settings(rank).is_some_and(|settings| !settings.windows.is_empty()) {
                    ranks.insert(rank);
                }
            }
        }
        if !ranks.is_empty() {
            answer.take_out(&ranks);
            let mut held = std::mem::take(&mut answer.held);
            for rank in ranks.iter() {
                self.collect(rank, &answer.visited, &mut held);
                let blocks =
                    self.settings(rank).map_or([0; 4], |settings| held.reach(settings, self.block_size));
                if blocks != [0; 4] {
                    answer.add(rank, Reach::new(blocks.map(|blocks| blocks * self.block_size)));
                }
            }
            answer.held = held;
        }
        answer.layered = ranks;
    }

    /// What a rank holds on the way.
    fn collect(&self, rank: RankSlot, visited: &[(RunId, u32)], held: &mut Held) {
        held.clear();
        for &(id, end) in visited {
            let run = self.run(id);
            if run.coverage.full.contains(rank) {
                held.add(Layer::GPU, (run.blocks.start, end));
            }
            for span in run.coverage.of_rank(rank).iter().filter(|span| span.from < end) {
                held.add(span.layer, (span.from, span.to.min(end)));
            }
        }
    }
}

/// What one rank holds of a prompt, by layer, in order of depth.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Layers in which the rank holds nothing stay, with their memory, for the next rank.
    layers: Vec<(Layer, Vec<Interval>)>,
}

impl Held {
    fn clear(&mut self) {
        self.layers.iter_mut().for_each(|(_, intervals)| intervals.clear());
    }

    fn add(&mut self, layer: Layer, (from, to): Interval) {
        let index = match self.layers.iter().position(|&(other, _)| other == layer) {
            Some(index) => index,
            None => {
                self.layers.push((layer, Vec::new()));
                self.layers.len() - 1
            }
        };
        let intervals = &mut self.layers[index].1;
        match intervals.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            Some(_) | None => intervals.push((from, to)),
        }
    }

    /// Leading blocks that are usable with each tier and all faster ones.
    fn reach(&self, settings: &RankSettings, block_size: u32) -> [u32; 4] {
        if settings.windows.is_empty() && settings.host_chunk_blocks <= 1 {
            self.reach_block_by_block()
        } else {
            self.reach_by_rules(settings, block_size)
        }
    }

    /// The same where every block that is held can be used: goes on from interval to interval, in whatever tier.
    fn reach_block_by_block(&self) -> [u32; 4] {
        let mut reach = 0;
        Tier::ALL.map(|slowest| {
            let usable = |layer: Layer| layer.group() == Group::FULL && layer.tier() <= slowest;
            loop {
                let before = reach;
                for (_, intervals) in self.layers.iter().filter(|&&(layer, _)| usable(layer)) {
                    let started = intervals.partition_point(|&(from, _)| from <= reach);
                    reach = started.checked_sub(1).map_or(reach, |last| reach.max(intervals[last].1));
                }
                if reach == before {
                    return reach;
                }
            }
        })
    }

    /// The same with whole chunks in host memory, and windows behind which a prefix ends.
    fn reach_by_rules(&self, settings: &RankSettings, block_size: u32) -> [u32; 4] {
        Tier::ALL.map(|tier| {
            let full = self.union(Group::FULL, tier, settings);
            let mut reach = full.first().filter(|first| first.0 == 0).map_or(0, |first| first.1);
            let windows: Vec<(u32, Vec<Interval>)> = settings
                .windows
                .iter()
                .map(|window| (window.blocks(block_size), self.union(window.group, tier, settings)))
                .collect();
            // Each step ends where a window lacks a block, so this ends.
            while let Some(missing) = windows.iter().find_map(|(window, held)| missing(held, *window, reach))
            {
                reach = missing;
            }
            reach
        })
    }

    /// Blocks of a group in a tier or a faster one.
    fn union(&self, group: Group, slowest: Tier, settings: &RankSettings) -> Vec<Interval> {
        let mut all: Vec<Interval> = Vec::new();
        for (layer, intervals) in &self.layers {
            if layer.group() == group && layer.tier() <= slowest {
                let chunk = if layer.tier() == Tier::Host { settings.host_chunk_blocks.max(1) } else { 1 };
                all.extend(intervals.iter().filter_map(|&interval| whole_chunks(interval, chunk)));
            }
        }
        all.sort_unstable();
        let mut joined: Vec<Interval> = Vec::new();
        for (from, to) in all {
            match joined.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                Some(_) | None => joined.push((from, to)),
            }
        }
        joined
    }
}

/// The whole chunks within an interval, if there are any.
fn whole_chunks((from, to): Interval, chunk: u32) -> Option<Interval> {
    let (from, to) = (from.div_ceil(chunk) * chunk, to / chunk * chunk);
    (from < to).then_some((from, to))
}

/// The last of the `window` blocks in front of `reach` that is not held.
fn missing(held: &[Interval], window: u32, reach: u32) -> Option<u32> {
    let start = reach.saturating_sub(window);
    if start == reach {
        return None;
    }
    match held.iter().rev().find(|&&(from, _)| from < reach) {
        Some(&(_, to)) if to < reach => Some(reach - 1),
        Some(&(from, _)) if from > start => Some(from - 1),
        Some(_) => None,
        None => Some(reach - 1),
    }
}

//! Reach, block by block, straight from its definition.

use std::collections::HashSet;

use kvtide_radix::{BlockHash, Group, Layer, Rank, Tier, Window};

use super::{Model, Path, RankModel};

/// The reach of a rank that holds nothing of a prompt: tokens for GPU, host, disk and external.
pub const REACH_NONE: [u32; 4] = [0; 4];

impl Model {
    /// How many leading tokens of a prompt a rank could reuse per tier, all faster ones included.
    #[must_use]
    pub fn reach(&self, rank: Rank, prompt: &[BlockHash]) -> [u32; 4] {
        let state = &self.ranks[&rank];
        let held: HashSet<(Path, Layer)> =
            state.held.keys().map(|(name, layer)| (state.bound[name], *layer)).collect();
        let mut known = Some(None);
        let prompt: Vec<Option<Path>> = prompt
            .iter()
            .map(|&content| {
                let path = known.and_then(|parent| self.paths.get(&(parent, content)).copied());
                known = path.map(Some);
                path
            })
            .collect();
        let held = |index: usize, tier: Tier, group: Group| match prompt.get(index) {
            Some(Some(path)) => held.contains(&(*path, Layer::new(tier, group))),
            Some(None) | None => false,
        };
        Tier::ALL.map(|tier| self.blocks_reached(state, prompt.len(), tier, &held) * self.block_size)
    }

    fn blocks_reached(
        &self,
        state: &RankModel,
        prompt: usize,
        tier: Tier,
        held: &impl Fn(usize, Tier, Group) -> bool,
    ) -> u32 {
        let upto = |index: usize, group: Group| {
            Tier::ALL.into_iter().take_while(|&faster| faster <= tier).any(|tier| {
                let chunk =
                    if tier == Tier::Host { state.settings.host_chunk_blocks.max(1) as usize } else { 1 };
                let start = index / chunk * chunk;
                (start..start + chunk).all(|index| held(index, tier, group))
            })
        };
        let mut reach = (0..prompt).take_while(|&index| upto(index, Group::FULL)).count();
        let windows = &state.settings.windows;
        let served = |reach: usize, window: &Window| {
            let start = reach.saturating_sub(window.blocks(self.block_size) as usize);
            (start..reach).all(|index| upto(index, window.group))
        };
        while !windows.iter().all(|window| served(reach, window)) {
            reach -= 1;
        }
        u32::try_from(reach).unwrap()
    }
}

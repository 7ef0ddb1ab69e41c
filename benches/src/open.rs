//! An index of kvtide for as many ranks as a workload has.

use kvtide_radix::{Limits, Rank, RankSettings, RankSlot, Reader, Writer, index};

/// The two doors, and the slot of each rank by its number. A block is one token, so that reaches count blocks.
///
/// # Panics
/// If there are more ranks than [`Limits::default`] lets in.
#[must_use]
pub fn open(ranks: usize, settings: &RankSettings) -> (Writer, Reader, Vec<RankSlot>) {
    let (mut writer, reader) = index(1, Limits::default());
    let mut join = |number| {
        let rank = Rank { worker_id: number as u64, dp_rank: 0 };
        writer.update(|update| update.join(rank, settings.clone()))
    };
    let slots = (0..ranks).map(|number| join(number).expect("no more ranks than the limit")).collect();
    (writer, reader, slots)
}

//! What waits for a parent or a name for too long will not be placed any more.

use std::collections::VecDeque;

use kvtide_radix::Knowledge;

use super::{Applied, Mirror};

/// So long it waits at least.
const WAIT_MS: u64 = 60_000;
/// Between one look and the next: so much longer it may wait.
const LOOK_MS: u64 = 1000;

/// How much had ever had to wait at which time, oldest first.
#[derive(Default)]
pub(super) struct Marks(VecDeque<(u64, u64)>);

impl Marks {
    /// Notes how much has ever had to wait until now. Returns how much of it has waited too long by now.
    fn note(&mut self, now_ms: u64, arrivals: u64) -> Option<u64> {
        if self.0.back().is_none_or(|&(_, last)| last != arrivals) {
            self.0.push_back((now_ms, arrivals));
        }
        let mut expired = None;
        while let Some((_, arrivals)) = self.0.pop_front_if(|&mut (when, _)| when + WAIT_MS <= now_ms) {
            expired = Some(arrivals);
        }
        expired
    }
}

impl Mirror {
    /// Drops what has waited too long. Returns what that did, by source.
    pub(super) fn expire_parked(&mut self) -> Vec<(u32, Applied)> {
        let now_ms = self.clock.steady_ms();
        if now_ms < self.looked_ms + LOOK_MS {
            return Vec::new();
        }
        self.looked_ms = now_ms;
        let times = self.times(None);
        let mut all = Vec::new();
        for stream in self.ranks.iter_mut() {
            let parking = self.writer.parking(stream.slot);
            if parking.blocks == 0 {
                stream.parked_marks.0.clear();
                continue;
            }
            let Some(before) = stream.parked_marks.note(now_ms, parking.arrivals) else { continue };
            let mut applied = Applied::default();
            self.writer.update(|update| {
                let expired = update.expire(stream.slot, before);
                applied.expired = (expired.blocks + expired.names) as u64;
                // A parent that never came was lost, and what else was, nobody knows. A name alone credits nothing.
                if expired.blocks > 0 && stream.knowledge() == Knowledge::Complete {
                    stream.hole(update, 0, &mut applied);
                } else if expired.names > 0 {
                    stream.doubt();
                }
                stream.mark(update, times);
            });
            all.push((stream.source.id, applied));
        }
        all
    }
}

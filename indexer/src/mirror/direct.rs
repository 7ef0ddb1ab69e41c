//! Events handed in by a program: over HTTP, or in process.

use kvtide_radix::{Event, Knowledge, Rank, RankSettings};

use super::{Applied, Mirror, Refusal, Source};

impl Mirror {
    /// Applies events of one rank, as one version. `first_event_id` numbers the first of them, the others follow;
    /// without it nothing shows whether anything is missing, and the rank's numbers are a lower bound.
    pub(crate) fn apply_events(
        &mut self,
        source: Source,
        rank: Rank,
        first_event_id: Option<u64>,
        events: &[Event],
    ) -> Applied {
        let times = self.times(None);
        let mut applied = Applied::default();
        if self.ranks.is_refused(rank, source) {
            applied.refuse(Refusal::OtherSource, events.len());
            return applied;
        }
        let ranks = &mut self.ranks;
        self.writer.update(|update| {
            let stream = match ranks.claim(update, rank, source, RankSettings::default) {
                Ok(stream) => stream,
                Err(refusal) => return applied.refuse(refusal, events.len()),
            };
            if stream.knowledge() == Knowledge::Unknown {
                stream.begin_life(update, first_event_id == Some(1), &mut applied);
            }
            if first_event_id.is_none() {
                stream.doubt();
            }
            for (index, event) in (0_u64..).zip(events) {
                let id = first_event_id.map(|first| first.saturating_add(index));
                if id.is_none_or(|id| stream.advance(update, id, 0, &mut applied)) {
                    stream.apply(update, event, &mut applied);
                }
            }
            stream.mark(update, times);
        });
        applied
    }
}

//! A stream of events without an end, of which only one round is kept in memory.

use kvtide_benches::{Conversations, Fleet, Shape, Workload};

/// Ranks that announce.
pub(crate) const RANKS: usize = 64;
/// Blocks that all of them hold.
const HELD: usize = 262_144;
/// Turns of the conversations a round: what they store fills all caches several times.
const TURNS: usize = 80_000;

/// Fills an empty index with the first part; from then on the second can be applied again and again.
///
/// The same conversations are held twice. What a rank holds after each time is what it used last, and that is the same:
/// so the second time ends where it began.
pub(crate) struct Stream {
    pub(crate) first: Workload,
    /// With its prompts.
    pub(crate) again: Workload,
}

impl Stream {
    /// The stream, or a `part`-th of it.
    pub(crate) fn new(part: usize) -> Stream {
        let mut fleet = Fleet::new(Shape { ranks: RANKS, room: HELD / part / RANKS, stored_per_hole: None });
        hold_conversations(&mut fleet, TURNS / part);
        let events = fleet.take_events();
        fleet.take_prompts();
        hold_conversations(&mut fleet, TURNS / part);
        let again = fleet.finish();
        Stream { first: Workload { events, ..again.clone() }, again }
    }
}

fn hold_conversations(fleet: &mut Fleet, turns: usize) {
    let mut conversations = Conversations::new(RANKS);
    for _ in 0..turns {
        conversations.turn(fleet);
    }
}

#[cfg(test)]
mod tests {
    use kvtide_benches::open;
    use kvtide_radix::{Overlap, Reach};

    use super::*;

    #[test]
    fn the_second_part_ends_where_it_began() {
        let stream = Stream::new(32);
        let (mut writer, reader, slots) = open(RANKS, &stream.first.settings);
        let prompts = &stream.again.prompts;
        let mut answers = Vec::new();
        for part in [&stream.first, &stream.again, &stream.again] {
            for (rank, event) in &part.events {
                let outcome = writer.update(|update| update.apply(slots[*rank], event));
                assert_eq!((outcome.unknown, outcome.parked), (0, 0));
            }
            let mut answer = Overlap::default();
            let reaches = (0..prompts.len()).map(|prompt| {
                reader.view().overlap([prompts.get(prompt)], &mut answer);
                slots.iter().map(|&slot| answer.reach(slot)).collect::<Vec<Reach>>()
            });
            answers.push(reaches.collect::<Vec<_>>());
            assert_eq!(reader.view().size().held_blocks, stream.again.held_blocks as u64);
        }
        assert!(answers[0] == answers[1] && answers[1] == answers[2]);
    }
}

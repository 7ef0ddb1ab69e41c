//! That the check is one: an index that loses messages is found, and so is a truth that is wrong.

use std::time::Duration;

use kvtide::serving::Failure;
use kvtide_radix::SequenceHash;

use super::Player;
use crate::cli::storm::{
    ahead::Ahead,
    check::Checker,
    plan::{Frame, Plan, Step},
    quiet::Quiet,
    reference::Verdict,
    scenario::Scenario,
    sight::Fleet,
    target::{BusPart, Fate, Followed, Place, Race, Target},
};

/// Passes on all messages but one of so many.
struct Lossy {
    target: Box<dyn Target>,
    sent: u64,
    lost_of: u64,
}

impl Target for Lossy {
    fn send(&mut self, frame: Frame) -> Result<Fate, Failure> {
        self.sent += 1;
        if self.sent.is_multiple_of(self.lost_of) { Ok(Fate::Dropped) } else { self.target.send(frame) }
    }

    fn race(&mut self, frames: Vec<Frame>, fleet: Fleet) -> Result<Option<Race>, Failure> {
        self.target.race(frames, fleet)
    }

    fn interrupt(&mut self, part: BusPart, down: Duration) -> Result<(), Failure> {
        self.target.interrupt(part, down)
    }
}

/// Plays a second of a small fleet, of which a part of the messages is lost and the truth is told by `tell`. Returns what came of the
/// checks, and how many events are missing.
fn play(lost_of: u64, tell: impl Fn(&mut Frame) + Send + 'static) -> (Verdict, u64) {
    let mut scenario = Scenario::find("conversations").unwrap();
    (scenario.fleet.workers, scenario.fleet.gpu_blocks) = (4, 600);
    (scenario.load.warm_requests, scenario.load.queries_per_check) = (200, 1);
    let fleet = Fleet { ranks: scenario.ranks(), dp_ranks: 1 };
    let plan = Plan::new(&scenario).unwrap().map(move |mut step| {
        if let Step::Frame(frame) = &mut step {
            tell(frame);
        }
        step
    });
    let quiet = Quiet::default();
    let ahead = Ahead::start(plan, 4 << 20, quiet.clone()).unwrap();
    let (checker, checking) = Checker::start(fleet, scenario.fleet.block_size, quiet.clone()).unwrap();
    let (target, indexer, following) = Followed::start(&Place::InProcess, &scenario).unwrap().into_parts();
    let target = Box::new(Lossy { target, sent: 0, lost_of });
    let mut player = Player::new(ahead, target, indexer, fleet, checker, quiet);
    assert_eq!(player.warm().unwrap(), 0);
    let measured = player.play(1.0, Duration::from_secs(1), Duration::from_secs(1)).unwrap();
    assert!(measured.lookups.count() > 100, "{}", measured.lookups.count());
    let missing = player.missing();
    drop(player);
    following.stop();
    (checking.end().unwrap(), missing)
}

#[test]
fn nothing_lost_is_nothing_wrong() {
    let (verdict, missing) = play(u64::MAX, |_| {});
    assert_eq!((verdict.over, verdict.under, missing), (0, 0, 0), "{verdict:?}");
    assert!(verdict.compared > 400, "{verdict:?}");
}

#[test]
fn lost_messages_are_missing_and_leave_too_little_but_never_too_much() {
    let (verdict, missing) = play(50, |_| {});
    assert!(missing > 0);
    assert_eq!((verdict.over, verdict.under_complete), (0, 0), "{verdict:?}");
    assert!(verdict.under > 0, "{verdict:?}");
}

#[test]
fn a_truth_in_which_less_is_stored_shows_too_much() {
    let (verdict, missing) = play(u64::MAX, |frame| {
        for delta in frame.deltas.iter_mut().flatten().filter(|delta| delta.stored) {
            delta.names.iter_mut().for_each(|name| *name = SequenceHash(!name.0));
        }
    });
    assert!(verdict.over > 0, "{verdict:?}");
    assert_eq!((verdict.under, missing), (0, 0), "{verdict:?}");
}

#[test]
fn a_truth_in_which_nothing_is_removed_shows_too_little_of_complete_ranks() {
    let (verdict, _) = play(u64::MAX, |frame| {
        for delta in frame.deltas.iter_mut().flatten().filter(|delta| !delta.stored) {
            delta.names = [].into();
        }
    });
    assert_eq!(verdict.over, 0, "{verdict:?}");
    assert!(verdict.under_complete > 0, "{verdict:?}");
}

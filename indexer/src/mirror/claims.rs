//! Which of several publishers a rank belongs to.
//!
//! A worker that restarts comes back under a new publisher id, so that a new id is a new life. What a former
//! publisher says a moment later was on its way; what it says after that means that both live.

/// A retired publisher's frames may still be on their way for so long.
const LATE_MS: u64 = 200;
/// Retired publishers that are remembered for a rank.
const RETIRED: usize = 4;

/// Which publishers claim a rank.
#[derive(Default)]
pub(super) struct Claims {
    current: Option<u64>,
    /// Former ones, latest last, and when each was last heard.
    retired: Vec<(u64, u64)>,
    changed_at_ms: u64,
    heard_at_ms: u64,
    /// Two live publishers claim the rank.
    conflict: bool,
}

/// What a frame's publisher is to a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    /// The one that feeds it.
    Current,
    /// The next one: a new life.
    Successor,
    /// A former one, whose frame is only late.
    Late,
    /// A former one that lives on.
    Conflicting,
}

impl Claims {
    /// Those of a rank that a publisher feeds.
    pub(super) fn of(publisher: u64, now_ms: u64) -> Claims {
        Claims { current: Some(publisher), heard_at_ms: now_ms, ..Claims::default() }
    }

    /// The publisher that feeds the rank, or fed it last.
    pub(super) fn current(&self) -> Option<u64> {
        self.current
    }

    /// Whether this is the publisher that feeds the rank, or fed it last.
    pub(super) fn is_current(&self, publisher: u64) -> bool {
        self.current == Some(publisher)
    }

    /// Whether the rank is that publisher's alone, or nobody's yet.
    pub(super) fn is_free_for(&self, publisher: u64) -> bool {
        !self.conflict && self.current.is_none_or(|current| current == publisher)
    }

    /// Settles what a publisher that speaks now is to the rank.
    /// Of two that claim it, one has given up when it has been silent for `silence_ms`.
    pub(super) fn claim(&mut self, publisher: u64, now_ms: u64, silence_ms: u64) -> Claim {
        if self.is_current(publisher) && !self.conflict {
            self.heard_at_ms = now_ms;
            return Claim::Current;
        }
        let retired = self.retired.iter_mut().find(|(id, _)| *id == publisher);
        match retired {
            None if self.current == Some(publisher) => {}
            None => {
                self.succeed(publisher, now_ms);
                return Claim::Successor;
            }
            Some((_, heard)) => *heard = now_ms,
        }
        if !self.conflict && now_ms < self.changed_at_ms + LATE_MS {
            return Claim::Late;
        }
        if self.current == Some(publisher) {
            self.heard_at_ms = now_ms;
        }
        // Whoever speaks when all others have been silent for long has the rank.
        let current = self.current.map(|id| (id, self.heard_at_ms));
        let mut others = self.retired.iter().copied().chain(current).filter(|&(id, _)| id != publisher);
        self.conflict = others.any(|(_, heard)| now_ms < heard.saturating_add(silence_ms));
        if self.conflict {
            return Claim::Conflicting;
        }
        self.retired.retain(|&(id, _)| id != publisher);
        if self.current != Some(publisher) {
            self.succeed(publisher, now_ms);
        }
        Claim::Successor
    }

    /// Discovery says that the rank is that publisher's. Whether something of another may be here.
    pub(super) fn settle(&mut self, publisher: u64, now_ms: u64) -> bool {
        if self.is_free_for(publisher) {
            self.current = Some(publisher);
            return false;
        }
        self.retired.retain(|&(id, _)| id != publisher);
        if self.current != Some(publisher) {
            self.succeed(publisher, now_ms);
        }
        self.conflict = false;
        true
    }

    /// Discovery says that the publisher which feeds the rank has gone.
    pub(super) fn end(&mut self) {
        *self = Claims::default();
    }

    fn succeed(&mut self, publisher: u64, now_ms: u64) {
        if let Some(former) = self.current.replace(publisher) {
            self.retired.push((former, self.heard_at_ms));
            if self.retired.len() > RETIRED {
                self.retired.remove(0);
            }
        }
        (self.changed_at_ms, self.heard_at_ms, self.conflict) = (now_ms, now_ms, false);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Claim::{self, Conflicting, Current, Late, Successor},
        Claims,
    };

    /// When which publisher speaks, and what it then is.
    fn play(case: &str, rows: &[(u64, u64, Claim)]) {
        let mut claims = Claims::default();
        for &(now_ms, publisher, expected) in rows {
            assert_eq!(
                claims.claim(publisher, now_ms, 10_000),
                expected,
                "{case}: {publisher} at {now_ms} ms"
            );
            let has_it = matches!(expected, Current | Successor);
            assert!(!has_it || claims.is_current(publisher), "{case}: {publisher} at {now_ms} ms");
        }
    }

    #[test]
    fn a_new_publisher_is_the_next_life() {
        play("restarts", &[(0, 1, Successor), (5, 1, Current), (9, 2, Successor), (9, 2, Current)]);
    }

    #[test]
    fn what_a_former_one_says_a_moment_later_was_on_its_way() {
        play(
            "late",
            &[
                (0, 1, Successor),
                (1000, 2, Successor),
                (1000, 1, Late),
                (1199, 1, Late),
                (1199, 2, Current),
                (60_000, 2, Current),
            ],
        );
    }

    #[test]
    fn one_that_speaks_on_is_in_conflict_until_the_other_has_been_silent_for_ten_seconds() {
        let conflict =
            [(0, 1, Successor), (1000, 2, Successor), (1200, 1, Conflicting), (1300, 2, Conflicting)];
        play(
            "the new one stays",
            &[&conflict[..], &[(11_199, 2, Conflicting), (11_200, 2, Successor), (11_201, 2, Current)]]
                .concat(),
        );
        play(
            "the old one stays",
            &[&conflict[..], &[(11_299, 1, Conflicting), (11_300, 1, Successor), (11_301, 1, Current)]]
                .concat(),
        );
        play(
            "both stay",
            &[&conflict[..], &[(9000, 1, Conflicting), (18_000, 2, Conflicting), (27_000, 1, Conflicting)]]
                .concat(),
        );
        // It lasts no longer than it must: whoever loses may come back, which is a conflict again.
        play(
            "back again",
            &[&conflict[..], &[(11_200, 2, Successor), (11_300, 1, Conflicting), (11_400, 2, Conflicting)]]
                .concat(),
        );
    }

    #[test]
    fn a_former_one_that_finds_the_other_gone_takes_over() {
        play(
            "takes over",
            &[(0, 1, Successor), (1000, 2, Successor), (11_000, 1, Successor), (11_001, 1, Current)],
        );
    }

    #[test]
    fn a_third_one_ends_a_conflict() {
        play(
            "a third one",
            &[
                (0, 1, Successor),
                (1000, 2, Successor),
                (2000, 1, Conflicting),
                (2100, 3, Successor),
                (2150, 3, Current),
                (2200, 2, Late),
            ],
        );
    }
}

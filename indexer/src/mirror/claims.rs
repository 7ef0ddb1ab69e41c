//! Which of several publishers a rank belongs to.
//!
//! A worker that restarts comes back under a new publisher id, so that a new id is a new life. What a former
//! publisher says a moment later was on its way; what it says after that means that both live.

/// A retired publisher's frames may still be on their way for so long.
const LATE_MS: u64 = 200;
/// Of two publishers that claim one rank, one has given up when it has been silent for so long.
const SILENT_MS: u64 = 10_000;
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
    /// Whether this is the publisher that feeds the rank, or fed it last.
    pub(super) fn is_current(&self, publisher: u64) -> bool {
        self.current == Some(publisher)
    }

    /// Settles what a publisher that speaks now is to the rank.
    pub(super) fn claim(&mut self, publisher: u64, now_ms: u64) -> Claim {
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
        self.conflict = others.any(|(_, heard)| now_ms < heard + SILENT_MS);
        if self.conflict {
            return Claim::Conflicting;
        }
        self.retired.retain(|&(id, _)| id != publisher);
        if self.current != Some(publisher) {
            self.succeed(publisher, now_ms);
        }
        Claim::Successor
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

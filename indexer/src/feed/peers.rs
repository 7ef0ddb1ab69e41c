//! Asks other kvtides for what is missing here: of publishers on the bus, and of engines that do not keep it any more.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use rand::{RngExt, seq::SliceRandom};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::{
    Indexer,
    snapshot::{Peer, SnapshotError, Wanted},
};

/// Between one look at what is missing and the next.
const LOOK: Duration = Duration::from_millis(50);
/// So many parts are asked for at once.
const ASKING: usize = 16;
/// Before the others are asked again for a part: at first, and at most.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Who is asked, and for what.
pub(super) struct Asking {
    pub(super) indexer: Arc<Indexer>,
    pub(super) peers: Vec<Peer>,
    pub(super) stop: CancellationToken,
}

/// When a part is asked for next, and how long to wait after that.
struct Turn {
    when: Instant,
    backoff: Duration,
}

impl Asking {
    /// Asks until it is stopped.
    pub(super) async fn run(self) {
        let asking = Arc::new(self);
        let mut turns: HashMap<Wanted, Turn> = HashMap::new();
        let mut answers: JoinSet<()> = JoinSet::new();
        let mut looks = tokio::time::interval(LOOK);
        while asking.stop.run_until_cancelled(looks.tick()).await.is_some() {
            while answers.try_join_next().is_some() {}
            let wanted: HashSet<Wanted> = asking.indexer.wanted().into_iter().collect();
            turns.retain(|one, _| wanted.contains(one));
            let now = Instant::now();
            for one in wanted {
                if answers.len() >= ASKING {
                    break;
                }
                let turn = turns.entry(one.clone()).or_insert(Turn { when: now, backoff: BACKOFF[0] });
                if turn.when <= now {
                    // Those that miss the same must not all ask at once.
                    turn.when = now + turn.backoff.mul_f64(rand::rng().random_range(0.75..1.25));
                    turn.backoff = (2 * turn.backoff).min(BACKOFF[1]);
                    let asking = Arc::clone(&asking);
                    answers.spawn_blocking(move || asking.ask(&one));
                }
            }
        }
    }

    /// Asks one after the other, until one has seen what is missing.
    fn ask(&self, wanted: &Wanted) {
        let part = wanted.part;
        let mut peers: Vec<&Peer> = self.peers.iter().collect();
        peers.shuffle(&mut rand::rng());
        for peer in peers {
            if self.stop.is_cancelled() {
                return;
            }
            let told = peer.part(part).map_err(SnapshotError::from);
            match told.and_then(|told| self.indexer.take_over(wanted, told)) {
                Ok(true) => return info!(%peer, ?part, "goes on with what a peer has told"),
                Ok(false) => debug!(%peer, ?part, "a peer has not seen what is missing"),
                Err(reason) => debug!(%peer, ?part, %reason, "a peer could not tell"),
            }
        }
    }
}

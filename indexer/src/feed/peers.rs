//! Asks other kvtides for what is missing here: of publishers on the bus, and of engines that do not keep it any more.

use std::{collections::HashMap, sync::Arc, time::Duration};

use rand::RngExt;
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::{
    Indexer,
    snapshot::{Peer, SnapshotError, Wanted},
};

/// Between one look at what is missing and the next.
const LOOK: Duration = Duration::from_millis(50);
/// Before the others are asked again: at first, and at most.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// When a part is asked for next, and how long to wait after that.
type Turn = (Instant, Duration);

/// Asks until it is stopped, as many at once as `asking` allows.
pub(super) async fn run(
    indexer: Arc<Indexer>,
    peers: Vec<Peer>,
    asking: Arc<Semaphore>,
    stop: CancellationToken,
) {
    let peers = Arc::new(peers);
    let mut turns: HashMap<Wanted, Turn> = HashMap::new();
    let mut answers: JoinSet<Wanted> = JoinSet::new();
    let mut asked: Vec<Wanted> = Vec::new();
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(answer) = answers.join_next() => {
                if let Ok(wanted) = answer {
                    asked.retain(|one| *one != wanted);
                }
            }
            _ = looks.tick() => {
                let wanted = indexer.wanted();
                turns.retain(|one, _| wanted.contains(one));
                let now = Instant::now();
                for one in wanted.into_iter().filter(|one| !asked.contains(one)).collect::<Vec<_>>() {
                    let (when, backoff) = turns.entry(one.clone()).or_insert((now, BACKOFF[0]));
                    if *when > now {
                        continue;
                    }
                    // Those that miss the same must not all ask at once.
                    *when = now + backoff.mul_f64(rand::rng().random_range(0.75..1.25));
                    *backoff = (2 * *backoff).min(BACKOFF[1]);
                    asked.push(one.clone());
                    let (indexer, peers, asking) = (Arc::clone(&indexer), Arc::clone(&peers), Arc::clone(&asking));
                    answers.spawn(async move {
                        // Nobody closes it, so that there is always a turn.
                        let _turn = asking.acquire_owned().await;
                        let wanted = one.clone();
                        let asked = tokio::task::spawn_blocking(move || ask(&indexer, &peers, &wanted));
                        let _ended = asked.await;
                        one
                    });
                }
            }
        }
    }
}

/// Asks one after the other, until one has seen what is missing.
fn ask(indexer: &Indexer, peers: &[Peer], wanted: &Wanted) {
    let part = wanted.part;
    for peer in peers {
        let told = peer.part(part).map_err(SnapshotError::from);
        match told.and_then(|told| indexer.take_over(wanted, told)) {
            Ok(true) => return info!(%peer, ?part, "goes on with what a peer has told"),
            Ok(false) => debug!(%peer, ?part, "a peer has not seen what is missing"),
            Err(reason) => debug!(%peer, ?part, %reason, "a peer could not tell"),
        }
    }
}

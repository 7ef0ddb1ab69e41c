//! Asks other kvtides for what is missing here: of publishers on the bus, and of engines that do not keep it any more.

use std::sync::Arc;

use rand::seq::SliceRandom;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::turns::{LOOK, Turns};
use crate::{
    Indexer,
    snapshot::{Peer, SnapshotError, Wanted},
};

/// Who is asked, and for what.
pub(super) struct Asking {
    pub(super) indexer: Arc<Indexer>,
    pub(super) peers: Vec<Peer>,
    pub(super) stop: CancellationToken,
}

impl Asking {
    /// Asks until it is stopped.
    pub(super) async fn run(self) {
        let asking = Arc::new(self);
        let mut turns = Turns::default();
        let mut answers: JoinSet<()> = JoinSet::new();
        let mut looks = tokio::time::interval(LOOK);
        while asking.stop.run_until_cancelled(looks.tick()).await.is_some() {
            for one in turns.due(asking.indexer.wanted(), &mut answers) {
                let (asking, wanted) = (Arc::clone(&asking), one.clone());
                turns.ask(one, answers.spawn_blocking(move || asking.ask(&wanted)).id());
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

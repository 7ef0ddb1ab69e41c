//! Looks when messages become visible that are not when they are sent.

use std::{
    sync::mpsc::{Receiver, TryRecvError},
    thread::sleep,
    time::Instant,
};

use kvtide::{Indexer, serving::Failure};

use super::{LOOK, PATIENCE, Window};
use crate::cli::storm::{
    machine::{self, own_seconds},
    measured::Seen,
    sight::{Fleet, Sent, Unseen},
};

/// Looking takes no more of the time than one in so many.
const PART: u32 = 8;

/// Looks until all that was sent is visible, or nothing has been for long. Returns what was seen, and the memory held at the end of
/// each stretch.
pub(super) fn run(
    indexer: &Indexer,
    sent: &Receiver<Sent>,
    fleet: Fleet,
    window: Window<'_>,
) -> Result<(Seen, Vec<Option<f64>>), Failure> {
    let (mut seen, mut unseen) = (Seen::new(window.start, window.every)?, Unseen::new(fleet));
    let (mut rss_mb, mut shown) = (Vec::new(), Instant::now());
    let (mut all_sent, mut last) = (false, Instant::now());
    while !(all_sent && (unseen.count() == 0 || last.elapsed() > PATIENCE)) {
        // What is sent while this looks is for the next time.
        loop {
            match sent.try_recv() {
                Ok(one) => unseen.add(one),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    all_sent = true;
                    break;
                }
            }
        }
        let started = Instant::now();
        if unseen.count() > 0 {
            let mut noted = Ok(());
            unseen.look(indexer, |one| {
                last = Instant::now();
                let lag = seen.note(one, last, window.end).map(|lag| window.live.see(one.events, lag));
                noted = std::mem::replace(&mut noted, Ok(())).and(lag);
            });
            noted?;
        } else if !all_sent {
            last = started;
        }
        window.live.show(window.start, &mut shown);
        let ended = window.start.elapsed().div_duration_f64(window.every) as usize;
        while rss_mb.len() < ended {
            rss_mb.push(machine::rss_mb());
        }
        sleep(LOOK.max(started.elapsed() * PART));
    }
    seen.unseen_events = unseen.events();
    seen.cost = own_seconds();
    Ok((seen, rss_mb))
}

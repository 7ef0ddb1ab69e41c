//! Proves that nothing is pending: a message to an inbox of our own, on the connection that events come by.
//!
//! A server hands a client its messages in order. When the probe is back, whatever the server had routed here before it
//! is in the subscription's queue; once that is applied, everything is that had come by the time the probe was sent.

use std::{sync::atomic::Ordering, time::Duration};

use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::QUEUE_MESSAGES;
use crate::Clock;

/// Between one probe and the next.
const PROBE: Duration = Duration::from_secs(1);

/// The probes of one subscription.
pub(super) struct Probe {
    client: Client,
    clock: Clock,
    inbox: String,
    replies: Subscriber,
    ticks: Interval,
    /// Connections made when this was last looked at.
    connects: u64,
    /// When messages may have been lost: the connection was made anew, or the queue may have been full.
    doubted_ms: Option<u64>,
    /// Messages taken out of the queue since it was last empty.
    since_empty: usize,
    /// What is in the queue may stand around a loss, until it was empty once.
    doubting: bool,
    /// When the probe was sent that has come back, and how many messages may still be in the queue in front of it.
    back: Option<(u64, usize)>,
}

/// What a probe has proven.
#[derive(Clone, Copy)]
pub(super) struct Proof {
    /// Everything that had come by then is applied.
    pub(super) until_ms: u64,
    /// Something may have been lost then.
    pub(super) doubted_ms: Option<u64>,
}

impl Probe {
    pub(super) async fn new(client: &Client, clock: Clock) -> Result<Probe, async_nats::SubscribeError> {
        let inbox = client.new_inbox();
        let mut ticks = interval(PROBE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Probe {
            replies: client.subscribe(inbox.clone()).await?,
            client: client.clone(),
            clock,
            inbox,
            ticks,
            connects: 0,
            doubted_ms: None,
            since_empty: 0,
            doubting: false,
            back: None,
        })
    }

    /// Sends a probe when it is time, or takes one that has come back. Ends after either.
    pub(super) async fn turn(&mut self) {
        tokio::select! {
            reply = self.replies.next() => match reply {
                Some(reply) => self.take(&reply.payload),
                // The client is closing.
                None => std::future::pending().await,
            },
            _ = self.ticks.tick() => {
                let (sent_ms, connects) = (self.clock.steady_ms(), self.look());
                let payload: Vec<u8> = [sent_ms.to_be_bytes(), connects.to_be_bytes()].concat();
                // What cannot be sent proves nothing.
                let _unsent = self.client.publish(self.inbox.clone(), Bytes::from(payload)).await;
            }
        }
    }

    fn take(&mut self, payload: &[u8]) {
        let Some((&sent_ms, &connects)) = payload.as_chunks().0.first().zip(payload.as_chunks().0.get(1))
        else {
            return;
        };
        // One that was sent on another connection says nothing about the messages of this one.
        if u64::from_be_bytes(connects) == self.look() {
            self.back = Some((u64::from_be_bytes(sent_ms), QUEUE_MESSAGES));
        }
    }

    /// How many connections were made. What came meanwhile, between two of them, is lost.
    fn look(&mut self) -> u64 {
        let connects = self.client.statistics().connects.load(Ordering::Relaxed);
        if self.connects > 0 && connects > self.connects {
            self.doubting = true;
        }
        self.connects = connects;
        connects
    }

    /// So many messages were taken out of the queue and are applied, and nothing is left in it or may be. Returns what
    /// that proves.
    pub(super) fn applied(&mut self, messages: usize, empty: bool) -> Option<Proof> {
        self.look();
        self.since_empty += messages;
        // It may have been full, and then the client drops.
        self.doubting |= self.since_empty >= QUEUE_MESSAGES;
        if self.doubting {
            self.doubted_ms = Some(self.clock.steady_ms());
        }
        if empty {
            (self.since_empty, self.doubting) = (0, false);
        }
        let (until_ms, ahead) = self.back?;
        let ahead = ahead.saturating_sub(messages);
        if ahead > 0 && !empty {
            self.back = Some((until_ms, ahead));
            return None;
        }
        self.back = None;
        Some(Proof { until_ms, doubted_ms: self.doubted_ms })
    }
}

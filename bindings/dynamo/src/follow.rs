//! Keeps an indexer at what Dynamo's discovery says, for as long as it runs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use dynamo_runtime::{
    discovery::{Discovery, DiscoveryEvent, DiscoveryInstance, DiscoveryQuery, EventScope, EventSourceQuery},
    protocols::EndpointId,
};
use futures_util::StreamExt;
use kvtide::{
    AnnounceError, Announced, BoundStream, Format, Indexer, Stream,
    feed::{Bus, Feeds},
};
use kvtide_radix::Rank;
use metrics::{describe_gauge, gauge};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{Endpoint, Fleet, Kind, Plan, Planned, Refused, Workers, fleet::TOPIC};

/// What a start waits for first: see [`Readiness::wait_for`](kvtide::Readiness::wait_for).
pub const DISCOVERY: &str = "Dynamo's discovery";
/// Before a watch that has ended is made anew: at first, and at most.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// Before what was refused is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// Changes that wait to be taken note of.
const CHANGES: usize = 1024;
const REFUSED: &str = "kvtide_dynamo_workers_refused";
const PUBLISHERS: &str = "kvtide_dynamo_publishers";
const KINDS: [Kind; 3] = [Kind::Endpoints, Kind::Models, Kind::Sources];

/// What a watch reports.
type Change = (Kind, DiscoveryEvent);

/// An indexer that follows discovery.
pub struct Following {
    indexer: Arc<Indexer>,
    workers: Workers,
    settings: Settings,
    fleet: Fleet,
    changes: mpsc::Receiver<Change>,
    streams: BTreeMap<Endpoint, Followed>,
    publishers: BTreeMap<u64, (Endpoint, Announced)>,
    ranks: BTreeMap<Rank, Endpoint>,
    /// Each stream has those, and no others.
    are_kept: bool,
    refused: Vec<Refused>,
}

/// What is to be known beside discovery.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// The scope of endpoints of which nobody says what is served there.
    pub configured: Option<Planned>,
    /// Other kvtides are asked for what was missed, before workers are.
    pub has_peers: bool,
}

/// A stream that is bound, and whether its messages are followed yet.
struct Followed {
    planned: Planned,
    bound: Arc<BoundStream>,
    subscribed: bool,
}

impl Following {
    /// Watches discovery until `stop`.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(
        discovery: &Arc<dyn Discovery>,
        indexer: Arc<Indexer>,
        workers: Workers,
        settings: Settings,
        stop: &CancellationToken,
    ) -> Following {
        describe_gauge!(REFUSED, "Workers that discovery announces and that are refused.");
        describe_gauge!(PUBLISHERS, "Publishers that discovery announces and that are followed.");
        let (sender, changes) = mpsc::channel(CHANGES);
        for kind in KINDS {
            tokio::spawn(watch(Arc::clone(discovery), kind, sender.clone(), stop.clone()));
        }
        Following {
            indexer,
            workers,
            settings,
            fleet: Fleet::default(),
            changes,
            streams: BTreeMap::new(),
            publishers: BTreeMap::new(),
            ranks: BTreeMap::new(),
            are_kept: true,
            refused: Vec::new(),
        }
    }

    /// Waits for what there is at first: its streams are bound then, and nothing is followed yet. Whether it has come before
    /// `stop`.
    pub async fn learn(&mut self, stop: &CancellationToken) -> bool {
        let mut told = BTreeSet::new();
        while told.len() < KINDS.len() {
            let Some(Some((kind, event))) = stop.run_until_cancelled(self.changes.recv()).await else {
                return false;
            };
            if matches!(event, DiscoveryEvent::Resync(_)) {
                told.insert(kind);
            }
            self.note(kind, event);
        }
        let plan = self.plan();
        self.bind(&plan);
        true
    }

    /// Follows the streams, and whatever discovery says, until `stop`.
    pub async fn run(mut self, feeds: &Feeds, bus: &Bus, stop: &CancellationToken) {
        loop {
            let plan = self.plan();
            let bound = self.bind(&plan);
            let subscribed = self.subscribe(feeds, bus).await;
            let applied = self.apply(plan);
            feeds.readiness().heard_of(DISCOVERY);
            let patience = if bound && subscribed && applied { Duration::MAX } else { AGAIN };
            let change = tokio::time::timeout(patience, self.changes.recv());
            match stop.run_until_cancelled(change).await {
                Some(Ok(Some((kind, event)))) => self.note(kind, event),
                Some(Err(_elapsed)) => {}
                Some(Ok(None)) | None => return,
            }
            // What has come with it counts as one change.
            while let Ok((kind, event)) = self.changes.try_recv() {
                self.note(kind, event);
            }
        }
    }

    fn note(&mut self, kind: Kind, event: DiscoveryEvent) {
        match event {
            DiscoveryEvent::Added(instance) => self.add(instance),
            DiscoveryEvent::Removed(id) => self.fleet.remove(id),
            DiscoveryEvent::Resync(all) => {
                self.fleet.forget(kind);
                all.into_iter().for_each(|instance| self.add(instance));
            }
            DiscoveryEvent::ModelTaintsUpdated(_) => {}
        }
    }

    fn add(&mut self, instance: DiscoveryInstance) {
        let instance_id = instance.instance_id();
        if let Err(reason) = self.fleet.add(instance) {
            warn!(instance_id, %reason, "what discovery says of an instance cannot be read");
        }
    }

    fn plan(&self) -> Plan {
        let publishing = self.publishers.values().map(|(endpoint, _)| endpoint);
        let inhabited: BTreeSet<&Endpoint> = self.ranks.values().chain(publishing).collect();
        let so_far = self.streams.iter().filter(|(endpoint, _)| inhabited.contains(endpoint));
        let so_far = so_far.map(|(endpoint, stream)| (endpoint.clone(), stream.planned.clone()));
        self.fleet.plan(self.settings.configured.as_ref(), &so_far.collect())
    }

    /// Binds streams that are new. One that nobody is in any more stays followed; if others come, of another scope, it is let go.
    /// Whether all are bound.
    fn bind(&mut self, plan: &Plan) -> bool {
        let mut done = true;
        for (endpoint, planned) in &plan.streams {
            if self.streams.get(endpoint).is_some_and(|stream| stream.planned == *planned) {
                continue;
            }
            if let Some(left) = self.streams.remove(endpoint) {
                self.indexer.unbind(&left.bound);
            }
            let Planned { scope, eagle } = planned.clone();
            let name = format!("{endpoint}/{}/{}", scope.model, scope.block_size);
            let stream = Stream {
                eagle,
                announced: true,
                has_peers: self.settings.has_peers,
                ..Stream::new(name, scope, Format::Dynamo)
            };
            match self.indexer.bind(stream) {
                Ok(bound) => {
                    let followed = Followed { planned: planned.clone(), bound, subscribed: false };
                    self.streams.insert(endpoint.clone(), followed);
                }
                Err(reason) => {
                    warn!(%endpoint, %reason, "cannot follow an endpoint");
                    done = false;
                }
            }
        }
        done
    }

    /// Follows the streams that are not followed yet. Whether all are.
    async fn subscribe(&mut self, feeds: &Feeds, bus: &Bus) -> bool {
        let mut done = true;
        for (endpoint, stream) in self.streams.iter_mut().filter(|(_, stream)| !stream.subscribed) {
            let subjects = vec![(subject(endpoint), Arc::clone(&stream.bound))];
            match feeds.follow_nats(bus, subjects).await {
                Ok(()) => stream.subscribed = true,
                Err(reason) => {
                    warn!(%endpoint, %reason, "cannot follow an endpoint");
                    done = false;
                }
            }
        }
        done
    }

    /// Tells the indexer what has changed. Whether it takes all of it: what it refuses is not noted as told.
    fn apply(&mut self, plan: Plan) -> bool {
        let Plan { mut publishers, ranks, refused, .. } = plan;
        for (publisher_id, before) in &self.publishers {
            if publishers.get(publisher_id) != Some(before)
                && let Some(stream) = self.streams.get(&before.0)
            {
                self.indexer.withdraw(&stream.bound, *publisher_id);
            }
        }
        for refusal in refused.iter().filter(|refusal| !self.refused.contains(refusal)) {
            warn!("refused: {refusal}");
        }
        // One that has moved is let go by one stream before it can be another's.
        self.are_kept = (self.are_kept && ranks == self.ranks) || self.keep(&ranks) || self.keep(&ranks);
        let planned = publishers.len();
        publishers.retain(|publisher_id, (endpoint, announced)| {
            let known = self.publishers.get(publisher_id);
            known.is_some_and(|(of, told)| of == endpoint && told == announced)
                || self.announce(endpoint, *announced)
        });
        let targets = publishers.keys().filter_map(|&id| Some((id, self.fleet.source(id)?.target.clone()?)));
        self.workers.replace(targets.collect::<HashMap<_, _>>());
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        gauge!(REFUSED).set(count(refused.len()));
        gauge!(PUBLISHERS).set(count(publishers.len()));
        let done = self.are_kept && publishers.len() == planned;
        (self.publishers, self.ranks, self.refused) = (publishers, ranks, refused);
        done
    }

    /// Whether the indexer takes a publisher.
    fn announce(&self, endpoint: &Endpoint, announced: Announced) -> bool {
        let Some(stream) = self.streams.get(endpoint) else { return false };
        let Rank { worker_id, dp_rank } = announced.rank;
        match self.indexer.announce(&stream.bound, announced) {
            Ok(()) => self.report(worker_id, dp_rank, endpoint),
            Err(reason) => {
                warn!(worker_id, dp_rank, %reason, "a publisher is refused");
                return false;
            }
        }
        true
    }

    /// Each stream has the ranks that discovery knows, and no others. Whether it has.
    fn keep(&self, ranks: &BTreeMap<Rank, Endpoint>) -> bool {
        let mut done = true;
        let mut by_stream: BTreeMap<&Endpoint, BTreeSet<Rank>> = BTreeMap::new();
        for (rank, endpoint) in ranks {
            by_stream.entry(endpoint).or_default().insert(*rank);
        }
        for (endpoint, stream) in &self.streams {
            let kept = by_stream.remove(endpoint).unwrap_or_default();
            match self.indexer.keep_ranks(&stream.bound, &kept) {
                Ok(0) => {}
                Ok(gone) => info!(%endpoint, gone, "ranks have gone"),
                Err(reason @ (AnnounceError::OtherSource { .. } | AnnounceError::RanksFull { .. })) => {
                    warn!(%endpoint, %reason, "a rank is refused");
                    done = false;
                }
            }
        }
        done && by_stream.is_empty()
    }

    fn report(&self, worker_id: u64, dp_rank: u32, endpoint: &Endpoint) {
        let config = self.fleet.card(worker_id).map(|card| &card.runtime_config);
        let total_kv_blocks = config.and_then(|config| config.total_kv_blocks);
        let max_num_batched_tokens = config.and_then(|config| config.max_num_batched_tokens);
        info!(worker_id, dp_rank, %endpoint, total_kv_blocks, max_num_batched_tokens, "a publisher lives");
    }
}

/// The subject that an endpoint's events are published on.
fn subject(endpoint: &Endpoint) -> String {
    let Endpoint { namespace, component, name } = endpoint.clone();
    EventScope::Endpoint { endpoint: EndpointId { namespace, component, name } }.subject(TOPIC)
}

/// Reports what discovery says of a kind, until `stop`. A watch that ends is made anew: that it has ended says nothing about
/// anybody, and the new one tells everything.
async fn watch(
    discovery: Arc<dyn Discovery>,
    kind: Kind,
    changes: mpsc::Sender<Change>,
    stop: CancellationToken,
) {
    let mut backoff = BACKOFF[0];
    while !stop.is_cancelled() {
        let query = match kind {
            Kind::Endpoints => DiscoveryQuery::AllEndpoints,
            Kind::Models => DiscoveryQuery::AllModels,
            Kind::Sources => DiscoveryQuery::EventSources(EventSourceQuery::all()),
        };
        match discovery.list_and_watch(query, Some(stop.child_token())).await {
            Ok(mut events) => loop {
                match stop.run_until_cancelled(events.next()).await {
                    Some(Some(Ok(event))) => {
                        backoff = BACKOFF[0];
                        if changes.send((kind, event)).await.is_err() {
                            return;
                        }
                    }
                    Some(Some(Err(reason))) => {
                        warn!(?kind, reason = format!("{reason:#}"), "discovery is watched anew");
                        break;
                    }
                    Some(None) => {
                        debug!(?kind, "discovery is watched anew");
                        break;
                    }
                    None => return,
                }
            },
            Err(reason) => warn!(?kind, reason = format!("{reason:#}"), "discovery cannot be watched"),
        }
        stop.run_until_cancelled(tokio::time::sleep(backoff)).await;
        backoff = (2 * backoff).min(BACKOFF[1]);
    }
}

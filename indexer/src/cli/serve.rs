//! `kvtide serve`: follows event streams and answers over HTTP until it is told to stop.

use std::{process::ExitCode, sync::Arc, time::Duration};

use kvtide::{
    BoundStream, Clock, Indexer,
    config::{Config, NatsConfig, SnapshotConfig},
    feed::Feeds,
    service::Service,
    serving::{Doors, Failure, answer_requests, bind, bus, peers, record_metrics, serve_until, stopped},
    snapshot::{self, Keeper},
};
use tokio::runtime::Runtime;
use tracing::info;

pub(super) fn run(config: &Config) -> Result<ExitCode, Failure> {
    let metrics = record_metrics()?;
    let indexer = Arc::new(Indexer::new(config.limits(), Clock::default()));
    let (mut subjects, mut engines) = (Vec::new(), Vec::new());
    for (config, stream) in config.streams()? {
        let bound = indexer.bind(stream)?;
        match (config.subject, config.zmq) {
            (Some(subject), _) => subjects.push((subject, bound)),
            (None, Some(endpoint)) => engines.push((endpoint, config.zmq_replay, bound)),
            // Its batches are handed in over HTTP.
            (None, None) => {}
        }
    }
    let SnapshotConfig { path, every_s, .. } = &config.snapshot;
    let peers = peers(&config.snapshot)?;
    let doors = Doors::of(&config.server)?;
    snapshot::resume(&indexer, path.as_deref(), &peers);
    Runtime::new()?.block_on(async {
        let listener = bind(config.server.listen).await?;
        let feeds = Arc::new(follow(&indexer, &config.nats, subjects, engines).await?);
        let service =
            Service::new(Arc::clone(&indexer), metrics, config.limits.service(), Arc::clone(&feeds))
                .traced(config.traces.otlp.is_some());
        if !peers.is_empty() {
            feeds.ask_peers(peers);
        }
        let keeper = path.as_ref().map(|path| {
            Keeper::start(Arc::clone(&indexer), path.clone(), Duration::from_secs(every_s.get()))
        });
        let requests = answer_requests(&indexer, &config.nats, config.limits.service(), &doors).await?;
        serve_until(service, listener, doors, requests, stopped()?).await?;
        feeds.stop().await;
        if let Some(keeper) = keeper {
            keeper.stop().await;
        }
        info!("stopped");
        Ok::<(), Failure>(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A stream and the subject that its messages come from.
type Subject = (String, Arc<BoundStream>);
/// A stream, its engine's endpoint, and that of its replay socket.
type Engine = (String, Option<String>, Arc<BoundStream>);

async fn follow(
    indexer: &Arc<Indexer>,
    nats: &NatsConfig,
    subjects: Vec<Subject>,
    engines: Vec<Engine>,
) -> Result<Feeds, Failure> {
    let feeds = Feeds::new(Arc::clone(indexer));
    if let Some(bus) = bus(nats) {
        feeds.follow_nats(&bus, subjects).await?;
    }
    for (endpoint, replay, stream) in engines {
        let name = stream.stream().name.clone();
        feeds
            .follow_zmq(&endpoint, replay.as_deref(), stream)
            .map_err(|error| format!("stream {name}: {error}"))?;
    }
    Ok(feeds)
}

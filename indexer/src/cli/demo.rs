//! `kvtide demo`: the service with a simulated fleet behind it, so that there is something to query.

mod fleet;

use std::{
    io::{Write, stdout},
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Args;
use kvtide::{
    Clock, Indexer, Limits,
    config::LISTEN,
    feed::Feeds,
    service::{Service, ServiceLimits},
    serving::{Doors, Failure, bind, record_metrics, refuse_open, serve_until, stopped},
};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use fleet::Fleet;

#[derive(Args)]
pub(super) struct Arguments {
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDR", default_value = LISTEN, env = "KVTIDE_LISTEN")]
    listen: SocketAddr,
    /// Listen on other addresses than loopback too.
    #[arg(long, env = "KVTIDE_INSECURE")]
    insecure: bool,
    /// Workers in the fleet.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    workers: u64,
    /// Requests a second, over the whole fleet.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rate: u64,
    /// Seed of everything random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    refuse_open(arguments.listen, arguments.insecure)?;
    let metrics = record_metrics()?;
    let indexer = Arc::new(Indexer::new(Limits::default(), Clock::default()));
    let mut fleet = Fleet::new(Arc::clone(&indexer), arguments.workers, arguments.seed)?;
    let between = Duration::from_secs(1).div_f64(f64::from(u32::try_from(arguments.rate)?));
    Runtime::new()?.block_on(async {
        let listener = bind(arguments.listen).await?;
        // Not to start with empty caches.
        for _ in 0..100 * arguments.workers {
            fleet.serve_request()?;
        }
        // Nobody has to read it.
        let _ = stdout().write_all(arguments.introduction(listener.local_addr()?).as_bytes());
        let stop = CancellationToken::new();
        let running = tokio::spawn(run_fleet(fleet, between, stop.clone()));
        let feeds = Arc::new(Feeds::new(Arc::clone(&indexer)));
        let service = Service::new(indexer, metrics, ServiceLimits::DEFAULT, Arc::clone(&feeds));
        let served = serve_until(service, listener, Doors::default(), None, stopped()?).await;
        feeds.stop().await;
        stop.cancel();
        running.await??;
        served
    })?;
    Ok(ExitCode::SUCCESS)
}

impl Arguments {
    /// What the demo is and how to ask it.
    fn introduction(&self, listening: SocketAddr) -> String {
        let kvtide = program();
        let url = if listening.to_string() == LISTEN {
            String::new()
        } else {
            format!(" --url http://{listening}")
        };
        let ask_workers = format!("{kvtide} query{url}");
        let ask_prompt = format!("{kvtide} query{url} --tokens {}", Fleet::example_prompt());
        let width = ask_prompt.len();
        format!(
            "A simulated fleet of {} workers serves conversations; kvtide knows what they hold.\n\
             Ask from another terminal:\n\n  \
             {ask_workers:width$}    what is known of each worker\n  \
             {ask_prompt}    how much of a prompt each one holds\n\n\
             Or look at http://{listening}/ with a browser. Ctrl-C stops.\n",
            self.workers,
        )
    }
}

/// How this program is called, from the folder that it was called in.
fn program() -> String {
    let path = std::env::current_exe().ok();
    let here = std::env::current_dir().unwrap_or_default();
    let path = path.as_deref().map(|path| path.strip_prefix(here).unwrap_or(path).display().to_string());
    path.unwrap_or_else(|| "kvtide".into())
}

async fn run_fleet(mut fleet: Fleet, between: Duration, stop: CancellationToken) -> Result<(), Failure> {
    let mut ticks = tokio::time::interval(between);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => fleet.serve_request()?,
        }
    }
}

//! `kvtide demo`: the service with a simulated fleet behind it, so that there is something to query.

mod fleet;

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use kvtide::{Clock, Indexer, Limits};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::{
    Failure,
    serve::{LISTEN, serve_until, stopped},
};
use fleet::Fleet;

#[derive(Args)]
pub(super) struct Arguments {
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDR", default_value = LISTEN, env = "KVTIDE_LISTEN")]
    listen: SocketAddr,
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
    let indexer = Arc::new(Indexer::new(Limits::default(), Clock::default()));
    let mut fleet = Fleet::new(Arc::clone(&indexer), arguments.workers, arguments.seed)?;
    // Not to start with empty caches.
    for _ in 0..100 * arguments.workers {
        fleet.serve_request()?;
    }
    println!(
        "A simulated fleet of {} workers serves conversations; kvtide knows what they hold.\n\
         Ask from another terminal:\n\n  \
         kvtide query                     what is known of each worker\n  \
         kvtide query --tokens {}    how much of a prompt each one holds\n\n\
         Ctrl-C stops.",
        arguments.workers,
        Fleet::example_prompt(),
    );
    let between = Duration::from_secs(1).div_f64(f64::from(u32::try_from(arguments.rate)?));
    Runtime::new()?.block_on(async {
        let stop = CancellationToken::new();
        let running = tokio::spawn(run_fleet(fleet, between, stop.clone()));
        let served = serve_until(&indexer, arguments.listen, stopped()?).await;
        stop.cancel();
        running.await??;
        served
    })?;
    Ok(ExitCode::SUCCESS)
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

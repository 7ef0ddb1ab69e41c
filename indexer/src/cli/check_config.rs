//! `kvtide check-config`: whether a configuration file can be served, and what it says.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use kvtide::{
    Clock, Format, Indexer, Scope,
    config::File,
    feed::check_endpoint,
    serving::{Doors, Failure, bus, peers},
    traces::Collector,
};

#[derive(Args)]
pub(super) struct Arguments {
    /// The configuration file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let config = File::read(&arguments.file)?.into_config()?;
    let streams = config.streams()?;
    Doors::of(&config.server)?;
    peers(&config.snapshot)?;
    Collector::of(&config.traces)?;
    if let Some(bus) = bus(&config.nats) {
        bus.check()?;
    }
    // Streams of one scope have to agree with each other, which shows where they are bound.
    let indexer = Indexer::new(config.limits(), Clock::default());
    let mut told = Vec::new();
    for (config, stream) in streams {
        for endpoint in config.zmq.iter().chain(&config.zmq_replay) {
            check_endpoint(endpoint).map_err(|error| format!("stream {}: {error}", stream.name))?;
        }
        let (name, scope) = (stream.name.clone(), stream.scope.clone());
        let format = match &stream.format {
            Format::Dynamo => "Dynamo frames",
            Format::Engine(engine) if engine.replays => "an engine's batches, with its replay socket",
            Format::Engine(_) => "an engine's batches",
            Format::Direct => "events handed in",
        };
        indexer.bind(stream)?;
        told.push(format!("{name}: {format}; {}\n", describe(&scope)));
    }
    let (streams, scopes) = (indexer.stream_count(), indexer.scopes().len());
    println!(
        "{}{}: can be served; streams: {streams}, scopes: {scopes}",
        told.concat(),
        arguments.file.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// A scope's parts, as far as they are stated.
fn describe(scope: &Scope) -> String {
    let Scope { model, revision, tokenizer, kv_dtype, layout, block_size } = scope;
    let further =
        [("revision", revision), ("tokenizer", tokenizer), ("kv_dtype", kv_dtype), ("layout", layout)];
    let stated = further.into_iter().filter_map(|(name, part)| Some(format!(", {name} {}", part.as_ref()?)));
    format!("model {model}, {block_size} tokens a block{}", stated.collect::<String>())
}

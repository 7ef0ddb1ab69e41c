//! `kvtide record`: writes what comes from publishers as a recording that `kvtide replay` can play.

use std::{
    io::{Write, stdout},
    num::NonZeroU32,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use kvtide::{
    Clock, Indexer, Limits,
    capture::{CaptureError, Recorder, Recording},
    config::{ANY_SUBJECT, NatsConfig, StreamConfig},
    feed::{Arrivals, Taps, check_endpoint},
    serving::{Failure, bus, stopped},
};
use tokio::{
    runtime::Runtime,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::{info, warn};

/// Between one write of what is gathered and the next: no more is lost to a kill.
const FLUSH: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct Arguments {
    /// The folder to write to, made if need be. What is there is never overwritten. An engine's messages have the token ids of
    /// prompts.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A configuration file of kvtide serve: what it follows is recorded.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The address of an engine's own publisher, as tcp://HOST:PORT; as often as needed.
    #[arg(long, value_name = "ENDPOINT")]
    zmq: Vec<String>,
    /// Only messages of engines whose topic starts so.
    #[arg(long, value_name = "TOPIC", default_value = "", hide_default_value = true)]
    topic: String,
    /// A NATS subject of Dynamo frames, as often as needed; * stands for one part, > for the rest. By default all KV events.
    #[arg(long = "subject", value_name = "S")]
    subjects: Vec<String>,
    /// Tokens a block of what the flags name, to play it with.
    #[arg(long, value_name = "N", required_unless_present = "config")]
    block_size: Option<NonZeroU32>,
    /// Its model, to play it with.
    #[arg(long, value_name = "M", default_value = "recorded")]
    model: String,
    /// Its blocks are keyed by pairs of tokens.
    #[arg(long)]
    eagle: bool,
    /// Ends after so many seconds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    seconds: Option<u64>,
    /// Ends behind so many messages.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Ends before there are more bytes of messages than these. Compressed, they are fewer.
    #[arg(long, value_name = "N", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(1..))]
    bytes: u64,
    #[command(flatten)]
    nats: NatsConfig,
    /// The streams of the file.
    #[arg(skip)]
    pub(super) streams: Vec<StreamConfig>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let clock = Clock::default();
    let recording = Recording::new(clock.wall_ms(), arguments.streams()?);
    // What cannot be played is not worth recording.
    recording.bind(&Indexer::new(Limits::default(), clock.clone()))?;
    Runtime::new()?.block_on(async {
        let stop = stopped()?;
        let mut recorder = Recorder::create(&arguments.out, recording)?;
        let (taps, mut arrivals) = Taps::new();
        arguments.add_sources(&taps, &recorder, &clock).await?;
        let mut session = Session { recorder: &mut recorder, left: arguments.limits() };
        let recorded = session.record(taps, &mut arrivals, arguments.seconds, stop).await;
        let dropped = arrivals.dropped();
        let finished = match recorded {
            Ok(()) => recorder.finish(clock.wall_ms(), dropped),
            Err(error) => Err(error),
        };
        arguments.print(&recorder, dropped)?;
        finished?;
        Ok(if dropped == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

impl Arguments {
    /// What is recorded: what the flags name, and what the file does.
    fn streams(&self) -> Result<Vec<StreamConfig>, Failure> {
        self.nats.check()?;
        let mut subjects = self.subjects.clone();
        if self.nats.url.is_some() && subjects.is_empty() && self.config.is_none() {
            subjects.push(ANY_SUBJECT.to_owned());
        }
        let common = StreamConfig {
            model: self.model.clone(),
            block_size: self.block_size.map_or(0, NonZeroU32::get),
            eagle: self.eagle,
            ..StreamConfig::default()
        };
        if !(subjects.is_empty() && self.zmq.is_empty()) && self.block_size.is_none() {
            return Err("expected --block-size beside --subject and --zmq".into());
        }
        let engines = self.zmq.iter().zip(0..).map(|(endpoint, number)| StreamConfig {
            zmq: Some(endpoint.clone()),
            worker_id: Some(number),
            ..common.clone()
        });
        let subjects =
            subjects.into_iter().map(|subject| StreamConfig { subject: Some(subject), ..common.clone() });
        let (followed, handed_in): (Vec<_>, Vec<_>) = engines
            .chain(subjects)
            .chain(self.streams.iter().cloned())
            .partition(|stream| stream.subject.is_some() || stream.zmq.is_some());
        for stream in handed_in {
            warn!(stream = stream.name(), "not recorded: its batches are handed in over HTTP");
        }
        if followed.is_empty() {
            return Err("nothing to record; expected --zmq, --nats, or --config with streams".into());
        }
        if let Some(stream) =
            followed.iter().find(|stream| stream.subject.is_some() && self.nats.url.is_none())
        {
            return Err(format!("stream {} has a subject, but there is no --nats", stream.name()).into());
        }
        if let Some(bus) = bus(&self.nats) {
            bus.check()?;
        }
        for stream in &followed {
            if let Some(endpoint) = &stream.zmq {
                check_endpoint(endpoint)?;
            }
        }
        Ok(followed)
    }

    /// How many messages and bytes may still come.
    fn limits(&self) -> [u64; 2] {
        [self.messages.unwrap_or(u64::MAX), self.bytes]
    }

    async fn add_sources(&self, taps: &Taps, recorder: &Recorder, clock: &Clock) -> Result<(), Failure> {
        let mut subjects = Vec::new();
        for (source, recorded) in recorder.recording().streams.iter().enumerate() {
            match (&recorded.stream.subject, &recorded.stream.zmq) {
                (Some(subject), _) => subjects.push((source, subject.clone())),
                (None, Some(endpoint)) => taps.add_zmq(source, endpoint, &self.topic)?,
                (None, None) => {}
            }
        }
        match bus(&self.nats) {
            Some(bus) if !subjects.is_empty() => Ok(taps.add_nats(&bus, clock, subjects).await?),
            Some(_) | None => Ok(()),
        }
    }

    fn print(&self, recorder: &Recorder, dropped: u64) -> std::io::Result<()> {
        let mut out = stdout().lock();
        writeln!(out, "{:<16} {:>10} {:>14} {:>14}  from", "file", "messages", "bytes", "on disk")?;
        for (recorded, written) in recorder.recording().streams.iter().zip(recorder.written()) {
            let stream = &recorded.stream;
            let from = stream.subject.as_ref().or(stream.zmq.as_ref()).map_or("", String::as_str);
            let (messages, bytes, on_disk) = (written.messages, written.bytes, written.file_bytes);
            writeln!(out, "{:<16} {messages:>10} {bytes:>14} {on_disk:>14}  {from}", recorded.file)?;
        }
        writeln!(out, "\nDropped: {dropped}. To play it: kvtide replay {}", self.out.display())
    }
}

/// Writing what comes, until something ends it.
struct Session<'a> {
    recorder: &'a mut Recorder,
    /// Messages and bytes that may still come.
    left: [u64; 2],
}

impl Session<'_> {
    async fn record(
        &mut self,
        taps: Taps,
        arrivals: &mut Arrivals,
        seconds: Option<u64>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), CaptureError> {
        let mut flushes = interval(FLUSH);
        flushes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let deadline = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let over = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(stop, over);
        loop {
            tokio::select! {
                () = &mut stop => break,
                () = &mut over => break,
                _ = flushes.tick() => self.recorder.flush()?,
                arrival = arrivals.next() => {
                    let Some(arrival) = arrival else { break };
                    if !self.take(arrival.source, &arrival.parts)? {
                        return Ok(());
                    }
                }
            }
        }
        // What is here already belongs to it.
        taps.close();
        while let Some(arrival) = arrivals.next().await {
            if !self.take(arrival.source, &arrival.parts)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes a message if there is room for it. Whether there is for another one.
    fn take<P: AsRef<[u8]>>(&mut self, source: usize, parts: &[P]) -> Result<bool, CaptureError> {
        let bytes = parts.iter().map(|part| part.as_ref().len() as u64).sum::<u64>();
        let Some(left) = self.left[1].checked_sub(bytes) else {
            info!("ended: {} bytes are left, and the next message has {bytes}", self.left[1]);
            return Ok(false);
        };
        self.recorder.take(source, parts)?;
        self.left = [self.left[0] - 1, left];
        if self.left[0] == 0 {
            info!("ended: as many messages as were asked for");
        }
        Ok(self.left[0] > 0)
    }
}

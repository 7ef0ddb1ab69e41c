//! One round: the reader alone, the writer alone, both, and the writer beside a reader that falls asleep.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    thread::{scope, sleep},
    time::{Duration, Instant},
};

use kvtide_benches::{Latency, Prompts, Workload, blocks_of, median};

use crate::side::{Asks, Changes};

/// Events a version.
const VERSION: usize = 64;
/// A reader that falls asleep does so once in this time, for that long.
const AWAKE_AND_ASLEEP: Duration = Duration::from_millis(10);
const ASLEEP: Duration = Duration::from_millis(3);

/// An index, and how far its stream has come.
pub(crate) struct Side<W: Changes, R> {
    writer: W,
    reader: R,
    /// The part of the stream that is applied again and again, in versions, each with its blocks.
    again: Vec<(Vec<W::Event>, usize)>,
    next: usize,
}

/// What the writer did in one phase.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    /// Millions of blocks a second.
    pub(crate) rate: f64,
    /// Microseconds that the longest update took.
    pub(crate) longest: f64,
}

/// What one round measured.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    pub(crate) reader_idle: Latency,
    pub(crate) reader_beside: Latency,
    pub(crate) alone: Written,
    pub(crate) beside_reader: Written,
    pub(crate) beside_sleeper: Written,
}

impl Round {
    /// The median of several rounds, each figure by itself.
    pub(crate) fn median(rounds: &[Round]) -> Round {
        let latency =
            |part: fn(&Round) -> Latency| Latency::median(&rounds.iter().map(part).collect::<Vec<_>>());
        let written = |part: fn(&Round) -> Written| Written {
            rate: median(rounds.iter().map(|round| part(round).rate)),
            longest: median(rounds.iter().map(|round| part(round).longest)),
        };
        Round {
            reader_idle: latency(|round| round.reader_idle),
            reader_beside: latency(|round| round.reader_beside),
            alone: written(|round| round.alone),
            beside_reader: written(|round| round.beside_reader),
            beside_sleeper: written(|round| round.beside_sleeper),
        }
    }
}

impl<W: Changes, R: Asks> Side<W, R> {
    /// Fills the index with the first part of the stream.
    pub(crate) fn new((mut writer, reader): (W, R), first: &Workload, again: &Workload) -> Side<W, R> {
        let event = |(rank, event): &(usize, _)| W::event(*rank, event);
        for version in first.events.chunks(VERSION) {
            writer.update(&version.iter().map(event).collect::<Vec<_>>());
        }
        let versions = again.events.chunks(VERSION).map(|version| {
            let blocks = version.iter().map(|(_, event)| blocks_of(event)).sum();
            (version.iter().map(event).collect(), blocks)
        });
        Side { writer, reader, again: versions.collect(), next: 0 }
    }

    /// One round with phases of that length.
    pub(crate) fn round(&mut self, prompts: &Prompts, length: Duration) -> Round {
        let end = Instant::now() + length;
        let reader_idle = read(&mut self.reader, prompts, || Instant::now() < end);
        let alone = self.write(length);
        let (beside_reader, reader_beside) =
            self.race(length, |reader, going| read(reader, prompts, || going.load(Ordering::Relaxed)));
        let (beside_sleeper, ()) = self.race(length, |reader, going| fall_asleep(reader, prompts, going));
        Round { reader_idle, reader_beside, alone, beside_reader, beside_sleeper }
    }

    /// Lets the writer run for a time, and a reader beside it until then.
    fn race<T: Send>(
        &mut self,
        length: Duration,
        read: impl FnOnce(&mut R, &AtomicBool) -> T + Send,
    ) -> (Written, T) {
        let going = AtomicBool::new(true);
        let Side { writer, reader, again, next } = self;
        scope(|scope| {
            let reader = scope.spawn(|| read(reader, &going));
            let written = write(writer, again, next, length);
            going.store(false, Ordering::Relaxed);
            (written, reader.join().expect("a reader only asks"))
        })
    }

    fn write(&mut self, length: Duration) -> Written {
        write(&mut self.writer, &self.again, &mut self.next, length)
    }
}

/// Applies version after version for a time.
fn write<W: Changes>(
    writer: &mut W,
    again: &[(Vec<W::Event>, usize)],
    next: &mut usize,
    length: Duration,
) -> Written {
    let (start, mut blocks, mut longest) = (Instant::now(), 0, Duration::ZERO);
    let mut now = start;
    while now - start < length {
        let (version, of_it) = &again[*next % again.len()];
        writer.update(version);
        let end = Instant::now();
        longest = longest.max(end - now);
        now = end;
        blocks += of_it;
        *next += 1;
    }
    let rate = blocks as f64 / (now - start).as_secs_f64() / 1e6;
    Written { rate, longest: longest.as_nanos() as f64 / 1e3 }
}

/// Asks for one prompt after the other.
fn read(reader: &mut impl Asks, prompts: &Prompts, going: impl Fn() -> bool) -> Latency {
    let mut nanoseconds = Vec::with_capacity(1 << 23);
    for prompt in (0..prompts.len()).cycle().take_while(|_| going()) {
        let prompt = prompts.get(prompt);
        let start = Instant::now();
        black_box(reader.ask(black_box(prompt)));
        nanoseconds.push(start.elapsed().as_nanos() as u64);
    }
    Latency::of(nanoseconds).expect("the time is long enough for one prompt")
}

fn fall_asleep(reader: &mut impl Asks, prompts: &Prompts, going: &AtomicBool) {
    let mut next = (0..prompts.len()).cycle().map(|prompt| prompts.get(prompt));
    while going.load(Ordering::Relaxed) {
        let start = Instant::now();
        if let Some(prompt) = next.next() {
            black_box(reader.ask_and_sleep(prompt, ASLEEP));
        }
        // The rest of the time it is not there at all, so that all that the writer loses is lost to the sleep.
        sleep(AWAKE_AND_ASLEEP.saturating_sub(start.elapsed()));
    }
}

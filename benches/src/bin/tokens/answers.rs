//! From a prompt's tokens to the answer, on the Mooncake trace.

use std::{alloc::System, hint::black_box, time::Instant};

use kvtide_benches::Request;
use kvtide_events::Hashing;
use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use crate::{
    contestant::{Contestant, KvIndex, Kvtide, Smg},
    fleet::{Served, serve},
    print,
};

/// Counts allocations; in the way of every contestant alike.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const HASHING: Hashing = Hashing { block_size: 64, eagle: false };

/// Nanoseconds from tokens to answer. Each prompt counts with its median round, so that a round in which other work took
/// the processor spoils no mean.
#[derive(Serialize)]
struct Figures {
    measured: &'static str,
    contestant: &'static str,
    mean: f64,
    p50: f64,
    p99: f64,
    allocations: f64,
}

/// kvtide's times as parts of those of the faster peer, each of its own best peer.
#[derive(Serialize)]
struct Ratios {
    measured: &'static str,
    mean: f64,
    p50: f64,
    p99: f64,
}

/// What one contestant took in one round.
struct Round {
    /// For each prompt, in order.
    nanoseconds: Vec<u64>,
    allocations: usize,
    /// Blocks in all answers, by which it is seen that the contestants answer the same.
    blocks: u64,
}

/// Asks for each prompt of the second half of the requests, when caches are full, just before a rank serves it.
pub(crate) fn answers(rounds: usize, requests: usize, json: bool) -> Result<(), std::io::Error> {
    let requests = Request::read(requests)?;
    let served = serve(&requests, HASHING);
    let mut all: [(&str, Vec<Round>); 3] =
        [Kvtide::NAME, KvIndex::NAME, Smg::NAME].map(|name| (name, Vec::new()));
    for _ in 0..rounds {
        let round = [
            round::<Kvtide>(&requests, &served),
            round::<KvIndex>(&requests, &served),
            round::<Smg>(&requests, &served),
        ];
        assert!(round.iter().all(|one| one.blocks == round[0].blocks), "all answer the same");
        for ((_, rounds), round) in all.iter_mut().zip(round) {
            rounds.push(round);
        }
    }
    let figures = all.map(|(name, rounds)| Figures::of(name, &rounds));
    let [ours, first, second] = &figures;
    let ratio = |part: fn(&Figures) -> f64| part(ours) / part(first).min(part(second));
    let ratios = Ratios {
        measured: "answer, part of the faster peer",
        mean: ratio(|one| one.mean),
        p50: ratio(|one| one.p50),
        p99: ratio(|one| one.p99),
    };
    for one in &figures {
        print(json, one, || {
            format!(
                "{:26} mean {:8.0} ns   p50 {:8.0} ns   p99 {:8.0} ns   {:.1} allocations",
                one.contestant, one.mean, one.p50, one.p99, one.allocations
            )
        });
    }
    print(json, &ratios, || {
        format!(
            "{:26} mean {:8.3}      p50 {:8.3}      p99 {:8.3}",
            "part of the faster peer", ratios.mean, ratios.p50, ratios.p99
        )
    });
    Ok(())
}

fn round<C: Contestant>(requests: &[Request], served: &[Served]) -> Round {
    let mut contestant = C::new(HASHING);
    let mut tokens = Vec::new();
    let mut round = Round { nanoseconds: Vec::new(), allocations: 0, blocks: 0 };
    for (number, (request, served)) in requests.iter().zip(served).enumerate() {
        if number >= requests.len() / 2 {
            request.write_tokens(&mut tokens);
            let before = ALLOCATOR.stats();
            let start = Instant::now();
            contestant.ask(black_box(&tokens));
            round.nanoseconds.push(start.elapsed().as_nanos() as u64);
            let after = ALLOCATOR.stats();
            round.allocations +=
                after.allocations + after.reallocations - before.allocations - before.reallocations;
            round.blocks += contestant.blocks();
        }
        contestant.apply(served);
    }
    round
}

impl Figures {
    fn of(contestant: &'static str, rounds: &[Round]) -> Figures {
        let prompts = rounds.first().map_or(0, |round| round.nanoseconds.len());
        let median = |prompt: usize| {
            let mut all: Vec<u64> = rounds.iter().map(|round| round.nanoseconds[prompt]).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        let mut nanoseconds: Vec<u64> = (0..prompts).map(median).collect();
        nanoseconds.sort_unstable();
        let at = |percent: usize| nanoseconds.get(prompts * percent / 100).map_or(f64::NAN, |&ns| ns as f64);
        let allocations: usize = rounds.iter().map(|round| round.allocations).sum();
        Figures {
            measured: "answer",
            contestant,
            mean: nanoseconds.iter().sum::<u64>() as f64 / prompts as f64,
            p50: at(50),
            p99: at(99),
            allocations: allocations as f64 / (prompts * rounds.len()) as f64,
        }
    }
}

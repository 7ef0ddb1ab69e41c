//! What a storm has come to: one JSON object, or lines for people.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    measured::{Cost, Lookups, Measured, Percentiles},
    reference::Verdict,
    scenario::{Fault, FaultKind},
    series::Stretch,
    target::Race,
};

/// All that is told of a run. Rates are a second of the wall's clock.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Report {
    pub(super) scenario: String,
    pub(super) target: &'static str,
    /// How long the last phase was.
    pub(super) seconds: f64,
    /// How many times as fast as the scenario has it.
    pub(super) rate: f64,
    pub(super) offered_events_s: f64,
    /// Those of them that were visible in the time that they were sent in.
    pub(super) achieved_events_s: f64,
    pub(super) applied_blocks_s: f64,
    pub(super) lag_ms: Percentiles,
    pub(super) lookups_s: f64,
    pub(super) lookup_us: Percentiles,
    /// The same while nothing was sent.
    pub(super) lookup_idle_us: Percentiles,
    /// How many questions these were.
    pub(super) lookups_idle: u64,
    /// Both from when the question was asked, and not from when it was to be.
    pub(super) answer_us: Percentiles,
    pub(super) answer_idle_us: Percentiles,
    /// Answers about one rank that were held against the truth.
    pub(super) checked: u64,
    pub(super) over: u64,
    pub(super) under: u64,
    /// Of those that were too low, answers of ranks that are said to be known wholly.
    pub(super) under_complete: u64,
    pub(super) lost: u64,
    /// Of this process, with the plan that is ahead and the truth.
    pub(super) rss_mb: Option<f64>,
    /// What a plain subscriber received of messages that were sent as fast as can be, and what was visible of the same messages.
    pub(super) bare_client_events_s: Option<f64>,
    pub(super) visible_events_s: Option<f64>,
    pub(super) generator: Generator,
    pub(super) search: Option<Search>,
    /// What went wrong on purpose.
    pub(super) faults: Vec<Struck>,
    /// How it went over time, where that was asked for.
    pub(super) stretches: Vec<Stretch>,
    /// The first wrong answers, in words.
    pub(super) wrong: Vec<String>,
}

/// What the load itself costs, and how well it was kept.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Generator {
    /// How late messages were sent.
    pub(super) late_ms: Percentiles,
    /// Times that nothing was planned yet when it was due.
    pub(super) plan_waits: u64,
    /// Answers that were to be checked, for which there was no room.
    pub(super) unchecked: u64,
    /// Cores that threads took in the mean.
    pub(super) cores: Cost,
}

/// A fault, and what came of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Struck {
    pub(super) kind: FaultKind,
    /// The scenario's time at which it began.
    pub(super) at_s: f64,
    /// Until answers were right about all ranks again and stayed so, until the next fault or the end; none where they did not.
    pub(super) exact_again_ms: Option<f64>,
}

/// How the highest load was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Search {
    pub(super) lag_limit_ms: f64,
    /// What was offered in the fastest trial that was carried.
    pub(super) highest_events_s: f64,
    pub(super) highest_rate: f64,
    /// Whether it was the plan that could not be made faster.
    pub(super) limited_by_plan: bool,
    pub(super) trials: Vec<Trial>,
}

/// One rate that was tried.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Trial {
    pub(super) rate: f64,
    pub(super) offered_events_s: f64,
    pub(super) achieved_events_s: f64,
    pub(super) lag_p99_ms: f64,
    pub(super) carried: bool,
    pub(super) plan_waits: u64,
}

/// What a report is made of.
pub(super) struct Run<'a> {
    pub(super) scenario: &'a str,
    pub(super) target: &'static str,
    pub(super) last: &'a Measured,
    pub(super) idle: &'a Lookups,
    pub(super) races: &'a [Race],
    pub(super) verdict: Verdict,
    pub(super) lost: u64,
    pub(super) rss_mb: Option<f64>,
    pub(super) search: Option<Search>,
    /// Faults, and when they began.
    pub(super) faults: &'a [(Fault, Instant)],
}

impl Report {
    pub(super) fn of(run: Run<'_>) -> Report {
        let Run { last, verdict, races, .. } = run;
        let struck = (1..).zip(run.faults).map(|(next, &(Fault { kind, at_s, .. }, began))| {
            let until = run.faults.get(next).map(|&(_, began)| began);
            let exact_again_ms = verdict.exact_again(began, until).map(|time| time.as_secs_f64() * 1e3);
            Struck { kind, at_s, exact_again_ms }
        });
        let faults: Vec<_> = struck.collect();
        let Verdict { compared, over, under, under_complete, wrong, .. } = verdict;
        let rate = |time: fn(&Race) -> Duration| {
            let (events, time) = races
                .iter()
                .fold((0, Duration::ZERO), |(events, sum), race| (events + race.events, sum + time(race)));
            (!races.is_empty()).then(|| events as f64 / time.as_secs_f64())
        };
        let seconds = last.length.as_secs_f64();
        Report {
            scenario: run.scenario.to_owned(),
            target: run.target,
            seconds,
            rate: last.rate,
            offered_events_s: last.offered_events_s(),
            achieved_events_s: last.achieved_events_s(),
            applied_blocks_s: last.applied_blocks_s(),
            lag_ms: last.seen.lag.milliseconds(),
            lookups_s: last.lookups.count() as f64 / seconds,
            lookup_us: last.lookups.from_schedule.microseconds(),
            lookup_idle_us: run.idle.from_schedule.microseconds(),
            lookups_idle: run.idle.count(),
            answer_us: last.lookups.answering.microseconds(),
            answer_idle_us: run.idle.answering.microseconds(),
            checked: compared,
            over,
            under,
            under_complete,
            lost: run.lost,
            rss_mb: run.rss_mb,
            bare_client_events_s: rate(|race| race.bare),
            visible_events_s: rate(|race| race.visible),
            generator: Generator {
                late_ms: last.late.milliseconds(),
                plan_waits: last.plan_waits,
                unchecked: last.unchecked,
                cores: last.cost.cores(last.length),
            },
            search: run.search,
            faults,
            stretches: last.stretches.clone(),
            wrong,
        }
    }

    /// Whether nothing was credited that was not held, and nothing was lost but on purpose.
    pub(super) fn is_right(&self) -> bool {
        self.over == 0 && self.under_complete == 0 && (self.lost == 0 || !self.faults.is_empty())
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Memory takes whatever is written to it.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let Report { scenario, target, seconds, rate, .. } = self;
        writeln!(out, "{scenario} into {target}, {seconds:.1} s at {rate:.2} times its rate")?;
        if let Some(search) = &self.search {
            search.write(out)?;
        }
        writeln!(
            out,
            "events     {:>12.0} offered/s {:>12.0} visible/s {:>12.0} blocks/s",
            self.offered_events_s, self.achieved_events_s, self.applied_blocks_s
        )?;
        writeln!(out, "{:<22} {:>10} {:>10} {:>10} {:>10}", "", "p50", "p99", "p99.9", "max")?;
        for (name, times) in [
            ("lag, ms", self.lag_ms),
            ("lookup, us", self.lookup_us),
            ("lookup when idle, us", self.lookup_idle_us),
            ("answer, us", self.answer_us),
            ("answer when idle, us", self.answer_idle_us),
            ("sent late by, ms", self.generator.late_ms),
        ] {
            let Percentiles { p50, p99, p999, max } = times;
            writeln!(out, "{name:<22} {p50:>10.3} {p99:>10.3} {p999:>10.3} {max:>10.3}")?;
        }
        let Report { checked, over, under, under_complete, lost, .. } = self;
        writeln!(
            out,
            "answers    {checked} checked: {over} over, {under} under, {under_complete} of them of complete ranks"
        )?;
        writeln!(
            out,
            "lost       {lost} events; lookups/s {:.0}, and {} lookups when idle",
            self.lookups_s, self.lookups_idle
        )?;
        for Struck { kind, at_s, exact_again_ms } in &self.faults {
            let again = match exact_again_ms {
                None => "not exact again".into(),
                Some(..=0.0) => "no answer was wrong".into(),
                Some(ms) => format!("exact again after {ms:.0} ms"),
            };
            writeln!(out, "fault      {kind:?} at {at_s} s: {again}")?;
        }
        if let (Some(bare), Some(visible)) = (self.bare_client_events_s, self.visible_events_s) {
            let part = 100.0 * visible / bare;
            writeln!(
                out,
                "full speed {bare:.0} events/s to a plain subscriber, {visible:.0} visible ({part:.0} %)"
            )?;
        }
        if let Some(rss_mb) = self.rss_mb {
            writeln!(out, "memory     {rss_mb:.0} MB, with the plan that is ahead and the truth")?;
        }
        let Cost { planning, sending, asking, following, looking } = self.generator.cores;
        writeln!(
            out,
            "cores      {planning:.2} planning, {sending:.2} sending, {asking:.2} asking, {following:.2} following, \
             {looking:.2} looking"
        )?;
        if self.generator.plan_waits > 0 {
            writeln!(out, "the plan was not ready in time {} times", self.generator.plan_waits)?;
        }
        self.wrong.iter().try_for_each(|wrong| writeln!(out, "wrong: {wrong}"))
    }
}

impl Search {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        for trial in &self.trials {
            let Trial { rate, offered_events_s, achieved_events_s, lag_p99_ms, carried, plan_waits } = trial;
            let carried = if *carried { "carried" } else { "not carried" };
            let planned = if *plan_waits > 0 { ", the plan was late" } else { "" };
            writeln!(
                out,
                "trial at {rate:>8.2}: {offered_events_s:>10.0} offered/s, {achieved_events_s:>10.0} visible/s, lag p99 \
                 {lag_p99_ms:>9.3} ms: {carried}{planned}"
            )?;
        }
        let least = if self.limited_by_plan { " or more: the plan could not be made faster" } else { "" };
        writeln!(
            out,
            "highest load with p99 lag below {} ms: {:.0} events/s{least}",
            self.lag_limit_ms, self.highest_events_s
        )
    }
}

impl Trial {
    pub(super) fn of(measured: &Measured, carried: bool) -> Trial {
        Trial {
            rate: measured.rate,
            offered_events_s: measured.offered_events_s(),
            achieved_events_s: measured.achieved_events_s(),
            lag_p99_ms: measured.seen.lag.milliseconds().p99,
            carried,
            plan_waits: measured.plan_waits,
        }
    }
}

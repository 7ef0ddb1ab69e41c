//! What a storm is made of: a fleet, its load and its prompts, as a file says it.

use std::path::Path;

use kvtide::serving::Failure;
use serde::{Deserialize, Serialize};

/// The scenarios that come with the program, each with its name.
pub(super) const SHIPPED: [(&str, &str); 13] = [
    ("conversations", include_str!("../../../scenarios/conversations.toml")),
    ("agents", include_str!("../../../scenarios/agents.toml")),
    ("offload", include_str!("../../../scenarios/offload.toml")),
    ("tenants", include_str!("../../../scenarios/tenants.toml")),
    ("restarts", include_str!("../../../scenarios/restarts.toml")),
    ("waves", include_str!("../../../scenarios/waves.toml")),
    ("cold-start", include_str!("../../../scenarios/cold-start.toml")),
    ("hot-prefix", include_str!("../../../scenarios/hot-prefix.toml")),
    ("fragmented", include_str!("../../../scenarios/fragmented.toml")),
    ("mooncake", include_str!("../../../scenarios/mooncake.toml")),
    ("azure", include_str!("../../../scenarios/azure.toml")),
    ("wide", include_str!("../../../scenarios/wide.toml")),
    ("faults", include_str!("../../../scenarios/faults.toml")),
];

/// One scenario.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// What it shows, in a sentence.
    pub(super) description: String,
    /// Seed of everything random.
    #[serde(default = "one")]
    pub(super) seed: u64,
    pub(super) fleet: FleetShape,
    pub(super) load: Load,
    pub(super) prompts: Prompts,
    /// Workers that start again, one after the other.
    pub(super) restarts: Option<Restarts>,
    /// Many blocks that go at once.
    pub(super) waves: Option<Waves>,
    /// Blocks amid prompts that go while those behind them stay.
    pub(super) holes: Option<Holes>,
    /// What goes wrong between publishers and kvtide, in the order of time.
    #[serde(default, rename = "fault")]
    pub(super) faults: Vec<Fault>,
}

/// `[fleet]`: workers and what they have room for.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FleetShape {
    pub(super) workers: u32,
    /// Data-parallel ranks a worker.
    #[serde(default = "one")]
    pub(super) dp_ranks: u32,
    /// Tokens a block.
    pub(super) block_size: u32,
    /// Blocks a rank has room for on its GPU.
    pub(super) gpu_blocks: usize,
    /// The same in host memory, to which the GPU's blocks go; 0: none.
    #[serde(default)]
    pub(super) host_blocks: usize,
    /// The same on disk, to which those of host memory go; 0: none.
    #[serde(default)]
    pub(super) disk_blocks: usize,
    /// In which form events are published.
    #[serde(default)]
    pub(super) publisher: Publisher,
    /// A publisher sends what has happened in so many milliseconds in one message; 0: each change by itself.
    #[serde(default)]
    pub(super) batch_ms: u32,
}

/// In which form events are published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Publisher {
    /// Frames of Dynamo's event plane.
    #[default]
    Dynamo,
    /// Batches of vLLM's own publisher.
    Vllm,
}

/// `[load]`: when requests come.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    #[serde(default)]
    pub(super) arrivals: Arrivals,
    /// Over the whole fleet. A trace that has its own times is played faster or slower, so that it comes to this in the mean.
    pub(super) requests_per_second: f64,
    /// Requests that have been served before anything is measured.
    #[serde(default)]
    pub(super) warm_requests: usize,
    /// How often a request's prompt is asked for when it comes: once for each router.
    #[serde(default = "one")]
    pub(super) queries_per_request: u32,
    /// Of so many queries one is held against the truth.
    #[serde(default = "eight")]
    pub(super) queries_per_check: u32,
    /// The part of all turns for which a conversation stays with the rank that it was on.
    #[serde(default = "mostly")]
    pub(super) stay: f64,
    /// Milliseconds from a request to its first answer token.
    #[serde(default = "fifty")]
    pub(super) prefill_ms: f64,
    /// Answer tokens a second of one request.
    #[serde(default = "fifty")]
    pub(super) answer_tokens_per_second: f64,
}

/// When requests come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Arrivals {
    /// Each without regard to the others.
    #[default]
    Poisson,
    /// At the times of the Mooncake trace.
    Mooncake,
    /// At the times of the Azure trace.
    Azure,
}

/// `[prompts]`: what is asked for.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prompts {
    #[serde(default)]
    pub(super) from: PromptSource,
    /// System prompts, the k-th chosen with a weight of 1 / k to the power of `zipf`.
    #[serde(default = "sixty_four")]
    pub(super) systems: usize,
    #[serde(default = "unit")]
    pub(super) zipf: f64,
    /// Fewest and most tokens of a system prompt.
    #[serde(default = "system_tokens")]
    pub(super) system_tokens: [u32; 2],
    /// Of what a user says.
    #[serde(default = "user_tokens")]
    pub(super) user_tokens: [u32; 2],
    /// Of an answer.
    #[serde(default = "answer_tokens")]
    pub(super) answer_tokens: [u32; 2],
    /// Fewest and most turns of a conversation.
    #[serde(default = "turns")]
    pub(super) turns: [u32; 2],
    /// Conversations that are open at the same time.
    #[serde(default = "conversations")]
    pub(super) conversations: usize,
    /// The part of all turns that start again from somewhere before the end.
    #[serde(default)]
    pub(super) branch: f64,
    /// The part of all conversations in which an agent calls tools.
    #[serde(default)]
    pub(super) agents: f64,
    /// Fewest and most calls that an agent makes for what a user says.
    #[serde(default = "agent_calls")]
    pub(super) agent_calls: [u32; 2],
    /// Tokens of a tool's result.
    #[serde(default = "tool_tokens")]
    pub(super) tool_tokens: [u32; 2],
    /// Milliseconds that a tool takes.
    #[serde(default = "tool_ms")]
    pub(super) tool_ms: [u32; 2],
    /// Adapters, one of which or none a conversation uses.
    #[serde(default)]
    pub(super) adapters: u32,
    /// Tenants, one of which or none a conversation belongs to.
    #[serde(default)]
    pub(super) tenants: u32,
}

/// Where prompts come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PromptSource {
    /// Invented conversations.
    #[default]
    Conversations,
    /// The Mooncake trace, again and again with other contents.
    Mooncake,
}

/// `[restarts]`
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Restarts {
    /// Seconds between one worker's restart and the next one's.
    pub(super) every_s: f64,
}

/// `[waves]`
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Waves {
    /// Seconds between one wave and the next.
    pub(super) every_s: f64,
    /// The part of its GPU's blocks that every rank loses, those first that were not used for longest.
    pub(super) part: f64,
}

/// `[holes]`
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Holes {
    /// For so many stored blocks one is evicted amid a prompt.
    pub(super) stored_per_hole: u32,
}

/// `[[fault]]`
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    /// Seconds of the scenario's time from when the clock starts.
    pub(super) at_s: f64,
    pub(super) kind: FaultKind,
    /// How many messages it strikes.
    #[serde(default = "ten")]
    pub(super) messages: u32,
    /// Milliseconds of the wall's clock for which the bus, or the connection to it, is down.
    #[serde(default = "five_hundred")]
    pub(super) down_ms: u64,
    /// How many workers start again.
    #[serde(default = "one")]
    pub(super) workers: u32,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FaultKind {
    /// Messages are lost.
    Drop,
    /// Each message comes twice.
    Repeat,
    /// Every other message of a rank comes behind the one after it.
    Swap,
    /// The end of each message is missing.
    Cut,
    /// The server of the bus is killed, and started again.
    RestartBus,
    /// kvtide's connection to the bus is cut.
    Disconnect,
    /// Workers start again with nothing.
    RestartWorkers,
}

fn ten() -> u32 {
    10
}
fn five_hundred() -> u64 {
    500
}
fn one<T: From<u8>>() -> T {
    T::from(1)
}
fn eight() -> u32 {
    8
}
fn sixty_four() -> usize {
    64
}
fn unit() -> f64 {
    1.0
}
fn mostly() -> f64 {
    0.9
}
fn fifty() -> f64 {
    50.0
}
fn system_tokens() -> [u32; 2] {
    [512, 6144]
}
fn user_tokens() -> [u32; 2] {
    [128, 1536]
}
fn answer_tokens() -> [u32; 2] {
    [64, 512]
}
fn turns() -> [u32; 2] {
    [1, 8]
}
fn conversations() -> usize {
    4096
}
fn agent_calls() -> [u32; 2] {
    [2, 10]
}
fn tool_tokens() -> [u32; 2] {
    [64, 2048]
}
fn tool_ms() -> [u32; 2] {
    [50, 500]
}

impl Scenario {
    /// The shipped scenario of that name, or that of a file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub(super) fn find(name: &str) -> Result<Scenario, Failure> {
        let shipped = SHIPPED.iter().find(|(shipped, _)| *shipped == name);
        let text = match shipped {
            Some((_, text)) => (*text).to_owned(),
            None => std::fs::read_to_string(Path::new(name)).map_err(|error| {
                let names = SHIPPED.map(|(name, _)| name).join(", ");
                format!("scenario {name}: {error}; expected a file or one of {names}")
            })?,
        };
        Scenario::parse(&text).map_err(|error| format!("scenario {name}: {error}").into())
    }

    fn parse(text: &str) -> Result<Scenario, Failure> {
        let scenario: Scenario = toml::from_str(text)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// How many ranks there are.
    pub(super) fn ranks(&self) -> usize {
        self.fleet.workers as usize * self.fleet.dp_ranks as usize
    }

    fn check(&self) -> Result<(), Failure> {
        let Scenario { fleet, load, prompts, restarts, waves, holes, .. } = self;
        let positive = [
            ("fleet.workers", f64::from(fleet.workers)),
            ("fleet.dp_ranks", f64::from(fleet.dp_ranks)),
            ("fleet.block_size", f64::from(fleet.block_size)),
            ("fleet.gpu_blocks", fleet.gpu_blocks as f64),
            ("load.requests_per_second", load.requests_per_second),
            ("load.queries_per_check", f64::from(load.queries_per_check)),
            ("load.answer_tokens_per_second", load.answer_tokens_per_second),
            ("prompts.systems", prompts.systems as f64),
            ("prompts.conversations", prompts.conversations as f64),
            ("restarts.every_s", restarts.map_or(1.0, |restarts| restarts.every_s)),
            ("waves.every_s", waves.map_or(1.0, |waves| waves.every_s)),
            ("holes.stored_per_hole", holes.map_or(1.0, |holes| f64::from(holes.stored_per_hole))),
        ];
        for (name, got) in positive {
            if !(got > 0.0 && got.is_finite()) {
                return Err(format!("{name}: expected more than 0, got {got}").into());
            }
        }
        let parts = [
            ("load.stay", load.stay),
            ("prompts.branch", prompts.branch),
            ("prompts.agents", prompts.agents),
            ("waves.part", waves.map_or(1.0, |waves| waves.part)),
        ];
        for (name, got) in parts {
            if !(0.0..=1.0).contains(&got) {
                return Err(format!("{name}: expected 0 to 1, got {got}").into());
            }
        }
        let not_negative = [("load.prefill_ms", load.prefill_ms), ("prompts.zipf", prompts.zipf)];
        for (name, got) in not_negative {
            if !(got >= 0.0 && got.is_finite()) {
                return Err(format!("{name}: expected 0 or more, got {got}").into());
            }
        }
        self.check_ranges()?;
        for Fault { at_s, workers, .. } in &self.faults {
            if !(*at_s >= 0.0 && at_s.is_finite()) {
                return Err(format!("fault.at_s: expected 0 or more, got {at_s}").into());
            }
            if *workers > fleet.workers {
                let limit = fleet.workers;
                return Err(format!("fault.workers: expected at most {limit}, got {workers}").into());
            }
        }
        let ranks = u64::from(fleet.workers) * u64::from(fleet.dp_ranks);
        if ranks > 65_536 {
            return Err(format!("expected at most 65536 ranks, got {ranks}").into());
        }
        if fleet.disk_blocks > 0 && fleet.host_blocks == 0 {
            return Err(
                "fleet.disk_blocks: expected fleet.host_blocks too: what goes to disk comes from there"
                    .into(),
            );
        }
        Ok(())
    }

    fn check_ranges(&self) -> Result<(), Failure> {
        let Prompts {
            system_tokens,
            user_tokens,
            answer_tokens,
            turns,
            agent_calls,
            tool_tokens,
            tool_ms,
            ..
        } = self.prompts;
        let ranges = [
            ("system_tokens", system_tokens, 0),
            ("user_tokens", user_tokens, 1),
            ("answer_tokens", answer_tokens, 1),
            ("turns", turns, 1),
            ("agent_calls", agent_calls, 1),
            ("tool_tokens", tool_tokens, 1),
            ("tool_ms", tool_ms, 0),
        ];
        for (name, [least, most], expected) in ranges {
            if least > most || least < expected {
                let range = "a least and a most, in this order,";
                return Err(format!(
                    "prompts.{name}: expected {range} of {expected} or more, got [{least}, {most}]"
                )
                .into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "description = 'd'\n[fleet]\nworkers = 1\nblock_size = 16\ngpu_blocks = 8\n[load]\n\
                         requests_per_second = 1\n[prompts]\n";

    #[test]
    fn every_shipped_scenario_is_one_and_says_what_it_shows() {
        for (name, text) in SHIPPED {
            let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(scenario.description.len() > 20, "{name}");
        }
        assert_eq!(Scenario::parse(LEAST).unwrap().ranks(), 1);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        let rows = [
            ("workers = 1", "workers = 0", "fleet.workers: expected more than 0, got 0"),
            ("workers = 1", "workers = 70000", "expected at most 65536 ranks, got 70000"),
            ("workers = 1", "workers = -1", "-1"),
            ("workers = 1", "werkers = 1", "unknown field `werkers`"),
            ("requests_per_second = 1", "requests_per_second = inf", "expected more than 0, got inf"),
            ("requests_per_second = 1", "requests_per_second = nan", "expected more than 0, got NaN"),
            (
                "requests_per_second = 1",
                "requests_per_second = 1\nstay = 1.5",
                "load.stay: expected 0 to 1, got 1.5",
            ),
            ("[prompts]", "[prompts]\nturns = [3, 2]", "prompts.turns: expected a least and a most"),
            ("[prompts]", "[prompts]\nuser_tokens = [0, 2]", "of 1 or more, got [0, 2]"),
            ("[prompts]", "[prompts]\nfrom = 'x'", "unknown variant `x`"),
            ("[prompts]", "[prompts]\n[waves]\nevery_s = 1", "missing field `part`"),
            (
                "[prompts]",
                "[prompts]\n[[fault]]\nat_s = -1\nkind = 'drop'",
                "fault.at_s: expected 0 or more, got -1",
            ),
            (
                "[prompts]",
                "[prompts]\n[[fault]]\nat_s = 1\nkind = 'x'",
                "unknown variant `x`, expected one of `drop`",
            ),
            ("gpu_blocks = 8", "gpu_blocks = 8\ndisk_blocks = 8", "expected fleet.host_blocks too"),
            ("[load]", "[lode]", "unknown field `lode`"),
        ];
        for (part, wrong, expected) in rows {
            let error = Scenario::parse(&LEAST.replace(part, wrong)).unwrap_err().to_string();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
        let error = Scenario::find("nothing").unwrap_err().to_string();
        assert!(error.contains("nothing") && error.contains("conversations"), "{error}");
    }
}

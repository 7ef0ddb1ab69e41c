//! `kvtide query`: asks a running service, about a prompt or about what it knows at all.

use std::{
    io::{Write, stdout},
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;
use kvtide::{
    Answer, Freshness, ScopeQuery,
    service::{Worker, WorkerList},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::service_at::ServiceArguments;
use kvtide::serving::Failure;

/// The arguments that give a prompt, of which there is at most one.
const PROMPT: &str = "prompt";
/// Tokens that a prompt may have here: ranges are short to type.
const LONGEST: usize = 1 << 24;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    service: ServiceArguments,
    /// The prompt's token ids: numbers and ranges, as 17,42,100..1124. Without a prompt: what is known of each rank.
    #[arg(long, value_name = "IDS", group = PROMPT)]
    tokens: Option<String>,
    /// A file with the prompt's token ids, as JSON.
    #[arg(long, value_name = "FILE", group = PROMPT)]
    tokens_file: Option<PathBuf>,
    /// The hashes of the prompt's blocks, hexadecimal, by commas.
    #[arg(long, value_name = "HASHES", value_delimiter = ',', group = PROMPT)]
    block_hashes: Option<Vec<String>>,
    #[command(flatten)]
    scope: ScopeArguments,
    /// Only this rank, as WORKER or WORKER/DP_RANK; as often as needed.
    #[arg(long = "rank", value_name = "RANK", value_parser = parse_rank, requires = PROMPT)]
    ranks: Vec<(u64, u32)>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// The prompt's scope. What is left out must not be needed to tell scopes apart.
#[derive(Args)]
struct ScopeArguments {
    /// The model.
    #[arg(long, value_name = "M", requires = PROMPT)]
    model: Option<String>,
    /// Tokens a block.
    #[arg(long, value_name = "N", requires = PROMPT)]
    block_size: Option<u32>,
    /// The model's revision.
    #[arg(long, value_name = "R", requires = PROMPT)]
    revision: Option<String>,
    /// The tokenizer.
    #[arg(long, value_name = "T", requires = PROMPT)]
    tokenizer: Option<String>,
    /// The data type of the KV cache.
    #[arg(long, value_name = "D", requires = PROMPT)]
    kv_dtype: Option<String>,
    /// Layout and position scheme of the KV cache.
    #[arg(long, value_name = "L", requires = PROMPT)]
    layout: Option<String>,
    /// The prompt's adapter (LoRA).
    #[arg(long, value_name = "A", requires = PROMPT)]
    adapter: Option<String>,
    /// The prompt's tenant (cache namespace, salt).
    #[arg(long, value_name = "T", requires = PROMPT)]
    tenant: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let service = arguments.service.service()?;
    let Some(prompt) = arguments.prompt()? else {
        return show(arguments, &service.get("/v1/workers")?, print_workers);
    };
    let mut request = json!({"scope": arguments.scope()});
    let (name, content) = prompt;
    request[name] = content;
    if !arguments.ranks.is_empty() {
        request["ranks"] = json!(arguments.ranks);
    }
    show(arguments, &service.post("/v1/overlap", &request)?, print_answer)
}

impl Arguments {
    /// The prompt, and the name under which the service takes it.
    fn prompt(&self) -> Result<Option<(&'static str, Value)>, Failure> {
        if let Some(text) = &self.tokens {
            return Ok(Some(("token_ids", json!(parse_tokens(text)?))));
        }
        if let Some(path) = &self.tokens_file {
            let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let tokens: Vec<u32> = serde_json::from_slice(&text).map_err(|error| {
                format!("{}: expected a JSON array of token ids: {error}", path.display())
            })?;
            return Ok(Some(("token_ids", json!(tokens))));
        }
        Ok(self.block_hashes.as_ref().map(|hashes| ("block_hashes", json!(hashes))))
    }

    fn scope(&self) -> ScopeQuery {
        let given = &self.scope;
        ScopeQuery {
            model: given.model.clone(),
            block_size: given.block_size,
            revision: given.revision.clone().map(Some),
            tokenizer: given.tokenizer.clone().map(Some),
            kv_dtype: given.kv_dtype.clone().map(Some),
            layout: given.layout.clone().map(Some),
            adapter: given.adapter.clone(),
            tenant: given.tenant.clone(),
        }
    }
}

/// Numbers and ranges: `17,42,100..1124`.
fn parse_tokens(text: &str) -> Result<Vec<u32>, Failure> {
    let mut tokens: Vec<u32> = Vec::new();
    for part in text.split(',').map(str::trim) {
        let range = match part.split_once("..") {
            None => part.parse().map(|token: u32| u64::from(token)..u64::from(token) + 1),
            Some((from, to)) => from.parse().and_then(|from: u32| Ok(from.into()..to.parse::<u32>()?.into())),
        };
        match range {
            Ok(range) if range.is_empty() => {
                return Err(format!("expected a range that goes up, as 100..1124, got {part:?}").into());
            }
            Ok(range) if tokens.len() as u64 + range.end - range.start > LONGEST as u64 => {
                return Err(format!("expected at most {LONGEST} token ids, got more by {part:?}").into());
            }
            Ok(range) => tokens.extend(range.filter_map(|token| u32::try_from(token).ok())),
            Err(_) => {
                return Err(format!("expected a token id or a range as 100..1124, got {part:?}").into());
            }
        }
    }
    Ok(tokens)
}

fn parse_rank(text: &str) -> Result<(u64, u32), String> {
    let (worker, dp_rank) = text.split_once('/').unwrap_or((text, "0"));
    match (worker.parse(), dp_rank.parse()) {
        (Ok(worker), Ok(dp_rank)) => Ok((worker, dp_rank)),
        (Err(_), _) | (_, Err(_)) => Err("expected WORKER or WORKER/DP_RANK".into()),
    }
}

fn show<T: DeserializeOwned>(
    arguments: &Arguments,
    value: &Value,
    print: fn(&T, &mut dyn Write) -> std::io::Result<()>,
) -> Result<ExitCode, Failure> {
    let mut out = stdout().lock();
    if arguments.json {
        writeln!(out, "{value}")?;
    } else {
        print(&T::deserialize(value)?, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What stands above the columns of a rank: 20 wide, four of 9, 10, and freshness.
const RANK_COLUMNS: &str = "         worker/rank       gpu      host      disk  external  \
                            knowledge  event age  verified  lag ms pending missing";

fn print_answer(answer: &Answer, out: &mut dyn Write) -> std::io::Result<()> {
    let scope = &answer.scope;
    let part = |name: &str, value: &Option<String>| {
        value.as_ref().map_or(String::new(), |v| format!(", {name} {v}"))
    };
    let salts = part("adapter", &scope.adapter) + &part("tenant", &scope.tenant);
    let (model, block_size) = (&scope.fixed.model, scope.fixed.block_size);
    writeln!(out, "{model}, {block_size} tokens a block{salts}; version {}", answer.version)?;
    let (tokens, blocks) = (answer.prompt.tokens, answer.prompt.blocks);
    writeln!(out, "prompt of {tokens} tokens, {blocks} complete blocks; {} us", answer.took_us)?;
    writeln!(out, "\n{RANK_COLUMNS}")?;
    for rank in &answer.ranks {
        let name = format!("{}/{}", rank.worker_id, rank.dp_rank);
        let reach = match rank.reach_tokens {
            Some(reach) => {
                [reach.gpu, reach.host, reach.disk, reach.external].map(|tokens| tokens.to_string())
            }
            None => ["?"; 4].map(str::to_owned),
        };
        let [gpu, host, disk, external] = reach;
        let knowledge = rank.knowledge.name();
        let freshness = freshness_columns(rank.freshness.as_ref());
        writeln!(out, "{name:>20} {gpu:>9} {host:>9} {disk:>9} {external:>9}  {knowledge:<10} {freshness}")?;
    }
    writeln!(out, "\nLeading tokens that could be reused with a tier and all faster ones; never add them.")
}

fn print_workers(list: &WorkerList, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "{:<20} {RANK_COLUMNS}", "model")?;
    for worker in &list.workers {
        let Worker { scope, worker_id, dp_rank, held_blocks: held, .. } = worker;
        let (model, name, knowledge) =
            (&scope.model, format!("{worker_id}/{dp_rank}"), worker.knowledge.name());
        let freshness = freshness_columns(Some(&worker.freshness));
        writeln!(
            out,
            "{model:<20} {name:>20} {:>9} {:>9} {:>9} {:>9}  {knowledge:<10} {freshness}",
            held.gpu, held.host, held.disk, held.external
        )?;
    }
    writeln!(out, "\nBlocks held in each tier. For a prompt: kvtide query --tokens 0..2048")
}

fn freshness_columns(freshness: Option<&Freshness>) -> String {
    let Some(fresh) = freshness else { return String::new() };
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let ms = |age: Option<u64>| or_dash(age.map(|age| format!("{age} ms")));
    let (age, verified) = (ms(fresh.last_event_age_ms), ms(fresh.verified_age_ms));
    let lag = or_dash(fresh.lag_ms.map(|lag| lag.to_string()));
    format!("{age:>9} {verified:>9} {lag:>7} {:>7} {:>7}", fresh.pending_events, fresh.missing_events)
}

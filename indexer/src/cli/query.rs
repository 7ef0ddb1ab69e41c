//! `kvtide query`: asks a running service, about a prompt or about what it knows at all.

use std::{
    io::{Write, stdout},
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;
use kvtide::{
    Answer, Freshness, KnowledgeState, ScopeQuery,
    service::{Worker, WorkerList},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Failure, serve::LISTEN};

#[derive(Args)]
pub(super) struct Arguments {
    /// The service's address.
    #[arg(long, value_name = "URL", default_value_t = format!("http://{LISTEN}"), env = "KVTIDE_URL")]
    url: String,
    /// The prompt's token ids: numbers and ranges, as 17,42,100..1124. Without a prompt: what is known of each rank.
    #[arg(long, value_name = "IDS", conflicts_with_all = ["tokens_file", "block_hashes"])]
    tokens: Option<String>,
    /// A file with the prompt's token ids, as JSON.
    #[arg(long, value_name = "FILE", conflicts_with = "block_hashes")]
    tokens_file: Option<PathBuf>,
    /// The hashes of the prompt's blocks, hexadecimal, by commas.
    #[arg(long, value_name = "HASHES", value_delimiter = ',')]
    block_hashes: Option<Vec<String>>,
    #[command(flatten)]
    scope: ScopeArguments,
    /// Only this rank, as WORKER or WORKER/DP_RANK; as often as needed.
    #[arg(long = "rank", value_name = "RANK", value_parser = parse_rank)]
    ranks: Vec<(u64, u32)>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// The scope. What is left out must not be needed to tell scopes apart.
#[derive(Args)]
struct ScopeArguments {
    /// The model.
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// Tokens a block.
    #[arg(long, value_name = "N")]
    block_size: Option<u32>,
    /// The model's revision.
    #[arg(long, value_name = "R")]
    revision: Option<String>,
    /// The tokenizer.
    #[arg(long, value_name = "T")]
    tokenizer: Option<String>,
    /// The data type of the KV cache.
    #[arg(long, value_name = "D")]
    kv_dtype: Option<String>,
    /// Layout and position scheme of the KV cache.
    #[arg(long, value_name = "L")]
    layout: Option<String>,
    /// The prompt's adapter (LoRA).
    #[arg(long, value_name = "A")]
    adapter: Option<String>,
    /// The prompt's tenant (cache namespace, salt).
    #[arg(long, value_name = "T")]
    tenant: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Some(prompt) = arguments.prompt()? else {
        let workers: Value = call(ureq::get(format!("{}/v1/workers", arguments.url)).call())?;
        return show(arguments, &workers, print_workers);
    };
    let mut request = json!({"scope": arguments.scope()});
    let (name, content) = prompt;
    request[name] = content;
    if !arguments.ranks.is_empty() {
        request["ranks"] = json!(arguments.ranks);
    }
    let answer: Value = call(ureq::post(format!("{}/v1/overlap", arguments.url)).send_json(request))?;
    show(arguments, &answer, print_answer)
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
    let mut tokens = Vec::new();
    for part in text.split(',').map(str::trim) {
        let bad = || format!("expected a token id or a range as 100..1124, got {part:?}");
        match part.split_once("..") {
            None => tokens.push(part.parse().map_err(|_| bad())?),
            Some((from, to)) => {
                let (from, to): (u32, u32) =
                    (from.parse().map_err(|_| bad())?, to.parse().map_err(|_| bad())?);
                tokens.extend(from..to);
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

/// The service's answer, or what it says is wrong.
fn call(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Failure> {
    let mut response = result.map_err(|error| match error {
        ureq::Error::Io(error) => format!("no service answers: {error}").into(),
        other => Failure::from(other),
    })?;
    let value: Value = response.body_mut().read_json()?;
    if response.status().is_success() {
        return Ok(value);
    }
    let problem = serde_json::to_string_pretty(&value)?;
    Err(format!("the service refused: {} {}\n{problem}", response.status(), value["detail"]).into())
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
    writeln!(
        out,
        "\n{:>20} {:>9} {:>9} {:>9} {:>9}  {:<10} {:>9} {:>7} {:>7} {:>7}",
        "worker/rank",
        "gpu",
        "host",
        "disk",
        "external",
        "knowledge",
        "event age",
        "lag ms",
        "pending",
        "missing"
    )?;
    for rank in &answer.ranks {
        let name = format!("{}/{}", rank.worker_id, rank.dp_rank);
        let reach = match rank.reach_tokens {
            Some(reach) => {
                [reach.gpu, reach.host, reach.disk, reach.external].map(|tokens| tokens.to_string())
            }
            None => ["?"; 4].map(str::to_owned),
        };
        let [gpu, host, disk, external] = reach;
        let knowledge = knowledge_word(rank.knowledge);
        let freshness = freshness_columns(rank.freshness.as_ref());
        writeln!(out, "{name:>20} {gpu:>9} {host:>9} {disk:>9} {external:>9}  {knowledge:<10} {freshness}")?;
    }
    writeln!(out, "\nLeading tokens that could be reused with a tier and all faster ones; never add them.")
}

fn print_workers(list: &WorkerList, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{:<20} {:>20} {:>9} {:>9} {:>9} {:>9}  {:<10} {:>9} {:>7} {:>7} {:>7}",
        "model",
        "worker/rank",
        "gpu",
        "host",
        "disk",
        "external",
        "knowledge",
        "event age",
        "lag ms",
        "pending",
        "missing"
    )?;
    for worker in &list.workers {
        let Worker { scope, worker_id, dp_rank, held_blocks: held, .. } = worker;
        let (model, name, knowledge) =
            (&scope.model, format!("{worker_id}/{dp_rank}"), knowledge_word(worker.knowledge));
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
    let age = or_dash(fresh.last_event_age_ms.map(|age| format!("{age} ms")));
    let lag = or_dash(fresh.lag_ms.map(|lag| lag.to_string()));
    format!("{age:>9} {lag:>7} {:>7} {:>7}", fresh.pending_events, fresh.missing_events)
}

fn knowledge_word(knowledge: KnowledgeState) -> &'static str {
    match knowledge {
        KnowledgeState::Unknown => "unknown",
        KnowledgeState::Complete => "complete",
        KnowledgeState::Partial => "partial",
        KnowledgeState::Recovering => "recovering",
        KnowledgeState::Gap => "gap",
    }
}

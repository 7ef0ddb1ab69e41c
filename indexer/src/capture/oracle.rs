//! The engine's own answers, and the prompts that they are about.

use std::{collections::HashMap, path::Path};

use serde::Deserialize;

use super::{CaptureError, malformed, parse_json, read_compressed};

/// A point in the streams, and what the engine answered there.
#[derive(Debug)]
pub struct Checkpoint {
    /// How many messages of each worker are applied.
    pub applied: Vec<usize>,
    /// What was asked.
    pub questions: Vec<Question>,
}

/// One prompt, and for each worker how many of its tokens the engine had cached.
#[derive(Debug)]
pub struct Question {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Its adapter.
    pub adapter: Option<String>,
    /// Its tenant.
    pub tenant: Option<String>,
    /// Tokens on each worker's GPU.
    pub gpu: Vec<u32>,
    /// Tokens on each worker's GPU or, behind them, in its host memory.
    pub host: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct PromptLine {
    id: u64,
    base: Option<u64>,
    base_len: usize,
    ext: Vec<u32>,
}

#[derive(Deserialize)]
struct CheckpointLine {
    after_seq: Vec<i64>,
    queries: Vec<QueryLine>,
}

#[derive(Deserialize)]
struct QueryLine {
    id: u64,
    n: usize,
    lora: Option<String>,
    salt: Option<String>,
    k: Vec<u32>,
    k_total: Option<Vec<u32>>,
}

pub(super) fn read(folder: &Path, workers: usize) -> Result<Vec<Checkpoint>, CaptureError> {
    let prompts = read_prompts(&folder.join("seqs.jsonl.zst"))?;
    let path = folder.join("oracle.jsonl.zst");
    lines(&path, &read_compressed(&path)?, |line: CheckpointLine| {
        let applied = line
            .after_seq
            .iter()
            .map(|&last| usize::try_from(last.checked_add(1)?).ok())
            .collect::<Option<Vec<_>>>();
        let applied = applied.filter(|applied| applied.len() == workers);
        let questions = line.queries.into_iter().map(|query| query.question(&prompts, workers));
        Some(Checkpoint { applied: applied?, questions: questions.collect::<Option<_>>()? })
    })
}

impl QueryLine {
    fn question(self, prompts: &HashMap<u64, Vec<u32>>, workers: usize) -> Option<Question> {
        let complete = |answers: &Vec<u32>| answers.len() == workers;
        (complete(&self.k) && self.k_total.as_ref().is_none_or(complete)).then_some(())?;
        Some(Question {
            tokens: prompts.get(&self.id)?.get(..self.n)?.to_vec(),
            adapter: self.lora,
            tenant: self.salt,
            gpu: self.k,
            host: self.k_total,
        })
    }
}

fn read_prompts(path: &Path) -> Result<HashMap<u64, Vec<u32>>, CaptureError> {
    let mut prompts = HashMap::new();
    lines(path, &read_compressed(path)?, |line: PromptLine| {
        let mut tokens = match line.base {
            None => Vec::new(),
            Some(base) => {
                prompts.get(&base).and_then(|tokens: &Vec<u32>| tokens.get(..line.base_len))?.to_vec()
            }
        };
        tokens.extend(line.ext);
        prompts.insert(line.id, tokens);
        Some(())
    })?;
    Ok(prompts)
}

/// Reads lines of JSON, each turned into something by `turn`, or refused.
fn lines<L: for<'a> Deserialize<'a>, T>(
    path: &Path,
    text: &[u8],
    mut turn: impl FnMut(L) -> Option<T>,
) -> Result<Vec<T>, CaptureError> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines
        .enumerate()
        .map(|(index, line)| {
            let line = parse_json(path, line, "a line of JSON")?;
            let fits = "a line that fits the others and the number of workers";
            turn(line).ok_or_else(|| malformed(path, fits, format!("line {}", index + 1)))
        })
        .collect()
}

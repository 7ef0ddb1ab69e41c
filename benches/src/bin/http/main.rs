//! Overlap over HTTP for prompts of 100,000 tokens, beside Dynamo's standalone indexer.
//!
//! Both follow the same engines, and their answers are compared first. Then both are asked in turns, by the same plain
//! client, and so is a server that does nothing, which shows what of each figure is not the servers' own.

mod client;
mod content;
mod engines;
mod forms;
mod measure;
mod nothing;
mod report;
mod sides;

use std::{
    collections::BTreeMap,
    error::Error,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use clap::Parser;

use content::{BLOCK_SIZE, Prompt, WORKERS};
use engines::Engines;
use forms::Form;
use measure::Target;
use report::Row;
use sides::{Server, Side, built_kvtide};

/// How long it may take until all sides know what the engines hold.
const PATIENCE: Duration = Duration::from_secs(60);

/// So many requests in a row, and it is the next one's turn.
const TURN: usize = 25;

/// Measures requests.
#[derive(Parser)]
struct Settings {
    /// Whom to ask; all by default.
    #[arg(long = "side", value_name = "SIDE", value_delimiter = ',', value_enum)]
    sides: Vec<Side>,
    /// In what form; all by default.
    #[arg(long = "form", value_name = "FORM", value_delimiter = ',', value_enum)]
    forms: Vec<Form>,
    /// The program of kvtide; by default the one that was built beside this.
    #[arg(long, value_name = "FILE")]
    kvtide: Option<PathBuf>,
    /// A Python that has ai-dynamo-runtime.
    #[arg(long, value_name = "FILE", default_value = "python3")]
    dynamo: PathBuf,
    /// Requests of each form to each side, in turns, one by one.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    requests: usize,
    /// Rounds of two seconds in which clients never pause.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Few requests, and one short round.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut settings = Settings::parse();
    if settings.sides.is_empty() {
        settings.sides = vec![Side::Kvtide, Side::Dynamo];
    }
    if settings.forms.is_empty() {
        settings.forms = Form::ALL.into();
    }
    let mut engines = Engines::start()?;
    let mut servers = BTreeMap::new();
    for &side in &settings.sides {
        let server = match side {
            Side::Kvtide => Server::kvtide(&settings.kvtide.clone().unwrap_or_else(built_kvtide), &engines)?,
            Side::Dynamo => Server::dynamo(&settings.dynamo, &engines)?,
        };
        servers.insert(side, server);
    }
    let prompts = Prompt::all();
    teach(&mut engines, &servers, &prompts)?;
    if !settings.json {
        println!("{}", Row::HEAD);
    }
    for &form in &settings.forms {
        for row in measure(&settings, form, &servers, &prompts)? {
            println!("{}", if settings.json { serde_json::to_string(&row)? } else { row.to_string() });
        }
    }
    Ok(())
}

/// Has the engines publish until all sides know the same.
fn teach(
    engines: &mut Engines,
    servers: &BTreeMap<Side, Server>,
    prompts: &[Prompt],
) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    // A publisher tells only those who are there already.
    let announced = (1..=WORKERS).map(|worker_id| (worker_id, BLOCK_SIZE.into())).collect();
    while !agree(servers, &prompts[..1], |_| BTreeMap::clone(&announced))? {
        if started.elapsed() > PATIENCE {
            return Err(format!("not everyone follows the engines within {PATIENCE:?}").into());
        }
        engines.announce(&prompts[0])?;
        sleep(Duration::from_millis(100));
    }
    let held = |prompt: &Prompt| {
        let tokens = |worker_id| prompt.held_blocks(worker_id) as u64 * u64::from(BLOCK_SIZE);
        (1..=WORKERS).map(|worker_id| (worker_id, tokens(worker_id))).collect()
    };
    // A batch may be lost on a busy machine, and then everything is told again.
    while started.elapsed() < PATIENCE {
        engines.clear()?;
        for prompt in prompts {
            engines.hold(prompt)?;
        }
        for _look in 0..20 {
            if agree(servers, prompts, held)? {
                return Ok(());
            }
            sleep(Duration::from_millis(100));
        }
    }
    Err(format!("not everyone answers what the engines hold within {PATIENCE:?}").into())
}

/// Whether all sides answer as expected to prompts, in all forms.
fn agree(
    servers: &BTreeMap<Side, Server>,
    prompts: &[Prompt],
    expected: impl Fn(&Prompt) -> BTreeMap<u64, u64>,
) -> Result<bool, Box<dyn Error>> {
    for (&side, server) in servers {
        for form in Form::ALL {
            for prompt in prompts {
                let Some(request) = form.request(side, prompt) else { continue };
                let mut target = Target::new(server.address, vec![request])?;
                if side.reaches(target.answer(0)?)? != expected(prompt) {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// Asks all sides in one form, or in that which is compared with it.
fn measure(
    settings: &Settings,
    form: Form,
    servers: &BTreeMap<Side, Server>,
    prompts: &[Prompt],
) -> Result<Vec<Row>, Box<dyn Error>> {
    let all = |form: Form, side| prompts.iter().filter_map(|prompt| form.request(side, prompt)).collect();
    let mut asked = Vec::new();
    for (&side, server) in servers {
        let form = form.to(side);
        asked.push((Some(side), form, Target::new(server.address, all(form, side))?));
    }
    asked.push((None, form, Target::new(nothing::serve()?, all(form, Side::Kvtide))?));
    let (requests, rounds, length) = match settings.quick {
        true => (50, 1, Duration::from_millis(200)),
        false => (settings.requests, settings.rounds, Duration::from_secs(2)),
    };
    for first in (0..requests).step_by(TURN) {
        for (_, _, target) in &mut asked {
            target.warm_up(first)?;
            for number in first..requests.min(first + TURN) {
                target.time(number)?;
            }
        }
    }
    for _round in 0..rounds {
        for (_, _, target) in &mut asked {
            target.rate(length)?;
        }
    }
    let rows = asked.into_iter().map(|(side, form, target)| Row::of(side, form, target));
    Ok(report::compare(rows.collect()))
}

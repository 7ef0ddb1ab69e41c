//! A recording that is played: what it ended with, since there are no answers of an engine to compare with.

use std::{io::Write, path::Path};

use kvtide::{
    KnowledgeState,
    capture::{Played, Recording, play},
    serving::Failure,
};
use kvtide_radix::RankState;
use serde_json::{Value, json};

/// Plays the recording in a folder, and prints what it ended with.
pub(super) fn run(folder: &Path, as_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let recording = Recording::load(folder)?;
    let played = play(folder, &recording)?;
    if as_json {
        writeln!(out, "{}", describe(&recording, &played))?;
    } else {
        print(&recording, &played, out)?;
    }
    Ok(())
}

fn describe(recording: &Recording, played: &Played) -> Value {
    let ranks = played.scopes.iter().flat_map(|scope| {
        scope.ranks.iter().map(|rank| {
            let RankState { held_blocks: [gpu, host, disk, external], watermark, .. } = rank;
            json!({
                "scope": scope.scope,
                "worker_id": rank.rank.worker_id,
                "dp_rank": rank.rank.dp_rank,
                "knowledge": KnowledgeState::from(watermark.knowledge),
                "held_blocks": {"gpu": gpu, "host": host, "disk": disk, "external": external},
                "parked_blocks": rank.parked_blocks,
                "generation": watermark.life.0,
                "last_event_id": watermark.last_event_id,
                "missing_events": watermark.missing_events,
            })
        })
    });
    let Played { messages, undecodable, applied, .. } = played;
    json!({
        "recorded_by": recording.kvtide,
        "dropped": recording.end.as_ref().map(|end| end.dropped),
        "messages": messages,
        "undecodable": undecodable,
        "events": applied.events,
        "ignored": applied.ignored,
        "repeated": applied.repeated,
        "refused": applied.refused_events(),
        "holes": applied.holes,
        "missing": applied.missing,
        "lives": applied.lives,
        "ranks": ranks.collect::<Vec<_>>(),
    })
}

fn print(recording: &Recording, played: &Played, out: &mut dyn Write) -> std::io::Result<()> {
    let Played { messages, undecodable, applied, scopes } = played;
    let streams = recording.streams.len();
    writeln!(
        out,
        "A recording by kvtide {}, without answers of an engine to compare with.",
        recording.kvtide
    )?;
    match &recording.end {
        None => writeln!(out, "It did not end by itself: what came last may be missing.")?,
        Some(end) if end.dropped > 0 => {
            writeln!(out, "{} messages came and were dropped while it was made.", end.dropped)?;
        }
        Some(_) => {}
    }
    writeln!(
        out,
        "\nstreams {streams}, messages {messages}, undecodable {undecodable}\n\
         events {}, ignored {}, repeated {}, refused {}, holes {}, missing {}, lives {}\n",
        applied.events,
        applied.ignored,
        applied.repeated,
        applied.refused_events(),
        applied.holes,
        applied.missing,
        applied.lives,
    )?;
    writeln!(
        out,
        "{:<20} {:>20}  {:<10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>5} {:>10} {:>8}",
        "model",
        "worker/rank",
        "knowledge",
        "gpu",
        "host",
        "disk",
        "external",
        "waiting",
        "life",
        "last event",
        "missing"
    )?;
    for scope in scopes {
        for rank in &scope.ranks {
            let [gpu, host, disk, external] = rank.held_blocks;
            let (watermark, name) =
                (&rank.watermark, format!("{}/{}", rank.rank.worker_id, rank.rank.dp_rank));
            let last = watermark.last_event_id.map_or("-".to_owned(), |last| last.to_string());
            writeln!(
                out,
                "{:<20} {name:>20}  {:<10} {gpu:>9} {host:>9} {disk:>9} {external:>9} {:>8} {:>5} {last:>10} {:>8}",
                scope.scope.model,
                KnowledgeState::from(watermark.knowledge).name(),
                rank.parked_blocks,
                watermark.life.0,
                watermark.missing_events,
            )?;
        }
    }
    Ok(())
}

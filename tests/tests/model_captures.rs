//! The reference model, fed with real streams, gives the engines' own answers. It must, before it may judge.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first step that cannot be")]

use std::{path::Path, time::Instant};

use kvtide::capture::{Capture, Expectation};
use kvtide_events::{Engine, Hashing};
use kvtide_radix::{BlockHash, Rank, RankSettings, Seed};
use kvtide_tests::Model;

fn rank(worker: usize) -> Rank {
    Rank { worker_id: worker as u64, dp_rank: 0 }
}

/// Answers above and below the engine's, for the GPU and for GPU and host.
#[derive(Default, Debug)]
struct Wrong {
    over: [usize; 2],
    under: [usize; 2],
}

fn replay(capture: &Capture, expected: &Expectation) -> Wrong {
    let engine = Engine {
        block_size: capture.block_size,
        adapter_names: capture.adapter_ids.iter().map(|(name, &id)| (id, name.clone())).collect(),
    };
    let hashing = Hashing { block_size: capture.block_size, eagle: capture.eagle };
    let mut model = Model::new(capture.block_size, 100_000);
    for worker in 0..capture.workers.len() {
        let settings = RankSettings {
            copies: expected.stream.copies(),
            host_chunk_blocks: expected.stream.host_chunk_blocks,
            windows: expected.stream.windows().collect(),
            recent_names: 8192,
        };
        model.join(rank(worker), settings);
    }
    let mut applied = vec![0; capture.workers.len()];
    let mut wrong = Wrong::default();
    for checkpoint in &capture.checkpoints {
        for (worker, &due) in checkpoint.applied.iter().enumerate() {
            for message in &capture.workers[worker][applied[worker]..due] {
                let batch = engine.decode(&message.payload).unwrap();
                assert!(batch.ignored.is_empty(), "{}: {:?}", capture.name, batch.ignored);
                for event in &batch.events {
                    model.apply(rank(worker), event);
                }
            }
            applied[worker] = due;
        }
        for question in &checkpoint.questions {
            let seed = Seed::of(question.adapter.as_deref(), question.tenant.as_deref());
            let prompt: Vec<BlockHash> = hashing.block_hashes(&question.tokens, &[], seed).collect();
            for worker in 0..capture.workers.len() {
                let got = model.reach(rank(worker), &prompt);
                let truth = [Some(question.gpu[worker]), question.host.as_ref().map(|host| host[worker])];
                for (tier, truth) in truth.into_iter().enumerate() {
                    let Some(truth) = truth else { continue };
                    wrong.over[tier] += usize::from(got[tier] > truth);
                    wrong.under[tier] += usize::from(got[tier] < truth);
                }
            }
        }
    }
    wrong
}

#[test]
fn the_model_answers_as_the_engines_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    let mut failed = Vec::new();
    for (path, expected) in Expectation::read_all(&folder).unwrap() {
        let started = Instant::now();
        let capture = Capture::load(&path).unwrap();
        let wrong = replay(&capture, &expected);
        println!("{:28} {:6} answers, {wrong:?}, {:?}", capture.name, capture.answers(), started.elapsed());
        if !expected.over.covers(wrong.over[0], wrong.over[1])
            || !expected.under.covers(wrong.under[0], wrong.under[1])
        {
            failed.push(format!("{}: {wrong:?}, allowed {expected:?}", capture.name));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

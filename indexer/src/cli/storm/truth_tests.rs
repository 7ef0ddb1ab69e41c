//! The simulated fleet held to the reference model: what messages say, decoded, is what the caches hold.

use std::collections::BTreeMap;

use kvtide::{PromptContent, Query};
use kvtide_events::{Engine, Frame as DynamoFrame};
use kvtide_radix::{BlockHash, Copies, Event, Rank, RankSettings, Seed};
use kvtide_tests::Model;

use super::{
    plan::{Frame, Plan, Step, rank_of},
    reference::{Note, Reference},
    scenario::{Publisher, SHIPPED, Scenario},
};

/// Questions that are compared, of each scenario.
const QUESTIONS: usize = 60;

/// A small fleet of the same habits: the reference is slow.
fn small(name: &str, publisher: Publisher) -> Scenario {
    let mut scenario = Scenario::find(name).unwrap();
    let fleet = &mut scenario.fleet;
    (fleet.workers, fleet.dp_ranks) = (3, fleet.dp_ranks.min(2));
    fleet.publisher = publisher;
    fleet.gpu_blocks = 80;
    fleet.host_blocks = fleet.host_blocks.min(200);
    fleet.disk_blocks = fleet.disk_blocks.min(300);
    scenario.load.warm_requests = 150;
    scenario.load.requests_per_second = 40.0;
    scenario.load.queries_per_check = 1;
    let prompts = &mut scenario.prompts;
    prompts.conversations = 20;
    prompts.system_tokens = prompts.system_tokens.map(|tokens| tokens.min(1024));
    // So few that some of them meet.
    prompts.systems = prompts.systems.min(2);
    (prompts.adapters, prompts.tenants) = (prompts.adapters.min(1), prompts.tenants.min(1));
    scenario
}

/// The model of each rank's life: what came before a restart is forgotten.
struct Models {
    model: Model,
    lives: BTreeMap<usize, u64>,
    engine: Engine,
    dp_ranks: u32,
}

impl Models {
    fn new(scenario: &Scenario) -> Models {
        let block_size = scenario.fleet.block_size;
        let mut model = Model::new(block_size, usize::MAX);
        let settings = match scenario.fleet.publisher {
            Publisher::Dynamo => RankSettings::default(),
            Publisher::Vllm => {
                RankSettings { copies: Copies::Counted, recent_names: 1024, ..RankSettings::default() }
            }
        };
        for number in 0..scenario.ranks() {
            model.join(rank_of(number, scenario.fleet.dp_ranks), settings.clone());
        }
        let engine = Engine { block_size, adapter_names: BTreeMap::new() };
        Models { model, lives: BTreeMap::new(), engine, dp_ranks: scenario.fleet.dp_ranks }
    }

    fn apply(&mut self, frame: Frame, publisher: Publisher) {
        let (number, life) = (frame.rank, frame.life);
        let rank = rank_of(number, self.dp_ranks);
        if self.lives.insert(number, life).is_some_and(|before| before != life) {
            self.model.forget(rank);
        }
        let (events, sequence, position) = (frame.events, frame.sequence, frame.position);
        let bytes = frame.message.sent_at(1_700_000_000_123);
        let decoded: Vec<(Rank, Event)> = match publisher {
            Publisher::Dynamo => {
                let decoded = DynamoFrame::decode(&bytes).unwrap();
                assert_eq!((decoded.sequence, decoded.published_at_ms), (sequence, 1_700_000_000_123));
                assert_eq!(decoded.events.last().unwrap().event_id, position);
                decoded.events.into_iter().map(|event| (event.rank, event.change.unwrap())).collect()
            }
            Publisher::Vllm => {
                let batch = self.engine.decode(&bytes).unwrap();
                assert_eq!((batch.dp_rank, batch.ignored.len()), (Some(rank.dp_rank), 0));
                assert_eq!(batch.published_at_s, 1_700_000_000.123);
                assert_eq!(sequence, position);
                batch.events.into_iter().map(|event| (rank, event)).collect()
            }
        };
        assert_eq!(decoded.len() as u64, events);
        for (of, event) in decoded {
            assert_eq!(of, rank);
            self.model.apply(rank, &event);
        }
        assert_eq!(self.model.parked_blocks(rank), 0, "every parent is held, or was a short while ago");
    }
}

/// Plays a small scenario and compares the truth with the model. Returns how many ranks had some of a prompt, and in how many of
/// these a lower tier reached further than the GPU.
fn compare(name: &str, publisher: Publisher) -> (usize, usize) {
    let scenario = small(name, publisher);
    let mut models = Models::new(&scenario);
    let mut truth = Reference::new(scenario.ranks(), scenario.fleet.dp_ranks, scenario.fleet.block_size);
    let mut sights = BTreeMap::new();
    let (mut questions, mut reached, mut further) = (0, 0, 0);
    for step in Plan::new(&scenario).unwrap() {
        match step {
            Step::Frame(mut frame) => {
                let (rank, life, position) = (frame.rank, frame.life, frame.position);
                let deltas = frame.deltas.take().expect("all ranks of a small fleet are checked");
                truth.note(Note { rank, life, position, deltas });
                sights.insert(rank, (life, position));
                models.apply(frame, publisher);
            }
            Step::Question(question) => {
                let Query { scope, prompt, .. } = question.query();
                let seed = Seed::of(scope.adapter.as_deref(), scope.tenant.as_deref());
                let PromptContent::Tokens(tokens) = &prompt else { panic!("no tokens") };
                let names = question.names.expect("every answer is checked");
                let blocks = tokens.chunks_exact(scenario.fleet.block_size as usize);
                let hashes: Vec<BlockHash> = blocks.map(|block| BlockHash::of(block, &[], seed)).collect();
                assert_eq!(hashes.len(), names.len());
                for (&number, &sight) in &sights {
                    let expected = models.model.reach(rank_of(number, scenario.fleet.dp_ranks), &hashes);
                    let [gpu, host, disk] = truth.reach(number, sight, &names);
                    assert_eq!([gpu, host, disk, disk], expected, "{name}, {publisher:?}, rank {number}");
                    reached += usize::from(disk > 0);
                    further += usize::from(disk > gpu);
                }
                questions += 1;
                if questions == QUESTIONS {
                    return (reached, further);
                }
            }
        }
    }
    panic!("a plan never ends");
}

#[test]
fn what_messages_say_is_what_the_caches_hold() {
    for (name, _) in SHIPPED {
        for publisher in [Publisher::Dynamo, Publisher::Vllm] {
            let (reached, further) = compare(name, publisher);
            assert!(reached > 20, "{name}, {publisher:?}: {reached} ranks had some of a prompt");
            assert_eq!(further > 0, name == "offload", "{name}, {publisher:?}: {further} by lower tiers");
        }
    }
}

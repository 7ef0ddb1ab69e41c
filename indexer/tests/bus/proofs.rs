//! Proofs that nothing is pending: how old they are on a bus that is idle, that stops, and that loses.

use std::{thread::sleep, time::Duration};

use kvtide_radix::Rank;
use kvtide_tests::harness::wait_for;

use crate::nats::{Publisher, World};

/// A proof is made every second.
const OLD_MS: u64 = 2500;

fn age(world: &World, worker_id: u64) -> Option<u64> {
    world.workers()[&Rank { worker_id, dp_rank: 0 }]["freshness"]["verified_age_ms"].as_u64()
}

fn wait_for_proof(world: &World, worker_id: u64) {
    wait_for("a fresh proof", || age(world, worker_id).filter(|&age| age < 1000));
}

#[test]
fn an_outage_ends_proofs_until_something_comes_in_order_again() {
    let mut world = World::start();
    let mut publishers = [Publisher::new(3), Publisher::new(4)];
    for publisher in &mut publishers {
        let frame = publisher.frame();
        world.publish_and_note(&frame);
    }
    world.flush();
    world.wait_until_applied();
    for worker in [3, 4] {
        wait_for_proof(&world, worker);
    }
    sleep(Duration::from_secs(3));
    let idle = world.workers()[&Rank { worker_id: 3, dp_rank: 0 }]["freshness"].clone();
    assert!(idle["last_event_age_ms"].as_u64() > Some(OLD_MS), "{idle}");
    assert!(idle["verified_age_ms"].as_u64() < Some(OLD_MS), "idle is proven to be idle: {idle}");

    let mut world = world.restart_bus();
    sleep(Duration::from_secs(3));
    assert!(age(&world, 3) > Some(OLD_MS) && age(&world, 4) > Some(OLD_MS), "what was lost, nobody knows");
    let frame = publishers[0].frame();
    world.publish_and_note(&frame);
    world.flush();
    world.wait_until_applied();
    wait_for_proof(&world, 3);
    assert!(age(&world, 4) > Some(OLD_MS), "of the other nothing has come");
}

#[test]
fn a_kvtide_that_stood_still_has_old_proofs_and_makes_new_ones() {
    let mut world = World::start();
    let mut publisher = Publisher::new(3);
    let frame = publisher.frame();
    world.publish_and_note(&frame);
    world.wait_until_applied();
    wait_for_proof(&world, 3);
    world.stand_still(Duration::from_secs(3), |world| {
        for _ in 0..2000 {
            let frame = publisher.frame();
            world.publish_and_note(&frame);
        }
        world.flush();
    });
    world.wait_until_applied();
    wait_for_proof(&world, 3);
    let fresh = &world.workers()[&Rank { worker_id: 3, dp_rank: 0 }]["freshness"];
    assert_eq!((&fresh["missing_events"], &fresh["pending_events"]), (&0.into(), &0.into()), "{fresh}");
}

//! How old the newest event is where a worker's own index tells: an answer is no event.

use kvtide_tests::vectors::{Case, Step, read};

use crate::player::Player;

/// How old the newest event is behind each answer of a vector, played to its end with 1000 ms in front of every answer.
fn ages_behind_answers(name: &str) -> Vec<Option<u64>> {
    let found = read().into_iter().map(|(_, case)| case).find(|case| case.name == name);
    let Case { stream, steps, .. } = found.unwrap();
    let mut player = Player::new(&stream);
    let mut ages = Vec::new();
    for step in &steps {
        let is_answer = matches!(step, Step::Index(_));
        if is_answer {
            player.play(&Step::Wait(1000));
        }
        player.play(step);
        if is_answer {
            ages.push(player.event_age_ms());
        }
    }
    ages
}

#[test]
fn an_answer_that_tells_nothing_newer_makes_no_event_younger() {
    let name = "where something may have been lost the worker is asked";
    assert_eq!(ages_behind_answers(name), [Some(1050)], "{name}");
}

#[test]
fn a_worker_that_has_taken_nothing_has_no_event() {
    let name = "its worker has taken nothing yet: all is known";
    assert_eq!(ages_behind_answers(name), [None], "{name}");
}

#[test]
fn an_event_that_is_told_is_as_old_as_the_answer() {
    for name in ["and tells what was lost", "its worker tells what it holds: a lower bound"] {
        assert_eq!(ages_behind_answers(name), [Some(0)], "{name}");
    }
}

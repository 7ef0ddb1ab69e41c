//! kvtide ends in the middle of a vector and goes on with its snapshot: it then credits no more than is held.

use kvtide_tests::vectors::{Case, Expected, State, read};

use crate::player::Player;

/// What is known of worker 7 at the end of a vector, if kvtide has ended in front of that step.
fn known_at_the_end(case: &Case, ends: Option<usize>) -> Expected {
    let mut player = Player::new(&case.stream);
    for (index, step) in case.steps.iter().enumerate() {
        if ends == Some(index) {
            player.restart();
        }
        player.play(step);
    }
    player.known(7)
}

/// Whether what is known is no more than what is held, and all of it where that is said. As long as it waits, or after an earlier
/// event, it may have been more.
fn is_honest(got: &Expected, held: &Expected) -> bool {
    let no_more = got.reach.zip(held.reach).is_none_or(|(got, held)| got[0] <= held[0] && got[1] <= held[1]);
    let all = got.knowledge != Some(State::Complete) || (got.last, got.reach) == (held.last, held.reach);
    let waits = got.knowledge == Some(State::Recovering) && got.last != held.last;
    got.last < held.last || waits || (no_more && all)
}

#[test]
fn wherever_kvtide_ends_it_credits_no_more_than_is_held() {
    let vectors = read();
    let whole = vectors.iter().map(|(file, case)| (file, case, known_at_the_end(case, None)));
    // Elsewhere a vector does not say what is held.
    let whole = whole.filter(|(.., held)| held.knowledge == Some(State::Complete));
    let (mut played, mut wrong) = (0, Vec::new());
    for (file, case, held) in whole {
        for ends in 1..case.steps.len() {
            let got = known_at_the_end(case, Some(ends));
            played += 1;
            if !is_honest(&got, &held) {
                let name = &case.name;
                wrong.push(format!("{file}: {name}, ends at step {ends}\n  got  {got:?}\n  held {held:?}"));
            }
        }
    }
    assert!(played > 500, "{played} restarts");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

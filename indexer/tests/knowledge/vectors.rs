//! Every vector, played by both.

use std::collections::BTreeSet;

use kvtide_tests::{
    Fleet,
    vectors::{Case, Step, read},
};

use crate::player::Player;

/// Vectors that there are at least.
const AT_LEAST: usize = 60;

/// Plays a vector. Returns every difference from what it expects, or between the two.
fn differences(file: &str, case: &Case) -> Vec<String> {
    let (mut kvtide, mut reference) = (Player::new(&case.stream), Fleet::new(&case.stream));
    let mut differences = Vec::new();
    for (index, step) in case.steps.iter().enumerate() {
        kvtide.play(step);
        reference.play(step);
        let wanted = if let Step::Expect(wanted) = step { Some(wanted) } else { None };
        let worker = wanted.map_or(7, |wanted| wanted.worker);
        let (got, model) = (kvtide.known(worker), reference.known(worker));
        if got != model || wanted.is_some_and(|wanted| *wanted != got) {
            differences.push(format!(
                "{file}: {}, step {index}\n  expected  {wanted:?}\n  kvtide    {got:?}\n  reference {model:?}",
                case.name
            ));
        }
    }
    differences
}

#[test]
fn every_vector_holds() {
    let vectors = read();
    assert!(vectors.len() >= AT_LEAST, "{} vectors", vectors.len());
    let names: BTreeSet<_> = vectors.iter().map(|(file, case)| (file, &case.name)).collect();
    assert_eq!(names.len(), vectors.len(), "every vector has a name of its own");
    let idle = |case: &&Case| !case.steps.iter().any(|step| matches!(step, Step::Expect(_)));
    assert_eq!(
        vectors.iter().map(|(_, case)| case).find(idle).map(|case| &case.name),
        None,
        "expects nothing"
    );
    let differences: Vec<_> = vectors.iter().flat_map(|(file, case)| differences(file, case)).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

//! The contract: what `/openapi.json` says is docs/openapi.json, every route is in it, and so is every problem in docs/http.md.

use expect_test::expect_file;
use serde_json::Value;

use crate::served::Served;

#[test]
fn the_contract_is_that_of_the_docs() {
    let served = Served::start();
    let reply = served.kvtide.send("GET", "/openapi.json", "", b"");
    assert_eq!((reply.status, reply.content_type.as_str()), (200, "application/json"));
    let contract: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(contract["openapi"], "3.1.0");
    expect_file!["../../../docs/openapi.json"].assert_eq(&format!("{}\n", reply.body));
}

#[test]
fn every_route_of_the_contract_is_described_and_there() {
    let served = Served::start();
    let contract = served.get("/openapi.json");
    let described = include_str!("../../../docs/http.md");
    let mut seen = 0;
    for (path, methods) in contract["paths"].as_object().unwrap() {
        assert!(described.contains(path.split("/{").next().unwrap()), "{path} is not in docs/http.md");
        for (method, operation) in methods.as_object().unwrap() {
            let summary = operation["summary"].as_str().unwrap();
            assert!(!summary.is_empty() && operation["tags"][0].is_string(), "{method} {path}");
            let route = path.replace("{id}", "7");
            let reply = served.kvtide.send(&method.to_uppercase(), &route, "application/json", b"");
            assert!(
                ![404, 405].contains(&reply.status) || reply.body.contains("unknown-worker"),
                "{method} {path}: {}",
                reply.body
            );
            seen += 1;
        }
    }
    assert!(seen >= 20, "{seen}");
}

#[test]
fn every_problem_is_described() {
    let source = include_str!("../../src/service/problem.rs");
    let described = include_str!("../../../docs/http.md");
    let errors = described.split("## Errors").nth(1).unwrap();
    let kinds = source.split("Problem::new(").skip(1).chain(source.split("Problem::too_many(").skip(1));
    let mut seen = 0;
    for call in kinds {
        let Some(kind) = call.split([',', ')']).find_map(|argument| {
            let kind = argument.trim().strip_prefix('"')?.strip_suffix('"')?;
            kind.chars().all(|c| c.is_ascii_lowercase() || c == '-').then_some(kind)
        }) else {
            continue;
        };
        assert!(errors.contains(&format!("{kind}`")), "{kind} is not in docs/http.md");
        seen += 1;
    }
    assert!(seen >= 15, "{seen}");
}

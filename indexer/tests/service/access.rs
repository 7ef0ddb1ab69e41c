//! Access: who may ask for what, by which token; and nothing said of anyone else's.

use std::collections::BTreeSet;

use kvtide::access::{NewToken, Role};
use kvtide_tests::{
    Folder,
    harness::{Kvtide, wait_for},
};
use serde_json::{Value, json};

use crate::{
    canary::expect_no_part,
    served::{Served, problem},
};

/// A service with tokens, in the order of `grants`: roles, and tenants.
struct Guarded {
    served: Served,
    folder: Folder,
    tokens: Vec<NewToken>,
}

fn new(roles: &[Role], tenants: &[&str]) -> NewToken {
    let tenants: BTreeSet<String> = tenants.iter().map(|&tenant| tenant.to_owned()).collect();
    NewToken::new(roles.iter().copied().collect(), tenants).unwrap()
}

impl Guarded {
    fn start(grants: &[(&[Role], &[&str])]) -> Guarded {
        let folder = Folder::new();
        let tokens: Vec<_> = grants.iter().map(|(roles, tenants)| new(roles, tenants)).collect();
        let file = folder.write("tokens", lines(&tokens));
        let arguments = ["serve", "--tokens", &file];
        let kvtide = Kvtide::start_logging(env!("CARGO_BIN_EXE_kvtide"), &arguments, "trace");
        Guarded { served: Served { kvtide }, folder, tokens }
    }

    /// Asks with the token of that number from here on.
    fn by(&mut self, token: usize) -> &Served {
        self.served.kvtide.authorize(&format!("Bearer {}", self.tokens[token].token));
        &self.served
    }
}

fn lines(tokens: &[NewToken]) -> String {
    tokens.iter().map(|token| format!("{}\n", token.line)).collect()
}

/// Every route, with what it needs.
fn routes() -> Vec<(&'static str, &'static str, Value, Option<Role>)> {
    let scope = json!({"model": "m", "block_size": 2});
    let feedback = json!({"scope": {}, "worker_id": 1, "predicted_tokens": 2, "cached_tokens": 2});
    vec![
        ("POST", "/v1/events", json!({"scope": scope, "worker_id": 1, "events": []}), Some(Role::Ingest)),
        ("POST", "/v1/overlap", json!({"token_ids": [1, 2]}), Some(Role::Query)),
        ("POST", "/v1/feedback", feedback, Some(Role::Query)),
        ("GET", "/metrics", Value::Null, Some(Role::Metrics)),
        ("GET", "/v1/workers", Value::Null, Some(Role::Admin)),
        ("POST", "/v1/workers", json!({"scope": scope, "worker_id": 2}), Some(Role::Admin)),
        ("DELETE", "/v1/workers/2", Value::Null, Some(Role::Admin)),
        ("GET", "/v1/scopes", Value::Null, Some(Role::Admin)),
        ("GET", "/v1/snapshot", Value::Null, Some(Role::Admin)),
        ("POST", "/query", json!({"token_ids": [1, 2], "model_name": "m"}), Some(Role::Query)),
        ("POST", "/query_by_hash", json!({"block_hashes": [1], "model_name": "m"}), Some(Role::Query)),
        ("GET", "/workers", Value::Null, Some(Role::Admin)),
        ("GET", "/dump", Value::Null, Some(Role::Admin)),
        ("GET", "/peers", Value::Null, Some(Role::Admin)),
        ("GET", "/openapi.json", Value::Null, None),
        ("GET", "/", Value::Null, None),
        ("GET", "/health", Value::Null, None),
        ("GET", "/healthz", Value::Null, None),
        ("GET", "/readyz", Value::Null, None),
    ]
}

#[test]
fn every_route_takes_its_role_and_admins_take_every_route() {
    let all = [Role::Admin, Role::Ingest, Role::Query, Role::Metrics];
    let grants: Vec<(&[Role], &[&str])> =
        all.iter().map(|role| (std::slice::from_ref(role), &[][..])).collect();
    let mut guarded = Guarded::start(&grants);
    for (method, route, body, needed) in routes() {
        for (number, role) in all.into_iter().enumerate() {
            let served = guarded.by(number);
            let body = if body.is_null() { String::new() } else { body.to_string() };
            // A worker that has gone cannot go again.
            if route == "/v1/workers/2" && role == Role::Admin {
                served
                    .post("/v1/workers", &json!({"scope": {"model": "m", "block_size": 2}, "worker_id": 2}));
            }
            let reply = served.kvtide.send(method, route, "application/json", body.as_bytes());
            if needed.is_none_or(|needed| role == needed || role == Role::Admin) {
                assert_eq!(reply.status, 200, "{route} by {role:?}: {}", reply.body);
            } else {
                let problem = problem(&reply, 403, "forbidden");
                assert_eq!(problem["expected_role"], json!(needed), "{route} by {role:?}");
            }
        }
        for nobody in ["", "Bearer", "Bearer ", "Bearer kvt_0", "Basic kvt_0", "bearer\tx", &"x".repeat(9000)]
        {
            guarded.served.kvtide.authorize(nobody);
            let reply = guarded.served.kvtide.send(method, route, "application/json", b"{}");
            match needed {
                Some(_) => _ = problem(&reply, 401, "unauthorized"),
                None => assert_eq!(reply.status, 200, "{route}"),
            }
        }
    }
}

#[test]
fn engines_come_and_go_by_admins_alone() {
    let all = [Role::Ingest, Role::Query, Role::Metrics, Role::Admin];
    let grants: Vec<(&[Role], &[&str])> =
        all.iter().map(|role| (std::slice::from_ref(role), &[][..])).collect();
    let mut guarded = Guarded::start(&grants);
    let engine =
        json!({"instance_id": 1, "endpoint": "tcp://127.0.0.1:1", "model_name": "m", "block_size": 2});
    let peer = json!({"url": "http://127.0.0.1:1"});
    let routes = [
        ("/register", &engine, 201),
        ("/unregister", &engine, 200),
        ("/register_peer", &peer, 409),
        ("/deregister_peer", &peer, 404),
    ];
    for (route, body, status) in routes {
        for (number, role) in all.into_iter().enumerate() {
            let reply = guarded.by(number).post(route, body);
            if role == Role::Admin {
                assert_eq!(reply.status, status, "{route}: {}", reply.body);
            } else {
                problem(&reply, 403, "forbidden");
            }
        }
    }
}

#[test]
fn dynamos_routes_show_the_blocks_of_a_tokens_tenants_alone() {
    let query = &[Role::Query][..];
    let mut guarded =
        Guarded::start(&[(&[Role::Ingest], &["*"]), (query, &["*"]), (query, &[]), (query, &["acme"])]);
    tell(guarded.by(0));
    let held = json!({"1": {"0": 4}});
    let seen: [&[Option<&str>]; 3] = [&[None, Some("acme"), Some("globex")], &[None], &[Some("acme")]];
    for (number, seen) in (1..).zip(seen) {
        for tenant in [None, Some("acme"), Some("globex"), Some("initech"), Some("")] {
            let body = json!({"token_ids": [1, 2, 3, 4], "model_name": "m", "cache_salt": tenant});
            let (status, answer) = guarded.by(number).kvtide.post("/query", &body);
            if seen.contains(&tenant) {
                assert_eq!((status, &answer["scores"]), (200, &held), "{tenant:?} by token {number}");
            } else if number == 1 {
                // An empty name is none.
                assert_eq!((status, tenant.is_some_and(str::is_empty)), (200, answer["scores"] == held));
            } else {
                let error = answer["error"].as_str().unwrap();
                assert_eq!(status, 403, "{tenant:?} by token {number}: {answer}");
                tenant
                    .into_iter()
                    .filter(|name| !name.is_empty())
                    .for_each(|name| expect_no_part("an error", error, name));
            }
        }
        let hashes = json!({"block_hashes": [1], "model_name": "m"});
        let status = guarded.by(number).kvtide.post("/query_by_hash", &hashes).0;
        assert_eq!(status, if number == 1 { 200 } else { 403 }, "by token {number}");
    }
}

/// Worker 1 holds tokens 1 to 4 of no tenant, of acme and of globex.
fn tell(served: &Served) {
    for (number, tenant) in [None, Some("acme"), Some("globex")].into_iter().enumerate() {
        let stored = json!({"type": "stored", "sequence_hashes": [2 * number + 1, 2 * number + 2], "token_ids": [1, 2, 3, 4]});
        let scope = json!({"model": "m", "block_size": 2, "tenant": tenant});
        served.tell(&scope, 1, Some(number as u64 + 1), &[stored]);
    }
}

#[test]
fn a_token_shows_the_blocks_of_its_tenants_alone() {
    let query = &[Role::Query][..];
    let mut guarded = Guarded::start(&[
        (&[Role::Ingest], &["*"]),
        (query, &["*"]),
        (query, &[]),
        (query, &["acme"]),
        (query, &["acme", "globex"]),
    ]);
    tell(guarded.by(0));
    let seen: [&[Option<&str>]; 4] = [
        &[None, Some("acme"), Some("globex"), Some("initech")],
        &[None],
        &[Some("acme")],
        &[Some("acme"), Some("globex")],
    ];
    let reach = |answer: &Value| answer["ranks"][0]["reach_tokens"]["gpu"].clone();
    for (number, seen) in seen.into_iter().enumerate() {
        let served = guarded.by(number + 1);
        let mut refusals = BTreeSet::new();
        for tenant in [None, Some("acme"), Some("globex"), Some("initech")] {
            let body = json!({"scope": {"tenant": tenant}, "token_ids": [1, 2, 3, 4]});
            if seen.contains(&tenant) {
                let expected = if tenant == Some("initech") { 0 } else { 4 };
                assert_eq!(reach(&served.overlap(&body)), expected, "{number} of {tenant:?}");
            } else {
                refusals.insert(served.refused("/v1/overlap", &body, 403, "forbidden").to_string());
            }
            // One that may not be asked spoils the rest.
            let batch = json!({"queries": [{"token_ids": []}, body]});
            let status = served.post("/v1/overlap", &batch).status;
            assert_eq!(status, if seen.contains(&None) && seen.contains(&tenant) { 200 } else { 403 });
        }
        // Whoever asks learns nothing of who there is.
        assert!(refusals.len() <= 1, "{refusals:?}");
        let hashes = served.post("/v1/overlap", &json!({"block_hashes": [1]}));
        assert_eq!(hashes.status, if number == 0 { 200 } else { 403 }, "{}", hashes.body);
    }
}

#[test]
fn events_are_taken_of_those_tenants_alone() {
    let mut guarded = Guarded::start(&[(&[Role::Ingest], &["acme"]), (&[Role::Ingest], &["*"])]);
    let of = |tenant: Option<&str>, event: Value| {
        let scope = json!({"model": "m", "block_size": 2, "tenant": tenant});
        json!({"scope": scope, "worker_id": 1, "events": [event]})
    };
    let tokens = json!({"type": "stored", "sequence_hashes": [1], "token_ids": [1, 2]});
    let hashes = json!({"type": "stored", "blocks": [{"sequence_hash": 1, "block_hash": 1}]});
    let served = guarded.by(0);
    served.ask("/v1/events", &of(Some("acme"), tokens.clone()));
    served.refused("/v1/events", &of(Some("globex"), tokens.clone()), 403, "forbidden");
    served.refused("/v1/events", &of(None, tokens.clone()), 403, "forbidden");
    served.refused("/v1/events", &of(Some("acme"), hashes.clone()), 403, "forbidden");
    // Names may be those of anyone's blocks, and so may what stands in front.
    let others = [
        json!({"type": "stored", "sequence_hashes": [1]}),
        json!({"type": "stored", "parent": 1, "sequence_hashes": [2], "token_ids": [3, 4]}),
        json!({"type": "removed", "sequence_hashes": [1]}),
        json!({"type": "cleared"}),
    ];
    for event in &others {
        served.refused("/v1/events", &of(Some("acme"), event.clone()), 403, "forbidden");
    }
    for raw in ["application/x-dynamo-kv-frame", "application/x-engine-kv-batch"] {
        problem(&served.kvtide.send("POST", "/v1/events?stream=none", raw, b"x"), 403, "forbidden");
    }
    let served = guarded.by(1);
    for tenant in [None, Some("globex")] {
        served.ask("/v1/events", &of(tenant, tokens.clone()));
        served.ask("/v1/events", &of(tenant, hashes.clone()));
        for event in &others {
            served.ask("/v1/events", &of(tenant, event.clone()));
        }
    }
}

#[test]
fn whoever_sees_single_tenants_sees_no_dump() {
    let admin = &[Role::Admin][..];
    let mut guarded = Guarded::start(&[(admin, &["*"]), (admin, &["acme"]), (admin, &[])]);
    for (number, status) in [(0, 200), (1, 403), (2, 403)] {
        for route in ["/dump", "/v1/snapshot", "/v1/snapshot?worker_id=1"] {
            assert_eq!(guarded.by(number).kvtide.get(route).0, status, "{route} by {number}");
        }
    }
}

#[test]
fn tokens_come_and_go_while_the_service_runs() {
    let mut guarded = Guarded::start(&[(&[Role::Metrics], &[])]);
    let second = new(&[Role::Metrics], &[]);
    guarded.tokens.push(second);
    let status = |guarded: &mut Guarded, token| guarded.by(token).kvtide.get("/metrics").0;
    assert_eq!([0, 1].map(|token| status(&mut guarded, token)), [200, 401]);
    guarded.folder.write("tokens", lines(&guarded.tokens));
    wait_for("a token that was added", || (status(&mut guarded, 1) == 200).then_some(()));
    guarded.folder.write("tokens", lines(&guarded.tokens[1..]));
    wait_for("a token that was taken away", || (status(&mut guarded, 0) == 401).then_some(()));
    // What is none changes nothing, and is not repeated.
    guarded.folder.write("tokens", "canary\n");
    let line = guarded.served.kvtide.wait_for_log("cannot be used");
    assert!(line.contains("line 1: expected an object with sha256") && !line.contains("canary"), "{line}");
    assert_eq!([0, 1].map(|token| status(&mut guarded, token)), [401, 200]);
    std::fs::remove_file(guarded.folder.path("tokens")).unwrap();
    guarded.served.kvtide.wait_for_log("cannot be used");
    assert_eq!([0, 1].map(|token| status(&mut guarded, token)), [401, 200]);
}

#[test]
fn nothing_of_tokens_or_tenants_is_written_down() {
    let mut guarded =
        Guarded::start(&[(&[Role::Query, Role::Metrics], &["canary-tenant"]), (&[Role::Admin], &["*"])]);
    tell(guarded.by(1));
    let mut said = String::new();
    for token in [0, 1, 0] {
        let served = guarded.by(token);
        for tenant in ["canary-tenant", "canary-other"] {
            let body = json!({"scope": {"tenant": tenant}, "token_ids": [1, 2]});
            let reply = served.post("/v1/overlap", &body);
            if reply.status != 200 {
                said += &reply.body;
            }
        }
        for (method, route, ..) in routes() {
            said += &served.kvtide.send(method, route, "application/json", b"{\"canary-field\": 1}").body;
        }
    }
    guarded.served.kvtide.authorize("Bearer canary-token");
    said += &guarded.served.kvtide.get("/metrics").1;
    let secrets: Vec<String> = guarded
        .tokens
        .iter()
        .flat_map(|token| {
            let hash = token.line.split('"').nth(3).unwrap().to_owned();
            [token.token.clone(), token.token[4..].to_owned(), hash]
        })
        .chain(["canary".to_owned()])
        .collect();
    let log = guarded.served.kvtide.terminate().join("\n");
    assert!(!log.is_empty() && said.len() > 1000);
    for secret in &secrets {
        expect_no_part("an answer", &said, secret);
        expect_no_part("the log", &log, secret);
    }
}

//! A query may come as JSON, as the same in msgpack, or as tokens alone: the answer is the same.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
    served::{Served, problem, without_times},
    vocabulary::{Chain, fleet},
};

const MSGPACK: &str = "application/msgpack";
const TOKENS: &str = "application/octet-stream";

fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

fn answer(served: &Served, route: &str, content_type: &str, body: &[u8]) -> Value {
    let reply = served.kvtide.send("POST", route, content_type, body);
    assert_eq!((reply.status, reply.content_type.as_str()), (200, "application/json"), "{}", reply.body);
    without_times(serde_json::from_str(&reply.body).unwrap())
}

#[test]
fn the_answer_is_the_same_in_whatever_form_it_is_asked_for() {
    let mut random = StdRng::seed_from_u64(3);
    let served = fleet(&mut random);
    for _prompt in 0..40 {
        let chain = Chain::random(&mut random, 8);
        let (limit, freshness) = (random.random_range(1..8), random.random_bool(0.5));
        let query = json!({"scope": chain.scope(), "token_ids": chain.tokens(), "limit": limit,
                           "freshness": freshness, "min_reach_tokens": 1});
        let expected = without_times(served.overlap(&query));
        let packed = rmp_serde::to_vec_named(&query).unwrap();
        assert_eq!(answer(&served, "/v1/overlap", MSGPACK, &packed), expected);
        let several = rmp_serde::to_vec_named(&json!({"queries": [query]})).unwrap();
        assert_eq!(answer(&served, "/v1/overlap", MSGPACK, &several), json!({"answers": [expected]}));

        let parts: Vec<String> = chain
            .scope()
            .as_object()
            .unwrap()
            .iter()
            .filter(|(_, part)| !part.is_null())
            .map(|(name, part)| format!("{name}={}&", part.as_str().map_or(part.to_string(), str::to_owned)))
            .collect();
        let options = format!("limit={limit}&freshness={freshness}&min_reach_tokens=1");
        let route = format!("/v1/overlap?{}{options}", parts.concat());
        assert_eq!(answer(&served, &route, TOKENS, &bytes_of(&chain.tokens())), expected, "{route}");
    }
}

#[test]
fn bodies_of_another_form_say_what_was_expected() {
    let served = Served::start();
    served.tell(&json!({"model": "m", "block_size": 4}), 7, None, &[json!({"type": "cleared"})]);
    let refused = |route: &str, content_type: &str, body: &[u8], status: u16, kind: &str, words: &str| {
        let reply = served.kvtide.send("POST", route, content_type, body);
        let problem = problem(&reply, status, kind);
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    };
    let tokens = bytes_of(&[1, 2, 3, 4]);
    refused(
        "/v1/overlap",
        TOKENS,
        &tokens[..15],
        422,
        "impossible",
        "got 15 bytes, expected tokens of 4 bytes",
    );
    refused("/v1/overlap?model=other", TOKENS, &tokens, 404, "unknown-scope", "known scopes");
    for query in ["block_size=x", "ranks=7", "limit=-1", "freshness=perhaps"] {
        refused(
            &format!("/v1/overlap?{query}"),
            TOKENS,
            &tokens,
            400,
            "malformed",
            "expected a query string",
        );
    }
    let json = br#"{"token_ids": [1]}"#;
    refused("/v1/overlap?model=m", "application/json", json, 400, "malformed", "expected a query string");
    refused("/v1/overlap", MSGPACK, b"", 400, "malformed", "msgpack");
    refused("/v1/overlap", MSGPACK, b"\x81\xa9token_ids\xa6secret", 400, "malformed", "msgpack");
    refused("/v1/overlap", MSGPACK, b"\xdf\xff\xff\xff\xff", 400, "malformed", "msgpack");
    refused("/v1/overlap", MSGPACK, &b"\x91".repeat(100_000), 400, "malformed", "msgpack");
    assert_eq!(answer(&served, "/v1/overlap", TOKENS, &[])["prompt"]["tokens"], 0);
}

//! No span carries a token of a prompt, a hash, a tenant, an adapter or an access token, in whichever form.

use axum::http::StatusCode;
use kvtide::access::{NewToken, Role};
use kvtide_tests::Folder;
use serde_json::json;

use crate::collector::{Collector, Manner, send};

const NAME: &str = "canary-of-acme";
const TOKEN: u32 = 3_735_928_559;
const HASH: u64 = 0xc0ff_ee00_c0ff_ee11;

/// The name, and numbers in every form in which they could go out.
fn traces(secret: &str) -> Vec<Vec<u8>> {
    let varint = |mut number: u64| {
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        bytes.push(number.to_le_bytes()[0]);
        bytes
    };
    let texts = [
        "canary".to_owned(),
        secret.to_owned(),
        TOKEN.to_string(),
        format!("{TOKEN:x}"),
        HASH.to_string(),
        HASH.cast_signed().to_string(),
        format!("{HASH:x}"),
        format!("{HASH:X}"),
    ];
    let numbers = [
        TOKEN.to_le_bytes().to_vec(),
        TOKEN.to_be_bytes().to_vec(),
        HASH.to_le_bytes().to_vec(),
        HASH.to_be_bytes().to_vec(),
        varint(TOKEN.into()),
        varint(HASH),
    ];
    texts.into_iter().map(String::into_bytes).chain(numbers).collect()
}

#[test]
fn what_is_secret_is_in_no_span_and_no_span_is_in_the_log() {
    let folder = Folder::new();
    let all = [Role::Query, Role::Ingest, Role::Admin, Role::Metrics];
    let access = NewToken::new(all.into(), ["*".to_owned()].into()).unwrap();
    let (secret, tokens) = (access.token, folder.write("tokens", format!("{}\n", access.line)));
    let collector = Collector::start(Manner::Answer(StatusCode::OK));
    let kvtide = collector.traced(&["--tokens", &tokens], "trace");
    let authorization = format!("Bearer {secret}");
    let headers = [
        ("content-type", "application/json"),
        ("authorization", authorization.as_str()),
        ("user-agent", NAME),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("baggage", "tenant=canary-of-acme"),
    ];
    let scope = json!({"model": "m", "block_size": 2, "adapter": NAME, "tenant": NAME});
    let blocks = json!([{"sequence_hash": HASH, "block_hash": HASH}]);
    let stored = json!([{"type": "stored", "blocks": blocks}]);
    let mut statuses = Vec::new();
    let mut ask = |method: &str, path: &str, body: String| {
        statuses.push(send(&kvtide, method, path, &headers, body.as_bytes()));
    };
    let told = json!({"scope": scope, "worker_id": 1, "events": stored});
    ask("POST", "/v1/events", told.to_string());
    ask("POST", "/v1/overlap", json!({"scope": scope, "token_ids": [TOKEN, 2]}).to_string());
    ask("POST", "/v1/overlap", json!({"scope": {"model": "m"}, "block_hashes": [HASH]}).to_string());
    ask("POST", "/v1/overlap", json!({"scope": {"model": NAME}, "token_ids": [TOKEN]}).to_string());
    ask("POST", "/v1/overlap", json!({"scope": NAME, "token_ids": HASH}).to_string());
    ask("POST", &format!("/v1/overlap?tenant={NAME}&limit={TOKEN}"), "{}".to_owned());
    ask("GET", &format!("/v1/{NAME}/{TOKEN}?{HASH}"), String::new());
    ask("DELETE", &format!("/v1/workers/{HASH}"), String::new());
    ask("CANARY", "/v1/overlap", String::new());
    ask("POST", "/query", json!({"model_name": NAME, "token_ids": [TOKEN], "cache_salt": NAME}).to_string());
    assert_eq!(statuses, [200, 200, 200, 404, 400, 400, 404, 404, 405, 404]);
    for line in kvtide.terminate() {
        assert!(!line.contains("otel.") && !line.contains("http.route"), "{line}");
    }
    let bodies = collector.bodies();
    let all: Vec<u8> = bodies.iter().flat_map(|body| body.to_vec()).collect();
    let find = |wanted: &[u8]| all.windows(wanted.len()).any(|part| part == wanted);
    assert!(find(b"/v1/overlap") && find(b"kvtide.prompt_blocks"), "{bodies:?}");
    for trace in traces(&secret) {
        assert!(
            !find(&trace),
            "{:?} in {:?}",
            String::from_utf8_lossy(&trace),
            String::from_utf8_lossy(&all)
        );
    }
}

//! A running service, and how tests talk to it.

use std::collections::BTreeMap;

use kvtide_radix::Rank;
use kvtide_tests::{
    Folder,
    harness::{Kvtide, Reply},
};
use serde_json::{Value, json};

/// A service of one test's own.
pub(crate) struct Served {
    pub(crate) kvtide: Kvtide,
}

impl Served {
    pub(crate) fn start() -> Served {
        Served { kvtide: Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &["serve"]) }
    }

    /// One that is configured by a file.
    pub(crate) fn configured(text: &str) -> Served {
        let folder = Folder::new();
        let arguments = ["serve", "--config", &folder.write("kvtide.toml", text)];
        Served { kvtide: Kvtide::start(env!("CARGO_BIN_EXE_kvtide"), &arguments) }
    }

    pub(crate) fn post(&self, route: &str, body: &Value) -> Reply {
        self.kvtide.send("POST", route, "application/json", body.to_string().as_bytes())
    }

    /// The answer to what must succeed.
    pub(crate) fn ask(&self, route: &str, body: &Value) -> Value {
        let reply = self.post(route, body);
        assert_eq!((reply.status, reply.content_type.as_str()), (200, "application/json"), "{}", reply.body);
        serde_json::from_str(&reply.body).unwrap()
    }

    pub(crate) fn overlap(&self, body: &Value) -> Value {
        self.ask("/v1/overlap", body)
    }

    /// Hands in events of one worker's rank 0. Without a `first_event_id` they have no numbers.
    pub(crate) fn tell(
        &self,
        scope: &Value,
        worker_id: u64,
        first_event_id: Option<u64>,
        events: &[Value],
    ) -> Value {
        let mut body = json!({"scope": scope, "worker_id": worker_id, "events": events});
        if let Some(id) = first_event_id {
            body["first_event_id"] = json!(id);
        }
        self.ask("/v1/events", &body)
    }

    /// What must be refused, with that status and type.
    pub(crate) fn refused(&self, route: &str, body: &Value, status: u16, kind: &str) -> Value {
        problem(&self.post(route, body), status, kind)
    }

    pub(crate) fn get(&self, route: &str) -> Value {
        let (status, body) = self.kvtide.get(route);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// All ranks of all scopes.
    pub(crate) fn workers(&self) -> Vec<Value> {
        self.get("/v1/workers")["workers"].as_array().unwrap().clone()
    }

    /// The ranks, where there is one scope.
    pub(crate) fn ranks(&self) -> BTreeMap<Rank, Value> {
        self.workers().into_iter().map(|worker| (rank_of(&worker), worker)).collect()
    }

    /// Everything that may not change when something is refused: all that is known but its age.
    pub(crate) fn state(&self) -> Value {
        json!([self.get("/v1/scopes"), without_times(json!(self.workers()))])
    }
}

/// Asserts that a reply is a problem of that kind, in the form of RFC 9457.
pub(crate) fn problem(reply: &Reply, status: u16, kind: &str) -> Value {
    let problem: Value = serde_json::from_str(&reply.body).unwrap_or(Value::Null);
    let got = (reply.status, reply.content_type.as_str(), problem["type"].as_str());
    let kind = format!("urn:kvtide:problem:{kind}");
    assert_eq!(got, (status, "application/problem+json", Some(kind.as_str())), "{}", reply.body);
    assert_eq!(problem["status"], status, "{problem}");
    for member in ["title", "detail"] {
        assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {problem}");
    }
    problem
}

pub(crate) fn rank_of(value: &Value) -> Rank {
    let number = |name: &str| value[name].as_u64().unwrap();
    Rank { worker_id: number("worker_id"), dp_rank: u32::try_from(number("dp_rank")).unwrap() }
}

/// Reaches by tier, if any are known.
pub(crate) fn reach_of(answer: &Value) -> Option<[u64; 4]> {
    let reach = answer["reach_tokens"].as_object()?;
    Some(["gpu", "host", "disk", "external"].map(|tier| reach[tier].as_u64().unwrap()))
}

/// A copy in which everything that passes by itself is null.
pub(crate) fn without_times(mut value: Value) -> Value {
    fn clear(value: &mut Value) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    if ["collected_at_ms", "took_us", "last_event_age_ms"].contains(&name.as_str()) {
                        *member = Value::Null;
                    }
                    clear(member);
                }
            }
            Value::Array(elements) => elements.iter_mut().for_each(clear),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    clear(&mut value);
    value
}

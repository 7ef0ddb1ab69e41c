//! The page for people: what it reads of the other routes' answers is there, and it takes nothing from elsewhere.

use serde_json::{Value, json};

use crate::served::Served;

/// The members that the page reads of something by that name, as `fresh.lag_ms`.
fn members<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let pattern = format!("{name}.");
    let behind = page.match_indices(&pattern).map(|(at, found)| (at, &page[at + found.len()..]));
    let whole = behind
        .filter(|&(at, _)| !page[..at].ends_with(|before: char| before.is_alphanumeric() || before == '.'));
    let member = |rest: &'a str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
    whole.map(|(_, rest)| member(rest)).collect()
}

#[test]
fn what_the_page_reads_is_there() {
    let served = Served::start();
    let scope = json!({"model": "m", "block_size": 4});
    served.tell(&scope, 7, Some(1), &[json!({"type": "cleared"})]);
    let page = served.kvtide.send("GET", "/", "", b"");
    assert_eq!((page.status, page.content_type.as_str()), (200, "text/html; charset=utf-8"));
    let worker = served.workers().remove(0);
    let scope = served.get("/v1/scopes")["scopes"][0].clone();
    // Of the first, `reason` is left out where there is none; `feedback` is null before any.
    let rows: [(&str, &Value, &[&str]); 4] = [
        ("worker", &worker, &["reason"]),
        ("fresh", &worker["freshness"], &[]),
        ("held", &worker["held_blocks"], &[]),
        ("scope", &scope, &[]),
    ];
    for (name, value, absent) in rows {
        let read = members(&page.body, name);
        assert!(read.len() >= 4, "{name}: {read:?}");
        for member in read {
            assert!(value.get(member).is_some() || absent.contains(&member), "{name}.{member}: {value}");
        }
    }
    for part in members(&page.body, "scope.scope") {
        assert!(scope["scope"].get(part).is_some(), "scope.scope.{part}");
    }
}

#[test]
fn the_page_takes_nothing_from_elsewhere() {
    let page = Served::start().kvtide.get("/").1;
    for foreign in ["http://", "https://", "//cdn", "src=", "innerHTML"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

//! `kvtide token new`: what it prints is a token, and a line that makes it known.

use kvtide::access::{Role, Tokens};
use serde_json::Value;

use crate::finished::kvtide;

fn new(arguments: &[&str]) -> (String, String) {
    let finished = kvtide(&[&["token", "new", "--json"], arguments].concat());
    assert_eq!((finished.code, finished.error.as_str()), (0, ""));
    let printed: Value = serde_json::from_str(&finished.out).unwrap();
    assert_eq!(printed.as_object().unwrap().len(), 2, "{printed}");
    let part = |name: &str| printed[name].as_str().unwrap().to_owned();
    (part("token"), part("line"))
}

#[test]
fn the_line_makes_the_token_known_and_does_not_contain_it() {
    let (token, line) = new(&["--roles", "query,metrics", "--tenants", "a,b"]);
    assert!(token.starts_with("kvt_") && token.len() == 68, "{token}");
    assert!(!line.contains(&token[4..]));
    let tokens = Tokens::parse(&format!("# of the router\n\n{line}\n")).unwrap();
    let grant = tokens.grant(token.as_bytes()).unwrap();
    assert_eq!(
        [Role::Query, Role::Metrics, Role::Ingest, Role::Admin].map(|role| grant.has(role)),
        [true, true, false, false]
    );
    assert_eq!(
        [Some("a"), Some("b"), Some("c"), None].map(|tenant| grant.sees(tenant)),
        [true, true, false, false]
    );
    assert!(!grant.sees_hashes());
    for other in ["", "kvt_", &token[..67], &format!("{token}0"), &token.to_uppercase()] {
        assert!(tokens.grant(other.as_bytes()).is_none(), "{other}");
    }
}

#[test]
fn no_two_are_alike() {
    let tokens: std::collections::BTreeSet<_> = (0..20).map(|_| new(&["--roles", "query"]).0).collect();
    assert_eq!(tokens.len(), 20);
}

#[test]
fn for_people_it_is_printed_once_with_its_line() {
    let finished = kvtide(&["token", "new", "--roles", "admin", "--tenants", "*"]);
    let token = finished.out.lines().find(|line| line.starts_with("kvt_")).unwrap();
    let line = finished.out.lines().find(|line| line.starts_with('{')).unwrap();
    let grant = Tokens::parse(line).unwrap().grant(token.as_bytes()).unwrap();
    assert!(grant.sees_hashes() && grant.sees(None) && grant.sees(Some("anyone")) && grant.has(Role::Ingest));
}

#[test]
fn what_cannot_be_is_refused() {
    kvtide(&["token", "new"]).failed(2, &["--roles"]);
    kvtide(&["token", "new", "--roles", "reader"]).failed(2, &["reader", "query, ingest, metrics, admin"]);
    kvtide(&["token", "new", "--roles", "query", "--tenants", "a,*"]).failed(1, &["* alone for all"]);
    kvtide(&["token", "new", "--roles", "query", "--tenants", "a,,b"]).failed(1, &["names of tenants"]);
}

#[test]
fn a_token_that_names_no_tenant_uses_hashes_where_none_names_one() {
    let (token, line) = new(&["--roles", "query"]);
    let (all, all_line) = new(&["--roles", "query", "--tenants", "*"]);
    let (_, one_line) = new(&["--roles", "query", "--tenants", "acme"]);
    let grants = |lines: &[&str]| {
        let tokens = Tokens::parse(&lines.join("\n")).unwrap();
        [&token, &all].map(|token| tokens.grant(token.as_bytes()).map(|grant| grant.sees_hashes()))
    };
    assert_eq!(grants(&[&line, &all_line]), [Some(true), Some(true)]);
    assert_eq!(grants(&[&line, &all_line, &one_line]), [Some(false), Some(true)]);
}

#[test]
fn files_that_are_none_are_refused_without_saying_what_is_there() {
    let (_, line) = new(&["--roles", "query"]);
    let hash = &line[11..75];
    let with = |from: &str, to: &str| line.replace(from, to);
    let rows = [
        ("canary".to_owned(), "an object with sha256, roles"),
        (with("\"sha256\"", "\"canary\""), "an object with sha256"),
        (with("query", "canary"), "an object with sha256, roles (query, ingest, metrics, admin)"),
        (with("\"query\"", ""), "one role or more"),
        (with(hash, &hash[1..]), "sha256 as 64 hexadecimal digits"),
        (with(hash, &format!("g{}", &hash[1..])), "sha256 as 64 hexadecimal digits"),
        (with(hash, &format!("{hash}00")), "sha256 as 64 hexadecimal digits"),
        (with("\"tenants\":[]", "\"tenants\":[\"canary\",\"*\"]"), "names of tenants, or * alone"),
        (with("}", ",\"canary\":1}"), "an object with sha256"),
        (format!("{line}\n{line}"), "line 3: expected a token that no line before it has"),
    ];
    for (text, expected) in rows {
        let error = Tokens::parse(&format!("# first\n{text}")).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.starts_with("line ") && !error.contains("canary") && !error.contains(hash), "{error}");
    }
}

//! Prompts with media, and EAGLE: what stands in a prompt beside its tokens, and how its blocks are keyed, decides what it reaches.

use kvtide_events::{BlockMedia, Hashing, sequence_hashes};
use kvtide_radix::Seed;
use serde_json::{Value, json};

use crate::served::{Served, reach_of};

const OVERLAP: &str = "/v1/overlap";
const IMAGE: u64 = 0xF00D_0000_0000_0001;
const OTHER_IMAGE: u64 = 7;
/// Four blocks of four tokens; the image stands for the tokens 5 to 9, in the second and third.
const TOKENS: [u32; 16] = [1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 6, 7, 8, 9, 10, 11];

fn scope() -> Value {
    json!({"model": "m", "block_size": 4})
}

/// Stores a prompt whose second and third block have the image.
fn store(served: &Served, hashing: Hashing, tenant: Option<&str>) {
    let image = || std::iter::once(IMAGE).collect();
    let media = [BlockMedia::default(), image(), image()];
    let hashes: Vec<_> = hashing.block_hashes(&TOKENS, &media, Seed::of(None, tenant)).collect();
    let names = sequence_hashes(hashes.iter().copied());
    let blocks: Vec<Value> = names
        .zip(&hashes)
        .map(|(name, hash)| json!({"sequence_hash": name.0, "block_hash": hash.0}))
        .collect();
    served.tell(&scope(), 7, Some(1), &[json!({"type": "stored", "blocks": blocks})]);
}

fn plain() -> Hashing {
    Hashing { block_size: 4, eagle: false }
}

/// The reach on the GPU of a prompt with these members beside its tokens.
fn reach(served: &Served, more: &Value) -> u64 {
    let mut body = json!({"token_ids": TOKENS});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    reach_of(&served.overlap(&body)["ranks"][0]).unwrap()[0]
}

/// One medium of a block.
fn block(mm_hash: u64) -> Value {
    json!({"mm_objects": [{"mm_hash": mm_hash, "offsets": [[0, 4]]}]})
}

#[test]
fn a_medium_is_a_part_of_the_blocks_that_it_stands_in() {
    let served = Served::start();
    store(&served, plain(), None);
    let image = |hash: u64, ranges: Value| json!({"mm_objects": [{"mm_hash": hash, "offsets": ranges}]});
    let rows = [
        (json!({}), 4),
        (json!({"block_mm_infos": []}), 4),
        (json!({"mm_objects": []}), 4),
        (json!({"block_mm_infos": [null, block(IMAGE), block(IMAGE)]}), 16),
        // As a negative number and as hexadecimal digits.
        (
            json!({"block_mm_infos": [null, block(IMAGE), {"mm_objects": [{"mm_hash": IMAGE.cast_signed()}]}]}),
            16,
        ),
        (
            json!({"block_mm_infos": [null, block(IMAGE), {"mm_objects": [{"mm_hash": format!("{IMAGE:x}")}]}]}),
            16,
        ),
        (json!({"block_mm_infos": [null, block(IMAGE), block(IMAGE), null, null, block(1)]}), 16),
        (json!({"block_mm_infos": [null, block(IMAGE)]}), 8),
        (json!({"block_mm_infos": [null, block(IMAGE), block(OTHER_IMAGE)]}), 8),
        (json!({"block_mm_infos": [block(IMAGE), block(IMAGE), block(IMAGE)]}), 0),
        (json!({"block_mm_infos": [null, block(IMAGE), block(IMAGE), block(OTHER_IMAGE)]}), 12),
        (image(IMAGE, json!([[5, 10]])), 16),
        (image(IMAGE, json!([[7, 9]])), 16),
        (image(IMAGE, json!([[4, 5], [5, 6], [11, 12]])), 16),
        (image(IMAGE, json!([[5, 8]])), 8),
        (image(IMAGE, json!([[5, 13]])), 12),
        (image(IMAGE, json!([[5, 5]])), 4),
        (image(IMAGE, json!([[3, 10]])), 0),
        (image(OTHER_IMAGE, json!([[5, 10]])), 4),
        // Behind the prompt's end.
        (
            json!({"mm_objects": [{"mm_hash": IMAGE, "offsets": [[5, 10]]}, {"mm_hash": 1, "offsets": [[16, u64::MAX]]}]}),
            16,
        ),
    ];
    for (more, expected) in rows {
        assert_eq!(reach(&served, &more), expected, "{more}");
    }
}

#[test]
fn media_and_tenants_are_kept_apart_together() {
    let served = Served::start();
    store(&served, plain(), Some("t"));
    let media = json!([null, block(IMAGE), block(IMAGE)]);
    for (scope, expected) in [(json!({"tenant": "t"}), 16), (json!({}), 0), (json!({"tenant": "u"}), 0)] {
        assert_eq!(reach(&served, &json!({"scope": scope, "block_mm_infos": media})), expected, "{scope}");
    }
}

#[test]
fn several_queries_have_media_of_their_own_and_msgpack_has_them_too() {
    let served = Served::start();
    store(&served, plain(), None);
    let with_image = json!({"token_ids": TOKENS, "block_mm_infos": [null, block(IMAGE), block(IMAGE)]});
    let body = json!({"queries": [{"token_ids": TOKENS}, with_image]});
    let answers = served.overlap(&body)["answers"].clone();
    let reaches = [0, 1].map(|index| reach_of(&answers[index]["ranks"][0]).unwrap()[0]);
    assert_eq!(reaches, [4, 16]);
    let packed = rmp_serde::to_vec_named(&with_image).unwrap();
    let reply = served.kvtide.send("POST", OVERLAP, "application/msgpack", &packed);
    let answer: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(reach_of(&answer["ranks"][0]).unwrap()[0], 16, "{answer}");
}

#[test]
fn whoever_states_another_key_than_the_scopes_is_told() {
    let configured = "[[stream]]\nworker_id = 9\nmodel = \"m\"\nblock_size = 4\neagle = ";
    for eagle in [false, true] {
        let served = Served::configured(&format!("{configured}{eagle}\n"));
        store(&served, Hashing { block_size: 4, eagle }, None);
        let media = json!([null, block(IMAGE), block(IMAGE)]);
        // Under EAGLE the last block is not complete without the token behind it.
        let all = if eagle { 12 } else { 16 };
        for more in [json!({"block_mm_infos": media}), json!({"block_mm_infos": media, "is_eagle": eagle})] {
            assert_eq!(reach(&served, &more), all, "{more}");
        }
        let hashes = json!({"block_hashes": [1], "is_eagle": eagle});
        assert_eq!(served.post(OVERLAP, &hashes).status, 200);
        for body in [
            json!({"token_ids": [1], "is_eagle": !eagle}),
            json!({"block_hashes": [1], "is_eagle": !eagle}),
            json!({"queries": [{"token_ids": [1]}, {"token_ids": [1], "is_eagle": !eagle}]}),
        ] {
            let problem = served.refused(OVERLAP, &body, 409, "other-hashing");
            assert_eq!((&problem["expected"], &problem["got"]), (&json!(eagle), &json!(!eagle)), "{problem}");
        }
    }
}

/// A body, what refuses it, and words of what is said.
type Row = (Value, u16, &'static str, &'static str);

fn refuse_all(rows: &[Row]) {
    let served = Served::start();
    store(&served, plain(), None);
    let before = served.state();
    for (body, status, kind, words) in rows {
        let problem = served.refused(OVERLAP, body, *status, kind);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{detail:?}; expected {words:?}");
        assert_eq!(served.state(), before);
    }
}

/// A prompt with one medium by tokens, with media by block, or with anything else.
fn by_tokens(object: &Value) -> Value {
    json!({"token_ids": TOKENS, "mm_objects": [object]})
}

fn by_block(block: &Value) -> Value {
    json!({"token_ids": TOKENS, "block_mm_infos": [block]})
}

#[test]
fn media_of_another_form_are_refused() {
    refuse_all(&[
        (by_tokens(&json!({"mm_hash": 1})), 400, "malformed", "missing field `offsets`"),
        (by_tokens(&json!({"offsets": []})), 400, "malformed", "missing field `mm_hash`"),
        (by_tokens(&json!(1)), 400, "malformed", "expected an object with mm_hash and offsets"),
        (by_tokens(&json!({"mm_hash": 1, "offsets": [[-1, 2]]})), 422, "impossible", "expected usize"),
        (
            by_tokens(&json!({"mm_hash": 1, "offsets": [[3, 2]]})),
            422,
            "impossible",
            "3 to 2, expected an end",
        ),
        (by_block(&json!(1)), 400, "malformed", "expected null or an object with mm_objects"),
        (by_block(&json!({})), 400, "malformed", "missing field `mm_objects`"),
        (by_block(&json!({"mm_objects": [{}]})), 400, "malformed", "missing field `mm_hash`"),
        (by_block(&json!({"mm_objects": [{"mm_hash": "x"}]})), 422, "impossible", "hexadecimal digits"),
        (json!({"token_ids": [], "mm_objects": 1}), 400, "malformed", "expected a sequence"),
        (json!({"token_ids": [], "is_eagle": 1}), 400, "malformed", "expected a boolean"),
    ]);
}

#[test]
fn media_that_cannot_be_are_refused() {
    let both = json!({"token_ids": [], "block_mm_infos": [], "mm_objects": []});
    let hashed = |media: &str| json!({"block_hashes": [1], media: []});
    let many = |ranges: usize| by_tokens(&json!({"mm_hash": 1, "offsets": vec![[0, 16]; ranges]}));
    let limit = "the limit query_media of 4194304";
    refuse_all(&[
        (both, 422, "impossible", "expected one of them"),
        (hashed("mm_objects"), 422, "impossible", "expected these to be in the hashes"),
        (hashed("block_mm_infos"), 422, "impossible", "expected these to be in the hashes"),
        (json!({"block_mm_infos": []}), 422, "impossible", "got neither"),
        (json!({"queries": [], "is_eagle": false}), 422, "impossible", "got queries and more"),
        (json!({"queries": [], "mm_objects": []}), 422, "impossible", "got queries and more"),
        (json!({"queries": [], "block_mm_infos": []}), 422, "impossible", "got queries and more"),
        // Four blocks each.
        (many((1 << 20) + 1), 413, "too-large", limit),
        (json!({"queries": [many(600_000), many(600_000)]}), 413, "too-large", limit),
        (
            by_block(&json!({"mm_objects": vec![json!({"mm_hash": 1}); (4 << 20) + 1]})),
            413,
            "too-large",
            limit,
        ),
    ]);
}

"""A kvtide in the place of Dynamo's standalone indexer: the same requests, the same answers, and each difference shown."""

import time

import pytest
from conftest import BLOCK_SIZE, free_port, prompt, removed, wait_for
from dropin import Publisher, signed, stored_tokens
from dynamo._core import compute_block_hash_for_seq


@pytest.fixture
def publisher():
    """Starts publishers, which end with the test."""
    started = []

    def start(worker_id, **options):
        started.append(Publisher(worker_id, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def stored(first, last=None, parent=None, names=None, **more):
    """Blocks of which number n has the tokens n, and by default the name n and the parent in front."""
    numbers = [*range(first, (last or first) + 1)]
    parent = parent or (first - 1 if first > 1 else None)
    return stored_tokens(names or numbers, parent, prompt(*numbers), **more)


def tiers(both, *numbers):
    """Of a prompt's instances by Dynamo and by kvtide: what they hold on the GPU, in host memory and on disk."""
    short = lambda one: (one["gpu"], one["cpu"], one["disk"])
    return tuple({int(w): short(one) for w, one in answer["instances"].items()} for answer in both.query(prompt(*numbers)))


# What a client may say, and how both must take it. `base` is changed by each row; where kvtide's status differs, why.
REGISTER = {"instance_id": 7, "endpoint": "tcp://127.0.0.1:1", "model_name": "m", "block_size": 4}
QUERY = {"token_ids": [1, 2, 3, 4], "model_name": "m"}
BY_HASH = {"block_hashes": [1, -2], "model_name": "m"}
UNREGISTER = {"instance_id": 7, "model_name": "m"}
REQUESTS = [
    *(
        ("/register", {**REGISTER, **change})
        for change in [
            {},
            {},
            {"dp_rank": 1},
            {"dp_rank": 1},
            {"dp_rank": 2, "block_size": 8},
            {"model_name": "n"},
            {"routing_group": "g"},
            {"instance_id": 8, "routing_group": "g", "block_size": 8},
            {"instance_id": 9, "tenant_id": "default"},
            {"instance_id": 10, "additional_salt": "s"},
            {"instance_id": 11, "additionalsalt": "s", "extra": 1},
            {"instance_id": 12, "replay_endpoint": "tcp://127.0.0.1:2", "dp_rank": None},
            {"instance_id": 13, "endpoint": "tcp://*:1"},
            {"instance_id": 14, "endpoint": "tcp://[::1]:1"},
            {"instance_id": 2**64 - 1, "endpoint": "tcp://a.invalid:1"},
            {"instance_id": 2**64},
            {"instance_id": -1},
            {"instance_id": "7"},
            {"instance_id": 1.5},
            {"instance_id": 15, "endpoint": "127.0.0.1:1"},
            {"instance_id": 15, "endpoint": "http://127.0.0.1:1"},
            {"instance_id": 15, "endpoint": "tcp://"},
            {"instance_id": 15, "endpoint": "tcp://a"},
            {"instance_id": 15, "endpoint": "tcp://:1"},
            {"instance_id": 15, "endpoint": "tcp://::1:1"},
            {"instance_id": 15, "endpoint": "tcp://[::1:1"},
            {"instance_id": 15, "endpoint": "tcp://a:99999"},
            {"instance_id": 15, "endpoint": 1},
            {"instance_id": 15, "replay_endpoint": "tcp://a"},
            {"instance_id": 15, "tenant_id": None},
            {"instance_id": 15, "routing_group": None},
            {"instance_id": 15, "dp_rank": -1},
            {"instance_id": 15, "block_size": -1},
            {"instance_id": 15, "model_name": None},
        ]
    ),
    *(
        ("/query", {**QUERY, **change})
        for change in [
            {},
            {"token_ids": []},
            {"model_name": "unknown"},
            {"routing_group": "g"},
            {"routing_group": "unknown"},
            {"tenant_id": "default"},
            {"lora_name": "a", "cache_salt": "s"},
            {"lora_name": None, "cache_salt": None},
            {"extra": 1},
            {"token_ids": [2**32 - 1]},
            {"token_ids": [2**32]},
            {"token_ids": [-1]},
            {"token_ids": [1.0]},
            {"token_ids": ["1"]},
            {"token_ids": "1"},
            {"token_ids": None},
            {"model_name": 1},
            {"routing_group": None},
            {"tenant_id": 5},
            {"lora_name": 5},
        ]
    ),
    *(
        ("/query_by_hash", {**BY_HASH, **change})
        for change in [
            {},
            {"block_hashes": []},
            {"block_hashes": [2**63 - 1, -(2**63)]},
            {"block_hashes": [2**63]},
            {"block_hashes": ["1"]},
            {"cache_salt": None},
            {"cache_salt": ""},
            {"cache_salt": "s"},
            {"lora_name": "a"},
            {"model_name": "unknown"},
            {"routing_group": "g"},
        ]
    ),
    *(
        ("/unregister", {**UNREGISTER, **change})
        for change in [
            {"model_name": "n"},
            {"routing_group": "g"},
            {"instance_id": 999},
            {"instance_id": "7"},
            {"dp_rank": 5, "routing_group": "default"},
            {"dp_rank": 1, "routing_group": "default"},
            {"dp_rank": 1, "routing_group": "default"},
            {"dp_rank": 0, "routing_group": "default"},
            {"dp_rank": 0, "routing_group": "default"},
            {"instance_id": 8, "routing_group": "g"},
            {"instance_id": 8, "routing_group": "g"},
        ]
    ),
    ("/query", {**QUERY, "routing_group": "g"}),
    ("/query", QUERY),
]
BODIES = [b"", b"{", b"nope", b"[]", b"{}", b"null", b"1", b"\xff", b'{"a": 1} x', b'{"model_name": "\xff"}']
ROUTES = ["/register", "/unregister", "/query", "/query_by_hash"]


def test_statuses_and_errors_are_dynamos(both):
    for route, body in REQUESTS:
        (status, dynamo), (got, kvtide) = both.ask("POST", route, body)
        assert got == status, (route, body, dynamo, kvtide)
        if status in (404, 409) or "cache_salt" in body:
            assert kvtide == dynamo, (route, body)
        if status >= 400:
            assert set(kvtide) == {"error"}, (route, body, kvtide)
    for route in ROUTES:
        for body in BODIES:
            (status, _), (got, kvtide) = both.ask("POST", route, body)
            assert (got, set(kvtide)) == (status, {"error"}), (route, body, status, kvtide)
        for content_type in [None, "text/plain", "application/x-www-form-urlencoded"]:
            (status, _), (got, _) = both.ask("POST", route, {}, content_type=content_type)
            assert got == status == 415, (route, content_type)
        for content_type in ["application/json; charset=utf-8", "application/some+json", "APPLICATION/JSON"]:
            (status, _), (got, _) = both.ask("POST", route, {}, content_type=content_type)
            assert got == status == 422, (route, content_type)
        (status, _), (got, _) = both.ask("GET", route)
        assert got == status == 405, route
        wire = b'{"token_ids": [' + b"0," * (34 << 20) + b"0]}"
        (status, _), (got, _) = both.ask("POST", route, wire)
        # Whoever hangs up before the body is read has no status.
        assert {status, got} <= {413, None}, route
    for path in ["/health", "/workers?model_name=n", "/workers?routing_group=g&model_name=m", "/workers?extra=1", "/dump"]:
        (status, _), (got, _) = both.ask("GET", path)
        assert got == status == 200, path
    assert both.ask("GET", "/health")[0] == both.ask("GET", "/health")[1] == (200, "")
    (status, _), (got, kvtide) = both.ask("GET", "/workers?model_name=a&model_name=b")
    assert (got, set(kvtide)) == (status, {"error"}) == (400, {"error"})


def test_what_is_known_of_workers_is_told_in_the_same_words(both, publisher):
    one, two, other = publisher(7), publisher(7, dp_rank=1), publisher(9)
    both.register(one, two)
    both.register(other, routing_group="g")
    for path in ["/workers", "/workers?routing_group=g", "/workers?model_name=m&routing_group=default", "/workers?model_name=n"]:
        dynamo, kvtide = (sorted(server.get(path), key=lambda one: one["instance_id"]) for server in both.servers)
        assert dynamo == kvtide, path


def test_routing_groups_are_answered_apart(both, publisher):
    one, two = publisher(7), publisher(8)
    both.register(one)
    both.register(two, routing_group="g")
    one.publish(stored(1, 2))
    two.publish(stored(1, 3))
    both.catch_up(one)
    both.wait_for_mark(two.mark(), routing_group="g")
    for group, worker, reach in [("default", "7", 8), ("g", "8", 12)]:
        dynamo, kvtide = both.query(prompt(1, 2, 3), routing_group=group)
        assert dynamo == kvtide and kvtide["scores"] == {worker: {"0": reach}}
    dumps = [server.get("/dump") for server in both.servers]
    assert dumps[0].keys() == dumps[1].keys() == {"m:default", "m:g"}
    for dump in dumps:
        assert {event["worker_id"] for event in dump["m:g"]["events"]} == {8}
    # Over kvtide's own route they are one scope's, and each worker has its own reach.
    reaches = {rank["worker_id"]: rank["reach_tokens"]["gpu"] for rank in both.kvtide.kvtide.ask("/v1/overlap", {"token_ids": prompt(1, 2, 3)})["ranks"]}
    assert reaches == {7: 8, 8: 12}


def test_an_unregistered_instance_is_followed_no_more_and_leaves_nothing(both, publisher):
    one, two = publisher(7), publisher(8)
    both.register(one, two)
    one.publish(stored(1, 2))
    two.publish(stored(1, 2))
    both.catch_up(one, two)
    for server in both.servers:
        server.post("/unregister", instance_id=7, model_name="m")
    one.publish(stored(3))
    two.publish(stored(3))
    both.catch_up(two)
    dynamo, kvtide = both.query(prompt(1, 2, 3))
    assert dynamo == kvtide and kvtide["scores"] == {"8": {"0": 12}}
    for server in both.servers:
        server.post("/unregister", instance_id=8, model_name="m")
    (status, dynamo), (got, kvtide) = both.ask("POST", "/query", QUERY)
    assert (got, kvtide) == (status, dynamo) and status == 404
    assert both.kvtide.kvtide.ask("/v1/scopes") == {"scopes": []}
    # It may come back, as something else.
    again = publisher(7, block_size=8)
    both.register(again)
    again.publish(stored_tokens([1], None, [5] * 8, 8))
    both.catch_up(again)
    dynamo, kvtide = both.query([5] * 8)
    assert dynamo == kvtide and kvtide["scores"] == {"7": {"0": 8}}


def test_an_engine_is_asked_for_what_was_published_before(both, engine, ports):
    publisher = engine(ports)
    publisher.publish(stored(1, 6))
    publisher.publish(removed(5))
    for server in both.servers:
        server.post(
            "/register",
            instance_id=7,
            model_name="m",
            block_size=BLOCK_SIZE,
            endpoint=f"tcp://127.0.0.1:{ports[0]}",
            replay_endpoint=f"tcp://127.0.0.1:{ports[1]}",
        )
    held = {"7": {"0": 16}}
    wait_for("what was before", lambda: both.kvtide.query(prompt(*range(1, 7)))["scores"] == held)
    assert both.dynamo.query(prompt(*range(1, 7)))["scores"] == {}, "it asks with the next batch only"
    time.sleep(1)
    publisher.publish(stored(10))
    wait_for("what was before", lambda: both.dynamo.query(prompt(*range(1, 7)))["scores"] == held)
    assert both.kvtide.kvtide.wait_for_event((7, 0), 2, knowledge="complete")


# What Dynamo answers differently, and why kvtide does not follow it.


def test_credit_is_not_lent_to_a_rank_that_is_as_many_as_the_holders_behind(both, publisher):
    one, two = publisher(1), publisher(2)
    both.register(one, two)
    one.publish(stored(1, 5))
    one.publish(stored(6, parent=3))
    both.catch_up(one)
    two.publish(stored(1, 3))
    both.catch_up(two)
    one.publish(removed(2))
    both.catch_up(one)
    dynamo, kvtide = tiers(both, 1, 2, 3, 4, 5)
    assert kvtide == {1: (4, 4, 4), 2: (12, 12, 12)}
    assert dynamo[2] == (20, 20, 20), "blocks that it never held"


def test_two_ranks_may_name_the_same_content_differently(both, publisher):
    one, two = publisher(1), publisher(2)
    both.register(one, two)
    one.publish(stored(1, 3))
    both.catch_up(one)
    two.publish(stored(1, 3, names=[11, 12, 13]))
    two.publish(removed(11, 12, 13))
    both.catch_up(two)
    dynamo, kvtide = tiers(both, 1, 2, 3)
    assert kvtide == {1: (12, 12, 12)}
    assert dynamo[2] == (12, 12, 12), "what it has removed"


def test_an_event_of_an_unknown_type_costs_nobody_the_rest_of_its_batch(both, publisher):
    one = publisher(1)
    both.register(one)
    one.publish(stored(1), {"type": "BlockPondered", "block_hashes": [1]}, stored(2))
    both.catch_up(one)
    dynamo, kvtide = tiers(both, 1, 2)
    assert kvtide == {1: (8, 8, 8)}
    assert dynamo == {}


def test_tiers_may_follow_each_other_in_any_order(both, publisher):
    one = publisher(1)
    both.register(one)
    one.publish(stored(1, 6), stored(3, 4, medium="DISK"), stored(5, 6, medium="CPU"), removed(3, 4, 5, 6))
    both.catch_up(one)
    dynamo, kvtide = tiers(both, 1, 2, 3, 4, 5, 6)
    assert kvtide == {1: (8, 8, 24)}
    assert dynamo == {1: (8, 8, 16)}, "the host's blocks behind those on disk are lost"


def test_a_block_that_was_never_on_the_gpu_is_not_known_by_its_name_alone(both, publisher):
    """An engine's stores in lower tiers say nothing of salts, so that what they hold is not known before the GPU's say it."""
    one = publisher(1)
    both.register(one)
    one.publish(stored(1, 2, medium="CPU"))
    both.catch_up(one)
    assert tiers(both, 1, 2) == ({1: (0, 8, 8)}, {})
    one.publish(stored(1, 2))
    one.publish(removed(1, 2))
    both.catch_up(one)
    assert tiers(both, 1, 2) == ({1: (0, 8, 8)}, {1: (0, 8, 8)})


def test_what_lies_behind_a_removed_block_stays_held(both, publisher):
    one = publisher(1)
    both.register(one)
    one.publish(stored(1, 5))
    one.publish(removed(3))
    one.publish(stored(3))
    both.catch_up(one)
    dynamo, kvtide = tiers(both, 1, 2, 3, 4, 5)
    assert kvtide == {1: (20, 20, 20)}
    assert dynamo == {1: (12, 12, 12)}


def test_a_block_that_is_announced_twice_is_held_until_it_is_removed_twice(both, publisher):
    one = publisher(1)
    both.register(one)
    one.publish(stored(1), stored(1))
    one.publish(removed(1))
    both.catch_up(one)
    dynamo, kvtide = tiers(both, 1)
    assert kvtide == {1: (4, 4, 4)}, "vLLM announces each physical copy"
    assert dynamo == {}


def test_a_store_whose_parent_is_not_known_yet_waits_for_it(both, publisher):
    one = publisher(1)
    both.register(one)
    one.publish(stored(2))
    one.publish(stored(1))
    both.catch_up(one)
    dynamo, kvtide = tiers(both, 1, 2)
    assert kvtide == {1: (8, 8, 8)}
    assert dynamo == {1: (4, 4, 4)}


def test_a_restarted_engine_is_followed_and_nothing_of_its_old_life_is_left(both, publisher):
    port = free_port()
    one = publisher(1, port=port)
    both.register(one)
    one.publish(stored(1, 5))
    one.publish(stored(6))
    both.catch_up(one)
    one.close()
    time.sleep(0.5)
    again = publisher(1, port=port)
    time.sleep(6)
    again.publish(stored(1))
    wait_for("the new life", lambda: both.kvtide.query(prompt(*range(1, 7)))["scores"] == {"1": {"0": 4}})
    assert both.dynamo.query(prompt(*range(1, 7)))["scores"] == {"1": {"0": 24}}, "until someone registers it again"


def test_a_salt_is_read_from_the_engines_own_events(both, publisher):
    one = publisher(1)
    both.register(one)
    one.publish(stored(1, 2, extra_keys=[["tenant-a"], None]))
    both.catch_up(one)
    dynamo, kvtide = tiers(both, 1, 2)
    assert (dynamo, kvtide) == ({1: (8, 8, 8)}, {}), "another tenant's blocks, as if they had no salt"
    answers = both.query(prompt(1, 2), cache_salt="tenant-a")
    assert [answer["scores"] for answer in answers] == [{}, {"1": {"0": 8}}]


def test_a_tenant_that_would_be_ignored_is_refused(both, publisher):
    one = publisher(1)
    both.register(one)
    tenant = {"tenant_id": "acme"}
    for route, body in [
        ("/query", QUERY),
        ("/query_by_hash", BY_HASH),
        ("/register", {**REGISTER, "instance_id": 2}),
        ("/unregister", {**UNREGISTER, "instance_id": 1}),
    ]:
        (status, _), (got, kvtide) = both.ask("POST", route, {**body, **tenant})
        assert status in (200, 201) and got == 400, route
        assert "tenant_id" in kvtide["error"] and "acme" not in kvtide["error"], kvtide
    (status, _), (got, _) = both.ask("GET", "/workers?tenant_id=acme")
    assert (status, got) == (200, 400)
    assert [one["instance_id"] for one in both.kvtide.get("/workers")] == [1], "nothing has changed"


def test_one_rank_of_an_instance_may_go_without_its_routing_group_being_said(both, publisher):
    one, two = publisher(1), publisher(1, dp_rank=1)
    both.register(one, two)
    for server in both.servers:
        server.post("/unregister", instance_id=1, model_name="m", dp_rank=1)
    dynamo, kvtide = (server.get("/workers") for server in both.servers)
    assert [*kvtide[0]["listeners"]] == ["0"]
    assert dynamo == [], "the whole instance"


def test_a_registered_rank_counts_and_not_what_batches_say(both, publisher):
    one = publisher(1, dp_rank=0)
    both.register(one, dp_rank=1)
    one.publish(stored(1))
    both.catch_up(one)
    dynamo, kvtide = both.query(prompt(1))
    assert (dynamo["scores"], kvtide["scores"]) == ({"1": {"0": 4}}, {"1": {"1": 4}})


def test_media_are_a_part_of_a_prompt(both, publisher):
    """Dynamo's indexer reads a medium from an engine's events only where its own front end has marked it, and of a prompt
    never; its selection service knows the members that kvtide takes."""
    one = publisher(1)
    both.register(one)
    one.publish(stored(1, 3, extra_keys=[None, [("0123456789abcdef" * 4, 0)], None]))
    both.catch_up(one)
    infos = [None, {"mm_objects": [{"mm_hash": 0x0123456789ABCDEF, "offsets": [[0, 4]]}]}]
    tokens = prompt(1, 2, 3)
    rows = [
        {"block_mm_infos": infos},
        {"mm_routing_info": {"routing_token_ids": tokens, "block_mm_infos": infos}},
        {"mm_routing_info": {"routing_token_ids": [], "block_mm_infos": []}, "block_mm_infos": infos},
    ]
    for more in rows:
        assert both.kvtide.query(tokens, **more)["scores"] == {"1": {"0": 12}}, more
    hashes = signed(compute_block_hash_for_seq(tokens, BLOCK_SIZE, block_mm_infos=infos))
    assert both.kvtide.post("/query_by_hash", block_hashes=hashes, model_name="m")["scores"] == {"1": {"0": 12}}
    dynamo, kvtide = both.query(tokens)
    assert kvtide["scores"] == {"1": {"0": 4}}
    assert dynamo["scores"] == {"1": {"0": 12}}, "another picture's blocks"


def test_what_cannot_work_is_refused_at_once(both):
    rows = [
        ({"block_size": 0}, "block_size: expected 1 token or more"),
        ({"endpoint": "ipc:///tmp/engine"}, "tcp://HOST:PORT"),
        ({"endpoint": "inproc://engine"}, "tcp://HOST:PORT"),
    ]
    for change, words in rows:
        (status, _), (got, kvtide) = both.ask("POST", "/register", {**REGISTER, "model_name": "o", **change})
        assert (status, got) in [(201, 400), (409, 400)] and words in kvtide["error"], (change, kvtide)
    assert both.kvtide.get("/workers") == []


def test_a_listener_is_active_once_there_is_an_engine(both, publisher):
    port = free_port()
    for server in both.servers:
        server.post("/register", **{**REGISTER, "endpoint": f"tcp://127.0.0.1:{port}"})
    status = lambda server: server.get("/workers")[0]["status"]
    wait_for("Dynamo's", lambda: status(both.dynamo) == "active")
    time.sleep(1)
    assert status(both.kvtide) == "pending"
    one = publisher(7, port=port)
    wait_for("a connection", lambda: status(both.kvtide) == "active")
    one.close()
    wait_for("its end", lambda: status(both.kvtide) == "pending")

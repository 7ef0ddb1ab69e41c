"""Dynamo's own publisher on a real bus; kvtide answers for token ids, which it hashes itself."""

import time

from conftest import wait_until_saved

PROMPT = list(range(100, 116))
NAMES = [11, -12, 13, 14]


def test_what_dynamo_publishes_is_reached_by_tokens(kvtide, publish):
    worker = publish(7)
    worker.stored(PROMPT[:8], NAMES[:2])
    worker.stored(PROMPT[8:], NAMES[2:], parent=NAMES[1])
    kvtide.wait_for_event((7, 0), 2)
    assert kvtide.reach(PROMPT, (7, 0)) == 16
    assert kvtide.reach(PROMPT[:11], (7, 0)) == 8
    assert kvtide.reach([*PROMPT[:8], 1, 2, 3, 4], (7, 0)) == 8
    assert kvtide.reach(PROMPT[4:], (7, 0)) == 0

    worker.removed([NAMES[1]])
    kvtide.wait_for_event((7, 0), 3)
    assert kvtide.reach(PROMPT, (7, 0)) == 4
    worker.stored(PROMPT[4:8], NAMES[1:2], parent=NAMES[0])
    kvtide.wait_for_event((7, 0), 4)
    assert kvtide.reach(PROMPT, (7, 0)) == 16, "what lies behind a hole stays held"
    state = kvtide.workers()[7, 0]
    assert state["knowledge"] == "complete"
    assert 0 <= state["freshness"]["lag_ms"] < 5000


def test_adapters_and_salts_are_worlds_of_their_own(kvtide, publish):
    worker = publish(7)
    worker.stored(PROMPT[:4], [21])
    worker.stored(PROMPT[:8], [31, 32], lora_name="sql-adapter")
    worker.stored(PROMPT[:12], [41, 42, 43], cache_salt="tenant-a")
    worker.stored(PROMPT, [51, 52, 53, 54], lora_name="sql-adapter", cache_salt="tenant-a")
    kvtide.wait_for_event((7, 0), 4)
    assert kvtide.reach(PROMPT, (7, 0)) == 4
    assert kvtide.reach(PROMPT, (7, 0), adapter="sql-adapter") == 8
    assert kvtide.reach(PROMPT, (7, 0), tenant="tenant-a") == 12
    assert kvtide.reach(PROMPT, (7, 0), adapter="sql-adapter", tenant="tenant-a") == 16
    assert kvtide.reach(PROMPT, (7, 0), adapter="another") == 0


def test_ranks_of_one_worker_are_counted_apart(kvtide, publish):
    first, second = publish(7, dp_rank=0), publish(7, dp_rank=1)
    first.stored(PROMPT, NAMES)
    second.stored(PROMPT[:8], NAMES[:2])
    kvtide.wait_for_event((7, 0), 1)
    kvtide.wait_for_event((7, 1), 1)
    assert (kvtide.reach(PROMPT, (7, 0)), kvtide.reach(PROMPT, (7, 1))) == (16, 8)


def test_a_restarted_publisher_is_a_new_life(kvtide, publish):
    worker = publish(7)
    worker.stored(PROMPT, NAMES)
    kvtide.wait_for_event((7, 0), 1)
    assert kvtide.reach(PROMPT, (7, 0)) == 16
    worker.stop()
    again = publish(7)
    again.stored(PROMPT[:4], NAMES[:1])
    kvtide.wait_for_event((7, 0), 1, generation=2)
    assert kvtide.reach(PROMPT, (7, 0)) == 4, "nothing of the old life is left"
    assert kvtide.workers()[7, 0]["knowledge"] == "complete"


def test_a_killed_kvtide_goes_on_from_its_snapshot(nats_url, publish, start_kvtide, tmp_path):
    snapshot = tmp_path / "kvtide.snapshot"
    config = tmp_path / "kvtide.toml"
    config.write_text(f'snapshot = {{ path = "{snapshot}", every_s = 1 }}\n')
    kvtide = start_kvtide(nats_url, config)
    worker, idle = publish(7), publish(8)
    worker.stored(PROMPT[:8], NAMES[:2])
    idle.stored(PROMPT[:4], NAMES[:1])
    kvtide.wait_for_event((7, 0), 1)
    kvtide.wait_for_event((8, 0), 1)
    wait_until_saved(snapshot)
    kvtide.stop()
    again = start_kvtide(nats_url, config)
    assert {worker["knowledge"] for worker in again.workers().values()} == {"recovering"}
    worker.stored(PROMPT[8:], NAMES[2:], parent=NAMES[1])
    again.wait_for_event((7, 0), 2, knowledge="complete")
    assert again.reach(PROMPT, (7, 0)) == 16
    assert again.workers()[8, 0]["knowledge"] == "recovering", "of which nothing has come"


def test_what_was_published_while_kvtide_was_down_is_a_hole(nats_url, publish, start_kvtide, tmp_path):
    snapshot = tmp_path / "kvtide.snapshot"
    config = tmp_path / "kvtide.toml"
    config.write_text(f'snapshot = {{ path = "{snapshot}", every_s = 1 }}\n')
    kvtide = start_kvtide(nats_url, config)
    worker = publish(7)
    worker.stored(PROMPT[:8], NAMES[:2])
    kvtide.wait_for_event((7, 0), 1)
    wait_until_saved(snapshot)
    kvtide.stop()
    worker.removed(NAMES[:1])
    time.sleep(1)
    again = start_kvtide(nats_url, config)
    worker.stored(PROMPT[:4], NAMES[:1])
    state = again.wait_for_event((7, 0), 3, knowledge="partial")
    assert state["freshness"]["missing_events"] == 1
    assert again.reach(PROMPT, (7, 0)) == 4

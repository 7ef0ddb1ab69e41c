"""kvtide-dynamo beside Dynamo's own workers: discovery in files, frames over a real bus, and the workers' own indexes."""

import signal
import time

from conftest import BLOCK_SIZE, wait_for
from fleet import GAP_S

LEASE_S = 15


def test_workers_are_known_by_discovery_and_what_they_hold_by_their_events(fleet):
    kvtide = fleet.kvtide()
    kvtide.wait_until_ready()
    assert kvtide.workers() == {}
    worker = fleet.worker()
    rank = (worker.id, 0)
    # Nothing has been published yet, and the worker's index says so.
    assert kvtide.wait_for_state(rank, "complete", 0)["held_blocks"]["gpu"] == 0
    worker.chain(1, 5)
    kvtide.wait_for_state(rank, "complete", 5)
    assert kvtide.blocks(9, rank) == 5
    worker.removed([4])
    kvtide.wait_for_state(rank, "complete", 6)
    assert kvtide.blocks(9, rank) == 3
    [scope] = kvtide.ask("/v1/scopes")["scopes"]
    assert (scope["scope"]["model"], scope["scope"]["block_size"]) == ("m", BLOCK_SIZE)


def test_what_was_published_before_kvtide_came_is_told_by_the_worker(fleet):
    worker = fleet.worker(ranks=2)
    worker.chain(1, 7)
    worker.removed([7])
    # More events than the worker keeps: only its index can tell.
    worker.chain(1, 1500, rank=1)
    worker.removed([700], rank=1)
    time.sleep(GAP_S)
    kvtide = fleet.kvtide()
    kvtide.wait_until_ready()
    few, many = (worker.id, 0), (worker.id, 1)
    kvtide.wait_for_state(few, "complete", 8)
    kvtide.wait_for_state(many, "partial", 1501)
    assert (kvtide.blocks(9, few), kvtide.blocks(2000, many)) == (6, 699)
    # Its tree has lost what stands behind the block that was removed; what comes from here on is followed.
    worker.chain(700, 702, rank=1)
    kvtide.wait_for_state(many, "partial", 1504)
    assert kvtide.blocks(2000, many) == 702


def test_what_is_lost_on_the_way_is_told_by_the_worker(fleet):
    line = fleet.line()
    kvtide = fleet.kvtide(line=line)
    worker = fleet.worker()
    rank = (worker.id, 0)
    worker.chain(1, 5)
    kvtide.wait_for_state(rank, "complete", 5)
    for first in (6, 11, 16):
        line.cut()
        time.sleep(GAP_S)
        worker.chain(first, first + 4)
        worker.removed([first + 4])
        time.sleep(GAP_S)
        line.mend()
        worker.stored([first + 4] * BLOCK_SIZE, [first + 4], first + 3)
    kvtide.wait_for_state(rank, "complete", 26)
    assert kvtide.blocks(40, rank) == 20
    assert kvtide.workers()[rank]["freshness"]["missing_events"] == 0
    # More than the worker keeps.
    line.cut()
    time.sleep(GAP_S)
    worker.chain(21, 1600)
    time.sleep(GAP_S)
    line.mend()
    kvtide.wait_for_state(rank, "partial", 1606)
    assert kvtide.blocks(2000, rank) == 1600


def test_a_worker_that_says_nothing_any_more_proves_what_the_outage_has_lost(fleet):
    line = fleet.line()
    kvtide = fleet.kvtide(line=line)
    worker = fleet.worker()
    rank = (worker.id, 0)
    worker.chain(1, 5)
    kvtide.wait_for_state(rank, "complete", 5)
    line.cut()
    time.sleep(GAP_S)
    worker.removed([3])
    time.sleep(GAP_S)
    line.mend()
    # No frame follows: kvtide asks because the connection was made anew.
    kvtide.wait_for_state(rank, "complete", 6)
    assert kvtide.blocks(9, rank) == 2
    assert kvtide.workers()[rank]["freshness"]["verified_age_ms"] is not None


def test_kvtide_goes_on_with_its_snapshot_and_what_the_worker_tells(fleet, tmp_path):
    snapshot = tmp_path / "snapshot"
    kvtide = fleet.kvtide("--snapshot", snapshot)
    worker = fleet.worker(ranks=2)
    gone = fleet.worker()
    worker.chain(1, 1200)
    worker.chain(1, 5, rank=1)
    gone.chain(1, 5)
    for rank, last in (((worker.id, 0), 1200), ((worker.id, 1), 5), ((gone.id, 0), 5)):
        kvtide.wait_for_state(rank, "complete", last)
    kvtide.child.send_signal(signal.SIGTERM)
    assert kvtide.child.wait(20) == 0
    worker.removed([1200])
    gone.end()
    time.sleep(GAP_S)
    kvtide = fleet.kvtide("--snapshot", snapshot)
    kvtide.wait_until_ready()
    kvtide.wait_for_state((worker.id, 0), "complete", 1201)
    kvtide.wait_for_state((worker.id, 1), "complete", 5)
    assert (kvtide.blocks(2000, (worker.id, 0)), kvtide.blocks(9, (worker.id, 1))) == (1199, 5)
    assert (gone.id, 0) not in kvtide.workers()


def test_a_worker_that_has_gone_is_removed(fleet):
    kvtide = fleet.kvtide()
    ends, dies = fleet.worker(), fleet.worker()
    for worker in (ends, dies):
        worker.chain(1, 5)
        kvtide.wait_for_state((worker.id, 0), "complete", 5)
    ends.end()
    wait_for("one that ends to go", lambda: (ends.id, 0) not in kvtide.workers())
    dies.stop()
    deadline = time.monotonic() + LEASE_S
    while (dies.id, 0) in kvtide.workers():
        assert time.monotonic() < deadline, "one that dies has gone once its lease is over"
        time.sleep(0.1)


def test_a_publisher_that_starts_again_is_a_new_life(fleet):
    kvtide = fleet.kvtide()
    worker = fleet.worker(ranks=2)
    for rank in (0, 1):
        worker.chain(1, 5, rank=rank)
        kvtide.wait_for_state((worker.id, rank), "complete", 5)
    worker.restart()
    kvtide.wait_for_state((worker.id, 0), "complete", 0, generation=2)
    assert kvtide.blocks(9, (worker.id, 0)) == 0
    worker.chain(1, 2)
    kvtide.wait_for_state((worker.id, 0), "complete", 2, generation=2)
    assert (kvtide.blocks(9, (worker.id, 0)), kvtide.blocks(9, (worker.id, 1))) == (2, 5)
    kvtide.wait_for_state((worker.id, 1), "complete", 5, generation=1)


def test_a_worker_with_blocks_of_another_size_is_refused(fleet):
    kvtide = fleet.kvtide()
    first = fleet.worker()
    kvtide.wait_for_state((first.id, 0), "complete")
    other = fleet.worker(declared_block_size=16)
    line = kvtide.log_line(r"refused: .*blocks of 16 tokens, expected 4")[0]
    assert str(other.id) in line
    other.chain(1, 5)
    first.chain(1, 3)
    kvtide.wait_for_state((first.id, 0), "complete", 3)
    assert set(kvtide.workers()) == {(first.id, 0)}


def test_without_a_card_the_model_is_configured(fleet):
    kvtide = fleet.kvtide()
    worker = fleet.worker(model=None)
    kvtide.log_line(r"refused: nobody says which model worker \d+ of dynamo.backend.generate serves")
    told = fleet.kvtide("--model", "m", "--block-size", BLOCK_SIZE)
    worker.chain(1, 5)
    told.wait_for_state((worker.id, 0), "complete", 5)
    assert kvtide.workers() == {}


def test_a_publisher_without_an_index_is_followed_too(fleet):
    kvtide = fleet.kvtide()
    worker = fleet.worker(keeps_index=False)
    kvtide.wait_for_state((worker.id, 0), "unknown")
    kvtide.wait_until_ready()
    worker.chain(1, 5)
    kvtide.wait_for_state((worker.id, 0), "complete", 5)


def test_many_workers(fleet):
    workers = [fleet.worker(ranks=2) for _ in range(6)]
    for number, worker in enumerate(workers):
        worker.chain(1, 40 + number)
    kvtide = fleet.kvtide()
    for number, worker in enumerate(workers):
        worker.chain(1, 10 + number, rank=1)
    kvtide.wait_until_ready()
    for number, worker in enumerate(workers):
        kvtide.wait_for_state((worker.id, 0), "complete", 40 + number)
        kvtide.wait_for_state((worker.id, 1), "complete", 10 + number)
        assert kvtide.blocks(99, (worker.id, 0)) == 40 + number
    assert len(kvtide.workers()) == 12


def test_a_second_kvtide_is_asked_first(fleet):
    """What a peer knows wholly, the worker could only tell in part."""
    worker = fleet.worker()
    peer = fleet.kvtide()
    rank = (worker.id, 0)
    peer.wait_for_state(rank, "complete", 0)
    line = fleet.line()
    kvtide = fleet.kvtide("--peer", peer.url, line=line)
    kvtide.wait_for_state(rank, "complete", 0)
    line.cut()
    time.sleep(GAP_S)
    worker.chain(1, 1500)
    peer.wait_for_state(rank, "complete", 1500)
    line.mend()
    time.sleep(GAP_S)
    worker.removed([1500])
    kvtide.wait_for_state(rank, "complete", 1501)
    assert kvtide.blocks(2000, rank) == 1499


def test_a_rank_for_which_there_is_no_room_is_followed_once_there_is(fleet):
    kvtide = fleet.kvtide("--ranks", 1)
    first = fleet.worker()
    kvtide.wait_for_state((first.id, 0), "complete", 0)
    second = fleet.worker()
    second.chain(1, 5)
    kvtide.log_line(rf"worker {second.id}.*rank")
    assert set(kvtide.workers()) == {(first.id, 0)}
    first.end()
    kvtide.wait_for_state((second.id, 0), "complete", 5)

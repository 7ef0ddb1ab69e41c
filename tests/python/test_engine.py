"""An engine's own publisher over libzmq: what is missed comes by its replay socket, or is said to be missing."""

import os
import signal
import time

import pytest
from conftest import free_port, prompt, removed, stored, wait_for, wait_until_saved

RANK = (7, 0)


def verified(kvtide):
    return kvtide.workers()[RANK]["freshness"]["verified_age_ms"]


@pytest.mark.parametrize("topic", [True, False])
def test_what_was_published_before_kvtide_started_is_asked_for(follow, engine, ports, topic):
    publisher = engine(ports, topic=topic)
    publisher.publish(stored(1, 6))
    publisher.publish(removed(5))
    kvtide = follow(ports)
    kvtide.wait_for_event(RANK, 1, knowledge="complete")
    assert kvtide.reach(prompt(*range(1, 7)), RANK) == 16
    publisher.publish(stored(5))
    kvtide.wait_for_event(RANK, 2, knowledge="complete")
    assert kvtide.reach(prompt(*range(1, 7)), RANK) == 24


@pytest.mark.parametrize("topic", [True, False])
def test_a_batch_that_is_lost_on_its_way_is_asked_for(follow, engine, ports, topic):
    publisher, kvtide = engine(ports, topic=topic), follow(ports)
    kvtide.log_line("following")
    publisher.publish(stored(1, 2))
    kvtide.wait_for_event(RANK, 0, knowledge="complete")
    publisher.lose(stored(3, 4))
    publisher.publish(stored(5, 6))
    state = kvtide.wait_for_event(RANK, 2, knowledge="complete")
    assert kvtide.reach(prompt(*range(1, 7)), RANK) == 24
    assert state["freshness"]["missing_events"] == 0


def test_an_idle_engine_is_proven_to_be_idle(follow, engine, ports):
    publisher, kvtide = engine(ports), follow(ports)
    publisher.publish(stored(1))
    kvtide.wait_for_event(RANK, 0, knowledge="complete")
    wait_for("a proof", lambda: verified(kvtide) is not None)
    time.sleep(3)
    state = kvtide.workers()[RANK]["freshness"]
    assert state["last_event_age_ms"] >= 3000 and state["verified_age_ms"] < 2500, state
    publisher.stop()
    time.sleep(3)
    assert verified(kvtide) >= 2500, "a dead engine proves nothing"


def test_an_engine_that_has_published_nothing_holds_nothing(follow, engine, ports):
    engine(ports)
    kvtide = follow(ports)
    state = wait_for("the rank", lambda: kvtide.workers().get(RANK))
    assert (state["knowledge"], state["freshness"]["last_event_id"]) == ("complete", None)
    assert kvtide.reach(prompt(1), RANK) == 0


def test_a_restarted_engine_is_a_new_life(follow, engine, ports):
    publisher, kvtide = engine(ports), follow(ports)
    publisher.publish(stored(1, 6))
    publisher.publish()
    kvtide.wait_for_event(RANK, 1, knowledge="complete")
    publisher.stop()
    again = engine(ports)
    again.publish(stored(1, 2))
    kvtide.wait_for_event(RANK, 0, generation=2, knowledge="complete")
    assert kvtide.reach(prompt(*range(1, 7)), RANK) == 8, "nothing of the old life is left"


def test_a_restarted_engine_that_is_ahead_already_is_found_out(follow, engine, ports):
    publisher, kvtide = engine(ports), follow(ports)
    publisher.publish(stored(1, 6))
    kvtide.wait_for_event(RANK, 0, knowledge="complete")
    publisher.stop()
    again = engine(ports)
    # Nobody sees its first batches, and the number that comes next is the one that is due.
    again.lose(stored(1, 2))
    again.publish(stored(3))
    kvtide.wait_for_event(RANK, 1, generation=2, knowledge="complete")
    assert kvtide.reach(prompt(*range(1, 7)), RANK) == 12


def test_what_the_engine_does_not_keep_is_lost(follow, engine, ports):
    publisher = engine(ports, kept=2)
    for number in range(1, 5):
        publisher.publish(stored(number))
    kvtide = follow(ports)
    kvtide.wait_for_event(RANK, 3, knowledge="partial")
    assert kvtide.reach(prompt(1, 2, 3, 4), RANK) == 0, "their parents are not known"


def test_without_an_answer_the_rank_is_forgotten_in_time(follow, engine):
    ports = (free_port(), 0)
    publisher, kvtide = engine(ports), follow((ports[0], free_port()))
    kvtide.log_line("following")
    publisher.publish(stored(1, 6))
    kvtide.wait_for_event(RANK, 0, knowledge="complete")
    publisher.lose(removed(2))
    publisher.publish(stored(1, 2))
    kvtide.wait_for_event(RANK, 0, knowledge="recovering")
    assert kvtide.reach(prompt(*range(1, 7)), RANK) == 24, "as it was before"
    state = kvtide.wait_for_event(RANK, 2, knowledge="partial")
    assert state["freshness"]["missing_events"] == 1
    assert kvtide.reach(prompt(*range(1, 7)), RANK) == 8


def test_data_parallel_ranks_have_ports_of_their_own(follow, engine, ports):
    others = (free_port(), free_port())
    first, second = engine(ports), engine(others)
    kvtide = follow(ports, others)
    first.publish(stored(1, 6))
    second.publish(stored(1, 2))
    kvtide.wait_for_event((7, 0), 0, knowledge="complete")
    kvtide.wait_for_event((7, 1), 0, knowledge="complete")
    assert (kvtide.reach(prompt(*range(1, 7)), (7, 0)), kvtide.reach(prompt(*range(1, 7)), (7, 1))) == (24, 8)


def test_a_stopped_kvtide_catches_up(follow, engine, ports):
    publisher, kvtide = engine(ports), follow(ports)
    publisher.publish(stored(1, 2))
    kvtide.wait_for_event(RANK, 0, knowledge="complete")
    os.kill(kvtide.child.pid, signal.SIGSTOP)
    # More than sockets and queues hold: the publisher drops most of it.
    padding = {"type": "Padding", "bytes": "x" * 20_000}
    for number in range(3, 1503):
        publisher.publish(stored(number) if number <= 6 else removed(9_999), padding)
    publisher.publish(removed(2))
    os.kill(kvtide.child.pid, signal.SIGCONT)
    state = kvtide.wait_for_event(RANK, 1501, knowledge="complete")
    assert kvtide.reach(prompt(*range(1, 7)), RANK) == 4
    assert state["freshness"]["missing_events"] == 0


def killed_with_six_blocks(follow, publisher, ports, snapshot):
    """A kvtide that has written down what the engine has published, and ends at once."""
    kvtide = follow(ports, snapshot=snapshot)
    publisher.publish(stored(1, 6))
    kvtide.wait_for_event(RANK, 0, knowledge="complete")
    wait_until_saved(snapshot)
    kvtide.stop()


def test_a_killed_kvtide_goes_on_from_its_snapshot(follow, engine, ports, tmp_path):
    publisher, snapshot = engine(ports), tmp_path / "kvtide.snapshot"
    killed_with_six_blocks(follow, publisher, ports, snapshot)
    publisher.publish(removed(5))
    again = follow(ports, snapshot=snapshot)
    again.wait_for_event(RANK, 1, knowledge="complete")
    assert again.reach(prompt(*range(1, 7)), RANK) == 16


def test_an_engine_that_restarted_while_kvtide_was_down_is_a_new_life(follow, engine, ports, tmp_path):
    publisher, snapshot = engine(ports), tmp_path / "kvtide.snapshot"
    killed_with_six_blocks(follow, publisher, ports, snapshot)
    publisher.stop()
    other = engine(ports)
    other.publish(stored(1, 2))
    other.publish(stored(3))
    again = follow(ports, snapshot=snapshot)
    again.wait_for_event(RANK, 1, generation=2, knowledge="complete")
    assert again.reach(prompt(*range(1, 7)), RANK) == 12


def test_where_the_engine_is_gone_nothing_is_credited_for_long(follow, engine, ports, tmp_path):
    publisher, snapshot = engine(ports), tmp_path / "kvtide.snapshot"
    killed_with_six_blocks(follow, publisher, ports, snapshot)
    publisher.stop()
    again = follow(ports, snapshot=snapshot)
    assert again.workers()[RANK]["knowledge"] == "recovering"
    assert again.reach(prompt(*range(1, 7)), RANK) == 24, "as it was, and said to be so"

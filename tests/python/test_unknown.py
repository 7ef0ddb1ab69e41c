"""What is not known is no number, and nothing that could be taken for one."""

import pytest
from conftest import Kvtide, prompt


@pytest.fixture
def kvtide():
    process = Kvtide()
    yield process
    process.stop()


def test_unknown_is_not_zero(kvtide):
    scope = {"model": "m", "block_size": 4}
    cleared = {"scope": scope, "worker_id": 8, "first_event_id": 1, "events": [{"type": "cleared"}]}
    kvtide.ask("/v1/events", cleared)
    kvtide.ask("/v1/workers", {"scope": scope, "worker_id": 7})
    answer = kvtide.ask("/v1/overlap", {"scope": {"model": "m"}, "token_ids": prompt(1, 2)})
    unknown, empty = answer["ranks"]
    assert (unknown["worker_id"], unknown["knowledge"], unknown["reach_tokens"]) == (7, "unknown", None)
    with pytest.raises(TypeError):
        unknown["reach_tokens"]["gpu"]
    nothing = dict.fromkeys(("gpu", "host", "disk", "external"), 0)
    assert (empty["worker_id"], empty["knowledge"], empty["reach_tokens"]) == (8, "complete", nothing)
    # Whoever asks for a least reach is not given what may have none.
    asked = {"scope": {"model": "m"}, "token_ids": prompt(1, 2), "min_reach_tokens": 1}
    assert kvtide.ask("/v1/overlap", asked)["ranks"] == []

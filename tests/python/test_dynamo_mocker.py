"""A fleet of Dynamo's mockers: simulated engines with real schedulers, caches and publishers, some of them with more than one rank.
Before each prompt kvtide, and Dynamo's own router beside it, say what each rank holds; then the engine says what it had cached.
"""

import os

import pytest
from conftest import wait_for
from routing import Phase, Router

BLOCK_SIZE = 16
# Few, so that they evict soon.
BLOCKS = 260
REQUESTS = int(os.environ.get("KVTIDE_MOCKER_REQUESTS", "40"))
ANSWER_TOKENS = 24


class Rank:
    """One rank of a mocker."""

    def __init__(self, router, rank):
        self.router, self.rank = router, rank

    def complete(self, prompt):
        [answered] = self.router.complete((prompt, self.rank, ANSWER_TOKENS))
        return answered


class BesideDynamo(Router):
    """Compares each answer with that of Dynamo's own router too."""

    def __init__(self, router):
        super().__init__(BLOCK_SIZE, "m")
        self.router = router
        self.differences = self.answers = 0

    def ask(self, prompt):
        ranks = super().ask(prompt)
        if all(rank["knowledge"] == "complete" for rank in ranks.values()):
            ours = {rank: answer["reach_tokens"]["gpu"] // BLOCK_SIZE for rank, answer in ranks.items()}
            self.answers += 1
            self.differences += ours != self.router.held(prompt)
        return ranks

    def turns(self, engines):
        """A prompt for each rank, which do not disturb each other."""
        turns = []
        for engine in engines:
            history = self.conversations.next()
            turns.append((history, [*history], self.ask(history), engine))
        return turns

    def complete(self, turns):
        return self.router.complete(*((prompt, engine.rank, ANSWER_TOKENS) for _, prompt, _, engine in turns))

    def burst(self, engines, prompts):
        """Many prompts at once: what each finds is a matter of their order, but not what is held once they are done."""
        self.settle(engines)
        histories = [self.conversations.next() for _ in range(prompts)]
        requests = [([*history], self.random.choice(engines).rank, ANSWER_TOKENS) for history in histories]
        for history, (answer, _) in zip(histories, self.router.complete(*requests)):
            history.extend(answer)


@pytest.mark.timeout(120 + 3 * REQUESTS)
def test_kvtide_says_of_dynamos_mockers_what_they_say_themselves(fleet):
    line = fleet.line()
    kvtide = fleet.kvtide(line=line)
    mockers = [fleet.mocker(BLOCK_SIZE, BLOCKS, ranks) for ranks in (2, 1, 1)]
    router = fleet.router(BLOCK_SIZE)
    router.wait_for_workers({mocker.id for mocker in mockers})
    beside = BesideDynamo(router)
    beside.kvtide = kvtide
    ranks = [Rank(router, (mocker.id, rank)) for mocker, of_it in zip(mockers, (2, 1, 1)) for rank in range(of_it)]
    for rank in ranks:
        beside.wait_for_state(rank, "complete")

    print(Phase.HEAD)
    beside.run("from the start", REQUESTS, ranks)
    for _ in range(REQUESTS // 10):
        beside.burst(ranks, 8)
    beside.run("after many at once", REQUESTS, ranks)
    assert beside.removed_blocks() > 0, "nothing was evicted"

    line.cut()
    # What comes now is lost on the way to kvtide, and told by the workers.
    for rank in ranks:
        beside.step(rank)
    line.mend()
    for rank in ranks:
        beside.step(rank)
        beside.wait_for_state(rank, "complete")
    beside.run("events were lost, and the workers asked", REQUESTS, ranks)
    assert all(beside.state(rank)["freshness"]["missing_events"] == 0 for rank in ranks)

    gone, new = mockers[2], fleet.mocker(BLOCK_SIZE, BLOCKS, 1)
    gone.stop()
    wait_for("its end", lambda: (beside.state(ranks[3]) or {"knowledge": "unknown"})["knowledge"] == "unknown")
    ranks[3] = Rank(router, (new.id, 0))
    beside.wait_for_state(ranks[3], "complete")
    beside.run("a worker was killed, and another came", REQUESTS, ranks)

    beside.kvtide = fleet.kvtide()
    beside.kvtide.wait_until_ready()
    for rank in ranks:
        beside.wait_for_state(rank, "complete", "partial")
    beside.run("kvtide starts late", REQUESTS, ranks, exact=False)

    assert not beside.failed
    # Of the four phases in which every rank is known wholly.
    assert beside.answers >= 4 * REQUESTS
    assert beside.differences == 0, f"Dynamo's router differs in {beside.differences} of {beside.answers} answers"

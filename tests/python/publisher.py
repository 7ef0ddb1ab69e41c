"""A worker's KV event publisher, Dynamo's own, told by lines of JSON on standard input what to publish.

Arguments: worker id, data-parallel rank, block size. Each line is {"stored": {...}} or {"removed": [...]}, with the
arguments of the publisher's methods. Prints a line when it is ready and one for each line that it has taken.
"""

import asyncio
import json
import sys

import uvloop
from dynamo._core import DistributedRuntime, KvEventPublisher


async def main() -> None:
    worker_id, dp_rank, block_size = map(int, sys.argv[1:4])
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "mem", "tcp", event_plane="nats")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    publisher = KvEventPublisher(
        endpoint, worker_id=worker_id, kv_block_size=block_size, dp_rank=dp_rank, enable_local_indexer=True
    )
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        if "stored" in order:
            publisher.publish_stored(**order["stored"])
        else:
            publisher.publish_removed(order["removed"])
        print("taken", flush=True)
    publisher.shutdown()
    runtime.shutdown()


uvloop.run(main())

"""A worker of a Dynamo fleet as far as discovery and its cache go: an endpoint, a model's card, and a publisher with an index of
its own for each data-parallel rank. All of it is Dynamo's own code.

Argument: JSON with `model` (null: no card), `block_size`, `declared_block_size`, `ranks`, `keeps_index`, and `zmq`, the
publishers of engines to relay, by rank. Prints its worker id when it is ready, and a line for each line of JSON on standard
input that it has taken: {"rank": 0, "stored": {...}}, {"rank": 0, "removed": [...]}, {"rank": 0, "chain": [from, to]} for
events of one block each, or {"rank": 0, "restart": true} for another publisher in the place of that rank's.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import uvloop
from dynamo._core import (
    DistributedRuntime,
    KvEventPublisher,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_model,
)


async def generate(request, context):
    yield request


async def register(endpoint, settings):
    config = ModelRuntimeConfig()
    config.total_kv_blocks = 100_000
    config.max_num_batched_tokens = 8192
    config.data_parallel_size = settings["ranks"]
    with tempfile.TemporaryDirectory() as folder:
        # As much of a model as a card needs.
        Path(folder, "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 131072}')
        await register_in(folder, endpoint, settings, config)


async def register_in(folder, endpoint, settings, config):
    await register_model(
        ModelInput.Tokens,
        ModelType.Completions,
        endpoint,
        folder,
        settings["model"],
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=settings["declared_block_size"],
        runtime_config=config,
        ignore_weights=True,
    )


async def main() -> None:
    settings = json.loads(sys.argv[1])
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "file", "tcp", event_plane="nats")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    serving = asyncio.ensure_future(endpoint.serve_endpoint(generate))
    if settings["model"]:
        await register(endpoint, settings)

    def publisher(rank):
        return KvEventPublisher(
            endpoint,
            kv_block_size=settings["block_size"],
            dp_rank=rank,
            enable_local_indexer=settings["keeps_index"],
            zmq_endpoint=settings["zmq"][rank] if settings["zmq"] else None,
        )

    publishers = [publisher(rank) for rank in range(settings["ranks"])]
    print(endpoint.connection_id(), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        rank = order["rank"]
        if "stored" in order:
            publishers[rank].publish_stored(**order["stored"])
        elif "removed" in order:
            publishers[rank].publish_removed(order["removed"])
        elif "chain" in order:
            first, last = order["chain"]
            for block in range(first, last + 1):
                parent = block - 1 if block > 1 else None
                size = settings["block_size"]
                publishers[rank].publish_stored([block % 65_536] * size, [size], [block], parent)
        else:
            publishers[rank].shutdown()
            publishers[rank] = publisher(rank)
        print("taken", flush=True)
    for one in publishers:
        one.shutdown()
    serving.cancel()
    runtime.shutdown()


uvloop.run(main())

"""A worker of a Dynamo fleet that is Dynamo's own mocker: a scheduler, a cache and a publisher as of a real engine, and no model.

Arguments: the model's name, a folder with as much of a model as a card needs, the block size, the blocks of each data-parallel
rank, and the ranks. Prints its worker id and serves until it is ended.
"""

import asyncio
import sys

import uvloop
from dynamo._core import (
    DistributedRuntime,
    EngineType,
    EntrypointArgs,
    ModelRuntimeConfig,
    _normalize_mocker_config,
    make_engine,
    run_input,
)

ENDPOINT = "dyn://dynamo.backend.generate"
SPEED = 1000.0


async def main() -> None:
    model, folder = sys.argv[1:3]
    block_size, blocks, ranks = map(int, sys.argv[3:])
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="nats")
    settings = {
        "engine": {
            "backend": "vllm",
            "worker_type": "aggregated",
            "block_size": block_size,
            "num_gpu_blocks": blocks,
            "speedup_ratio": SPEED,
        },
        "dp_size": ranks,
        "dynamo": {"enable_local_indexer": True},
    }
    config = ModelRuntimeConfig()
    config.total_kv_blocks = blocks
    config.max_num_seqs = 256
    config.max_num_batched_tokens = 8192
    config.data_parallel_size = ranks
    config.enable_local_indexer = True
    config.kv_event_publishing_enabled = True
    entrypoint = EntrypointArgs(
        engine_type=EngineType.Mocker,
        model_path=folder,
        model_name=model,
        endpoint_id=ENDPOINT,
        mocker_engine_args=_normalize_mocker_config(settings),
        runtime_config=config,
        kv_cache_block_size=block_size,
    )
    engine = await make_engine(runtime, entrypoint)
    print(runtime.endpoint(ENDPOINT.removeprefix("dyn://")).connection_id(), flush=True)
    await run_input(runtime, ENDPOINT, engine)


uvloop.run(main())

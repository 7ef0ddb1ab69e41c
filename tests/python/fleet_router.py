"""Dynamo's own router beside its workers: says how many blocks of a prompt each rank holds, and sends prompts to ranks.

Argument: the block size. Prints "ready", and a line of JSON for each on standard input: {"held": tokens} gives
[[worker, rank, blocks], ...]; {"complete": [{"token_ids", "worker_id", "dp_rank", "max_tokens"}, ...]} sends them at once and
gives [{"token_ids", "cached_tokens"}, ...]; {"workers": null} gives the ids of those that are there.
"""

import asyncio
import json
import sys

import uvloop
from dynamo._core import DistributedRuntime, KvRouter, KvRouterConfig


class Router:
    def __init__(self, endpoint, client, block_size):
        self.client = client
        self.router = KvRouter(endpoint, block_size, KvRouterConfig())

    async def workers(self, _):
        return self.client.instance_ids()

    async def held(self, tokens):
        scores = await self.router.get_overlap_scores(tokens)
        return [[one["worker_id"], one["dp_rank"], one["device_blocks"]] for one in scores["workers"]]

    async def complete(self, requests):
        return await asyncio.gather(*map(self.complete_one, requests))

    async def complete_one(self, request):
        stream = await self.router.generate(
            request["token_ids"],
            "m",
            stop_conditions={"max_tokens": request["max_tokens"], "ignore_eos": True},
            worker_id=request["worker_id"],
            dp_rank=request["dp_rank"],
        )
        tokens, cached = [], None
        async for part in stream:
            tokens += part["token_ids"]
            if usage := part.get("completion_usage"):
                cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {"token_ids": tokens, "cached_tokens": cached}


async def main() -> None:
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "file", "tcp", event_plane="nats")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    router = Router(endpoint, await endpoint.client(), int(sys.argv[1]))
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        [(order, argument)] = json.loads(line).items()
        print(json.dumps(await getattr(router, order)(argument)), flush=True)
    runtime.shutdown()


uvloop.run(main())

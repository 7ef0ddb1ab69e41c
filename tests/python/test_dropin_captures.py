"""Recorded engines publish to Dynamo's standalone indexer and to a kvtide in its place: where Dynamo answers as the engine
does, both answer the same; where it does not, kvtide still does."""

import pytest
from captures import Capture
from conftest import wait_for
from dropin import DynamoIndexer, Publisher, signed
from dynamo._core import compute_block_hash_for_seq


def held(dump):
    """What a dump says is held: worker, rank and tier, and a block's name, content, and parent. How it is cut into events
    differs."""
    blocks = set()
    for event in dump["events"]:
        stored = event["event"]["data"]["stored"]
        parent = stored["parent_hash"]
        for block in stored["blocks"]:
            where = (event["worker_id"], event["event"]["dp_rank"], event["storage_tier"], event["residency_domain"])
            blocks.add((*where, block["block_hash"], block["tokens_hash"], parent))
            parent = block["block_hash"]
    return blocks


class Fleet:
    """The workers of a capture, which publish to both."""

    def __init__(self, both, name, **registration):
        self.both, self.capture = both, Capture(name)
        self.publishers = [
            Publisher(number, block_size=self.capture.block_size, eagle="eagle" in name)
            for number in range(len(self.capture.workers))
        ]
        # The batches' own rank counts.
        both.register(*self.publishers, dp_rank=None, **registration)

    def publish_until(self, checkpoint):
        for publisher, batches, last in zip(self.publishers, self.capture.workers, checkpoint["after_seq"], strict=True):
            # The marks in between are batches too.
            for payload in batches[publisher.sequence - publisher.marks : last + 1]:
                publisher.replay(payload)
        self.both.catch_up(*self.publishers)

    def answers(self, checkpoint):
        """Each question with Dynamo's answer, kvtide's, and the engines' own."""
        for question in checkpoint["queries"]:
            tokens = self.capture.prompt(question)
            dynamo, kvtide = self.both.query(tokens, **salts(question))
            yield question, tokens, dynamo, kvtide

    def hashes(self, question, tokens, **more):
        """By Dynamo's own function."""
        of = salts(question, salt="cache_namespace")
        return signed(compute_block_hash_for_seq(tokens, self.capture.block_size, **of, **more))

    def close(self):
        for publisher in self.publishers:
            publisher.close()


@pytest.fixture
def fleet(both):
    started = []

    def start(name, **registration):
        started.append(Fleet(both, name, **registration))
        return started[-1]

    yield start
    for one in started:
        one.close()


def salts(question, salt="cache_salt"):
    return {"lora_name": question.get("lora"), salt: question.get("salt")}


def gpu_of(answer, worker):
    return answer["scores"].get(str(worker), {}).get("0", 0)


@pytest.mark.parametrize("name", ["sgl0523_unified", "sgl059_radix", "sgl0523_hicache_wt", "sgl0523_page1"])
def test_where_dynamo_answers_as_the_engine_does_all_answers_are_equal(fleet, both, name):
    fleet = fleet(name)
    checkpoints = fleet.capture.checkpoints
    asked = 0
    for checkpoint in checkpoints[:: max(1, len(checkpoints) // 6)]:
        fleet.publish_until(checkpoint)
        for question, tokens, dynamo, kvtide in fleet.answers(checkpoint):
            assert dynamo == kvtide, question
            assert [gpu_of(kvtide, worker) for worker in range(len(fleet.publishers))] == question["k"], question
            for server in both.servers:
                answer = server.post("/query_by_hash", block_hashes=fleet.hashes(question, tokens), model_name="m")
                assert answer == dynamo, question
            asked += dynamo["scores"] != {}
        dynamo, kvtide = (server.get("/dump") for server in both.servers)
        assert dynamo.keys() == kvtide.keys() == {"m:default"}
        assert held(dynamo["m:default"]) == held(kvtide["m:default"])
        assert dynamo["m:default"]["block_size"] == kvtide["m:default"]["block_size"]
        dynamo, kvtide = ({one["instance_id"]: one for one in server.get("/workers")} for server in both.servers)
        assert dynamo == kvtide
    assert asked > 100, "questions of which something is held"


@pytest.mark.parametrize("name", ["vllm033_int_cbor", "vllm033_offload_selfdesc"])
def test_where_dynamo_is_wrong_kvtide_answers_as_the_engine_does(fleet, name):
    """vLLM announces second physical copies, and salts that Dynamo reads only where its own front end has marked them."""
    fleet = fleet(name)
    checkpoints = fleet.capture.checkpoints
    too_much = too_little = 0
    for checkpoint in checkpoints[len(checkpoints) // 3 :: max(1, len(checkpoints) // 4)]:
        fleet.publish_until(checkpoint)
        for question, _, dynamo, kvtide in fleet.answers(checkpoint):
            for worker, expected in enumerate(question["k"]):
                assert gpu_of(kvtide, worker) == expected, question
                too_much += gpu_of(dynamo, worker) > expected
                too_little += gpu_of(dynamo, worker) < expected
            for worker, expected in enumerate(question.get("k_total", [])):
                assert kvtide["instances"].get(str(worker), {"cpu": 0})["cpu"] == expected, question
    assert too_much > 0 and too_little > 0, "Dynamo has learned it: compare all answers then"


def test_where_blocks_are_keyed_by_pairs_of_tokens_kvtide_can_be_told_so(fleet, both):
    """Dynamo's indexer hashes prompts as if there were no EAGLE; whoever hashes them is answered by both."""
    fleet = fleet("sgl0523_eagle_bigram", is_eagle=True)
    asked = 0
    for checkpoint in fleet.capture.checkpoints[::2]:
        fleet.publish_until(checkpoint)
        for question, tokens, dynamo, kvtide in fleet.answers(checkpoint):
            expected = question["k"][0]
            assert (gpu_of(dynamo, 0), gpu_of(kvtide, 0)) == (0, expected), question
            hashes = fleet.hashes(question, tokens, is_eagle=True)
            for server in both.servers:
                answer = server.post("/query_by_hash", block_hashes=hashes, model_name="m")
                assert gpu_of(answer, 0) == expected, question
            asked += expected > 0
    assert asked > 20


@pytest.mark.parametrize("name", ["sgl0523_unified", "sgl0523_hicache_wt"])
def test_dynamos_indexer_goes_on_from_what_kvtide_dumps(fleet, both, name):
    fleet = fleet(name)
    checkpoint = fleet.capture.checkpoints[len(fleet.capture.checkpoints) // 2]
    fleet.publish_until(checkpoint)
    peer = DynamoIndexer("--peers", both.kvtide.url)
    try:
        expected = held(both.dynamo.get("/dump")["m:default"])
        wait_for("the dump", lambda: len(held(peer.get("/dump")["m:default"])) == len(expected))
        assert held(peer.get("/dump")["m:default"]) == expected
        for question, tokens, dynamo, _ in fleet.answers(checkpoint):
            assert peer.query(tokens, **salts(question)) == dynamo, question
    finally:
        peer.stop()

"""Several threads at once, a fork, and memory over many calls."""

import gc
import os
import resource
import subprocess
import sys
import threading
import time
import warnings

import kvtide
import numpy as np
import pytest

BLOCK_SIZE = 4


def chain(worker, length=64):
    """A worker's prompt: blocks that only it holds."""
    return list(range(worker * 1000, worker * 1000 + length * BLOCK_SIZE))


def stored(worker, first=0, length=64):
    names = [worker * 1000 + block + 1 for block in range(first, length)]
    parent = worker * 1000 + first if first else None
    tokens = chain(worker, length)[first * BLOCK_SIZE :]
    return {"type": "stored", "parent": parent, "sequence_hashes": names, "token_ids": tokens}


def run_all(*works):
    """Runs each in a thread of its own until it returns; what one raises is raised."""
    raised = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if raised:
        raise raised[0]


def test_readers_never_see_half_of_an_event():
    """Four threads store and remove whole chains; what four others read is all of a chain or nothing of it."""
    index = kvtide.Indexer("m", BLOCK_SIZE)
    until = time.monotonic() + 3
    lookups = []

    def write(worker):
        def work():
            while time.monotonic() < until:
                index.apply_events([stored(worker)], worker)
                names = [worker * 1000 + block + 1 for block in range(64)]
                index.apply_events([{"type": "removed", "sequence_hashes": names}], worker)

        return work

    def read(worker):
        prompt = np.array(chain(worker), np.uint32)

        def work():
            seen = set()
            while time.monotonic() < until:
                rank = index.overlap(prompt).rank(worker)
                if rank is not None and rank.reach is not None:
                    seen.add(rank.reach.gpu)
                batch = index.overlap_batch([prompt, prompt])
                assert batch[0].version == batch[1].version
            assert seen <= {0, 64 * BLOCK_SIZE} and seen
            lookups.append(len(seen))

        return work

    run_all(*[write(worker) for worker in range(1, 5)], *[read(worker) for worker in range(1, 5)])
    assert len(lookups) == 4


def test_a_conversation_may_be_shared_between_threads():
    hasher = kvtide.PromptHasher(BLOCK_SIZE)

    def grow():
        for _ in range(200):
            hasher.extend(np.zeros(4096, np.uint32))
            assert len(hasher) * BLOCK_SIZE <= hasher.tokens

    run_all(grow, grow, grow)
    assert (hasher.tokens, len(hasher)) == (600 * 4096, 600 * 1024)
    assert set(hasher.hashes()) == set(kvtide.hash_blocks([0] * 4, 4))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_goes_on_by_itself_whatever_other_threads_were_doing():
    index = kvtide.Indexer("m", BLOCK_SIZE)
    index.apply_events([stored(9)], 9)
    prompt = np.array(chain(9), np.uint32)
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            index.apply_events([stored(1)], 1)
            index.overlap(prompt)
            index.apply_events([{"type": "cleared"}], 1)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            with warnings.catch_warnings():
                # That a process with threads forks is the point.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                status = 1
                try:
                    index.apply_events([stored(2)], 2)
                    reached = index.overlap(chain(2)).rank(2).reach.gpu
                    status = 0 if (reached, index.overlap(prompt).rank(9).reach.gpu) == (256, 256) else 2
                finally:
                    os._exit(status)
            until = time.monotonic() + 20
            while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
                if time.monotonic() > until:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                    raise AssertionError("a child hangs")
                time.sleep(0.001)
            assert os.waitstatus_to_exitcode(ended[1]) == 0
        assert index.overlap(chain(2)).rank(2) is None, "what a child does is not the parent's"
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)


FORKS = """
import os, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
index = None

def around():
    # Lets other threads go on while the gate is closed, and asks amid a fork.
    time.sleep(0.01)
    if index is not None:
        index.overlap([1, 2, 3, 4])

# In front of kvtide's own: they run while nobody is inside kvtide.
os.register_at_fork(before=around, after_in_parent=around, after_in_child=around)
import kvtide
index = kvtide.Indexer("m", 4)

def fork():
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        index.register_worker(threading.get_ident())

threads = [threading.Thread(target=fork) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_several_threads_fork_whatever_others_do_around_it():
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def resident_kib():
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1])


def test_a_million_calls_leave_nothing_behind():
    index = kvtide.Indexer("m", BLOCK_SIZE)
    index.apply_events([stored(1)], 1)
    array, listed = np.array(chain(1, 8), np.uint32), chain(1, 8)
    hashes, limits = kvtide.hash_blocks(array, BLOCK_SIZE), kvtide.FreshnessLimits(knowledge=["partial"])
    removed = {"type": "removed", "sequence_hashes": [1064]}

    def calls(count):
        for _ in range(count // 10):
            answer = index.overlap(array)
            rank = answer.ranks[0]
            assert rank.reach.gpu == 32 and rank.unusable(limits) is None
            index.overlap(listed, adapter="a", ranks=[(1, 0)])
            index.overlap(block_hashes=hashes, limit=1).ranks
            index.overlap_batch([array, listed])
            index.apply_events([removed], 1)
            index.apply_events([stored(1, 63)], 1)
            for wrong in ({}, {"token_ids": [-1]}, {"token_ids": "x"}, {"block_hashes": [2**64]}):
                try:
                    index.overlap(**wrong)
                except kvtide.KvtideError as error:
                    assert error.expected

    calls(100_000)
    gc.collect()
    before, references = resident_kib(), sys.getrefcount(array)
    calls(1_000_000)
    gc.collect()
    # A leak of one byte a call would be 977 KiB.
    assert resident_kib() - before < 900
    assert sys.getrefcount(array) == references

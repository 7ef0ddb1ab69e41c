"""The slow, obvious reference: for every rank the names it holds, and for every name the chain of contents that it stands for.

Written from docs/events.md alone, in plain Python. A second announcement of what is held is no change, as for events handed in.
"""

import struct
from dataclasses import dataclass, field

import xxhash

TIERS = ("gpu", "host", "disk", "external")
PLAIN = 1337
MASK = (1 << 64) - 1


def seed(adapter=None, tenant=None):
    part = lambda name, number: xxhash.xxh3_64_intdigest(name.encode(), number) if name else 0
    return (PLAIN + part(adapter, 0) + part(tenant, 1)) & MASK


def block_hashes(tokens, block_size, adapter=None, tenant=None, eagle=False, media=()):
    """Source: dynamo-kv-hashing 1.6.1."""
    window = block_size + int(eagle)
    blocks = max(len(tokens) - int(eagle), 0) // block_size
    hashes = []
    for block in range(blocks):
        part = tokens[block * block_size : block * block_size + window]
        here = sorted(media[block]) if block < len(media) else []
        data = struct.pack(f"<{window}I", *part) + struct.pack(f"<{len(here)}Q", *here)
        hashes.append(xxhash.xxh3_64_intdigest(data, seed(adapter, tenant)))
    return hashes


def sequence_hashes(blocks):
    names = []
    for block in blocks:
        data = struct.pack("<QQ", names[-1], block) if names else None
        names.append(xxhash.xxh3_64_intdigest(data, PLAIN) if data else block)
    return names


@dataclass
class Parked:
    tier: str
    waits_for: int
    names: list
    contents: object  # A list, or None for names alone.
    cancelled: list

    def waiting(self):
        return self.cancelled.count(False)


@dataclass
class Rank:
    bound: dict = field(default_factory=dict)  # name -> path, a tuple of contents from the root
    held: set = field(default_factory=set)  # (name, tier)
    parked: list = field(default_factory=list)

    def is_held(self, name):
        return any((name, tier) in self.held for tier in TIERS)

    def release(self, name, tier):
        self.held.discard((name, tier))
        if not self.is_held(name):
            self.bound.pop(name, None)

    def cancel(self, name, tier):
        for one in self.parked:
            if one.tier == tier:
                for index, waiting in enumerate(one.names):
                    if waiting == name:
                        one.cancelled[index] = True


class Reference:
    def __init__(self, block_size):
        self.block_size = block_size
        self.ranks = {}

    def apply(self, rank, event):
        state = self.ranks.setdefault(rank, Rank())
        tier = event.get("tier", "gpu")
        if event["type"] == "cleared":
            self.ranks[rank] = Rank()
        elif event["type"] == "removed":
            for name in event["sequence_hashes"]:
                if (name, tier) in state.held:
                    state.release(name, tier)
                state.cancel(name, tier)
            state.parked = [one for one in state.parked if one.waiting()]
        elif "blocks" in event:
            names = [block["sequence_hash"] for block in event["blocks"]]
            contents = [block["block_hash"] for block in event["blocks"]]
            self.store(state, event.get("parent"), Parked(tier, 0, names, contents, [False] * len(names)))
        else:
            names = event["sequence_hashes"]
            contents = None
            if event.get("token_ids") is not None:
                contents = block_hashes(event["token_ids"], self.block_size)
            self.store(state, event.get("parent"), Parked(tier, 0, names, contents, [False] * len(names)))

    def store(self, state, parent, one):
        due = [one]
        while due:
            one = due.pop(0)
            for name in self.place(state, parent, one):
                if name in state.bound:
                    due += [waiting for waiting in state.parked if waiting.waits_for == name]
                    state.parked = [waiting for waiting in state.parked if waiting.waits_for != name]
            parent = due[0].waits_for if due else None

    def place(self, state, parent, one):
        if one.contents is None:
            for name, cancelled in zip(one.names, one.cancelled):
                if cancelled:
                    continue
                if name in state.bound:
                    state.held.add((name, one.tier))
                else:
                    state.parked.append(Parked(one.tier, name, [name], None, [False]))
            return []
        path = ()
        if parent is not None:
            if parent not in state.bound:
                one.waits_for = parent
                state.parked.append(one)
                return []
            path = state.bound[parent]
        for name, content, cancelled in zip(one.names, one.contents, one.cancelled):
            path = (*path, content)
            if not cancelled:
                state.bound.setdefault(name, path)
                state.held.add((name, one.tier))
        return one.names

    def reaches(self, prompt):
        """By rank, how many leading tokens are held in a tier and all faster ones."""
        answer = {}
        for rank, state in self.ranks.items():
            places = {tier: {state.bound[name] for name, held in state.held if held == tier} for tier in TIERS}
            reach = []
            so_far = set()
            for tier in TIERS:
                so_far |= places[tier]
                length = 0
                while length < len(prompt) and tuple(prompt[: length + 1]) in so_far:
                    length += 1
                reach.append(length * self.block_size)
            answer[rank] = tuple(reach)
        return answer

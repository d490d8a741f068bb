"""The seed of a test, and what each rank makes of it."""

import hashlib
import os
import zlib
from collections.abc import Mapping

import torch


def seed_of(nodeid: str, environ: Mapping[str, str] = os.environ) -> int:
    """The seed that the agent gave the running test and recorded; without an agent, one made of the test's node id."""
    told = environ.get("ALLRANKS_SEED")
    return int(told) if told is not None else zlib.crc32(nodeid.encode("utf-8", "surrogatepass"))


def generator_of_rank(seed: int, rank: int) -> torch.Generator:
    """A generator on the CPU whose numbers no other rank of the same test has, and no other test."""
    digest = hashlib.blake2b(f"{seed} {rank}".encode(), digest_size=8).digest()
    # manual_seed takes 63 bits without a sign.
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)

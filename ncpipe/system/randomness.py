"""Random streams: every draw of ncpipe names its seed and what it is for."""

import hashlib

import torch


def seeded_generator(seed: int, stream: str) -> torch.Generator:
    """Return the CPU generator of one stream of a seed, unrelated to all other streams and seeds.

    Torch's generator on the CPU keeps 32 bits of a seed, so that seed and seed + 2**32 would be the same
    stream; the 32 bits here are those of a hash.
    """
    digest = hashlib.sha256(f"{stream} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))

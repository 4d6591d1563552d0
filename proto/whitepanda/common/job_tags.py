"""The tag of a job's rows in a CoefficientUpdate. Both ends compute it from the content, so it cannot be forged."""

import hashlib

from whitepanda.v1 import agent_pb2


def tag_of(rows: agent_pb2.CoefficientUpdate) -> int:
    """Return the tag, a digest, of `rows`: only `slot_ns`, and a job's `statistics` and `coefficients` as sent."""
    digest = hashlib.blake2b(rows.SerializeToString(deterministic=True), digest_size=8).digest()
    return int.from_bytes(digest, "big")

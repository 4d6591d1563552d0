"""The tag of a job's rows in a CoefficientUpdate. Both ends compute it from the content, so it cannot be forged."""

import hashlib

from whitepanda.v1 import agent_pb2


def tag_of(rows: agent_pb2.CoefficientUpdate) -> int:
    """Return the tag of a job's rows: a digest of all that they say, and of the slots that they are of.

    Args:
        rows: `slot_ns`, and the job's `statistics` and `coefficients` as they are sent; nothing else.
    """
    digest = hashlib.blake2b(rows.SerializeToString(deterministic=True), digest_size=8).digest()
    return int.from_bytes(digest, "big")

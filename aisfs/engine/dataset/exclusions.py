"""What of a dataset is not shown: reasons and how many, for people to read."""

from collections.abc import Mapping

DAMAGED = "damaged shard"


def summarize(exclusions: Mapping[str, int]) -> str:
    """Return counts in one line, as `2 excluded shards, 1 shard`."""
    return ", ".join(
        f"{n} {reason}{'s' * (n > 1)}" for reason, n in sorted(exclusions.items()) if n
    )

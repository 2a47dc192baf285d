"""Tells in the log what became of a join: which source lacks keys, which parts two of them have."""

import logging
import os
from collections.abc import Sequence

from aisfs.core.views.join import UNJOINED, JoinedSamples

log = logging.getLogger(__name__)

NAMED_MAX = 5
"""Extensions and sources that a line of the log names."""


def report_join(joined: JoinedSamples, sources: Sequence[str]) -> None:
    """Log the keys of each source, the parts that were left out, and why nothing was joined.

    Args:
        joined: The samples.
        sources: The words of the sources.
    """
    for text, (number, _) in zip(sources, joined.found, strict=True):
        log.info("--join: %d keys in %s", number, text)
    if joined.repeated:
        named = ", ".join(
            f"{number} of {os.fsdecode(extension)!r}"
            for extension, number in joined.repeated.most_common(NAMED_MAX)
        )
        log.warning(
            "--join: %d parts are left out, since an earlier source or shard has them: %s",
            joined.repeated.total(),
            named,
        )
    if not len(joined) and joined.skipped[UNJOINED]:
        keys = ", ".join(
            f"{os.fsdecode(key)!r} in {text}" if key else f"none in {text}"
            for text, (_, key) in zip(sources[:NAMED_MAX], joined.found, strict=False)
        )
        log.warning("--join: no key is in all sources; the first keys are %s", keys)

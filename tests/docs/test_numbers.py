"""Numbers that SEMANTICS tells of reads and caches are those of the code."""

from aisfs.cache import directory, maintenance, names, resident
from aisfs.core.policy import shard_readers
from aisfs.core.views import samples
from aisfs.engine import buffers, fetcher, parts, scanning
from aisfs.fuse import mountpoint
from aisfs.mount import memory, services
from tests.docs.documents import SEMANTICS, section
from tests.support.for_each import for_each

MIB = 1 << 20
TOLD = [
    (f"One GET is {buffers.WHOLE_PART_MAX // MIB} MiB at most", True),
    (
        "a sixteenth of `--cache-size`, 1 GiB",
        (services.INDEX_SHARE, services.INDEX_DISK_LIMIT) == (16, 1 << 30),
    ),
    (f"in memory | {memory.MEMORY_MOST // MIB} MiB", True),
    (f"{names.LISTED_ENTRIES_MAX:,} entries", True),
    (f"Each {directory.STEP >> 10} KiB have a checksum", True),
    (f"for {resident.PAUSE_SECONDS:.0f} seconds nothing new is kept", True),
    (f"the last {resident._BATCH_BYTES // MIB} MiB of what", maintenance.SYNC_SECONDS == 1),
    (f"a window of {shard_readers.START_WINDOW // MIB} MiB ahead", True),
    (f"{shard_readers.LARGE_START // MIB} MiB if its first read is", True),
    (f"is of {shard_readers.LARGE_READ >> 10} KiB or more", True),
    (f"up to {shard_readers.NEAR_WINDOW // MIB} MiB or", fetcher.HIGH_LATENCY_SECONDS == 0.02),
    (f"Up to {shard_readers.MAX_STREAMS} readers of one object", True),
    (f"up to {shard_readers.FORWARD // MIB} MiB forward", True),
    (f"or {shard_readers.BACKWARD // MIB} MiB back", True),
    (f"the first dot, {samples.SPAN_MAX // MIB} MiB at most", True),
    ("nine tenths of the disk cache", shard_readers.FITS == 0.9),
    ("a quarter of the disk cache", services.PREFETCH_SHARE == 4),
    (f"`read_ahead_kb` is raised to {mountpoint.READ_AHEAD_KB}", True),
    (f"`max_background` to {mountpoint.MAX_BACKGROUND}", True),
    (f"up to {scanning.WALKS} shards at once", True),
    (f"{scanning.STREAMS} shards are streamed at once", True),
    (f"for {parts.SCANNED_SECONDS / 60:.0f} minutes", True),
]


@for_each("words, holds", TOLD)
def test_numbers_of_reads_and_caches(words: str, holds: bool):
    text = " ".join(section(SEMANTICS, "Reads and caches").split())
    assert words in text
    assert holds, "the code says otherwise"

"""The groups of the benchmark; each has a NAME, a TITLE, NEEDS to import first, and run()."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.engine import Row
from bench.groups import (
    batches,
    bystanders,
    class_view,
    epochs,
    fastpath,
    indexing,
    latency,
    link,
    listing,
    models,
    orders,
    paced,
    peers,
    pictures,
    plan,
    s3,
    shard,
    shuffle,
    writing,
)
from bench.stage import Stage

TORCH = ("torch.utils.data", "aistore.pytorch", "aistore.sdk", "requests")


@dataclass(frozen=True)
class Group:
    """One part of the run, chosen with `--only`."""

    name: str
    title: str
    run: Callable[[Stage, Callable[[str], None]], list[Row]]
    imports: tuple[str, ...] = ()
    """Loaded once before the first measurement, not in each."""


GROUPS = [
    Group("small", "Epochs over 1 KB samples", epochs.small, (*TORCH, "webdataset")),
    Group("images", "Epochs over images of about 110 KB", epochs.images, (*TORCH, "webdataset")),
    Group("orders", "Folder by folder, and all folders listed first", orders.run, TORCH),
    Group("pictures", "Cold pictures, in steady state", pictures.run, (*TORCH, "webdataset")),
    Group("batches", "DynamicBatchSampler: from the bucket to the batches", batches.run, TORCH),
    Group("shard", "One shard, read as a file", shard.run, ("aistore.sdk", "requests")),
    Group("listing", "Listing objects with their sizes", listing.run, ("aistore.sdk", "requests")),
    Group(
        "indexing",
        "Opening a tar of 1 KB members",
        indexing.run,
        ("aisfs.core.archive.tar_scanner", "ratarmountcore.mountsource.formats.tar"),
    ),
    Group("bystanders", "What other requests wait while a shard is scanned", bystanders.run),
    Group("shuffle", "ImageFolder-like epochs: how much of the data is fetched", shuffle.run),
    Group("class view", "The first ls of a class view", class_view.run, ("webdataset",)),
    Group("fastpath", "Scans and random reads: the kernel and the fast path", fastpath.run),
    Group("writing", "Writing into a bucket", writing.run, ("aistore.sdk", "requests", "torch")),
    Group("peers", "Other mounts (rclone, s3fs)", peers.run),
    Group("s3", "Over S3, beside other mounts (rclone, s3fs)", s3.run, ("webdataset",)),
    Group("link", "Cold pictures over a shaped link", link.run, (*TORCH, "webdataset")),
    Group("models", "A model by mmap, over a shaped link", models.run),
    Group("plan", "In an order that was announced, behind 20 ms", plan.run),
    Group("paced", "At the reader's own pace, over a link for half of it", paced.run),
    Group("latency", "Over a modelled link", latency.run, TORCH),
]

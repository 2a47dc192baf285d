"""How much is measured; one value per size, so that a run is described by its name and options."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Settings:
    """What the groups need to know; sizes in bytes, times in seconds."""

    size: str
    """`tiny` (for the tests), `quick` or `full`."""
    repeats: int = 5
    """Rounds of a group at most; each measures every contender once."""
    least: int = 3
    """Rounds of a group at least, whatever they take."""
    budget: float = 110.0
    """Seconds of a group; no round is begun that would not fit."""
    limit: float = 300.0
    """Seconds until a single measurement counts as hung."""
    shards: int = 4
    samples: int = 20_000
    """1 KB samples in the shards."""
    loose: int = 1_000
    """1 KB samples as objects of their own; fewer, as each costs requests."""
    scanned: int = 200_000
    """Files in shards that are looked at."""
    images: int = 2_000
    loose_images: int = 400
    pictures: int = 2_000
    """Different ones in the shards of a long epoch."""
    picture_repeats: int = 10
    """How often each of these shards is there: 2.2 GB, which take 0.2 on the disk of the server."""
    picture_workers: tuple[int, ...] = (0, 2, 8)
    cold_readers: tuple[int, ...] = (1, 2, 4, 8)
    """Processes that read different shards at the same time."""
    cold_reader_shards: int = 16
    """How many shards they share, whatever their number: 0.9 GB."""
    links: tuple[tuple[float, float], ...] = (
        (1, 0.0002), (10, 0.0002), (25, 0.0002), (10, 0.002), (1, 0.02),
    )  # fmt: skip
    """Gbit/s and seconds there and back: the next rack, the next room, another site."""
    link_seconds: float = 1.5
    """How long the link would take for what is read, if there is as much."""
    link_workers: int = 2
    model_bytes: int = 1 << 30
    model_link: tuple[float, float] = (2, 0.01)
    """Gbit/s and seconds there and back."""
    listings: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    batch_objects: int = 50_000
    shard_bytes: int = 512 << 20
    members: int = 50_000
    """Members of the tar that is indexed."""
    shuffled_images: int = 3_000
    epochs: int = 4
    class_shards: int = 1_000
    class_samples: int = 1_000
    """Labelled samples in each shard of the class view."""
    latencies: tuple[float, ...] = (0.001, 0.02, 0.1)
    bandwidth: float = 125e6
    """Of the modelled link: 1 Gbit/s."""
    far_shard_bytes: int = 128 << 20
    far_images: int = 500
    planned_images: int = 2_000
    """Pictures that are read in an order that was announced; of 1 KB samples there are four times as many."""
    far_seconds: float = 6.0
    """What the slowest reader of shuffled samples behind the modelled link may take, about."""
    workers: tuple[int, ...] = (0, 2)
    image_workers: tuple[int, ...] = (0, 2)
    written_bytes: int = 1 << 30
    written_files: int = 10_000


FULL = Settings("full")
QUICK = Settings(
    "quick",
    repeats=3,
    least=2,
    budget=6.0,
    limit=30.0,
    samples=2_000,
    loose=100,
    scanned=20_000,
    images=240,
    loose_images=60,
    pictures=240,
    picture_repeats=4,
    picture_workers=(0,),
    cold_readers=(1, 8),
    cold_reader_shards=8,
    links=((10, 0.0002),),
    link_seconds=0.2,
    model_bytes=128 << 20,
    listings=(10_000,),
    batch_objects=10_000,
    shard_bytes=96 << 20,
    members=10_000,
    shuffled_images=500,
    epochs=2,
    class_shards=20,
    workers=(0,),
    image_workers=(0,),
    latencies=(0.02,),
    far_shard_bytes=24 << 20,
    planned_images=400,
    far_seconds=0.5,
    written_bytes=64 << 20,
    written_files=200,
)
TINY = Settings(
    "tiny",
    repeats=2,
    least=2,
    budget=0.0,
    limit=60.0,
    shards=2,
    samples=40,
    loose=10,
    scanned=60,
    images=8,
    loose_images=4,
    pictures=8,
    picture_repeats=2,
    picture_workers=(0, 2),
    cold_readers=(1, 2),
    cold_reader_shards=2,
    links=((1, 0.0002),),
    link_seconds=0.01,
    model_bytes=4 << 20,
    model_link=(1, 0.001),
    listings=(100,),
    batch_objects=100,
    shard_bytes=2 << 20,
    members=100,
    shuffled_images=500,
    epochs=2,
    class_shards=3,
    class_samples=20,
    latencies=(0.001,),
    far_shard_bytes=1 << 20,
    far_images=40,
    planned_images=10,
    far_seconds=0.02,
    written_bytes=2 << 20,
    written_files=10,
)
SIZES = {settings.size: settings for settings in (FULL, QUICK, TINY)}


def choose(
    size: str, *, repeats: int | None = None, samples: int | None = None, remote: bool = False
) -> Settings:
    """Give the settings of a size, with what the command line changes."""
    settings = SIZES[size]
    if repeats is not None:  # who asks for a number gets it, whatever it takes
        settings = replace(settings, repeats=repeats, least=repeats)
    if samples is not None:
        settings = replace(settings, samples=samples)
    if remote:  # each object is a PUT there
        settings = replace(
            settings,
            listings=tuple(n for n in settings.listings if n <= 10_000),
            batch_objects=min(settings.batch_objects, 10_000),
            class_shards=min(settings.class_shards, 20),
        )
    return settings

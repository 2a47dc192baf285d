"""S3 without AIStore: aisfs beside mounts that know no tar.

Their users store each sample as an object and read files, or let webdataset read the tar through the
mount. aisfs reads files of the shard.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import readers
from bench.data import IMAGE, KILOBYTE, Samples, write_loose, write_shards
from bench.engine import Contender, Reading, Row, measure
from bench.groups import peers
from bench.groups.epochs import UNIT
from bench.groups.measures import few
from bench.mounts import aisfs_command
from bench.readers import Tally, checked, object_url
from bench.stage import Stage

SMALL, PICTURES = "1 KB samples", "pictures"
PEERS = tuple(peers.COMMANDS)
OURS = "aisfs, files of s3+direct:// (X.tar.d)"
FILES = "{}, files (an object for each)"
WEB = "webdataset over {}"
_ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_REGION": "us-east-1",
}
"""Of nobody: the embedded server takes any."""


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure 1 KB samples and pictures, in one process."""
    settings = stage.settings
    kinds = (
        (SMALL, KILOBYTE, settings.samples, settings.loose),
        (PICTURES, IMAGE, settings.images, settings.loose_images),
    )
    with (
        stage.bucket("s3-small") as small,
        stage.bucket("s3-small-objects") as small_objects,
        stage.bucket("s3-pictures") as pictures,
        stage.bucket("s3-pictures-objects") as pictures_objects,
        few(stage) as (_, others),
    ):
        buckets = ((small, small_objects), (pictures, pictures_objects))
        contenders = []
        for (case, size, packed, loose), (shards, objects) in zip(kinds, buckets, strict=True):
            progress(f"s3: writing {packed:,} samples into shards and {loose:,} as objects")
            single = write_loose(stage.store, objects, samples=loose, size=size)
            tars = write_shards(
                stage.store,
                shards,
                samples=packed,
                shards=settings.shards,
                size=size,
                extract_to=None,
            )
            contenders += _Case(stage, case, single, tars, others).contenders()
        return measure("s3", contenders, settings, progress)


@dataclass(frozen=True)
class _Case:
    """Samples of one size, as objects and in shards."""

    stage: Stage
    case: str
    single: Samples
    shards: Samples
    others: Samples
    """A few, which every reader reads first."""

    def contenders(self) -> list[Contender]:
        """Give everyone who reads these samples; the first way of the first peer is the baseline."""
        found = []
        for name, command in peers.COMMANDS.items():
            files = partial(self._measure, command, self.single, _loose, self._warm_files)
            web = partial(self._measure, command, self.shards, self._web, self._warm_web)
            baseline = name == PEERS[0]
            found.append(self._contender(FILES.format(name), files, baseline=baseline))
            found.append(self._contender(WEB.format(name), web))
        ours = partial(self._measure, _aisfs, self.shards, self._members, self._warm_files)
        return [*found, self._contender(OURS, ours)]

    def _contender(
        self, name: str, run: Callable[[], dict[str, Reading]], *, baseline: bool = False
    ) -> Contender:
        return Contender(self.case, name, UNIT, run, baseline=baseline)

    def _measure(
        self,
        command: peers.Command,
        data: Samples,
        read: Callable[[Path], Tally],
        warm_up: Callable[[], object],
    ) -> dict[str, Reading]:
        def work(path: Path) -> Tally:
            return checked(partial(read, path), data.samples, data.size)()

        return peers.through_s3(self.stage, command, data, work, data.samples, warm_up=warm_up)

    def _members(self, path: Path) -> Tally:
        return readers.read_files([path / f"{key}.d" for key in self.shards.keys], 0)

    def _web(self, path: Path) -> Tally:
        return readers.webdataset_shards([str(path / key) for key in self.shards.keys], 0)

    def _warm_files(self) -> Tally:
        return readers.read_files([self.others.extracted or Path("/nonexistent")], 0)

    def _warm_web(self) -> Tally:
        url, bucket = self.stage.endpoint.url, self.others.bucket
        return readers.webdataset_shards([object_url(url, bucket, k) for k in self.others.keys], 0)


def _loose(path: Path) -> Tally:
    return readers.read_files([path], 0)


def _aisfs(stage: Stage, bucket: str, path: Path, cache: Path) -> list[str]:
    url = stage.endpoint.url
    environment = {"AWS_ENDPOINT_URL": f"{url}/s3", **_ACCOUNT}
    command = aisfs_command(
        f"s3+direct://{bucket}",
        path,
        endpoint=url,
        cache_dir=cache,
        log=stage.directory / "mount.log",
        options=(),
    )
    return ["env", *(f"{name}={value}" for name, value in environment.items()), *command]

"""Epochs over samples: the seed benchmark's table, with the mount beside its readers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import readers
from bench.data import IMAGE, KILOBYTE, Samples, write_loose, write_shards
from bench.engine import Contender, Reading, Row, measure
from bench.groups.measures import (
    curl_epoch,
    few,
    mount_epochs,
    mount_states,
    reading,
    two_epochs,
)
from bench.processes import NotMeasured
from bench.readers import Tally, checked, object_url
from bench.stage import Stage

UNIT = "samples/s"
GET = "one GET per object (requests)"
CURL = "curl of the shards, not opened"
SDK_OBJECTS = "AISIterDataset (aistore)"
SDK_SHARDS = "AISShardReader (aistore)"
WEB = "webdataset over HTTP"
WEB_MOUNT = "webdataset over the mount"
FILES = "files of the mount (X.tar.d)"
EXTRACTED = "the same files extracted, local disk"
BUFFERED = "files of the mount, plain open() of Python"
EXTRACTED_BUFFERED = "the same files extracted, plain open() of Python"


def small(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure 1 KB samples."""
    settings = stage.settings
    return _run(
        stage, progress, "small", KILOBYTE, settings.samples, settings.loose, settings.workers
    )


def images(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure images; nothing decodes them, so that decoding does not hide the readers."""
    settings = stage.settings
    number, loose = settings.images, settings.loose_images
    return _run(stage, progress, "images", IMAGE, number, loose, settings.image_workers)


def _run(
    stage: Stage,
    progress: Callable[[str], None],
    group: str,
    size: int,
    packed: int,
    loose: int,
    all_workers: Sequence[int],
) -> list[Row]:
    progress(f"{group}: writing {packed:,} samples into shards and {loose:,} as objects")
    with (
        stage.bucket(f"{group}-objects") as objects,
        stage.bucket(f"{group}-shards") as bucket,
        stage.folder("extracted") as extracted,
        few(stage) as others,
    ):
        single = write_loose(stage.store, objects, samples=loose, size=size)
        shards = write_shards(
            stage.store,
            bucket,
            samples=packed,
            shards=stage.settings.shards,
            size=size,
            extract_to=extracted,
        )
        contenders = []
        for workers in all_workers:
            contenders += _Epochs(stage, single, shards, *others, workers).contenders()
        return measure(group, contenders, stage.settings, progress)


@dataclass(frozen=True)
class _Epochs:
    """One number of workers."""

    stage: Stage
    single: Samples
    shards: Samples
    few_single: Samples
    few_shards: Samples
    workers: int

    def contenders(self) -> list[Contender]:
        """Give everyone who reads these samples; curl has no workers."""
        curl = Contender(self._case, CURL, UNIT, self._curl, ("cold",))
        warm_files = partial(self._extracted, self.few_shards, 0)
        warm_web = partial(self._web, self.few_shards, 0)
        return [
            self._plain(GET, self.single, self._gets, baseline=True),
            *([] if self.workers else [curl]),
            self._plain(SDK_OBJECTS, self.single, self._sdk_objects),
            self._plain(SDK_SHARDS, self.shards, self._sdk_shards),
            self._plain(WEB, self.shards, self._web),
            self._of_mount(WEB_MOUNT, self._web_mount, warm_web, remount=False),
            self._of_mount(FILES, self._files, warm_files, remount=not self.workers),
            self._plain(EXTRACTED, self.shards, self._extracted),
            *([] if self.workers else self._buffered(warm_files)),
        ]

    def _buffered(self, warm_up: Callable[[], object]) -> list[Contender]:
        return [
            self._of_mount(BUFFERED, self._files_buffered, warm_up, remount=False),
            self._plain(EXTRACTED_BUFFERED, self.shards, self._extracted_buffered),
        ]

    @property
    def _case(self) -> str:
        return f"{self.workers} workers"

    @property
    def _url(self) -> str:
        return self.stage.endpoint.url

    def _plain(
        self,
        name: str,
        data: Samples,
        read: Callable[[Samples, int], Tally],
        *,
        baseline: bool = False,
    ) -> Contender:
        warm = self.few_single if data is self.single else self.few_shards
        work = checked(partial(read, data, self.workers), data.samples, data.size)
        run = partial(
            two_epochs, self.stage, data, work, data.samples, warm_up=partial(read, warm, 0)
        )
        return Contender(self._case, name, UNIT, run, baseline=baseline)

    def _of_mount(
        self,
        name: str,
        read: Callable[[Path], Tally],
        warm_up: Callable[[], object],
        *,
        remount: bool,
    ) -> Contender:
        data = self.shards

        def work(path: Path) -> Tally:
            return checked(partial(read, path), data.samples, data.size)()

        run = partial(
            mount_epochs, self.stage, data, work, data.samples, remount=remount, warm_up=warm_up
        )
        return Contender(self._case, name, UNIT, run, mount_states(remount))

    def _gets(self, data: Samples, workers: int) -> Tally:
        return readers.get_objects(self._url, data.bucket, data.keys, workers)

    def _sdk_objects(self, data: Samples, workers: int) -> Tally:
        return readers.sdk_objects(self._url, data.bucket, workers)

    def _sdk_shards(self, data: Samples, workers: int) -> Tally:
        return readers.sdk_shards(self._url, data.bucket, workers)

    def _web(self, data: Samples, workers: int) -> Tally:
        urls = [object_url(self._url, data.bucket, key) for key in data.keys]
        return readers.webdataset_shards(urls, workers)

    def _extracted(
        self, data: Samples, workers: int, dataset: type[readers.Files] = readers.Files
    ) -> Tally:
        if data.extracted is None:
            raise NotMeasured("nothing was extracted")
        return readers.read_files([data.extracted], workers, dataset)

    def _extracted_buffered(self, data: Samples, workers: int) -> Tally:
        return self._extracted(data, workers, readers.BufferedFiles)

    def _web_mount(self, path: Path) -> Tally:
        paths = [str(path / key) for key in self.shards.keys]
        return readers.webdataset_shards(paths, self.workers)

    def _files(self, path: Path, dataset: type[readers.Files] = readers.Files) -> Tally:
        folders = [path / f"{key}.d" for key in self.shards.keys]
        return readers.read_files(folders, self.workers, dataset)

    def _files_buffered(self, path: Path) -> Tally:
        return self._files(path, readers.BufferedFiles)

    def _curl(self) -> dict[str, Reading]:
        data = self.shards
        self.stage.cool(data)
        counted = self.stage.measure(
            lambda: curl_epoch(self.stage.endpoint, data.bucket, data.keys, data.stored)
        )
        return {"cold": reading(data.samples, counted)}

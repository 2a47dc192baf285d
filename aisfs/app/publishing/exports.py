"""Indexes that other programs read, beside the shards or on this machine."""

import os
import posixpath
from functools import partial
from pathlib import Path

import trio

from aisfs.app.publishing.plan import LIST_NAME, Export, Format
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import DALI_SUFFIX, dali_index, wids_samples
from aisfs.core.names.listing import is_plain_tar, shard_stem
from aisfs.core.names.sources import ListedShard, encode_shard_list
from aisfs.engine.dataset.shard_set import Shard
from aisfs.errors import ConfigError, Unsupported
from aisfs.stores.port import BytesContent, WritableStore


class Exporter:
    """Writes one format."""

    def __init__(self, export: Export, shards: list[Shard], store: WritableStore) -> None:
        """Write the indexes of `shards`, in this order.

        Raises:
            ConfigError: there is no place beside all of them.
        """
        self._export = export
        self._shards = shards
        self._store = store
        self._listed: dict[int, ListedShard] = {}
        """By place in the dataset."""
        self.written: list[str] = []
        buckets = {shard.bucket for shard in shards}
        if export.path is None and export.format is Format.WIDS and len(buckets) > 1:
            raise ConfigError("--write-idx wids: shards of several buckets; give wids=FILE.json")
        self._directory = common_directory(shards)

    def prepare(self) -> None:
        """Make the directories of this machine that are written to.

        Raises:
            ConfigError: one cannot be made.
        """
        if self._export.path is not None:
            for place in self.targets():
                make_directory("--write-idx", Path(place).parent)

    def targets(self) -> list[str]:
        """Return where everything would be written to, as far as names tell."""
        if self._export.format is Format.WIDS:
            return [self._list_place()]
        tars = (shard for shard in self._shards if is_plain_tar(os.fsencode(shard.info.key)))
        return [self._dali_place(shard) for shard in tars]

    async def add(self, at: int, index: MemberIndex) -> None:
        """Take the index of the shard at a place of the dataset.

        Raises:
            Unsupported: the format has nothing for such a shard.
        """
        shard = self._shards[at]
        if self._export.format is Format.DALI:
            data = await trio.to_thread.run_sync(dali_index, index)
            await self._write(shard, self._dali_key(shard), self._dali_place(shard), data)
            return
        samples = await trio.to_thread.run_sync(wids_samples, index)
        self._listed[at] = ListedShard(self._url(shard), samples, shard.info.size)

    async def finish(self) -> None:
        """Write what is about all shards together."""
        if self._export.format is Format.WIDS and self._listed:
            data = encode_shard_list(self._listed[at] for at in sorted(self._listed))
            first = self._shards[0]
            await self._write(first, self._directory + LIST_NAME, self._list_place(), data)

    async def _write(self, shard: Shard, key: str, place: str, data: bytes) -> None:
        if self._export.path is None:
            await self._store.upload(shard.bucket, key, BytesContent(data))
        else:
            await trio.to_thread.run_sync(partial(_write_file, Path(place), data))
        self.written.append(place)

    def _list_place(self) -> str:
        if self._export.path is not None:
            return str(self._export.path)
        return f"{self._shards[0].bucket}/{self._directory}{LIST_NAME}"

    def _dali_key(self, shard: Shard) -> str:
        return shard_stem(shard.info.key) + DALI_SUFFIX

    def _dali_place(self, shard: Shard) -> str:
        key = self._dali_key(shard)
        if self._export.path is None:
            return f"{shard.bucket}/{key}"
        return str(self._export.path / key[len(self._directory) :])

    def _url(self, shard: Shard) -> str:
        """Return the URL of a shard; below the directory of the list, it is relative."""
        key, path = shard.info.key, self._export.path
        try:
            os.fsencode(key).decode()
        except UnicodeDecodeError:
            raise Unsupported("JSON cannot hold its name, which is not UTF-8") from None
        if path is None:
            return posixpath.relpath(key, self._directory or ".")
        url = f"{shard.bucket}/{key}"
        own = f"{path.parent}/"
        return url.removeprefix(own)


def common_directory(shards: list[Shard]) -> str:
    """Return the prefix of all shards that is a directory, empty or with a slash at its end."""
    directory = posixpath.commonpath([posixpath.dirname(shard.info.key) for shard in shards])
    return f"{directory}/" if directory else ""


def _write_file(path: Path, data: bytes) -> None:
    """Write a file of this machine: whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--write-idx: {path}: {error.strerror}") from error


def make_directory(option: str, directory: Path) -> None:
    """Make what an option names, if it is not there.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"{option}: {directory} is no directory") from None
    except OSError as error:
        raise ConfigError(f"{option}: {directory}: {error.strerror}") from error

"""What is to be mounted, and how: the arguments and options of a command as checked values."""

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aisfs.config import (
    WRITABLE_DIR_MODE,
    WRITABLE_FILE_MODE,
    CacheSettings,
    ClusterSettings,
    KernelSettings,
    Settings,
    TreeSettings,
    ViewSettings,
    WriteSettings,
)
from aisfs.core.namespace.keys import is_shard
from aisfs.core.namespace.patterns import EVERY_KEY, KeyFilter
from aisfs.core.namespace.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    Source,
    absolute,
    parse_list,
    parse_source,
    parse_sources,
)
from aisfs.core.views.spec import ViewSpec, absolute_table, parse_view
from aisfs.errors import ConfigError, MountError, SourceMissing

SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Everything that has to be known to read a source."""

    source: Source
    cluster: ClusterSettings
    tree: TreeSettings
    cache: CacheSettings
    view: ViewSpec = field(default_factory=ViewSpec)
    """How a dataset is laid out; other sources are shown as they are."""
    keys: KeyFilter = EVERY_KEY
    """What of a bucket, prefix or directory is shown; a dataset has a filter of its own."""
    writing: WriteSettings = field(default_factory=WriteSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan(SourcePlan):
    """Everything that has to be known to mount a source."""

    mountpoint: Path
    options: frozenset[str]
    """Mount options for the kernel, as of `mount -o`."""
    kernel: KernelSettings


def is_local(source: Source) -> bool:
    """Return whether a source needs no cluster."""
    return isinstance(source, DirectorySource) or (
        isinstance(source, DatasetSource) and source.local
    )


def origin_of(plan: SourcePlan) -> str:
    """Return where the objects are: the endpoint, or the directory that is mounted."""
    if isinstance(plan.source, DirectorySource):
        return str(plan.source.path.resolve())
    if isinstance(plan.source, DatasetSource) and plan.source.local:
        return plan.source.root
    return plan.cluster.endpoint


def check_places(plan: MountPlan) -> None:
    """Refuse a mountpoint over anything the daemon reads or writes: it would wait for itself.

    Raises:
        MountError: the message names the place.
    """
    places = {"--cache-dir": str(plan.cache.cache_dir)} if plan.cache.cache_size != 0 else {}
    if plan.writing.writable:
        places["--staging-dir"] = str(plan.writing.staging_dir)
    mountpoint = os.path.realpath(plan.mountpoint)
    if isinstance(plan.source, DirectorySource):
        source = os.path.realpath(plan.source.path)
        places["the source"] = source
        if Path(mountpoint).is_relative_to(source):
            raise MountError(f"mountpoint {plan.mountpoint} lies in what is mounted there")
    elif isinstance(plan.source, DatasetSource) and plan.source.local:
        directories = {pattern.directory for word in plan.source.words for pattern in word.patterns}
        places |= {f"the source {directory}": directory for directory in directories}
    for what, place in places.items():
        if Path(os.path.realpath(place)).is_relative_to(mountpoint):
            raise MountError(f"{what} lies below the mountpoint {plan.mountpoint}")


def plan_mount(
    words: list[str],
    mountpoint: Path,
    options: Collection[str],
    settings: Mapping[str, object],
) -> MountPlan:
    """Return what the arguments and options of `aisfs mount` ask for.

    Args:
        words: Each SOURCE as it was typed.
        mountpoint: The directory to mount on.
        options: Mount options for the kernel.
        settings: The options that were given, by name of the setting.

    Raises:
        ConfigError: they contradict each other, or one of them makes no sense.
    """
    view = _load(ViewSettings, settings)
    spec = parse_view(view, _read_classes(view.classes) if view.classes is not None else None)
    source = _read_source(words, view, settings)
    writing = _load(WriteSettings, settings)
    if writing.writable:
        _check_writable(source, view)
        modes = {"file_mode": WRITABLE_FILE_MODE, "dir_mode": WRITABLE_DIR_MODE}
        settings = {**modes, **settings}
    elif "rw" in options:
        raise ConfigError("-o rw: mounts are read-only without --writable")
    return MountPlan(
        source=source,
        view=absolute_table(spec, local=is_local(source)),
        keys=EVERY_KEY if isinstance(source, DatasetSource) else _key_filter(view),
        mountpoint=mountpoint.absolute(),
        tree=_load(TreeSettings, settings),
        cache=_load(CacheSettings, settings),
        writing=writing,
        options=frozenset(options),
        kernel=_load(KernelSettings, settings),
        cluster=_load_cluster(source, settings),
    )


def plan_inspection(text: str, settings: Mapping[str, object]) -> tuple[SourcePlan, str | None]:
    """Return where `aisfs inspect SOURCE` looks, and the key of the one object if it names one.

    Raises:
        ConfigError: the source or an option makes no sense.
        SourceMissing: there is no such file or directory.
    """
    source = parse_sources([text], is_directory=os.path.isdir)
    if isinstance(source, DatasetSource):
        patterns = source.words[0].patterns
        if len(patterns) == 1 and patterns[0].one:  # one shard, or a directory named like one
            source = parse_source(text)
    place, only = _split_source(source)
    plan = SourcePlan(
        source=place,
        cluster=_load_cluster(place, settings),
        tree=_load(TreeSettings, settings),
        cache=_load(CacheSettings, settings),
    )
    return plan, only


def _split_source(source: Source) -> tuple[Source, str | None]:
    match source:
        case Everything():
            raise ConfigError("give a bucket, a shard or a directory")
        case DirectorySource(path) if path.is_dir():
            return source, None
        case DirectorySource(path):
            if not path.exists():
                raise SourceMissing(f"{path}: no such file or directory")
            return DirectorySource(path.parent), path.name
        case BucketSource(bucket, prefix):
            directory, slash, name = prefix.removesuffix("/").rpartition("/")
            if is_shard(os.fsencode(name)):
                return BucketSource(bucket, directory + slash), prefix.removesuffix("/")
    return source, None


def _load(kind: type[SettingsT], settings: Mapping[str, object]) -> SettingsT:
    return kind.load({name: v for name, v in settings.items() if name in kind.model_fields})


def _load_cluster(source: Source, settings: Mapping[str, object]) -> ClusterSettings:
    cluster = _load(ClusterSettings, settings)
    if not is_local(source):
        cluster.require_endpoint()
    return cluster


def _read_source(words: list[str], view: ViewSettings, given: Collection[str]) -> Source:
    """Return what is to be mounted; `given` are the names of all settings that were given.

    Raises:
        ConfigError: the words or the list file make no sense.
    """
    listed = None
    if view.files_from is not None:
        if len(words) > 1:
            raise ConfigError("--files-from: give at most one SOURCE, the directory of its lines")
        name = view.files_from
        try:
            text = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except OSError as error:
            raise ConfigError(f"--files-from {name}: {error.strerror}") from error
        base = words[0] if words else None
        listed = parse_list(name, os.fsdecode(text).splitlines(), base, is_directory=os.path.isdir)
    source = parse_sources(
        words,
        is_directory=os.path.isdir,
        view=view.view is not None,
        listed=listed,
        keys=_key_filter(view),
    )
    options = sorted(view.model_fields_set)
    if isinstance(source, BucketSource | DirectorySource):
        options = [name for name in options if name not in ("include", "exclude")]
    if options and not isinstance(source, DatasetSource):
        raise ConfigError(f"--{options[0].replace('_', '-')} needs --view, or shards as the SOURCE")
    if isinstance(source, DatasetSource) and "shards" in given:
        raise ConfigError("--shards: a dataset shows only the members of shards; see --view")
    if view.shuffle is not None and "shard_index" in given:
        raise ConfigError("--shard-index: not with --shuffle, which needs the headers of members")
    return absolute(source)


def _key_filter(view: ViewSettings) -> KeyFilter:
    return KeyFilter(view.include or (), view.exclude or ())


def _read_classes(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--classes {path}: {error.strerror}") from error


def _check_writable(source: Source, view: ViewSettings) -> None:
    """Refuse writing where a change would reach what is not shown."""
    if isinstance(source, DatasetSource):
        raise ConfigError(
            "--writable: a dataset cannot be changed; mount its bucket or directory without --view"
        )
    if view.include or view.exclude:
        raise ConfigError(
            "--writable: not with --include or --exclude, since hidden files could be overwritten"
        )

"""The setup of a mount: the arguments and options of a command as checked values."""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

import trio

from aisfs.core.index.builder import MAX_NESTING
from aisfs.core.index.published import ScanRules
from aisfs.core.names.listing import is_shard
from aisfs.core.names.reach import Reach
from aisfs.core.names.sources import (
    EVERY_KEY,
    LIST_SUFFIX,
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    KeyFilter,
    ShardPattern,
    Source,
    SourceArg,
    absolute,
    is_pattern,
    is_shard_list,
    missing_path,
    parse_list,
    parse_shard_list,
    parse_source,
    parse_sources,
)
from aisfs.core.views.sample_views import without_mark
from aisfs.core.views.spec import ViewSpec, absolute_table, parse_view
from aisfs.errors import AisfsError, ConfigError, MountError, SourceMissing
from aisfs.settings import (
    WRITABLE_DIR_MODE,
    WRITABLE_FILE_MODE,
    CacheSettings,
    ClusterSettings,
    KernelSettings,
    MonitoringSettings,
    Settings,
    ShardIndex,
    TransformSettings,
    TreeSettings,
    View,
    ViewSettings,
    WriteSettings,
)
from aisfs.stores.registry import as_served, direct_store, origin_of_store, refuse_read_only
from aisfs.system.forks import can_fork, in_child
from aisfs.system.threads import start_service_thread

if TYPE_CHECKING:
    from aisfs.stores.transformed import Command

SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSetup:
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
    only_indexes: bool = False
    """Whether only members are wanted, as a scan finds them: then no index is looked for elsewhere,
    and no contents go into the disk cache, where they would evict what is read again."""
    partly: bool = False
    """Whether only a part of the source is read, so that the whole of it need not be listable."""
    rescan: bool = False
    """Whether no index is taken from the disk cache."""
    transform: TransformSettings = field(default_factory=TransformSettings)
    """What is done with objects before they are shown."""
    command: "Command | None" = None
    """What `--transform` runs."""
    reach: Reach | None = None
    """Where redirects of web servers may lead, if somebody else than the user named the source."""
    sharers: Callable[[], int] | None = None
    """Returns how many mounts share the memory of the control group, if there can be more than this one."""

    @property
    def scan(self) -> ScanRules:
        """The options that decide which members a scan shows."""
        nesting = MAX_NESTING if self.tree.recursive else 0
        return ScanRules(self.tree.ignore_zeros, nesting, self.tree.encoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSetup(SourceSetup):
    """Everything that has to be known to mount a source."""

    mountpoint: Path
    options: frozenset[str]
    """Mount options for the kernel, as of `mount -o`."""
    kernel: KernelSettings
    lazy: bool = False
    """Do not wait until the dataset is ready."""
    monitoring: MonitoringSettings = field(default_factory=MonitoringSettings)
    strict: bool = False
    """Fail if the view shows nothing."""


def is_local(source: Source) -> bool:
    """Return whether a source needs no cluster."""
    return isinstance(source, DirectorySource) or (
        isinstance(source, DatasetSource) and source.local
    )


def origin_of(setup: SourceSetup) -> str:
    """Return where the objects are: the endpoint, the store, or the directory that is mounted; and how they are transformed."""
    origin = _place_of(setup)
    return f"{origin} {setup.transform}" if setup.transform else origin


def _place_of(setup: SourceSetup) -> str:
    if isinstance(setup.source, DirectorySource):
        return str(setup.source.path.resolve())
    if isinstance(setup.source, DatasetSource) and setup.source.local:
        return setup.source.root
    return origin_of_store(setup.source, setup.cluster)


def check_places(setup: MountSetup) -> None:
    """Refuse a mountpoint over anything the daemon reads or writes: it would wait for itself.

    Raises:
        MountError: the message names the place.
    """
    places = {"--cache-dir": str(setup.cache.cache_dir)} if setup.cache.cache_size != 0 else {}
    if setup.writing.writable:
        places["--staging-dir"] = str(setup.writing.staging_dir)
    for option in ("record", "replay"):
        if (file := getattr(setup.cache, option)) is not None:
            places[f"--{option}"] = str(file)
    mountpoint = os.path.realpath(setup.mountpoint)
    if isinstance(setup.source, DirectorySource):
        source = os.path.realpath(setup.source.path)
        places["the source"] = source
        if Path(mountpoint).is_relative_to(source):
            raise MountError(f"mountpoint {setup.mountpoint} lies in what is mounted there")
    elif isinstance(setup.source, DatasetSource) and setup.source.local:
        directories = {
            pattern.directory for word in setup.source.words for pattern in word.patterns
        }
        places |= {f"the source {directory}": directory for directory in directories}
    for what, place in places.items():
        if Path(os.path.realpath(place)).is_relative_to(mountpoint):
            raise MountError(f"{what} lies below the mountpoint {setup.mountpoint}")


def _check_writing(writing: WriteSettings, source: Source, options: Collection[str]) -> None:
    """Check that options about writing fit together, and the source."""
    if writing.writable:
        if writing.create_bucket and not isinstance(source, BucketSource):
            raise ConfigError("--create-bucket: give a bucket as the SOURCE")
        if writing.allow_bucket_changes and not isinstance(source, Everything):
            raise ConfigError("--allow-bucket-changes: mount all buckets, without a SOURCE")
        return
    for option in ("create_bucket", "allow_bucket_changes", "write_back"):
        if getattr(writing, option):
            raise ConfigError(f"--{option.replace('_', '-')} needs --writable")
    if "rw" in options:
        raise ConfigError("-o rw: mounts are read-only without --writable")


def _check_transform(
    transform: TransformSettings, writing: WriteSettings, cache: CacheSettings, source: Source
) -> None:
    """Check that options about transformations fit the others, and the source."""
    if transform.etl_args and not transform.etl:
        raise ConfigError("--etl-args needs --etl")
    if not transform:
        return
    option = "--etl" if transform.etl else "--transform"
    if transform.etl and transform.transform:
        raise ConfigError("--transform: not with --etl")
    if writing.writable:
        raise ConfigError(f"--writable: not with {option}: what is made of an object is only read")
    if cache.cache_size == 0:
        raise ConfigError(f"{option}: not with --cache-size 0, since results are kept on disk")
    if transform.etl and (is_local(source) or direct_store(source)):
        raise ConfigError(f"--etl: {source} is not in AIStore; --transform runs a command here")


class Transformation(TypedDict):
    """What a setup says of transformations."""

    transform: TransformSettings
    command: "Command | None"


def transformation(settings: Mapping[str, object], source: Source) -> Transformation:
    """Return what is done with the objects of a source before they are read.

    Raises:
        ConfigError: options contradict each other, or the source.
    """
    transform = load(TransformSettings, settings)
    writing, cache = load(WriteSettings, settings), load(CacheSettings, settings)
    _check_transform(transform, writing, cache, source)
    if not transform.transform:
        return {"transform": transform, "command": None}
    from aisfs.stores.transformed import parse_command

    return {"transform": transform, "command": parse_command(transform.transform)}


def mount_setup(
    words: list[str],
    mountpoint: Path,
    options: Collection[str],
    settings: Mapping[str, object],
) -> MountSetup:
    """Return what the arguments and options of `aisfs mount` ask for.

    Args:
        words: Each SOURCE as it was typed.
        mountpoint: The directory to mount on.
        options: Mount options for the kernel.
        settings: The options that were given, by name of the setting.

    Raises:
        ConfigError: they contradict each other, or one of them makes no sense.
    """
    view = load(ViewSettings, settings)
    spec = parse_view(view, _read_classes(view.classes) if view.classes is not None else None)
    source = as_served(read_source(words, view, settings), load(ClusterSettings, settings))
    writing = load(WriteSettings, settings)
    if writing.writable:
        _check_writable(source, view)
        refuse_read_only(source, load(ClusterSettings, settings), "--writable: ")
        modes = {"file_mode": WRITABLE_FILE_MODE, "dir_mode": WRITABLE_DIR_MODE}
        settings = {**modes, **settings}
    _check_writing(writing, source, options)
    transforming = transformation(settings, source)
    transform = transforming["transform"]
    cache, kernel = load(CacheSettings, settings), load(KernelSettings, settings)
    for option in ("record", "replay"):
        if getattr(cache, option) is not None and not kernel.fastpath:
            raise ConfigError(f"--{option}: not with --no-fastpath, where no order is followed")
    if transform.epochs and not transform and spec.shuffle is None:
        raise ConfigError("--epochs needs --shuffle, --etl or --transform")
    if transform.epochs and transform and isinstance(source, DatasetSource):
        patterns = (pattern for word in source.words for pattern in word.patterns)
        if any(pattern.listing for pattern in patterns):  # it may name shards by other names
            raise ConfigError(
                "--epochs: not with a list of shards in a bucket: --files-from reads it"
            )
    tree = load(TreeSettings, settings)
    if spec.reshaped and tree.shard_index is ShardIndex.ALWAYS:
        option = "--view shards --join" if view.shuffle is None else "--shuffle"
        raise ConfigError(f"--shard-index: not with {option}, which needs the headers of members")
    return MountSetup(
        source=source,
        view=absolute_table(spec, local=is_local(source)),
        keys=EVERY_KEY if isinstance(source, DatasetSource) else _key_filter(view),
        mountpoint=mountpoint.absolute(),
        tree=tree,
        cache=cache,
        writing=writing,
        options=frozenset(options),
        kernel=kernel,
        monitoring=load(MonitoringSettings, settings),
        lazy=view.lazy and not view.strict,
        strict=view.strict,
        cluster=load_cluster(source, settings),
        **transforming,
    )


def transformed_setup(words: list[str], settings: Mapping[str, object]) -> SourceSetup:
    """Return how to make what a mount with `--etl` of these sources shows.

    Raises:
        ConfigError: a source or an option makes no sense.
    """
    view = load(ViewSettings, settings)
    source = as_served(read_source(words, view, settings), load(ClusterSettings, settings))
    transform, cache = load(TransformSettings, settings), load(CacheSettings, settings)
    _check_transform(transform, WriteSettings(), cache, source)
    return SourceSetup(
        source=source,
        cluster=load_cluster(source, settings),
        tree=load(TreeSettings, settings).changed(published_index=False),
        cache=cache,
        keys=EVERY_KEY if isinstance(source, DatasetSource) else _key_filter(view),
        transform=transform,
    )


def inspection_setup(
    words: Sequence[str], settings: Mapping[str, object]
) -> tuple[SourceSetup, str | None]:
    """Return where `aisfs inspect SOURCE…` looks, and the key of the one object if it names one.

    Raises:
        ConfigError: a source or an option makes no sense.
        SourceMissing: there is no such file or directory.
    """
    if len(words) == 1 and not settings.keys() & ViewSettings.options.keys():
        place, only = _split_source(_parse_one(words[0], settings))
    else:
        place, only = read_shards(words, settings), None
    place = as_served(place, load(ClusterSettings, settings))
    setup = SourceSetup(
        source=place,
        cluster=load_cluster(place, settings),
        tree=load(TreeSettings, settings),
        cache=load(CacheSettings, settings),
        **transformation(settings, place),
    )
    return setup, only


def existing(settings: Mapping[str, object], *, before_fork: bool = False) -> Callable[[str], bool]:
    """Return the function that finds out whether a local path, or a key or a directory of a bucket, exists.

    It asks once, without retries: what cannot be asked does not exist, and is explained when it is used. With
    `before_fork`, it asks in a child process: the clients of clouds start threads, and do nothing in a daemon that
    is forked after that.
    """

    def ask(text: str) -> bool:
        if "://" not in text:
            return os.path.isdir(text) if text.endswith("/") else os.path.lexists(text)
        from aisfs.mount.source import has_name  # most arguments need no connection yet

        def here() -> bool:
            found: list[bool] = []

            def work() -> None:
                with suppress(AisfsError):
                    cluster = load(ClusterSettings, settings)
                    found.append(trio.run(has_name, text, cluster))

            start_service_thread("aisfs exists", work).join()  # a command may be in trio already
            return any(found)

        if not (before_fork and can_fork()):
            return here()
        with suppress(AisfsError):
            return in_child(here)
        return False

    return ask


def _parse_one(text: str, settings: Mapping[str, object]) -> Source:
    lists = read_lists([text])
    exists = existing(settings)
    source = parse_sources([text], is_directory=os.path.isdir, lists=lists, exists=exists)
    if isinstance(source, DatasetSource) and not lists:
        first, *more = source.words[0].patterns
        if first.one and not first.listing and not more and may_be_directory(text, first):
            return parse_source(text)
    return source


def may_be_directory(text: str, pattern: ShardPattern) -> bool:
    """Return whether the one key that a SOURCE names may be a directory that is named like a shard.

    On a web server, which may have no index of it, it is a file.
    """
    bucket = pattern.bucket
    return not is_pattern(text) and (bucket is None or bucket.store != "web")


def _split_source(source: Source) -> tuple[Source, str | None]:
    match source:
        case Everything():
            raise ConfigError("give a bucket, a shard or a directory")
        case DirectorySource(path) if path.is_dir():
            return source, None
        case DirectorySource(path):
            if not path.exists():
                raise SourceMissing(missing_path(path, "file or directory"))
            return DirectorySource(path.parent, path.name), path.name
        case BucketSource(bucket, prefix):
            directory, slash, name = prefix.removesuffix("/").rpartition("/")
            if is_shard(os.fsencode(name)):
                return BucketSource(bucket, directory + slash), prefix.removesuffix("/")
    return source, None


def load(kind: type[SettingsT], settings: Mapping[str, object]) -> SettingsT:
    """Return the settings of one kind among all that were given."""
    return kind.load({name: v for name, v in settings.items() if name in kind.options})


def load_cluster(source: Source, settings: Mapping[str, object]) -> ClusterSettings:
    """Return how to reach the cluster, whose endpoint a source in its buckets needs."""
    cluster = load(ClusterSettings, settings)
    check_endpoint(source, cluster)
    return cluster


def check_endpoint(source: Source, cluster: ClusterSettings) -> None:
    """Make sure that there is an endpoint, if a source needs one.

    Raises:
        NoEndpoint: there is none.
        ConfigError: the source is in AIStore only, and something else was asked for.
    """
    source = as_served(source, cluster)
    if is_local(source) or direct_store(source):
        return
    if cluster.direct and isinstance(source, Everything):
        raise ConfigError("--direct: give a SOURCE")
    if cluster.direct:
        raise ConfigError(f"--direct: {source} is in AIStore and nowhere else")
    cluster.require_endpoint()


def read_shards(words: Sequence[str], settings: Mapping[str, object]) -> DatasetSource:
    """Return the shards that the arguments and options of a command mean.

    Raises:
        ConfigError: there is no SOURCE, or one of them or the list file makes no sense.
    """
    view = load(ViewSettings, {**settings, "view": View.FLAT})
    if not words and view.files_from is None:
        raise ConfigError("give a SOURCE: a bucket, a directory, or shards")
    source = read_source(list(words), view, settings)
    source = as_served(source, load(ClusterSettings, settings))
    assert isinstance(source, DatasetSource), "a view makes a dataset of any source"
    return source


def read_source(words: list[str], view: ViewSettings, given: Mapping[str, object]) -> Source:
    """Return what is to be mounted; `given` are all settings that were given.

    Raises:
        ConfigError: the words or the list file make no sense.
    """
    listed, lists = None, {}
    if view.files_from is not None:
        if len(words) > 1:
            raise ConfigError("--files-from: give at most one SOURCE, the directory of its lines")
        listed = _read_list_file(view.files_from, words[0] if words else None)
    else:
        lists = read_lists(words)
    source = parse_sources(
        words,
        is_directory=os.path.isdir,
        is_file=os.path.isfile,
        view=view.view is not None,
        listed=listed,
        lists=lists,
        keys=_key_filter(view),
        exists=existing(given, before_fork=True),
    )
    options = sorted(view.typed)
    if isinstance(source, BucketSource | DirectorySource):
        options = [name for name in options if name not in ("include", "exclude")]
    if options and not isinstance(source, DatasetSource):
        raise ConfigError(f"--{options[0].replace('_', '-')} needs --view, or shards as the SOURCE")
    if isinstance(source, DatasetSource) and "shards" in given:
        raise ConfigError("--shards: a dataset shows only the members of shards; see --view")
    if isinstance(source, DatasetSource):
        source = replace(source, magic=load(TreeSettings, given).magic)
        source = _check_join(source) if view.join is not None else source
    return absolute(source)


def _check_join(source: DatasetSource) -> DatasetSource:
    """Return the sources to be joined."""
    source = source.separated()
    if len(source.words) < 2:
        raise ConfigError(
            "--join: give at least two SOURCEs, each with some parts of the samples, such as"
            " 'ais://images/*.tar' 'ais://labels/*.tar'"
        )
    return source


def read_lists(words: Iterable[str]) -> dict[str, SourceArg]:
    """Return what those of the words stand for that are lists of shards on this machine."""
    found = [word for word in words if word.endswith(LIST_SUFFIX) and os.path.isfile(word)]
    return {word: _parse_list_file(word, _read(word, word), None) for word in found}


def _read_list_file(name: str, base: str | None) -> SourceArg:
    """Return what the file of `--files-from` names; `base` is the SOURCE it is relative to."""
    read = sys.stdin.buffer.read() if name == "-" else _read(name, f"--files-from {name}")
    text = without_mark(read)
    return _parse_list_file(name, text, base)


def _read(name: str, what: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"{what}: {error.strerror}") from error


def _parse_list_file(name: str, text: bytes, base: str | None) -> SourceArg:
    if not is_shard_list(name, text):
        lines = os.fsdecode(text).splitlines()
        return parse_list(
            name,
            lines,
            base,
            is_directory=os.path.isdir,
            is_file=os.path.isfile,
            exists=_is_local_name,
        )
    directory = os.path.dirname(name)
    return SourceArg(name, parse_shard_list(name, text, directory=directory, base=base))


def _is_local_name(text: str) -> bool:
    return "://" not in text and os.path.lexists(text)


def _key_filter(view: ViewSettings) -> KeyFilter:
    return KeyFilter(view.include or (), view.exclude or ())


def _read_classes(path: Path) -> list[bytes]:
    return without_mark(_read(str(path), f"--classes {path}")).splitlines()


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

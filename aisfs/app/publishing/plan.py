"""What `aisfs index` is to do, as checked values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aisfs.core.views.spec import LabelRule, ViewSpec, parse_label
from aisfs.errors import ConfigError
from aisfs.mount.plan import SourcePlan, load, load_cluster, read_shards
from aisfs.settings import CacheSettings, Scan, TreeSettings, View
from aisfs.stores.registry import refuse_read_only

LIST_NAME = "shards.json"
"""What a list of shards is called beside the shards."""


class Format(StrEnum):
    """An index that other programs read."""

    WIDS = "wids"
    """A list of shards with their samples, for webdataset's random access."""
    DALI = "dali"
    """An index of each shard, for DALI's webdataset reader."""


@dataclass(frozen=True, slots=True)
class Export:
    """A format to write, and where to."""

    format: Format
    path: Path | None
    """A file or directory of this machine; None for beside the shards."""

    @classmethod
    def parse(cls, text: str) -> "Export":
        """Return what `--write-idx FORMAT[=PATH]` asks for.

        Raises:
            ConfigError: there is no such format.
        """
        name, equals, path = text.partition("=")
        if name not in list(Format) or (equals and not path):
            known = " or ".join(f"{kind}[=PATH]" for kind in Format)
            raise ConfigError(f"--write-idx {text!r}: expected {known}")
        place = Path(path).expanduser().absolute() if path else None
        if place is not None and name == Format.WIDS and (path.endswith("/") or place.is_dir()):
            place /= LIST_NAME
        return cls(Format(name), place)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlan(SourcePlan):
    """What is to be indexed, and what becomes of the indexes."""

    publish: bool
    publish_to: Path | None
    """The directory of this machine that has the published indexes; None for where mounts look for them."""
    check: bool
    """Only look whether what is published is current."""
    labels: tuple[LabelRule, ...]
    """Columns of labels that a published index must have; of the default only where there are any."""
    exports: tuple[Export, ...]
    force: bool
    dry_run: bool


def plan_index(
    words: Sequence[str],
    *,
    publish: bool,
    publish_to: Path | None,
    check: bool,
    force: bool,
    dry_run: bool,
    labels: Sequence[str],
    write_idx: Sequence[str],
    settings: Mapping[str, object],
) -> IndexPlan:
    """Return what the arguments and options of `aisfs index` ask for.

    Args:
        words: Each SOURCE as it was typed.
        publish: Put indexes where mounts look for them.
        publish_to: Put them into this directory instead.
        check: Look whether they are there.
        force: Build what is there already.
        dry_run: Only say what would be done.
        labels: Each `--label`.
        write_idx: Each `--write-idx`.
        settings: The other options that were given, by name of the setting.

    Raises:
        ConfigError: they contradict each other, or one of them makes no sense.
    """
    publish = publish or (publish_to is not None and not check)
    if not (publish or check or write_idx):
        raise ConfigError(
            "say what to do: --publish, --publish-to DIR, --check, --move, --write-idx FORMAT or --server"
        )
    if check and (publish or write_idx or dry_run or force):
        raise ConfigError("--check only looks: give it alone")
    if force and not publish:
        raise ConfigError("--force needs --publish")
    exports = tuple(map(Export.parse, write_idx))
    tree = load(TreeSettings, {**settings, "scan": Scan.HEADERS})
    if exports and tree.recursive:
        raise ConfigError("--write-idx: not with --recursive, which other programs do not know")
    source = read_shards(words, settings)
    cluster = load_cluster(source, settings)
    if publish and publish_to is None:
        refuse_read_only(source, cluster, "--publish without --publish-to DIR: ")
    if any(export.path is None for export in exports):
        refuse_read_only(source, cluster, "--write-idx without a PATH: ")
    return IndexPlan(
        source=source,
        cluster=cluster,
        tree=tree,
        cache=load(CacheSettings, settings),
        only_indexes=True,
        rescan=force,
        view=ViewSpec(View.FLAT),
        publish=publish,
        publish_to=publish_to.absolute() if publish_to is not None else None,
        check=check,
        labels=_label_rules(labels),
        exports=exports,
        force=force,
        dry_run=dry_run,
    )


def _label_rules(texts: Sequence[str]) -> tuple[LabelRule, ...]:
    rules = tuple(map(parse_label, texts))
    for text, rule in zip(texts, rules, strict=True):
        if rule.component is None:
            raise ConfigError(f"--label {text}: such labels are not read from shards")
    return rules

"""The groups in which `--help` and the manual list options.

An option belongs to the group of the settings that have it as a field. `_BY_NAME` has the options
that belong elsewhere; what is in neither is under "Other options".
"""

from collections.abc import Collection, Iterable
from enum import StrEnum

import click

from aisfs.settings import (
    CacheSettings,
    ClusterSettings,
    LogSettings,
    MonitoringSettings,
    Settings,
    TreeSettings,
    ViewSettings,
    WriteSettings,
)


class Group(StrEnum):
    """Groups of options, in the order in which they are shown."""

    SOURCE = "Source"
    VIEWS = "Shards and views"
    CACHING = "Caching"
    NETWORK = "Network"
    PERMISSIONS = "Permissions"
    WRITING = "Writing"
    LOGGING = "Logging"
    MONITORING = "Monitoring"
    OTHER = "Other options"


_BY_SETTINGS: dict[type[Settings], Group] = {
    ClusterSettings: Group.NETWORK,
    TreeSettings: Group.VIEWS,
    CacheSettings: Group.CACHING,
    ViewSettings: Group.VIEWS,
    WriteSettings: Group.WRITING,
    LogSettings: Group.LOGGING,
    MonitoringSettings: Group.MONITORING,
}
_BY_NAME = {
    "endpoint": Group.SOURCE,
    "direct": Group.SOURCE,
    "anonymous": Group.SOURCE,
    "requester_pays": Group.SOURCE,
    "files_from": Group.SOURCE,
    "include": Group.SOURCE,
    "exclude": Group.SOURCE,
    "index_bucket": Group.VIEWS,
    "no_published_index": Group.VIEWS,
    "attr_ttl": Group.CACHING,
    "list_ttl": Group.CACHING,
    "negative_ttl": Group.CACHING,
    "part_size": Group.WRITING,
    "allow_other": Group.PERMISSIONS,
    "uid": Group.PERMISSIONS,
    "gid": Group.PERMISSIONS,
    "file_mode": Group.PERMISSIONS,
    "dir_mode": Group.PERMISSIONS,
}


def group_of(name: str) -> Group:
    """Return the group of the option with this parameter name."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    found = (group for cls, group in _BY_SETTINGS.items() if name in cls.model_fields)
    return next(found, Group.OTHER)


def grouped(
    parameters: Iterable[click.Parameter], left_out: Collection[str] = ()
) -> dict[Group, list[click.Option]]:
    """Return the visible options by group, without those of the names `left_out`."""
    options = [o for o in parameters if isinstance(o, click.Option) and not o.hidden]
    options = [o for o in options if o.name not in left_out]
    found: dict[Group, list[click.Option]] = {group: [] for group in Group}
    for option in options:
        found[group_of(option.name or "")].append(option)
    return {group: options for group, options in found.items() if options}

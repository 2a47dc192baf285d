"""Every option with its default and the reason for it. A new option is a field of one of the settings here.

`values` alone reads the environment.
"""

from aisfs.choices import Join, KeyRule, LogFormat, LogLevel, Scan, ShardIndex, Shards, View
from aisfs.config.caching import CACHE_LEAST, CACHE_MOST, MEMORY_LEAST, CacheSettings
from aisfs.config.cluster import ClusterSettings
from aisfs.config.logs import LogSettings, log_directory, own_log
from aisfs.config.monitoring import MonitoringSettings
from aisfs.config.tree import KernelSettings, TreeSettings
from aisfs.config.values import (
    GIB,
    MIB,
    Settings,
    configuration,
    in_environment,
    parse_size,
    token_exchange,
    use_file,
    use_proxy,
)
from aisfs.config.views import ViewSettings
from aisfs.config.writing import WRITABLE_DIR_MODE, WRITABLE_FILE_MODE, WriteSettings

ALL_SETTINGS: tuple[type[Settings], ...] = (
    ClusterSettings,
    TreeSettings,
    KernelSettings,
    ViewSettings,
    CacheSettings,
    WriteSettings,
    LogSettings,
    MonitoringSettings,
)

__all__ = [
    "ALL_SETTINGS",
    "CACHE_LEAST",
    "CACHE_MOST",
    "GIB",
    "MEMORY_LEAST",
    "MIB",
    "WRITABLE_DIR_MODE",
    "WRITABLE_FILE_MODE",
    "CacheSettings",
    "ClusterSettings",
    "Join",
    "KernelSettings",
    "KeyRule",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "MonitoringSettings",
    "Scan",
    "Settings",
    "ShardIndex",
    "Shards",
    "TreeSettings",
    "View",
    "ViewSettings",
    "WriteSettings",
    "configuration",
    "in_environment",
    "log_directory",
    "own_log",
    "parse_size",
    "token_exchange",
    "use_file",
    "use_proxy",
]

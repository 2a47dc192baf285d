"""Every option with its default and the reason for it. A new option is a field of one of the settings here.

`values` alone reads the environment.
"""

from aisfs.choices import Join, KeyRule, LogFormat, LogLevel, Scan, ShardIndex, Shards, View
from aisfs.settings.fields import (
    CACHE_LEAST,
    CACHE_MOST,
    MEMORY_LEAST,
    WRITABLE_DIR_MODE,
    WRITABLE_FILE_MODE,
    CacheSettings,
    ClusterSettings,
    KernelSettings,
    LogSettings,
    MonitoringSettings,
    TransformSettings,
    TreeSettings,
    ViewSettings,
    WriteSettings,
    log_directory,
    own_log,
)
from aisfs.settings.values import (
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

ALL_SETTINGS: tuple[type[Settings], ...] = tuple(Settings.__subclasses__())

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
    "TransformSettings",
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

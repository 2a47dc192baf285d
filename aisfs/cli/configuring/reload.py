"""What SIGHUP does to a mount: its configuration files are read again."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from aisfs.errors import ConfigError
from aisfs.mount.plan import load
from aisfs.settings import LogSettings, TreeSettings, configuration, in_environment, use_file
from aisfs.settings.files import Configuration, FileValues

log = logging.getLogger(__name__)

_CHANGEABLE = (*LogSettings.model_fields, "attr_ttl", "list_ttl", "negative_ttl")
"""Settings that a mount under way can change."""


class Reload:
    """Reads the configuration files of a mount again."""

    def __init__(
        self,
        typed: Mapping[str, object],
        profile: str | None,
        logs: LogSettings,
        start_logging: Callable[[LogSettings], object],
    ) -> None:
        """Remember what the files say now.

        Args:
            typed: Options that were typed, which win over the files.
            profile: Name of the profile that is mounted.
            logs: The log as it is.
            start_logging: Logs as other settings say.
        """
        self._typed = typed
        self._profile = profile
        self._logs = logs
        self._start_logging = start_logging
        self._said = self._read(configuration())

    def __call__(self) -> TreeSettings | None:
        """Change the log, and return the other settings; None if the files are broken.

        What they say of anything that cannot change is logged.
        """
        try:
            said = self._read(use_file(configuration().named))
            given = self._checked(said)
            logs, tree = load(LogSettings, given), load(TreeSettings, given)
            if "log_file" in self._typed or said.values.get("log_file") == self._said.values.get(
                "log_file"
            ):  # it may have been relative to a directory that is not the daemon's
                logs = logs.model_copy(update={"log_file": self._logs.log_file})
            self._start_logging(logs)
        except ConfigError as error:
            log.error("the configuration was not reloaded: %s", error)
            return None
        log.info("the configuration was reloaded")
        for name in sorted(self._said.values.keys() | said.values.keys()):
            if name not in _CHANGEABLE and said.values.get(name) != self._said.values.get(name):
                option, place = name.replace("_", "-"), said.places.get(name)
                where = f"{place}: " if place is not None else ""
                log.warning("%s%s cannot change until this is mounted again", where, option)
        self._said, self._logs = said, logs
        return tree

    def _read(self, found: Configuration) -> FileValues:
        """Return what the files say of this mount and nothing else wins over."""
        own = found.profile(self._profile) if self._profile is not None else FileValues()
        values = {**found.defaults.values, **own.values}
        places = {**found.defaults.places, **own.places}
        counts = [name for name in values if name not in self._typed and not in_environment(name)]
        return FileValues({n: values[n] for n in counts}, {n: places[n] for n in counts})

    def _checked(self, said: FileValues) -> dict[str, Any]:
        """Return all settings that were given, those of the files one by one valid."""
        given = {name: said.values[name] for name in _CHANGEABLE if name in said.values}
        for name, value in given.items():
            try:
                load(LogSettings, {name: value})
                load(TreeSettings, {name: value})
            except ConfigError as error:
                raise ConfigError(f"{said.places[name]}: {error}") from None
        return {**given, **self._typed}

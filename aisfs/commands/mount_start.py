"""The start of a mount: the process that serves it, and what the user sees until it is ready.

SIGHUP makes that process read its configuration files again.
"""

import json
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click
import trio

from aisfs import __version__
from aisfs.commands.options import Exit, exit_code, fail, start_logging, warn
from aisfs.errors import AisfsError, ConfigError
from aisfs.mount.setup import MountSetup, load
from aisfs.redaction import escaped, shown
from aisfs.settings import (
    KernelSettings,
    LogSettings,
    TransformSettings,
    TreeSettings,
    ViewSettings,
    configuration,
    in_environment,
    use_file,
)
from aisfs.settings.files import Configuration, FileValues
from aisfs.system import daemon
from aisfs.system.keeping import NOTES_FORMAT, Keeping, keep
from aisfs.system.logs import RecentWarnings
from aisfs.work.display import counted, size_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from aisfs.mount.run import Start
    from aisfs.system.daemon import Message, Reporter


log = logging.getLogger(__name__)

_CHANGEABLE = (*LogSettings.options, "attr_ttl", "list_ttl", "negative_ttl")
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
                logs = logs.changed(log_file=self._logs.log_file)
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


AFTER_SECONDS = 1.0
"""What takes less is over before one has read that it takes long."""
RATE_SECONDS = 5.0
"""The rate is that of the last seconds."""
LEAST_BAR = 36
"""Characters of a line that the bar, its title and the time left take at least."""


class Opening:
    """A bar on a terminal; elsewhere a line at the beginning and one at the end.

    It starts no thread: it is drawn again whenever there is news.
    """

    def __init__(self, source: str) -> None:
        """Show nothing yet."""
        self.complete = False
        """Set by the user of this once all shards are open."""
        self.begun = False
        """Whether there was any progress."""
        self._source = shown(source)
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._told = False
        self._last: Mapping[str, Any] = {}
        self._fetched: list[tuple[float, int]] = []
        """Bytes at some times of the last seconds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def show(self, state: Mapping[str, Any]) -> None:
        """Show how far it is; see `aisfs.mount.run.Start`."""
        self.begun, self._last = True, state
        if time.monotonic() - self._started < AFTER_SECONDS:
            return
        if not self._told:
            self._begin(state)
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                total=state["shards"],
                completed=state["opened"],
                counts=self._counts(state),
            )
            self._bar.refresh()

    def print(self, line: str) -> None:
        """Print a line on stderr, above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(line, err=True)

    def close(self) -> None:
        """Remove the bar; log that a start which took long is done."""
        told, self._told = self._told, False
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif told and self.complete:
            seconds = time.monotonic() - self._started
            click.echo(f"aisfs: opened {_shards(self._last)} in {seconds:.0f} s", err=True)

    def _begin(self, state: Mapping[str, Any]) -> None:
        if not sys.stderr.isatty():
            self._told = state["shards"] is not None
            if self._told:
                click.echo(f"aisfs: opening {_shards(state)} of {self._source}", err=True)
            return
        self._told = True
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("opening"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counts]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task(
            "", total=state["shards"], completed=state["opened"], counts=self._counts(state)
        )
        self._bar.start()

    def _counts(self, state: Mapping[str, Any]) -> str:
        now, size = time.monotonic(), int(state["bytes"])
        self._fetched = [each for each in self._fetched if now - each[0] < RATE_SECONDS]
        self._fetched.append((now, size))
        before, then = self._fetched[0]
        rate = (size - then) / (now - before) if now > before else 0
        fetched = f"{size_text(size)}, {size_text(rate)}/s"
        if state["shards"] is None:
            return f"finding shards, {fetched}"
        counts = f"{_progress(state)}, {fetched}"
        room = self._bar.console.width - LEAST_BAR if self._bar else 0
        return counts if len(counts) <= room else f"{_opened(state)}, {fetched}"


def _shards(state: Mapping[str, Any]) -> str:
    return counted(state["shards"], "shard")


def _progress(state: Mapping[str, Any]) -> str:
    files = f", {state['files']:,} {state['noun']}" if state["files"] else ""
    return _opened(state) + files


def _opened(state: Mapping[str, Any]) -> str:
    return f"{state['opened']:,} of {state['shards']:,} shards"


INTERRUPTED = 130
"""The exit code that a shell reports after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a mount is started with, and another daemon goes on with. It can be pickled."""

    setup: MountSetup
    typed: Mapping[str, object]
    """Options that were typed, which win over configuration files."""
    profile: str | None
    """Name of the profile that is mounted."""
    logs: LogSettings
    config: Path | None
    """The file of `--config`."""
    shown: Mapping[str, str]
    """See `what_is_shown`."""

    def reload(self, *, foreground: bool) -> Reload:
        """Return what SIGHUP does."""
        start = partial(start_logging, foreground=foreground, mountpoint=self.setup.mountpoint)
        return Reload(self.typed, self.profile, self.logs, start)


_MAY_CHANGE = frozenset(
    {
        "lazy",
        "strict",
        "attr_ttl",
        "list_ttl",
        "negative_ttl",
        "published_index",
        "shard_index",
        "list_xattrs",
    }
)
"""Options of views and trees that decide neither which names there are, nor what the kernel remembers of them."""
_MUST_STAY = (
    *ViewSettings.options,
    *TreeSettings.options,
    *KernelSettings.options,
    *TransformSettings.options,
    "writable",
)


def what_is_shown(setup: MountSetup, given: Mapping[str, object]) -> Mapping[str, str]:
    """Return the options of a mount that must stay while it lasts: the kernel remembers what came of them."""
    settings = (load(ViewSettings, given), setup.tree, setup.kernel, setup.writing, setup.transform)
    shown = {
        "MNT": os.path.abspath(setup.mountpoint),
        "SOURCE": str(setup.source),
        "-o": ",".join(sorted(setup.options)),
        "the format of notes": str(NOTES_FORMAT),
    }
    for name in _MUST_STAY:
        if name not in _MAY_CHANGE:
            value = next(getattr(each, name) for each in settings if name in each.options)
            shown[f"--{name.replace('_', '-')}"] = "" if value in (None, "", ()) else str(value)
    return shown


def _keep(given: Given, words: Sequence[str], directory: str) -> Keeping | None:
    """Have the mount go on if its daemon dies, where that is possible; called where the daemon is going to be."""
    from aisfs.mount import run as mounts

    if not mounts.can_outlive(given.setup):
        return None
    # As the kernel will call it; by now it may still be touched.
    mountpoint = os.path.realpath(given.setup.mountpoint)
    inside = Path(os.path.realpath(directory)).is_relative_to(mountpoint)
    # A daemon must not wait for itself, and nothing of ours may keep the mount busy.
    return keep(mountpoint, words, "/" if inside else directory, _pickled(given))


def _pickled(given: Given) -> bytes:
    header = json.dumps({"version": __version__, "shown": given.shown}).encode()
    return header + b"\n" + pickle.dumps(given)


def _left_behind(keeping: Keeping) -> Given | None:
    """Return what the daemon before was started with; None if the configuration is to be read again, as for an upgrade."""
    header, _, rest = keeping.options.partition(b"\n")
    if keeping.is_upgrade or json.loads(header)["version"] != __version__:
        return None
    given = pickle.loads(rest)
    assert isinstance(given, Given)
    with suppress(ConfigError):  # it counts no more
        use_file(given.config)
    return given


Resumed = tuple[MountSetup, "Start", Reload | None]
"""What a daemon goes on with, who is told when it serves, and what SIGHUP does, if not unmount."""


def go_on(keeping: Keeping, asked: Callable[[], Given], *, foreground: bool) -> int:
    """Serve the mount of another daemon; return the exit code.

    Args:
        keeping: The connection to its keeper.
        asked: Returns what the words of the mount, the environment and the configuration files ask for now.
        foreground: Whether the mount was started so.
    """

    def begin() -> Resumed:
        given = _left_behind(keeping) or asked()
        start_logging(given.logs, foreground=foreground, mountpoint=given.setup.mountpoint)
        if not foreground:
            os.chdir("/")  # else the current directory could not be unmounted
        _check_shown(json.loads(keeping.options.partition(b"\n")[0])["shown"], given.shown)
        reload = None if foreground and os.isatty(0) else given.reload(foreground=foreground)
        return given.setup, GoingOn(partial(_leave, keeping, given)), reload

    return resume(keeping, begin)


def resume(keeping: Keeping, begin: Callable[[], Resumed]) -> int:
    """Serve the mount of another daemon, as `begin` says once logs are written; return the exit code."""
    try:
        _resume(keeping, *begin())
    except AisfsError as error:
        code = exit_code(error)
        keeping.failed(shown(str(error)), again=code == Exit.UNREACHABLE)
        log.error("%s", error)
        return code
    except click.ClickException as error:
        keeping.failed(shown(error.format_message()), again=False)
        return Exit.USAGE
    except Exception as error:
        keeping.failed(shown(f"unexpected {type(error).__name__}: {error}"), again=False)
        log.exception("the mount ended on a bug in aisfs, please report it")
        return Exit.FAILURE
    return Exit.OK


def _resume(keeping: Keeping, setup: MountSetup, start: "Start", reload: Reload | None) -> None:
    from aisfs.mount import run as mounts

    takeover = keeping.takeover
    assert takeover is not None, "the keeper starts this with a mount"
    warnings = RecentWarnings()
    warnings.attach()
    if takeover.cause:
        log.warning(
            "this daemon goes on with the mount (restart %d): %s", takeover.restarts, takeover.cause
        )
    for line in takeover.trace.splitlines():
        log.error("the daemon before: %s", line)
    trio.run(mounts.run, setup, start, warnings, reload, keeping)


def _leave(keeping: Keeping, given: Given) -> None:
    """Leave the options of this daemon to the next one."""
    keeping.options = _pickled(given)


def _check_shown(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name in sorted(before.keys() & now.keys()):  # another version may have more
        if before[name] != now[name]:
            was, is_now = before[name] or "not given", now[name] or "not given"
            raise ConfigError(
                f"{name} was {was} and is {is_now}: this cannot change until it is mounted again"
            )


class GoingOn:
    """The start of a daemon of a mount that was there before: nobody looks on."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        """Call `then` once it serves."""
        self._then = then

    def progress(self, state: Mapping[str, int | str | None]) -> None:
        """See `Start`."""

    def ready(self, note: str) -> None:
        """See `Start`."""
        self._then()


def run_in_background(given: Given, words: Sequence[str], own_log: Path | None) -> int:
    """Start the process that serves a mount; wait until it is ready; return the exit code.

    Args:
        given: What to mount.
        words: The arguments of `aisfs mount`.
        own_log: The file that it logs to without `--log-file`.
    """
    setup = given.setup
    opening = Opening(str(setup.source))

    def receive(message: "Message") -> None:
        if "progress" in message:
            opening.show(message["progress"])
        elif "warning" in message:
            opening.print(warn(message["level"], message["warning"]))
        elif "unsaid" in message:
            opening.print(warn("warning", f"… and {message['unsaid']} more in the log"))

    directory = os.getcwd()

    def work(reporter: "Reporter") -> None:
        _serve(given, reporter, _keep(given, words, directory))

    try:
        with opening:
            code, reason = daemon.detach(work, receive)
            opening.complete = not code
    except KeyboardInterrupt:
        _clear(setup)
        return fail(f"interrupted: {setup.mountpoint} is not mounted", INTERRUPTED)
    if not code:
        if reason:
            click.echo(f"aisfs: {escaped(reason)}", err=True)
        if own_log is not None:
            click.echo(f"aisfs: the log of {setup.mountpoint} is {own_log}", err=True)
        return Exit.OK
    _clear(setup)
    return fail(reason, code)


def _clear(setup: MountSetup) -> None:
    """Unmount what a daemon that was killed left behind."""
    from aisfs.work.mounts import clear_dead

    with suppress(AisfsError):
        clear_dead(setup.mountpoint)


def _serve(given: Given, reporter: "Reporter", keeping: Keeping | None) -> None:
    """Run the mount in the background process; report when it is ready, or why it failed."""
    from aisfs.mount import run as mounts

    setup = given.setup
    warnings = RecentWarnings()
    warnings.listener = reporter.warn
    warnings.attach()
    try:
        reload = given.reload(foreground=False)
        trio.run(mounts.run, setup, reporter, warnings, reload, keeping)
    except AisfsError as error:
        # Reported first: what is logged before the end of the start is a warning to the parent.
        reporter.failed(shown(str(error)), exit_code(error))  # only this process knows the token
        log.error("%s", error)
    except Exception as error:
        reporter.failed(shown(f"unexpected {type(error).__name__}: {error}"), Exit.FAILURE)
        log.exception("the mount ended on a bug in aisfs, please report it")
    else:
        reporter.failed(f"{setup.mountpoint} was unmounted before it was ready", Exit.FAILURE)


class _Foreground:
    """Shows the start of a mount in its own process."""

    def __init__(self, opening: Opening, warnings: RecentWarnings) -> None:
        self._opening = opening
        self._warnings = warnings

    @property
    def interrupted(self) -> bool:
        """Whether it ended while shards were opened."""
        return self._opening.begun and not self._opening.complete

    def progress(self, state: Mapping[str, int | str | None]) -> None:
        self._opening.show(state)

    def ready(self, note: str) -> None:
        if note:
            self._opening.print(f"aisfs: {escaped(note)}")
        self._warnings.listener = None
        self._opening.complete = True
        self._opening.close()


def run_in_foreground(given: Given, words: Sequence[str]) -> int:
    """Serve a mount in this process, or in a child of its keeper; return the exit code.

    Args:
        given: What to mount.
        words: The arguments of `aisfs mount`.
    """
    from aisfs.mount import run as mounts

    setup = given.setup
    keeping = _keep(given, words, os.getcwd())
    opening, warnings = Opening(str(setup.source)), RecentWarnings()
    start = _Foreground(opening, warnings)
    if given.logs.log_file is not None:  # else they are printed as they are logged
        warnings.listener = lambda level, text: opening.print(warn(level, text))
    warnings.attach()
    reload = given.reload(foreground=True)
    with opening:
        # A terminal that is closed ends what runs in its foreground.
        on_hangup = None if os.isatty(0) else reload
        trio.run(mounts.run, setup, start, warnings, on_hangup, keeping)
    if start.interrupted:
        return fail(f"interrupted: {setup.mountpoint} is not mounted", INTERRUPTED)
    return Exit.OK

"""The start of a mount: the process that serves it, and what the user sees until it is ready."""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from aisfs.cli.configuring.reload import Reload
from aisfs.cli.exits import Exit, exit_code, fail, warn
from aisfs.cli.mounting.opening import Opening
from aisfs.errors import AisfsError
from aisfs.mount.plan import MountPlan
from aisfs.redaction import escaped, shown
from aisfs.system import daemon
from aisfs.system.logs import RecentWarnings

if TYPE_CHECKING:
    from aisfs.system.daemon import Message, Reporter

log = logging.getLogger(__name__)

INTERRUPTED = 130
"""The exit code that a shell reports after Ctrl-C."""


def run_in_background(plan: MountPlan, reload: Reload, own_log: Path | None) -> int:
    """Start the process that serves `plan`; wait until the mount is ready; return the exit code.

    Args:
        plan: What to mount.
        reload: What SIGHUP does.
        own_log: Where it logs if nobody said where.
    """
    opening = Opening(str(plan.source))

    def told(message: "Message") -> None:
        if "progress" in message:
            opening.show(message["progress"])
        elif "warning" in message:
            opening.print(warn(message["level"], message["warning"]))
        elif "unsaid" in message:
            opening.print(warn("warning", f"… and {message['unsaid']} more in the log"))

    try:
        with opening:
            code, reason = daemon.detach(lambda reporter: _serve(plan, reporter, reload), told)
            opening.complete = not code
    except KeyboardInterrupt:
        _clear(plan)
        return fail(f"interrupted: {plan.mountpoint} is not mounted", INTERRUPTED)
    if not code:
        if reason:
            click.echo(f"aisfs: {escaped(reason)}", err=True)
        if own_log is not None:
            click.echo(f"aisfs: the log of {plan.mountpoint} is {own_log}", err=True)
        return Exit.OK
    _clear(plan)
    return fail(reason, code)


def _clear(plan: MountPlan) -> None:
    """Unmount what a daemon that was killed left behind."""
    from aisfs.app.umount import clear_dead

    with suppress(AisfsError):
        clear_dead(plan.mountpoint)


def _serve(plan: MountPlan, reporter: "Reporter", reload: Reload) -> None:
    """Run the mount in the background process; report when it is ready, or why it failed."""
    from aisfs.mount import run as mounts

    warnings = RecentWarnings()
    warnings.listener = reporter.warn
    warnings.attach()
    try:
        trio.run(mounts.run, plan, reporter, warnings, reload)
    except AisfsError as error:
        # Reported first: what is logged before the end of the start is a warning to the parent.
        reporter.failed(shown(str(error)), exit_code(error))  # only this process knows the token
        log.error("%s", error)
    except Exception as error:
        reporter.failed(shown(f"unexpected {type(error).__name__}: {error}"), Exit.FAILURE)
        log.exception("the mount ended on a bug in aisfs, please report it")
    else:
        reporter.failed(f"{plan.mountpoint} was unmounted before it was ready", Exit.FAILURE)


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


def run_in_foreground(plan: MountPlan, reload: Reload, *, warn_also: bool) -> int:
    """Serve `plan` in this process; return the exit code.

    Args:
        plan: What to mount.
        reload: What SIGHUP does, unless it comes from the terminal.
        warn_also: Print the warnings of the start, since they are logged elsewhere.
    """
    from aisfs.mount import run as mounts

    opening, warnings = Opening(str(plan.source)), RecentWarnings()
    start = _Foreground(opening, warnings)
    if warn_also:
        warnings.listener = lambda level, text: opening.print(warn(level, text))
    warnings.attach()
    with opening:
        # A terminal that is closed ends what runs in its foreground.
        on_hangup = None if os.isatty(0) else reload
        trio.run(mounts.run, plan, start, warnings, on_hangup)
    if start.interrupted:
        return fail(f"interrupted: {plan.mountpoint} is not mounted", INTERRUPTED)
    return Exit.OK

"""What `aisfs mount` shows while the shards of a dataset are opened."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from aisfs.app.display.units import size_text
from aisfs.redaction import shown

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

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
        """Remove the bar; tell a log that what took long is done."""
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
    return f"{state['shards']:,} shard{'s' * (state['shards'] != 1)}"


def _progress(state: Mapping[str, Any]) -> str:
    files = f", {state['files']:,} {state['noun']}" if state["files"] else ""
    return _opened(state) + files


def _opened(state: Mapping[str, Any]) -> str:
    return f"{state['opened']:,} of {state['shards']:,} shards"

"""`aisfs doctor`."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aisfs.commands.guide import Documented, complete_place
from aisfs.commands.options import STORE, Exit, config_option, own_option, settings
from aisfs.redaction import shown
from aisfs.system import logs

if TYPE_CHECKING:
    from aisfs.work.doctor import Check

_COLOURS = {"ok": "green", "note": "yellow", "wrong": "red"}


@click.command(cls=Documented)
@click.argument("subject", metavar="[SOURCE|MNT]", required=False, shell_complete=complete_place)
@own_option(
    "--json",
    "Print one JSON object instead of lines.",
    "`ok`, and `checks` with `name`, `state`, `found` and `fix`",
    name="as_json",
)
@settings(*STORE, "cache_dir", "staging_dir")
@config_option
def doctor(subject: str | None, as_json: bool, config: Path | None, **settings: object) -> int:
    """Check this machine, the cluster and SOURCE or MNT; say what is wrong and how to fix it.

    @NAME checks the source of that profile in the configuration file. The command changes nothing.
    The exit code is 1 if something is wrong.
    """
    import trio

    from aisfs.commands.config import expand_profile
    from aisfs.settings import use_file
    from aisfs.work.doctor import examine

    logs.configure("error", None, foreground=True)
    given = {name: value for name, value in settings.items() if value is not None}
    subjects = [subject] if subject is not None else []
    if config is not None:
        use_file(config)
    if subject is not None and subject.startswith("@"):
        (*subjects, _), _, described = expand_profile((subject, "MNT"), ())
        given = {**described, **given}
    checks = trio.run(examine, subjects, given)
    states = Counter(check.state.value for check in checks)
    if as_json:
        click.echo(_json(checks, states["wrong"]))
    else:
        _print(checks, states)
    return Exit.FAILURE if states["wrong"] else Exit.OK


def _json(checks: Sequence["Check"], wrong: int) -> str:
    found = [
        {"name": c.name, "state": c.state.value, "found": shown(c.found), "fix": shown(c.cure)}
        for c in checks
    ]
    return json.dumps({"ok": not wrong, "checks": found}, ensure_ascii=False)


def _print(checks: Sequence["Check"], states: Counter[str]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        state = click.style(f"{check.state.value:5}", fg=_COLOURS[check.state.value])
        click.echo(f"{state}  {check.name:{width}}  {_line(check.found)}")
        if check.cure:
            click.echo(f"{'':5}  {'':{width}}  fix: {_line(check.cure)}")
    click.echo(f"{states['wrong']} wrong, {states['note']} notes, {states['ok']} ok")


def _line(text: str) -> str:
    return " ".join(shown(text).split())

"""The examples that `--help` and the manual show are commands that exist, and fit a terminal."""

import shlex

import click

from aisfs.commands.guide import EXAMPLES, Documented
from aisfs.commands.main import cli
from tests.docs.test_configuration import COMMANDS
from tests.support.for_each import for_each

MAIN = (
    "mount",
    "umount",
    "status",
    "warm",
    "inspect",
    "index",
    "pack",
    "unpack",
    "recover",
    "ls",
    "mb",
    "serve",
)
"""Commands that users start with."""
LINE_MOST = 76
"""Characters that `--help` leaves on one line."""


@for_each("name", EXAMPLES)
def test_examples_are_commands(name: str):
    for line, what in EXAMPLES[name]:
        assert len(line) <= LINE_MOST
        assert what.endswith("."), what
        program, *words = shlex.split(line)
        assert program == "aisfs"
        assert " ".join(words).startswith(name)
        command: click.Command = cli
        context = click.Context(cli, info_name="aisfs")
        while isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None, line
            command = found
        command.make_context(name, words, parent=context)


@for_each("name", MAIN)
def test_main_commands_have_three_examples(name: str):
    assert len(EXAMPLES[name]) >= 3


@for_each("name", COMMANDS)
def test_every_command_shows_its_examples(name: str):
    command = COMMANDS[name]
    assert isinstance(command, Documented), "give the command cls=Documented"
    with click.Context(cli, info_name="aisfs") as parent:
        context = click.Context(command, info_name=name, parent=parent)
        for line, _ in EXAMPLES.get(name, ()):
            assert line in command.get_help(context)

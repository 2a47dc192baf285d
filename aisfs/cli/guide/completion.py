"""`aisfs completion`: scripts that make a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from aisfs.cli.guide.documented import Documented

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, root: click.Command) -> str:
    """Return the script for a shell; the shell then runs aisfs to ask what can follow."""
    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    return found(root, {}, "aisfs", "_AISFS_COMPLETE").source()


@click.command(cls=Documented)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options of aisfs in SHELL.

    In bash, add this line to ~/.bashrc: source <(aisfs completion bash)
    """
    click.echo(script(shell, context.find_root().command))

"""`aisfs completion`: scripts that make a shell complete commands, options, profiles and buckets."""

from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, get_completion_class

from aisfs.cli.guide.documented import Documented

SHELLS = ("bash", "zsh", "fish")


class _Bash(BashComplete):
    """As click's, but of whole words: bash itself cuts ais://pets and @pets into several."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' words="${COMP_WORDS[*]}" number=$COMP_CWORD cut= completion type value
    if [[ -n $COMP_LINE ]]; then
        words="${COMP_LINE:0:COMP_POINT}"
        number=-1  # the last one
        [[ $words == *[[:space:]] ]] && number=9999  # a new one
        cut="${words##*[[:space:]]}"
        cut="${cut%%"${cut##*["$COMP_WORDBREAKS"]}"}"  # what bash keeps of the last word
    fi
    for completion in $(COMP_WORDS="$words" COMP_CWORD=$number %(complete_var)s=bash_complete $1); do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain) COMPREPLY+=("${value#"$cut"}") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


def script(shell: str, root: click.Command) -> str:
    """Return the script for a shell; the shell then runs aisfs to ask what can follow."""
    found = _Bash if shell == "bash" else get_completion_class(shell)
    assert found is not None, "click knows these shells"
    return found(root, {}, "aisfs", "_AISFS_COMPLETE").source()


def complete_place(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem[str]]:
    """Make the shell complete profiles after `@`, buckets after `ais:`, and directories."""
    if begun.startswith("@"):
        return complete_profile(context, parameter, begun)
    return _buckets(context, begun, otherwise="dir")


def complete_source(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem[str]]:
    """Make the shell complete buckets after `ais:`, and files."""
    return _buckets(context, begun, otherwise="file")


def complete_profile(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem[str]]:
    """Make the shell complete the profiles of the configuration files."""
    from aisfs.errors import ConfigError
    from aisfs.settings import use_file

    try:
        profiles = use_file(_file_of(context)).profiles
    except ConfigError:
        return []
    names = (f"@{name}" for name in sorted(profiles))
    return [CompletionItem(name) for name in names if name.startswith(begun)]


def _buckets(context: click.Context, begun: str, *, otherwise: str) -> list[CompletionItem[str]]:
    if ":" not in begun:
        return [CompletionItem(begun, type=otherwise)]
    from aisfs.app.buckets.names import bucket_names

    names = ("endpoint", "client_ca", "client_cert", "client_key", "skip_verify_crt")
    given = {name: context.params.get(name) for name in names}
    return [CompletionItem(name) for name in bucket_names(begun, given, _file_of(context))]


def _file_of(context: click.Context) -> Path | None:
    """Return the file of `--config`, if the line has one."""
    named = context.params.get("config")
    return Path(named) if named is not None else None


@click.command(cls=Documented)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, profiles and buckets of aisfs in SHELL.

    In bash, add this line to ~/.bashrc: source <(aisfs completion bash)
    """
    click.echo(script(shell, context.find_root().command))

"""What the command line says about itself: `--help` with groups and examples, and completion in shells."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import BashComplete, CompletionItem, get_completion_class

from aisfs.commands.options import Described, own_option


class Example(NamedTuple):
    """One line for a shell, and what it does."""

    line: str
    what: str


EXAMPLES: dict[str, tuple[Example, ...]] = {
    "mount": (
        Example(
            "aisfs mount --endpoint http://proxy:8080 ais://pets /mnt/pets",
            "Mount one bucket, read-only.",
        ),
        Example(
            "aisfs mount 'ais://pets/samples-{00..18}.tar' /mnt/train --view class",
            "Mount the samples of 19 shards as one directory for each label.",
        ),
        Example(
            "aisfs mount ais://images ais://labels /mnt/train --view class --join",
            "The same for images and labels that are in different shards.",
        ),
        Example(
            "aisfs mount --writable --cache-size 200GiB ais://pets /mnt/pets",
            "Permit changes, and keep up to 200 GiB of what is read on the local disk.",
        ),
    ),
    "csi driver": (
        Example(
            "aisfs csi driver --node-id node-1 --mounter /mounter/mounter.sock",
            "Take the calls of kubelet on /csi/csi.sock.",
        ),
    ),
    "csi controller": (
        Example("aisfs csi controller", "Make the volumes of claims when asked on /csi/csi.sock."),
    ),
    "csi mounter": (
        Example("aisfs csi mounter /mounter/mounter.sock", "Serve the volumes of this node."),
    ),
    "config show": (
        Example("aisfs config show", "Show the value of each option, and where it comes from."),
        Example("aisfs config show @pets", "Show what `aisfs mount @pets` uses."),
        Example(
            "aisfs config show --json --config ./aisfs.toml", "Read another file, for a script."
        ),
    ),
    "config check": (
        Example("aisfs config check", "Check the user's and the system's file."),
        Example(
            "aisfs config check --config ./aisfs.toml", "Check a file before it is put in place."
        ),
        Example(
            "aisfs config check --config /etc/aisfs/config.toml", "Check the system's file only."
        ),
    ),
    "umount": (
        Example("aisfs umount /mnt/pets", "Unmount; refused while a program uses the mount."),
        Example("aisfs umount --lazy /mnt/pets", "Detach it now, even if it is busy."),
        Example("aisfs umount ./pets", "The path may be relative."),
    ),
    "status": (
        Example("aisfs status", "List all mounts of this machine, and whether they answer."),
        Example("aisfs status /mnt/pets", "Show requests, failures and the state of the cache."),
        Example("aisfs status --json /mnt/pets", "The same, for a script."),
    ),
    "top": (
        Example("aisfs top", "Watch all mounts of this machine."),
        Example("aisfs top /mnt/pets", "Watch the rates of one mount."),
        Example(
            "aisfs top --interval 10 /mnt/pets",
            "Look every ten seconds; into a file, it writes lines.",
        ),
    ),
    "flush": (
        Example("aisfs flush /mnt/pets", "Wait until all that was closed is in the cluster."),
    ),
    "refresh": (
        Example("aisfs refresh /mnt/pets", "Show everything as it is in the cluster now."),
        Example("aisfs refresh /mnt/pets train", "The same for one directory."),
        Example("aisfs refresh /mnt/pets train/0001.tar", "For the directory of one object."),
    ),
    "upgrade": (
        Example(
            "aisfs upgrade",
            "Go on with all mounts of this user, for example after an installation.",
        ),
        Example("aisfs upgrade /mnt/pets", "Go on with one mount, with what its profile says now."),
        Example("aisfs upgrade @pets @cars", "Mounts of two profiles."),
    ),
    "doctor": (
        Example("aisfs doctor", "Check this machine, and the cluster of AIS_ENDPOINT."),
        Example("aisfs doctor ais://pets", "Also check that this bucket can be mounted."),
        Example("aisfs doctor --json /mnt/pets", "Check a mount, for a script."),
    ),
    "warm": (
        Example("aisfs warm /mnt/pets", "Read everything in the mount into its cache."),
        Example(
            "aisfs warm --jobs 8 /mnt/pets/train /mnt/pets/val",
            "Read two directories, eight shards at once.",
        ),
        Example("aisfs warm --plan order.txt /mnt/pets", "Read what a list names, in its order."),
        Example("aisfs warm --index-only /mnt/pets", "Only find the members of its shards."),
        Example("aisfs warm 'ais://pets/train-{000..}.tar'", "Fill the cache for mounts to come."),
    ),
    "inspect": (
        Example("aisfs inspect ais://pets", "Show what all shards of a bucket contain."),
        Example(
            "aisfs inspect --json 'ais://pets/samples-{00..18}.tar'",
            "Describe 19 shards as JSON.",
        ),
        Example("aisfs inspect --labels 0 ./shards", "Look at a directory, but read no labels."),
    ),
    "index": (
        Example(
            "aisfs index --publish ais://pets", "Store an index beside each shard of a bucket."
        ),
        Example(
            "aisfs index --check 'ais://pets/train-{000..499}.tar'",
            "List those of 500 shards whose index is missing or not current.",
        ),
        Example(
            "aisfs index --publish --label json:caption --write-idx wids ais://pets/train",
            "Publish captions as labels, and write shards.json for wids.",
        ),
        Example("aisfs index --server ais://pets", "Have AIStore build its own indexes."),
    ),
    "pack": (
        Example(
            "aisfs pack cats 'ais://pets/cats-{0000..}.tar' --max-count 1000",
            "Pack a directory into shards of at most 1000 samples.",
        ),
        Example(
            "aisfs pack train 'out/train-{000..}.tar' --class-to cls --shuffle 1",
            "Pack a directory for each class, shuffled, with a label in each sample.",
        ),
        Example(
            "aisfs pack ais://pets/loose/ 'ais://pets/loose-{000..}.tar'",
            "Pack objects of a bucket.",
        ),
    ),
    "unpack": (
        Example("aisfs unpack 'ais://pets/cats-{0000..}.tar' cats", "Write the members as files."),
        Example(
            "aisfs unpack --class-to cls 'out/train-{000..}.tar' train",
            "Leave out the labels that pack added.",
        ),
        Example("aisfs unpack --dry-run 'out/train-{00..18}.tar' train", "List the shards."),
    ),
    "sort": (
        Example(
            "aisfs sort --shuffle 'ais://pets/s-{00..18}.tar' 'ais://mix/s-{000..}.tar'",
            "Have the cluster write a shuffled copy of 19 shards into another bucket.",
        ),
        Example(
            "aisfs sort --by content --key cls ais://pets 'ais://pets/by/s-{000..}.tar'",
            "Sort samples by their label.",
        ),
        Example(
            "aisfs sort --dry-run --shuffle 1 ais://pets 'ais://mix/s-{000..}.tar'",
            "Only say what it does.",
        ),
    ),
    "jobs": (
        Example("aisfs jobs", "List sorts and jobs that index shards."),
        Example("aisfs jobs --watch srt-BkVkCJ4yC", "Show the progress of one until it ends."),
        Example("aisfs jobs --cancel srt-BkVkCJ4yC", "Have the cluster stop it."),
    ),
    "etl list": (Example("aisfs etl list", "List all ETLs."),),
    "etl show": (
        Example(
            "aisfs etl show thumbs-etl", "Show its definition, and what it could not transform."
        ),
    ),
    "etl logs": (Example("aisfs etl logs thumbs-etl", "Print what its transformers have logged."),),
    "etl init": (Example("aisfs etl init thumbs.json", "Define an ETL, and wait until it runs."),),
    "etl start": (Example("aisfs etl start thumbs-etl", "Start it again after it was stopped."),),
    "etl stop": (Example("aisfs etl stop thumbs-etl", "Stop it; its definition stays."),),
    "etl delete": (Example("aisfs etl delete thumbs-etl", "Stop it and forget it."),),
    "etl run": (
        Example(
            "aisfs etl run thumbs-etl ais://pets/train/ ais://thumbs",
            "Transform all objects below a prefix into another bucket.",
        ),
        Example(
            "aisfs etl run thumbs-etl ais://pets/1.jpg ais://thumbs/1.jpg --args 64",
            "Transform one object, with arguments.",
        ),
    ),
    "ls": (
        Example("aisfs ls", "List all buckets."),
        Example("aisfs ls -l ais://pets/train", "List a directory, with sizes and times."),
        Example("aisfs ls 'ais://pets/**/*.tar'", "List the shards of a bucket at any depth."),
    ),
    "mb": (
        Example("aisfs mb ais://pets", "Make a bucket."),
        Example("aisfs mb -p ais://train ais://val", "Make those of two that do not exist yet."),
        Example("aisfs mb --endpoint http://proxy:8080 ais://pets", "Name the cluster."),
    ),
    "rm": (
        Example("aisfs rm ais://pets/old.tar", "Remove a shard, and its published index."),
        Example("aisfs rm -n 'ais://pets/train-{000..499}.tar'", "List what would be removed."),
        Example("aisfs rm -r ais://pets/loose/", "Remove all objects of a directory."),
    ),
    "recover": (
        Example("aisfs recover", "List files that were written and never reached the store."),
        Example("aisfs recover --upload --all", "Upload all of them."),
        Example("aisfs recover --drop ais://pets/cats.tar", "Remove one for good."),
    ),
    "serve": (
        Example("aisfs serve /srv/buckets", "Serve a directory at http://127.0.0.1:8080."),
        Example("aisfs serve --port 0 /srv/buckets", "Use a free port, and print it."),
        Example(
            "aisfs serve --etl 'upper-etl=tr a-z A-Z' /srv/buckets",
            "Transform objects that are read with etl_name=upper-etl.",
        ),
        Example(
            "aisfs serve --host 0.0.0.0 --allow-host lab /srv/buckets",
            "Listen on all addresses; requests may name the host lab.",
        ),
    ),
    "cache status": (
        Example("aisfs cache status", "Show how full the disk cache is."),
        Example("aisfs cache status --cache-dir /scratch/aisfs", "Another cache directory."),
    ),
    "completion": (
        Example("aisfs completion bash", "Print the script for bash."),
        Example(
            "aisfs completion zsh",
            "For zsh: save it as _aisfs in a directory of $fpath.",
        ),
        Example(
            "aisfs completion fish",
            "For fish: save it as ~/.config/fish/completions/aisfs.fish.",
        ),
    ),
}
"""A command's name is that after `aisfs`. Commands that users start with have three each."""


FEW = 8
"""Options that are read as one list."""
_ALL = "aisfs.help_all"
"""Among the notes of a context: `--help-all` was typed."""


def _help_all(context: click.Context, option: click.Parameter, given: bool) -> None:
    if given and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help())
        context.exit()


help_all_option = own_option(
    "--help-all",
    "Show the rare options, too, and exit.",
    is_eager=True,
    expose_value=False,
    callback=_help_all,
)


def _is_rare(option: click.Option) -> bool:
    return isinstance(option, Described) and option.setting is not None and option.setting.rare


def grouped(options: Iterable[click.Option]) -> dict[str, list[click.Option]]:
    """Return options by the group that `--help` and the manual list them in."""
    from aisfs.settings.values import KNOWN, Group  # `aisfs --help` does not wait for it

    found: dict[Group, list[click.Option]] = {group: [] for group in Group}
    for option in options:
        setting = option.setting if isinstance(option, Described) else None
        setting = setting or KNOWN.get(option.name or "")
        own = Group.PERMISSIONS if option.name == "allow_other" else Group.OTHER
        found[setting.group if setting is not None else own].append(option)
    return {str(group): options for group, options in found.items() if options}


class Documented(click.Command):
    """A command with its options in groups and with the examples of its name."""

    hides_rare = False
    """Whether only `--help-all` shows rare options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, in groups if there are many."""
        every = [o for o in self.get_params(ctx) if isinstance(o, click.Option) and not o.hidden]
        shown = [o for o in every if _ALL in ctx.meta or not (self.hides_rare and _is_rare(o))]
        groups = {
            title: [o.get_help_record(ctx) for o in options]
            for title, options in grouped(shown).items()
        }
        if sum(map(len, groups.values())) <= FEW:
            groups = {"Options": [record for group in groups.values() for record in group]}
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])
        if left_out := len(every) - len(shown):
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options: {ctx.command_path} --help-all")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, then the epilog."""
        examples = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
        if examples:
            with formatter.section("Examples"):
                for example in examples:
                    formatter.write_text(example.line)
                    with formatter.indentation():
                        formatter.write_text(example.what)
        super().format_epilog(ctx, formatter)


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
    from aisfs.work.bucket_names import bucket_names

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

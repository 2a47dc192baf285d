"""Commands whose `--help` shows options in groups, and examples."""

import click

from aisfs.cli.guide.examples import EXAMPLES

FEW = 8
"""Options that are read as one list."""
_ALL = "aisfs.help_all"
"""Among the notes of a context: `--help-all` was typed."""


def _help_all(context: click.Context, option: click.Parameter, given: bool) -> None:
    if given and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help())
        context.exit()


help_all_option = click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_help_all,
    help="Show the rare options, too, and exit.",
)


class Documented(click.Command):
    """A command with its options in groups and with the examples of its name."""

    rare: frozenset[str] = frozenset()
    """Parameters that only `--help-all` shows."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, in groups if there are many."""
        from aisfs.cli.guide.groups import grouped  # nothing but help needs it

        left_out = frozenset() if _ALL in ctx.meta else self.rare
        groups = {
            str(group): [o.get_help_record(ctx) for o in options]
            for group, options in grouped(self.get_params(ctx), left_out).items()
        }
        if sum(map(len, groups.values())) <= FEW:
            groups = {"Options": [record for group in groups.values() for record in group]}
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{len(left_out)} more options: {ctx.command_path} --help-all")

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

"""What a command prints: text and tables for people, JSON lines for machines, or nothing.

What people read on stdout is there for machines too. Errors go to stderr, whatever the mode. No password of a URL is
shown.
"""

import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, Self, TextIO, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from retune.compiler.core.errors import OptionError, without_passwords
from retune.compiler.runtime.readable import finite

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line instead of text and tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors; the exit code tells.")]

# Rich assumes 80 without a terminal, where ids would be folded; files and pagers have room.
PIPE_WIDTH = 160
"""Columns of a table that goes to no terminal."""

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys, or cannot show: names come from files of others."""

Row = Mapping[str, Any]
Command = TypeVar("Command", bound=Callable[..., object])


class Mode(StrEnum):
    """Who reads the output."""

    PEOPLE = "people"
    JSON = "json"
    QUIET = "quiet"

    @classmethod
    def of(cls, as_json: bool, quiet: bool) -> Self:
        """The mode that the options ask for. Raises: OptionError for both."""
        if as_json and quiet:
            raise OptionError("--json and --quiet exclude each other: give one of them")
        return cls("json" if as_json else "quiet" if quiet else "people")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table for people: its heading, what a cell says of a row, whether it may be folded, and the width
    of the terminal from which on it is shown.
    """

    heading: str
    cell: Callable[[Row], object]
    folds: bool = True
    from_width: int = 0


class Group(TyperGroup):
    """A group of commands; its help shows their summaries in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer gives it
        """Write the list of commands. Typer's own cuts every summary to one line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(1000)) for name, command in self.commands.items()])


class Output:
    """Where a command writes."""

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.mode = Mode.of(as_json, quiet)

    @property
    def is_for_people(self) -> bool:
        """Whether text is wanted."""
        return self.mode is Mode.PEOPLE

    def say(self, text: str, /, **fields: object) -> None:
        """A line for people, or the same as `fields` for machines."""
        if self.mode is Mode.JSON:
            self.object(fields)
        elif self.mode is Mode.PEOPLE:
            typer.echo(_text(text))

    def object(self, fields: Row) -> None:
        """A line for machines."""
        typer.echo(json_line(fields))

    def table(self, rows: Iterable[Row], columns: Sequence[Column]) -> None:
        """A table with one line a row; for machines every row with all its fields."""
        if self.mode is Mode.JSON:
            for row in rows:
                self.object(row)
        elif self.mode is Mode.PEOPLE:
            console = console_on(sys.stdout)
            shown = [column for column in columns if column.from_width <= console.width]
            table = Table(box=box.SIMPLE)
            for column in shown:  # cells are never cut: ids are copied from them
                table.add_column(column.heading, overflow="fold", no_wrap=not column.folds)
            for row in rows:
                table.add_row(*(_text(column.cell(row)) for column in shown))
            console.print(table)


class Commands(typer.Typer):
    """Commands with an `output`, which the options `--json` and `--quiet` make."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Command], Command]:
        """Register a function whose parameter `output` is an `Output`, under `name`; `options` are typer's."""
        register = super().command(name, **options)

        def take(function: Command) -> Command:
            signature = inspect.signature(function)

            @wraps(function)
            def run(*, as_json: bool, quiet: bool, **given: object) -> object:
                return function(output=Output(as_json, quiet), **given)

            own = [param for name, param in signature.parameters.items() if name != "output"]
            flags = {"as_json": Json, "quiet": Quiet}.items()
            made = [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
                for name, kind in flags
            ]
            setattr(run, "__signature__", signature.replace(parameters=[*own, *made]))  # noqa: B010 - no attribute of Callable
            register(run)
            return function

        return take


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the error to `retune.flows.cli.toplevel`; rich would end with exit code 1."""
        raise


def console_on(stream: TextIO, **options: Any) -> Console:
    """Where tables are printed: as wide as the terminal, or `PIPE_WIDTH` columns where there is none."""
    width = None if stream.isatty() else PIPE_WIDTH
    return _Console(file=stream, width=width, highlight=False, markup=False, **options)


def json_line(fields: Row) -> str:
    """One JSON object without a line break; a number that JSON cannot write is null, what it does not know a string."""
    return without_passwords(json.dumps(finite(fields), default=str, allow_nan=False))


def complain(sentence: str) -> None:
    """Say on stderr, in one line, what is wrong."""
    typer.echo(f"retune: {' '.join(_text(sentence).split())}", err=True)


class _Warnings(logging.Handler):
    """Says warnings of a log in the form of `complain`."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"warning: {record.getMessage()}")


def warn_in_one_line() -> None:
    """Have warnings that no other handler takes, in this process, said in one line on stderr."""
    # lastResort: only what no handler takes, so Prefect's and users' own logging stay as they are.
    logging.lastResort = _Warnings(logging.WARNING)


def _text(cell: object) -> str:
    shown = "-" if cell is None else without_passwords(str(cell))
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), shown)

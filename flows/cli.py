"""In: a command line. Out: what was asked for, or one sentence on stderr.

Always: exit codes as in `flows.exits`; Prefect is not imported here. The commands are in `flows.commands`.
"""

import os
import sys
import traceback

import typer

from compiler.errors import RetuneError
from flows import exits
from flows.commands import compile as compiling
from flows.commands import fleet, networks, report, settings, tune
from flows.commands.doctor import doctor
from flows.commands.records import records_app

app = typer.Typer(
    name="retune",
    help="Tune neural networks for the machine they run on.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)
app.command()(tune.tune)
app.command("compile")(compiling.compile_network)
app.command()(networks.networks)
app.command()(networks.run)
app.command()(report.runs)
app.command()(report.report)
app.command()(report.fetch)
app.command("config")(settings.show_config)
app.command()(doctor)
app.command()(fleet.worker)
app.command()(fleet.pools)
app.add_typer(records_app, name="records")


def main() -> None:
    """Entry point of the console script `retune`."""
    try:
        sys.exit(app(prog_name="retune", standalone_mode=False))
    except RetuneError as error:
        _complain(str(error), exits.USER_ERROR)
    except typer.TyperException as error:
        _complain(*_misuse(error))
    except (KeyboardInterrupt, typer.Abort):
        _complain("stopped", exits.INTERRUPTED)
    except BrokenPipeError:
        # the reader of a pipe, such as `head`, has seen enough; Python would complain when it flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(exits.OK)
    except Exception as error:
        traceback.print_exc()
        _complain(f"a fault of Retune itself, please report it: {type(error).__name__}: {error}", exits.BUG)


def _complain(sentence: str, code: int) -> None:
    typer.echo(f"retune: {' '.join(sentence.split())}", err=True)
    sys.exit(code)


def _misuse(error: typer.TyperException) -> tuple[str, int]:
    """What is wrong with the words of the command line, as one sentence, and the exit code."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "retune"
    said = error.format_message()
    if context and said == context.get_help():  # nothing was given where something is needed
        typer.echo(said)
        sys.exit(exits.USER_ERROR)
    said = said.rstrip(".?")
    return f"{said[:1].lower()}{said[1:]}; `{command} --help` says what it takes", exits.USER_ERROR


if __name__ == "__main__":
    main()

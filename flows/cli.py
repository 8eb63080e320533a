"""In: a command line. Out: what was asked for, or one sentence on stderr.

Always: exit codes as in `flows.exits`; Prefect is not imported here. The commands are in `flows.commands`.
"""

import os
import signal
import sys
import traceback
from types import FrameType

import typer

from compiler.errors import RetuneError, without_passwords
from flows import exits
from flows.commands import compile as compiling
from flows.commands import fleet, networks, report, settings, tune
from flows.commands.doctor import doctor
from flows.commands.output import complain
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


class _TerminatedError(BaseException):
    """SIGTERM came: what a command has begun is put away as after Ctrl-C."""


def _terminate(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
    raise _TerminatedError


def main() -> None:
    """Entry point of the console script `retune`."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = app(prog_name="retune", standalone_mode=False)
        if code == exits.INTERRUPTED:  # which typer makes of a Ctrl-C, without a word
            complain("stopped")
        sys.exit(code)
    except RetuneError as error:
        _complain(str(error), exits.USER_ERROR)
    except typer.TyperException as error:
        _complain(*_misuse(error))
    except (KeyboardInterrupt, typer.Abort):
        _complain("stopped", exits.INTERRUPTED)
    except _TerminatedError:
        _complain("stopped", exits.TERMINATED)
    except BrokenPipeError:
        # the reader of a pipe, such as `head`, has seen enough; Python would complain when it flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(exits.OK)
    except Exception as error:
        typer.echo(without_passwords(traceback.format_exc()), err=True)
        _complain(f"a fault of Retune itself, please report it: {type(error).__name__}: {error}", exits.BUG)


def _complain(sentence: str, code: int) -> None:
    complain(sentence)
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

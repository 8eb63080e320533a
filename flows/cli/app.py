"""The entry point of the command line `retune`.

It parses the command's name, imports the module of that command, and turns every exception into one sentence on stderr
and an exit code of `retune.flows.cli.exits`. Prefect is never imported here.
"""

import importlib
import signal
import sys
from types import FrameType
from typing import Annotated, Any

import typer

from retune.compiler.core import config
from retune.flows.cli import exits
from retune.flows.cli.commands.output import Commands, Group, complain, warn_in_one_line
from retune.flows.cli.launch import set_handler
from retune.flows.cli.toplevel import run_guarded

COMMANDS = {
    "tune": ("tune:tune", "Tune a network, compile it with the best programs found, and report the speedup."),
    "compile": (
        "compile:compile_network",
        "Compile a network with the best records there are; only `--precision auto` measures.",
    ),
    "export": ("export:export", "Export a network as a model and library for ONNX Runtime, or as a library for C."),
    "networks": ("networks:networks", "List the networks of the zoo."),
    "run": ("run:run", "Time a compiled network on inputs of zeros."),
    "explain": (
        "explain:explain",
        "Explain a kernel: its computation, schedule, every pass, code, hot loop, limit and search.",
    ),
    "serve": (
        "serve:serve",
        "Serve compiled networks over HTTP, with KServe's Open Inference Protocol V2 and metrics for Prometheus.",
    ),
    "runs": ("report:runs", "List all runs, the newest last."),
    "report": ("report:report", "Write the report of a run: latencies, progress, roofline, coverage."),
    "fetch": ("report:fetch", "Fetch the compiled network and the report of a run from a store at a URL."),
    "config": ("settings:show_config", "Print every setting: its value, where that comes from, and what it means."),
    "doctor": ("doctor:doctor", "Check whether this machine is fit for tuning, and say what to do where it is not."),
    "worker": ("fleet:worker", "Build or time programs for runs on other machines, until stopped."),
    "pools": ("fleet:pools", "Create the work pools, queues and limits that deployments need on the Prefect server."),
    "records": ("records:records_app", "Look at what was measured."),
}
"""Every command: its function in `retune.flows.cli.commands`, and its summary, which is the first sentence of its
docstring.
"""


class LazyGroup(Group):
    """A group that imports the module of a command when that command is chosen.

    The modules import what their commands need, up to the whole compiler: 2 s of CPU, which `--help` need not pay. They
    are named by strings in one table, so that their own imports stay at their top.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The chosen command in place of the stub that stands for it in help and suggestions."""
        name, _, rest = super().resolve_command(ctx, args)
        command = name and load(name)
        # until here a signal ends the process at once (see retune.flows.cli.launch); what a command begins, it puts
        # away
        set_handler(signal.SIGTERM, _terminate)
        set_handler(signal.SIGINT, signal.default_int_handler)
        return name, command, rest


def load(name: str) -> Any:
    """Import a command of `COMMANDS`."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(f"retune.flows.cli.commands.{module}"), attribute)
    if not isinstance(command, typer.Typer):
        function, command = command, Commands(rich_markup_mode=None, add_completion=False)
        command.command(name)(function)
    return typer.main.get_command(command)


# With rich's markup, brackets in help texts would be read as styles.
app = typer.Typer(
    name="retune",
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"retune {config.engine_version()}")
        raise typer.Exit


@app.callback()
def _retune(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Tune neural networks for the machine they run on."""


def _stub() -> None:
    """Stands for a command that is not imported yet."""


for _name, (_, _summary) in COMMANDS.items():
    app.command(_name, help=_summary)(_stub)


# No `Exception`: what a command catches of those must not swallow it.
class _TerminatedError(BaseException):
    """SIGTERM came: what a command has begun is put away as after Ctrl-C."""


def _terminate(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
    raise _TerminatedError


def main() -> None:
    """Entry point of the console script `retune`."""
    warn_in_one_line()
    sys.exit(run_guarded(_run))


def _run() -> int | None:
    """Run the chosen command. Returns its exit code."""
    try:
        code: int | None = app(prog_name="retune", standalone_mode=False)
    except typer.TyperException as error:
        return _complain(_misuse(error), exits.USER_ERROR)
    except _TerminatedError:
        return _complain("stopped", exits.TERMINATED)
    except typer.Abort:
        code = exits.INTERRUPTED
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer makes exit code 1 of it, which means wrong outputs
            raise error.__context__ from None
        raise
    if code == exits.INTERRUPTED:  # which typer makes of a Ctrl-C, without a word
        complain("stopped")
    return code


def _complain(sentence: str, code: int) -> int:
    complain(sentence)
    return code


def _misuse(error: typer.TyperException) -> str:
    """What is wrong with the words of the command line, as one sentence."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "retune"
    said = error.format_message()
    if context and said == context.get_help():  # nothing was given where something is needed
        typer.echo(said)
        sys.exit(exits.USER_ERROR)
    said = said.rstrip(".?")
    return f"{said[:1].lower()}{said[1:]}; `{command} --help` says what it takes"


if __name__ == "__main__":
    main()

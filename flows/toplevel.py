"""The outermost exception handler of every program: an exception becomes one sentence on stderr and an exit code."""

import os
import sys
import traceback
from collections.abc import Callable

import typer

from compiler.errors import RetuneError, ServerError, without_passwords
from flows import exits
from flows.commands.output import complain


def guarded(main: Callable[[], int | None], stopped: str = "stopped") -> int:
    """Call `main`. Returns its exit code, or that of the exception it ends with; `stopped` is what Ctrl-C means."""
    try:
        return main() or exits.OK
    except RetuneError as error:
        complain(str(error))
        return exits.UNAVAILABLE if isinstance(error, ServerError) else exits.USER_ERROR
    except KeyboardInterrupt:
        complain(stopped)
        return exits.INTERRUPTED
    except BrokenPipeError:
        # the reader of a pipe, such as `head`, has seen enough; Python would complain when it flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except Exception as error:
        typer.echo(without_passwords(traceback.format_exc()), err=True)
        complain(f"a fault of Retune itself, please report it: {type(error).__name__}: {error}")
        return exits.BUG

"""The outermost exception handler of every program: an exception becomes one sentence on stderr and an exit code."""

import errno
import os
import select
import sys
import traceback
from collections.abc import Callable

import typer

from retune.compiler.core.errors import RetuneError, ServerError, without_passwords
from retune.flows.cli import exits
from retune.flows.cli.commands.output import complain

_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of writing to stdout; most of what else is written raises an error of ours."""


def run_guarded(main: Callable[[], int | None], stopped: str = "stopped") -> int:
    """Call `main`. Returns its exit code, or that of the exception it ends with; `stopped` is what Ctrl-C means."""
    try:
        code = main() or exits.OK
        typer.echo(nl=False)  # a flush, so that what cannot be written is noticed here
        return code
    except RetuneError as error:
        complain(str(error))
        return exits.UNAVAILABLE if isinstance(error, ServerError) else exits.USER_ERROR
    except KeyboardInterrupt:
        complain(stopped)
        return exits.INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITTEN and (error.errno != errno.EPIPE or _is_cut_off()):
            # Python would try to write the rest when it flushes at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno == errno.EPIPE:
                return exits.CUT_OFF
            complain(f"cannot write {error.filename or 'the output'}: {error.strerror}")
            return exits.USER_ERROR
        typer.echo(without_passwords(traceback.format_exc()), err=True)
        complain(f"a fault of Retune itself, please report it: {type(error).__name__}: {error}")
        return exits.BUG


def _is_cut_off() -> bool:
    """Whether the reader of stdout is gone; other pipes and sockets break too."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are reported always
    # A pipe without a reader polls as POLLERR at its writing end.
    return bool(poll.poll(0))

"""The exit codes of all commands, as docs/reference/cli.md documents them."""

import signal

# 69 and 70 are EX_UNAVAILABLE and EX_SOFTWARE of sysexits.h; above 128 the number of the signal is added, as in shells.
OK = 0
"""All went well."""

WRONG = 1
"""The work was done, and its answer is bad news: outputs are wrong, a check failed."""

USER_ERROR = 2
"""Something that the user can put right: a mistyped option, a missing file, a full disk. One sentence says what."""

UNAVAILABLE = 69
"""The Prefect server does not answer, or does not start."""

BUG = 70
"""Retune itself is at fault; the traceback says where."""

CUT_OFF = 141
"""The reader of stdout went away before the end, 128 + SIGPIPE, which is what shells show for it."""

INTERRUPTED = 130
"""Ctrl-C."""

TERMINATED = 143
"""SIGTERM, as a supervisor sends it."""


def signal_exit_code(signum: int) -> int:
    """The exit code of a command that the signal `signum` has ended, as shells show it."""
    return TERMINATED if signum == signal.SIGTERM else INTERRUPTED

"""In: the arguments of `flows.session`. Out: the session, with Ctrl-C and SIGTERM answered from its first moment on.

Always: stopping takes no time. The embedded API gets the same Ctrl-C and is gone at once, so there is nobody left to
report a cancelled run to; what was measured is on disk, and the guardian ends the workers. While a flow runs, Prefect
takes a SIGTERM first: it ends the flow, says so to its API, and sends the signal on.
"""

import os
import runpy
import signal
from types import FrameType

from flows.exits import INTERRUPTED, TERMINATED

_SHOW_CURSOR = b"\x1b[?25h"
_MESSAGE = b"\nretune: stopped; what was measured is kept, and the same command goes on from there\n"


def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
    """End this process with one sentence, and the exit code that shells give to a process that the signal ended."""
    os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + _MESSAGE)
    os._exit(TERMINATED if signum == signal.SIGTERM else INTERRUPTED)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    runpy.run_module("flows.session", run_name="__main__", alter_sys=True)

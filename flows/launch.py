"""In: a module of ours that needs an environment made for Prefect, and its arguments. Out: the module as main program,
with Ctrl-C and SIGTERM answered from its first moment on.

Always: stopping takes no time. The embedded API of a session gets the same Ctrl-C and is gone at once, so there is
nobody left to report a cancelled run to; what was measured is on disk, and the guardian ends the workers. While a flow
runs, Prefect takes a SIGTERM first: it ends the flow, says so to its API, and sends the signal on. A worker that has
begun takes both signals itself.
"""

import os
import runpy
import signal
import sys
from types import FrameType

from flows.exits import stopped_by

_SHOW_CURSOR = b"\x1b[?25h"
_SENTENCES = {
    "flows.session": b"stopped; what was measured is kept, and the same command goes on from there",
    "flows.worker": b"stopped before it began",
    "flows.pools": b"stopped; the same command makes what is still missing",
}
"""What a module's end means, by its name."""


def main(module: str) -> None:
    """Turn into the module; its arguments are what is left in `sys.argv`."""
    message = b"\nretune: " + _SENTENCES[module] + b"\n"

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
        """End this process with one sentence and the exit code of the signal."""
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + message)
        os._exit(stopped_by(signum))

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv.pop(1))

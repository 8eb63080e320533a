"""The entry of every program of Retune: it answers Ctrl-C and SIGTERM from its first moment on, then runs a module.

`retune` is the module `retune.flows.cli.app`; a command that needs Prefect calls `use_prefect` before it imports a
module that does. Stopping takes no time: what was measured is on disk, and the reaper ends the workers and the
embedded server. A signal that is ignored when the process starts, such as Ctrl-C in background jobs of a shell script,
stays so.
"""

import contextlib
import gc
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType

from retune.compiler.core import config
from retune.flows.cli.exits import signal_exit_code
from retune.tasks.prefect_import import import_prefect

SIGNALS = (signal.SIGINT, signal.SIGTERM)
KEPT = "finished rounds are kept, and the same command goes on from there"
RESUMABLE = f"stopped; {KEPT}"
"""What the end of a run means."""

GARBAGE = 50_000
"""Objects between two looks for garbage. With the default of 700 the imports of a command look at all modules dozens of
times, a tenth of their time, and find nothing.
"""

_SHOW_CURSOR = "\x1b[?25h"
_ending = threading.Lock()
_began: float | None = None


def end(sentence: str, code: int) -> None:
    """End this process now with one sentence, whatever its threads do. Returns only where another thread does so."""
    if _ending.acquire(blocking=False):
        # A raw write: Python's streams are not reentrant, and the signal may have interrupted a write.
        with contextlib.suppress(OSError):
            os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}\nretune: {sentence}\n".encode())
        # Exit handlers and other threads are skipped: they may hang, and records are on disk already.
        os._exit(code)


def set_handler(number: int, handler: "signal._HANDLER") -> None:
    """Set a signal handler, unless the signal is ignored."""
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, handler)


def end_on_signals(sentence: str = "stopped") -> None:
    """Let the main thread end the process with `sentence` on either signal."""

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
        end(sentence, signal_exit_code(signum))

    for number in SIGNALS:
        set_handler(number, stop)


def end_on_signals_within(seconds: float, sentence: str) -> None:
    """End the process with `sentence` so many `seconds` after either signal, even where the main thread does not come
    to run its handler, or Prefect has set its own, which waits for a server that may be gone.
    """
    receiver, sender = os.pipe()
    # A full pipe must not block a signal handler.
    os.set_blocking(sender, False)
    # Written by the C handler at once, even while the main thread is in native code.
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # signals to a child do not end its parent

    def watch() -> None:
        while (number := os.read(receiver, 1)[0]) not in SIGNALS:
            continue
        # The grace period runs in this thread: it ends even if the main thread never returns to Python.
        time.sleep(seconds)
        end(sentence, signal_exit_code(number))

    threading.Thread(target=watch, name="signals", daemon=True).start()


def use_prefect(environment: Mapping[str, str], sentence: str) -> None:
    """Set the variables that Prefect reads when it is imported, and import its settings. From then on a signal ends the
    process with `sentence`.
    """
    config.set_environment(environment)
    end_on_signals(sentence)
    import_prefect()


def command_began() -> float | None:
    """When the command began that this process runs, by the monotonic clock; None in other processes."""
    return _began


def main() -> None:
    """Entry point of the console script `retune`."""
    run("retune.flows.cli.app")


def run(module: str) -> None:
    """Run the module as main program, with what is left in `sys.argv`."""
    global _began
    _began = time.monotonic()
    end_on_signals()
    # Before the imports, which make most of the objects of a command.
    gc.set_threshold(GARBAGE)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from retune.flows.cli import launch  # what a signal handler must know is in that module, not in this copy of it

    launch.run(sys.argv.pop(1))

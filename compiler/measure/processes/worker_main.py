"""Main loop of a worker process: executes calls received over a pipe; ends with its parent.

Started by `retune.compiler.measure.processes.worker_process` as `python -m
retune.compiler.measure.processes.worker_main HANDLE PARENT`: the file descriptor of a duplex `multiprocessing`
connection, and the id of the parent process. A request is (function path, arguments), pickled; the replies are (kind,
value) pairs, the last of a request being END or ERROR. A function that returns an iterator is streamed.
"""

import faulthandler
import importlib
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

# How long an orphan may disturb the machine; a check is one system call.
_WATCH_SECONDS = 0.5


READY, ITEM, END, ERROR = "ready", "item", "end", "error"
"""The kinds of the worker's messages. Plain strings, because this module is `__main__` in the worker."""


def resolve(path: str) -> Any:
    """The object that `package.module:name` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def serve(connection: "Connection[Any, Any]") -> None:
    """Answer requests until the other end is closed."""
    connection.send((READY, os.getpid()))
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        for reply in _replies(request):
            connection.send_bytes(reply)


def _replies(request: bytes) -> Iterator[bytes]:
    try:
        path, args = pickle.loads(request)
        result = resolve(path)(*args)
        for item in result if isinstance(result, Iterator) else (result,):
            # Pickled here and not by `send`: an item that cannot be pickled becomes an ERROR reply.
            yield pickle.dumps((ITEM, item), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        # A function's exception is an answer; only the death of the process is not.
        yield _encode_error(error, traceback.format_exc())
    else:
        yield pickle.dumps((END, None))


def _encode_error(error: Exception, text: str) -> bytes:
    """The exception itself where it survives pickling, and in any case its traceback."""
    try:
        encoded = pickle.dumps((ERROR, (error, text)))
        # Some exceptions pickle but cannot be unpickled, when their constructor has other parameters.
        pickle.loads(encoded)
    except Exception:  # whatever a foreign class does in its reduction
        return pickle.dumps((ERROR, (None, text)))
    return encoded


def _end_with(parent: int) -> None:
    """End this process and its group at any point, once `parent` is no longer its parent.

    Linux could send a signal on the parent's death, but sends it already when the *thread* that started this process
    ends.
    """
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    # The group and not the process: a build may have started a linker or ptxas.
    os.killpg(0, signal.SIGKILL)


def main(handle: int, parent: int) -> None:
    """Serve the connection with file descriptor `handle` as a child of process `parent`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    faulthandler.enable()
    # A candidate that crashes is a result like others; writing its memory to a file takes seconds and gigabytes.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # Children would keep the pipe open, and the parent would not see this process end.
    os.set_inheritable(handle, False)
    threading.Thread(target=_end_with, args=(parent,), name="parent-watch", daemon=True).start()
    with Connection(handle) as connection:
        try:
            serve(connection)
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

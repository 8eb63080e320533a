"""Stages of compilation as they are reached: for an observer, and on stderr as RETUNE_DEBUG asks.

A pipeline calls `show` after every stage. Without an observer that costs a comparison: the text is made on demand.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from retune.compiler.core import config

STEPS, LOOPS, PASSES, CODE = 1, 2, 3, 4
"""Levels of RETUNE_DEBUG. Each one prints more: the steps of every kernel and the passes of every graph; the loop IR
that code is generated from; loop IR and graph after every pass; LLVM IR, assembly or PTX.
"""

Observer = Callable[[str, str, Callable[[], str]], None]
"""Takes the name of a kernel or graph, the stage it has reached, and a function that makes its text."""

# Of a thread or an asyncio task: concurrent compilations do not mix their stages.
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observe_stages(observer: Observer) -> Iterator[None]:
    """Call `observer` for every stage that this thread reaches inside the block."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def is_active() -> bool:
    """Whether stages are observed or printed. Raises: OptionError as `show`."""
    return _observer.get() is not None or config.debug_level() > 0


def show(level: int, name: str, stage: str, text: Callable[[], str]) -> None:
    """Tell the observer that `name` has reached a stage, and print it if RETUNE_DEBUG is at least `level`.

    Raises: OptionError for an invalid RETUNE_DEBUG.
    """
    if observer := _observer.get():
        observer(name, stage, text)
    if level <= config.debug_level():
        sys.stderr.write(f"== {name}: {stage}\n{text().rstrip()}\n")

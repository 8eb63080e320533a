"""`Side`: a buffer as the threads that execute a statement see it."""

from dataclasses import dataclass

from tests.support.simt.checked_memory import Memory
from tests.support.simt.tags import Numbers


@dataclass(frozen=True, slots=True)
class Side:
    """One buffer as the threads see it: its memory, the copy each thread accesses, and the numbers and epochs
    of the threads.
    """

    memory: Memory
    copies: Numbers
    who: Numbers
    epochs: Numbers

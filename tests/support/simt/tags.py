"""Race detection between threads: for each element the last accesses, their threads and their epochs.

Every report is a race. Of the readers of an element two are remembered, which suffices to find one if another thread
writes it.

A thread has one global number: its block's number times the threads per block, plus its number in the block. An epoch
is the number of barriers its block has passed, starting at 1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Conflict:
    """A race: access number `place` of the current batch conflicts with an earlier one by the thread `other`."""

    place: int
    other: int
    other_wrote: bool
    statement: int


class Tags:
    """The last write and the last reads of every element, with the statement of each.

    `blocks_meet` says that all blocks access the same elements. Blocks never synchronize with each other.
    """

    def __init__(self, size: int, threads: int, *, blocks_meet: bool) -> None:
        self.threads = threads
        self.blocks_meet = blocks_meet
        self.write_epoch = np.zeros(size, np.int64)
        self.writer = np.full(size, _NOBODY, np.int64)
        self.write_statement = np.zeros(size, np.int64)
        self.read_epoch = np.zeros(size, np.int64)
        self.reader = np.full(size, _NOBODY, np.int64)
        self.other_reader = np.full(size, _NOBODY, np.int64)
        self.read_statement = np.zeros(size, np.int64)

    def read(self, places: Numbers, who: Numbers, epochs: Numbers, statement: int) -> Conflict | None:
        """Note that `who[i]` reads element `places[i]`; a thread that writes it at the same time, if any."""
        written = self._written(places, who, epochs)
        if written is not None:
            return written
        reader = self.reader[places]
        lasting = self._at_once(self.read_epoch[places], reader, who, epochs)
        # Readers of an earlier epoch are forgotten: a barrier lies between them and now.
        before = np.where(lasting, self.other_reader[places], _NOBODY)
        self.other_reader[places] = np.where(lasting & (reader != who), reader, before)
        self.reader[places] = who
        self.read_epoch[places] = epochs
        self.read_statement[places] = statement
        # If several threads of this batch read an element, NumPy keeps the last: another one is remembered beside it.
        also = self.reader[places] != who
        if also.any():
            self.other_reader[places[also]] = who[also]
        return None

    def write(self, places: Numbers, who: Numbers, epochs: Numbers, statement: int) -> Conflict | None:
        """Note that `who[i]` writes element `places[i]`; a thread that accesses it at the same time, if any."""
        written = self._written(places, who, epochs)
        if written is not None:
            return written
        reader = self.reader[places]
        lasting = self._at_once(self.read_epoch[places], reader, who, epochs)
        reader = np.where(reader != who, reader, self.other_reader[places])
        meets = lasting & (reader != who) & (reader != _NOBODY)
        if meets.any():
            return self._conflict(meets, reader, self.read_statement[places], wrote=False)
        self.writer[places] = who
        self.write_epoch[places] = epochs
        self.write_statement[places] = statement
        # Of several threads that write an element in this batch, NumPy keeps the last: any other one conflicts.
        also = self.writer[places] != who
        if also.any():
            return self._conflict(also, self.writer[places], self.write_statement[places], wrote=True)
        return None

    def _written(self, places: Numbers, who: Numbers, epochs: Numbers) -> Conflict | None:
        """A write by another thread that meets the accesses, if there is one."""
        writer = self.writer[places]
        meets = self._at_once(self.write_epoch[places], writer, who, epochs) & (writer != who)
        return self._conflict(meets, writer, self.write_statement[places], wrote=True) if meets.any() else None

    def _at_once(self, tag_epochs: Numbers, tag_who: Numbers, who: Numbers, epochs: Numbers) -> NDArray[Any]:
        """Where no barrier lies between what is tagged and now."""
        same = tag_epochs == epochs
        if not self.blocks_meet:
            return np.asarray(same)
        # Blocks share no barrier within a launch, so their epochs say nothing of each other.
        elsewhere = (tag_epochs > 0) & (tag_who // self.threads != who // self.threads)
        return np.asarray(elsewhere | (same & (tag_epochs > 0)))

    @staticmethod
    def _conflict(meets: NDArray[Any], others: Numbers, statements: Numbers, *, wrote: bool) -> Conflict:
        place = int(np.argmax(meets))
        return Conflict(place, int(others[place]), wrote, int(statements[place]))

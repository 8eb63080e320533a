"""Simulated memory of a buffer and its copies, as threads read and write it.

Out-of-bounds accesses, reads of uninitialized elements and races raise an error that names the element, the thread or
the two threads, and the statement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler.ir.expr import Buffer
from retune.compiler.ir.stmt import Allocate, Block, For, Stmt, lines_of
from tests.support.simt.fault import KernelFaultError
from tests.support.simt.tags import Conflict, Numbers, Tags

Array = NDArray[Any]
_NOBODY = -1


@dataclass(slots=True)
class Place:
    """The position in a launch, for error messages: the kernel, the number of threads of its blocks, and the
    statement being executed.
    """

    kernel: str
    threads: int
    statements: list[Stmt] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    current: int = 0

    def at(self, statement: Stmt) -> None:
        """Go to a statement."""
        number = self.numbers.get(id(statement))
        if number is None:
            number = self.numbers[id(statement)] = len(self.statements)
            self.statements.append(statement)
        self.current = number

    def text(self, number: int | None = None) -> str:
        """A statement in words, the current one by default."""
        statement = self.statements[self.current if number is None else number]
        inner = not isinstance(statement, (Allocate, Block, For))
        return f"`{next(iter(lines_of(statement, 0))).strip()}`" if inner else "a loop"

    def who(self, thread: int) -> str:
        """A thread in words."""
        block, number = divmod(int(thread), self.threads)
        return f"thread {number} of block {block}"

    def check_whole(self, threads: Numbers, size: int, group: str, member: str) -> None:
        """Check that all threads of a `group` of `size`, such as a warp, come to the statement together; one of them is
        a `member`.

        Raises: KernelFaultError.
        """
        if self.threads % size:
            raise self.fault(f"{self.text()} is for whole {group}s of {size} threads, but a block has {self.threads}")
        found = np.bincount(threads // size, minlength=1)
        torn = (found > 0) & (found < size)
        if torn.any():
            number = int(np.argmax(torn))
            missing = np.setdiff1d(number * size + np.arange(size), threads)[0]
            raise self.fault(
                f"{self.text()} is for whole {group}s, but {member} {int(missing) % size} of {group} "
                f"{number * size % self.threads // size} does not come to it"
            )

    def fault(self, what: str) -> KernelFaultError:
        """The error that says what is wrong."""
        return KernelFaultError(f"{self.kernel}: {what}")


class Memory:
    """`copies` of a buffer, stored one after the other.

    `given` are the elements of an argument; without them the memory is uninitialized. Accesses are checked for races if
    `tags` is given. `room` is the number of elements of each copy that are backed by memory, None for all.
    """

    def __init__(
        self,
        buffer: Buffer,
        place: Place,
        copies: int = 1,
        given: Array | None = None,
        tags: Tags | None = None,
        room: int | None = None,
    ) -> None:
        self.buffer = buffer
        self.place = place
        self.tags = tags
        self.room = buffer.size if room is None else min(room, buffer.size)
        size = buffer.size * copies
        self.data = np.zeros(size, buffer.dtype) if given is None else given.reshape(-1)
        # Definedness for each element, as valgrind's memcheck keeps for each bit.
        self.known = np.full(size, given is not None)
        self.under_way: Numbers | None = None
        self.taken: Numbers | None = None
        self.taken_for_sums = False
        self.unfenced = np.zeros(size if buffer.scope == "shared" else 0, np.bool_)

    def forget(self, copies: Numbers) -> None:
        """Start again: what these copies hold is undefined."""
        self.known.reshape(-1, self.buffer.size)[copies] = False

    def read(self, copies: Numbers, indices: Sequence[Array], who: Numbers, epochs: Numbers) -> Array:
        """The elements that the threads `who` read, each from its copy."""
        return self.read_at(self.places(copies, indices, who), who, epochs)

    def read_at(self, places: Numbers, who: Numbers, epochs: Numbers) -> Array:
        """The elements at `places` that the threads `who` read."""
        self._check_arrived(places, who, wrote=False)
        self.check_known(places, who)
        conflict = None if self.tags is None else self.tags.read(places, who, epochs, self.place.current)
        if conflict is not None:
            raise self._race(conflict, places, who, wrote=False)
        return np.asarray(self.data[places])

    def check_known(self, places: Numbers, who: Numbers) -> None:
        """Raises: KernelFaultError when a thread reads an element that was not written."""
        known = self.known[places]
        if not known.all():
            first = int(np.argmin(known))
            raise self.place.fault(
                f"{self._element(places[first])} is read by {self.place.who(who[first])} before anything is written to "
                f"it, in {self.place.text()}"
            )

    def take(self, places: Numbers, count: int, *, reads: bool = False) -> None:
        """So many more multiplications under way read these elements, or, with `reads`, add to them, so that threads
        must not read them either.
        """
        if self.taken is None:
            self.taken = np.zeros(self.data.size, np.int64)
        self.taken_for_sums = reads
        # One of several warpgroups that read an element does not release it for the others.
        np.add.at(self.taken, places.reshape(-1), count)

    def fence(self, who: Numbers) -> None:
        """What these threads have written is there for multiplications."""
        if self.tags is not None and self.unfenced.any():
            self.unfenced &= ~np.isin(self.tags.writer, who)

    def check_fenced(self, places: Numbers, who: Numbers) -> None:
        """Raises: KernelFaultError when a multiplication reads what was written without a proxy fence."""
        late = self.unfenced[places]
        if late.any():
            first = int(np.argmax(late))
            raise self.place.fault(
                f"{self._element(places[first])} is read for {self.place.who(who[first])}, but written without a proxy "
                f"fence after it, in {self.place.text()}"
            )

    def write(self, copies: Numbers, indices: Sequence[Array], values: Array, who: Numbers, epochs: Numbers) -> None:
        """Write one element a thread."""
        self.write_at(self.places(copies, indices, who), values, who, epochs)

    def write_at(self, places: Numbers, values: Array, who: Numbers, epochs: Numbers) -> None:
        """Write the elements at `places`, each by the thread `who`."""
        self._check_arrived(places, who, wrote=True)
        self._note_write(places, who, epochs)
        self.data[places] = values
        self.known[places] = True
        if self.unfenced.size:
            self.unfenced[places] = True

    def lose(self, copies: Numbers, indices: Sequence[Array], who: Numbers, where: Array) -> None:
        """What these threads would read of an element is undefined, where `where` holds."""
        self.known[self.places(copies, indices, who)[where]] = False

    def start_copy(self, places: Numbers, who: Numbers, epochs: Numbers) -> None:
        """Start an asynchronous copy: until it arrives, what lies there may be overwritten at any time."""
        self._check_arrived(places, who, wrote=True)
        # As a write, so that another thread's access before the next barrier is a race.
        self._note_write(places, who, epochs)
        if self.under_way is None:
            self.under_way = np.full(self.data.size, _NOBODY, np.int64)
        self.under_way[places] = who

    def end_copy(self, places: Numbers, values: Array, who: Numbers, epochs: Numbers) -> None:
        """What was copied is there, for the thread that copied it."""
        if self.under_way is not None:
            self.under_way[places] = _NOBODY
        # Written by the thread that waits: others may read it only after a barrier.
        self.write_at(places, values, who, epochs)
        # It needs no fence, see `copy_asynchronously`.
        if self.unfenced.size:
            self.unfenced[places] = False

    def _check_arrived(self, places: Numbers, who: Numbers, *, wrote: bool) -> None:
        if self.taken is not None and (wrote or self.taken_for_sums):
            taken = self.taken[places] > 0
            if taken.any():
                first = int(np.argmax(taken))
                raise self.place.fault(
                    f"{self._element(places[first])} is {'written' if wrote else 'read'} by "
                    f"{self.place.who(who[first])} while a multiplication that needs it is under way, in "
                    f"{self.place.text()}"
                )
        if self.under_way is None:
            return
        coming = self.under_way[places]
        if (coming != _NOBODY).any():
            first = int(np.argmax(coming != _NOBODY))
            raise self.place.fault(
                f"{self._element(places[first])} is {'written' if wrote else 'read'} by "
                f"{self.place.who(who[first])} while the copy of it by {self.place.who(coming[first])} is under way, "
                f"which has not been waited for, in {self.place.text()}"
            )

    def _note_write(self, places: Numbers, who: Numbers, epochs: Numbers) -> None:
        conflict = None if self.tags is None else self.tags.write(places, who, epochs, self.place.current)
        if conflict is not None:
            raise self._race(conflict, places, who, wrote=True)

    def places(self, copies: Numbers, indices: Sequence[Array], who: Numbers) -> Numbers:
        """Where the element of every thread lies, one after the other and one copy after the other."""
        total = copies
        for index, extent in zip(indices, self.buffer.shape, strict=True):
            outside = np.asarray((index < 0) | (index >= extent))
            # Per dimension: an index may leave its row and still lie in the buffer, which hardware would not notice.
            if outside.any():
                first = int(np.argmax(np.broadcast_to(outside, who.shape)))
                point = ", ".join(str(int(np.broadcast_to(each, who.shape)[first])) for each in indices)
                raise self.place.fault(
                    f"{self.buffer}[{point}] lies outside of {self.buffer}{list(self.buffer.shape)}: accessed by "
                    f"{self.place.who(who[first])}, in {self.place.text()}"
                )
            total = total * extent + index
        return self._paid(np.asarray(total), who)

    def neighbors(self, copies: Numbers, indices: Sequence[Array], who: Numbers, count: int) -> Numbers:
        """Where `count` elements lie, from the one of every thread on, shape (threads, count)."""
        starts = np.broadcast_to(self.places(copies, indices, who), who.shape)
        over = starts % self.buffer.size + count > self.buffer.size
        if over.any():
            first = int(np.argmax(over))
            raise self.place.fault(
                f"{count} elements from {self._element(starts[first])} on end outside of {self.buffer}"
                f"{list(self.buffer.shape)}: accessed by {self.place.who(who[first])}, in {self.place.text()}"
            )
        self._paid(starts + (count - 1), who)
        return np.asarray(starts[:, None] + np.arange(count))

    def _paid(self, places: Numbers, who: Numbers) -> Numbers:
        """The same places. Raises: KernelFaultError for one that the launch gave no memory for."""
        if self.room == self.buffer.size:
            return places
        over = np.broadcast_to(places % self.buffer.size >= self.room, who.shape)
        if over.any():
            first = int(np.argmax(over))
            raise self.place.fault(
                f"{self._element(np.broadcast_to(places, who.shape)[first])} lies outside of the shared memory that "
                f"the launch gives a block: accessed by {self.place.who(who[first])}, in {self.place.text()}"
            )
        return places

    def check_aligned(self, places: Numbers, who: Numbers, size: int) -> None:
        """Raises: KernelFaultError when a thread's first element does not start at a multiple of `size` bytes."""
        # Every copy of a buffer begins aligned, so the position within it decides.
        torn = places[:, 0] % self.buffer.size * self.data.itemsize % size != 0
        if torn.any():
            first = int(np.argmax(torn))
            raise self.place.fault(
                f"{self._element(places[first, 0])}, accessed by {self.place.who(who[first])}, does not start at a "
                f"multiple of {size} bytes, in {self.place.text()}"
            )

    def _element(self, place: int) -> str:
        index = np.unravel_index(int(place) % self.buffer.size, self.buffer.shape) if self.buffer.shape else ()
        return f"{self.buffer}[{', '.join(str(int(each)) for each in index)}]"

    def _race(self, conflict: Conflict, places: Numbers, who: Numbers, *, wrote: bool) -> KernelFaultError:
        mine, others = ("written" if each else "read" for each in (wrote, conflict.other_wrote))
        return self.place.fault(
            f"{self._element(places[conflict.place])} is {others} by {self.place.who(conflict.other)} and {mine} by "
            f"{self.place.who(who[conflict.place])} with no barrier between: in {self.place.text(conflict.statement)} "
            f"and in {self.place.text()}"
        )

"""The copies of constants on GPUs, shared by the executors of this process.

A GPU has a constant once, while any executor has it, and nothing writes to it. A deleted executor has waited for its
calls, so nothing reads the freed memory.
"""

import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import address
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.cuda.driver_interface import Driver


@dataclass(frozen=True, eq=False)
class DeviceConstant:
    """A constant, with its array on a GPU."""

    driver: Driver
    source: Array
    array: DeviceArray


class DeviceConstants:
    """The constants on GPUs, by their address in the CPU's memory, which they keep alive."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[object, ...], DeviceConstant] = WeakValueDictionary()
        self._lock = threading.Lock()

    def on_gpu(self, driver: Driver, stream: Any, number: int, source: Array) -> DeviceConstant:
        """A read-only copy of `source` on GPU `number`, which is open; `stream` copies it there if needed.

        Raises: DeviceError when there is no memory.
        """
        # The address identifies the contents: constants are read-only, and the entry keeps its array, so the address is
        # not reused.
        key = (id(driver), number, address(source), source.shape, source.dtype.name)
        with self._lock:
            constant = self._known.get(key)
            if constant is None:
                array = DeviceArray.allocate(driver, stream, number, source.shape, source.dtype.name)
                array.write(source)
                constant = self._known[key] = DeviceConstant(driver, source, array)
            return constant


CONSTANTS = DeviceConstants()
"""The constants of this process."""

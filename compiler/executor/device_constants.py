"""The copies of constants on GPUs, shared by the executors of this process.

A GPU has a constant once, for as long as an executor has it, and nothing writes to it. An executor that is deleted has
waited for its calls, so nothing reads the memory that is given back.
"""

import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import address
from retune.compiler.runtime.cuda_array import DeviceArray
from retune.compiler.runtime.cuda_driver import Driver


@dataclass(frozen=True, eq=False)
class DeviceConstant:
    """A constant, and where it lies on a GPU."""

    driver: Driver
    source: Array
    array: DeviceArray


class DeviceConstants:
    """The constants that are on GPUs, by their address in the CPU's memory, which they keep."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[object, ...], DeviceConstant] = WeakValueDictionary()
        self._lock = threading.Lock()

    def on_gpu(self, driver: Driver, stream: Any, number: int, source: Array) -> DeviceConstant:
        """A read-only array on GPU `number`, which is open; copied there by `stream` if it is not there.

        Raises: DeviceError when there is no memory.
        """
        # The address stands for the contents: constants are read-only, and the entry keeps its array, so it is not
        # reused.
        key = (id(driver), number, address(source), source.shape, source.dtype.name)
        with self._lock:
            found = self._known.get(key)
            if found is None:
                array = DeviceArray.allocate(driver, stream, number, source.shape, source.dtype.name)
                array.write(source)
                found = self._known[key] = DeviceConstant(driver, source, array)
            return found


CONSTANTS = DeviceConstants()
"""Those of this process."""

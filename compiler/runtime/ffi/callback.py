"""Makes a registered function callable from a kernel as a C function.

The function works on the kernel's own memory; its exceptions reach the caller of the kernel.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.artifact import ExternArgument, ExternBuffer, ExternCall
from retune.compiler.runtime.ffi.host_array import HostArray
from retune.compiler.runtime.ffi.registry import find_function

_CALL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
_Addresses: TypeAlias = "ctypes._Pointer[ctypes.c_void_p]"
_FAILED = -1


# Per thread: kernels run concurrently, and each caller must get the exception of its own call.
class CallErrors(threading.local):
    """The exception of the last function that failed in this thread."""

    error: BaseException | None = None

    def reraise(self) -> None:
        """Raise the stored exception, once, if there is one."""
        error, self.error = self.error, None
        if error is not None:
            raise error


@dataclass(frozen=True, slots=True)
class Callback:
    """A C function: its symbol and address, and the objects that must stay alive while it is callable."""

    symbol: str
    address: int
    keep: object


def make_callback(kernel: str, call: ExternCall, errors: CallErrors) -> Callback:
    """The C function of one call; exceptions of the registered function go to `errors`.

    Raises: ArtifactError when the function is not registered in this process.
    """
    function = find_function(call.function)
    if function is None:
        raise ArtifactError(
            f"kernel {kernel} calls the function {call.function}, which is not registered in this process; register "
            "it with register_func before the kernel is loaded"
        )
    entry = _CALL(_entry(function, call.args, errors))
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None, "a callback has an address"
    return Callback(call.symbol, address, entry)


def _entry(
    function: Callable[..., object], args: Sequence[ExternArgument], errors: CallErrors
) -> Callable[[_Addresses], int]:
    def run(addresses: _Addresses) -> int:
        try:
            pointers = iter(addresses[index] for index in range(sum(isinstance(arg, ExternBuffer) for arg in args)))
            function(*(_view(arg, next(pointers)) if isinstance(arg, ExternBuffer) else arg for arg in args))
        except BaseException as error:  # it must not unwind through the kernel's frames
            errors.error = error
            return _FAILED
        return 0

    return run


def _view(spec: ExternBuffer, address: int) -> HostArray:
    dtype = np.dtype(spec.dtype)
    size = int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_uint8 * size).from_address(address)
    array = np.ctypeslib.as_array(memory).view(dtype).reshape(spec.shape).view(HostArray)
    array.flags.writeable = spec.writable
    return array

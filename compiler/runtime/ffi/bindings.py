"""The classes and functions of the TVM FFI (package apache-tvm-ffi) under our names.

This is the only module that imports the FFI, on first use: if PyTorch is installed the FFI loads that too, which takes
seconds. From then on the FFI makes arrays and devices of our classes, unless another package has registered its own
before.
"""

import builtins
import ctypes
from pathlib import Path
from types import WrapperDescriptorType
from typing import Any, TypeVar, cast

import numpy as np
import tvm_ffi
from tvm_ffi import core, error, registry, serialization

from retune.compiler.core.dtype import BFLOAT16, NARROW, Array, DType, item_bytes
from retune.compiler.core.errors import ArtifactError, RetuneError
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.runtime.device import same_device

PackedFunc = tvm_ffi.Function
FFIModule = tvm_ffi.Module
FFIObject = tvm_ffi.Object
FFITensor = tvm_ffi.Tensor
FFIArray = tvm_ffi.Array
FFIMap = tvm_ffi.Map

as_opaque = core._convert_to_opaque_object
get_function = tvm_ffi.get_global_func
list_functions = registry.list_global_func_names
load_library = tvm_ffi.load_module
mismatch = tvm_ffi.get_first_structural_mismatch
remove_function = tvm_ffi.remove_global_func
set_function = tvm_ffi.register_global_func
tensor_of = tvm_ffi.from_dlpack
to_json = serialization.to_json_graph_str
from_json = serialization.from_json_graph_str

T = TypeVar("T")
E = TypeVar("E", bound=type[BaseException])


class FFIDevice(tvm_ffi.Device):
    """A device of the FFI, equal to a `Device` of the same numbers."""

    __slots__ = ()

    @property
    def device_type(self) -> int:
        """DLPack's number of the kind: 1 is the CPU, 2 a CUDA GPU, 4 OpenCL."""
        return int(self.dlpack_device_type())

    @property
    def device_id(self) -> int:
        return int(self.index)

    def __eq__(self, other: object) -> bool:
        return same_device(self, other)

    def __ne__(self, other: object) -> bool:
        return not same_device(self, other)

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))


class NDArray(tvm_ffi.Tensor):
    """An array of the FFI: shape, `dtype`, `strides` and `device`, and memory that NumPy, PyTorch and kernels share."""

    __slots__ = ()

    def numpy(self) -> Array:
        """The same memory as a NumPy array; for a view, valid only during the call that passed it.

        Raises: ArtifactError for an array that is not in the CPU's memory.
        """
        if self.__dlpack_device__()[0] != 1:
            raise ArtifactError(f"an array on {self.device} cannot be read as a NumPy array")
        dtype = str(self.dtype)
        if dtype != BFLOAT16 and not self.is_view:
            array: Array = np.from_dlpack(self)
            return array
        size = item_bytes(dtype)
        block: Any = (ctypes.c_uint8 * (size * self.numel())).from_address(self.data_ptr())
        block.owner = self  # the memory lives as long as NumPy's array
        return np.ndarray(self.shape, dtype, block, strides=tuple(size * step for step in self.strides))

    asnumpy = numpy

    def copyfrom(self, source: object) -> "NDArray":
        """Copy the elements of an array of the same shape, converted to this dtype; returns this array."""
        values = source.numpy() if isinstance(source, NDArray) else np.asarray(source)
        if values.shape != self.shape:
            raise ArtifactError(f"an array of the shape {list(values.shape)} does not fit into {list(self.shape)}")
        self.numpy()[...] = values
        return self

    def copyto(self, target: T) -> T:
        """Copy the elements to an array of the same shape, of this class or NumPy's; returns `target`."""
        if isinstance(target, NDArray):
            target.copyfrom(self)
        elif isinstance(target, np.ndarray) and target.shape == self.shape:
            target[...] = self.numpy()
        else:
            raise ArtifactError(f"an array of the shape {list(self.shape)} cannot be copied to {target!r}")
        return target

    def to_dlpack(self) -> Any:
        return self.__dlpack__()

    @property
    def is_view(self) -> bool:
        """Whether this is not an object, but memory that C code lends during a call."""
        return self.__chandle__() == 0

    def __dlpack__(self, **options: Any) -> Any:
        # The FFI makes capsules of objects only; NumPy makes one of a view's memory.
        return self.numpy().__dlpack__(**options) if self.is_view else super().__dlpack__(**options)

    def __array__(self, dtype: str | DType | None = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype, copy=copy)

    def __repr__(self) -> str:
        head = f"<NDArray {self.dtype}{list(self.shape)}, {self.device}>"
        return f"{head}\n{self.numpy()!r}" if self.__dlpack_device__()[0] == 1 else head

    def __str__(self) -> str:
        return str(self.numpy()) if self.__dlpack_device__()[0] == 1 else repr(self)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled and copied as its elements. Raises: ArtifactError for an array that is not in the CPU's memory."""
        return _unpickle, (self.numpy(),)

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __setitem__(self, index: Any, value: object) -> None:
        self.numpy()[index] = value.numpy() if isinstance(value, NDArray) else value

    def __len__(self) -> int:
        return self.shape[0]


def _unpickle(values: Array) -> FFITensor:
    return tensor_of(aligned_copy(values))


def lend(array: Array) -> FFITensor:
    """A dense NumPy array as the FFI takes it during a call; also read-only arrays, which NumPy does not export. Types
    of a byte or less that NumPy lacks are passed as bytes.
    """
    memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    # An array made here is writable, whatever the caller's is: the FFI's DLPack rejects read-only arrays.
    return tensor_of(np.ndarray(array.shape, "uint8" if array.dtype.name in NARROW else array.dtype, memory))


def new_function(address: int, keep: object) -> PackedFunc:
    """The function at an address, of the FFI's C type; it keeps `keep` alive."""
    return PackedFunc.__from_extern_c__(address, keep_alive_object=keep)


def convert(value: object) -> Any:
    """`value` as a value of the FFI.

    Lists and tuples become `Array`, dicts `Map`, functions `PackedFunc`, arrays of NumPy and of any library with DLPack
    `NDArray` on the same memory; strings, bytes and numbers stay the same. Any other object is passed through and comes
    back as the same object.
    Raises: ArtifactError for an array of elements that DLPack does not have.
    """
    try:
        return tvm_ffi.convert(value)
    except BufferError as problem:
        raise ArtifactError(f"the FFI takes no such array: {problem}") from problem


def object_use_count(value: FFIObject) -> int:
    """Number of references to an object of the FFI; 0 after a move.

    Raises: ArtifactError for any other object.
    """
    if not hasattr(value, "__chandle__"):
        raise ArtifactError(f"an object of the FFI has references to count, not {value!r:.80}")
    handle = value.__chandle__()
    # The FFI's object header begins with the count of strong references.
    return ctypes.c_uint32.from_address(handle).value if handle else 0


def open_library(path: Path) -> FFIModule:
    """A shared library with functions of the FFI. Raises: ArtifactError when it cannot be loaded."""
    try:
        return load_library(str(path))
    except (RuntimeError, ValueError) as problem:
        raise ArtifactError(f"{path} cannot be loaded: {problem}") from problem


def _register_errors() -> None:
    """Let errors keep their class when they cross the FFI: Python's own, and ours if they take one text."""
    known = core.ERROR_NAME_TO_TYPE
    for kind in vars(builtins).values():
        is_error = isinstance(kind, type) and issubclass(kind, BaseException)
        if is_error and kind.__name__ not in known and not issubclass(kind, (UnicodeError, BaseExceptionGroup)):
            error.register_error(kind.__name__, kind)
    kinds: list[type[RetuneError]] = [RetuneError]
    for ours in kinds:
        # The list grows during the loop: breadth first over the tree of our classes.
        kinds += ours.__subclasses__()
        if isinstance(ours.__init__, WrapperDescriptorType):  # none of its own
            error.register_error(ours.__name__, ours)


def _register_classes() -> None:
    if cast(Any, core)._CLASS_TENSOR is tvm_ffi.Tensor:
        tvm_ffi.register_object("ffi.Tensor", init=False)(NDArray)
        core._set_class_tensor(NDArray)
    if cast(Any, core)._CLASS_DEVICE is tvm_ffi.Device:
        core._set_class_device(FFIDevice)


_register_errors()
_register_classes()

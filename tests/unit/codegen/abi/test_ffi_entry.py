"""Entries of kernels in the FFI's convention: what they accept, and in which words they refuse the rest."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune.compiler import nd, te
from retune.compiler.codegen.abi.ffi_entry import entry_code, entry_text
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.packing import Packing
from retune.compiler.core.target import Target
from retune.compiler.driver.modules import build
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact, entry_symbol
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.runtime.ffi.module import Module
from retune.compiler.runtime.loader import load_entry

ROOT = Path(__file__).parents[4]


def copying(shape: tuple[int, ...], dtype: str = "float32") -> Module:
    """A function that copies."""
    x = te.placeholder(shape, dtype, name="x")
    return build([x, te.compute(shape, lambda *place: x[place], name="y")], name="copy")


@pytest.fixture(scope="module")
def copy() -> Any:
    """One that copies 3 times 4 numbers."""
    return copying((3, 4))["copy"]


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return aligned_copy(np.zeros(shape, dtype))


X = zeros(3, 4)
LONG = zeros(40)

REFUSED: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    (
        "few",
        (X,),
        TypeError,
        "kernel copy takes 2 tensors (x, y (written)) and then, if wanted, a number of threads; 1 ",
    ),
    ("many", (X, X, 1, 1), TypeError, "; 4 arguments are given"),
    ("none", (None, X), TypeError, "kernel copy, argument x: expected a tensor float32[3, 4], got None"),
    ("whole", (X, 3), TypeError, "argument y: expected a tensor float32[3, 4], got an int"),
    ("flag", (X, True), TypeError, "got a bool"),
    ("real", (X, 0.5), TypeError, "got a float"),
    ("short", (X, "abc"), TypeError, "got a string"),
    ("text", (X, "a text of more letters"), TypeError, "got a string"),
    ("list", (X, [1, 2]), TypeError, "got an object"),
    ("function", (X, print), TypeError, "got an object"),
    (
        "dtype",
        (X, zeros(3, 4, dtype="int8")),
        TypeError,
        "argument y: expected float32[3, 4], got elements of type int8",
    ),
    (
        "double",
        (zeros(3, 4, dtype="float64"), X),
        TypeError,
        "argument x: expected float32[3, 4], got elements of type ",
    ),
    ("flat", (X, zeros(12)), ValueError, "argument y: expected float32[3, 4], got 1 dimensions"),
    ("rows", (X, zeros(4, 4)), ValueError, "expected float32[3, 4], got 4 elements in dimension 0"),
    ("columns", (X, zeros(3, 5)), ValueError, "expected float32[3, 4], got 5 elements in dimension 1"),
    ("turned", (X, zeros(4, 3).T), ValueError, "without gaps, got a stride of 3 elements in dimension 1; copy it"),
    ("gaps", (X, zeros(6, 4)[::2]), ValueError, "without gaps, got a stride of 8 elements in dimension 0; copy it"),
    ("same", (X, X), ValueError, "the arguments x and y share memory, and one of them is written"),
    (
        "overlap",
        (LONG[:12].reshape(3, 4), LONG[16:28].reshape(3, 4), 0),
        ValueError,
        "kernel copy: the number of threads must be an integer from 1 to 1024",
    ),
    ("threads", (X, zeros(3, 4), 1025), ValueError, "the number of threads must be"),
    ("thread", (X, zeros(3, 4), 1.0), ValueError, "the number of threads must be"),
]


@pytest.mark.parametrize(("args", "kind", "text"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_does_not_fit_is_refused_in_words(
    copy: Any, args: tuple[Any, ...], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        copy(*args)
    assert text in str(caught.value)


@pytest.mark.parametrize(("x_start", "y_start"), [(1, 0), (0, 3), (2, 5)])
def test_arguments_that_are_not_aligned_are_copied_for_the_call(copy: Any, x_start: int, y_start: int) -> None:
    source, target = zeros(64), zeros(64)
    source[:] = np.arange(64)
    target[:] = -1
    copy(source[x_start : x_start + 12].reshape(3, 4), target[y_start : y_start + 12].reshape(3, 4))
    wanted = np.full(64, -1, "float32")
    wanted[y_start : y_start + 12] = np.arange(x_start, x_start + 12)
    assert target.tolist() == wanted.tolist()


def test_arguments_with_a_workspace_are_copied_too() -> None:
    x = te.placeholder((8, 8), name="x")
    y = te.compute((8, 8), lambda i, j: x[j, i] + 1.0, name="y")
    z = te.compute((8, 8), lambda i, j: y[i, j] * y[j, i], name="z")
    module, values, out = build([x, z]), zeros(65), zeros(67)
    values[:] = np.arange(65)
    module(values[1:].reshape(8, 8), out[3:].reshape(8, 8))
    given = values[1:].reshape(8, 8) + 1
    np.testing.assert_array_equal(out[3:].reshape(8, 8), given * given.T)


def test_memory_that_overlaps_in_part_is_refused(copy: Any) -> None:
    x, large = te.placeholder((16,), name="x"), zeros(48)
    doubled = build([x, te.compute((32,), lambda i: x[i // 2], name="y")])
    with pytest.raises(ValueError, match="share memory"):
        doubled(large[16:32], large[:32])
    copy(large[:12].reshape(3, 4), large[16:28].reshape(3, 4))


TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32", "float64", "bool"]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_passes(dtype: str) -> None:
    x, y = nd.array((np.arange(20) % 3).astype(dtype)), nd.empty((20,), dtype)
    copying((20,), dtype)(x, y)
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    with pytest.raises(TypeError, match=f"expected {dtype}"):
        copying((20,), dtype)(x, nd.empty((20,), "float64" if dtype != "float64" else "int8"))


def test_bfloat16_comes_from_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(20).to(torch.bfloat16), torch.empty(20, dtype=torch.bfloat16)
    copying((20,), "bfloat16")(x, y)
    assert torch.equal(x, y)
    assert nd.from_dlpack(x).numpy().astype("float32").tolist() == list(range(20))


def test_strides_of_single_elements_do_not_matter() -> None:
    x, y = zeros(3, 2, 4)[:, :1, :][:1], zeros(1, 1, 4)
    x[...] = 7
    copying((1, 1, 4))(x, y)
    assert (y == 7).all()


def test_a_scalar_is_a_tensor_without_dimensions() -> None:
    x, y = nd.array(np.float32(4)), nd.empty(())
    copying(())(x, y)
    assert y.numpy() == 4


class Tensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Value(ctypes.Structure):
    """The FFI's TVMFFIAny with a pointer."""

    _fields_ = (("kind", ctypes.c_int32), ("padding", ctypes.c_int32), ("pointer", ctypes.c_void_p))


def call_raw(module: Module, *tensors: Tensor) -> int:
    """Call a function with pointers to tensors, as a program in C does: the code that it returns."""
    function = module._functions["copy"]
    address, _keep = load_entry(function.kernel, function.entry, entry_symbol("copy"))
    entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)(address)
    args = (Value * len(tensors))(*(Value(7, 0, ctypes.addressof(tensor)) for tensor in tensors))
    result = Value(0, 0, None)
    return int(entry(None, ctypes.addressof(args), len(tensors), ctypes.addressof(result)))


def test_a_pointer_to_a_tensor_without_strides_and_with_an_offset_passes() -> None:
    module, values, out = copying((4,)), aligned_copy(np.arange(20, dtype="float32")), zeros(4)
    shape = (ctypes.c_int64 * 1)(4)
    y = Tensor(out.ctypes.data, 1, 0, 1, 2, 32, 1, shape, None, 0)
    assert call_raw(module, Tensor(values.ctypes.data, 1, 0, 1, 2, 32, 1, shape, None, 64), y) == 0
    assert out.tolist() == [16, 17, 18, 19]
    for wrong in (
        Tensor(values.ctypes.data, 2, 0, 1, 2, 32, 1, shape, None, 0),
        Tensor(values.ctypes.data, 1, 0, 1, 2, 32, 4, shape, None, 0),
        Tensor(values.ctypes.data, 1, 0, 1, 77, 32, 1, shape, None, 0),
        Tensor(None, 1, 0, 1, 2, 32, 1, shape, None, 0),
    ):
        assert call_raw(module, wrong, y) == -1


def test_packed_arguments_are_flat() -> None:
    packed = ArgSpec("w", (4, 6), "float32", False, Packing((2, 2, 6), (0, 2, 1)))
    text = entry_text(KernelArtifact("k", b"", (packed,), 0, "llvm"), "k")
    said = "float32[24], the packed form of [4, 6]"
    assert said in text


def test_entries_are_deterministic_and_refuse_types_that_dlpack_lacks() -> None:
    spec = ArgSpec("x", (4,), "float32", False)
    kernel = KernelArtifact("k", b"", (spec, ArgSpec("y", (4,), "float32", True)), 0, "llvm")
    assert entry_code(kernel, "k", Target.host()) == entry_code(kernel, "k", Target.host())
    assert entry_text(kernel, "k", (1, 0)) != entry_text(kernel, "k")
    with pytest.raises(LoweringError, match="complex64"):
        entry_text(KernelArtifact("k", b"", (ArgSpec("x", (4,), "complex64", False),), 0, "llvm"), "k")


ALONE = """
import sys
import numpy as np
from retune import compiler
from retune.compiler import te
from retune.compiler.driver.build import build

x = te.placeholder((4,), name="x")
kernel = build([x, te.compute((4,), lambda i: x[i] + 1.0, name="y")])
(result,) = kernel.outputs()
kernel(*kernel.prepared(np.arange(4, dtype="float32")), result)
assert result.tolist() == [1, 2, 3, 4]
assert compiler.cpu(0) == compiler.device("cpu")
assert not {"tvm_ffi", "torch"} & set(sys.modules)
"""


def test_kernels_do_without_the_ffi() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


BARE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
result = (ctypes.c_int64 * 2)()
print(library.__tvm_ffi_copy(None, None, 0, result))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler is installed")
def test_a_library_loads_where_there_is_no_ffi_and_fails_without_words(tmp_path: Path) -> None:
    path = copying((4,)).export_library(tmp_path / "copy.so")
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.stderr) == ("-1\n", "")

"""Arrays in a GPU's memory: filled, read, fenced, lent to others by DLPack and borrowed from them."""

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import DeviceError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.cuda.array import FENCE, DeviceArray, capsule_of
from retune.compiler.runtime.device import cuda
from retune.compiler.runtime.ffi.bindings import tensor_of
from tests.support.fake_cuda import FakeDriver
from tests.support.late_gpus import LateGpus


def made(shape: tuple[int, ...], dtype: str = "float32", driver: FakeDriver | None = None) -> DeviceArray:
    """A new array of a double's."""
    return DeviceArray.allocate(driver or FakeDriver(), "stream", 0, shape, dtype)


class Lender:
    """Another library's array on a device, and the streams that it was made ready for."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, number: int) -> None:
        self.parts = address, shape, dtype, number
        self.streams: list[object] = []

    def __dlpack__(self, *, stream: object = None, **_: Any) -> Any:
        self.streams.append(stream)
        address, shape, dtype, number = self.parts
        return capsule_of(address, shape, dtype, cuda(number), self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.parts[3]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "bool", "float64"])
def test_array_returns_what_was_written(dtype: str) -> None:
    values = np.arange(35).reshape(5, 7).astype(dtype)
    array = made((5, 7), dtype)
    array.write(values)
    np.testing.assert_array_equal(array.numpy(), values)
    assert array.nbytes == values.nbytes
    assert array.damage() == ""


def test_what_does_not_fit_is_refused() -> None:
    array = made((5, 7))
    for values in (np.zeros((7, 5), "float32"), np.zeros((5, 7), "float64")):
        with pytest.raises(DeviceError, match=r"an array of float(32|64)\[\d, \d\] does not fit into one of float32\["):
            array.write(values)


@pytest.mark.parametrize(
    ("shape", "dtype", "why"),
    [
        ((4,), "float31", "type 'float31': 'float31' is no element type"),
        ((4,), "U3", "is no element type of numbers"),
        ((2, 1.5), "float32", r"shape \(2, 1.5\) and"),
        ((2, -1), "float32", r"shape \[2, -1\]: an extent is negative"),
    ],
)
def test_non_array_raises_a_clear_error(shape: Any, dtype: str, why: str) -> None:
    driver = FakeDriver()
    for make in (lambda: made(shape, dtype, driver), lambda: made((64,), "uint8").view(0, shape, dtype)):
        with pytest.raises(DeviceError, match=f"there is no array of the shape .*{why}|{why}"):
            make()
    assert not driver.pieces


@pytest.mark.parametrize(("offset", "where"), [(-1, "before its start"), (0, "after its end"), (FENCE - 1, "after")])
def test_a_fence_shows_what_was_written_beside_an_array(offset: int, where: str) -> None:
    driver = FakeDriver()
    array = made((5, 7), "int8", driver)
    place = array.address + offset if offset < 0 else array.address + array.nbytes + offset
    driver.fill(place, 1, 1, "stream")
    assert where in array.damage()
    array.mend()
    assert array.damage() == ""


def test_released_array_refuses_access() -> None:
    array = made((4,))
    array.free()
    with pytest.raises(DeviceError, match="ILLEGAL"):
        array.numpy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool", "uint8", "int64"])
def test_another_library_gets_the_memory_itself(dtype: str) -> None:
    array = made((3, 4, 5), dtype)
    array_lives = weakref.ref(array)
    tensor, address = tensor_of(array), array.address
    del array
    gc.collect()
    assert array_lives() is not None
    assert tuple(tensor.shape) == (3, 4, 5)
    assert tuple(tensor.strides) == (20, 5, 1)
    assert str(tensor.dtype) == dtype
    assert tensor.__dlpack_device__() == (2, 0)
    assert int(tensor.data_ptr()) == address
    del tensor
    gc.collect()
    assert array_lives() is None


def test_unconsumed_dlpack_capsule_releases_its_array() -> None:
    array = made((3,))
    array_lives = weakref.ref(array)
    capsule = array.__dlpack__()
    del array
    gc.collect()
    assert array_lives() is not None
    del capsule
    gc.collect()
    assert array_lives() is None


def test_what_is_lent_may_outlive_the_interpreter() -> None:
    """What is in a cycle that `sys` knows goes last, after the globals of every module."""
    code = """if True:
        import sys
        from retune.compiler.runtime.ffi.bindings import tensor_of
        from tests.unit.runtime.cuda.test_cuda_array import made
        sys.kept = [tensor_of(made((3, 4))), made((3,)).__dlpack__()]
        sys.kept.append(sys.kept)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


def test_memory_of_another_library_is_borrowed() -> None:
    driver = FakeDriver()
    piece = driver.allocate(4096, "stream")
    array = DeviceArray.borrow(driver, "stream", Lender(piece.address, (4, 8), "float32", 1))
    assert (array.shape, array.dtype, array.address, array.device) == ((4, 8), "float32", piece.address, cuda(1))
    array.write(np.ones((4, 8), "float32"))
    assert piece.data[:128].view("float32").sum() == 32
    array.free()
    assert not piece.freed


def test_what_another_library_still_computes_is_waited_for_by_the_stream() -> None:
    driver = FakeDriver()
    lender = Lender(driver.allocate(4096, "stream").address, (4, 8), "float32", 0)
    DeviceArray.borrow(driver, "stream", lender)
    assert lender.streams == [driver.handle("stream")]


def test_what_kernels_cannot_use_is_not_borrowed() -> None:
    driver = FakeDriver()
    with pytest.raises(DeviceError, match="0x10004, no multiple of 16 bytes; copy it first"):
        DeviceArray.borrow(driver, "stream", Lender(0x10004, (4,), "float32", 0))
    with pytest.raises(DeviceError, match=r"lies on cpu\(0\), not on a CUDA device"):
        DeviceArray.borrow(driver, "stream", np.zeros(4, "float32"))
    numbers: Any = [1.0]
    with pytest.raises(DeviceError, match="a list gives no array"):
        DeviceArray.borrow(driver, "stream", numbers)
    with pytest.raises(DeviceError, match=r"said to lie on cuda\(1\), and lies on cuda\(0\)"):
        DeviceArray.borrow(driver, "stream", Liar(0x10000, (4,), "float32", 0))
    with pytest.raises(DeviceError, match="a Broken gives no array of DLPack: no driver"):
        DeviceArray.borrow(driver, "stream", Broken(0x10000, (4,), "float32", 0))


def test_an_array_opens_its_gpu_wherever_it_is_used() -> None:
    gpus = LateGpus(count=2)
    gpus.open(1)
    array = DeviceArray.allocate(gpus, gpus.stream(), 1, (4,), "float32")
    values = np.arange(4, dtype=np.float32)

    def use() -> Array:
        array.write(values)
        assert array.damage() == ""
        return array.numpy()

    with ThreadPoolExecutor(1) as pool:
        np.testing.assert_array_equal(pool.submit(use).result(), values)
    gpus.open(0)
    np.testing.assert_array_equal(use(), values)
    assert array.__dlpack__() is not None
    assert gpus.current == 1


class Liar(Lender):
    """An array that is not where it says."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1


class Broken(Lender):
    """An array of a library that does not work."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise OSError("no driver")

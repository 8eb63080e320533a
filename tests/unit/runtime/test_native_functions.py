"""Functions of C and C++, compiled here: registered, called from Python, and called by kernels."""

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from retune import compiler
from retune.compiler import nd, te
from retune.compiler.core.errors import ArtifactError
from retune.compiler.driver.build import build as build_for_numpy
from retune.compiler.runtime import PackedFunc, load_module
from retune.compiler.te.evaluate import evaluate

C = r"""
#include <tvm/ffi/c_api.h>

static DLTensor* tensor(const TVMFFIAny* any) {
  if (any->type_index != kTVMFFITensor) return (DLTensor*)any->v_ptr;
  return (DLTensor*)((char*)any->v_obj + sizeof(TVMFFIObject));
}

/* result[i] = source[i] + number */
TVM_FFI_DLL_EXPORT int __tvm_ffi_c_add(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  if (count != 3 || args[1].type_index != kTVMFFIInt) {
    TVMFFIErrorSetRaisedFromCStr("NotImplementedError", "c_add takes a tensor, a number and a tensor");
    return -1;
  }
  DLTensor *source = tensor(&args[0]), *target = tensor(&args[2]);
  for (int64_t i = 0; i < source->shape[0]; ++i)
    ((float*)target->data)[i] = ((float*)source->data)[i] + args[1].v_int64;
  return 0;
}
"""

CPP = r"""
#include <tvm/ffi/tvm_ffi.h>

namespace ffi = tvm::ffi;

static int my_add(int a, int b) { return a + b; }

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tests.myadd", my_add)
      .def("tests.callhello", [](ffi::Function f) { f("hello world"); })
      .def("tests.scale", [](ffi::TensorView x, double factor, ffi::TensorView y) {
        for (int64_t i = 0; i < x.numel(); ++i)
          static_cast<float*>(y.data_ptr())[i] = static_cast<float*>(x.data_ptr())[i] * factor;
      });
}
"""


def compiled(folder: Path, name: str, source: str, program: str, *options: str, rpath: bool = True) -> Path:
    """The shared library of a source text. Skips the test without a compiler."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    path = folder / name
    path.write_text(source)
    library = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    includes = (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())
    command = [program, "-O1", "-shared", "-fPIC", *options, *(f"-I{folder}" for folder in includes), str(path)]
    command += [f"-L{library.parent}", "-ltvm_ffi", "-o", str(path.with_suffix(".so"))]
    command += [f"-Wl,-rpath,{library.parent}"] if rpath else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return path.with_suffix(".so")


@pytest.fixture(scope="module")
def c_add(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedFunc]:
    """The function in C, registered."""
    module = load_module(compiled(tmp_path_factory.mktemp("c"), "add.c", C, "cc"))
    compiler.register_func("tests.c_add", module["c_add"])
    yield compiler.get_global_func("tests.c_add")
    compiler.remove_global_func("tests.c_add")


@pytest.fixture(scope="module")
def _cpp(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The functions in C++, which register themselves."""
    ctypes.CDLL(str(compiled(tmp_path_factory.mktemp("cpp"), "ext.cc", CPP, "c++", "-std=c++17")), ctypes.RTLD_GLOBAL)


@pytest.mark.long
def test_a_library_is_loaded_by_ctypes_before_anything_used_the_ffi(tmp_path: Path) -> None:
    library = compiled(tmp_path, "ext.cc", CPP, "c++", "-std=c++17", rpath=False)
    script = """
import ctypes, sys
import retune.compiler as tvm
assert not {"tvm_ffi", "torch"} & set(sys.modules)
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
print(tvm.get_global_func("tests.myadd")(4, 5))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(library)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "9\n"), done.stderr


def caller(name: str, number: float) -> list[te.Tensor]:
    """A stage that calls a function, and one behind it."""
    x = te.placeholder((6,), name="x")
    y = te.extern((6,), [x], lambda ins, outs: te.call_packed(name, ins[0], number, outs[0]), name="y")
    return [x, te.compute((6,), lambda i: y[i] * 2.0, name="z")]


def check_from_kernels(name: str, number: float, expected: np.ndarray) -> None:
    """Both kinds of compiled functions, and the oracle, call the function."""
    tensors, values = caller(name, number), np.arange(6, dtype="float32")
    x, z = nd.array(values), nd.empty((6,))
    compiler.build(tensors)(x, z)
    np.testing.assert_array_equal(z.numpy(), expected)
    plain = build_for_numpy(tensors)
    (result,) = plain.outputs()
    plain(*plain.prepared(values), result)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(evaluate(tensors[1:], {tensors[0]: values})[0], expected)


def test_a_function_in_c(c_add: PackedFunc) -> None:
    x, y = nd.array(np.arange(4, dtype="float32")), nd.empty((4,))
    c_add(x, 3, y)
    assert y.numpy().tolist() == [3, 4, 5, 6]
    with pytest.raises(NotImplementedError, match="c_add takes a tensor, a number and a tensor"):
        c_add(x, y)


def test_kernels_call_a_function_in_c(c_add: PackedFunc) -> None:
    assert c_add.same_as(compiler.get_global_func("tests.c_add"))
    check_from_kernels("tests.c_add", 3, (np.arange(6) + 3) * 2)
    with pytest.raises(NotImplementedError, match="c_add takes"):
        compiler.build(caller("tests.c_add", 0.5))(nd.array(np.zeros(6, "float32")), nd.empty((6,)))


@pytest.mark.usefixtures("_cpp")
def test_functions_in_cpp() -> None:
    myadd = compiler.get_global_func("tests.myadd")
    assert isinstance(myadd, PackedFunc)
    assert myadd(4, 5) == 9
    with pytest.raises(TypeError, match="int"):
        myadd(4, "five")
    said: list[str] = []
    compiler.get_global_func("tests.callhello")(said.append)
    assert said == ["hello world"]
    assert "tests.myadd" in compiler.list_global_func_names()


@pytest.mark.usefixtures("_cpp")
def test_kernels_call_a_function_in_cpp() -> None:
    check_from_kernels("tests.scale", 0.5, np.arange(6) * 1.0)


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"absent\.so: there is no such file"):
        load_module(tmp_path / "absent.so")

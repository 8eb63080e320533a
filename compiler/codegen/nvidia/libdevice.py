"""Math functions of GPU kernels: calls of NVIDIA's libdevice, and linking the functions that a module calls.

libdevice is LLVM bitcode, in the package nvidia-nvvm (extra `libdevice`). A kernel's functions are linked into its
module and inlined. They are at most 4 ulp off, and `fmod` is exact.
"""

import importlib
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm

from retune.compiler.codegen.types import llvm_type
from retune.compiler.codegen.values import Emit, Value
from retune.compiler.codegen.vector_builder import VectorBuilder
from retune.compiler.core.errors import TargetError, install_hint
from retune.compiler.ir.expr import LIBRARY_BINARY, LIBRARY_UNARY

REMAINDER = "fmod"
"""The remainder with the dividend's sign, in place of LLVM's `frem`."""
FUNCTIONS = ("exp", "log", "pow", "tanh", "erf", *LIBRARY_UNARY, *LIBRARY_BINARY)
"""The functions that `call` takes, by their C names."""
_SUFFIXES = {"float64": "", "float32": "f"}
_SYMBOLS = {f"__nv_{name}{suffix}": (name, dtype) for name in FUNCTIONS for dtype, suffix in _SUFFIXES.items()}
_ARGUMENTS = {"pow": 2, **dict.fromkeys(LIBRARY_BINARY, 2)}
_CALLED = re.compile(r"@(__nv_\w+)\(")


def call(emit: Emit, name: str, args: Sequence[Value]) -> Value:
    """Call function `name` of `FUNCTIONS` lane by lane; `args` have the same lanes and type, float32 or float64."""
    first = args[0]
    return VectorBuilder(emit, first.lanes, first.dtype).each_lane(f"__nv_{name}{_SUFFIXES[first.dtype]}", *args)


def declarations(module: str) -> list[str]:
    """The declarations of the functions that the text of a module calls."""
    lines = []
    for symbol in sorted(set(_CALLED.findall(module))):
        name, dtype = _SYMBOLS[symbol]
        kind = llvm_type(dtype)
        lines.append(f"declare {kind} @{symbol}({', '.join([kind] * _ARGUMENTS.get(name, 1))})")
    return lines


def link(module: llvm.ModuleRef) -> None:
    """Define the functions of libdevice that a module declares.

    Raises: TargetError when there are some and libdevice is not installed.
    """
    for symbol in [function.name for function in module.functions if function.name in _SYMBOLS]:
        part = llvm.parse_assembly(_part(symbol))
        # The linker compares triple and layout, which are generic in libdevice.
        part.triple, part.data_layout = module.triple, module.data_layout
        module.link_in(part)
        # Internal, so that it disappears once it is inlined.
        module.get_function(symbol).linkage = "internal"


@lru_cache
def _part(symbol: str) -> str:
    """The LLVM text of one function and its callees; PTX has no calls if slow paths are inlined too."""
    return str(_extract(_library(), {symbol})).replace("noinline ", "alwaysinline ")


@lru_cache(maxsize=1)
def _library() -> bytes:
    """The functions in use: an eighth of libdevice, which takes 0.1 s to parse."""
    bitcode: bytes = _extract(_path().read_bytes(), _SYMBOLS).as_bitcode()
    return bitcode


def _extract(bitcode: bytes, symbols: Collection[str]) -> llvm.ModuleRef:
    """A module with only `symbols` and their callees."""
    module = llvm.parse_bitcode(bitcode)
    # Global dead code elimination removes internal functions that no kept function calls.
    for function in module.functions:
        if not function.is_declaration and function.name not in symbols:
            function.linkage = "internal"
    machine = llvm.Target.from_triple(module.triple).create_target_machine()
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


def _path() -> Path:
    """The path of libdevice: in NVIDIA's packages for Python, in a conda environment, or below CUDA_HOME.

    Raises: TargetError when it is in none of them.
    """
    try:
        return Path(importlib.import_module("cuda.pathfinder").find_bitcode_lib("device"))
    except (ImportError, RuntimeError) as missing:
        raise TargetError(
            f"math functions of GPU kernels need NVIDIA's libdevice: {install_hint('libdevice')} "
            f"({str(missing).splitlines()[0]})"
        ) from missing

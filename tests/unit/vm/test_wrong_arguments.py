"""Whatever a script passes to the virtual machine, functions and modules is taken or refused in one sentence."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune import compiler
from retune.compiler import nd, runtime, te, vm
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.runtime.device import cpu
from tests.support.wrong_arguments import refusals

X = np.ones((2, 3), np.float32)


def _network() -> Graph:
    builder = GraphBuilder("sums", [Value("x", (2, 3)), Value("y", (2, 3))])
    return builder.finish({"sum": builder.emit("add", ("x", "y"))})


def _tensors() -> list[te.Tensor]:
    x = te.placeholder((4,), name="x")
    return [x, te.compute((4,), lambda i: x[i] + 1.0, name="y")]


EXE = vm.compile(_network())
GOOD: dict[str, Any] = {
    "mod": _network(), "target": None, "target_host": None, "params": None, "threads": 1, "best": None,
    "program": EXE.program, "late": {},
    "library": EXE.library, "lib": EXE.library, "bytecode": EXE.save()[0], "exe": EXE,
    "device": cpu(), "memory_cfg": None, "options": None, "path": "nowhere", "name": "main", "func_name": "main",
    "byte_limit": 1, "constants": {}, "input_name": "x", "input_args": {"x": X, "y": X}, "output_args": [X.copy()],
    "args": X, "kwargs": X, "repeat": 1, "number": 1, "min_repeat_ms": 0, "limit_zero_time_iterations": 1,
    "end_to_end": False, "cooldown_interval_ms": 0, "repeats_to_cooldown": 1, "expr": None, "specialize": "now",
    "specializations": 1, "prepared_bytes": 0, "values": X, "shape": (2, 3), "dtype": "float32", "source": X,
    "f": None, "override": True, "allow_missing": False, "value": [1], "text": runtime.save_json([1]), "lhs": [1],
    "rhs": [1], "map_free_vars": False, "what": _tensors(), "steps": None, "linkers": ("no-linker",), "module": None,
    "query_imports": False, "dev": None, "cache_flush_bytes": 0, "f_preproc": "", "kind": "cpu", "index": 0,
}  # fmt: skip
"""What fits a parameter of this name, of whichever function."""


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    machine, module = vm.VirtualMachine(EXE, cpu()), compiler.build(_tensors())
    GOOD["module"] = compiler.build(_tensors())
    for name in ("compile", "Executable", "VirtualMachine", "VMCompiler", "VMOptions", "load_module"):
        yield f"vm.{name}", getattr(vm, name)
    yield "Executable.load_exec", vm.Executable.load_exec
    yield "Executable.load", vm.Executable.load
    yield "VMLibrary.export_library", lambda path: EXE.lib.export_library(path)
    yield "evaluate", lambda mod, device, target, expr: vm.VMExecutor(mod, device, target).evaluate(expr)
    yield "set_input", lambda func_name, args, kwargs: machine.set_input(func_name, args, y=kwargs)
    yield "set_one_input", lambda func_name, name, args: machine.set_one_input(func_name, name, args)
    yield "invoke", lambda func_name, args: machine.invoke(func_name, args, X)
    for one in (EXE, vm.VMCompiler(), machine, module):
        for name, _ in inspect.getmembers(type(one), inspect.isfunction):
            if not name.startswith("_") and name not in ("set_input", "set_one_input", "invoke"):
                yield f"{type(one).__name__}.{name}", getattr(one, name)
    yield "module[]", module.__getitem__
    for name in ("array", "empty", "from_dlpack"):
        yield f"nd.{name}", getattr(nd, name)
    for name in (
        "convert",
        "load_json",
        "save_json",
        "assert_structural_equal",
        "structural_equal",
        "object_use_count",
        "load_module",
    ):
        yield f"runtime.{name}", getattr(runtime, name)
    yield "build", lambda what, target, name, steps: compiler.build(what, None, target, name, steps)
    yield "build(schedule)", lambda expr, what, target, name: compiler.build(expr, what, target, name)
    for name in ("device", "get_global_func", "register_func", "remove_global_func"):
        yield name, getattr(compiler, name)
    yield "create_prim_func", lambda what, name: te.create_prim_func(what, name)


def test_wrong_arguments_are_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused, raw = refusals(_functions(), GOOD, lambda _: False)
    assert raw == []
    assert refused > 1000

"""A network as a shared library with C functions, and the header that declares them.

    int64_t NAME_workspace_bytes(sizes …)                              -1 for sizes that the network does not take
    int32_t NAME_shapes(sizes …, int64_t *shape of each output)
    int32_t NAME_run(sizes …, inputs …, outputs …, void *workspace, int32_t threads)

The sizes are the values of the network's symbolic extents, none for fixed shapes. The functions keep no state: threads
may call them at once, each with a workspace of its own.
"""

import re
from collections.abc import Iterable
from functools import reduce
from itertools import count
from pathlib import Path

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import LONG, CFunction, CModule
from retune.compiler.codegen.abi.constant_table import ConstantTable, constants_of
from retune.compiler.codegen.abi.cpu_guard import cpu_guard
from retune.compiler.codegen.abi.plan_code import ExportedPlan, PlanCode
from retune.compiler.codegen.cpu import compile_module
from retune.compiler.core.target import Target
from retune.compiler.runtime.artifact import ALIGNMENT

_WRONG_SIZES, _NOT_ALIGNED, _OTHER_CPU = 1, 3, 4
"""What functions return, beside `TOO_LONG`."""
_FUNCTIONS = ("workspace_bytes", "shapes", "run")
_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t",
}  # fmt: skip
"""C's element types of those that C has no name for, or another one."""


class CLibrary:
    """The library of a network, whose functions begin with `name`, a name in C.

    Raises: ArtifactError when the network is not one for a CPU, has no object code, or its constants are too large.
    """

    def __init__(self, exported: ExportedPlan, name: str) -> None:
        exported.network.require_cpu_code("a C library")
        self._exported, self._name = exported, c_name(name)
        # Words before the names keep these apart from C's keywords.
        names = [f"size_{exported.names[symbol]}" for symbol in exported.symbols]
        names += [f"in_{param.name}" for param in exported.inputs] + [f"out_{param.name}" for param in exported.outputs]
        self._names = _distinct(map(c_name, names))
        self.exports = tuple(f"{self._name}_{function}" for function in _FUNCTIONS)

    def objects(self, folder: Path) -> list[bytes]:
        """The object code. A temporary file is written into `folder`."""
        network = self._exported.network
        table = ConstantTable.of([network.constants])
        target = Target(str(network.metadata.get("target", "llvm")))
        kernels = [kernel.object_code for kernel in network.kernels]
        return [compile_module(self._text(table), target), table.object_code(folder, target), *kernels]

    def _text(self, table: ConstantTable) -> str:
        module, exported = CModule(), self._exported
        metadata = exported.network.metadata
        guard = cpu_guard(module, "retune.has_features", str(metadata.get("triple", "")), metadata.get("needs", ()))
        room = self._function(module, "workspace_bytes", "i64")
        code = PlanCode(room, exported, self._sizes(room))
        room.ret(room.builder.select(code.fits, code.memory_bytes, LONG(-1)))
        self._write_shapes(self._function(module, "shapes", "i32", len(exported.outputs)))
        arrays = len(exported.inputs) + len(exported.outputs)
        self._write_run(module, self._function(module, "run", "i32", arrays + 1, "i32"), guard, table)
        return str(module)

    def _function(self, module: CModule, name: str, result: str, pointers: int = 0, *last: str) -> CFunction:
        parameters = [*["i64"] * len(self._exported.symbols), *["ptr"] * pointers, *last]
        return module.define(f"{self._name}_{name}", result, ", ".join(parameters), "")

    def _sizes(self, function: CFunction) -> dict[str, ir.Value]:
        return dict(zip(self._exported.symbols, function.args, strict=False))

    def _write_shapes(self, shapes: CFunction) -> None:
        exported = self._exported
        code = PlanCode(shapes, exported, self._sizes(shapes))
        _refuse(shapes, code.fits, _WRONG_SIZES)
        for slot, number in zip(shapes.args[len(exported.symbols) :], exported.plan.outputs, strict=True):
            for axis, extent in enumerate(exported.plan.buffers[number].shape):
                shapes.store(code.extent(extent), slot, 8 * axis)
        shapes.ret(0)

    def _write_run(self, module: CModule, run: CFunction, guard: ir.Function, table: ConstantTable) -> None:
        exported, plan, builder = self._exported, self._exported.plan, run.builder
        _refuse(run, run.call(guard), _OTHER_CPU)
        code = PlanCode(run, exported, self._sizes(run))
        _refuse(run, code.fits, _WRONG_SIZES)
        *arrays, memory, threads = run.args[len(exported.symbols) :]
        bits = reduce(builder.or_, (builder.ptrtoint(pointer, LONG) for pointer in (*arrays, memory)))
        _refuse(run, run.equals(builder.and_(bits, LONG(ALIGNMENT - 1)), 0), _NOT_ALIGNED)
        tensors = dict(zip((*plan.inputs, *plan.outputs), arrays, strict=True))
        offsets = {number: offset for (_, number), offset in table.offsets.items()}
        buffers = code.addresses(tensors, memory, constants_of(module), offsets)
        result = code.call_kernels(module, buffers, memory, lambda _: threads)
        copy = module.declare("memcpy", "ptr", "ptr, ptr, i64")
        for index, number in enumerate(plan.outputs):
            storage = plan.buffers[number].storage
            if code.owners.get(storage) != index:
                run.call(copy, arrays[len(plan.inputs) + index], buffers[storage], code.nbytes[number])
        run.ret(result)

    def header(self) -> str:
        """The C header."""
        exported, plan, names = self._exported, self._exported.plan, list(self._names)
        sizes = [f"int64_t {names.pop(0)}" for _ in exported.symbols]
        arrays, shapes = [], []
        for numbers, const in ((plan.inputs, "const "), (plan.outputs, "")):
            for number in numbers:
                spec, name = plan.buffers[number], names.pop(0)
                shape = f"{list(exported.shape(number))}".replace("*/", "* /")
                arrays.append(f"{const}{_TYPES.get(spec.dtype, f'{spec.dtype}_t')} *{name} /* {spec.dtype}{shape} */")
                if not const:
                    shapes.append(f"int64_t {name}[{max(1, len(spec.shape))}]")
        room, shape, run = self.exports
        limits = f"\n   Sizes: {exported.limits}." if exported.limits else ""
        last = ",\n    ".join([*sizes, *arrays, "void *workspace", "int32_t threads"])
        declarations = (
            f"int64_t {room}({', '.join(sizes) or 'void'});",
            f"int32_t {shape}({', '.join([*sizes, *shapes])});",
            f"int32_t {run}({last});",
        )
        return _HEADER.format(name=self._name, limits=limits, declarations="\n".join(declarations))


_HEADER = """\
/* {name}: a network compiled by Retune.{limits}

   {name}_run reads the inputs and writes the outputs, dense arrays that share no memory. All pointers are multiples of
   64, as aligned_alloc(64, ...) gives them. `workspace` has at least {name}_workspace_bytes(...) bytes, which is -1 for
   sizes that the network does not take. {name}_shapes writes the shapes of the outputs.

   Results: 0 success; 1 sizes that the network does not take; 2 an axis too long for its kernels;
   3 a pointer that is not a multiple of 64; 4 a CPU that lacks instructions of the library. */

#ifndef RETUNE_{name}_H
#define RETUNE_{name}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{declarations}

#ifdef __cplusplus
}}
#endif

#endif
"""


def c_name(name: str) -> str:
    """A name as an identifier of C."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return word if word and not word[0].isdigit() else f"n{word}"


def _distinct(names: Iterable[str]) -> list[str]:
    """The names, with a number behind those that occur again."""
    distinct: dict[str, None] = {}
    for name in names:
        numbers = count(2)
        while name in distinct:
            name = f"{name}_{next(numbers)}"
        distinct[name] = None
    return list(distinct)


def _refuse(function: CFunction, condition: ir.Value, code: int) -> None:
    """Return `code` unless a condition holds."""
    with function.unless(condition):
        function.ret(code)

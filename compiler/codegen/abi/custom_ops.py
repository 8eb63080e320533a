"""A library of custom operators for ONNX Runtime: each runs the plan of a compiled network.

The library exports `RegisterCustomOps`, which a session calls with the table of ONNX Runtime's C functions. Its object
is linked with those of the kernels and with one of their constants. An operator checks how many elements its inputs
have, takes memory for intermediates from the session's allocator, and calls the kernels in the order of the plan, so
runs may overlap. An input that is not aligned as kernels need it, such as most of NumPy's arrays, is copied first.

Kernels call libgomp's functions for their parallel loops. The library has functions of its own by these names, hidden
from others, which give the loops to the threads of the session: `intra_op_num_threads` counts, and no second pool of
threads competes for the cores.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import (
    FLAG,
    INT,
    LONG,
    NULL,
    POINTER,
    CFunction,
    array_of,
    record,
    signature,
)
from retune.compiler.codegen.abi.constant_table import ConstantTable
from retune.compiler.codegen.abi.cpu_guard import cpu_guard
from retune.compiler.codegen.abi.custom_op_support import FIELDS, VERSION, OrtModule
from retune.compiler.codegen.abi.plan_code import ExportedPlan, PlanCode
from retune.compiler.codegen.cpu import compile_module
from retune.compiler.codegen.scan_loop import BARRIER
from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.target import Target
from retune.compiler.graph.region import Param
from retune.compiler.runtime.artifact import ALIGNMENT, TOO_LONG, KernelArtifact
from retune.compiler.runtime.executor.plan import Plan

DOMAIN = "retune"
"""The domain of the operators."""

ENTRY = "RegisterCustomOps"

TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
"""ONNX's numbers of element types."""


@dataclass(frozen=True, slots=True)
class CustomOp:
    """An operator: the name of its type, and the network that it runs."""

    name: str
    exported: ExportedPlan


def custom_op(exported: ExportedPlan) -> CustomOp:
    """The operator that runs a network; its name ends in a hash of all that it computes with.

    Raises: ArtifactError when the network is not one for a CPU, has no object code, or has inputs or outputs of a type
    that ONNX Runtime lacks.
    """
    plan, network = exported.plan, exported.network
    for number in (*plan.inputs, *plan.outputs):
        if plan.buffers[number].dtype not in TYPES:
            raise ArtifactError(
                f"ONNX Runtime has no tensors of {plan.buffers[number].dtype} for the network's "
                f"{plan.buffers[number].name}"
            )
    network.require_cpu_code("a library for ONNX Runtime")
    digest = hashlib.sha256(repr((plan, exported.slots, exported.guards)).encode())
    for kernel in network.kernels:
        digest.update(kernel.object_code)
    for _, array in sorted(network.constants.items()):
        digest.update(array.data)
    # A readable beginning; the hash tells operators apart.
    label = re.sub(r"\W+", "_", plan.name)[:40]
    return CustomOp(f"{label}_{digest.hexdigest()[:16]}", exported)


def library_objects(ops: Sequence[CustomOp], folder: Path) -> list[bytes]:
    """The object code of a library of `ops`. Temporary files are written into `folder`.

    Raises: ArtifactError when the constants are too large for a library.
    """
    networks = [op.exported.network for op in ops]
    table = ConstantTable.of([network.constants for network in networks])
    target = Target(str(networks[0].metadata.get("target", "llvm")))
    kernels = [kernel.object_code for network in networks for kernel in network.kernels]
    return [compile_module(_library(ops, table), target), table.object_code(folder, target), *kernels]


def _library(ops: Sequence[CustomOp], table: ConstantTable) -> str:
    """The LLVM text of the library, apart from kernels and constants."""
    module = OrtModule()
    metadata = ops[0].exported.network.metadata
    needs = list(metadata.get("needs", ()))
    has_features = cpu_guard(module, "retune.has_features", str(metadata.get("triple", "")), needs)
    descriptions = []
    for number, op in enumerate(ops):
        constants = {buffer: table.offsets[number, buffer] for buffer in op.exported.network.constants}
        descriptions.append(_description(module, op, _Compute(module, op, constants).write(f"retune.compute{number}")))
    cpu = metadata.get("cpu", "another CPU")
    _write_entry(
        module,
        descriptions,
        has_features,
        f"the library was compiled for {cpu}; this machine lacks instructions that it uses: export the network here",
    )
    return str(module)


def _write_entry(module: OrtModule, ops: Sequence[ir.Value], has_features: ir.Function, foreign: str) -> None:
    """The exported function. All sessions share one domain, which the first of them makes."""
    entry = module.define(ENTRY, "ptr", "ptr, ptr", linkage="")
    options, base = entry.args
    domain, made = entry.slot(POINTER), entry.slot(POINTER)
    get = entry.load(signature("ptr", "i32").as_pointer(), base)
    api = entry.call(get, VERSION)
    with entry.when(entry.is_null(api)):
        # Every ONNX Runtime knows version 1 of the table, whose CreateStatus is enough to say what is wrong.
        entry.store(entry.call(get, 1), module.api)
        old = f"a library by Retune needs ONNX Runtime 1.{VERSION} or newer"
        entry.ret(module.ort(entry, "CreateStatus", 1, module.text(old)))
    entry.store(api, module.api)
    with entry.unless(entry.call(has_features)):
        entry.ret(module.ort(entry, "CreateStatus", 1, module.text(foreign)))
    before = entry.builder.load_atomic(module.domain, "acquire", 8, typ=POINTER)
    entry.store(before, domain)
    with entry.when(entry.is_null(before)):
        entry.ret_error(module.ort(entry, "CreateCustomOpDomain", module.text(DOMAIN), made))
        own = entry.load(POINTER, made)
        for op in ops:
            entry.ret_error(module.ort(entry, "CustomOpDomain_Add", own, op))
        # Two sessions may register at once: the first exchange wins, and the other domain is released.
        exchange = entry.builder.cmpxchg(module.domain, NULL, own, "acq_rel", "acquire")
        is_first = entry.builder.extract_value(exchange, 1)
        with entry.unless(is_first):
            module.ort(entry, "ReleaseCustomOpDomain", own)
        entry.store(entry.builder.select(is_first, own, entry.builder.extract_value(exchange, 0)), domain)
    entry.ret(module.ort(entry, "AddCustomOpDomain", options, entry.load(POINTER, domain)))


def _description(module: OrtModule, op: CustomOp, compute: ir.Function) -> ir.Value:
    """The `OrtCustomOp` of an operator, with our fields behind it."""
    plan = op.exported.plan
    functions = {**module.shared, "KernelComputeV2": compute}
    fields: list[ir.Value] = [INT(VERSION), array_of(POINTER, [functions.get(name, NULL) for name in FIELDS])]
    fields.append(module.text(op.name))
    for buffers in (plan.inputs, plan.outputs):
        kinds = array_of(INT, [TYPES[plan.buffers[number].dtype] for number in buffers])
        fields += [LONG(len(buffers)), module.constant(kinds)]
    return module.constant(record(*fields))


def _input_error(param: Param) -> str:
    return f"the input {param.name} must be {str(param).removeprefix(f'{param.name}: ')}"


@dataclass(slots=True)
class _Compute:
    """Writes the function that runs a plan once, an operator's `KernelComputeV2`.

    Tensors of ONNX Runtime that kernels cannot use where they lie are copied to memory behind that of intermediates.
    """

    module: OrtModule
    op: CustomOp
    constants: Mapping[int, int]
    _run: CFunction = field(init=False)
    _context: ir.Value = field(init=False)
    _code: PlanCode = field(init=False)
    _memory: ir.Value = field(init=False)

    @property
    def _plan(self) -> Plan:
        return self.op.exported.plan

    def write(self, name: str) -> ir.Function:
        self._run = run = self.module.define(name, "ptr", "ptr, ptr")
        self._context = run.args[1]
        allocator_slot, memory_slot = run.slot(POINTER), run.slot(POINTER)
        tensors = self._inputs()
        tensors |= self._outputs()
        apart = self._allocate(tensors, allocator_slot, memory_slot)
        buffers = self._buffers(tensors, apart)
        code = self._calls(buffers)
        self._copy_outputs(tensors, apart, buffers)
        allocator = run.load(POINTER, allocator_slot)
        run.call(self.module.fail, self.module.ort(run, "AllocatorFree", allocator, run.load(POINTER, memory_slot)))
        self.module.ort(run, "ReleaseAllocator", allocator)
        is_long = run.equals(code, TOO_LONG)
        is_wrong = run.builder.not_(run.builder.or_(is_long, run.equals(code, 0)))
        for failed, message in (
            (is_long, f"an axis is too long for the kernels of {self.op.name}: export the network for this shape"),
            (is_wrong, f"a kernel of {self.op.name} failed"),
        ):
            with run.when(failed):
                run.call(self.module.fail, self.module.ort(run, "CreateStatus", 1, self.module.text(message)))
        failure = run.load(POINTER, self.module.failure)
        run.store(NULL, self.module.failure)
        run.ret(failure)
        return run.function

    def _inputs(self) -> dict[int, ir.Value]:
        """Where the inputs lie, by buffer, whose shapes give the sizes of the plan."""
        run, module, exported = self._run, self.module, self.op.exported
        data = [run.slot(POINTER) for _ in exported.inputs]
        extents: list[list[ir.Value]] = []
        for index, param in enumerate(exported.inputs):
            spec = self._plan.buffers[self._plan.inputs[index]]
            dims, rank = run.slot(LONG, max(1, len(spec.shape))), len(spec.shape)
            message = module.text(_input_error(param))
            status = run.call(module.input, self._context, index, TYPES[spec.dtype], dims, rank, message, data[index])
            run.ret_error(status)
            extents.append([run.load(LONG, dims, 8 * axis) for axis in range(rank)])
        sizes = {symbol: extents[index][axis] for symbol, (index, axis) in exported.symbols.items()}
        self._code = PlanCode(run, exported, sizes)
        for index, param in enumerate(exported.inputs):
            shape = self._plan.buffers[self._plan.inputs[index]].shape
            same = [run.equals(*pair) for pair in zip(extents[index], map(self._code.extent, shape), strict=True)]
            self._require(reduce(run.builder.and_, same, FLAG(1)), _input_error(param))
        self._require(self._code.fits, f"{self.op.name} takes only sizes with {exported.limits}")
        return {number: run.load(POINTER, slot) for number, slot in zip(self._plan.inputs, data, strict=True)}

    def _require(self, condition: ir.Value, message: str) -> None:
        run = self._run
        with run.unless(condition):
            run.ret(self.module.ort(run, "CreateStatus", 2, self.module.text(message)))

    def _outputs(self) -> dict[int, ir.Value]:
        """Where the outputs lie, by buffer."""
        run, tensors = self._run, {}
        for index, number in enumerate(self._plan.outputs):
            shape = self._plan.buffers[number].shape
            dims, slot = run.slot(LONG, max(1, len(shape))), run.slot(POINTER)
            for axis, extent in enumerate(shape):
                run.store(self._code.extent(extent), dims, 8 * axis)
            run.ret_error(run.call(self.module.output, self._context, index, dims, len(shape), slot))
            tensors[number] = run.load(POINTER, slot)
        return tensors

    def _allocate(
        self, tensors: Mapping[int, ir.Value], allocator: ir.Value, memory: ir.Value
    ) -> dict[int, tuple[ir.Value, ir.Value]]:
        """Allocate memory. For each tensor that kernels use in place of a buffer: whether it is not aligned as they
        need it, and the address of memory that they use then.
        """
        run, builder, plan, code = self._run, self._run.builder, self._plan, self._code
        total, begins = code.memory_bytes, {}
        for number in (*plan.inputs, *(plan.outputs[index] for index in code.owners.values())):
            rest = builder.and_(builder.ptrtoint(tensors[number], LONG), LONG(ALIGNMENT - 1))
            is_apart = builder.not_(run.equals(rest, 0))
            begins[number] = is_apart, total
            total = builder.add(total, builder.select(is_apart, code.align(code.nbytes[number]), LONG(0)))
        # The allocator need not align to 64 bytes: one unit more, and the address is rounded up.
        nbytes = builder.add(total, LONG(ALIGNMENT))
        run.ret_error(run.call(self.module.allocate, self._context, nbytes, allocator, memory))
        raised = builder.add(builder.ptrtoint(run.load(POINTER, memory), LONG), LONG(ALIGNMENT - 1))
        self._memory = builder.inttoptr(builder.and_(raised, LONG(-ALIGNMENT)), POINTER)
        return {number: (is_apart, run.at(self._memory, begin)) for number, (is_apart, begin) in begins.items()}

    def _buffers(
        self, tensors: Mapping[int, ir.Value], apart: Mapping[int, tuple[ir.Value, ir.Value]]
    ) -> dict[int, ir.Value]:
        """Copy inputs that are not aligned, and say where each buffer that owns memory lies."""
        run, code = self._run, self._code
        for number in self._plan.inputs:
            is_apart, spare = apart[number]
            with run.when(is_apart):
                run.call(self.module.copy, spare, tensors[number], code.nbytes[number])
        used = {number: run.builder.select(*places, tensors[number]) for number, places in apart.items()}
        return code.addresses(used, self._memory, self.module.constants, self.constants)

    def _calls(self, buffers: Mapping[int, ir.Value]) -> ir.Value:
        """Run the kernels; zero where none failed."""
        run = self._run
        threads = int(self.op.exported.network.metadata.get("threads", 1))

        def threads_of(kernel: KernelArtifact) -> ir.Value:
            # Shares of ONNX Runtime's threads may run one after another, so they cannot wait for each other.
            return INT(1 if BARRIER.encode() in kernel.object_code else threads)

        # Thread-local, and restored at the end: the run may be nested in another operator's on this thread.
        outer = run.load(POINTER, self.module.context)
        run.store(self._context, self.module.context)
        code = self._code.call_kernels(self.module, buffers, self._memory, threads_of)
        run.store(outer, self.module.context)
        return code

    def _copy_outputs(
        self,
        tensors: Mapping[int, ir.Value],
        apart: Mapping[int, tuple[ir.Value, ir.Value]],
        buffers: Mapping[int, ir.Value],
    ) -> None:
        """Copy outputs that no kernel wrote into the tensor of ONNX Runtime."""
        run, plan, code = self._run, self._plan, self._code
        for index, number in enumerate(plan.outputs):
            storage, nbytes = plan.buffers[number].storage, code.nbytes[number]
            if code.owners.get(storage) != index:
                run.call(self.module.copy, tensors[number], buffers[storage], nbytes)
                continue
            is_apart, spare = apart[number]
            with run.when(is_apart):
                run.call(self.module.copy, tensors[number], spare, nbytes)

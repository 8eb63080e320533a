"""ONNX Runtime's C interface for custom operators: constants, and LLVM functions that all operators call.

`OrtApi` is a table of functions that later versions append to; `OrtCustomOp` describes an operator. Numbers and order
are those of `onnxruntime_c_api.h`.
"""

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import INT, LONG, NULL, POINTER, Argument, CFunction, CModule, signature
from retune.compiler.codegen.abi.constant_table import constants_of
from retune.compiler.codegen.scan_loop import BARRIER

VERSION = 17
"""Of ONNX Runtime's C interface: the first with `KernelContext_ParallelFor`. Newer ones contain older ones."""

FUNCTIONS = {
    "CreateStatus": (0, "ptr", "i32, ptr"),
    "CreateCustomOpDomain": (26, "ptr", "ptr, ptr"),
    "CustomOpDomain_Add": (27, "ptr", "ptr, ptr"),
    "AddCustomOpDomain": (28, "ptr", "ptr, ptr"),
    "GetTensorMutableData": (51, "ptr", "ptr, ptr"),
    "GetTensorElementType": (60, "ptr", "ptr, ptr"),
    "GetDimensionsCount": (61, "ptr", "ptr, ptr"),
    "GetDimensions": (62, "ptr", "ptr, ptr, i64"),
    "GetTensorTypeAndShape": (65, "ptr", "ptr, ptr"),
    "CreateCpuMemoryInfo": (69, "ptr", "i32, i32, ptr"),
    "AllocatorAlloc": (75, "ptr", "ptr, i64, ptr"),
    "AllocatorFree": (76, "ptr", "ptr, ptr"),
    "KernelContext_GetInput": (90, "ptr", "ptr, i64, ptr"),
    "KernelContext_GetOutput": (91, "ptr", "ptr, i64, ptr, i64, ptr"),
    "ReleaseStatus": (93, "void", "ptr"),
    "ReleaseMemoryInfo": (94, "void", "ptr"),
    "ReleaseTensorTypeAndShapeInfo": (99, "void", "ptr"),
    "ReleaseCustomOpDomain": (101, "void", "ptr"),
    "ReleaseAllocator": (132, "void", "ptr"),
    "KernelContext_GetAllocator": (253, "ptr", "ptr, ptr, ptr"),
    "KernelContext_ParallelFor": (274, "ptr", "ptr, ptr, i64, i64, ptr"),
}
"""The functions of `OrtApi` that the library calls: place in the table, result, parameters."""

FIELDS = (
    "CreateKernel", "GetName", "GetExecutionProviderType", "GetInputType", "GetInputTypeCount", "GetOutputType",
    "GetOutputTypeCount", "KernelCompute", "KernelDestroy", "GetInputCharacteristic", "GetOutputCharacteristic",
    "GetInputMemoryType", "GetVariadicInputMinArity", "GetVariadicInputHomogeneity", "GetVariadicOutputMinArity",
    "GetVariadicOutputHomogeneity", "CreateKernelV2", "KernelComputeV2", "InferOutputShapeFn", "GetStartVersion",
    "GetEndVersion", "GetMayInplace", "ReleaseMayInplace", "GetAliasMap", "ReleaseAliasMap",
)  # fmt: skip
"""The functions in `OrtCustomOp`, after its version."""

OWN_FIELDS = 8 * (1 + len(FIELDS))
"""Where our own fields begin, behind `OrtCustomOp`: name, number of inputs, their types, and the same of outputs."""


class OrtModule(CModule):
    """A module with the functions that all operators share: `shared` has those of an operator's description, by field.

    A run keeps its context in a thread-local variable, so that loops of kernels find it, and the status of what failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.api, self.domain = (self.variable(f"retune.{name}", NULL) for name in ("api", "domain"))
        self.context = self.variable("retune.context", NULL, thread_local=True)
        self.failure = self.variable("retune.failure", NULL, thread_local=True)
        self.constants = constants_of(self)
        self.copy = self.declare("memcpy", "ptr", "ptr, ptr, i64")
        self.fail = self._fail()
        self._parallel_loops()
        self.input, self.output, self.allocate = self._input(), self._output(), self._allocate()
        self.shared = self._description()

    def ort(self, caller: CFunction, name: str, *arguments: Argument) -> ir.Value:
        """Call the function `name` of `OrtApi` in `caller`."""
        index, result, parameters = FUNCTIONS[name]
        table = caller.load(POINTER, self.api)
        return caller.call(caller.load(signature(result, parameters).as_pointer(), table, 8 * index), *arguments)

    def _fail(self) -> ir.Function:
        """Keep the status of a loop that failed for the end of the run; of several, the last."""
        fail = self.define("retune.fail", "void", "ptr")
        (status,) = fail.args
        with fail.unless(fail.is_null(status)):
            self.ort(fail, "ReleaseStatus", fail.load(POINTER, self.failure))
            fail.store(status, self.failure)
        fail.ret()
        return fail.function

    def _parallel_loops(self) -> None:
        """libgomp's functions, which give the shares of a loop to the threads of the session."""
        shares = {
            "omp_get_thread_num": self.variable("retune.share", INT(0), thread_local=True),
            "omp_get_num_threads": self.variable("retune.shares", INT(1), thread_local=True),
        }
        for name, variable in shares.items():
            number = self.define(name, "i32", linkage="hidden")
            number.ret(number.load(INT, variable))
        # Kernels that wait run on one thread.
        self.define(BARRIER, "void", linkage="hidden").ret()
        share, count = shares.values()
        # `loop` is the function, its data and the number of shares.
        work = self.define("retune.work", "void", "ptr, i64")
        loop, index = work.args
        work.store(work.builder.trunc(index, INT), share)
        work.store(work.load(INT, loop, 16), count)
        work.call(work.load(signature("void", "ptr").as_pointer(), loop), work.load(POINTER, loop, 8))
        work.store(INT(0), share)
        work.store(INT(1), count)
        work.ret()
        parallel = self.define("GOMP_parallel", "void", "ptr, ptr, i32, i32", "hidden")
        function, data, threads, _ = parallel.args
        loop = parallel.slot(LONG, 3)
        for offset, value in ((0, function), (8, data), (16, threads)):
            parallel.store(value, loop, offset)
        wide = parallel.builder.zext(threads, LONG)
        context = parallel.load(POINTER, self.context)
        status = self.ort(parallel, "KernelContext_ParallelFor", context, work.function, wide, wide, loop)
        parallel.call(self.fail, status)
        parallel.ret()

    def _input(self) -> ir.Function:
        """Where an input lies, which must have this type and rank, and its shape."""
        take = self.define("retune.input", "ptr", "ptr, i64, i32, ptr, i64, ptr, ptr")
        context, index, kind, dims, rank, message, data = take.args
        value_slot, info_slot, kind_slot, rank_slot = (take.slot(each) for each in (POINTER, POINTER, INT, LONG))
        take.ret_error(self.ort(take, "KernelContext_GetInput", context, index, value_slot))
        value = take.load(POINTER, value_slot)
        take.ret_error(self.ort(take, "GetTensorTypeAndShape", value, info_slot))
        info = take.load(POINTER, info_slot)

        def end(status: ir.Value) -> None:
            self.ort(take, "ReleaseTensorTypeAndShapeInfo", info)
            take.ret(status)

        def ask(name: str, *arguments: Argument) -> None:
            status = self.ort(take, name, info, *arguments)
            with take.unless(take.is_null(status)):
                end(status)

        def require(condition: ir.Value) -> None:
            with take.unless(condition):
                end(self.ort(take, "CreateStatus", 2, message))

        ask("GetTensorElementType", kind_slot)
        require(take.equals(take.load(INT, kind_slot), kind))
        ask("GetDimensionsCount", rank_slot)
        require(take.equals(take.load(LONG, rank_slot), rank))
        ask("GetDimensions", dims, rank)
        self.ort(take, "ReleaseTensorTypeAndShapeInfo", info)
        take.ret(self.ort(take, "GetTensorMutableData", value, data))
        return take.function

    def _output(self) -> ir.Function:
        """Where an output lies."""
        make = self.define("retune.output", "ptr", "ptr, i64, ptr, i64, ptr")
        context, index, dims, rank, data = make.args
        value = make.slot(POINTER)
        make.ret_error(self.ort(make, "KernelContext_GetOutput", context, index, dims, rank, value))
        make.ret(self.ort(make, "GetTensorMutableData", make.load(POINTER, value), data))
        return make.function

    def _allocate(self) -> ir.Function:
        """Memory of the session's own allocator for one run."""
        allocate = self.define("retune.allocate", "ptr", "ptr, i64, ptr, ptr")
        context, nbytes, allocator_slot, memory_slot = allocate.args
        info_slot = allocate.slot(POINTER)
        allocate.ret_error(self.ort(allocate, "CreateCpuMemoryInfo", 1, 0, info_slot))
        info = allocate.load(POINTER, info_slot)
        status = self.ort(allocate, "KernelContext_GetAllocator", context, info, allocator_slot)
        self.ort(allocate, "ReleaseMemoryInfo", info)
        allocate.ret_error(status)
        allocator = allocate.load(POINTER, allocator_slot)
        status = self.ort(allocate, "AllocatorAlloc", allocator, nbytes, memory_slot)
        with allocate.unless(allocate.is_null(status)):
            self.ort(allocate, "ReleaseAllocator", allocator)
        allocate.ret(status)
        return allocate.function

    def _description(self) -> dict[str, ir.Function]:
        """The functions that say what an operator is. They read the fields behind `OrtCustomOp`."""
        zero = self._answer("zero", "i32", "ptr, i64", 0)
        shared = {
            "GetExecutionProviderType": self._answer("provider", "ptr", "ptr", None),
            "GetInputCharacteristic": zero,
            "GetOutputCharacteristic": zero,
            "GetInputMemoryType": zero,
            "GetStartVersion": self._answer("first_version", "i32", "ptr", 1),
            "GetEndVersion": self._answer("last_version", "i32", "ptr", 2**31 - 1),
            "KernelDestroy": self._answer("destroy", "void", "ptr", None),
        }
        create = self.define("retune.create", "ptr", "ptr, ptr, ptr, ptr")
        create.store(create.args[0], create.args[3])
        create.ret(None)
        shared["CreateKernelV2"] = create.function
        values = {"GetName": (0, POINTER), "GetInputTypeCount": (1, LONG), "GetOutputTypeCount": (3, LONG)}
        for name, (field, kind) in values.items():
            read = self.define(f"retune.{name}", str(kind), "ptr")
            read.ret(read.load(kind, read.args[0], OWN_FIELDS + 8 * field))
            shared[name] = read.function
        for field, name in ((2, "GetInputType"), (4, "GetOutputType")):
            read = self.define(f"retune.{name}", "i32", "ptr, i64")
            types = read.load(POINTER, read.args[0], OWN_FIELDS + 8 * field)
            read.ret(read.load(INT, read.element(INT, types, read.args[1])))
            shared[name] = read.function
        return shared

    def _answer(self, name: str, result: str, parameters: str, value: int | None) -> ir.Function:
        """A function that always returns `value`."""
        answer = self.define(f"retune.{name}", result, parameters)
        answer.ret(value)
        return answer.function

"""Bytecode by hand: functions of numbers and lists for tests of the virtual machine."""

from collections.abc import Callable, Sequence
from functools import cache

from retune.compiler import te
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.expr import Expr
from retune.compiler.runtime.artifact import ALIGNMENT, KernelArtifact
from retune.compiler.runtime.device import cpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default import default_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.target import Target
from retune.compiler.te.tensor import Tensor
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.instructions import AllocADT, AllocTensor, GetField, GetTag, Invoke, InvokeClosure, Ret
from retune.compiler.vm.library import VMLibrary
from retune.compiler.vm.loop_code import CONS, NIL
from retune.compiler.vm.machine import VirtualMachine
from retune.compiler.vm.writer import FunctionWriter, Tables

Expression = Callable[..., Expr]
OPERATIONS: dict[str, Expression] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "equal": lambda x, y: te.if_then_else(te.equal(x, y), te.const(1, "int32"), te.const(0, "int32")),
    "less": lambda x, y: te.if_then_else(x < y, te.const(1, "int32"), te.const(0, "int32")),
}


@cache
def kernel(name: str, dtype: str = "int32", shape: tuple[int, ...] = (1,)) -> KernelArtifact:
    """The kernel of an operation on two arrays."""
    x, y = te.placeholder(shape, dtype, name="x"), te.placeholder(shape, dtype, name="y")
    operation = OPERATIONS[name]
    out = te.compute(shape, lambda *at: operation(x[at], y[at]), name="out")
    assert isinstance(out, Tensor)
    target = Target.host()
    task = SearchTask(name, ComputeDAG([x, y, out]), target, hardware_of(target, 1))
    return build_kernel(task, default_steps(task.dag), name)


class Code:
    """An executable while it is written: `function` begins one, `machine` runs all of them."""

    def __init__(self) -> None:
        self.tables = Tables()
        self._numbers: dict[str, int] = {}
        self._writers: list[FunctionWriter] = []

    def declare(self, name: str) -> int:
        """The number of a function that is written before or later."""
        if name not in self._numbers:
            self._numbers[name] = len(self.tables.functions)
            self.tables.functions.append(None)
        return self._numbers[name]

    def function(self, name: str, *params: str) -> "Body":
        """Begin a function; its parameters are the registers from 0 on."""
        self.declare(name)
        writer = FunctionWriter(self.tables, name, params)
        self._writers.append(writer)
        return Body(self, writer)

    def executable(self) -> Executable:
        """What was written."""
        for writer in self._writers:
            self.tables.functions[self._numbers[writer.name]] = writer.finished()
        names = [each.name for each in self.tables.primitives]
        kernels = tuple(kernel(name) for name in dict.fromkeys(names) if name in OPERATIONS)
        return Executable(self.tables.image(), VMLibrary(kernels))

    def machine(self) -> VirtualMachine:
        """A machine for it, after it went through bytes and back."""
        code, library = self.executable().save()
        return VirtualMachine(Executable.load_exec(code, library), cpu())


class Body:
    """Instructions of one function, a little shorter to write."""

    def __init__(self, code: Code, writer: FunctionWriter) -> None:
        self.code = code
        self.writer = writer

    def op(self, name: str, x: int, y: int) -> int:
        """A kernel on two numbers of int32."""
        storage, zero, out = self.writer.storage(ALIGNMENT, "int32"), self.writer.number(0), self.writer.fresh()
        self.writer.emit(AllocTensor(storage, zero, "int32", out, ()))
        self.writer.invoke(self.code.tables.primitive(name, {}), (x, y), (out,))
        return out

    def call(self, name: str, *args: int) -> int:
        """Call a function."""
        out = self.writer.fresh()
        self.writer.emit(Invoke(self.code.declare(name), out, args))
        return out

    def apply(self, closure: int, *args: int) -> int:
        """Call a closure."""
        out = self.writer.fresh()
        self.writer.emit(InvokeClosure(closure, out, args))
        return out

    def structure(self, tag: int, *fields: int) -> int:
        """A structure."""
        out = self.writer.fresh()
        self.writer.emit(AllocADT(tag, out, fields))
        return out

    def field(self, structure: int, index: int) -> int:
        """A field of a structure."""
        out = self.writer.fresh()
        self.writer.emit(GetField(structure, index, out))
        return out

    def ret(self, register: int) -> None:
        """Return it."""
        self.writer.emit(Ret(register))

    def if_equal(self, test: int, target: int, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """Two ways to go on, both of which return."""
        held = self.writer.hold()
        yes()
        self.writer.branch(held, test, target, self.writer.here)
        no()

    def match_list(self, items: int, nil: Callable[[], None], cons: Callable[[int, int], None]) -> None:
        """Two ways to go on, for an empty list and for one with a head and a tail."""
        tag = self.writer.fresh()
        self.writer.emit(GetTag(items, tag))
        self.if_equal(tag, self.writer.number(NIL), nil, lambda: cons(self.field(items, 0), self.field(items, 1)))

    def cons(self, head: int, tail: int) -> int:
        """A list."""
        return self.structure(CONS, head, tail)

    def nil(self) -> int:
        """The empty list."""
        return self.structure(NIL)

    def items(self, registers: Sequence[int]) -> int:
        """A list of registers."""
        made = self.nil()
        for register in reversed(registers):
            made = self.cons(register, made)
        return made

"""The instruction set: numbers, fields, text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.compiler.errors import ArtifactError
from retune.compiler.vm import instructions as vm
from retune.compiler.vm.instructions import Instruction, decode, encode, jumps, reads, writes

registers = st.integers(0, 2**31)
numbers = st.integers(-(2**63), 2**63 - 1)
many = st.lists(registers, max_size=6).map(tuple)
dtypes = st.sampled_from(["bool", "int8", "int64", "uint8", "uint64", "float16", "float32", "float64", "bfloat16"])
shapes = st.lists(st.integers(0, 2**40), max_size=5).map(tuple)


def _called(draw: Any, kind: type[vm.InvokePacked | vm.RunPlan | vm.RunRegion]) -> Instruction:
    args = draw(many)
    return kind(draw(registers), draw(st.integers(0, len(args))), args)


@st.composite
def any_instruction(draw: st.DrawFn) -> Instruction:
    r, n = lambda: draw(registers), lambda: draw(numbers)
    makers = [
        lambda: vm.Move(r(), r()),
        lambda: vm.Ret(r()),
        lambda: vm.Invoke(r(), r(), draw(many)),
        lambda: vm.InvokeClosure(r(), r(), draw(many)),
        lambda: _called(draw, vm.InvokePacked),
        lambda: _called(draw, vm.RunPlan),
        lambda: _called(draw, vm.RunRegion),
        lambda: vm.AllocTensor(r(), r(), draw(dtypes), r(), draw(shapes)),
        lambda: vm.AllocTensorReg(r(), r(), r(), draw(dtypes), r()),
        lambda: vm.AllocADT(n(), r(), draw(many)),
        lambda: vm.AllocClosure(r(), r(), draw(many)),
        lambda: vm.GetField(r(), n(), r()),
        lambda: vm.If(r(), r(), n(), n()),
        lambda: vm.LoadConst(r(), r(), r()),
        lambda: vm.Goto(n()),
        lambda: vm.GetTag(r(), r()),
        lambda: vm.LoadConsti(n(), r()),
        vm.Fatal,
        lambda: vm.AllocStorage(r(), n(), draw(dtypes), r(), r(), draw(shapes)),
        lambda: vm.ShapeOf(r(), r()),
        lambda: vm.ReshapeTensor(r(), r(), r()),
        lambda: vm.DeviceCopy(r(), r(), r(), r()),
        lambda: vm.KillRegister(r()),
    ]
    return draw(st.sampled_from(makers))()


@given(any_instruction())
def test_an_instruction_is_what_its_numbers_say(instruction: Instruction) -> None:
    assert decode(instruction.opcode, encode(instruction)) == instruction


@given(any_instruction(), st.lists(numbers, max_size=3))
def test_fields_that_are_too_many_or_too_few_are_refused(instruction: Instruction, extra: list[int]) -> None:
    fields = encode(instruction)
    if extra:
        with pytest.raises(ArtifactError):
            decode(instruction.opcode, (*fields, *extra))
    if fields:
        with pytest.raises(ArtifactError):
            decode(instruction.opcode, fields[:-1])


def test_every_opcode_has_its_number_and_order_of_fields() -> None:
    expected: list[tuple[Instruction, tuple[int, ...]]] = [
        (vm.Move(1, 2), (1, 2)),
        (vm.Ret(1), (1,)),
        (vm.Invoke(3, 9, (4, 5)), (3, 2, 9, 4, 5)),
        (vm.InvokeClosure(3, 9, (4,)), (3, 1, 9, 4)),
        (vm.InvokePacked(3, 1, (4, 5)), (3, 2, 1, 4, 5)),
        (vm.AllocTensor(1, 2, "float32", 3, (7, 8)), (1, 2, 2, 32, 1, 2, 3, 7, 8)),
        (vm.AllocTensorReg(1, 2, 3, "int64", 4), (1, 2, 3, 0, 64, 1, 4)),
        (vm.AllocADT(7, 2, (3, 4)), (7, 2, 2, 3, 4)),
        (vm.AllocClosure(7, 2, (3,)), (7, 1, 2, 3)),
        (vm.GetField(1, 2, 3), (1, 2, 3)),
        (vm.If(1, 2, 3, -4), (1, 2, 3, -4)),
        (vm.LoadConst(1, 0, 2), (1, 0, 2)),
        (vm.Goto(-3), (-3,)),
        (vm.GetTag(1, 2), (1, 2)),
        (vm.LoadConsti(-5, 2), (-5, 2)),
        (vm.Fatal(), ()),
        (vm.AllocStorage(1, 64, "uint8", 0, 2, ()), (1, 64, 1, 8, 1, 0, 0, 2)),
        (vm.ShapeOf(1, 2), (1, 2)),
        (vm.ReshapeTensor(1, 2, 3), (1, 2, 3)),
        (vm.DeviceCopy(1, 0, 1, 2), (1, 0, 1, 2)),
        (vm.KillRegister(1), (1,)),
        (vm.RunPlan(3, 1, (4, 5)), (3, 2, 1, 4, 5)),
        (vm.RunRegion(3, 2, (4, 5, 6)), (3, 3, 2, 4, 5, 6)),
    ]
    assert [(each.opcode, encode(each)) for each, _ in expected] == [
        (number, fields) for number, (_, fields) in enumerate(expected)
    ]


@pytest.mark.parametrize("opcode", [-1, 23, 1000])
def test_other_opcodes_are_refused(opcode: int) -> None:
    with pytest.raises(ArtifactError, match="opcode"):
        decode(opcode, ())


def test_unknown_element_types_are_refused() -> None:
    with pytest.raises(ArtifactError, match="17 bits"):
        decode(vm.AllocTensorReg.opcode, (1, 2, 3, 2, 17, 1, 4))
    with pytest.raises(ArtifactError, match="complex64"):
        encode(vm.AllocTensorReg(1, 2, 3, "complex64", 4))


def test_instructions_say_what_they_read_write_and_where_they_lead() -> None:
    call = vm.InvokePacked(3, 1, (4, 5))
    assert list(reads(call)) == [4, 5]
    assert list(writes(call)) == []
    for run in (vm.RunPlan(3, 2, (4, 5, 6)), vm.RunRegion(3, 2, (4, 5, 6))):
        assert (list(reads(run)), list(writes(run))) == ([4], [5, 6])
    alloc = vm.AllocTensor(1, 2, "float32", 3, (7,))
    assert list(reads(alloc)) == [1, 2]
    assert list(writes(alloc)) == [3]
    assert jumps(vm.If(1, 2, 3, -4)) == (3, -4)
    assert jumps(vm.Ret(0)) == jumps(vm.Fatal()) == ()
    assert jumps(vm.Goto(-2)) == (-2,)


def test_texts_name_registers() -> None:
    assert str(vm.InvokePacked(3, 1, (4, 5, 6))) == "invoke_packed primitive[3] (in: $4, $5, out: $6)"
    assert str(vm.RunPlan(3, 1, (4, 5, 6))) == "run_plan primitive[3] (in: $4, $5, out: $6)"
    assert str(vm.AllocTensor(1, 2, "float32", 3, (7, 8))) == "alloc_tensor $3 $1 $2 [7, 8] float32"
    assert str(vm.LoadConsti(-5, 2)) == "load_consti $2 -5"
    assert str(vm.Fatal()) == "fatal"

"""Functions written in bytecode: branches, recursion, tuples, lists, closures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from retune.compiler.errors import MachineError
from retune.compiler.vm.instructions import (
    AllocClosure,
    AllocStorage,
    AllocTensor,
    AllocTensorReg,
    DeviceCopy,
    Fatal,
    GetField,
    InvokeClosure,
    KillRegister,
    LoadConsti,
    Move,
    ReshapeTensor,
    Ret,
    ShapeOf,
)
from retune.compiler.vm.loop_code import CONS, NIL
from retune.compiler.vm.values import ADT
from tests.support.vm_code import Body, Code


def _list(values: Sequence[int]) -> ADT:
    made = ADT(NIL, ())
    for value in reversed(values):
        made = ADT(CONS, (np.array(value, np.int32), made))
    return made


def _items(value: Any) -> list[int]:
    found = []
    while len(value):
        head, value = value
        found.append(int(head))
    return found


def test_nested_branches_over_tuples() -> None:
    """main(x, t) = x == 1 ? (t.0 == 1 ? (1, 1) : (1, 0)) : (t.1 == 1 ? (0, 1) : (0, 0))"""
    code = Code()
    body = code.function("main", "x", "t")
    one = body.writer.number(1)
    zero = body.writer.number(0)

    def inner(first: int, place: int) -> None:
        tested = body.field(1, place)
        body.if_equal(
            tested,
            one,
            lambda: body.ret(body.structure(0, first, one)),
            lambda: body.ret(body.structure(0, first, zero)),
        )

    body.if_equal(0, one, lambda: inner(one, 0), lambda: inner(zero, 1))
    machine = code.machine()
    for x in (0, 1):
        for t in ((0, 0), (0, 1), (1, 0), (1, 1)):
            found = machine.run(np.array(bool(x)), t)
            assert [each.item() for each in found] == [x, t[0] if x else t[1]]


def _loop(code: Code) -> None:
    """loop(i, total): adds i to the total until i is 10."""
    body = code.function("loop", "i", "total")
    ten = body.writer.number(10)

    def again() -> None:
        one = body.writer.constant(np.array(1, np.int32))
        body.ret(body.call("loop", body.op("add", 0, one), body.op("add", 1, 0)))

    body.if_equal(0, ten, lambda: body.ret(1), again)


def test_a_recursive_loop_adds_up_to_45() -> None:
    code = Code()
    body = code.function("main")
    _loop(code)
    zero = body.writer.constant(np.array(0, np.int32))
    body.ret(body.call("loop", zero, zero))
    assert code.machine().run() == 45


def test_a_loop_that_adds_a_captured_one_gives_10() -> None:
    code = Code()
    body = code.function("main", "step")
    iteration = code.function("turn", "captured", "i", "total", "self")
    ten = iteration.writer.number(10)

    def again() -> None:
        one = iteration.writer.constant(np.array(1, np.int32))
        iteration.ret(iteration.apply(3, iteration.op("add", 1, one), iteration.op("add", 2, 0), 3))

    iteration.if_equal(1, ten, lambda: iteration.ret(2), again)
    closure = body.writer.fresh()
    body.writer.emit(AllocClosure(code.declare("turn"), closure, (0,)))
    zero = body.writer.constant(np.array(0, np.int32))
    body.ret(body.apply(closure, zero, zero, closure))
    assert code.machine().run(1) == 10


def test_recursion_is_deeper_than_pythons_own_stack() -> None:
    code = Code()
    body = code.function("main", "n")
    zero = body.writer.constant(np.array(0, np.int32))

    def again() -> None:
        one = body.writer.constant(np.array(1, np.int32))
        body.ret(body.op("add", one, body.call("main", body.op("subtract", 0, one))))

    body.if_equal(0, zero, lambda: body.ret(zero), again)
    assert code.machine().run(3000) == 3000


def test_recursion_without_an_end_is_an_error() -> None:
    code = Code()
    body = code.function("main", "n")
    body.ret(body.call("main", 0))
    with pytest.raises(MachineError, match="nested more than"):
        code.machine().run(1)


def test_tuples_go_in_and_out() -> None:
    code = Code()
    body = code.function("main", "t")
    body.ret(body.structure(0, body.field(0, 1), body.field(0, 0)))
    first, second = code.machine().run((np.float32(1.5), [np.int32(2), None]))
    assert second == 1.5
    assert isinstance(first, ADT)
    assert first.tag == 0
    assert first[0] == 2
    assert first[1].shape == (0,)


def _lists(code: Code) -> None:
    """Functions of lists, each by matching on the tag."""
    body = code.function("hd", "l")
    body.match_list(0, lambda: body.writer.emit(Fatal()), lambda head, _: body.ret(head))
    tail = code.function("tl", "l")
    tail.match_list(0, lambda: tail.writer.emit(Fatal()), lambda _, rest: tail.ret(rest))

    nth = code.function("nth", "l", "n")
    nth.if_equal(
        1,
        nth.writer.number(0),
        lambda: nth.ret(nth.call("hd", 0)),
        lambda: nth.ret(nth.call("nth", nth.call("tl", 0), nth.op("subtract", 1, _one(nth)))),
    )
    update = code.function("update", "l", "n", "v")
    update.if_equal(
        1,
        update.writer.number(0),
        lambda: update.ret(update.cons(2, update.call("tl", 0))),
        lambda: update.ret(
            update.cons(
                update.call("hd", 0),
                update.call("update", update.call("tl", 0), update.op("subtract", 1, _one(update)), 2),
            )
        ),
    )
    length = code.function("length", "l")
    length.match_list(
        0,
        lambda: length.ret(length.writer.constant(np.array(0, np.int32))),
        lambda _, rest: length.ret(length.op("add", _one(length), length.call("length", rest))),
    )
    map_ = code.function("map", "f", "l")
    map_.match_list(
        1,
        lambda: map_.ret(map_.nil()),
        lambda head, rest: map_.ret(map_.cons(map_.apply(0, head), map_.call("map", 0, rest))),
    )
    foldl = code.function("foldl", "f", "start", "l")
    foldl.match_list(
        2, lambda: foldl.ret(1), lambda head, rest: foldl.ret(foldl.call("foldl", 0, foldl.apply(0, 1, head), rest))
    )
    foldr = code.function("foldr", "f", "start", "l")
    foldr.match_list(
        2, lambda: foldr.ret(1), lambda head, rest: foldr.ret(foldr.apply(0, head, foldr.call("foldr", 0, 1, rest)))
    )
    kept = code.function("filter", "f", "l")

    def keep(head: int, rest: int) -> None:
        others = kept.call("filter", 0, rest)
        wanted, one = kept.apply(0, head), kept.writer.number(1)
        kept.if_equal(wanted, one, lambda: kept.ret(kept.cons(head, others)), lambda: kept.ret(others))

    kept.match_list(1, lambda: kept.ret(kept.nil()), keep)
    add_one = code.function("add_one", "x")
    add_one.ret(add_one.op("add", 0, _one(add_one)))
    add = code.function("add", "x", "y")
    add.ret(add.op("add", 0, 1))
    over = code.function("greater_one", "x")
    over.ret(over.op("less", _one(over), 0))
    twice = code.function("push_twice", "l", "x")
    twice.ret(twice.cons(1, twice.cons(1, 0)))
    again = code.function("push", "x", "l")
    again.ret(again.cons(0, 1))


def _one(body: Body) -> int:
    return body.writer.constant(np.array(1, np.int32))


def _with_function(code: Code, name: str, function: str, *more: str) -> None:
    """name(...) = the list function `more[0]` with a closure of `function` before its other arguments"""
    body = code.function(name, *more[1:])
    closure = body.writer.fresh()
    body.writer.emit(AllocClosure(code.declare(function), closure, ()))
    body.ret(body.call(more[0], closure, *range(len(more) - 1)))


@pytest.fixture(scope="module")
def lists() -> Any:
    code = Code()
    _lists(code)
    _with_function(code, "increment", "add_one", "map", "l")
    _with_function(code, "sum", "add", "foldl", "start", "l")
    _with_function(code, "above_one", "greater_one", "filter", "l")
    _with_function(code, "reverse_twice", "push_twice", "foldl", "start", "l")
    _with_function(code, "copy", "push", "foldr", "start", "l")
    return code.machine()


def test_a_list_is_nested_pairs(lists: Any) -> None:
    found = lists.invoke("copy", ADT(NIL, ()), _list([3, 2, 1]))
    assert found.tag == CONS
    assert len(found) == 2
    assert _items(found) == [3, 2, 1]


def test_head_and_tail_of_a_list(lists: Any) -> None:
    assert lists.invoke("hd", _list([3, 2, 1])) == 3
    assert _items(lists.invoke("tl", _list([3, 2, 1]))) == [2, 1]
    with pytest.raises(MachineError, match="no case of a match"):
        lists.invoke("tl", _list([]))


def test_nth_update_and_length_of_a_list(lists: Any) -> None:
    ten = _list(range(10))
    assert [int(lists.invoke("nth", ten, number)) for number in range(10)] == list(range(10))
    filled = _list([0] * 10)
    for number in range(10):
        filled = lists.invoke("update", filled, number, number)
    assert _items(filled) == list(range(10))
    assert lists.invoke("length", ten) == 10


def test_map_fold_and_filter_of_a_list(lists: Any) -> None:
    assert _items(lists.invoke("increment", _list([2, 1]))) == [3, 2]
    assert _items(lists.invoke("reverse_twice", ADT(NIL, ()), _list([1, 2, 3]))) == [3, 3, 2, 2, 1, 1]
    assert _items(lists.invoke("copy", ADT(NIL, ()), _list([1, 2, 3]))) == [1, 2, 3]
    assert lists.invoke("sum", 0, _list([1, 2, 3])) == 6
    assert _items(lists.invoke("above_one", _list([1, 3, 1, 5, 1]))) == [3, 5]


def test_closures_capture_and_compose() -> None:
    code = Code()
    add_one = code.function("add_one", "x")
    add_one.ret(add_one.op("add", 0, _one(add_one)))
    composed = code.function("composed", "f", "g", "x")
    composed.ret(composed.apply(0, composed.apply(1, 2)))
    compose = code.function("compose", "f", "g")
    inner = compose.writer.fresh()
    compose.writer.emit(AllocClosure(code.declare("composed"), inner, (0, 1)))
    compose.ret(inner)
    adder = code.function("adder", "x", "y")
    adder.ret(adder.op("add", 0, 1))
    main = code.function("main", "x")
    f = main.writer.fresh()
    main.writer.emit(AllocClosure(code.declare("add_one"), f, ()))
    main.ret(main.apply(main.call("compose", f, f), 0))
    partial = code.function("partial", "x", "y")
    closure = partial.writer.fresh()
    partial.writer.emit(AllocClosure(code.declare("adder"), closure, (0,)))
    partial.ret(partial.apply(closure, 1))
    let = code.function("let", "x")
    let.ret(let.op("add", 0, let.writer.constant(np.array(42, np.int32))))
    machine = code.machine()
    assert machine.run(3) == 5
    assert machine.invoke("partial", 1, 2) == 3
    assert machine.invoke("let", 3) == 45


def test_a_closure_with_too_few_arguments_is_an_error() -> None:
    code = Code()
    adder = code.function("adder", "x", "y")
    adder.ret(adder.op("add", 0, 1))
    main = code.function("main", "x")
    closure, out = main.writer.fresh(), main.writer.fresh()
    main.writer.emit(AllocClosure(code.declare("adder"), closure, ()))
    main.writer.emit(InvokeClosure(closure, out, (0,)))
    main.ret(out)
    with pytest.raises(MachineError, match="given 1 arguments"):
        code.machine().run(1)


def _runs(*written: Any, registers: int, given: Sequence[Any]) -> Any:
    """A function of the given instructions, on some arguments."""
    code = Code()
    body = code.function("main", *(f"x{number}" for number in range(len(given))))
    for _ in range(registers - len(given)):
        body.writer.fresh()
    for each in written:
        body.writer.emit(each)
    return code.machine().run(*given)


def test_shapes_and_views() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert _runs(ShapeOf(0, 1), Ret(1), registers=2, given=[x]).tolist() == [2, 3]
    shape = np.array([3, 2], np.int64)
    assert _runs(ReshapeTensor(0, 1, 2), Ret(2), registers=3, given=[x, shape]).tolist() == x.reshape(3, 2).tolist()
    assert _runs(DeviceCopy(0, 0, 0, 1), Ret(1), registers=2, given=[x]).tolist() == x.tolist()
    with pytest.raises(MachineError, match="no shape"):
        _runs(ReshapeTensor(0, 1, 2), Ret(2), registers=3, given=[x, np.array([4, 2], np.int64)])
    with pytest.raises(MachineError, match="int64"):
        _runs(ReshapeTensor(0, 1, 2), Ret(2), registers=3, given=[x, np.array([3, 2], np.int32)])


def test_memory_is_bounded() -> None:
    alloc = (LoadConsti(64, 1), AllocStorage(1, 64, "float32", 0, 2), LoadConsti(32, 3))
    fitting = _runs(*alloc, AllocTensor(2, 3, "float32", 4, (8,)), Ret(4), registers=5, given=[1])
    assert fitting.shape == (8,)
    for wrong in (AllocTensor(2, 3, "float32", 4, (9,)), AllocTensor(2, 3, "float32", 4, (-1,))):
        with pytest.raises(MachineError, match=r"does not fit|cannot have"):
            _runs(*alloc, wrong, Ret(4), registers=5, given=[1])
    with pytest.raises(MachineError, match="does not fit"):
        _runs(*alloc, AllocTensorReg(2, 3, 0, "float32", 4), Ret(4), registers=5, given=[np.array([3, 3])])
    with pytest.raises(MachineError, match="-1 bytes"):
        _runs(LoadConsti(-1, 1), AllocStorage(1, 64, "float32", 0, 2), Ret(1), registers=3, given=[1])
    with pytest.raises(MachineError, match="two dimensions"):
        _runs(LoadConsti(1, 1), AllocStorage(1, 64, "float32", 0, 2, (2, 2)), Ret(1), registers=3, given=[1])


def test_a_register_must_hold_what_is_read() -> None:
    with pytest.raises(MachineError, match=r"\$1 must hold a structure, not nothing"):
        _runs(KillRegister(1), GetField(1, 0, 0), Ret(0), registers=2, given=[1])
    with pytest.raises(MachineError, match="no field 5"):
        _runs(GetField(0, 5, 1), Ret(1), registers=2, given=[(1, 2)])
    with pytest.raises(MachineError, match=r"must hold an array"):
        _runs(Move(0, 1), ShapeOf(1, 0), Ret(0), registers=2, given=[(1, 2)])

"""The saved form of a program: what is written is read again, and damage is refused."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.core.errors import ArtifactError
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.graph_region import GraphRegion
from retune.compiler.graph.ir import Value
from retune.compiler.graph.program import MAIN, Arm, Branch, Call, Function, HostCall, Loop, Program
from retune.compiler.graph.region import Param
from retune.compiler.runtime.archive import archive_bytes
from retune.compiler.vm import executable
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.library import VERSION
from retune.compiler.vm.saved_program import PROGRAM, LateBound, program_parts
from tests.support.dynamic_models import floats

LATE = {"late": LateBound.of(floats(2, 3))}


def small() -> Program:
    """All statements, constants of several types, one of them bound late."""
    builder = GraphBuilder("sum", [Value("a", (2,)), Value("b", (2,))])
    region = GraphRegion.of(builder.finish({"c": builder.emit("add", ("a", "b"))}))
    x, flag, count = Param("größe", "float32", (2,)), Param("flag", "bool", ()), Param("count", "int64", ())
    y, on = Param("y", "float32", ("n",)), Param("on", "bool", ())
    double = Function("double", (x,), (Call(region, (x.name, x.name), ("y",)),), (y,))
    body = Function(
        "body", (Param("number", "int64", ()), on, x), (HostCall(region, (x.name, "w"), ("y",)),), (on, y, y)
    )
    main = Function(
        MAIN,
        (x, flag, count),
        (
            Branch("flag", Arm("double", (x.name,)), Arm("double", ("w",)), ("z",)),
            Loop("count", "flag", "body", ("z",), (), ("last",), ("rows",)),
            Loop(None, "flag", "body", ("last",), (), ("end",), ("others",)),
        ),
        (Param("end", None, None), Param("rows", "float32", (None, 2)), Param("late", "float32", (2, 3))),
    )
    constants = {
        "w": np.arange(2, dtype=np.float32),
        "yes": np.array(True),
        "empty": np.zeros((0, 4), np.int64),
        "half": np.array([1.5, -2.0], "bfloat16"),
    }
    functions = {function.name: function for function in (main, double, body)}
    return Program("small", functions, constants, ("end", "rows", "late"))


SMALL = bytes(Executable(small(), late=LATE).save()[0])


def _is_same(exe: Executable) -> bool:
    arrays = [
        [(name, array.dtype.name, array.shape, array.tobytes()) for name, array in program.constants.items()]
        for program in (small(), exe.program)
    ]
    return str(exe.program) == str(small()) and arrays[0] == arrays[1] and exe.late == LATE


def test_a_program_that_is_read_equals_the_one_that_was_written() -> None:
    exe = Executable.load_exec(SMALL)
    assert _is_same(exe)
    assert bytes(exe.save()[0]) == SMALL
    (region,) = exe.program.regions()
    assert region.key == small().regions()[0].key
    assert "VM Const late: float32[2, 3], bound late" in exe.constants


@given(st.integers(0, len(SMALL) * 8 - 1))
@settings(max_examples=500)
def test_one_flipped_bit_is_refused_or_changes_nothing(bit: int) -> None:
    damaged = bytearray(SMALL)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        exe = Executable.load_exec(damaged)
    except ArtifactError:
        return
    assert _is_same(exe)


@given(st.integers(0, len(SMALL) - 1))
def test_bytes_that_end_too_early_are_refused(length: int) -> None:
    with pytest.raises(ArtifactError):
        Executable.load_exec(SMALL[:length])


def _with_head(change: Callable[[Any], object]) -> bytes:
    """The small program, of whose JSON something is changed; checksums are right."""
    parts = program_parts(small(), LATE)
    head = json.loads(json.dumps(parts[PROGRAM]))
    change(head)
    return archive_bytes("program", VERSION, {**parts, PROGRAM: head})


def _function(head: Any, name: str) -> Any:
    return next(row for row in head["functions"] if row["name"] == name)


def _set(*path: Any, value: Any) -> Callable[[Any], None]:
    """Writes `value` at a path that begins in the function `main`."""

    def change(head: Any) -> None:
        place = _function(head, MAIN)
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def _recursing(head: Any) -> None:
    _function(head, "double")["body"].append(["branch", "yes", ["double", ["w"]], ["double", ["w"]], ["u"]])


def _nesting(head: Any) -> None:
    for number in range(100):
        arm = [f"f{number + 1}" if number < 99 else "double", ["größe"]]
        row = _function(head, "double")
        head["functions"].append({**row, "name": f"f{number}", "body": [["branch", "yes", arm, arm, ["y"]]]})


def _doubling(head: Any) -> None:
    """Each function calls the next twice: verifying must not follow every way."""
    for number in range(60):
        arm = [f"f{number + 1}" if number < 59 else "double", ["größe"]]
        row = _function(head, "double")
        head["functions"].append({**row, "name": f"f{number}", "body": [["branch", "yes", arm, arm, ["y"]]]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("body", 0, 0, value="jump"), "'jump' is no statement"),
        (_set("body", 0, value=["call", 1, ["w", "w"], ["z"]]), "no region 1"),
        (_set("body", 0, value=["call", -1, ["w", "w"], ["z"]]), "no region -1"),
        (_set("body", 0, value=["call", True, ["w", "w"], ["z"]]), "no region True"),
        (_set("body", 0, value=["call", 0, ["w"], ["z"]]), "has 1 of the inputs of sum, which are 2"),
        (_set("body", 0, 2, 0, value="other"), "has no function other"),
        (_set("body", 0, 2, 1, value=["nowhere"]), "reads nowhere before it is defined"),
        (_set("body", 0, 2, 1, value=[1]), "no list of names"),
        (_set("body", 0, 1, value=7), "7 is not a string"),
        (_set("body", 1, value=["loop", "count", None, "body", ["z"], [], ["last"]]), "damaged"),
        (_set("body", 1, 5, value=["z"]), "has 4 of the parameters of body, which are 3"),
        (_set("params", 0, 1, value="object"), "element type"),
        (_set("params", 0, 1, value="f4,i8"), "element type"),
        (_set("params", 0, 2, value=[-1]), "dimensions that no array has"),
        (_set("params", 0, 2, value=[True]), "dimensions that no array has"),
        (_set("params", 0, 2, value=[1 << 40, 0, 1 << 40]), "larger than any array"),
        (_set("params", 0, 2, value=[1] * 64), "dimensions that no array has"),
        (_set("results", 0, 0, value="other"), "nothing computes its result other"),
        (_set("name", value="double"), "one name"),
        (_set("name", value="other"), "has no function main"),
        (lambda head: head["constants"].__setitem__(1, "w"), "one name"),
        (lambda head: head["constants"].pop(0), "reads w before it is defined"),
        (lambda head: head["constants"].append("more"), "damaged"),
        (lambda head: head["late"].append(["w", "float32", [2], ""]), "bound late, and is there"),
        (lambda head: head["late"][0].__setitem__(2, ["2"]), "no shape"),
        (lambda head: head["late"].pop(), "nothing computes its result late"),
        (lambda head: head["outputs"].pop(), "gives 3 results"),
        (lambda head: head["regions"][0].__setitem__(1, "other"), "the kind 'other'"),
        (_recursing, "nest more than"),
        (_nesting, "nest more than"),
    ],
)
def test_a_program_that_does_not_fit_is_refused(change: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        Executable.load_exec(_with_head(change))


def test_functions_that_call_each_other_often_are_verified_at_once() -> None:
    assert len(Executable.load_exec(_with_head(_doubling)).globals) == 63


def test_another_version_is_named() -> None:
    data = archive_bytes("program", 99, program_parts(small(), LATE))
    with pytest.raises(ArtifactError, match="version 99"):
        Executable.load_exec(data)


def test_something_else_is_no_program() -> None:
    for data in (b"PK\x03\x04" * 40, b"", archive_bytes("network", VERSION, {})):
        with pytest.raises(ArtifactError, match="the data"):
            Executable.load_exec(data)


def test_too_little_memory_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(executable, "program_in", full)
    with pytest.raises(ArtifactError, match="does not fit into the free memory"):
        Executable.load_exec(SMALL)


def test_an_executable_is_made_of_a_program_that_fits() -> None:
    with pytest.raises(ArtifactError, match="nothing computes its result late"):
        Executable(small())
    for wrong in ("main", None, small().main):
        with pytest.raises(ArtifactError, match="made of a Program"):
            Executable(wrong)  # type: ignore[arg-type]

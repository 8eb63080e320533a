"""Functions of tensors: as text, and what cannot be one."""

import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError


def test_every_kind_of_stage_is_printed() -> None:
    x, y = te.placeholder((4, 8), name="x"), te.placeholder((4, 8), "int32", name="x")
    k = te.reduce_axis((0, 8), name="k")
    total = te.compute((4,), lambda i: te.max(x[i, k], axis=k), name="total")
    one, two = te.compute((4,), lambda i: (x[i, 0] + 1.0, y[i, 1]), "top")
    called = te.extern(
        [(4,), (2,)], [total, y], lambda ins, outs: te.call_packed("f", *ins, *outs, 1.5), "called", ["float32", "int8"]
    )
    scalar = te.compute((), lambda: total[0] + called[0][1], name="scalar")
    text = te.create_prim_func([x, y, one, two, scalar], "every").script()
    assert text == "\n".join(
        (
            "def every(x: float32[4, 8], x_1: int32[4, 8], top.v0: float32[4], top.v1: int32[4], scalar: float32[]):",
            "    for i in range(4):",
            "        top.v0[i], top.v1[i] = (x[i, 0] + 1.0), x_1[i, 1]",
            "    total = empty([4], 'float32')",
            "    for i in range(4):",
            "        total[i] = -inf",
            "        for k in range(8):",
            "            total[i] = max(total[i], x[i, k])",
            "    called.v0 = empty([4], 'float32')",
            "    called.v1 = empty([2], 'int8')",
            "    call_packed('f', total, x_1, called.v0, called.v1, 1.5)",
            "    scalar[] = (total[0] + called.v0[1])",
        )
    )


def test_what_is_no_function_is_refused() -> None:
    x, y = te.placeholder((4,), name="x"), te.placeholder((4,), name="y")
    z = te.compute((4,), lambda i: x[i] + y[i], name="z")
    with pytest.raises(DefinitionError, match="main: the input y is not among its tensors"):
        te.create_prim_func([x, z])
    with pytest.raises(DefinitionError, match="listed twice"):
        te.create_prim_func([x, y, z, x])
    with pytest.raises(DefinitionError, match="none of its tensors is computed"):
        te.create_prim_func([x, y])


def test_results_inside_are_written_too(capsys: pytest.CaptureFixture[str]) -> None:
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] + 1.0, name="y")
    function = te.create_prim_func([x, te.compute((4,), lambda i: y[i] * 2.0, name="z"), y])
    function.show()
    assert capsys.readouterr().out == f"{function}\n"
    assert "y = empty" not in str(function)


def test_only_axes_from_zero_are_axes() -> None:
    assert te.reduce_axis((0, 8)) == te.reduce_axis(8)
    with pytest.raises(DefinitionError):
        te.reduce_axis((1, 8))

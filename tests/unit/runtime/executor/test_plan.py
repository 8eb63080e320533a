"""Plans as text, and what verification refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.executor.plan import BufferKind, Call, Plan
from tests.support.doubling_network import ARENA, doubling_network, doubling_plan

Change = Callable[[Plan], Plan]


def test_json_round_trip() -> None:
    plan = doubling_plan()
    assert Plan.loads(plan.dumps()) == plan


def _buffer(number: int, **changes: Any) -> Change:
    def change(plan: Plan) -> Plan:
        buffers = list(plan.buffers)
        buffers[number] = replace(buffers[number], **changes)
        return replace(plan, buffers=tuple(buffers))

    return change


def _call(*buffers: int, kernel: str = "twofold") -> Change:
    return lambda plan: replace(plan, calls=(Call(kernel, buffers),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_buffer(2, offset=ARENA + 64), "offset .* is not a place"),
        (_buffer(2, offset=-64), "offset -64 is not a place"),
        (_buffer(2, offset=4), "offset 4 is not a place"),
        (_buffer(6, storage=9), "no buffer 9 to share memory with"),
        (_buffer(6, storage=-1), "no buffer -1"),
        (_buffer(6, shape=(3000,)), "cannot share the memory of buffer 3"),
        (_buffer(6, kind=BufferKind.INPUT), "cannot share the memory of buffer 3"),
        (_buffer(3, storage=5), "cannot share the memory of buffer 3"),
        (_buffer(1, shape=(-2, -2)), "negative shape"),
        (_buffer(1, shape=(1,) * 65), "65 dimensions; the most are 64"),
        (_buffer(1, shape=(4,)), "buffer a is float32"),
        (_buffer(1, dtype="int32"), "buffer a is int32"),
        (_call(0), "1 buffers for 2 arguments"),
        (_call(0, 12), "no buffer 12"),
        (_call(1, 0), "writes to x, which is read only: input"),
        (_call(1, 4), "writes to c, which is read only: constant"),
        (_call(0, 1, kernel="triple"), "no kernel 'triple'"),
        (lambda plan: replace(plan, outputs=(7,)), "no buffer 7"),
    ],
)
def test_a_plan_that_could_touch_foreign_memory_is_refused(change: Change, message: str) -> None:
    network = doubling_network()
    kernels = {kernel.name: kernel for kernel in network.kernels}
    network.plan.verify(kernels)
    with pytest.raises(ArtifactError, match=message):
        change(network.plan).verify(kernels)


def test_a_view_may_show_the_first_elements_alone() -> None:
    network = doubling_network()
    _buffer(6, shape=(3,))(network.plan).verify({kernel.name: kernel for kernel in network.kernels})


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", "null", '{"version": 1}', doubling_plan().dumps().replace('"output"', '"banana"')],
)
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError):
        Plan.loads(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [("version", 2), ("buffers", 3), ("calls", [{}]), ("inputs", ["0"]), ("arena_bytes", None), ("name", 5)],
)
def test_malformed_fields_are_refused(key: str, value: object) -> None:
    data = json.loads(doubling_plan().dumps())
    data[key] = value
    with pytest.raises(ArtifactError):
        Plan.loads(json.dumps(data))


def test_the_text_shows_memory_and_calls() -> None:
    text = str(doubling_plan())
    assert f"%2 intermediate+{ARENA} b: float32" in text
    assert "%6 output flat: float32" in text
    assert "= %3" in text
    assert "twofold(%1, %2)" in text
    assert text.endswith("return %3, %5, %6")

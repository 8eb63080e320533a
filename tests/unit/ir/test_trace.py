"""RETUNE_DEBUG prints one stage more a level, and RETUNE_CHECK verifies the IR after every pass."""

from dataclasses import replace
from functools import wraps

import pytest

from retune.compiler import te
from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.codegen.build import build_kernel
from retune.compiler.core import config
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Value
from retune.compiler.graph.pipeline import optimize
from retune.compiler.ir import trace
from retune.compiler.ir.stmt import LoopFunction
from retune.compiler.lower import pipeline
from retune.compiler.lower.passes.unroll_locals import unroll_locals
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask


def _task(target: str = "llvm -mcpu=znver4") -> SearchTask:
    x = te.placeholder((64,), name="x")
    chosen = Target(target)
    dag = ComputeDAG([x, te.compute((64,), lambda i: x[i] + 1.0, name="y")])
    return SearchTask("bias", dag, chosen, hardware_of(chosen, 1))


def _printed(level: int, task: SearchTask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(config, "debug_level", lambda: level)
    build_kernel(task, default_steps_of(task), "bias")
    return capsys.readouterr().err


STAGES = ["bias: steps", "bias: loop IR", "bias: after unroll-locals", "bias: LLVM IR"]


@pytest.mark.parametrize("level", range(5))
def test_each_debug_level_prints_one_stage_more(
    level: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = _printed(level, _task(), monkeypatch, capsys)
    assert [stage in printed for stage in STAGES] == [number < level for number in range(4)]


def test_a_gpu_program_prints_its_ptx_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = _printed(4, _task("cuda -arch=sm_90"), monkeypatch, capsys)
    for stage in ("bias: steps", "after build-kernels", "bias: loop IR", "bias: PTX"):
        assert stage in printed


def test_a_graph_prints_its_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    builder = GraphBuilder("sums", [Value("x", (2, 3)), Value("y", (2, 3))])
    graph = builder.finish({"sum": builder.emit("add", ("x", "y"))})
    monkeypatch.setattr(config, "debug_level", lambda: trace.PASSES)
    optimize(graph)
    printed = capsys.readouterr().err
    assert "sums: after fold_constants: 1 nodes, now 1" in printed
    assert "graph sums(x: float32[2, 3]" in printed


def test_checks_name_the_pass_that_made_malformed_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    @wraps(unroll_locals)
    def lose_the_output(function: LoopFunction, vector_bytes: int) -> LoopFunction:
        del vector_bytes
        return replace(function, params=function.params[:1])  # the output is no parameter any more

    monkeypatch.setattr(pipeline, "unroll_locals", lose_the_output)
    monkeypatch.setattr(config, "checks_ir", lambda: True)
    with pytest.raises(LoweringError, match="unroll-locals"):
        build_kernel(_task(), default_steps_of(_task()), "bias")


def test_observers_are_told_only_inside_their_block() -> None:
    seen: list[str] = []
    with trace.observe_stages(lambda *stage: seen.append(f"{stage[0]} {stage[1]} {stage[2]()}")):
        trace.show(trace.CODE, "kernel", "PTX", lambda: "text")
    trace.show(trace.CODE, "kernel", "PTX", lambda: "text")
    assert seen == ["kernel PTX text"]

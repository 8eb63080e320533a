"""Graphs of many nodes in a row compile within Python's recursion limit, and give the right numbers."""

from collections import Counter
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.graph.partition.fuse import DEEPEST, LARGEST_EXPRESSION, _Flow, fuse
from retune.compiler.graph.partition.memory_plan import Request, plan_memory
from retune.compiler.graph.passes.rules.activations import ACTIVATIONS
from retune.compiler.graph.passes.rules.patterns import Matcher
from retune.compiler.graph.passes.rules.recognize import REWRITE_RULES
from retune.compiler.graph.pipeline import optimize
from retune.compiler.ops import OPS, FusionKind
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.te.tensor import reads_of
from tests.support.tiers import long_except

Step = Callable[[GraphBuilder, str], str]


def _graph(count: int, step: Step) -> Graph:
    builder = GraphBuilder("deep", [Value("x", (2, 8))])
    value = "x"
    for _ in range(count):
        value = step(builder, value)
    return builder.finish({"y": value})


def _unary(op: str) -> Step:
    return lambda builder, value: builder.emit(op, [value])


def _less_itself(builder: GraphBuilder, value: str) -> str:
    return builder.emit("sub", [builder.emit("sigmoid", [value]), value])


STEPS: dict[str, Step] = {
    "sqrt": _unary("sqrt"),
    "gelu_tanh": _unary("gelu_tanh"),
    "hard_swish": _unary("hard_swish"),
    "sin": _unary("sin"),
    "plus_input": lambda builder, value: builder.emit("add", [value, "x"]),
    "less_itself": _less_itself,
}


@pytest.mark.parametrize("name", long_except(["sqrt", "plus_input", "less_itself"], STEPS))
def test_a_long_chain_compiles_and_is_right(name: str) -> None:
    graph = _graph(300, STEPS[name])
    network = compile_graph(optimize(graph), Target.host())
    x = np.random.default_rng(1).uniform(0.5, 1, (2, 8)).astype(np.float32)
    executor = executor_of(network, 1)
    executor.run(x=x)
    (wanted,) = evaluate(graph, {"x": x})
    np.testing.assert_allclose(executor.get_output(0), wanted, rtol=2e-4, atol=1e-5)


def test_groups_are_bounded_in_depth() -> None:
    groups = fuse(_graph(1000, STEPS["sin"])).groups
    assert max(len(group.nodes) for group in groups) == DEEPEST
    assert sum(len(group.nodes) for group in groups) == 1000


def test_groups_are_bounded_in_size_where_values_are_read_twice() -> None:
    groups = fuse(_graph(100, lambda builder, value: builder.emit("add", [value, value]))).groups
    assert 2 ** max(len(group.nodes) for group in groups) <= 2 * LARGEST_EXPRESSION


def test_operators_that_repeat_an_operand_are_known() -> None:
    """What fusion counts is what the operators' expressions read."""
    for op, spec in OPS.items():
        if spec.kind is FusionKind.ELEMENTWISE and op != "lookup":  # which reads a table, too
            for dtype in ("float32", "int32", "bool"):
                usual: dict[type, Attribute] = {int: 1, float: 0.5, bool: True, str: "int8", tuple: (0,)}
                attrs = {key: usual[kind] for key, kind in spec.attrs.items()}
                try:
                    read = len(reads_of(spec.tensor([te.placeholder((4,), dtype)], attrs).op))
                except Exception:  # not for this type
                    continue
                assert read <= spec.reads, op
                break
            else:
                raise AssertionError(op)


def test_a_concatenation_of_many_operands_is_right() -> None:
    builder = GraphBuilder("wide", [Value("x", (2, 3))])
    parts = [builder.emit("mul", ["x", builder.scalar(number, "float32")]) for number in range(200)]
    graph = builder.finish({"y": builder.emit("concat", parts, {"axis": 1})})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = evaluate(graph, {"x": x})
    assert np.array_equal(found, np.concatenate([x * np.float32(number) for number in range(200)], axis=1))
    assert max(len(node.inputs) for node in graph.nodes) == 64


def test_patterns_are_looked_for_in_long_sums() -> None:
    graph = _graph(3000, STEPS["plus_input"])
    matcher = Matcher(graph)
    assert all(matcher.find(rule.pattern, node) is None for rule in ACTIVATIONS for node in graph.nodes[-50:])


def test_a_sum_is_flattened_once_for_all_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    flattened, flatten = Counter[str](), Matcher._terms

    def counted(self: Matcher, name: str, depth: int = 0) -> object:
        flattened[name] += depth == 0
        return flatten(self, name, depth)

    monkeypatch.setattr(Matcher, "_terms", counted)
    graph = _graph(20, STEPS["plus_input"])
    matcher = Matcher(graph)
    assert all(matcher.find(rule.pattern, node) is None for rule in REWRITE_RULES for node in graph.nodes)
    assert flattened["y"] == 1
    assert max(flattened.values()) == 1


def test_post_dominators_are_those_of_their_definition() -> None:
    for seed in range(30):
        draw, builder = Random(seed), GraphBuilder("net", [Value("x", (2,))])
        names = ["x"]
        for _ in range(25):
            names.append(builder.emit("add", draw.choices(names[-6:], k=2)))
        graph = builder.finish({"y": names[-1], "z": draw.choice(names[1:-1])})
        flow, count = _Flow(graph), len(graph.nodes)
        passed: list[frozenset[int]] = [frozenset({count})] * (count + 1)
        for index in reversed(range(count)):
            passed[index] = frozenset.intersection(*(passed[one] for one in flow.read_by(index))) | {index}
            assert flow._meet[index] == min(passed[index] - {index})


def test_the_memory_of_a_long_chain_is_two_buffers() -> None:
    plan = plan_memory([Request(64, step, step + 1) for step in range(20_000)])
    assert plan.arena_bytes == 128

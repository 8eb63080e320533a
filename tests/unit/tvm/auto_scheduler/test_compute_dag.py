"""A compute graph and its programs as a script sees them."""

import pickle

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import ScheduleError
from retune.compiler.driver.build import build
from retune.compiler.schedule import state as immutable
from retune.compiler.schedule.state import Annotation
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler import ComputeDAG, LayoutRewriteOption, State

NONE, INSERT, PRE = LayoutRewriteOption


def matmul(n: int = 512, m: int = 512, depth: int = 512) -> tuple[Tensor, Tensor, Tensor]:
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis(depth, "k")
    attrs = {"layout_free_placeholders": (b,)}
    return a, b, te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C", attrs)


def tiled() -> tuple[ComputeDAG, State, Tensor]:
    a, b, c = matmul()
    dag = ComputeDAG([a, b, c])
    s = dag.get_init_state()
    i, j, k = s[c].iters
    rows = s.split(c, i, [4, 8, 8])
    columns = s.split(c, j, [8, 4, 4])
    s.reorder(c, [loop for pair in zip(rows, columns, strict=True) for loop in pair] + [k])
    return dag, s, c


def test_bounds_of_a_tiled_matmul_are_those_of_tvm() -> None:
    dag, s, c = tiled()
    assert dag.flop_ct == dag.flop_count == 2 * 512**3
    assert [loop.extent for loop in dag.infer_bound_from_state(s)[c].iters] == [2, 4, 4, 8, 8, 4, 8, 4, 512]
    text = dag.print_python_code_from_state(s)
    assert "split(state, 'C', 'i', [4, 8, 8])" in text
    again = pickle.loads(pickle.dumps(dag))
    assert isinstance(again, ComputeDAG)
    assert str(again.get_init_state()) == str(dag.get_init_state())
    assert again.hash_key() == dag.hash_key()
    assert len(again.ops) == len(dag.ops)


def test_the_layout_option_decides_the_shapes_of_arguments() -> None:
    dag, s, _ = tiled()
    shapes = {option: dag.apply_steps_from_state(s, option)[1][1].shape for option in (NONE, INSERT, PRE)}
    assert shapes == {NONE: (512, 512), INSERT: (512, 512), PRE: (4, 8, 4, 4, 512)}
    assert dag.rewrite_layout_from_state(s).tensors[1].shape == (4, 8, 4, 4, 512)
    assert dag.apply_steps_from_state(s)[0] == s
    inserted, _ = dag.apply_steps_from_state(s, INSERT)
    assert [op.name for op in inserted.stage_ops] == ["A", "B", "auto_scheduler_layout_transform", "C"]
    assert dag.apply_steps_from_state(dag.get_init_state(), PRE)[1] == dag.tensors


def test_bounds_need_all_tile_sizes() -> None:
    dag, s, c = tiled()
    open_state = dag.get_init_state()
    open_state.split(c, "i", [None, 8])
    assert not open_state.concrete
    with pytest.raises(ScheduleError, match="unknown"):
        dag.infer_bound_from_state(open_state)
    assert s.concrete


def test_a_state_changes_under_its_calls_and_a_copy_does_not() -> None:
    a, b, c = matmul(8, 8, 8)
    dag = ComputeDAG([a, b, c])
    s = dag.get_init_state()
    other = s.copy()
    s.split(c, "i", [4])
    assert s != other
    assert other == dag.get_init_state()
    assert len(s.transform_steps) == 1
    with pytest.raises(ScheduleError, match="no loop q"):
        s.split(c, "q", [4])
    assert len(s.steps) == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(s)


def test_annotations_return_the_loop_through_the_tvm_state() -> None:
    a, b, c = matmul()
    s = ComputeDAG([a, b, c]).get_init_state()
    i0, i1 = s.split(c, "i", [16])
    j0, j1 = s.split(c, "j", [8])
    found = [
        s.bind(c, i0, "blockIdx.x"),
        s.bind(c, i1, "vthread"),
        s.parallel(c, j0),
        s.vectorize(c, j1),
        s.unroll(c, "k", 1024),
    ]
    assert list(s[c].iters) == found
    kinds = [Annotation.BLOCK_X, Annotation.VTHREAD, Annotation.PARALLEL, Annotation.VECTORIZE, Annotation.UNROLL]
    assert [loop.annotation for loop in found] == kinds


def test_handles_stay_valid_and_stages_say_where_they_are_computed() -> None:
    a, b, c = matmul(16, 16, 16)
    d = te.compute((16, 16), lambda i, j: te.maximum(c[i, j], 0.0), "D")
    e = te.compute((16, 16), lambda i, j: d[i, j] + 1.0, "E")
    dag = ComputeDAG([a, b, e])
    s = dag.get_init_state()
    s.compute_inline(d)
    cache = s.cache_write(c, "local")
    s.compute_at(cache, c, s[c].iters[0])
    copy = s.cache_read(a, "shared", [cache])
    s.compute_at(copy, cache, 0)
    places = [int(s[each].compute_at) for each in (cache, copy, c, d, e)]
    assert places == [2, 2, 0, 1, 0]
    assert [op.name for op in s.stage_ops] == ["A", "A.shared", "B", "C.local", "C", "D", "E"]
    assert s[4].op.name == "C"
    s.compute_root(copy)
    assert int(s[copy].compute_at) == 0
    s.pragma(cache, 0, "auto_unroll_max_step$64")
    s.storage_align(copy, "ax0", 8, 4)
    assert (s[cache].auto_unroll_max_step, s[copy].storage_offset) == (64, 4)
    with pytest.raises(ScheduleError, match="unroll limit"):
        s.rfactor(cache, "k", 2)
    factored = dag.get_init_state()
    assert factored.rfactor(c, "k", 2).name == "C.rf"


def test_splits_through_the_tvm_state_give_the_extents() -> None:
    x = te.placeholder((512, 512), name="X")
    y = te.compute((512, 512), lambda i, j: x[i, j] + 1.0, "Y")
    z = te.compute((512, 512), lambda i, j: y[i, j] * 2.0, "Z")
    s = ComputeDAG([x, z]).get_init_state()
    first = s.split(y, "i", [4, 2, 8, 4])
    s.split(y, "j", [2, 2, 4, 8], inner_to_outer=False)
    follower = s.follow_split(z, "i", 0, 4)
    assert [loop.extent for loop in follower[:4]] == [loop.extent for loop in first[:4]]
    parts = s.follow_fused_split(z, "j", [0, 1], 2, True)
    assert [loop.extent for loop in parts] == [16, 32]
    fused = s.fuse(z, [follower[0], follower[1]])
    assert fused.extent == 8
    s.reorder(z, [1, 0, 2, 3, 4, 5])
    assert s[z].iters[1] == fused


def test_what_is_applied_can_be_built_of_its_arguments() -> None:
    a, b, c = matmul(6, 32, 16)
    dag = ComputeDAG([a, b, c])
    s = dag.get_init_state()
    outer, inner = s.split(c, "j", [8])
    s.reorder(c, [outer, "k", "i", inner])
    s.vectorize(c, inner)
    rng = np.random.default_rng(0)
    left, right = rng.random((6, 16), np.float32), rng.random((16, 32), np.float32)
    laid_out = np.ascontiguousarray(right.reshape(16, 4, 8).transpose(1, 0, 2))
    for option in LayoutRewriteOption:
        schedule, tensors = dag.apply_steps_from_state(s, option)
        product = build(tensors, schedule.steps)
        (result,) = product.outputs()
        product(*product.prepared(left, laid_out if option is PRE else right), result)
        np.testing.assert_allclose(result, left @ right, rtol=1e-5)


def test_the_program_applied_to_a_graph_is_that_of_the_steps() -> None:
    dag, s, _ = tiled()
    state, tensors = dag.apply_steps_from_state(s, PRE)
    assert isinstance(state.value, immutable.State)
    a, b, c = matmul(4, 8, 4)
    small = ComputeDAG([a, b, c])
    s = small.get_init_state()
    outer, inner = s.split(c, "j", [4])
    s.reorder(c, [outer, "k", "i", inner])
    state, tensors = small.apply_steps_from_state(s, PRE)
    assert tensors[1].shape == (2, 4, 4)
    rng = np.random.default_rng(0)
    left, right = rng.random((4, 4), np.float32), rng.random((4, 8), np.float32)
    laid_out = right.reshape(4, 2, 4).transpose(1, 0, 2)
    (result,) = evaluate([tensors[2]], {tensors[0]: left, tensors[1]: np.ascontiguousarray(laid_out)})
    np.testing.assert_allclose(result, left @ right, rtol=1e-5)

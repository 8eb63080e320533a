"""The PTX of programs for GPUs, executed on a CPU instruction by instruction: what LLVM made of them is right."""

import operator
import re
from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.dtype import item_bits
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.ir.numeric import convert
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from retune.compiler.te.evaluate import evaluate
from tests.support.property.programs import inputs_of
from tests.support.ptx.machine import run_ptx
from tests.support.ptx.program import PtxError
from tests.support.simt.execute import execute
from tests.support.simt_operators import OPERATORS
from tests.support.small_computations import fetched_product
from tests.support.tensor_core_products import PRODUCTS, TF32, lowered, product, sampled, tensor_space
from tests.support.tiers import long_except
from tests.support.workloads import GPU, gpu_task_of


@pytest.mark.parametrize("name", long_except(["matmul", "depthwise", "softmax", "minimum"], OPERATORS))
def test_the_ptx_of_every_operator_computes_the_definition(name: str) -> None:
    dag = OPERATORS[name]()
    rng = np.random.default_rng(7)
    values = inputs_of(dag, rng)
    wanted = evaluate(dag.outputs, values)
    for space in build_spaces(gpu_task_of(name, dag), SearchOptions()):
        _, group = next(iter(space.groups(space.sample(rng, 64))))
        row = group.rows[space.legal(group)][0]
        function = lower_for_gpu(replay(dag, space.steps(row)), "k", GPU)
        text = ptx(function, Target("cuda"))
        for one, other in zip(run_ptx(text, function, [values[tensor] for tensor in dag.inputs]), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=text)


@pytest.mark.parametrize("name", long_except(["f16", "tf32 by columns", "conv2d with stride"], PRODUCTS))
def test_the_ptx_of_tensor_cores_computes_what_the_lowered_program_does(name: str) -> None:
    dag = PRODUCTS[name]()
    values = list(inputs_of(dag, np.random.default_rng(1)).values())
    (steps,) = list(sampled(tensor_space(dag), 1))[:1]
    assert_same(lowered(dag, steps), values, TF32)


def assert_same(function: DeviceFunction, values: list[np.ndarray], target: Target) -> None:
    """The PTX computes what the function does, but for the order in which tensor cores add."""
    found, wanted = run_ptx(ptx(function, target), function, values), execute(function, values)
    for one, other in zip(found, wanted, strict=True):
        exact = other.astype(np.float64)
        assert np.abs(one.astype(np.float64) - exact).max() <= 1e-6 * np.abs(exact).max() or one.itemsize == 2
        np.testing.assert_allclose(one.astype(np.float64), exact, rtol=1e-2, atol=1e-2 * np.abs(exact).max())


def test_factors_are_rounded_to_tf32_to_the_nearest() -> None:
    """Halves away from zero, up to infinity."""
    dag = product(512, 8, 8, "float32")
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, np.uint32)
    step, half = 1 << 13, 1 << 12
    near = [(1 << 23) + step * number + offset for number in (0, 1, 1023) for offset in (half - 1, half, half + 1)]
    bits[:18] = np.array([*near, *(each + (1 << 31) for each in near)], np.uint32)
    a = np.where(np.isfinite(bits.view(np.float32)), bits.view(np.float32), np.float32(1)).reshape(512, 8)
    power = np.maximum(np.frexp(a.astype(np.float64))[1], -125)  # subnormal numbers have fewer bits of fraction
    unit = 2.0 ** (power - 11)
    wanted = np.copysign(np.floor(np.abs(a.astype(np.float64)) / unit + 0.5) * unit, a)
    function = lowered(dag, next(sampled(tensor_space(dag), 1)))
    (found,) = run_ptx(ptx(function, TF32), function, [a, np.eye(8, dtype=np.float32)])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("turned", ["", "AB"])
def test_what_is_not_finite_stays_so_in_tf32(turned: str) -> None:
    """A carry in the fraction of a NaN would make it a zero; beside a NaN nothing else matters."""
    dag = product(64, 64, 32, "float32", turned=turned)
    rng = np.random.default_rng(0)
    nans = [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFFFF000, 0x7F802000]
    odd = np.array([*nans, 0x7F800000, 0xFF800000, 0x7F7FFFFF], np.uint32)
    function = lowered(dag, next(sampled(tensor_space(dag), 1)))
    values = [rng.normal(size=tensor.shape).astype(np.float32) for tensor in dag.inputs]
    for array in values:
        places = rng.permutation(array.size)[: odd.size]
        array.reshape(-1)[places] = odd.view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        (found,), (wanted,) = run_ptx(ptx(function, TF32), function, values), execute(function, values)
    assert 0 < np.isnan(wanted).sum() < wanted.size
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_shared_memory_that_a_launch_gives() -> None:
    target = Target("cuda -arch=sm_80")
    hardware = hardware_of(target, 1)
    dag = product(128, 64, 160)
    values = list(inputs_of(dag, np.random.default_rng(1)).values())
    for steps in sampled(tensor_space(dag, target, hardware), 200):
        function = lower_for_gpu(replay(dag, steps), "k", hardware)
        if function.kernels[0].dynamic_shared:
            assert_same(function, values, target)
            return
    pytest.fail("no program takes that much")


@pytest.mark.parametrize("function", [te.exp, te.log, te.sqrt, te.tanh, te.erf, te.sigmoid, te.rsqrt, te.floor])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_functions_are_as_exact_as_on_a_cpu(function: Callable[[Expr], Expr], dtype: str) -> None:
    x = te.placeholder((256,), dtype, "x")
    dag = ComputeDAG([x, te.compute((256,), lambda i: function(x[i]), "y")])
    device = lower_for_gpu(replay(dag, (Annotate(1, 0, Annotation.THREAD_X),)), "k", GPU)
    spread = np.random.default_rng(0).normal(0, 8, 256).astype(dtype)
    spread[:8] = [0, 1, -1, 88.5, -103.5, np.inf, -np.inf, np.nan]
    ((found,), (wanted,)) = run_ptx(ptx(device, Target("cuda")), device, [spread]), execute(device, [spread])
    kind = np.finfo(dtype)
    np.testing.assert_allclose(found, wanted, rtol=5 * float(kind.eps), atol=float(kind.smallest_normal))


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn"])
def test_narrow_types_are_converted_as_on_a_cpu(dtype: str) -> None:
    codes = np.arange(1 << item_bits(dtype), dtype="uint8").view(dtype)
    wide = applied(lambda x: te.cast("float32", x), dtype, [codes])
    np.testing.assert_array_equal(wide, codes.astype("float32"))
    values = np.random.default_rng(0).normal(0, 8, 256).astype("float32")
    narrow = applied(lambda x: te.cast(dtype, x), "float32", [values])
    np.testing.assert_array_equal(narrow.astype("float32"), convert(values, dtype).astype("float32"))


@pytest.mark.parametrize(("count", "dtype"), [(7, "float32"), (11, "int8"), (7, "float16"), (6, "float32")])
@pytest.mark.parametrize("last", [2, 3])
def test_nothing_beyond_the_end_of_an_array_is_read(count: int, dtype: str, last: int) -> None:
    """LLVM joins the last three elements, or the last and the one before its neighbor, to an access of four."""
    x = te.placeholder((count,), dtype, "x")
    dag = ComputeDAG([x, te.compute((4,), lambda i: x[count - last] + x[count - 2] + x[count - 1] + x[i], "y")])
    device = lower_for_gpu(replay(dag, (Annotate(1, 0, Annotation.THREAD_X),)), "k", GPU)
    values = np.arange(count).astype(dtype)
    (found,) = run_ptx(ptx(device, Target("cuda")), device, [values])
    np.testing.assert_array_equal(found, values[-last] + values[-2] + values[-1] + values[:4])


ODD = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 88.5, -103.5, 1e22, np.inf, -np.inf, np.nan, 3e38, 1e-45, 1e-38, -7.25]


def applied(function: Callable[..., Expr], dtype: str, values: list[np.ndarray]) -> np.ndarray:
    """What the PTX of a function of every element computes."""
    tensors = [te.placeholder(array.shape, dtype, f"x{place}") for place, array in enumerate(values)]
    out = te.compute(values[0].shape, lambda i: function(*(tensor[i] for tensor in tensors)), "y")
    dag = ComputeDAG([*tensors, out])
    steps = (Annotate(len(values), 0, Annotation.THREAD_X),)
    device = lower_for_gpu(replay(dag, steps), "k", GPU)
    (found,) = run_ptx(ptx(device, Target("cuda")), device, values)
    return found


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_remainders_of_floats_are_exact(dtype: str) -> None:
    """LLVM's own, by a rounded quotient, is -1e22 % 3 = a huge number."""
    rng = np.random.default_rng(0)
    odd = np.array(np.meshgrid(ODD, ODD)).reshape(2, -1)
    far = rng.normal(0, 1, (2, 256)) * 10.0 ** rng.integers(-30, 30, (2, 256))
    with np.errstate(all="ignore"):
        x, y = np.concatenate([odd, far], axis=1).astype(dtype)
        rest, whole = np.mod(x, y), np.floor_divide(x, y)
    np.testing.assert_array_equal(applied(operator.mod, dtype, [x, y]), rest)
    np.testing.assert_array_equal(applied(operator.floordiv, dtype, [x, y]), whole)


@pytest.mark.parametrize(
    ("written", "instead", "fault"),
    [
        (r"bar\.sync", "@%p1 bar.sync", "ended before|different barriers|never come"),
        (r"(ld\.global\.nc\.b32 .*)\]", r"\1+2]", "not aligned: ld"),
        (r"(st\.global\.b32 \t\[\w*%\w+)\]", r"\1+65536]", "nothing lies at 0x1.*: st"),
        (r"(st\.shared\.b32 \t\[)%\w+", r"\g<1>4096", "nothing lies at 0x1000: st.shared"),
        (r"fma\.rn\.f32", "fmb.rn.f32", "unknown: fmb"),
    ],
)
def test_what_no_gpu_would_answer_for_is_found(written: str, instead: str, fault: str) -> None:
    function, values = fetched()
    text = ptx(function, Target("cuda"))
    assert re.search(written, text)
    with pytest.raises(PtxError, match=fault):
        run_ptx(re.sub(written, instead, text), function, values)


def test_other_instructions_compute_something_else() -> None:
    function, values = fetched()
    text, (wanted,) = ptx(function, Target("cuda")), execute(function, values)
    np.testing.assert_allclose(run_ptx(text, function, values)[0], wanted, rtol=1e-5, atol=1e-5)
    broken = text.replace("fma.rn.f32", "add.rn.f32")
    assert not np.allclose(run_ptx(broken, function, values)[0], wanted)


def fetched() -> tuple[DeviceFunction, list[np.ndarray]]:
    """C = A B with a row of A in shared memory, and A and B."""
    function = lower_for_gpu(fetched_product(), "k", GPU)
    rng = np.random.default_rng(0)
    return function, [rng.normal(size=buffer.shape).astype("float32") for buffer in function.params[:2]]

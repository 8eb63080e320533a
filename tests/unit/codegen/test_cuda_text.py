"""CUDA C of kernels: readable, and, where there is NVIDIA's compiler, valid."""

import shutil
import subprocess
from pathlib import Path

import pytest

from retune.compiler import te
from retune.compiler.codegen.cuda_text import cuda_text
from retune.compiler.ir.expr import Expr
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, Fuse, Split
from tests.support.small_computations import fetched_product, golden, sum_and_peak
from tests.support.workloads import GPU

# ruff: noqa: E501 - golden text is as wide as it is

BLOCK, THREAD = Annotation.BLOCK_X, Annotation.THREAD_X
COMPILER = shutil.which("nvcc")


def fetched() -> str:
    """C = A B in blocks of 16 threads, a row of A being fetched by these together."""
    return cuda_text(lower_for_gpu(fetched_product(), "product", GPU))


def elementwise(name: str, dtype: str = "float32") -> str:
    """A function of every element, with a negative index, a choice, an extreme and a cast."""
    x = te.placeholder((40,), dtype, "x")

    def value(i: te.Axis) -> Expr:
        inside = te.logical_and(i >= 3, (7 - i) // 2 > -9)
        return te.if_then_else(inside, te.maximum(te.exp(x[i - 3]), te.sigmoid(x[(i - 3) % 7])), te.cast(dtype, i))

    dag = ComputeDAG([x, te.compute((40,), value, "y")])
    return cuda_text(lower_for_gpu(replay(dag, (Annotate(1, 0, THREAD),)), name, GPU))


def test_a_kernel_reads_like_one_that_a_person_would_write() -> None:
    assert fetched() == golden(
        """
        // product_kernel0<<<dim3(4, 1, 1), dim3(16, 1, 1)>>>
        extern "C" __global__ void __launch_bounds__(16) product_kernel0(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C) {
          C[((int)threadIdx.x + ((int)blockIdx.x * 16))] = 0.0f;
          for (int k_0_s3 = 0; k_0_s3 < 2; ++k_0_s3) {
            {
              __shared__ float A_shared[4];
              __syncthreads();
              if (((int)threadIdx.x < 4)) {
                A_shared[(int)threadIdx.x] = A[(((int)threadIdx.x + (k_0_s3 * 4)) + ((int)blockIdx.x * 8))];
              }
              __syncthreads();
              for (int k_1_s3 = 0; k_1_s3 < 4; ++k_1_s3) {
                C[((int)threadIdx.x + ((int)blockIdx.x * 16))] = (C[((int)threadIdx.x + ((int)blockIdx.x * 16))] + (A_shared[k_1_s3] * B[(((int)threadIdx.x + (k_0_s3 * 64)) + (k_1_s3 * 16))]));
              }
            }
          }
        }
        """
    )


def test_only_what_may_be_negative_is_rounded_down_by_a_function() -> None:
    text = elementwise("negative")
    assert "(3 + floordiv((((int)threadIdx.x * -1) + 1), 2))" in text
    assert "__device__ long long floordiv" in text
    assert "floordiv" not in fetched()


def divided(dtype: str, *, rest: bool = False) -> str:
    """z = x // y, or x % y."""
    x, y = te.placeholder((64,), dtype, "x"), te.placeholder((64,), dtype, "y")
    dag = ComputeDAG([x, y, te.compute((64,), lambda i: x[i] % y[i] if rest else x[i] // y[i], "z")])
    return cuda_text(lower_for_gpu(replay(dag, (Annotate(2, 0, THREAD),)), f"divide_{dtype}_{rest:d}", GPU))


def copied(rows: int, columns: int, block: int) -> str:
    """y[j, i] = x[i, j], of bytes, in blocks of so many threads."""
    x = te.placeholder((rows, columns), "int8", "x")
    dag = ComputeDAG([x, te.compute((columns, rows), lambda j, i: x[i, j], "y")])
    steps = (Fuse(1, (0, 1)), Split(1, 0, rows * columns, (block,)), Annotate(1, 0, BLOCK), Annotate(1, 1, THREAD))
    return cuda_text(lower_for_gpu(replay(dag, steps), "copy", GPU))


def test_what_has_more_elements_than_an_int_can_count_is_counted_in_long_long() -> None:
    small, large = copied(1 << 15, 1 << 15, 1024), copied(1 << 16, 1 << 16, 1024)
    assert "long long" not in small
    assert "(((long long)blockIdx.x % 64) * 67108864)" in large
    assert "(int)" not in large
    assert "int " not in large.replace("__launch_bounds__", "")


def test_every_step_of_an_index_must_fit() -> None:
    """i * 100000 // 100000 does not leave its array, and yet it is too large for an int on the way."""
    x = te.placeholder((1 << 20,), "float32", "x")

    def text(factor: int) -> str:
        dag = ComputeDAG([x, te.compute((1 << 20,), lambda i: x[(i * factor) % 1000003], "y")])
        steps = (Split(1, 0, 1 << 20, (256,)), Annotate(1, 0, BLOCK), Annotate(1, 1, THREAD))
        return cuda_text(lower_for_gpu(replay(dag, steps), "gather", GPU))

    assert "long long" not in text(1000)
    assert "long long" in text(100000)


def test_indices_that_are_read_are_as_long_as_they_are() -> None:
    x, place = te.placeholder((1 << 20,), "float32", "x"), te.placeholder((64,), "int64", "place")
    dag = ComputeDAG([x, place, te.compute((64,), lambda i: x[te.minimum(place[i] * 1024, i + 5)], "y")])
    text = cuda_text(lower_for_gpu(replay(dag, (Annotate(2, 0, THREAD),)), "gather", GPU))
    assert "const long long* __restrict__ place" in text
    assert "min((long long)(place[(int)threadIdx.x] * 1024), (long long)((int)threadIdx.x + 5))" in text


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ("float32", "float_div(x[(int)threadIdx.x], y[(int)threadIdx.x])"),
        ("float16", "(__half)float_div((float)x[(int)threadIdx.x], (float)y[(int)threadIdx.x])"),
        ("uint64", "(unsigned long long)natural_div(x[(int)threadIdx.x], y[(int)threadIdx.x])"),
        ("int32", "floordiv(x[(int)threadIdx.x], y[(int)threadIdx.x])"),
    ],
)
def test_divisions_that_c_does_otherwise_are_helpers(dtype: str, said: str) -> None:
    text = divided(dtype)
    assert said in text
    assert text.count("__device__") == 1


@pytest.mark.skipif(COMPILER is None, reason="there is no nvcc")
def test_cuda_text_is_accepted_by_a_compiler(tmp_path: Path) -> None:
    steps = (Split(1, 1, 20, (6,)), Annotate(1, 2, THREAD), Annotate(1, 0, BLOCK))
    across = cuda_text(lower_for_gpu(replay(sum_and_peak(3, 20), steps), "across", GPU))
    source = tmp_path / "kernels.cu"
    halves = "\n".join((divided("float16"), divided("uint8", rest=True), divided("float64", rest=True)))
    texts = (
        elementwise("half", "float16"),
        fetched(),
        across.replace("nan_", "nan_2"),
        copied(1 << 16, 1 << 16, 64),
        halves,
    )
    source.write_text("\n".join(texts))
    command = [str(COMPILER), "-arch=sm_80", "--ptx", str(source), "-o", str(tmp_path / "kernels.ptx")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr


def test_bits_are_counted_in_the_width_of_the_type() -> None:
    outputs, inputs = [], []
    for dtype in ("int8", "uint32", "int64"):
        x = te.placeholder((4,), dtype, f"x_{dtype}")
        inputs.append(x)
        outputs += [
            te.compute((4,), lambda i, x=x, f=f: f(x[i]), f"{f.__name__}_{dtype}") for f in (te.popcount, te.clz)
        ]
    dag = ComputeDAG([*inputs, *outputs])
    steps = tuple(Annotate(dag.id_of(tensor), 0, THREAD) for tensor in outputs)
    text = cuda_text(lower_for_gpu(replay(dag, steps), "bits", GPU))
    place = "(int)threadIdx.x"
    for wanted in (
        f"popcount_int8[{place}] = (signed char)__popc((unsigned char)x_int8[{place}]);",
        f"clz_int8[{place}] = (int)(__clz((unsigned char)x_int8[{place}]) - 24);",
        f"popcount_uint32[{place}] = (unsigned int)__popc((unsigned int)x_uint32[{place}]);",
        f"clz_uint32[{place}] = (int)__clz((unsigned int)x_uint32[{place}]);",
        f"popcount_int64[{place}] = (long long)__popcll((unsigned long long)x_int64[{place}]);",
        f"clz_int64[{place}] = (int)__clzll((unsigned long long)x_int64[{place}]);",
    ):
        assert wanted in text, text

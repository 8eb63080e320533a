"""Computations, their schedule spaces on a GPU, and programs without their binding to threads."""

from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Step
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from tests.support.workloads import (
    conv_bn_relu,
    gpu_task_of,
    matmul,
    max_pool_nchw,
    min_nm,
    softmax,
    winograd_nhwc,
    zero_rank_compute,
    zero_rank_reduce,
)

DAGS = {
    "matmul": matmul(128, 128, 64),
    "few points": matmul(8, 8, 1024),
    "conv": conv_bn_relu(1, 14, 32, 32, 3, 1, 1),
    "pool": max_pool_nchw(1, 14, 14, 32, 0),
    "min": min_nm(10, 1000),
    "softmax": softmax(2, 1024),
    "winograd": winograd_nhwc(1, 12, 16, 16, 1),
    "scalar sum": zero_rank_reduce(128),
    "scalar": zero_rank_compute(128),
}


def spaces_of(dag: ComputeDAG) -> tuple[SketchSpace, ...]:
    """The spaces of a graph on a GPU."""
    return build_spaces(gpu_task_of("t", dag), SearchOptions())


def one_after_the_other(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The program without its binding to blocks and threads."""
    threads = range(Annotation.VTHREAD, Annotation.TENSORIZE)
    return tuple(step for step in steps if not (isinstance(step, Annotate) and step.annotation in threads))

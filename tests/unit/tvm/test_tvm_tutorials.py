"""TVM's tutorials and the examples of its reference, as literal as the import line allows, on small shapes.

`num_measure_trials`, the shapes and the pauses of the runners are smaller. Operators of `topi` are spelled out in `te`,
networks of `relay` are networks of the zoo.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retune.compiler as tvm
from retune.compiler import auto_scheduler, graph_executor, te, vm
from retune.compiler.runtime.kernel_row import ProgramOrigin
from tests.support.tvm_scripts import Simulated


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_example_of_register_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = auto_scheduler.workload_registry.WORKLOAD_FUNC_REGISTRY
    monkeypatch.delitem(registered, "matmul", raising=False)  # other tests register it, too

    @auto_scheduler.register_workload
    def matmul(N, M, K):  # type: ignore[no-untyped-def] # noqa: N803
        A = te.placeholder((N, K), name="A")  # noqa: N806
        B = te.placeholder((K, M), name="B")  # noqa: N806
        k = te.reduce_axis((0, K), name="k")
        C = te.compute((N, M), lambda i, j: te.sum(A[i][k] * B[k][j], axis=[k]), name="C")  # noqa: N806
        return [A, B, C]

    target, workload_func, args = tvm.target.Target("llvm"), matmul, (8, 8, 8)
    workload_key = auto_scheduler.make_workload_key(workload_func, args)
    # Way 1: create a task by a workload generation function.
    one = auto_scheduler.SearchTask(func=workload_func, args=args, target=target)
    # Way 2: create a task by a workload_key.
    other = auto_scheduler.SearchTask(workload_key=workload_key, target=target)
    assert one.workload_key == other.workload_key == '["matmul", 8, 8, 8]'
    assert str(one.compute_dag) == str(other.compute_dag)


@auto_scheduler.register_workload
def matmul_add(N, L, M, dtype):  # type: ignore[no-untyped-def] # noqa: N803
    A = te.placeholder((N, L), name="A", dtype=dtype)  # noqa: N806
    B = te.placeholder((L, M), name="B", dtype=dtype)  # noqa: N806
    C = te.placeholder((N, M), name="C", dtype=dtype)  # noqa: N806

    k = te.reduce_axis((0, L), name="k")
    matmul = te.compute(
        (N, M),
        lambda i, j: te.sum(A[i, k] * B[k, j], axis=k),
        name="matmul",
        attrs={"layout_free_placeholders": [B]},  # enable automatic layout transform for tensor B
    )
    out = te.compute((N, M), lambda i, j: matmul[i, j] + C[i, j], name="out")

    return [A, B, C, out]


def test_optimizing_operators_with_auto_scheduling(capsys: pytest.CaptureFixture[str]) -> None:
    target = tvm.target.Target("llvm")
    N = L = M = 64  # noqa: N806
    task = tvm.auto_scheduler.SearchTask(func=matmul_add, args=(N, L, M, "float32"), target=target)

    print("Computational DAG:")
    print(task.compute_dag)

    log_file = "matmul.json"
    tune_option = auto_scheduler.TuningOptions(
        num_measure_trials=4,
        measure_callbacks=[auto_scheduler.RecordToFile(log_file)],
        verbose=2,
    )
    task.tune(tune_option)
    sch, args = task.apply_best(log_file)
    print("Lowered TIR:")
    print(tvm.lower(sch, args, simple_mode=True))  # type: ignore[operator] # a package too

    func = tvm.build(sch, args, target)
    a_np = np.random.uniform(size=(N, L)).astype(np.float32)
    b_np = np.random.uniform(size=(L, M)).astype(np.float32)
    c_np = np.random.uniform(size=(N, M)).astype(np.float32)
    out_np = a_np.dot(b_np) + c_np

    dev = tvm.cpu()
    a_tvm = tvm.nd.array(a_np, device=dev)
    b_tvm = tvm.nd.array(b_np, device=dev)
    c_tvm = tvm.nd.array(c_np, device=dev)
    out_tvm = tvm.nd.empty(out_np.shape, device=dev)
    func(a_tvm, b_tvm, c_tvm, out_tvm)

    np.testing.assert_allclose(out_np, out_tvm.numpy(), rtol=1e-3)

    evaluator = func.time_evaluator(func.entry_name, dev, min_repeat_ms=5)
    print(
        "Execution time of this operator: %.3f ms" % (np.median(evaluator(a_tvm, b_tvm, c_tvm, out_tvm).results) * 1000)
    )

    print("Equivalent python schedule:")
    print(task.print_best(log_file))

    def resume_search(task: Any, log_file: str) -> None:
        print("Resume search:")
        cost_model = auto_scheduler.XGBModel()
        cost_model.update_from_file(log_file)
        search_policy = auto_scheduler.SketchPolicy(
            task, cost_model, init_search_callbacks=[auto_scheduler.PreloadMeasuredStates(log_file)]
        )
        tune_option = auto_scheduler.TuningOptions(
            num_measure_trials=2, measure_callbacks=[auto_scheduler.RecordToFile(log_file)]
        )
        task.tune(tune_option, search_policy=search_policy)

    resume_search(task, log_file)
    assert len(auto_scheduler.load_records(log_file)) == 6
    said = capsys.readouterr().out
    assert re.search(r"^Execution time of this operator: \d+\.\d{3} ms$", said, re.MULTILINE)
    assert "split(" in said
    assert "def main(A: float32[64, 64]" in said


@auto_scheduler.register_workload
def conv2d_layer(N, H, W, CO, CI, KH, KW, stride, padding):  # type: ignore[no-untyped-def] # noqa: N803
    data = te.placeholder((N, CI, H, W), name="data")
    kernel = te.placeholder((CO, CI, KH, KW), name="kernel")
    bias = te.placeholder((1, CO, 1, 1), name="bias")
    (p, _), (s, _) = padding, stride
    padded = te.compute(
        (N, CI, H + 2 * p, W + 2 * p),
        lambda n, c, y, x: te.if_then_else(
            te.all(y >= p, y < H + p, x >= p, x < W + p), data[n, c, y - p, x - p], te.const(0.0, "float32")
        ),
        name="padded",
    )
    rc, ry, rx = te.reduce_axis((0, CI), "rc"), te.reduce_axis((0, KH), "ry"), te.reduce_axis((0, KW), "rx")
    conv = te.compute(
        (N, CO, (H + 2 * p - KH) // s + 1, (W + 2 * p - KW) // s + 1),
        lambda n, c, y, x: te.sum(padded[n, rc, y * s + ry, x * s + rx] * kernel[c, rc, ry, rx], axis=[rc, ry, rx]),
        name="conv",
    )
    out = te.compute(
        conv.shape,
        lambda n, c, y, x: te.max(conv[n, c, y, x] + bias[0, c, 0, 0], te.const(0.0, "float32")),
        name="relu",
    )
    return [data, kernel, bias, out]


def test_auto_scheduling_a_convolution_layer() -> None:
    target = tvm.target.Target("llvm")
    N, H, W, CO, CI, KH, KW, strides, padding = 1, 7, 7, 8, 8, 3, 3, (1, 1), (1, 1)  # noqa: N806
    task = auto_scheduler.SearchTask(func=conv2d_layer, args=(N, H, W, CO, CI, KH, KW, strides, padding), target=target)
    log_file = "conv2d.json"
    measure_ctx = auto_scheduler.LocalRPCMeasureContext(min_repeat_ms=1)
    tune_option = auto_scheduler.TuningOptions(
        num_measure_trials=4,
        runner=measure_ctx.runner,
        measure_callbacks=[auto_scheduler.RecordToFile(log_file)],
        verbose=2,
    )
    task.tune(tune_option)
    sch, args = task.apply_best(log_file)
    del measure_ctx

    func = tvm.build(sch, args, target)
    data_np = np.random.uniform(size=(N, CI, H, W)).astype(np.float32)
    weight_np = np.random.uniform(size=(CO, CI, KH, KW)).astype(np.float32)
    bias_np = np.random.uniform(size=(1, CO, 1, 1)).astype(np.float32)
    padded = np.pad(data_np, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (KH, KW), axis=(2, 3))
    out_np = np.maximum(np.einsum("nchwyx,ocyx->nohw", windows, weight_np) + bias_np, 0.0)

    dev = tvm.cpu()
    data_tvm, weight_tvm, bias_tvm = (tvm.nd.array(one, device=dev) for one in (data_np, weight_np, bias_np))
    out_tvm = tvm.nd.empty(out_np.shape, device=dev)
    func(data_tvm, weight_tvm, bias_tvm, out_tvm)
    np.testing.assert_allclose(out_np, out_tvm.numpy(), rtol=1e-3)


def test_the_convolution_layer_on_cuda_is_printed_as_ptx() -> None:
    target = tvm.target.Target("cuda")
    task = auto_scheduler.SearchTask(func=conv2d_layer, args=(1, 7, 7, 32, 32, 3, 3, (1, 1), (1, 1)), target=target)
    tune_option = auto_scheduler.TuningOptions(
        2, runner=Simulated(), measure_callbacks=[auto_scheduler.RecordToFile("conv2d.json")], verbose=0
    )
    task.tune(tune_option, auto_scheduler.SketchPolicy(task))
    assert "%tid.x" in task.print_best("conv2d.json", print_mode="cuda")


def test_auto_scheduling_a_neural_network_for_x86() -> None:
    target = tvm.target.Target("llvm")
    mod, params, input_shape, dtype = "mlp", None, (1, 784), "float32"
    log_file = "mlp.json"
    tasks, task_weights = auto_scheduler.extract_tasks(mod, params, target)
    for idx, task in enumerate(tasks):
        print("========== Task %d  (workload key: %s) ==========" % (idx, task.workload_key))  # noqa: UP031
        print(task.compute_dag)

    tuner = auto_scheduler.TaskScheduler(tasks, task_weights)
    tune_option = auto_scheduler.TuningOptions(
        num_measure_trials=2 * len(tasks),
        num_measures_per_round=2,
        runner=Simulated(),
        measure_callbacks=[auto_scheduler.RecordToFile(log_file)],
    )
    tuner.tune(tune_option, search_policy="sketch.random")

    with (
        auto_scheduler.ApplyHistoryBest(log_file),
        tvm.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}),
    ):
        lib = tvm.build_network(mod, target=target, params=params)

    dev = tvm.device("llvm", 0)
    module = graph_executor.GraphModule(lib["default"](dev))
    data_tvm = tvm.nd.array((np.random.uniform(size=input_shape)).astype(dtype))
    module.set_input("input", data_tvm)
    result = module.benchmark(dev, repeat=3, min_repeat_ms=1)
    assert 0 < result.min <= result.median <= result.max
    assert {row.origin for row in lib.network.coverage} == {ProgramOrigin.CONTEXT}


@auto_scheduler.register_workload
def tagged_dense(M, N, K):  # type: ignore[no-untyped-def] # noqa: N803
    X = te.placeholder((M, K), name="X")  # noqa: N806
    W = te.placeholder((N, K), name="W")  # noqa: N806
    k = te.reduce_axis((0, K), name="k")
    block = te.compute((M, N), lambda i, j: te.sum(X[i, k] * W[j, k], axis=k), name="block", tag="dense_block")
    return [X, W, te.compute((M, N), lambda m, n: te.max(block[m, n], te.const(0.0, "float32")), name="relu")]


def test_a_custom_sketch_rule() -> None:
    def meet_condition_func(search_policy: Any, state: Any, stage_id: int) -> Any:
        state = auto_scheduler.loop_state.State(state, search_policy.search_task.compute_dag)
        if state.stages[stage_id].op.tag in ["dense_block"]:
            return auto_scheduler.PreloadCustomSketchRule.APPLY_AND_SKIP_REST
        return auto_scheduler.PreloadCustomSketchRule.PASS

    def apply_func(search_policy: Any, state: Any, stage_id: int) -> Any:
        ret = []
        s0 = auto_scheduler.loop_state.State(state, search_policy.search_task.compute_dag)
        block = s0.stages[stage_id].op
        consumer = s0.stages[stage_id + 1].op

        i, j, k = s0[block].iters
        m, n = s0[consumer].iters
        i0, i1 = s0.split(block, i, [None])
        m0, m1 = s0.follow_split(consumer, m, len(s0.transform_steps) - 1, 1)
        j0, j1 = s0.split(block, j, [None])
        n0, n1 = s0.follow_split(consumer, n, len(s0.transform_steps) - 1, 1)
        s0.reorder(block, [i0, j0, k, i1, j1])
        s0.reorder(consumer, [m0, n0, m1, n1])
        s0.compute_at(block, consumer, n0)
        ret.append([s0.state_object, stage_id - 1])
        return ret

    task = tvm.auto_scheduler.SearchTask(func=tagged_dense, args=(16, 16, 16), target=tvm.target.Target("llvm"))
    log_file = "sparse_dense.json"
    tune_option = auto_scheduler.TuningOptions(
        num_measure_trials=2, measure_callbacks=[auto_scheduler.RecordToFile(log_file)], verbose=0
    )
    search_policy = auto_scheduler.SketchPolicy(
        task,
        program_cost_model=auto_scheduler.XGBModel(),
        init_search_callbacks=[auto_scheduler.PreloadCustomSketchRule(meet_condition_func, apply_func, "SparseDense")],
    )
    task.tune(tune_option, search_policy)
    assert "follow_split" in task.print_best(log_file) or "compute_at" in task.print_best(log_file)
    sch, args = task.apply_best(log_file)
    func = tvm.build(sch, args, task.target)
    x, w = (np.random.uniform(-1, 1, (16, 16)).astype("float32") for _ in range(2))
    out = tvm.nd.empty((16, 16))
    func(tvm.nd.array(x), tvm.nd.array(w), out)
    np.testing.assert_allclose(out.numpy(), np.maximum(x @ w.T, 0), rtol=1e-4, atol=1e-5)


def test_the_virtual_machine() -> None:
    mod, target, dev = "mlp", "llvm", tvm.cpu(0)
    compiler = vm.VMCompiler()
    compiler.set_params({})
    compiler.lower(mod, target, target_host="llvm")
    compiler.codegen()
    exe = compiler.get_exec()
    data = np.random.uniform(size=(1, 784)).astype("float32")
    machine = tvm.runtime.vm.VirtualMachine(exe, dev)
    wanted = machine.run(tvm.nd.array(data)).numpy()
    code, lib = exe.save()
    lib.export_library("lib.so")
    loaded = tvm.runtime.vm.Executable.load_exec(code, tvm.runtime.load_module("lib.so"))
    again = tvm.runtime.vm.VirtualMachine(loaded, dev)
    again.set_input("main", data)
    again.invoke_stateful("main")
    np.testing.assert_array_equal(again.get_outputs()[0].numpy(), wanted)
    evaluate = vm.VMExecutor(mod, dev, target).evaluate()
    np.testing.assert_allclose(evaluate(data).numpy(), wanted, rtol=1e-5)
    with pytest.raises(RuntimeError):
        vm.VMExecutor(None, dev, target)

"""Tuning logs in TVM's form: read, written, kept as records, replayed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import LogFormatError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.measure.logs.log import (
    append_log,
    code_target,
    from_record,
    read_line,
    read_log,
    readable_name,
    to_record,
    write_line,
)
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.task import SearchTask
from retune.compiler.schedule.workload_registry import register_workload

STEPS = [
    ["SP", 2, 0, 128, [2, 8, 4], 1],
    ["SP", 2, 4, 128, [1, 4, 16], 1],
    ["SP", 2, 8, 128, [8], 1],
    ["RE", 2, [0, 4, 1, 5, 8, 2, 6, 9, 3, 7]],
    ["FU", 2, [0, 1]],
    ["AN", 2, 0, 3],
    ["PR", 2, 0, "auto_unroll_max_step$64"],
    ["AN", 2, 8, 2],
]
KEY = '["log_matmul", 128, 128, 128]'
TARGET = "llvm -keys=cpu -mcpu=core-avx2 -num-cores=8"
HARDWARE = [8, 64, 64, 0, 0, 0, 0, 0]


@register_workload("log_matmul")
def log_matmul(n: int, m: int, k: int) -> list[te.Tensor]:
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    axis = te.reduce_axis(k, "k")
    return [a, b, te.compute((n, m), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), "C")]


def line(task: list[object] | None = None, result: list[object] | None = None, **more: object) -> str:
    head = [KEY, TARGET, HARDWARE, "llvm -mtriple=aarch64-linux-gnu", 1, ["Index"]] if task is None else task
    ended = [[0.000214, 0.0002], 0, 0.93, 1700000000] if result is None else result
    return json.dumps({"i": [head, [[], STEPS]], "r": ended, "v": "v0.6", **more})


def test_a_line_comes_back_as_it_was() -> None:
    assert json.loads(write_line(read_line(line()))) == json.loads(line())


def test_a_failure_comes_back_as_it_was() -> None:
    failed = line(result=[[1e10], 6, 15.0, 1700000001])
    trial = read_line(failed)
    assert trial.status is MeasureStatus.BUILD_TIMEOUT
    assert trial.costs == ()
    assert trial.seconds == float("inf")
    assert json.loads(write_line(trial)) == json.loads(failed)


@pytest.mark.parametrize(
    "numbers",
    [
        "[1e+10], 6, 15, 1700000001",
        "[0.000214, 3e-05], 0, 0.93, 1700000000",
        "[0.00012345678], 0, 1234567.5, 1700000000",
    ],
)
def test_numbers_are_written_as_tvm_writes_them(numbers: str) -> None:
    head, _, _ = line(task=['["10.0", "\\"r\\": 15.0"]', TARGET, HARDWARE, "", 0, []]).partition('"r": ')
    text = f'{head}"r": [{numbers}], "v": "v0.6"}}'
    assert write_line(read_line(text)) == text


def test_keys_of_a_newer_writer_are_ignored() -> None:
    assert read_line(line(extra={"future": 1})) == read_line(line())


@pytest.mark.parametrize("length", [2, 3, 5, 6])
def test_shorter_tasks_of_older_logs_are_read(length: int) -> None:
    full = [KEY, TARGET, HARDWARE, "llvm -mtriple=aarch64-linux-gnu", 1, ["Index"]]
    task = read_line(line(task=full[:length])).task
    assert task.workload_key == KEY
    assert task.hardware == (tuple(HARDWARE) if length > 2 else ())
    assert task.layout == (1 if length > 4 else 0)
    assert task.target_host_text == ("llvm -mtriple=aarch64-linux-gnu" if length > 4 else "")
    assert task.task_input_names == (("Index",) if length > 5 else ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no record"),
        ("[]", "no record"),
        ('{"i": 1, "r": 2}', "no record"),
        (line(task=[KEY]), "no record"),
        (line(task=[KEY, TARGET, [8]]), "1 hardware parameters"),
        (line(result=[[0.1], 99, 0.1, 1]), "99 is not a valid"),
        (line(result=[[], 0, 0.1, 1]), "claims success"),
        (line(result=[[-1.0], 0, 0.1, 1]), "claims success"),
        (line(result=[[0.1], 0, 0.1, 1e400]), "no record"),
        (line().replace('"SP"', '"XX"'), "unknown transform step"),
        (line(result=[[1e10], 2, float("nan"), 1]), "no time"),
        (line(result=[[1e10], 2, 1.0, 10**30]), "no time in the years"),
        (line(task=[KEY, TARGET, [2**40, *HARDWARE[1:]]]), "too large"),
        (line(task=[KEY, TARGET, HARDWARE, "", 3]), "3 is not a valid"),
        (line(task=["\ud800", TARGET]), "no record"),
        (line(task=[KEY, TARGET, HARDWARE, "", 1, ["\udfff"]]), "no record"),
        ('{"i": ' + "[" * 100_000 + "}", "no record"),
    ],
)
def test_a_bad_line_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(LogFormatError, match=said):
        read_line(text)


def test_a_log_skips_comments_and_names_a_bad_line(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "tune.json"
    trial = read_line(line())
    assert append_log(log, [trial, trial]) == 2
    log.write_text(f"# a comment\n\n{log.read_text()}nonsense\n", encoding="utf-8")
    reading = read_log(log)
    assert [next(reading), next(reading)] == [trial, trial]
    with pytest.raises(LogFormatError, match=r"tune\.json:5: "):
        next(reading)
    assert list(read_log(log, lines=1, skip=1)) == [trial]
    with pytest.raises(LogFormatError, match="cannot read the log"):
        list(read_log(tmp_path / "none.json"))


def test_a_line_that_was_cut_off_costs_itself_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, trial = tmp_path / "log.json", read_line(line())
    append_log(log, [trial])
    whole = log.read_bytes()
    for length in (1, 40, len(whole) - 2):
        log.write_bytes(whole + whole[:length])
        assert list(read_log(log)) == [trial]
        append_log(log, [trial])
        assert list(read_log(log)) == [trial, trial]
        assert "log.json:2: the line was cut off" in caplog.text
    log.write_bytes(whole + whole[:-1])  # only the end of the line is missing
    append_log(log, [trial])
    assert list(read_log(log)) == [trial] * 3


APPENDING = """
import sys
from pathlib import Path
from retune.compiler.measure.logs.log import append_log, read_line
trial = read_line(sys.argv[2])
for _ in range(20):
    append_log(Path(sys.argv[1]), [trial] * 50)
"""


def test_several_processes_may_append_to_one_log(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    writers = [subprocess.Popen([sys.executable, "-c", APPENDING, str(log), line()]) for _ in range(3)]
    assert [writer.wait(300) for writer in writers] == [0, 0, 0]
    assert list(read_log(log)) == [read_line(line())] * 3000


def test_a_record_of_a_logged_trial_gives_the_line_back() -> None:
    trial = read_line(line())
    record = to_record(trial, "a machine")
    assert (record.seconds, record.target, record.threads) == (0.0002, "llvm -mcpu=core-avx2", 8)
    assert len(record.record_id) == 26
    assert record.record_id == to_record(trial, "a machine").record_id
    assert record.record_id != to_record(trial, "another").record_id
    assert json.loads(write_line(from_record(record))) == json.loads(line())


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ('["conv2d", 1, [3, 3], ["TENSOR", [1, 8], "float32"], null]', "conv2d(1, 3x3, 1x8 float32, None)"),
        ('["relu"]', "relu"),
        ('["0123456789abcdef0123456789abcdef", [1, 64], [], [1, 8]]', "01234567: 1x64, 1 to 1x8"),
        ('["0123456789abcdef0123456789abcdef", 7]', "0123456789abcdef0123456789abcdef(7)"),
        ("[-1234567890123, [4], [5]]", "-1234567: 4 to 5"),
        ("no key", "no key"),
        ("[]", "[]"),
        ('{"a": 1}', '{"a": 1}'),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_a_key_is_read_by_people(key: str, name: str) -> None:
    assert readable_name(key) == name


def test_a_readable_name_is_short() -> None:
    assert len(readable_name(json.dumps(["sum", *([[8] * 4] * 40)]))) <= 100


def test_only_what_decides_the_code_is_kept_of_a_target() -> None:
    assert code_target("cuda -keys=cuda,gpu -arch=sm_80 -math=tf32 -libs=x") == "cuda -arch=sm_80 -math=tf32"
    assert code_target("llvm -keys=arm_cpu,cpu -device=arm_cpu -mtriple=aarch64-linux-gnu -link-params=0") == (
        "llvm -mtriple=aarch64-linux-gnu"
    )
    assert code_target("weird -x") == "weird -x"


def test_a_logged_program_replays_and_computes_the_product() -> None:
    trial = read_line(line())
    task = SearchTask.of_workload(log_matmul, (128, 128, 128), Target.host(), HardwareParams(num_cores=1))
    assert task.workload_key == KEY
    state = replay(task.dag, trial.steps)
    extents = {iterator.name: iterator.extent for iterator in state.stages[2].iters}
    assert extents == {
        "i.0@j.0@": 4,
        "i.1": 2,
        "j.1": 1,
        "k.0": 16,
        "i.2": 8,
        "j.2": 4,
        "k.1": 8,
        "i.3": 4,
        "j.3": 16,
    }
    artifact = build_kernel(task, trial.steps, "logged")
    rng = np.random.default_rng(0)
    left, right, out = (aligned_array(spec.shape, spec.dtype) for spec in artifact.args)
    for array in (left, right):
        array[...] = rng.standard_normal(array.shape, dtype=np.float32)
    load_kernels([artifact])["logged"].bind([left, right, out], 1)()
    np.testing.assert_allclose(out, left @ right, rtol=1e-4, atol=1e-4)

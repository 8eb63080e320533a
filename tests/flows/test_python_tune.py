"""`retune.tune`: the flow behind a function call."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import retune
from retune import api
from retune.compiler.core.errors import MeasureError
from retune.storage.runs import RunLedger
from retune.tuning import run_tuning

WEIGHT = np.random.default_rng(0).standard_normal((64, 32)).astype("float32")


def _dense() -> onnx.ModelProto:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "dense",
        [onnx.helper.make_tensor_value_info("x", 1, [8, 64])],
        [onnx.helper.make_tensor_value_info("y", 1, [8, 32])],
        [onnx.numpy_helper.from_array(WEIGHT, "w")],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.long
def test_tuning_stores_records_and_the_same_call_again_searches_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(1).standard_normal((8, 64)).astype("float32")
    fast = retune.tune(_dense(), trials=4, store=tmp_path, options={"threads": 1}, progress=False)
    np.testing.assert_allclose(fast(x), x @ WEIGHT, rtol=1e-4, atol=1e-4)
    [run] = RunLedger(tmp_path).list()
    assert run.is_complete
    assert run.summary is not None
    assert run.summary["trials"] == 4

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it tunes again")

    monkeypatch.setattr(api, "run_tuning", never)
    again = retune.tune(_dense(), trials=4, store=tmp_path, options={"threads": 1}, progress=False)
    np.testing.assert_array_equal(again(x), fast(x))
    known = retune.compile(_dense(), store=tmp_path, threads=1)
    assert known.report().kernels[0].origin_text.startswith(("record ", "default"))
    with pytest.raises(AssertionError, match="tunes again"):
        retune.tune(_dense(), trials=5, store=tmp_path, options={"threads": 1}, progress=False)


def test_a_command_that_fails_raises_its_own_sentence(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=r"no network 'nothing\.onnx'"):
        run_tuning("nothing.onnx", ["--store", str(tmp_path)], progress=False)


@pytest.mark.long
def test_an_interrupted_call_leaves_no_process(tmp_path: Path) -> None:
    onnx.save(_dense(), tmp_path / "dense.onnx")
    code = (
        "import retune, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"retune.tune({str(tmp_path / 'dense.onnx')!r}, trials=100000, store={str(tmp_path)!r}, progress=False)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        ledger = RunLedger(tmp_path)
        while not ledger.list() and child.poll() is None:
            time.sleep(0.2)
        os.kill(child.pid, signal.SIGINT)
        _, complaint = child.communicate()
    assert "KeyboardInterrupt" in complaint
    [run] = ledger.list()
    assert not run.is_complete
    with ledger.open_or_resume(run.fingerprint, run.describe) as resumed:  # nobody owns it any more
        assert resumed.run_id == run.run_id

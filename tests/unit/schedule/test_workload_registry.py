"""The workload registry: every way to register, keys and back, errors, other processes and files."""

import json
import pickle
from pathlib import Path

import pytest

from retune.compiler import te
from retune.compiler.core.errors import (
    DuplicateWorkloadError,
    RetuneError,
    UnknownWorkloadError,
    UnregisteredWorkloadError,
)
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.schedule import workload_registry as registry
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.tensor import Tensor


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "WORKLOAD_FUNC_REGISTRY", {})


def doubled(n: int, m: int = 3) -> list[Tensor]:
    x = te.placeholder((n, m), name="x")
    return [x, te.compute((n, m), lambda i, j: x[i, j] * 2.0, "y")]


def like(x: Tensor, sizes: tuple[int, ...], mode: str | None) -> list[Tensor]:
    assert isinstance(sizes, tuple)
    assert mode is None
    return [x, te.compute(x.shape, lambda i: te.cast("float32", x[i]) + float(sum(sizes)), "y")]


def test_three_ways_to_register() -> None:
    assert registry.register_workload(doubled) is doubled
    assert registry.register_workload("other", doubled) is doubled
    assert registry.register_workload("third")(doubled) is doubled
    for name in ("doubled", "other", "third"):
        shapes = [tensor.shape for tensor in registry.workload_key_to_tensors(json.dumps([name, 5]))]
        assert shapes == [(5, 3), (5, 3)]


def test_a_taken_name_is_refused_unless_overridden() -> None:
    registry.register_workload(doubled)
    with pytest.raises(RuntimeError, match="doubled is registered already"):
        registry.register_workload("doubled", like)
    registry.register_workload("doubled", like, override=True)
    with pytest.raises(UnregisteredWorkloadError):
        registry.make_workload_key(doubled, [4])
    registry.register_workload_tensors("key", doubled(2))
    registry.register_workload_tensors("key", doubled(3))
    assert registry.workload_key_to_tensors("key")[0].shape == (3, 3)
    with pytest.raises(DuplicateWorkloadError):
        registry.register_workload_tensors("key", doubled(4), override=False)


def test_keys_and_back() -> None:
    registry.register_workload(doubled)
    key = registry.make_workload_key(doubled, (4, 7))
    assert key == '["doubled", 4, 7]'
    assert registry.make_workload_key("doubled", (4, 7)) == key
    assert str(ComputeDAG(registry.workload_key_to_tensors(key))) == str(ComputeDAG(doubled(4, 7)))


def test_tensors_and_lists_in_keys() -> None:
    registry.register_workload("like", like)
    key = registry.make_workload_key("like", (te.placeholder((6,), "int32"), [1, 2], None))
    assert json.loads(key) == ["like", ["TENSOR", [6], "int32"], [1, 2], None]
    x, _ = registry.workload_key_to_tensors(key)
    assert (x.shape, x.dtype) == ((6,), "int32")


def test_unregistered_workload_is_refused() -> None:
    with pytest.raises(ValueError, match="doubled is not registered"):
        registry.make_workload_key(doubled, [4])
    with pytest.raises(ValueError, match="nothing is not registered"):
        registry.make_workload_key("nothing", [4])
    for key in ('["nothing", 4]', "no json", "[]", "[1]", "{}"):
        with pytest.raises(KeyError, match="is not registered"):
            registry.workload_key_to_tensors(key)
        assert not registry.is_registered(key)
    with pytest.raises(UnknownWorkloadError) as error:
        registry.serialize_workload_registry_entry("absent")
    assert isinstance(error.value, RetuneError)
    assert str(error.value) == "the workload absent is not registered in this process"
    registry.register_workload(doubled)
    with pytest.raises(UnregisteredWorkloadError, match="cannot be part of a key"):
        registry.make_workload_key(doubled, [object()])


def test_an_entry_travels_to_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register_workload(doubled)
    registry.register_workload_tensors("hash", doubled(4))
    sent = [pickle.dumps(registry.serialize_workload_registry_entry(key)) for key in ('["doubled", 5]', "hash")]
    monkeypatch.setattr(registry, "WORKLOAD_FUNC_REGISTRY", {})
    for entry in sent:
        registry.deserialize_workload_registry_entry(pickle.loads(entry))
    assert registry.workload_key_to_tensors('["doubled", 5]')[0].shape == (5, 3)
    assert str(ComputeDAG(registry.workload_key_to_tensors("hash"))) == str(ComputeDAG(doubled(4)))


def test_an_entry_that_is_there_is_kept() -> None:
    registry.register_workload_tensors("hash", doubled(4))
    entry = registry.serialize_workload_registry_entry("hash")
    registry.register_workload_tensors("hash", doubled(9))
    registry.deserialize_workload_registry_entry(entry)
    assert registry.workload_key_to_tensors("hash")[0].shape == (9, 3)


def test_the_registry_is_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register_workload(doubled)
    registry.register_workload_tensors("hash", doubled(4))
    registry.save_workload_func_registry(tmp_path / "registry")
    monkeypatch.setattr(registry, "WORKLOAD_FUNC_REGISTRY", {})
    registry.load_workload_func_registry(tmp_path / "registry")
    assert registry.is_registered("hash")
    assert registry.is_registered('["doubled", 1]')


def test_a_task_of_a_workload_has_its_key() -> None:
    registry.register_workload(doubled)
    task = SearchTask.of_workload(doubled, (4,), Target.host(), HardwareParams(2))
    assert task.workload_key == '["doubled", 4]'
    assert task.dag.outputs[0].shape == (4, 3)
    assert pickle.loads(pickle.dumps(task)).workload_key == task.workload_key

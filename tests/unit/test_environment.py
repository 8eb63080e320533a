"""Settings for libraries that are loaded later never override the user's own."""

import os

import pytest

from compiler import config


def test_a_preference_gives_way_to_what_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    config.prefer("GOMP_SPINCOUNT", "2000", unless="OMP_WAIT_POLICY")
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    config.prefer("GOMP_SPINCOUNT", "2000", unless="OMP_WAIT_POLICY")
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    config.prefer("GOMP_SPINCOUNT", "2000", unless="OMP_WAIT_POLICY")
    assert os.environ["GOMP_SPINCOUNT"] == "2000"

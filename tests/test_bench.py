"""The bench of the loop follows the plan: it is run by hand, and would rot unseen."""

import importlib.util

from projects import REPOSITORY


def test_the_loop_is_timed_with_and_without_lightning(monkeypatch):
    spec = importlib.util.spec_from_file_location("loop", REPOSITORY / "bench/loop.py")
    loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    monkeypatch.setattr(loop, "STEPS", 3)
    monkeypatch.chdir(REPOSITORY)
    data = loop.table()
    assert loop.lightning_seconds(data) > 0
    assert loop.bare_seconds(data) > 0

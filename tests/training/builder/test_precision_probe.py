"""What bf16 brings is measured once for a machine, and said where a run relies on it."""

from __future__ import annotations

import json

import torch

from runner.training.builder import precision_probe
from runner.training.builder.precision_probe import bf16_speed, describe_bf16


def test_it_is_measured_once_for_a_machine_and_a_version_of_torch(tmp_path, monkeypatch):
    speeds = iter([0.6, 2.5, 3.0])
    monkeypatch.setattr(precision_probe, "_measure", lambda: next(speeds))
    assert [bf16_speed("a", tmp_path) for _ in range(3)] == [0.6] * 3
    assert bf16_speed("b", tmp_path) == 2.5
    monkeypatch.setattr(torch, "__version__", "99")
    assert bf16_speed("a", tmp_path) == 3.0
    assert len(json.loads((tmp_path / "bf16_speed.json").read_text())) == 3


def test_a_damaged_cache_is_measured_anew(tmp_path):
    (tmp_path / "bf16_speed.json").write_text("[")
    assert bf16_speed("a", tmp_path) > 0


def test_it_equals_the_ratio_of_the_two_products(tmp_path, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("time.thread_time", lambda: float(next(clock)))
    generator, num_threads = torch.get_rng_state(), torch.get_num_threads()
    assert bf16_speed("a", tmp_path) == 1.0  # each product takes one tick
    assert torch.get_num_threads() == num_threads
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_run_is_told_what_it_pays_or_gains(monkeypatch):
    monkeypatch.setattr(precision_probe, "bf16_speed", {"avx512_bf16": 0.62, "amx_bf16": 4.6}.get)
    assert describe_bf16("avx512_bf16").endswith("trainer.amp=true makes runs slower here")
    told = describe_bf16("amx_bf16")
    assert "4.6 times the speed" in told and told.endswith("makes wide layers faster")
    assert "rounds to bf16, multiplies in float32" in describe_bf16("a CPU, avx2, avx512f")

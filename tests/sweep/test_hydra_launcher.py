"""Jobs through Hydra's launcher plugins and Ray: the real ones, where they are installed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.sweep.test_sweep import board

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "dataset.rows={train: 600, validation: 200, test: 200}",
    "dataset.max_cardinality=100",
    "trainer.num_threads=1",
    "trainer.batch_size=100",
    "model.net.bottom=[8]",
    "model.net.top=[8]",
    "model.net.embedding_dim=4",
)
PATIENCE_S = 1800  # Ray takes a minute to start on a busy machine
ENV = dict(os.environ, RAY_raylet_start_wait_time_s="300", PYTHONPATH=str(ROOT))


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "runner", *words]


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(*words), cwd=ROOT, env=ENV, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("launcher", ["submitit_local", "ray"])
def test_two_jobs_through_a_plugin_give_what_two_processes_give(tmp_path, launcher):
    module = f"hydra_plugins.hydra_{launcher.split('_')[0]}_launcher"
    pytest.importorskip(module, reason=f"{module} is not installed")
    words = ["-m", "seed=1,2", "trainer.max_steps=4", *TINY]
    more = ["+hydra.launcher.ray.init.num_cpus=2"] if launcher == "ray" else []
    place = tmp_path / "there"
    done = run(*words, f"hydra/launcher={launcher}", *more, f"hydra.sweep.dir={place}")
    assert done.returncode == 0, done.stdout + done.stderr
    here = run(*words, f"hydra.sweep.dir={tmp_path / 'here'}")
    assert here.returncode == 0, here.stdout + here.stderr

    def numbers(folder):
        return [(r["seed"], r["validation/auc"], r["signature"]) for r in board(folder)]

    assert numbers(place) == numbers(tmp_path / "here")
    again = run(*words, f"hydra/launcher={launcher}", *more, f"hydra.sweep.dir={place}")
    assert "2 done already" in again.stdout


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_jobs_through_a_plugin_may_have_two_ranks(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="no submitit launcher")
    words = ["-m", "seed=1,2", "trainer.max_steps=4", "trainer.num_processes=2", *TINY]
    for name, more in (("there", ["hydra/launcher=submitit_local"]), ("here", [])):
        done = run(*words, "sharding=row_wise", *more, f"hydra.sweep.dir={tmp_path / name}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(list((tmp_path / name).glob("*/log.rank1.txt"))) == 2
    there, here = (
        [(r["seed"], r["validation/auc"]) for r in board(tmp_path / name)]
        for name in ("there", "here")
    )
    assert there == here


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parity("L18")
def test_two_nodes_of_a_ray_cluster_train_as_two_ranks_of_this_machine(tmp_path, monkeypatch):
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")
    words = ["seed=1", "trainer.max_steps=4", *TINY]
    settings = {"num_cpus": 1, "object_store_memory": 80_000_000}
    cluster = cluster_utils.Cluster(True, head_node_args={**settings, "include_dashboard": False})
    try:
        cluster.add_node(**settings)
        monkeypatch.setitem(ENV, "RAY_ADDRESS", cluster.address)
        ENV.update({k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH_")})
        place = [f"remote.dir={tmp_path / 'far'}", f"hydra.run.dir={tmp_path / 'near'}"]
        done = run("remote=ray", "remote.nodes=2", *words, *place)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        cluster.shutdown()
    here = run(*words, "trainer.num_processes=2", f"hydra.run.dir={tmp_path / 'here'}")
    assert here.returncode == 0, here.stdout + here.stderr
    near, local = (json.loads((tmp_path / p / "result.json").read_text()) for p in ("near", "here"))
    assert near["metrics"] == local["metrics"]
    assert near["signature"] == local["signature"]
    assert (tmp_path / "far" / "run" / "log.rank1.txt").exists()


def test_several_nodes_of_a_cluster_need_a_folder_that_they_share(tmp_path, monkeypatch):
    from runner import remote
    from runner.config.compose import compose
    from runner.errors import ConfigError

    monkeypatch.setattr(remote, "missing_extra", lambda *_: ())
    composed = compose(["remote=ray", "remote.nodes=2", *TINY, f"hydra.run.dir={tmp_path}/run"])
    with pytest.raises(ConfigError, match=r"remote\.dir names its folder"):
        remote.run_remotely(composed, [], ("runner", "torch"))
    sent = ["seed=1", "remote.nodes=2", "trainer.num_processes=4"]
    assert [o for o in sent if not remote._is_local_override(o, 2)] == ["seed=1"]
    assert "trainer.num_processes=4" in [o for o in sent if not remote._is_local_override(o, 1)]


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_ctrl_c_reaches_a_job_that_runs_elsewhere_and_it_saves(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="no submitit launcher")
    words = ["-m", "seed=1", "trainer.max_steps=200000", "trainer.max_epochs=null", *TINY]
    words += ["trainer.eval_every=null", f"hydra.sweep.dir={tmp_path}"]
    sweep = subprocess.Popen(command(*words, "hydra/launcher=submitit_local"), cwd=ROOT, env=ENV)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("*/perf.jsonl")):
        assert sweep.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    sweep.send_signal(signal.SIGINT)
    assert sweep.wait(timeout=120) == 130
    [result] = [json.loads(p.read_text()) for p in tmp_path.glob("*/result.json")]
    assert result["status"] == "interrupted"
    assert list(tmp_path.glob("*/checkpoints/step-*"))


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parity("L18")
def test_a_training_on_a_ray_cluster_brings_back_its_result_and_leaves_its_checkpoints_there(
    tmp_path,
):
    pytest.importorskip("ray", reason="Ray is not installed")
    words = ["seed=1", "trainer.max_steps=4", *TINY]
    far = [f"remote.dir={tmp_path / 'far'}", f"hydra.run.dir={tmp_path / 'near'}"]
    done = run("remote=ray", *words, *far)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run(*words, f"hydra.run.dir={tmp_path / 'here'}").returncode == 0
    near = json.loads((tmp_path / "near" / "result.json").read_text())
    here = json.loads((tmp_path / "here" / "result.json").read_text())
    assert near["metrics"] == here["metrics"]
    assert near["signature"] == here["signature"]
    assert not (tmp_path / "near" / "checkpoints").exists()
    assert (tmp_path / "far" / "run" / "checkpoints" / "step-4" / "manifest.json").exists()
    assert "test/auc" in done.stdout
    wrong = run("remote=ray", *words, "dataset.schema=none.yaml", "dataset=parquet")
    assert wrong.returncode == 2


def test_jobs_know_the_address_and_the_token_of_a_ray_that_the_sweep_started(monkeypatch):
    """Ray switches tokens on in the process that starts it, and refuses processes without one."""
    from runner.sweep import hydra_launcher

    def init(**given):
        assert given == {"include_dashboard": False, "log_to_driver": False, "num_cpus": 2}
        monkeypatch.setenv("RAY_AUTH_MODE", "token")

    context = SimpleNamespace(gcs_address="10.0.0.1:6379")
    made = SimpleNamespace(init=init, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    env = dict(os.environ)
    settings = hydra_launcher._join_ray(["+hydra.launcher.ray.init.num_cpus=2"], env)
    assert env["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert env["RAY_AUTH_MODE"] == "token"
    assert settings == ("+hydra.launcher.ray.init.object_store_memory=null",)


def test_a_plugin_that_is_not_installed_is_reported_at_once(tmp_path, monkeypatch):
    from runner.errors import ConfigError
    from runner.sweep import hydra_launcher

    monkeypatch.setattr("runner.machine.imports.is_installed", lambda module: False)
    with pytest.raises(
        ConfigError,
        match=r"=ray: needs hydra_plugins\.hydra_ray_launcher: pip install 'runner\[ray\]'",
    ):
        hydra_launcher.parse_launcher(["hydra/launcher=ray"])
    monkeypatch.setattr("runner.machine.imports.is_installed", lambda module: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no sbatch on this machine"):
        hydra_launcher.parse_launcher(["hydra/launcher=submitit_slurm"])
    with pytest.raises(ConfigError, match="not with this runner"):
        hydra_launcher.parse_launcher(["hydra/launcher=joblib"])
    with pytest.raises(ConfigError, match=r"belongs to hydra/launcher="):
        hydra_launcher.parse_launcher(["hydra.launcher.timeout_min=5"])
    assert hydra_launcher.parse_launcher(["seed=1"]) is None

"""Ranks of several nodes: what is judged per node, and jobs of two nodes of this machine."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from threading import Timer

import pytest
from torch.distributed import TCPStore

from runner.config.compose import compose
from runner.config.restart import config_before_restart
from runner.config.targets import allowed_packages
from runner.distributed.process_group import GLOO_VARIABLE, route_interface, set_gloo_interface
from runner.distributed.ray_nodes import NodeRole
from runner.distributed.world_size import local_world_size, may_restart
from runner.embeddings.row_exchange import row_ranges_on_groups
from runner.errors import ConfigError, UserError
from runner.launch import launch
from runner.launch.job import _open_when_unlocked
from runner.rundir.checkpoint import open_checkpoint
from runner.rundir.json_files import write_json
from runner.rundir.lock import FolderLock, LockedError
from runner.rundir.run_files import to_yaml
from tests.conftest import ROOT, TINY
from tests.distributed.node_faults import Job, train_undisturbed
from tests.distributed.nodes import make_nodes, why_no_nodes
from tests.distributed.test_one_rank import free_port
from tests.distributed.test_runs import assert_close, losses
from tests.distributed.traced import examples
from tests.whole.compare_runs import differences, newest_checkpoint

AGENT = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1",
         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # fmt: skip


def test_gloo_listens_where_the_other_nodes_find_it():
    far = "192.0.2.1"  # of documentation; nothing is sent there
    environment = {**AGENT, "MASTER_ADDR": far}
    set_gloo_interface(environment)
    assert environment.get(GLOO_VARIABLE) == route_interface(far)
    chosen = {**AGENT, "MASTER_ADDR": far, GLOO_VARIABLE: "own"}
    set_gloo_interface(chosen)
    assert chosen[GLOO_VARIABLE] == "own"
    for kept in (AGENT, {**AGENT, "MASTER_ADDR": far, "WORLD_SIZE": "2"}):
        set_gloo_interface(kept := dict(kept))
        assert GLOO_VARIABLE not in kept, "the loopback and a single node are left to gloo"
    assert route_interface("no.such.host.invalid") is None


def test_threads_are_shared_by_the_ranks_of_one_machine():
    config = {"trainer": {"num_processes": 4}}
    assert local_world_size(config, AGENT) == 2
    assert local_world_size(config, {}) == 4, "ranks that one command starts are all here"


def test_a_table_lies_on_the_ranks_of_one_node():
    sizes = {"large": 10, "small": 3, "middle": 7}
    assert row_ranges_on_groups(sizes, 4, 2) == {
        "large": [(0, 5), (5, 10), (10, 10), (10, 10)],
        "middle": [(0, 0), (0, 0), (0, 4), (4, 7)],
        "small": [(0, 0), (0, 0), (0, 2), (2, 3)],
    }
    whole = row_ranges_on_groups(sizes, 2, 1)
    assert whole["large"] == [(0, 10), (10, 10)] and whole["small"] == [(0, 0), (0, 3)]
    assert row_ranges_on_groups({"t": 3}, 4, 4) == {"t": [(0, 1), (1, 2), (2, 3), (3, 3)]}


def compose_on(ranks: int, *words: str, monkeypatch: pytest.MonkeyPatch):
    for name, value in {**AGENT, "RANK": "0", "WORLD_SIZE": str(ranks)}.items():
        monkeypatch.setenv(name, value)
    return compose(words)


@pytest.mark.parity("N17")
def test_a_command_that_is_repeated_on_fewer_ranks_keeps_the_rows_of_an_update(
    tmp_path, monkeypatch
):
    words = (f"hydra.run.dir={tmp_path}", "trainer.batch_size=30", "trainer.lr_scaling.rule=linear")
    first = compose_on(2, *words, monkeypatch=monkeypatch)
    assert first.config["trainer"]["num_processes"] == 2
    (tmp_path / "config.yaml").write_text(to_yaml(first.saved_config))
    write_json(tmp_path / "meta.json", {"overrides": list(words)})
    alone = compose_on(1, *words, monkeypatch=monkeypatch)
    assert alone.config["trainer"]["batch_size"] == 60
    assert alone.config["trainer"]["lr_scaling"]["batches"] == 2, "the rates stay as they were"
    assert any("keeps its 60 rows" in note for note in alone.notes)
    other = compose_on(1, *words, "seed=3", monkeypatch=monkeypatch)
    assert other.config["trainer"]["batch_size"] == 30, "another command means what it says"
    assert config_before_restart(tmp_path / "none", words) == {}


def test_restarts_need_a_run_directory_of_one_name(tmp_path, monkeypatch):
    assert not may_restart({}) and not may_restart({"TORCHELASTIC_MAX_RESTARTS": "0"})
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    composed = compose([*TINY, f"hydra.run.dir='{tmp_path}/{{time}}'"])
    with pytest.raises(ConfigError, match="name one folder, such as hydra"):
        launch(composed, allowed=allowed_packages(()), command=())
    assert not list(tmp_path.iterdir())


def test_a_restart_waits_for_the_lock_of_a_node_that_was_cut_off(tmp_path):
    held = FolderLock(tmp_path)
    with pytest.raises(UserError, match="another run is writing here"):
        _open_when_unlocked(str(tmp_path), None, tmp_path, 0)  # type: ignore[arg-type]
    Timer(0.3, held.release).start()
    with pytest.raises(UserError, match="no run directory") as refused:
        _open_when_unlocked(str(tmp_path), None, tmp_path, 60)  # type: ignore[arg-type]
    assert not isinstance(refused.value, LockedError)


def test_ray_starts_torchrun_on_each_node():
    role = NodeRole(1, 2, 4, "10.0.0.1", 29500)
    assert role.command()[1:] == [
        *("-m", "torch.distributed.run", "--nnodes=2", "--node-rank=1", "--nproc-per-node=4"),
        *("--master-addr=10.0.0.1", "--master-port=29500"),
    ]


def test_the_meeting_place_of_the_page_on_clusters_answers_without_a_terminal():
    page = (ROOT / "docs" / "clusters.md").read_text()
    [code] = re.findall(r'^python -c "(.*?)"$', page, flags=re.DOTALL | re.MULTILINE)
    port = int(free_port())
    command = [sys.executable, "-c", code.replace("29400", str(port))]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as meeting_place:
        try:
            patience = timedelta(seconds=30)
            node = TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
            node.set("key", "value")
            assert node.get("key") == b"value"
        finally:
            meeting_place.kill()


@pytest.fixture
def two_nodes():
    if reason := why_no_nodes():
        pytest.skip(reason)
    with make_nodes(2) as nodes:
        yield nodes


@pytest.mark.slow
@pytest.mark.parity("T16")
def test_two_nodes_train_save_stop_and_resume_as_two_ranks_of_one_machine(
    two_nodes, tmp_path, monkeypatch
):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))  # as on a shared folder
    words, run = ("trainer.max_steps=30",), tmp_path / "run"
    job = Job(two_nodes, run, *words, elastic=False)
    job.updates_of_rank(1, 5)
    job.agents[0].send_signal(signal.SIGTERM)  # as a scheduler stops a node
    assert all(agent.wait(timeout=100) != 0 for agent in job.agents)
    stopped_at = losses(run)[-1][1]
    assert 5 <= stopped_at < 30 and "interrupted at step" in job.said()
    job = Job(two_nodes, run, *words, elastic=False)
    job.end()
    assert f"resuming from step {stopped_at}" in job.said()
    logs = "".join(path.read_text() for path in (tmp_path).glob("run*/*.txt"))
    assert (job.said() + logs).count("preparing synthetic: done") <= 1
    assert len(list((tmp_path / "cache").glob("synthetic-*/prepared.json"))) == 1
    alone = tmp_path / "alone"
    train_undisturbed(alone, *words, "trainer.num_processes=2", *job.plan)
    assert differences(run, alone) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parity("T16")
@pytest.mark.parametrize("kind", ["rowwise_adagrad", "adam"])
def test_tables_lie_on_the_ranks_of_one_node_each_and_learn_what_four_ranks_of_one_machine_do(
    two_nodes, tmp_path, monkeypatch, kind
):
    """The four ranks split each table in four, the nodes in two, which adds up in another order."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    words = (
        *("sharding=table_row_wise", f"optimizer.sparse.kind={kind}", "trainer.max_steps=20"),
        *("trainer.batch_size=15", "trainer.rank_timeout_s=120"),
    )
    job = Job(two_nodes, tmp_path / "run", *words, elastic=False, ranks=2)
    job.end()
    alone = tmp_path / "alone"
    train_undisturbed(alone, *job.plan, *words, "trainer.num_processes=4")
    assert_close(tmp_path / "run", alone)
    assert examples(job.trace, 4) == examples(Path(f"{alone}.trace"), 4)
    on_nodes, on_one = (ranks_of_tables(run) for run in (tmp_path / "run", alone))
    assert {0, 1} in on_nodes and {2, 3} in on_nodes, "both nodes have tables in two blocks"
    assert all(ranks <= {0, 1} or ranks <= {2, 3} for ranks in on_nodes), "a table on two nodes"
    assert {0, 1, 2, 3} in on_one


def ranks_of_tables(run: Path) -> list[set[int]]:
    """Return the ranks that have rows of each table, as the newest checkpoint says."""
    found = defaultdict(set)
    for shard in open_checkpoint(newest_checkpoint(run)).values["placement"]:
        if shard["num_rows"]:  # a table of few rows is on fewer ranks
            found[shard["table"]].add(shard["rank"])
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parity("N17")
def test_a_job_outlives_a_node_and_takes_it_back(runner):
    from tests.fault_table import check_row, run_fault_script

    check_row(run_fault_script(runner, "tests.distributed.node_faults", "--short")["lost_nodes"], 1)

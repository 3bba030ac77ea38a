"""The planted environment and its regret, computed by hand, and a policy that learns from it."""

from __future__ import annotations

import pytest
import torch

from experiments.bandit import Bandit, Environment, regret
from runner.rundir.checkpoint import open_checkpoint, read_tensors
from tests.whole.compare_runs import newest_checkpoint, read_rows

SMALL = (
    "experiments=bandit",
    "dataset=synthetic",
    "dataset.max_cardinality=8",
    "dataset.rows={train: 16000, validation: 200, test: 200}",
    "model.net.fields=[C9,C12]",
    "model.net.hidden=[8]",
    *("trainer.num_threads=1", "trainer.batch_size=64", "trainer.log_every=50", "report=false"),
)


def test_an_arm_pays_by_the_effects_of_the_fields_and_of_their_pair():
    environment = Environment([3, 4], arms=2, seed=7, strength=1.5)
    ids_BF = torch.tensor([[0, 3], [2, 1], [1, 0]])
    found_BA = environment(ids_BF)
    first, second, pair = (environment.get_buffer(f"effects_{i}") for i in range(3))
    for (a, b), pays_A in zip(ids_BF.tolist(), found_BA):
        expected_A = torch.sigmoid(first[a] + second[b] + pair[4 * a + b])
        torch.testing.assert_close(pays_A, expected_A)
    assert pair.shape == (12, 2)


def test_regret_is_what_the_best_arm_pays_more():
    pays_BA = torch.tensor([[0.2, 0.9], [0.5, 0.1]])
    chosen_B1 = torch.tensor([[0], [0]])
    torch.testing.assert_close(regret(pays_BA, chosen_B1), torch.tensor([0.7, 0.0]))


def test_it_explores_less_the_more_it_has_decided():
    bandit = Bandit(policy="greedy", explore=100.0, seed=0, strength=1.0)
    bandit.environment = Environment([2], arms=4, seed=0, strength=1.0)
    arms_BA = torch.tensor([[0.0, 0.0, 1.0, 0.0]]).expand(40_000, -1)
    torch.manual_seed(0)
    for decisions, share in ((0, 1.0), (100, 0.5), (300, 0.25)):
        bandit.environment.account[0] = decisions
        others = (bandit.act(arms_BA, arms_BA) != 2).float().mean().item()
        assert others == pytest.approx(0.75 * share, abs=0.015)  # a random arm may be the best


def train_rows(runner, tmp_path, policy: str) -> list[dict]:
    run = tmp_path / policy
    runner.run(*SMALL, f"task.policy={policy}", f"hydra.run.dir={run}").check()
    return read_rows(run, "train")


@pytest.mark.slow
@pytest.mark.parity("C2")
def test_the_best_policy_regrets_nothing_and_the_learning_one_ever_less(runner, tmp_path):
    best, even, own = (train_rows(runner, tmp_path, p) for p in ("best", "uniform", "greedy"))
    assert {row["regret_so_far"] for row in best} == {0.0}
    for rows, policy in ((even, "uniform"), (own, "greedy")):
        # the account is the sum of what each row of the log says
        steps = [0, *(row["step"] for row in rows)]
        total = sum(64 * (b - a) * row["regret"] for a, b, row in zip(steps, steps[1:], rows))
        saved = open_checkpoint(newest_checkpoint(tmp_path / policy))
        name = "dense/task.environment.account"
        account = read_tensors(saved, [name])[name].tolist()
        assert account == pytest.approx([16_000, total], rel=1e-4)
    assert own[-1]["regret"] < 0.5 * even[-1]["regret"]
    assert own[-1]["regret"] < 0.5 * own[0]["regret"]

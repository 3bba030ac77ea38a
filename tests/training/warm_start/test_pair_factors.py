"""Factors of pairs of features that a linear start finds, against torch and planted tastes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from scipy.sparse.linalg import ArpackNoConvergence

from runner.models.losses.protocol import tweedie_losses
from runner.training.health.logistic_regression import Columns
from runner.training.health.sample import Ids, Sample
from runner.training.warm_start import pair_factors
from runner.training.warm_start.factor_rows import LearntRows, RowIds, Target
from runner.training.warm_start.pair_factors import find_factors, fit_factors_again

USERS, ITEMS, FACTORS = 300, 120, 2


def one_id(ids_N):
    return Ids(np.arange(len(ids_N)), ids_N, np.ones(len(ids_N)))


def make_sample(ids, y_N, weights_N=None):
    num = len(y_N)
    weights_N = np.ones(num) if weights_N is None else weights_N
    return Sample(ids, np.zeros((num, 0)), y_N[:, None].astype(np.float64), weights_N, num)


def plant(num_rows, strength=2.0, seed=0):
    """Return a sample of users, items and hours, and the logits of its clicks."""
    rng = np.random.default_rng(seed)
    of_users, of_items = rng.normal(size=(USERS, FACTORS)), rng.normal(size=(ITEMS, FACTORS))
    user_N, item_N = rng.integers(0, USERS, num_rows), rng.integers(0, ITEMS, num_rows)
    z_N = strength * (of_users[user_N] * of_items[item_N]).sum(1) / FACTORS**0.5
    y_N = (rng.random(num_rows) < 1 / (1 + np.exp(-z_N))).astype(np.float64)
    ids = {"user": user_N, "item": item_N, "hour": rng.integers(0, 24, num_rows)}
    return make_sample({name: one_id(found) for name, found in ids.items()}, y_N), z_N


def split(sample, at):
    is_first_N = np.arange(sample.num_rows) < at
    return sample._select(is_first_N), sample._select(~is_first_N)


def base(sample, logits_N=0.0):
    return [Target(sample.labels_NT[:, 0], np.zeros(sample.num_rows) + logits_N, 1.0)]


def products(columns, sample, factors):
    parts = [
        columns.feature_matrix(name, sample) @ vectors
        for name, vectors in zip(factors.pair, (factors.first_CK, factors.second_MK))
    ]
    return (parts[0] * parts[1]).sum(1)


def find(sample, at, **more):
    train, judged = split(sample, at)
    columns = Columns(train)
    return columns, find_factors(
        columns, (train, base(train)), (judged, base(judged)), more.pop("width", 16), **more
    )


def test_planted_tastes_are_found_and_hours_are_not():
    sample, z_N = plant(12_000)
    columns, found = find(sample, 10_000)
    assert [factors.pair for factors in found] == [("user", "item")]
    unseen, truth_N = split(sample, 10_000)[1], z_N[10_000:]
    assert np.corrcoef(products(columns, unseen, found[0]), truth_N)[0, 1] > 0.8


def test_tastes_are_found_in_clicks_beside_a_number_whose_far_values_hide_them():
    sample, z_N = plant(12_000, strength=1.5)
    x_N = z_N / 3 + np.random.default_rng(9).standard_t(3, 12_000)
    sample = replace(sample, labels_NT=np.stack([sample.labels_NT[:, 0], x_N], axis=1))

    def targets(rows):
        number = Target(
            rows.labels_NT[:, 1], np.zeros(rows.num_rows), float(np.std(x_N)), float(np.var(x_N))
        )
        return [*base(rows), number]

    train, judged = split(sample, 10_000)
    columns, whole = Columns(train), Columns(sample)
    [found] = find_factors(columns, (train, targets(train)), (judged, targets(judged)), 16)
    [again] = fit_factors_again(whole, (sample, targets(sample)), columns, [found])
    for of, factors in ((columns, found), (whole, again)):
        assert (factors.pair, factors.of_binary) == (("user", "item"), True)
        assert np.corrcoef(products(of, judged, factors), z_N[10_000:])[0, 1] > 0.8


def test_nothing_is_found_where_clicks_are_chance_or_follow_single_ids():
    sample, _ = plant(12_000, strength=0.0)
    assert find(sample, 10_000)[1] == []
    effects = np.random.default_rng(3).normal(size=USERS)[sample.ids["user"].ids_V]
    y_N = (np.random.default_rng(4).random(12_000) < 1 / (1 + np.exp(-effects))).astype(float)
    train, judged = split(replace(sample, labels_NT=y_N[:, None]), 10_000)
    targets = [base(s, e) for s, e in zip((train, judged), (effects[:10_000], effects[10_000:]))]
    assert find_factors(Columns(train), (train, targets[0]), (judged, targets[1]), 16) == []


def test_an_id_that_another_one_decides_has_no_factors_with_it():
    """What a weight of each user says, the products of a user and a zip code can say, too."""
    sample, _ = plant(12_000)
    user_N, rng = sample.ids["user"].ids_V, np.random.default_rng(5)
    y_N = (rng.random(12_000) < 1 / (1 + np.exp(-rng.normal(size=USERS)[user_N]))).astype(float)
    ids = {"user": one_id(user_N), "zip": one_id(rng.integers(0, 80, USERS)[user_N])}
    assert find(replace(sample, ids=ids, labels_NT=y_N[:, None]), 10_000)[1] == []


@pytest.mark.parametrize(
    ("movers", "is_decided"), [(0.0, True), (0.005, True), (0.05, False), (1.0, False)]
)
def test_one_feature_decides_another_if_nearly_all_repeated_ids_agree(movers, is_decided):
    rng = np.random.default_rng(6)
    user_N, moves_N = rng.integers(0, USERS, 12_000), rng.random(12_000) < movers
    zip_N = np.where(moves_N, rng.integers(0, 80, 12_000), user_N % 80)
    sample = make_sample({"user": one_id(user_N), "zip": one_id(zip_N)}, np.zeros(12_000))
    columns = Columns(sample)
    users, zips = (RowIds(columns.feature_matrix(name, sample)) for name in ("user", "zip"))
    assert (users.decides(zips), zips.decides(users)) == (is_decided, False)


def test_ids_of_one_row_each_decide_nothing():
    sample = make_sample({"a": one_id(np.arange(50)), "b": one_id(np.arange(50) % 7)}, np.zeros(50))
    columns = Columns(sample)
    a, b = (RowIds(columns.feature_matrix(name, sample)) for name in ("a", "b"))
    assert not a.decides(b)


def test_threads_change_no_bit():
    sample, _ = plant(8_000)
    for one, other in zip(find(sample, 7_000, threads=1)[1], find(sample, 7_000, threads=3)[1]):
        assert one.pair == other.pair
        assert np.array_equal(one.first_CK, other.first_CK)
        assert np.array_equal(one.second_MK, other.second_MK)


def some_ids(ids_N, kept_N):
    rows = np.flatnonzero(kept_N)
    return Ids(rows, ids_N[rows], np.ones(len(rows)))


def test_features_that_no_row_has_together_have_no_factors():
    """As the lists of two kinds of customers: the run ended with an error of ARPACK."""
    sample, _ = plant(4_000)
    is_first_N = np.arange(4_000) % 2 == 0
    kept = {"user": is_first_N, "item": ~is_first_N}
    ids = {name: some_ids(sample.ids[name].ids_V, kept_N) for name, kept_N in kept.items()}
    assert find(replace(sample, ids=ids), 3_500)[1] == []


def test_a_pair_whose_directions_are_not_found_is_left_out(monkeypatch, caplog):
    def give_up(*_, **__):
        raise ArpackNoConvergence("No convergence", np.zeros(0), np.zeros((0, 0)))

    monkeypatch.setattr(pair_factors, "eigsh", give_up)
    assert find(plant(4_000)[0], 3_500)[1] == []
    assert (
        "factors of the pair user and item are left out of the start: ARPACK error" in caplog.text
    )


def test_few_rows_with_both_features_change_no_bit():
    """Beside a few directions all others have the norm zero, of which ARPACK drew at random."""
    rng = np.random.default_rng(0)
    of_users, of_items = rng.integers(0, 12, 2_000), rng.integers(0, 9, 2_000)
    is_first_N = np.arange(2_000) % 2 == 0
    has_both_N = np.arange(2_000) < 3
    ids = {
        "user": some_ids(of_users, is_first_N | has_both_N),
        "item": some_ids(of_items, ~is_first_N | has_both_N),
    }
    sample = make_sample(ids, rng.integers(0, 2, 2_000))
    columns = Columns(sample)
    ids = {name: RowIds(columns.feature_matrix(name, sample)) for name in ids}
    rows = LearntRows(ids, base(sample), sample.weights_N)
    slopes_N = rows.losses(np.zeros(1))[1]
    fits = [pair_factors._PairFit(rows, ("user", "item")) for _ in range(5)]
    assert len({fit.chance for fit in fits}) == 1
    assert len({np.concatenate(fit._steepest(slopes_N, 4)[0]).tobytes() for fit in fits}) == 1


def test_no_more_factors_are_found_than_vectors_have_numbers():
    sample, _ = plant(8_000)
    assert [factors.rank for factors in find(sample, 7_000, width=3)[1]] == [2]
    assert find(sample, 7_000, width=1)[1] == []


@pytest.mark.parametrize("kind", ["click", "number", "both", "amount"])
def test_the_penalised_loss_is_as_small_as_torch_makes_it(kind):
    """With the gradient of autograd, from the same start and of the same penalty."""
    sample, z_N = plant(4_000)
    rng = np.random.default_rng(5)
    sample = replace(sample, weights_N=rng.uniform(0.5, 2.0, 4_000))
    number = Target(3 * z_N + rng.normal(size=4_000), np.zeros(4_000), 3.0, noise=12.0)
    spent_N = np.exp(z_N / 2) * rng.gamma(3, 1 / 3, 4_000) * (rng.random(4_000) < 0.8)
    amount = Target(spent_N, np.zeros(4_000), 0.5, log_link=True)
    amount = replace(amount, noise=amount.estimate_noise(sample.weights_N))
    targets = {"click": base(sample), "number": [number], "both": [*base(sample), number]}
    targets = {**targets, "amount": [amount]}[kind]
    columns = Columns(sample)
    ids = {n: RowIds(columns.feature_matrix(n, sample)) for n in ("user", "item")}
    rows = LearntRows(ids, targets, sample.weights_N)
    fit = pair_factors._PairFit(rows, ("user", "item"))
    _, found = fit.choose(
        4, pair_factors.STRENGTHS, rows
    )  # of the rows themselves: the weakest penalty is the best
    l2 = pair_factors.STRENGTHS[-1] * fit.chance
    counts = [np.bincount(sample.ids[n].ids_V, sample.weights_N) for n in ("user", "item")]

    def loss(first, second):
        first, second = torch.as_tensor(first), torch.as_tensor(second)
        product_N = (first[sample.ids["user"].ids_V] * second[sample.ids["item"].ids_V]).sum(1)
        total = 0.0
        for target in targets:
            z, y = torch.as_tensor(target.logits_N) + target.scale * product_N, target.y_N
            if target.noise is None:
                of_rows = torch.nn.functional.binary_cross_entropy_with_logits(
                    z, torch.as_tensor(y), reduction="none"
                )
            elif target.log_link:
                of_rows = tweedie_losses(z.exp(), torch.as_tensor(y)) / (2 * target.noise)
            else:
                of_rows = (z - torch.as_tensor(y)) ** 2 / (2 * target.noise)
            total = total + (of_rows * torch.as_tensor(sample.weights_N)).sum()
        for vectors, count in zip((first, second), counts):
            total = total + l2 / 2 * (vectors**2 * torch.as_tensor(count**0.5)[:, None]).sum()
        return total

    parts = [torch.tensor(v, requires_grad=True) for v in (found.first_CK, found.second_MK)]
    ours = float(loss(*parts).detach())
    optimizer = torch.optim.LBFGS(parts, max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(*parts)
        value.backward()
        return value

    optimizer.step(closure)
    nothing = float(loss(torch.zeros(USERS, 4), torch.zeros(ITEMS, 4)))
    theirs = float(loss(*parts).detach())
    assert theirs < ours < theirs + 0.002 * (nothing - theirs)


def test_the_gradient_is_that_of_finite_differences():
    sample, _ = plant(600)
    columns = Columns(sample)
    ids = {n: RowIds(columns.feature_matrix(n, sample)) for n in ("user", "item")}
    fit = pair_factors._PairFit(LearntRows(ids, base(sample), sample.weights_N), ("user", "item"))
    sizes = [len(columns.ids[n]) for n in ("user", "item")]
    objective = fit._objective(1.5, sizes[0] * 2, (-1, 2))
    point = np.random.default_rng(1).normal(size=sum(sizes) * 2)
    theirs = approx_fprime(point, lambda p: objective(p)[0], 1e-6)
    assert np.allclose(objective(point)[1], theirs, atol=1e-3)


def test_bags_are_pooled_as_the_model_pools_them():
    """A bag of one id is that id; one of several is the sum of shares."""
    sample, _ = plant(3_000)
    columns = Columns(sample)
    single = columns.feature_matrix("user", sample)
    bag = single.copy()
    bag.data = bag.data * 1.0000001  # no longer ones: it goes the way of bags
    one, other = RowIds(single), RowIds(bag)
    assert one.is_single and not other.is_single
    vectors, x_NK = (
        np.random.default_rng(2).normal(size=(single.shape[1], 3)),
        single @ np.ones((single.shape[1], 3)),
    )
    assert np.allclose(one.pool(vectors), other.pool(vectors), atol=1e-5)
    assert np.allclose(one.add_up(x_NK), other.add_up(x_NK), atol=1e-3)


def test_ids_that_occur_once_or_share_a_table_and_pairs_with_many_rows_are_left_out():
    sample, _ = plant(9_000)
    ids = dict(sample.ids)
    ids["row"] = one_id(np.arange(9_000))
    ids["friend"] = ids["user"]
    sample = replace(sample, ids=ids)
    tables = {name: "user" if name == "friend" else name for name in ids}
    names = pair_factors._choose_features(Columns(sample, tables), sample)
    assert names == ["item", "hour"]  # which are 2,880 cells, of three rows on average
    train, judged = split(sample, 8_000)
    columns = Columns(train, tables)
    assert find_factors(columns, (train, base(train)), (judged, base(judged)), 8) == []


def test_an_interruption_ends_what_other_threads_fit(monkeypatch):
    sample, _ = plant(8_000)
    fitted = []

    def choose(self, rank, strengths, other):
        if rank == min(pair_factors.RANKS):
            raise KeyboardInterrupt
        while True:  # as a fit does, step by step
            fitted.append(self.rows.losses(np.zeros(1)))

    monkeypatch.setattr(pair_factors._PairFit, "choose", choose)
    with pytest.raises(KeyboardInterrupt):
        find(sample, 7_000, threads=3)
    assert fitted


def test_factors_of_a_part_are_fitted_once_more_to_all_rows():
    """Of the same penalty, they are those that a fit of all rows from the start finds."""
    sample, z_N = plant(9_000)
    kept_N = (np.arange(9_000) < 6_000) & (sample.ids["user"].ids_V > 0)  # lacks a user
    train, judged = sample._select(kept_N), sample._select(~kept_N)
    of_train, columns = Columns(train), Columns(sample)
    [found] = find_factors(of_train, (train, base(train)), (judged, base(judged)), 16)
    [again] = fit_factors_again(columns, (sample, base(sample)), of_train, [found])
    assert (again.pair, again.rank, again.l2) == (found.pair, found.rank, found.l2)
    assert len(again.first_CK) == USERS > len(found.first_CK)
    assert again.first_CK[0].any()
    rows = LearntRows(
        {n: RowIds(columns.feature_matrix(n, sample)) for n in again.pair},
        base(sample),
        sample.weights_N,
    )
    fit = pair_factors._PairFit(rows, again.pair)

    def loss(factors):
        parts = [v * r[:, None] for v, r in zip((factors.first_CK, factors.second_MK), fit.roots)]
        penalty = factors.l2 / 2 * sum((part**2).sum() for part in parts)
        return rows.losses(rows.products(factors))[0].sum() + penalty

    directions, _ = fit._steepest(rows.losses(np.zeros(1))[1], again.rank)
    from_the_start = fit.fit([pair_factors.START_SIZE * part for part in directions], again.l2)[1]
    nothing = rows.losses(np.zeros(1))[0].sum()
    assert loss(again) == pytest.approx(loss(from_the_start), abs=0.01 * (nothing - loss(again)))
    unseen, truth_N = judged, z_N[~kept_N]
    fits = [products(c, unseen, f) for c, f in ((of_train, found), (columns, again))]
    assert np.corrcoef(fits[1], truth_N)[0, 1] > np.corrcoef(fits[0], truth_N)[0, 1]
    [same] = fit_factors_again(columns, (sample, base(sample)), of_train, [found])
    assert np.array_equal(same.first_CK, again.first_CK)

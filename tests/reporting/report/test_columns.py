"""What varies, mean and spread over seeds, and how much each parameter matters."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest

from runner.errors import UserError
from runner.reporting.report.columns import (
    mixed_provenance,
    monitored_metric,
    sort_runs,
    varying_settings,
)
from runner.reporting.report.find import find_runs
from runner.reporting.report.importance import (
    explained_variance,
    rank_parameters,
    runs_of_same_data,
    seed_variance_share,
)
from runner.reporting.report.leaderboard import group_by_settings
from runner.reporting.report.overview import make_overview
from runner.reporting.report.overview_page import FileLinks, make_overview_page
from runner.reporting.report.plotly_parameters import (
    COLOUR_SCALE,
    effect_figure,
    parallel_coordinates,
)
from runner.reporting.report.write import make_report
from tests.reporting.report.run_directories import make_grid, make_run


def set_result(run, **values):
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, **values}))


@pytest.fixture
def grid(tmp_path):
    return find_runs([make_grid(tmp_path / "grid")]).runs


def test_only_settings_that_vary_are_columns_and_not_those_that_follow_from_an_option(grid):
    assert varying_settings(grid) == ["optimizer", "optimizer.dense.lr"]


def test_a_key_that_varies_within_one_option_is_a_column_beside_the_option(tmp_path):
    for number, (model, width) in enumerate([("dlrm", 8), ("dlrm", 16), ("dcn", 32)]):
        make_run(
            tmp_path / f"r{number}", identity={"model.net.width": width}, choices={"model": model}
        )
    assert varying_settings(find_runs([tmp_path]).runs) == ["model", "model.net.width"]


def test_a_group_within_another_is_a_column_only_where_it_varies_by_itself(tmp_path):
    for number, (model, loss) in enumerate([("dlrm", "bce"), ("dcn", "bce"), ("mlp", "by_kind")]):
        make_run(tmp_path / f"r{number}", choices={"model": model, "model/loss": loss})
    assert varying_settings(find_runs([tmp_path]).runs) == ["model"]
    make_run(tmp_path / "own", choices={"model": "dcn", "model/loss": "focal"})
    assert varying_settings(find_runs([tmp_path]).runs) == ["model", "model/loss"]


def test_a_run_that_was_repeated_as_it_was_says_nothing_of_the_spread(tmp_path):
    for folder in ("a", "b"):  # a run and its copy have one signature
        for seed in (1, 2):
            make_run(tmp_path / folder / f"seed-{seed}", seed=seed, auc=0.7 + seed / 100)
    runs = find_runs([tmp_path]).runs
    [group] = group_by_settings(runs, ["optimizer"], "validation/auc", "max")
    assert len(runs) == 4 and sorted(run.seed for run in group.runs) == [1, 2]
    assert len(runs_of_same_data(runs)) == 2


def test_of_a_run_that_was_repeated_the_newest_counts_not_the_best(tmp_path):
    for folder, auc, created in (("a", 0.9, "2026-01-01"), ("b", 0.6, "2026-01-02")):
        for seed in (1, 2):
            own = {"mine/loss.py": folder, "mine/__init__.py": "same"}
            run = tmp_path / folder / f"seed-{seed}"
            make_run(run, seed=seed, auc=auc, created=created, own_code=own)
    runs = sort_runs(find_runs([tmp_path]).runs, None, ("validation/auc", "max"))
    [group] = group_by_settings(runs, ["optimizer"], "validation/auc", "max")
    assert group.mean("validation/auc") == pytest.approx(0.6)
    assert {run.metrics["validation/auc"] for run in runs_of_same_data(runs)} == {0.6}
    [note] = mixed_provenance(runs)
    assert note == "made by different states of your own code: mine/loss.py"


def test_a_key_with_parts_and_what_only_comes_with_its_neighbour_are_no_columns(tmp_path):
    stop = {"trainer.early_stop.patience": 3, "trainer.early_stop.min_delta": 0.0}
    for number, monitor in enumerate(("loss", "auc")):
        identity = {"checkpoint.monitor.metric": monitor, "trainer.max_steps": 9}
        more = {**stop, "checkpoint.monitor": {"metric": monitor}} if number else {}
        make_run(tmp_path / f"r{number}", identity={**identity, **more})
    found = varying_settings(find_runs([tmp_path]).runs)
    assert found == ["checkpoint.monitor.metric", "trainer.early_stop.patience"]


def test_parameters_that_always_change_together_share_one_importance(tmp_path):
    for number in range(6):
        both = {"optimizer.dense.lr": 0.1 * (number % 2), "optimizer.sparse.lr": number % 2}
        auc = 0.6 + 0.1 * (number % 2) + 0.001 * number
        make_run(tmp_path / f"r{number}", identity=both, auc=auc)
    runs = find_runs([tmp_path]).runs
    [one] = rank_parameters(runs, ["optimizer.dense.lr", "optimizer.sparse.lr"], "validation/auc")
    assert (one.key, one.others) == ("optimizer.dense.lr", ("optimizer.sparse.lr",))


def test_a_setting_that_makes_no_result_has_no_importance(tmp_path):
    for number in range(6):
        overrides = [f"checkpoint.save_every={number % 2}"]
        make_run(tmp_path / f"r{number}", overrides=overrides, auc=0.6 + 0.1 * (number % 2))
    runs = find_runs([tmp_path]).runs
    assert varying_settings(runs) == ["checkpoint.save_every"]
    assert rank_parameters(runs, varying_settings(runs), "validation/auc") == []


def test_different_data_are_a_column_unless_a_setting_of_the_dataset_is(tmp_path):
    make_run(tmp_path / "a" / "x", identity={"data": "1"})
    make_run(tmp_path / "a" / "y", identity={"data": "2"})
    assert varying_settings(find_runs([tmp_path / "a"]).runs) == ["data"]
    make_run(tmp_path / "b" / "x", identity={"data": "1"}, overrides=["dataset.drift=0.5"])
    make_run(tmp_path / "b" / "y", identity={"data": "2"})
    assert varying_settings(find_runs([tmp_path / "b"]).runs) == ["dataset.drift"]


def test_mean_and_deviation_over_seeds_are_those_of_the_sample(grid):
    best = group_by_settings(grid, varying_settings(grid), "validation/auc", "max")[0]
    assert best.values == ("adam", "0.1")
    values = [r.metrics["validation/auc"] for r in grid if "adam-0.1" in r.label]
    assert best.mean("validation/auc") == pytest.approx(statistics.fmean(values))
    assert best.std("validation/auc") == pytest.approx(np.std(values, ddof=1))


def test_the_best_come_first_and_failed_ones_last(tmp_path):
    make_run(tmp_path / "worst", auc=0.5)
    make_run(tmp_path / "broken", auc=None, status="failed", error="RuntimeError: x")
    make_run(tmp_path / "best", auc=0.9)
    make_run(tmp_path / "undefined", auc="NaN")
    runs = find_runs([tmp_path]).runs
    order = [r.label for r in sort_runs(runs, None, monitored_metric(runs))]
    assert order == ["best", "worst", "undefined", "broken"]


def test_runs_can_be_sorted_by_a_setting_and_an_unknown_key_names_the_nearest(grid):
    rates = [
        r.settings["optimizer.dense.lr"]
        for r in sort_runs(grid, "optimizer.dense.lr", monitored_metric(grid))
    ]
    assert rates == sorted(rates)
    with pytest.raises(UserError, match=r"optimizer\.dense\.lt.*nearest: 'optimizer\.dense\.lr'"):
        sort_runs(grid, "optimizer.dense.lt", monitored_metric(grid))


def test_a_key_that_one_run_lacks_is_refused_as_one_that_all_lack(tmp_path):
    make_run(tmp_path / "run")
    make_report([tmp_path / "run"], sort="validation/auc")
    with pytest.raises(UserError, match="--sort validation/acu: no run has it; nearest"):
        make_report([tmp_path / "run"], sort="validation/acu")


def test_a_metric_of_ones_own_is_sorted_as_its_class_says(tmp_path):
    for name, brier in (("a", 0.2), ("b", 0.1)):
        run = make_run(tmp_path / name)
        set_result(run, metrics={"test/brier": brier}, own_metrics={"brier": "min"})
    runs = find_runs([tmp_path]).runs
    assert [r.label for r in sort_runs(runs, "test/brier", ("validation/auc", "max"))] == ["b", "a"]
    assert monitored_metric(runs) == ("test/brier", "min")


def test_a_report_of_a_search_shows_its_pareto_front_and_all_objectives(tmp_path):
    sweep = tmp_path / "sweep"
    for name, auc in (("a", 0.9), ("b", 0.8), ("c", 0.7)):
        make_run(sweep / name, auc=auc)
    (sweep / "leaderboard.csv").write_text(
        "seed,status,validation/auc,active_s,front,best_step,test/auc,folder\n"
        "0,completed,0.9,9.0,1,40,0.89,a\n0,completed,0.7,1.0,1,40,0.69,c\n"
        "0,completed,0.8,9.5,0,40,0.79,b\n"
    )
    selection = find_runs([sweep])
    board = make_overview(selection, "x").board
    assert board.metrics == ("validation/auc", "active_s", "test/auc")
    shown = [(r.label, r.is_pareto_optimal, r.metrics["active_s"]) for r in board.runs]
    assert shown == [("a", True, 9.0), ("c", True, 1.0), ("b", False, 9.5)]
    make_report([sweep])
    page = (sweep / "report.html").read_text()
    assert ">front<" in page and page.count(">*</td>") == 2
    assert "* on the front: no completed run is better in validation/auc or active_s" in page
    by_test = make_overview(selection, "x", sort="test/auc").board.runs
    assert [r.label for r in by_test] == ["a", "b", "c"]


def test_a_report_of_a_search_for_short_runs_first_shows_their_seconds(tmp_path):
    """`active_s` is no metric of a run; the page then named another objective twice."""
    sweep = tmp_path / "sweep"
    for name, auc in (("a", 0.9), ("b", 0.8), ("c", 0.7)):
        make_run(sweep / name, auc=auc)
    (sweep / "leaderboard.csv").write_text(
        "seed,status,active_s,validation/auc,front,best_step,test/auc,folder\n"
        "0,completed,1.0,0.7,1,40,0.69,c\n0,completed,9.0,0.9,1,40,0.89,a\n"
        "0,completed,9.5,0.8,0,40,0.79,b\n"
    )
    board = make_overview(find_runs([sweep]), "x").board
    assert board.monitor == ("active_s", "min")
    assert board.metrics == ("active_s", "validation/auc", "test/auc")
    assert [r.label for r in board.runs] == ["c", "a", "b"]
    for sort in (None, "test/auc"):  # what is sorted by need not be an objective
        make_report([sweep], sort=sort)
        page = (sweep / "report.html").read_text()
        assert "no completed run is better in active_s or validation/auc without" in page
    for name in "abc":  # without a validation split
        set_result(sweep / name, metrics={"test/auc": 0.5})
        (sweep / name / "metrics.jsonl").write_text("")
    table = (sweep / "leaderboard.csv").read_text().replace("validation/auc", "test/logloss")
    (sweep / "leaderboard.csv").write_text(table)
    assert make_overview(find_runs([sweep]), "x").board.monitor == ("active_s", "min")


def test_a_metric_that_is_to_be_small_is_sorted_that_way(tmp_path):
    for name, auc in (("a", 0.6), ("b", 0.7)):
        run = make_run(tmp_path / name, auc=auc)
        text = (run / "result.json").read_text().replace('"train/loss": 0.5', f'"test/loss": {auc}')
        (run / "result.json").write_text(text)
    runs = find_runs([tmp_path]).runs
    assert [r.label for r in sort_runs(runs, "test/loss", monitored_metric(runs))] == ["a", "b"]
    # a narrow terminal leaves out the last columns, and not that by which it sorts
    board = make_overview(find_runs([tmp_path]), "x", sort="test/loss").board
    assert board.metrics[:2] == ("test/loss", "validation/auc")


def test_the_share_is_that_of_a_textbook_analysis_of_variance():
    # the F statistic by scipy, turned into epsilon squared by its definition
    from scipy.stats import f_oneway

    dice = np.random.default_rng(0)
    groups = [dice.normal(mean, 1.0, size) for mean, size in ((0, 7), (1, 5), (3, 6))]
    n, k = 18, 3
    f = f_oneway(*groups).statistic
    expected = (f - 1) * (k - 1) / (f * (k - 1) + (n - k))
    parts = [i for i, g in enumerate(groups) for _ in g]
    assert explained_variance(parts, np.concatenate(groups).tolist()) == pytest.approx(expected)


def test_chance_alone_explains_nothing_on_average():
    dice = np.random.default_rng(1)
    shares = [explained_variance([0, 1, 2] * 10, dice.normal(size=30).tolist()) for _ in range(300)]
    assert statistics.fmean(s for s in shares if s is not None) < 0.03


def test_the_most_important_parameter_comes_first_and_seeds_explain_the_rest(grid):
    shares = rank_parameters(grid, varying_settings(grid), "validation/auc")
    assert [s.key for s in shares] == ["optimizer.dense.lr", "optimizer"]
    assert shares[0].variance_share > 0.95
    settings = group_by_settings(grid, varying_settings(grid), "validation/auc", "max")
    assert seed_variance_share(settings, "validation/auc") == pytest.approx(
        1e-6 / np.var([r.metrics["validation/auc"] for r in grid], ddof=1)
    )


def test_many_values_of_a_numeric_parameter_are_binned(tmp_path):
    dice = np.random.default_rng(2)
    for number in range(60):
        rate, noise = 10 ** dice.uniform(-4, 0), dice.uniform()
        make_run(
            tmp_path / f"r{number:02}",
            identity={"rate": rate, "other": noise},
            auc=0.7 - 0.05 * (np.log10(rate) + 2) ** 2 + 0.01 * dice.normal(),
        )
    shares = rank_parameters(find_runs([tmp_path]).runs, ["rate", "other"], "validation/auc")
    found = {s.key: s.variance_share for s in shares}
    assert found["rate"] > 0.7
    assert found["other"] < 0.2


def test_mixed_versions_and_code_are_noted(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", versions={"torch": "2.14.0"}, git={"commit": "1234567890"})
    notes = " ".join(mixed_provenance(find_runs([tmp_path]).runs))
    assert "2 states of the code" in notes
    assert "versions of torch: 2.13.0 (1), 2.14.0 (1)" in notes


def test_the_bar_of_an_effect_is_the_median_also_of_an_even_number_of_runs(grid):
    runs = [r for r in grid if r.seed in (1, 2)]
    figure = effect_figure(runs, "optimizer", "validation/auc")
    [bars] = [t for t in figure["data"] if "median" in t["hovertemplate"]]
    found = dict(zip(bars["x"], bars["y"]))
    for name, more in (("adam", 0.01), ("sgd", 0.0)):
        values = [0.6 + 0.1 * high + more + 0.001 * s for high in (0, 1) for s in (1, 2)]
        assert found[name] == pytest.approx(statistics.median(values))


def test_names_of_the_first_axis_have_room_beside_the_lines(tmp_path):
    for number, name in enumerate(("adam", "partial_rowwise_adam")):
        make_run(tmp_path / name, choices={"optimizer": name}, auc=0.6 + number / 10)
    figure = parallel_coordinates(
        find_runs([tmp_path]).runs, ["optimizer"], "validation/auc", "max"
    )
    assert figure is not None
    assert figure["data"][0]["dimensions"][0]["ticktext"] == ["adam", "partial_rowwise_adam"]
    assert figure["layout"]["margin"]["l"] >= 7 * len("partial_rowwise_adam")


def test_names_of_many_axes_are_written_at_an_angle(grid):
    for count, angle in ((6, 0), (7, -20)):
        keys = [f"trainer.key_{n}" for n in range(count)]
        figure = parallel_coordinates(grid, keys, "validation/auc", "max")
        assert figure is not None and figure["data"][0]["labelangle"] == angle


def test_best_runs_and_medians_stand_out_on_a_light_and_on_a_dark_page(grid):
    """By a contrast above 2.8 with the cards of page.css."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bars = effect_figure(grid, "optimizer", "validation/auc")["data"][1]["marker"]["color"]
    for colour in (COLOUR_SCALE[-1][1], bars):
        for card in ("#ffffff", "#1e293b"):
            low, high = sorted((light(colour), light(card)))
            assert (high + 0.05) / (low + 0.05) > 2.8


def test_grey_curves_of_a_search_that_stops_jobs_are_explained(tmp_path):
    for name, status in (("a", "completed"), ("bb", "pruned")):
        make_run(tmp_path / name, status=status, identity={"optimizer.dense.lr": len(name)})
    page = make_overview_page(make_overview(find_runs([tmp_path]), "asha"), FileLinks(tmp_path))
    assert "Runs that did not complete in grey." in page.body()


def test_blanks_in_a_mapping_make_no_other_setting(tmp_path):
    words = ("{train: 64, test: 8}", "{train:64,test:8}", "{ train: 64,test: 8 }", "'a, b'")
    for number, word in enumerate(words):
        make_run(tmp_path / str(number), overrides=[f"dataset.rows={word}"])
    runs = find_runs([tmp_path]).runs
    assert varying_settings(runs[:3]) == []
    assert varying_settings(runs) == ["dataset.rows"]
    assert runs[3].settings["dataset.rows"] == "'a, b'"

"""The benchmarks run and print their tables, and their statistics are right. Nothing is timed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench import (
    check,
    data,
    evaluation,
    exchange,
    growing,
    histories,
    limit,
    models,
    overhead,
    products,
    startup,
    sweep,
    threads,
    waits,
)
from bench.paired import NOTES, alternate, estimate, ratio, table
from bench.peers import __main__ as peers
from bench.startup import Kind, run
from runner.models.layers import linear

TINY = [
    "dataset.max_cardinality=200",
    "model.net.bottom=[8]",
    "model.net.top=[8]",
    "model.net.embedding_dim=4",
]


def cells(text: str, first: str) -> list[str]:
    """Of the table row that begins so, what follows."""
    (line,) = [line for line in text.splitlines() if line.startswith(first)]
    return line.removeprefix(first).split()


@pytest.mark.long
def test_waits_of_ranks_have_their_causes(capsys, monkeypatch):
    monkeypatch.setattr(waits, "PLANS", ("row_wise",))
    assert waits.main(["--ranks", "2", "--updates", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "other"
    for line, kind in zip(lines[2:], waits.KINDS, strict=True):
        assert line.startswith(f"row_wise, {kind}, 2 ")
        whole_ms, *by_cause_ms, other_ms = (float(v) for v in line.split()[3:])
        assert other_ms == 0 and all(ms > 0 for ms in by_cause_ms)
        assert sum(by_cause_ms) < whole_ms


@pytest.mark.slow
def test_ranks_exchange_what_their_plan_needs_and_save_every_byte_once(capsys):
    assert exchange.main(["--ranks", "2", "--updates", "1", "--table-mb", "8"]) == 0
    said = capsys.readouterr().out
    for plan in exchange.PLANS:
        for kind in exchange.KINDS:
            sent, least, share = cells(said, f"{plan}, {kind}, 2")
            assert float(sent.replace(",", "")) > 100 and float(least.replace(",", "")) > 100
            assert float(share) <= 1.1
    _, once, *_ = cells(said, "2  ")
    assert once == "1.0000"


@pytest.mark.long
def test_overhead_compares_both_loops_and_says_where_the_time_goes(capsys):
    sizes = ["--pairs", "2", "--rows", "320", "--turn-rows", "96", "--batch-sizes", "32,64"]
    assert overhead.main([*sizes, *TINY]) == 0
    said = capsys.readouterr().out
    for part in said.split("\nbatch size ")[1:]:
        for other in ("bare", "torchrec"):
            median, *_ = cells(part, f"ours / {other}, wall time")
            assert 0.1 < float(median) < 100
        for row in ("a bare update", "data: read, shuffle, assemble", "train metrics"):
            cpu, wall, share = cells(part, row)
            assert float(cpu) > 0 and float(wall) > 0 and share.endswith("%")
        below = part.split("where it goes")[1].splitlines()[2:]
        *walls, everything = [float(line.split()[-2]) for line in below if line]
        assert sum(walls) == pytest.approx(everything, abs=0.01), "nothing is left out or twice in"
    assert "2 pairs of 10 updates, turns of 3" in said
    assert "2 pairs of 5 updates, turns of 1" in said


@pytest.mark.long
def test_overhead_notices_a_bare_loop_that_learns_from_other_rows(monkeypatch):
    from bench import bare

    loop = bare.bare_loop
    monkeypatch.setattr(bare, "bare_loop", lambda c, b, chunk: loop(c, b[::-1], chunk))
    sizes = ["--pairs", "1", "--rows", "320", "--turn-rows", "96", "--batch-sizes", "32"]
    with pytest.raises(RuntimeError, match=r"the two loops are .* apart"):
        overhead.main([*sizes, *TINY])


def test_overhead_refuses_a_mistake_like_the_runner(capsys):
    assert overhead.main(["model.net.tops=[8]"]) == 2
    assert "model.net.tops" in capsys.readouterr().err


@pytest.mark.long
def test_the_limit_is_two_forms_of_a_step_that_ends_with_our_weights(capsys):
    sizes = ["--pairs", "2", "--rows", "320", "--turn-rows", "96", "--batch-sizes", "32"]
    assert limit.main([*sizes, *TINY]) == 0
    said = capsys.readouterr().out
    for form in ("leanest", "plain"):
        for clock in ("wall", "cpu"):
            median, *_ = cells(said, f"ours of {form}, by {clock} time")
            assert 0.01 < float(median) < 10
    assert "2 pairs of 10 updates, turns of 3" in said


@pytest.mark.long
def test_the_limit_notices_a_step_that_leaves_something_out(monkeypatch):
    from bench import lean

    loop = lean.LeanDLRM.loop
    monkeypatch.setattr(lean.LeanDLRM, "loop", lambda s, b, chunk: loop(s, b[:-1], chunk))
    sizes = ["--pairs", "1", "--rows", "320", "--turn-rows", "96", "--batch-sizes", "32"]
    with pytest.raises(RuntimeError, match=r"the two loops are .* apart"):
        limit.main([*sizes, *TINY])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=dcn"], "leanest step is that of model=dlrm"),
        (["optimizer=sgd"], "row-wise Adagrad"),
    ],
)
def test_the_limit_refuses_what_it_cannot_repeat(capsys, words, message):
    sizes = ["--pairs", "1", "--rows", "320", "--batch-sizes", "32", "dataset.max_cardinality=200"]
    assert limit.main([*sizes, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_a_models_update_is_shared_out_among_its_parts(capsys):
    tiny = ["dataset.max_cardinality=200", "trainer.batch_size=256"]
    assert models.main(["--one", "dlrm", "--updates", "2", *tiny]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    name, size, ms, *shares, products = said.strip("| ").split(" | ")
    assert (name, size) == ("`dlrm`", "256") and float(ms) > 0
    assert sum(int(share.rstrip("%")) for share in shares) == pytest.approx(100, abs=3)
    assert len(shares) == len(models.PARTS) and int(shares[1].rstrip("%")) > 10
    assert 0 < int(products.rstrip("%")) < 100


def test_every_models_update_is_profiled_and_the_table_replaces_the_last_one():
    assert {"mlp", "sasrec", "xdeepfm"} < set(models.names()) and "own" not in models.names()
    page = f"before\n{models.BEGIN}\nold\n{models.END}\nafter\n"
    assert models.written(page, "| new |") == page.replace("old", "| new |")
    with pytest.raises(ValueError, match="two lines"):
        models.written("no marks", "| new |")


def test_the_ids_of_an_update_are_timed_for_each_kind_of_table(capsys):
    assert growing.main(["--rows", "3000", "--ids", "64,500", "--updates", "12"]) == 0
    said = capsys.readouterr().out
    for name in ("growing, lru", "growing, lfu, seen twice", "TorchRec MCH, lru"):
        for cell in cells(said, name):
            median, longest = map(float, cell.split("/"))
            assert 0 < median <= longest


@pytest.mark.long
@pytest.mark.parity("E16")
def test_on_ids_that_drift_a_growing_table_beats_hashing_into_as_many_rows():
    found = growing.show_drift(60_000, ["growing, lru", "hash"])
    assert found["growing, lru"] > found["hash"] + 0.02
    assert found["growing, lru"] > 0.7


@pytest.mark.long
def test_startup_times_each_kind_of_process(capsys):
    assert startup.main(["--repeats", "1", "--only", "compose,mistake,ls"]) == 0
    said = capsys.readouterr().out
    assert float(cells(said, "ls")[0]) > 0
    assert "a mistake in the configuration" in said and "import Hydra and compose" in said


@pytest.mark.slow
def test_startup_sees_the_first_update(capsys):
    assert startup.main(["--repeats", "1", "--only", "heavy,first"]) == 0
    said = capsys.readouterr().out
    assert float(cells(said, "end of the first update")[0]) > 0
    assert "first update, beyond importing torch and torchrec" in said


def test_startup_refuses_a_process_that_fails(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)nothing: exit code 3.*said before"):
        run(Kind("nothing", ("-c", "print('said before'); raise SystemExit(3)")), tmp_path)


def test_the_interval_of_a_median_is_that_of_order_statistics():
    """Where the bootstrap's 95% interval of a median lies follows from the binomial distribution:
    of 15 values, between the 4th and the 12th smallest."""
    found = estimate(np.arange(1, 16))
    assert found.median == 8 and (found.smallest, found.largest, found.count) == (1, 15, 15)
    assert found.low in (4, 5) and found.high in (11, 12)


def test_pairs_cancel_what_both_met():
    busy = np.array([1.0, 5.0, 2.0, 9.0, 1.0, 3.0, 7.0])
    found = ratio(list(1.1 * busy), list(busy))
    assert (found.low, found.median, found.high) == pytest.approx((1.1, 1.1, 1.1))
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_a_target_is_judged_by_the_far_end_of_the_interval():
    found = estimate([1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06])
    assert found.verdict(at_most=found.high) == "held"
    assert found.verdict(at_most=(found.median + found.high) / 2) == "open"
    assert found.verdict(at_most=found.low - 0.001) == "missed"
    assert estimate([0.5] * 5).verdict(at_most=1.0) == "open", "five values say too little"


@pytest.mark.slow
def test_a_job_as_a_fork_is_measured_beside_a_new_process(capsys):
    assert sweep.main(["--only", "forked", "--pairs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "fork / new process, processor time" in shown
    assert "the imports of all forks, once" in shown


def test_alternating_measures_in_turns_and_leaves_the_first_pair_out():
    order: list[str] = []

    def measure(name):
        order.append(name)
        return float(len(order))

    a, b = alternate(lambda: measure("a"), lambda: measure("b"), 3)
    assert order == ["a", "b"] * 4
    assert (a, b) == ([3.0, 5.0, 7.0], [4.0, 6.0, 8.0])


def test_a_table_stands_in_columns():
    lines = table(("what", "n"), [["long name", "1"], ["x", "10,000"]]).splitlines()
    assert lines == [
        "what            n",
        "---------  ------",
        "long name       1",
        "x          10,000",
    ]


@pytest.mark.long
def test_sweep_tells_one_job_more_from_what_a_sweep_costs_once(capsys):
    assert sweep.main(["--pairs", "1", "--empty", "6", "--only", "empty"]) == 0
    said = capsys.readouterr().out
    # less than nothing, where others are busy; but a sweep imports Hydra and plotly once
    assert -5 < float(cells(said, "one empty job more, beyond its process")[0]) < 5
    assert float(cells(said, "a sweep, once: start, page, leaderboard")[0]) > 0
    with pytest.raises(SystemExit):
        sweep.main(["--only", "empties"])
    assert "no such kind: empties" in capsys.readouterr().err


def test_threads_sets_updates_with_two_beside_one_and_ends_what_keeps_a_core_busy(capsys):
    assert threads.main(["mlp", "--pairs", "2", "--updates", "1", "--rows", "64", "--busy"]) == 0
    _, one, _, two, *_ = cells(capsys.readouterr().out, "| `mlp`")
    assert float(one) > 0 and float(two) > 0


@pytest.mark.long
def test_an_evaluation_stands_beside_the_forward_pass_alone(capsys):
    words = ["--pairs", "2", "--rows", "320", "trainer.batch_size=64", *TINY]
    assert evaluation.main(words) == 0
    share, *_ = cells(capsys.readouterr().out, "evaluation / forward pass, rows a second")
    assert float(share) > 0


def test_updates_on_rows_from_the_disk_stand_beside_those_from_memory():
    name, _, *speeds, share, _, _, _ = data.training(8192, 2, ahead=False)
    assert name == "training beside tensors in memory"
    assert all(speed.endswith("M") for speed in speeds) and float(share) > 0


def test_products_sets_updates_with_each_kind_beside_each_other(capsys, monkeypatch):
    monkeypatch.setattr(linear, "has_faster_onednn", linear.has_faster_onednn)  # is set by it
    words = ["mlp", "--pairs", "2", "--updates", "1", "--rows", "64"]
    assert products.main(words) == 0
    _, ours, _, plain, *_ = cells(capsys.readouterr().out, "| `mlp`")
    assert float(ours) > 0 and float(plain) > 0


@pytest.mark.long
def test_sweep_runs_all_its_jobs_and_says_if_one_fails(tmp_path):
    from bench.sweep import run as run_command

    run_command(["-m", "bench.sweep", "--inside", "3", str(tmp_path / "s")])
    results = [json.loads(p.read_text()) for p in (tmp_path / "s").glob("*/result.json")]
    assert [r["status"] for r in results] == ["completed"] * 3
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match=r"(?s)exit code 2.*file"):
        run_command(["-m", "runner", "-m", "seed=1,2", f"hydra.sweep.dir={tmp_path}/file/s"])


@pytest.mark.slow
def test_sweep_sets_trainings_beside_the_same_ones_alone(capsys):
    assert sweep.main(["--pairs", "1", "--jobs", "2", "--only", "trainings"]) == 0
    *_, cpu = cells(capsys.readouterr().out, "a training of 2, all costs shared out")
    assert 0 < float(cpu) < 5  # half of what a sweep imports, composes and draws


def test_histories_are_timed_beside_the_sort(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    assert histories.main(["--events", "2000", "--turns", "2"]) == 0
    said = capsys.readouterr().out
    assert cells(said, "Arrow's sort")[2] == "1.00"
    assert float(cells(said, "sort and histories")[2]) > 0
    assert len(cells(said, "the whole preparation")) == 3


@pytest.mark.parametrize("threads", [1, 2])
def test_peers_are_compared_with_ours_under_the_same_rule(monkeypatch, tmp_path, capsys, threads):
    """By processor time, and where there are several threads by the clock."""
    speeds = {"runner": 100.0, "runner_adagrad": 120.0, "fuxictr": 50.0, "torchrec": 60.0}

    def measured(python, name, folder, batch_size, num_threads):
        assert num_threads == threads
        if name == "lightning":
            raise RuntimeError("no such trainer")
        of_all = {"cpu": 1.0, "wall": 1.0, "start": 2.0, "peak_mb": 300.0, "auc": 0.75}
        return {**of_all, "cpu" if threads == 1 else "wall": speeds[name]}

    def environment(folder, name):
        return "no wheel for it" if name == "torch_rechub" else folder / name

    monkeypatch.setattr(peers, "train", measured)
    monkeypatch.setattr(peers, "interpreter", environment)
    names = "fuxictr,torchrec,torch_rechub,lightning"
    picture = tmp_path / "peers.svg"
    given = ["--rows", "50", "--turns", "2", "--only", names, "--picture", str(picture)]
    assert peers.main([*given, "--threads", str(threads)]) == 0
    said = capsys.readouterr().out
    assert cells(said, "fuxictr")[2] == cells(said, "torchrec")[2] == "2.00"
    assert "torch_rechub cannot be installed: no wheel for it" in said
    assert "lightning fails: no such trainer" in said
    assert picture.read_text().count("<svg") == 1


def test_a_ratio_is_compared_with_the_newest_of_its_kind_of_machine(monkeypatch, tmp_path, capsys):
    history = tmp_path / "history.jsonl"
    measured = {"low": 0.98, "high": 1.02, "median": 1.0, "is_cost": True}

    def measure(words):
        return [{"name": words[0], **measured}]

    monkeypatch.setattr(check, "measure", measure)
    given = ["--history", str(history), "--only", "norms"]
    assert check.main([*given, "--record"]) == 0
    assert "first of its kind" in capsys.readouterr().out
    for low, high, is_cost, said in [
        (1.01, 1.05, True, "no change is seen"), (1.03, 1.05, True, "worse"),
        (0.9, 0.95, True, "better"), (0.9, 0.95, False, "worse"),
    ]:  # fmt: skip
        measured.update(low=low, high=high, median=(low + high) / 2, is_cost=is_cost)
        assert check.main(given) == int(said == "worse")
        assert said in capsys.readouterr().out
    assert len(history.read_text().splitlines()) == 1
    history.write_text(history.read_text().replace('"machine": "', '"machine": "another '))
    check.main(given)
    assert "first of its kind" in capsys.readouterr().out


@pytest.mark.long
def test_a_benchmark_notes_its_ratios_for_the_check(monkeypatch, tmp_path):
    notes = tmp_path / "notes.jsonl"
    monkeypatch.setenv(NOTES, str(notes))
    sizes = ["--pairs", "2", "--rows", "320", "--turn-rows", "96", "--batch-sizes", "32"]
    assert overhead.main([*sizes, *TINY]) == 0
    noted = [json.loads(line) for line in notes.read_text().splitlines()]
    assert len({one["name"] for one in noted}) == 4
    assert all(one["low"] <= one["median"] <= one["high"] for one in noted)

"""Settings that another key turns off are told before a run starts, and stop no sweep."""

from __future__ import annotations

import pytest

from runner.config.compose import compose
from runner.config.composed_checks import check_composed, notes_before_start
from runner.config.rules.idle_keys import find_idle_beside_defaults, find_idle_keys
from runner.config.targets import allowed_packages


@pytest.mark.parametrize(
    ("word", "needed", "with_it"),
    [
        ("trainer.amp_dtype=fp16", "trainer.amp", "trainer.amp=true"),
        ("trainer.clip.tables=false", "trainer.clip.value or", "trainer.clip.global_norm=1"),
        ("trainer.ema.warmup=false", "trainer.ema.decay", "trainer.ema.decay=0.9"),
        ("trainer.ema.evaluate=false", "trainer.ema.decay", "trainer.ema.decay=0.9"),
        ("trainer.profile.after=3", "trainer.profile.updates", "trainer.profile.updates=2"),
        ("metrics.max_slices=3", "metrics.slice_by", "metrics.slice_by=C0"),
    ],
)
def test_a_setting_is_told_where_the_key_that_it_needs_is_off(word, needed, with_it):
    composed = compose([word])
    check_composed(composed, allowed_packages(()))
    [note] = [n for n in notes_before_start(composed) if n.startswith(word)]
    assert note.startswith(f"{word} has no effect without {needed}")
    assert not [*find_idle_keys(compose([word, with_it]).config, from_run=False)]
    assert not [*find_idle_keys(composed.config, from_run=True)], "its first start has told it"


@pytest.mark.parametrize(
    ("word", "off"),
    [
        ("trainer.early_stop.patience=2", "trainer.eval_every=null"),
        ("trainer.early_stop.threshold=0.0", "trainer.eval_every=null"),
        ("trainer.lr_on_plateau.patience=2", "trainer.eval_every=null"),
        ("checkpoint.save_every=1ep", "checkpoint.keep=0"),
    ],
)
def test_a_setting_is_told_where_another_key_turns_it_off(word, off):
    [note] = find_idle_keys(compose([word, off]).config, from_run=False)
    assert note == f"{word} has no effect without {off.partition('=')[0]}"
    assert not [*find_idle_keys(compose([word]).config, from_run=False)]


def test_bins_of_ece_are_told_where_it_is_not_measured():
    [note] = find_idle_keys(compose(["metrics.ece_bins=3"]).config, from_run=False)
    assert note == "metrics.ece_bins=3 has no effect, since metrics.eval lists no ece"
    config = compose(["metrics.ece_bins=3", "metrics.eval=[auc,ece]"]).config
    assert not [*find_idle_keys(config, from_run=False)]


@pytest.mark.parametrize(
    ("words", "why", "with_it"),
    [
        (["dataset.sequence_length=5"], " with dataset.num_sequences=0", "dataset.num_sequences=1"),
        (["dataset.mean_length=3.0", "dataset.num_lists=0"], " with dataset.num_lists=0", ""),
        (["dataset.missing=0.5", "dataset.num_numeric=0"], " with dataset.num_numeric=0", ""),
        (["metrics.candidates=full"], ", since metrics.eval lists no ranking, such as recall@10",
         "metrics.eval=[recall@5]"),
        (["metrics.relevant_from=2"], ", since metrics.eval lists no ranking, such as recall@10",
         "metrics.eval=[mrr]"),
        (["metrics.leave_history_out=false"], ", since DLRM scores rows and finds no items; "
         "model=sasrec and model=two_tower do", "model=two_tower"),
        (["trainer.lr_scaling.batches=4"], " with trainer.lr_scaling.rule=constant",
         "trainer.lr_scaling.rule=linear"),
        (["sharding.plan=row_wise"], " in one process, which has all tables whole; "
         "trainer.num_processes=N shares them", "trainer.num_processes=2"),
        *(([f"sharding.{word}"], " in one process, which has all tables whole; "
           "trainer.num_processes=N shares them", "trainer.num_processes=2")
          for word in ("storage_reserve=0.5", "device_memory_gb=2.0", "intra_host_gb_per_s=3.0")),
        (["trainer.eval_every=50", "loop=online"], " with loop=online, which evaluates no split",
         ""),
        (["launcher.slots=2"], " on a single run; -m starts a sweep", "launcher.slots=1"),
    ],
)  # fmt: skip
def test_a_setting_without_effect_on_what_is_there_is_told(words, why, with_it):
    composed = compose(words)
    check_composed(composed, allowed_packages(()))
    [note] = [n for n in notes_before_start(composed) if n.startswith(words[0])]
    assert note == f"{words[0]} has no effect{why}"
    is_same_key = with_it.partition("=")[0] == words[0].partition("=")[0]
    other = compose([*(() if is_same_key else words[:1]), *([with_it] if with_it else ())])
    assert not [n for n in notes_before_start(other) if "no effect" in n]


def test_a_limit_of_bad_rows_is_told_where_the_first_is_an_error(tmp_path):
    (tmp_path / "s.yaml").write_text("path: rows.parquet\nlabels: [click]\nnumeric: {price: {}}\n")
    words = ["dataset=parquet", f"dataset.schema={tmp_path}/s.yaml", "dataset.max_bad_rows=7"]
    notes = notes_before_start(compose(words))
    told = "dataset.max_bad_rows=7 has no effect without dataset.on_bad_rows=skip"
    assert told in notes
    assert told not in notes_before_start(compose([*words, "dataset.on_bad_rows=skip"]))


def test_keys_of_a_loop_are_told_of_a_run_too():
    config = compose(["loop=eval", "loop.pick=latest"]).config
    [note] = find_idle_keys(config, from_run=True)
    assert note == "loop.pick=latest has no effect without loop.follow"


def test_settings_of_tables_that_the_plans_leave_idle_are_told():
    def notes(*words):
        return [*find_idle_beside_defaults((c := compose(words)).config, c.default_config)]

    tables = "sharding.tables={C1: table_wise, C2: disk}"
    [note] = notes(tables)
    assert note.startswith("sharding.tables.C1=table_wise has no effect in one process")
    ranks, columns = "trainer.num_processes=2", "sharding.min_columns=8"
    assert notes(ranks, tables) == []
    assert notes(ranks, columns) == ["sharding.min_columns=8 has no effect without column_wise"]
    assert notes(ranks, columns, "sharding=column_wise") == []

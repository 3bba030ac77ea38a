"""`explain` names a key's meaning, its value, the line that set it, and what it changes."""

from __future__ import annotations

import pytest

from runner.__main__ import main
from runner.config.locations import CONF, PROJECT
from runner.config.option_fields import COMMON_OPTIONS
from runner.config.options import list_groups
from runner.config.other_names import OTHER_NAMES


def explain(capsys, *words: str) -> list[str]:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out.splitlines()


def line_with(path, text: str) -> int:
    return 1 + next(i for i, line in enumerate(path.read_text().splitlines()) if text in line)


def test_a_default_is_found_in_its_file_and_line(capsys):
    value, meaning, kind, place, changes = explain(capsys, "trainer.accumulate")
    assert value == "trainer.accumulate: 1" and meaning.startswith("  micro-batches of an update")
    assert "whole number, at least 1" in kind and "factor of the rows of an update" in changes
    line = line_with(CONF / "trainer/default.yaml", "accumulate:")
    assert place == f"  set by   conf/trainer/default.yaml:{line}: 1"


def test_the_common_name_of_hidden_widths_leads_to_the_models_own(capsys):
    shown = explain(capsys, "model.net.hidden", "model=dlrm", "model.net.hidden=[7]")
    assert shown[0] == "model.net.top: [7]"

    line = line_with(CONF / "model/dlrm.yaml", "top:")
    assert shown[3].startswith("  set by   model.net.hidden=[7] of this command; ")
    assert shown[3].endswith(f" in conf/model/dlrm.yaml:{line}")


@pytest.mark.parametrize(
    ("key", "words", "says"),
    [
        ("trainer.max_epochs", ["trainer.max_steps=3"], "trainer.max_steps from the command line"),
        (
            "metrics.eval",
            ["model=sasrec", "dataset=amazon_beauty"],
            "since the model finds items, it is measured by",
        ),
        ("checkpoint.monitor.metric", ["model=sasrec", "dataset=amazon_beauty"], "since the model"),
    ],
)
def test_a_value_that_follows_from_another_key_names_that(capsys, key, words, says):
    """It named the file, whose value was another."""
    [place] = [line for line in explain(capsys, key, *words) if line.startswith("  set by")]
    assert place.startswith(f"  set by   {says}") and " in conf/" in place


def test_an_override_is_named_beside_the_default(capsys):
    shown = explain(capsys, "trainer.amp", "trainer.amp=true")
    assert shown[0] == "trainer.amp: true"
    assert any("trainer.amp=true of this command; false in conf/trainer" in s for s in shown)


@pytest.mark.parametrize("word", ["seed=3", "name=mine", "report=false"])
def test_an_override_of_a_key_without_a_dot_is_named(capsys, word):
    shown = explain(capsys, word.partition("=")[0], word, "dataset=synthetic")
    assert any(s.startswith(f"  set by   {word} of this command; ") for s in shown)


def test_an_override_of_several_keys_of_a_group_is_named_for_those_keys_only(capsys):
    word = "trainer={max_epochs: 3, clip: {value: 1.0}}"
    for key in ("trainer.max_epochs", "trainer.clip.value"):
        assert f"  set by   {word} of this command; " in "\n".join(explain(capsys, key, word))
    assert "of this command" not in "\n".join(explain(capsys, "trainer.tf32", word))


def test_a_value_is_shown_as_it_was_written(capsys):
    assert explain(capsys, "name", "name='kühl, ß'")[0] == "name: kühl, ß"


def test_a_group_of_keys_is_found_in_the_file_that_sets_them(capsys):
    shown = explain(capsys, "model.net", "model=dlrm", "model.net.top=[8]")
    line = line_with(CONF / "model/dlrm.yaml", "net:")
    assert f"  set by   conf/model/dlrm.yaml:{line}: a group of keys" in shown
    shown = explain(capsys, "optimizer.dense", "optimizer=adam")
    assert any(s.startswith("  set by   conf/optimizer/adam.yaml") for s in shown)


@pytest.mark.parametrize(
    ("key", "option", "file", "text"),
    [
        ("model.net.dropout", "recipe=bars", CONF / "recipe/bars.yaml", "dropout:"),
        (
            "optimizer.sparse.lr",
            "experiments=movielens_dlrm",
            PROJECT / "experiments/movielens_dlrm.yaml",
            "sparse:",
        ),
    ],
)
def test_the_recipe_and_the_experiment_win(capsys, key, option, file, text):
    shown = explain(capsys, key, option, *(["model=dcn"] if "recipe" in option else []))
    place = next(s for s in shown if s.startswith("  set by"))
    assert place.startswith(f"  set by   {file.relative_to(PROJECT)}:{line_with(file, text)}")


def test_a_key_that_is_not_signed_may_be_changed_by_resume(capsys):
    last = explain(capsys, "trainer.num_threads")[-1]
    assert "the same result but for rounding, and `resume` may change it" in last


def test_groups_lead_on_to_ls(capsys):
    assert "`ls optimizer=OPTION`" in explain(capsys, "optimizer")[1]
    assert explain(capsys, "experiments")[0].endswith("this job has none")
    assert "checkpoint.monitor.direction" in explain(capsys, "checkpoint.monitor")[0]


def test_a_rate_is_described_and_a_last_part_finds_all_keys_that_end_so(capsys):
    shown = "".join(explain(capsys, "optimizer.sparse.lr"))
    assert "learning rate of the tables" in shown and "number, at least 0" in shown
    assert "of the dense half; lr: its learning rate" in "".join(
        explain(capsys, "optimizer.dense.lr")
    )
    assert main(["explain", "lr"]) == 2
    assert "there are: optimizer.sparse.lr, optimizer.dense.lr" in capsys.readouterr().err


def test_an_unknown_key_names_the_nearest(capsys):
    assert main(["explain", "trainer.acumulate"]) == 2
    assert "nearest: 'trainer.accumulate'" in capsys.readouterr().err
    assert main(["explain", "experiment"]) == 2
    assert "no such key; nearest: 'experiments'" in capsys.readouterr().err
    assert main(["explain", "hydra.run.dir"]) == 2
    assert "`python -m runner --cfg hydra`" in capsys.readouterr().err


def test_a_key_that_every_rule_of_tables_has_is_found_although_no_file_sets_it(capsys):
    shown = explain(capsys, "optimizer.sparse.dtype", "optimizer=adam")
    assert shown[0] == "optimizer.sparse.dtype: fp32" and "fp32, bf16, fp16" in shown[2]
    assert shown[3] == "  set by   the code: no file sets it"
    word = "optimizer.sparse.l2_tables=1e-5"
    shown = explain(capsys, "optimizer.sparse.l2_tables", word, "optimizer=sgd")
    assert shown[0] == "optimizer.sparse.l2_tables: 1.0e-05"
    assert shown[1] == "  the loss has this / 2 * the squares of all weights of the tables"
    assert shown[3] == f"  set by   {word} of this command"


def test_a_key_of_another_option_names_the_options_that_have_it(capsys):
    assert main(["explain", "dataset.split"]) == 2
    said = capsys.readouterr().err
    assert "dataset.split is a key of dataset=parquet, csv, tsv, jsonl, ...: explain" in said
    hint = said.split("explain ")[1].split()
    shown = explain(capsys, *hint)
    assert shown[0].startswith("dataset.split: ")
    assert explain(capsys, *reversed(hint)) == shown  # in any order
    assert main(["explain", "dataset=csv"]) == 2
    assert "name a key" in capsys.readouterr().err


def test_of_the_options_that_have_a_key_the_most_common_come_first(capsys):
    for words, said in (
        (["explain", "dataset.path"], "dataset=parquet, csv, tsv, jsonl, ...: explain"),
        (["explain", "dataset.column_names"], "dataset=csv, tsv: explain"),
        (["explain", "model.net.num_heads"], "model=sasrec, autoint, autoint_plus, bert4rec, ..."),
        (["explain", "optimizer.dense.betas", "optimizer=sgd"], "optimizer=adam, adamw, lamb, "),
        (["dataset.split={}"], "`python -m runner explain dataset.split dataset=parquet` says"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_the_most_common_options_are_there():
    known = {group: {option.name for option in options} for group, options in list_groups()}
    assert all(known[group] >= set(names) for group, names in COMMON_OPTIONS.items())


def test_every_key_that_a_name_of_another_tool_stands_for_is_explained(capsys):
    for key in {key for keys in OTHER_NAMES.values() for key in keys}:
        assert explain(capsys, key)[0].startswith(key)

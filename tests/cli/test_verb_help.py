"""Every verb says what it takes, and is completed from the same declaration."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.__main__ import main
from runner.cli.commands import VERBS, verb_parser
from runner.cli.completion import complete_words
from tests.conftest import python


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_every_flag_of_the_verb(verb, capsys):
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m runner {verb}")
    for flag in verb_parser(verb).flags:
        assert flag in shown


@pytest.mark.parametrize("verb", VERBS)
def test_flags_are_completed(verb):
    assert tuple(complete_words([verb, "--"])) == verb_parser(verb).flags


@pytest.mark.parametrize(
    "verb", sorted(set(VERBS) - {"completion", "resume", "refit", "reproduce"})
)
def test_a_misspelt_flag_is_refused_with_the_nearest_one(verb, capsys):
    flag = verb_parser(verb).flags[-1]
    assert main([verb, f"{flag}x"]) == 2
    assert f"no such flag; nearest: '{flag}'" in capsys.readouterr().err


def test_the_help_of_all_verbs_needs_no_torch():
    code = (
        "import sys; from runner.__main__ import main; from runner.cli.commands import VERBS\n"
        "for verb in VERBS: main([verb, '--help'])\n"
        "assert 'torch' not in sys.modules"
    )
    python("-c", code).check_returncode()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ls", "--config-dir", "nowhere"], "--config-dir nowhere: no such folder"),
        (["explain", "seed", "sed=3"], "sed=3: there is no key 'sed'; nearest: 'seed'"),
        (["serve", "a", "b"], "serve: 'b' is a word too many"),
        (["apply"], "apply: name a model and its deltas in their order: apply MODEL DELTA"),
        (["explain"], "explain: name a key, such as trainer.batch_size"),
        (["--allow"], "--allow: needs a package, such as"),
        (["--config-dir"], "--config-dir: needs a folder"),
        (["importance", "run", "--keep", "0"], "--keep 0: must be at least 1"),
        (["importance"], "importance: name a run: importance DIR"),
        (["index"], "index: name an exported model: index MODEL"),
        (["init", "a", "b"], "init: give one name, as in init my_project"),
        (["ls", "a", "b"], "ls: name one group at most, as in ls optimizer"),
        (["predict"], "predict: name a run and what to score: predict DIR INPUT"),
        (
            ["predict", "run", "x.csv", "--split", "test"],
            "--split test: and files cannot be scored together",
        ),
        (["reproduce"], "reproduce: name a run: reproduce DIR"),
        (["refit"], "refit: name a run: refit DIR"),
        (["export"], "export: name a run: export DIR --out MODEL"),
        (["completion", "fish"], "must be completion bash or completion zsh"),
        (["apply", "x", "y"], "apply: --out is not set"),
        (["serve", "x", "--batch-wait-ms", "5000"], "--batch-wait-ms 5000: must lie in 0 to 1000"),
    ],
)
def test_a_verb_without_its_words_says_which_it_takes(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb", ["resume", "refit", "reproduce", "importance", "export", "schedule"]
)
def test_a_folder_with_an_equals_sign_is_the_run_of_a_verb(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lr=0.1").mkdir()
    assert main([verb, "lr=0.1", *(["--out", "model"] if verb == "export" else [])]) == 2
    assert "lr=0.1: no run directory: it has no meta.json" in capsys.readouterr().err

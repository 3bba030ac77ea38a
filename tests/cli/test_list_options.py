import re

import pytest

from tests.fake_job import fake_command


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "300")  # so that no cell folds
    return fake_command(monkeypatch, capsys, tmp_path)


def test_the_default_of_each_group_is_marked(command):
    code, out, _ = command("ls", "optimizer")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "optimizer"
    (chosen,) = [line for line in lines if line.startswith(" *")]
    assert chosen.startswith(" * optimizer=rowwise_adagrad  ")


def test_the_users_own_folder_is_listed_too(command, tmp_path):
    (tmp_path / "own" / "model" / "deep").mkdir(parents=True)
    (tmp_path / "own" / "model" / "deep" / "mine.yaml").write_text(
        "# @package _global_\n# Mine\na: 1\n"
    )
    (tmp_path / "own" / "experiments").mkdir()
    (tmp_path / "own" / "experiments" / "try.yaml").write_text("# A try\na: 1\n")
    _, out, _ = command("ls", "model", "--config-dir", "own")
    assert "model=deep/mine  Mine" in out
    assert "model=dlrm  " in out
    assert "experiments=try  A try" in command("ls", "--config-dir", "own")[1]


def test_an_option_that_is_no_text_is_told_by_its_file(command, tmp_path):
    (tmp_path / "own" / "experiments").mkdir(parents=True)
    (tmp_path / "own" / "experiments" / "try.yaml").write_bytes(b"# gr\xfcn\n")
    code, _, told = command("ls", "experiments", "--config-dir", "own")
    assert code == 2 and "own/experiments/try.yaml: is not UTF-8" in told


def test_a_group_inside_a_group_is_listed_by_itself_and_not_among_its_options(command, tmp_path):
    (tmp_path / "own" / "model" / "loss").mkdir(parents=True)
    (tmp_path / "own" / "model" / "loss" / "mine.yaml").write_text("# My loss\na: 1\n")
    _, out, _ = command("ls", "--config-dir", "own")
    assert " * model/loss=bce  Binary cross-entropy" in out
    assert "   model/loss=mine  My loss" in out
    assert "model=loss/" not in out
    _, alone, _ = command("ls", "model/loss")
    assert alone.splitlines()[0] == "model/loss"
    assert "model=dlrm" not in alone


def fields(out: str) -> dict[str, tuple[str, str]]:
    """Return key -> the rest of its line and the lines below it."""
    text = "\n" + out.partition("fields of ")[2].partition("\n")[2].rstrip()
    parts = (part.split("\n      ") for part in re.split(r"\n  (?=\S)", text)[1:])
    return {
        head.split()[0]: (head.partition(" ")[2].strip(), " ".join(rest)) for head, *rest in parts
    }


def test_a_group_shows_the_fields_of_its_default(command):
    shown = fields(command("ls", "trainer")[1])
    assert shown["trainer.batch_size"] == (
        "= 4096  (whole number, at least 1 and below 2**31; or auto)",
        "rows of one rank and micro-batch; auto: by the number of train rows",
    )
    assert shown["trainer.max_steps"][0] == "= null  (whole number or null, at least 1)"
    assert shown["trainer.max_steps"][1].startswith("updates; exactly")
    assert "trainer._target_" not in shown


@pytest.mark.parametrize(("columns", "widest"), [("80", 80), (None, 100)])
def test_fields_fold_between_words_in_any_width(command, monkeypatch, columns, widest):
    monkeypatch.delenv("COLUMNS")
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    out = command("ls", "trainer")[1]
    assert max(map(len, out.splitlines())) <= widest
    assert "micro-batches of an update" in out


def test_an_option_shows_its_own_fields_with_types_from_the_code_that_takes_them(command):
    shown = fields(command("ls", "model=dcn")[1])
    assert (
        shown["model.net.rank"][0] == "= null  (whole number or null, at least 1 and at most 65536)"
    )
    assert shown["model.net.rank"][1].startswith("null: a full matrix")
    assert shown["model.net.deep"] == (
        "= [128, 64]  (list of whole number, each at least 1 and at most 65536)",
        "hidden widths",
    )
    assert "model=dlrm" not in command("ls", "model=dcn")[1]


def test_keys_of_no_group_and_unknown_options_are_told(command):
    assert "  report = true  (true or false)" in command("ls")[1]
    assert "ls optimizer=adamm: no such option; nearest: 'adam" in command.refused(
        "ls", "optimizer=adamm"
    )

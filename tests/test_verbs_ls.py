import pytest

from runner.verbs_ls import find_groups, first_comment
from tests.fake_job import fake_command


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    return fake_command(monkeypatch, capsys, tmp_path)


def test_every_option_of_the_project_says_what_it_is():
    groups = dict(find_groups())
    assert {"model", "dataset", "optimizer", "scheduler", "loop", "tracker", "experiments"} <= set(
        groups
    )
    silent = [f"{g}={o.name}" for g, options in groups.items() for o in options if not o.about]
    assert silent == []


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


def test_the_first_comment_ends_where_the_yaml_begins(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("# @package _global_\n# One\n# two\nkey: 1\n# not this\n")
    assert first_comment(path) == "One two"
    path.write_text("key: 1\n")
    assert first_comment(path) == ""


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

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


def table(out: str) -> dict[str, str]:
    """Return key -> the rest of its line, for the fields below the options."""
    lines = out.partition("fields of ")[2].splitlines()[2:]
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.strip()}


def test_a_group_shows_the_fields_of_its_default(command):
    shown = table(command("ls", "trainer")[1])
    assert (
        shown["trainer.batch_size"]
        == "4096 whole number, at least 1 and below 2**31; or auto rows of one rank and "
        "micro-batch; auto: by the number of train rows"
    )
    assert shown["trainer.max_steps"].startswith(
        "null whole number or null, at least 1 updates; exactly"
    )
    assert "trainer._target_" not in shown


def test_an_option_shows_its_own_fields_with_types_from_the_code_that_takes_them(command):
    shown = table(command("ls", "model=dcn")[1])
    assert shown["model.net.rank"].startswith(
        "null whole number or null, at least 1 and at most 65536 null: a full matrix"
    )
    assert shown["model.net.deep"].startswith(
        "[128, 64] list of whole number, each at least 1 and at most 65536 hidden widths"
    )
    assert "model=dlrm" not in command("ls", "model=dcn")[1]


def test_keys_of_no_group_and_unknown_options_are_told(command):
    assert "report  true" in command("ls")[1]
    assert "ls optimizer=adamm: no such option; nearest: 'adam" in command.refused(
        "ls", "optimizer=adamm"
    )

"""A run directory that was edited: it is noticed and named, and nothing goes on unless told to."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from runner.rundir import saved_config
from runner.rundir.checkpoint.manifest import read_manifest
from tests.conftest import TINY, Zygote
from tests.whole.compare_runs import TRACED, differences, newest_checkpoint

pytestmark = pytest.mark.long
SHORT = (*TRACED, *TINY, "trainer.max_steps=20")
PAIR = ("trainer.num_processes=2", "trainer.batch_size=16")


def train(runner: Zygote, folder: Path, *words: str, kill: str = "") -> tuple[int, str]:
    env = {"TRACE_FILE": f"{folder}.trace", "TRACE_KILL": kill}
    done = runner.run(*SHORT, *words, f"hydra.run.dir={folder}", env=env)
    return done.code, done.text


def again(runner: Zygote, verb: str, run: Path, *words: str) -> tuple[int, str]:
    asked = [verb, str(run)] if "=" not in verb else [verb, f"run={run}"]
    done = runner.run(
        "--allow", "tests", *asked, *words, env={"TRACE_FILE": f"{run}.trace", "TRACE_KILL": ""}
    )
    return done.code, done.text


@pytest.fixture(scope="module")
def whole(runner, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    code, text = train(runner, folder)
    assert code == 0, text
    return folder


@pytest.fixture(scope="module")
def killed(runner, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "run"
    assert train(runner, folder, kill="step:18")[0] == -9
    return folder


@pytest.fixture
def run(killed, tmp_path) -> Path:
    """A killed run of one's own: a copied directory is the same run."""
    return Path(shutil.copytree(killed, tmp_path / "run"))


def edit(file: Path, pattern: str, text: str) -> None:
    before = file.read_text()
    after = re.sub(pattern, text, before, count=1, flags=re.MULTILINE)
    assert after != before
    file.write_text(after)


LR = r"^(  sparse:\n(?:    .*\n)*?    lr: ).*$"


# ---- config.yaml


@pytest.mark.parametrize(
    ("pattern", "text", "says"),
    [
        (LR, r"\g<1>0.5", r"optimizer\.sparse\.lr: [\d.e-]+ -> 0\.5"),
        (r"^  eval_every: 11$", "  eval_every: 12", "trainer.eval_every: 11 -> 12"),
        (r"^  log_every: 7$", "  log_every: 8", "trainer.log_every: 7 -> 8"),
        (r"^  data_seed: .*$", "  data_seed: 9", r"dataset\.data_seed: \d+ -> 9"),
        (r"^seed: 0$", "", "seed: 0 -> null"),
    ],
    ids=["rate", "signed cadence", "cadence that is not signed", "data", "a line taken out"],
)
@pytest.mark.parametrize("verb", ["resume", "loop=eval", "reproduce"])
def test_an_edited_configuration_is_refused_with_what_differs(
    runner, run, verb, pattern, text, says
):
    edit(run / "config.yaml", pattern, text)
    before = {p: p.read_bytes() for p in run.iterdir() if p.is_file() and p.name != ".lock"}
    code, told = again(runner, verb, run)
    assert code == 2, told
    assert "was edited since the run wrote it" in told
    assert re.search(says, told), told
    assert {p: p.read_bytes() for p in before} == before


def test_a_comment_another_order_and_another_spelling_are_no_edit(runner, run, whole):
    config = yaml.safe_load((run / "config.yaml").read_text())
    text = "# the best one so far\n" + yaml.safe_dump(config, sort_keys=True, indent=4)
    (run / "config.yaml").write_text(text)
    code, told = again(runner, "resume", run)
    assert code == 0, told
    assert differences(run, whole) == []


def test_an_edit_that_the_command_line_gives_too_is_a_change_like_any_other(runner, run):
    edit(run / "config.yaml", LR, r"\g<1>0.5")
    code, told = again(runner, "resume", run, "optimizer.sparse.lr=0.5")
    assert code == 0, told
    assert re.search(r"optimizer\.sparse\.lr: [\d.e-]+ -> 0\.5", told)
    changed = json.loads((run / "meta.json").read_text())["resumes"][-1]["changed"]
    assert [key for key, _, _ in changed] == ["optimizer.sparse.lr"]
    assert again(runner, "resume", run, "trainer.max_steps=22")[0] == 0  # its record is in order


@pytest.mark.parametrize("writes", [1, 2])
def test_a_resume_killed_while_it_records_its_settings_has_edited_nothing(
    runner, run, monkeypatch, writes
):
    """Killed after the first or second of the three writes that replace file and record."""
    left = iter(range(writes))

    def or_die(write):
        def counted(path, content):
            if next(left, None) is None:
                raise SystemExit("killed")
            write(path, content)

        return counted

    for name in ("write_json", "write_text"):
        monkeypatch.setattr(saved_config, name, or_die(getattr(saved_config, name)))
    meta = json.loads((run / "meta.json").read_text())
    text = (run / "config.yaml").read_text().replace("log_every: 7", "log_every: 8")
    changed = {**meta, **saved_config.config_record(text, yaml.safe_load(text), "train")}
    with pytest.raises(SystemExit):
        saved_config.replace_config(run, text, meta, changed)
    code, told = again(runner, "resume", run)
    assert code == 0, told
    assert json.loads((run / "meta.json").read_text()).keys() == meta.keys()
    edit(run / "config.yaml", r"^  log_every: .$", "  log_every: 9")
    assert again(runner, "resume", run)[0] == 2


# ---- checkpoints of other runs


def plant(source: Path, target: Path) -> Path:
    """Put the newest checkpoint of a run into another run's directory, as its newest."""
    found = newest_checkpoint(source)
    place = target / "checkpoints" / found.name
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(found, place))


@pytest.mark.parametrize("other", ["another seed", "the same command again", "its changed copy"])
def test_a_whole_checkpoint_of_another_run_is_refused(runner, run, tmp_path, other):
    source = tmp_path / "source"
    if other == "its changed copy":
        shutil.copytree(run, source)
        assert again(runner, "resume", source, "optimizer.sparse.lr=0.5")[0] == 0
    else:
        assert train(runner, source, *(["seed=1"] if other == "another seed" else []))[0] == 0
    place = plant(source, run)
    meta = (run / "meta.json").read_bytes()
    for words in (["resume"], ["loop=eval", "checkpoint.step=last"], ["loop=eval"]):
        code, told = again(runner, words[0], run, *words[1:])
        assert code == 2, told
        assert f"{place} is a whole checkpoint, but was written" in told
        assert "checkpoint.init_from" in told
    code, told = again(runner, "loop=eval", run, f"checkpoint.path={place}")
    assert code == 2 and "does not belong here" in told, told
    assert (
        json.loads(meta)["signature"] == json.loads((run / "meta.json").read_bytes())["signature"]
    )
    shutil.rmtree(place)
    code, told = again(runner, "resume", run)
    assert code == 0, told


def test_another_branch_of_a_copied_run_does_not_fit_the_checkpoint_beside_it(runner, run):
    """Both have the id and the signatures; one went on in other arithmetic."""
    other = Path(shutil.copytree(run, run.with_name("other")))
    # two checkpoints each: the newest follows one that was written after the two went apart
    longer = "checkpoint.keep=9", "trainer.max_steps=25"
    assert again(runner, "resume", other, *longer, "trainer.accumulate=4")[0] == 0
    assert again(runner, "resume", run, *longer)[0] == 0
    place = plant(other, run)
    assert read_manifest(place).run_id == json.loads((run / "meta.json").read_text())["run_id"]
    code, told = again(runner, "resume", run, "trainer.max_steps=30")
    assert code == 2, told
    assert re.search(r"after another checkpoint of step 2\d than", told), told


def test_init_from_takes_the_weights_of_such_a_checkpoint(runner, run, tmp_path):
    moved = shutil.copytree(newest_checkpoint(run), tmp_path / "elsewhere")
    code, told = train(runner, tmp_path / "new", f"checkpoint.init_from={moved}")
    assert code == 0, told


def test_checkpoints_name_the_one_before_also_after_a_kill_and_a_fallback(runner, run, whole):
    damaged = next(newest_checkpoint(run).glob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    code, told = again(runner, "resume", run, "checkpoint.keep=9")
    assert code == 0, told
    assert damaged.parent.name in told
    links = {
        int(p.name[5:]): read_manifest(p)
        for p in (run / "checkpoints").glob("step-*")
        if p.is_dir()
    }
    steps = sorted(links)
    assert len(steps) >= 3
    for before, step in itertools.pairwise(steps):
        assert links[step].before.step == before
    assert differences(run, whole) == []


def test_a_foreign_checkpoint_stops_two_ranks_alike(runner, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        code, told = train(runner, folder, *PAIR, kill="step:18")
        assert code == 1, told
    place = plant(one, two)
    code, told = again(runner, "resume", two)
    assert code == 2, told
    assert f"{place} is a whole checkpoint, but was written by another run" in told
    shutil.rmtree(place)
    assert again(runner, "resume", two)[0] == 0
    assert again(runner, "resume", one, "trainer.num_processes=1")[0] == 0  # on other ranks
    assert json.loads((one / "result.json").read_text())["status"] == "completed"


# ---- done already


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_done_is_said_only_with_a_whole_checkpoint(runner, whole, tmp_path, harm):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    assert "is done already" in again(runner, "resume", run)[1]
    last = newest_checkpoint(run)
    file = next(last.glob("*.safetensors"))
    if harm == "gone":
        shutil.rmtree(last)
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content if harm == "flipped" else content[:-7])
    code, told = again(runner, "resume", run)
    assert code == 0, told
    assert "done already" not in told and "is not done: " in told and last.name in told
    assert differences(run, whole) == []
    assert "is done already" in again(runner, "resume", run)[1]


def test_without_any_checkpoint_a_done_run_is_not_trained_anew_in_silence(runner, whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints")
    before = (run / "result.json").read_bytes()
    code, told = again(runner, "resume", run)
    assert code == 2 and "there is no other" in told, told
    assert (run / "result.json").read_bytes() == before


# ---- metrics.jsonl


def flip_digit(content: bytes) -> bytes:
    at = content.index(b'"loss": ') + 10
    return content[:at] + (b"1" if content[at : at + 1] != b"1" else b"2") + content[at + 1 :]


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "a digit changed": flip_digit,
    "a row torn": lambda content: content.replace(b"}", b"#", 1),
    "a row taken out": lambda content: content.partition(b"\n")[2],
    "cut": lambda content: content[: len(content) // 3],
    "emptied": lambda content: b"",
    "deleted": lambda content: None,
}


@pytest.mark.parametrize(
    ("harm", "ranks"), [*((harm, 1) for harm in HARMS), ("a digit changed", 2), ("deleted", 2)]
)
def test_a_damaged_past_of_the_metrics_is_named_and_goes_on_when_told_to(
    runner, run, whole, tmp_path, harm, ranks
):
    if ranks == 2:
        run = tmp_path / "pair"
        assert train(runner, run, *PAIR, kill="step:18")[0] == 1
    log = run / "metrics.jsonl"
    content = HARMS[harm](log.read_bytes())
    log.unlink() if content is None else log.write_bytes(content)
    code, told = again(runner, "resume", run)
    assert code == 2, told
    assert str(log) in told and "checkpoint.accept_damaged_metrics=true" in told
    assert (log.read_bytes() if log.exists() else None) == content
    code, told = again(runner, "resume", run, "checkpoint.accept_damaged_metrics=true")
    assert code == 0, told
    assert "accepted" in told
    if ranks == 1:
        found = differences(run, whole)
        assert {name.split(":")[0] for name in found} <= {"metrics.jsonl", "values"}, found
        assert all("metrics_" in name for name in found if name.startswith("values"))
    # what was accepted was accepted once
    assert "accept_damaged_metrics: false" in (run / "config.yaml").read_text()
    log.write_bytes(b"")
    assert again(runner, "resume", run, "trainer.max_steps=24")[0] == 2


def test_rows_after_the_checkpoint_are_cut_as_before(runner, run, whole):
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"split": "train", "step": 19}\n{"split": "tr')
    assert again(runner, "resume", run)[0] == 0
    assert differences(run, whole) == []

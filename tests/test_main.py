"""`python -m runner` as a process: what it imports, what it prints, how it ends."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from importlib import metadata
from unittest.mock import Mock

import pytest

from runner.__main__ import main
from runner.errors import ConfigError, DataError, system_errors
from tests.conftest import ROOT, TINY, python

HEAVY = {"torch", "torchrec", "fbgemm_gpu", "pandas", "wandb", "tensorboard", "sklearn"}

# Runs command lines one after the other in one process, and lists the modules imported so far.
WATCH = """
import contextlib, io, json, sys
from runner.__main__ import main
seen = {}
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(line)
    seen[" ".join(line)] = (code, sorted({m.split(".")[0] for m in sys.modules}))
print(json.dumps(seen))
"""


@pytest.mark.long
def test_questions_and_mistakes_are_answered_without_importing_anything_heavy(tmp_path):
    lines = {
        "ls": 0,
        "ls model": 0,
        "--help": 0,
        "--cfg job": 0,
        "--cfg all optimizer=adam": 0,
        "reume": 2,
        "optimizer=adm lr=3": 2,
        "trainer.batch_size=0": 2,
        "hydra.run.dir=/dev/null/x": 2,
        "resume nowhere": 2,
        "-m seed=1,2 trainer.amp_dtype=x": 2,
        f"-m seed=1,2 --dry-run hydra.sweep.dir={tmp_path}/sweep": 0,
    }
    done = python("-c", WATCH, json.dumps([line.split() for line in lines]))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert {line: code for line, (code, _) in seen.items()} == lines
    assert {line: HEAVY & set(modules) for line, (_, modules) in seen.items()} == {
        line: set() for line in lines
    }
    assert "hydra" not in seen["ls"][1]  # verbs come before Hydra


@pytest.mark.long
def test_the_run_directory_is_whole_before_torch_is_imported(tmp_path):
    """torch is made impossible to import: the run fails there, its record complete."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from runner.__main__ import main\n"
        "sys.exit(main(['hydra.run.dir=run', 'trainer.max_steps=2']))"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "import of torch halted" in done.stderr
    assert (tmp_path / "run" / "config.yaml").read_text().count("max_steps: 2") == 1
    assert json.loads((tmp_path / "run" / "meta.json").read_text())["signature"]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.long
def test_as_a_module_it_ends_with_the_exit_code_and_one_message(tmp_path):
    done = python("-m", "runner", "optimizer=adm", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: optimizer=adm: no such option")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_ends_quietly():
    done = subprocess.run(
        f"{sys.executable} -m runner ls | head -1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "model\n"
    assert done.stderr == ""


def test_schema_behind_a_closed_pipe_ends_with_0(tmp_path):
    (tmp_path / "t.csv").write_text("click,a\n0,x\n1,y\n0,z\n")
    read, write = os.pipe()
    os.close(read)
    for words, streams in (
        (("--out", "t.yaml"), {"stdout": write, "stderr": subprocess.PIPE}),
        ((), {"stdout": subprocess.PIPE, "stderr": write}),
    ):
        command = [sys.executable, "-m", "runner", "schema", "t.csv", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, **streams)
        assert done.returncode == 0 and not done.stderr
        text = done.stdout or (tmp_path / "t.yaml").read_bytes()
        assert b"\nlabels:" in text
    os.close(write)


@pytest.mark.long
def test_a_process_may_be_started_without_standard_streams(tmp_path):
    """No file gets the number of a stream, and none receives what is printed."""
    words = "dataset.rows.train=2000 dataset.rows.validation=500 dataset.rows.test=500"
    command = f"{sys.executable} -m runner {words} trainer.max_steps=2 hydra.run.dir=run"
    done = subprocess.run(
        f"{command} <&- >&- 2>&-",
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    log = (tmp_path / "run" / "log.txt").read_text()
    assert done.returncode == 0, log
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == 2


def test_what_an_optimised_python_cannot_read_is_a_mistake_without_a_traceback(tmp_path):
    done = python("-O", "-m", "runner", "dataset.rows={train: 64}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: dataset.rows={train: 64}: cannot be read under python -O")


@pytest.mark.parametrize("is_full", [False, True])
def test_a_message_that_nobody_can_read_changes_no_exit_code(is_full):
    """A training says a line before it begins: it began nothing, and behind a pipe ended with 0."""
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "w") as full, os.fdopen(write, "w") as closed:
        words = [sys.executable, "-m", "runner", "optimizer=adm"]
        done = subprocess.run(words, cwd=ROOT, stderr=full if is_full else closed, check=False)
    assert done.returncode == 2


@pytest.mark.parametrize("words", ["resume NAME", "report NAME", "-m seed=1 hydra.sweep.dir=NAME"])
def test_a_name_that_is_too_long_is_told_without_a_traceback(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words.replace("NAME", name := "x" * 300).split()) == 2
    shown = capsys.readouterr().err
    assert name in shown and "name this long" in shown
    assert "Traceback" not in shown


def test_a_file_that_may_not_be_read_is_told_without_a_traceback(monkeypatch, capsys):
    def read_meta(folder):
        raise PermissionError(errno.EACCES, "Permission denied", f"{folder}/meta.json")

    monkeypatch.setattr("runner.rundir.find_run.read_meta", read_meta)
    assert main(["export", "locked", "--out", "model"]) == 2
    assert capsys.readouterr().err == "error: locked/meta.json: Permission denied\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_file_without_room_is_told_without_a_traceback(monkeypatch, capsys, number):
    monkeypatch.setattr("runner.rundir.find_run.read_meta", Mock(side_effect=OSError(number, "x")))
    assert main(["export", "locked", "--out", "model"]) == 1
    told = "error: x: where this command writes; with more room, the same command goes on\n"
    assert capsys.readouterr().err == told


def test_out_of_memory_is_told_without_a_traceback_and_with_the_limit(monkeypatch, capsys):
    unlimited, read_meta = (resource.RLIM_INFINITY,) * 2, Mock(side_effect=MemoryError)
    monkeypatch.setattr("runner.rundir.find_run.read_meta", read_meta)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert main(["export", "run", "--out", "model"]) == 1
    assert capsys.readouterr().err == "error: out of memory: MemoryError\n"
    read_meta.side_effect = ImportError("libtorch.so: failed to map segment from shared object")
    assert main(["export", "run", "--out", "model"]) == 1
    assert "Traceback" in capsys.readouterr().err  # of a file system that forbids to run files
    monkeypatch.setattr(resource, "getrlimit", lambda _: (700_000_000, unlimited[0]))
    assert main(["export", "run", "--out", "model"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: out of memory: libtorch.so: failed to map segment from")
    assert "may take 0.7 GB of address space" in told


def test_a_lost_output_of_a_command_that_is_done_is_told_as_such():
    shown = f"{sys.executable} -m runner ls model > /dev/full"
    done = subprocess.run(shown, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "error: No space left on device: what this command prints is not complete. The command "
        "itself is done, and the files that it wrote are whole\n"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_is_a_failure_also_where_a_command_names_the_file(number, monkeypatch, capsys):
    def fail(words, allow):
        with system_errors("--html page.html: cannot be written"):
            raise OSError(number, os.strerror(number), "page.html.tmp")

    monkeypatch.setattr("runner.__main__.run_verb", fail)
    assert main(["report", "run", "--html", "page.html"]) == 1
    told = f"error: --html page.html: cannot be written: {os.strerror(number)}; with more room, "
    assert capsys.readouterr().err == f"{told}the same command goes on\n"


def test_a_full_disk_is_known_where_the_writer_of_weights_has_errors_of_its_own(tmp_path):
    out = str(tmp_path / "weights.safetensors")
    write = f"write_weights(Path({out!r}), {{'w': np.zeros(10_000)}})"
    code = f"""
import resource, numpy as np
from pathlib import Path
from runner import __main__
from runner.serving.artifact.loaded_graph import write_weights
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
__main__.run_verb = lambda words, allow: {write}
raise SystemExit(__main__.main(["export"]))
"""
    done = python("-c", code)
    assert (done.returncode, "with more room" in done.stderr) == (1, True), done.stderr


def test_a_rank_that_no_launcher_has_set_hides_no_message(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert main(["resume", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_character_that_the_terminal_lacks_is_printed_otherwise(tmp_path):
    run = tmp_path / "ü ±"
    run.mkdir()
    (run / "data.csv").write_text("label,größe\n1,2.5\n0,3.5\n")
    done = python("-m", "runner", "schema", str(run / "data.csv"), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfe" in done.stdout


def test_a_character_that_a_plain_locale_lacks_is_printed_otherwise():
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    code = "from runner.__main__ import *; mask_standard_streams(); print(chr(252))"
    assert python("-c", code, **plain).stdout == "\\xfc\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_name_that_is_no_text_is_told_before_anything_is_written(encoding, tmp_path):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0"} if encoding == "ascii" else {}
    run_dir = os.fsencode(tmp_path) + b"/gr\xf6"
    command = [sys.executable, "-m", "runner", b"hydra.run.dir='" + run_dir + b"'"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | plain, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"gr\\udcf6: this name is no {encoding} text" in done.stderr
    assert ("PYTHONUTF8=1" in done.stderr) == bool(plain) and not list(tmp_path.iterdir())


def test_a_name_in_the_data_that_is_no_text_is_told_without_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr("runner.rundir.find_run.read_meta", lambda run: "a/gr\udcf6/x".encode())
    assert main(["export", "locked", "--out", "model"]) == 2
    told = (
        "error: a/gr\\udcf6/x: this name is no utf-8 text, so that no file can name it; rename it\n"
    )
    assert capsys.readouterr().err.encode(errors="backslashreplace").decode() == told


@pytest.mark.long
@pytest.mark.parametrize("words", [["hydra.run.dir=run"], ["-m", "seed=1,2"]], ids=["run", "sweep"])
def test_a_run_in_a_folder_whose_name_is_no_text_is_refused_before_anything_is_written(
    words, tmp_path
):
    here = os.fsencode(tmp_path) + b"/gr\xf6"
    os.mkdir(here)
    done = python("-m", "runner", *TINY, *words, cwd=here)
    assert done.returncode == 2
    assert "gr\\udcf6: this name is no utf-8 text" in done.stderr and not os.listdir(here)


def test_a_record_that_cannot_be_reached_is_told_by_the_folder_whose_name_is_no_text(
    monkeypatch, capsys
):
    def read(run):
        try:
            "/gr\udcf6/a.parquet".encode()
        except ValueError as error:
            raise DataError(f"the fitted transforms cannot be read: {error}") from error

    monkeypatch.setattr("runner.rundir.find_run.read_meta", read)
    assert main(["export", "locked", "--out", "model"]) == 2
    assert "a.parquet: this name is no utf-8 text" in capsys.readouterr().err


def test_a_file_that_is_named_like_a_module_of_others_is_told(tmp_path):
    (tmp_path / "yaml.py").touch()
    (tmp_path / "own.py").touch()
    done = python("-m", "runner", "ls", "model", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"imported from {tmp_path} in place of Python's or a library's: yaml.py; rename" in last
    assert python("-P", "-m", "runner", "ls", "model", cwd=tmp_path).returncode == 0


@pytest.mark.long
def test_processes_that_a_command_starts_import_nothing_from_its_folder_either(tmp_path):
    (tmp_path / "numpy.py").touch()
    words = ("-m", "seed=1", *TINY, "trainer.max_steps=1", "hydra.sweep.dir=sweep")
    done = python("-P", "-m", "runner", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_gone_is_told_without_a_traceback(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["trainer.max_steps=1"]) == 2
    assert capsys.readouterr().err.endswith("started is gone; cd to another\n")


def test_a_message_finds_a_closed_output(tmp_path):
    shown = f"{sys.executable} -m runner optimizer=adm >&-"
    done = subprocess.run(shown, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: optimizer=adm: no such option")


def test_cfg_shows_the_configuration_in_hydras_ways(command):
    code, out, _ = command("--cfg", "job", "seed=41", "trainer.max_steps=3")
    assert code == 0
    assert "seed: 41\n" in out
    assert "  max_epochs: null\n" in out  # what would run, displaced key included
    assert "hydra:" not in out
    _, out, _ = command("--cfg", "job", "--package", "optimizer.dense", "optimizer=sgd")
    assert out.startswith("# @package optimizer.dense\n_target_: torch.optim.SGD\n")
    _, out, _ = command("seed=${trainer.log_every}", "-c", "job", "--resolve")
    assert "seed: 50\n" in out
    _, out, _ = command("--cfg", "all")
    assert "\nhydra:\n" in out
    assert "nearest" in command.refused("--cfg", "job", "sed=1")


def test_help_names_verbs_flags_and_groups_on_one_screen(command):
    code, out, _ = command("--help")
    assert code == 0
    for part in ("  resume     ", "--allow PACKAGE", " optimizer, ", "python -m runner ls model "):
        assert part in out
    assert len(out.splitlines()) <= 50
    assert max(map(len, out.splitlines())) <= 100


def test_the_version_is_our_own_and_of_what_we_stand_on(command):
    code, out, _ = command("--version")
    assert code == 0 and out.startswith("runner 0.")
    assert f"\ntorch {metadata.version('torch')}\n" in out


def test_flags_may_stand_anywhere(command):
    code, out, _ = command("seed=4", "--cfg", "job", "optimizer=sgd", "--package", "seed")
    assert (code, out) == (0, "# @package seed\n4\n")
    code, out, _ = command("--cfg", "job", "--package", "trainer.max_steps")
    assert (code, out) == (0, "# @package trainer.max_steps\nnull\n")


def test_hydras_own_questions_are_hydras(tmp_path):
    done = python("-m", "runner", "--info", "searchpath", cwd=tmp_path)
    assert done.returncode == 0
    assert "experiments://" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--info config trainer.max_stps=3", "--info: Could not override 'trainer.max_stps'"),
        ("--info defaults model=foo", "--info: In 'config': Could not find 'model/foo'"),
        ("--shell-completion x=y", "--shell-completion: Expecting one subcommand from"),
    ],
)
def test_what_hydra_cannot_answer_is_a_mistake_without_a_traceback(words, said, tmp_path):
    done = python("-m", "runner", *words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {said}")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_said_on_stdout_by_a_plain_run(command):
    _, out, err = command("hydra.run.dir=run", "trainer.max_steps=3")
    assert out == ""
    assert "displaces trainer.max_epochs=1" in err


def test_an_interruption_during_the_first_imports_ends_without_a_traceback():
    # argv[0] is "-m" while Python locates the package of `python -m runner`
    code = "import sys; sys.argv[0] = '-m'; import runner, os, signal; os.kill(os.getpid(), 2)"
    done = python("-c", f"{code}; import time; time.sleep(9)")
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_interruption_of_a_text_that_is_executed_ends_with_the_code_too(tmp_path):
    """As `python -m`, Python ended with the signal: an import had executed a text meanwhile."""
    (tmp_path / "cli.py").write_text(
        "import sys\nfrom runner import __main__\n"
        "__main__.is_verb = lambda word: [exec('raise KeyboardInterrupt')]\n"
        "sys.exit(__main__.main(['ls']))\n"
    )
    done = python("-m", "cli", cwd=tmp_path, PYTHONPATH=f"{ROOT}")
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_a_closed_terminal_ends_a_command_as_sigterm_does():
    code = (
        "import os, signal; from runner import __main__; "
        "__main__.run_verb = lambda *_: os.kill(os.getpid(), signal.SIGHUP) or 0; __main__.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "ls"],
        cwd=ROOT,
        capture_output=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # `nohup` ignores it
    )
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, b"")


def test_an_import_of_the_package_leaves_interruptions_alone():
    assert "KeyboardInterrupt" in python("-c", "import runner, os; os.kill(os.getpid(), 2)").stderr


@pytest.mark.parametrize("kind", [ConfigError, AttributeError])
def test_an_interruption_that_a_library_turns_into_an_error_is_one(monkeypatch, capsys, kind):
    def compose(*_, **__):
        try:
            try:
                raise KeyboardInterrupt
            finally:  # as OmegaConf's: it restores what is only half there
                None._set_flag()
        except AttributeError as error:
            raise kind(str(error)) from None

    monkeypatch.setattr("runner.config.compose.compose_job", compose)
    assert main(["trainer.max_steps=1"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"

"""Fixtures of the whole suite: a cache of its own, and real runner processes that start quickly."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import zygote

# Bytecode is written also where the environment turns that off, for this process and those that it
# starts: else each compiles all of the runner's modules, and pytest those of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["COLUMNS"] = "120"  # tables leave columns out on a narrow terminal
os.environ["RUNNER_CHECK_COLLECTIVES"] = "1"  # in all tests of ranks
# pytest's workers share the cores, and a sum over one thread is the same in whatever process
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GOMP_SPINCOUNT"] = "0"
# a shell starts what it puts into the background with SIGINT ignored, which children would inherit
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = Path(__file__).resolve().parent.parent
# On a busy machine examples are slow to draw, which is no failure of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
TINY = zygote.TINY


def pytest_configure(config: pytest.Config) -> None:
    """Work out which eighth of the long tests is run; all are without LONG_TESTS."""
    which = os.environ.get("LONG_TESTS", "")
    if which == "eighth":  # another one with each commit, and the same one for the same commit
        command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        which = os.environ["LONG_TESTS"] = str(int(commit or "0", 16) % 8)
    if which not in ("", *"01234567"):
        raise pytest.UsageError(f"LONG_TESTS={which}: it is eighth, a digit from 0 to 7 or empty")


def pytest_report_header() -> str:
    which = os.environ.get("LONG_TESTS", "")
    return f"long tests: eighth {which} of 0 to 7 (LONG_TESTS= runs all)" if which else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (which := os.environ.get("LONG_TESTS", "")):
        return
    is_left_out = lambda item: (
        item.get_closest_marker("long") and zlib.crc32(item.nodeid.encode()) % 8 != int(which)
    )
    left_out = [item for item in items if is_left_out(item)]
    items[:] = [item for item in items if not is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Let no later collection of Python's visit the imported modules and the collected tests."""
    gc.freeze()


@dataclass
class Process:
    pid: int
    output: Path
    zygote: Zygote

    def wait(self) -> int:
        return self.zygote.ask({"wait": self.pid})["code"]

    def finish(self) -> Finished:
        return Finished(self.wait(), self.text)

    def wait_until_training(self, run: Path) -> None:
        log = run / "metrics.jsonl"
        for _ in range(1200):
            if log.exists() and log.stat().st_size:
                return
            time.sleep(0.05)
        raise AssertionError(f"never trained:\n{self.text}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    @property
    def text(self) -> str:
        return self.output.read_text()


@dataclass(frozen=True)
class Finished:
    code: int
    text: str

    def check(self, code: int = 0) -> Finished:
        """Fail with what was said, unless it ended with this code."""
        assert self.code == code, self.text
        return self


class Zygote:
    """`python -m runner` as forks of one process that has imported everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if zygote.is_warm:  # this process is a fork of one
            self.pid, self.requests, self.answers = zygote.fork_server()
        else:
            env = dict(os.environ, GOMP_SPINCOUNT="0", PYTHONPATH=str(ROOT))
            # else a look for a GPU, as FBGEMM's import has one, would leave forks without it
            env["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
            server = subprocess.Popen(
                [sys.executable, "-c", "from tests.zygote import serve; serve()"],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert server.stdin is not None and server.stdout is not None
            self.pid, self.requests, self.answers = server.pid, server.stdin, server.stdout
        self.count = self.asked = 0
        self.ask({"ready": True})  # its imports count for no test's limit of time

    def close(self) -> None:
        self.requests.close()
        os.waitpid(self.pid, 0)

    def ask(self, request: Mapping) -> dict:
        self.asked += 1
        self.requests.write(json.dumps({**request, "number": self.asked}) + "\n")
        self.requests.flush()
        while True:  # a test that ran out of time has left its answer behind
            answer = json.loads(self.answers.readline())
            if answer["number"] == self.asked:
                return answer

    def start(
        self,
        *args: str,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        entry: str = "runner.__main__:main",
    ) -> Process:
        self.count += 1
        output = self.folder / f"output-{self.count}.txt"
        now = {k: v for k, v in os.environ.items() if k == "RUNNER_CACHE"}
        request = {"args": args, "cwd": str(cwd), "env": {**now, **(env or {})}, "entry": entry}
        answer = self.ask({**request, "output": str(output)})
        return Process(answer["pid"], output, self)

    def run(self, *args: str, **more) -> Finished:
        return self.start(*args, **more).finish()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of prepared data for this test session, never the user's."""
    if "PYTEST_XDIST_TESTRUNUID" in os.environ:
        folder = Path(tempfile.gettempdir()) / f"runner-{os.environ['PYTEST_XDIST_TESTRUNUID']}"
        folder.mkdir(exist_ok=True)  # shared by the workers: it is locked while it is filled
    else:
        folder = tmp_path_factory.mktemp("cache")
    os.environ["RUNNER_CACHE"] = str(folder)
    yield folder


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """One thread for torch in each test; one that takes more leaves it at that."""
    if "torch" in sys.modules:  # otherwise OMP_NUM_THREADS tells torch when it is imported
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of prepared data for one test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("RUNNER_CACHE", str(folder))
    return folder


@pytest.fixture
def time_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """An error in a test that takes longer than the `LIMIT_S` of its module."""
    limit_s = request.module.LIMIT_S

    def stop(signum: int, frame: object) -> None:
        raise TimeoutError(f"still waiting after {limit_s} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit_s)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Zygote]:
    runner = Zygote(tmp_path_factory.mktemp("runner"))
    yield runner
    runner.close()


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs command lines in this process, with stand-ins for the jobs."""
    from tests.fake_job import fake_command

    return fake_command(monkeypatch, capsys, tmp_path)


def python(*words: str, cwd: Path | bytes = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that starts afresh."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def forget_config_record(run: Path) -> None:
    """Let a planted `config.yaml` pass as the run's own, as an attacker's or an old run's would."""
    meta = json.loads((run / "meta.json").read_text())
    del meta["config_sha256"]
    (run / "meta.json").write_text(json.dumps(meta))


def shared_data(name: str) -> Path:
    """A real data set beside the project; skips the test where it is not there."""
    path = ROOT.parent / "shared" / "data" / name
    if not path.exists():
        pytest.skip(f"real data set {name} is not there")
    return path

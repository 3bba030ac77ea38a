"""Fault 19: files and settings that want to run code, write elsewhere or spread a secret.

Real processes. A canary file, made by every payload if it ran, must not be there; nothing may be
written outside the run and the cache; the secret of the environment may be in no file.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.conftest import Zygote, forget_config_record
from tests.data.clicks import clicks
from tests.fault_table import Table

SECRET = "sk-canary-9d41c7e2"
QUICK = (
    "trainer.max_steps=2", "trainer.batch_size=32", "trainer.num_threads=1",
    "model.net.bottom=[4]", "model.net.top=[4]", "model.net.embedding_dim=4",
    "dataset.rows={train: 200, validation: 50, test: 50}", "dataset.max_cardinality=20",
)  # fmt: skip
PLAIN = "labels: [click]\nnumeric: [rating]\ncategorical: {user: {num_rows: 100}}\n"
CITIES = "labels: [click]\nnumeric: [rating]\ncategorical: {city: {encode: vocabulary}}\n"
CANARY = "CANARY"  # stands for the canary's path
TARGETS = (
    "os.system", "subprocess.run", "builtins.eval", "builtins.exec", "pickle.loads", "torch.load",
    "runner.training.builder.device.os.system",
    "runner.data.core.cache.shutil.rmtree", "runner.training.builder.__builtins__",
    "runner.config.targets.importlib.import_module",
    "torch.nn.modules.module.torch.load", "numpy.load",
)  # fmt: skip
# Functions of our own that run a command or build what they are told, with arguments for it
OURS = {
    "runner.sweep.hydra_launcher.submit": {
        "request": {"launcher": "basic", "settings": [], "place": "x", "command": ["/bin/mkdir"]}
    },
    "runner.distributed.parent_death.become_job": {"parent": 1},
    "runner.remote.train_on_cluster": {"request": {"words": ["--version"], "dir": CANARY}},
    "runner.training.builder.instantiate.instantiate": {
        "node": {"command": f"mkdir {CANARY}"}, "allowed": ["os"]
    },
    "runner.rundir.json_files.write_json": {"path": CANARY, "value": 1},
}  # fmt: skip
PLACES = (
    "dataset", "loop", "task", "model.net", "model.loss", "optimizer.dense", "tracker.mine",
    "callbacks.mine",
)  # fmt: skip
KEYS = ("model.net", "model.loss", "dataset", "optimizer.dense", "task", "loop")


class Bomb:
    """Creates the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple:
        return (os.mkdir, (str(self.canary),))


def attacks(table: Table, top: Path, *, short: bool) -> None:
    """Run 90 attacks."""
    table.fault = "19: attacks and secrets"
    scene = Scene(table.runner(), top)
    every = [
        *targets(scene), *functions(scene), *tagged(scene), *pickles(scene), *paths(scene),
        *secrets(scene),
    ]  # fmt: skip
    for number, (name, attack) in enumerate(every):
        if not short or number % 15 == 0:
            table.judge(name, lambda attack=attack: scene.judged(attack))


class Scene:
    """A place to work in, a finished run to attack, and the canary."""

    def __init__(self, runner: Zygote, top: Path) -> None:
        self.runner, self.top, self.count = runner, top, 0
        self.canary = top / "canary"
        self.data = top / "clicks.parquet"
        pq.write_table(clicks(300), self.data)
        self.home = top / "home"
        self.home.mkdir()
        self._run: Path | None = None

    def judged(self, attack: Callable[[Path], str]) -> str:
        self.count += 1
        folder = self.top / f"case-{self.count}"
        folder.mkdir()
        outside = set(self.top.iterdir())
        told = attack(folder)
        assert not self.canary.exists(), "code was run"
        new = {p.name for p in self.top.iterdir()} - {p.name for p in outside}
        assert not new, f"written elsewhere: {new}"
        return told

    def run(self, folder: Path, *arguments: str) -> tuple[int, str]:
        env = {"RUNNER_CACHE": str(folder / "cache"), "SECRET": SECRET}
        done = self.runner.run(*arguments, cwd=folder, env=env)
        return done.code, done.text

    def refused(self, folder: Path, *arguments: str, says: str = "") -> str:
        code, shown = self.run(folder, *arguments)
        assert code == 2, f"exit code {code}: {shown[-400:]}"
        assert says in shown, shown[-400:]
        return "refused"

    def finished_run(self, folder: Path) -> Path:
        """Copy a run on a table with a fitted vocabulary."""
        if self._run is None:
            home = self.home
            (home / "schema.yaml").write_text(CITIES)
            words = [w for w in QUICK if not w.startswith("dataset.")]
            code, shown = self.run(
                home, "dataset=parquet", "dataset.schema=schema.yaml",
                f"dataset.path={self.data}", "hydra.run.dir=run", *words,
            )  # fmt: skip
            assert code == 0, shown
            self._run = home / "run"
        shutil.copytree(self._run, folder / "run")
        shutil.copy(self._run.parent / "schema.yaml", folder / "schema.yaml")
        return folder / "run"


def targets(scene: Scene) -> list:
    """List 18 `_target_`s: on the command line, in an option file, in a run's configuration."""
    found = []
    for number, target in enumerate(TARGETS):
        key = KEYS[number % len(KEYS)]

        def by_word(folder: Path, key=key, target=target) -> str:
            return scene.refused(folder, f"{key}._target_={target}", f"+{key}.args=[x]")

        found.append((f"{key}._target_={target}", by_word))
    for target in TARGETS[:3]:

        def by_option(folder: Path, target=target) -> str:
            own = folder / "own" / "tracker"
            own.mkdir(parents=True)
            payload = f"{{_target_: {target}, command: 'mkdir {scene.canary}'}}"
            (own / "mine.yaml").write_text(f"mine: {payload}\n")
            return scene.refused(folder, "--config-dir", "own", "tracker=mine", *QUICK)

        def by_run(folder: Path, target=target) -> str:
            run = scene.finished_run(folder)
            text = (run / "config.yaml").read_text()
            (run / "config.yaml").write_text(
                text.replace("runner.training.update.task.Supervised", target)
            )
            forget_config_record(run)
            return scene.refused(folder, "loop=eval", "run=run")

        found += [(f"option with {target}", by_option), (f"run with {target}", by_run)]
    return found


def functions(scene: Scene) -> list:
    """List 40 runs whose configuration names a function of ours where a part belongs."""
    verbs = (
        ("loop=eval", "run=run"), ("loop=debug", "run=run"), ("reproduce", "run"),
        ("schedule", "run", "trainer.max_epochs=1"),
    )  # fmt: skip
    found = []
    for number, (target, place) in enumerate(itertools.product(OURS, PLACES)):
        words: tuple[str, ...] = verbs[number % 3]
        if place == "loop":  # the other commands have loops of their own
            words = ("reproduce", "run")
        elif place == "dataset" and number % 2:
            words = verbs[3]

        def attack(folder: Path, target=target, place=place, words=words) -> str:
            run = scene.finished_run(folder)
            settings = json.loads(json.dumps(OURS[target]).replace(CANARY, str(scene.canary)))
            config = yaml.safe_load((run / "config.yaml").read_text())
            *above, last = place.split(".")
            node = config
            for name in above:
                node = node[name]
            node[last] = {"_target_": target, **settings}
            (run / "config.yaml").write_text(yaml.safe_dump(config))
            forget_config_record(run)
            told = "is not an optimizer" if place == "optimizer.dense" else "not a"
            return scene.refused(folder, *words, says=f"{place}._target_={target}: {told}")

        found.append((f"{place}: {target} by {words[0]}", attack))
    return found


def tagged(scene: Scene) -> list:
    """List 6 YAML files with tags that build Python objects."""
    payload = f"!!python/object/apply:os.mkdir ['{scene.canary}']"

    def schema(text: str) -> Callable[[Path], str]:
        def attack(folder: Path) -> str:
            (folder / "schema.yaml").write_text(text)
            return scene.refused(
                folder, "dataset=parquet", "dataset.schema=schema.yaml",
                f"dataset.path={scene.data}",
            )  # fmt: skip

        return attack

    def option(folder: Path) -> str:
        (folder / "own" / "tracker").mkdir(parents=True)
        (folder / "own" / "tracker" / "mine.yaml").write_text(f"mine: {payload}\n")
        code, shown = scene.run(folder, "--config-dir", "own", "tracker=mine", *QUICK)
        assert code in (1, 2), shown
        return "refused"

    def experiment(folder: Path) -> str:
        (folder / "own" / "experiments").mkdir(parents=True)
        text = f"# @package _global_\nname: {payload}\n"
        (folder / "own" / "experiments" / "mine.yaml").write_text(text)
        code, shown = scene.run(folder, "--config-dir", "own", "experiments=mine", *QUICK)
        assert code in (1, 2), shown
        return "refused"

    def in_run(folder: Path) -> str:
        run = scene.finished_run(folder)
        with (run / "config.yaml").open("a") as file:
            file.write(f"planted: {payload}\n")
        code, shown = scene.run(folder, "loop=eval", "run=run")
        assert code in (1, 2), shown
        return "refused"

    return [
        ("tag in a schema", schema(f"{PLAIN}groups: {payload}\n")),
        ("tag as a schema", schema(payload)),
        ("tag as a path", schema(f"{PLAIN}validation_path: {payload}\n")),
        ("tag in an option", option),
        ("tag in an experiment", experiment),
        ("tag in a run", in_run),
    ]


def pickles(scene: Scene) -> list:
    """List 10 pickles where tensors, tables or JSON are expected."""
    bomb = pickle.dumps(Bomb(scene.canary))

    def planted(pattern: str, *arguments: str, fine: bool = False) -> Callable[[Path], str]:
        def attack(folder: Path) -> str:
            run = scene.finished_run(folder)
            hit = sorted(run.glob(pattern)) or [run / pattern]
            for path in hit:
                path.write_bytes(bomb)
            code, shown = scene.run(folder, *arguments)
            assert (code == 0) == fine, f"exit code {code}: {shown[-400:]}"
            return "passed over" if fine else "refused"

        return attack

    def as_data(name: str, schema: str = PLAIN) -> Callable[[Path], str]:
        def attack(folder: Path) -> str:
            (folder / name).write_bytes(bomb)
            (folder / "schema.yaml").write_text(schema)
            return scene.refused(
                folder, "dataset=parquet", "dataset.schema=schema.yaml", f"dataset.path={name}"
            )

        return attack

    def extension(folder: Path) -> str:
        """Put a pickle into a schema's metadata, as old versions of Arrow did for Python types."""
        whole = clicks(50)
        marked = whole.schema.field("user").with_metadata(
            {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": bomb}
        )
        place = whole.schema.get_field_index("user")
        pq.write_table(whole.cast(whole.schema.set(place, marked)), folder / "x.parquet")
        (folder / "schema.yaml").write_text(PLAIN)
        words = [w for w in QUICK if not w.startswith("dataset.")]
        code, shown = scene.run(
            folder, "dataset=parquet", "dataset.schema=schema.yaml", "dataset.path=x.parquet",
            "loop=debug", "loop.max_steps=1", *words[1:],
        )  # fmt: skip
        assert code in (0, 2), shown
        return "read as what it is"

    def array(folder: Path) -> str:
        np.save(folder / "x.npy", np.array([Bomb(scene.canary)], object), allow_pickle=True)
        (folder / "schema.yaml").write_text(PLAIN)
        words = ("dataset=parquet", "dataset.schema=schema.yaml")
        return scene.refused(folder, *words, "dataset.path=x.npy")

    evaluate = ("loop=eval", "run=run")
    return [
        ("pickle as tensors", planted("checkpoints/*/*.safetensors", *evaluate)),
        ("pickle as JSON of a checkpoint", planted("checkpoints/*/*.json", *evaluate)),
        ("pickle beside tensors", planted("checkpoints/step-2/.metadata", *evaluate)),
        ("pickle as fitted transforms", planted("data/learnt.json", *evaluate)),
        ("pickle as a vocabulary", planted("data/vocabulary-0.parquet", *evaluate)),
        ("pickle as a record", planted("meta.json", *evaluate)),
        ("pickle as Parquet", as_data("x.parquet")),
        ("pickle as a schema", lambda folder: as_schema(scene, folder, bomb)),
        ("pickle in Arrow's metadata", extension),
        ("pickle in an array", array),
    ]


def as_schema(scene: Scene, folder: Path, bomb: bytes) -> str:
    (folder / "schema.yaml").write_bytes(bomb)
    words = ("dataset=parquet", "dataset.schema=schema.yaml")
    return scene.refused(folder, *words, f"dataset.path={scene.data}")


def paths(scene: Scene) -> list:
    """List 8 names that lead out of the folder they belong to."""

    def named(name: str, schema: str) -> Callable[[Path], str]:
        def attack(folder: Path) -> str:
            whole = clicks(300)
            names = [name if n == "city" else n for n in whole.column_names]
            pq.write_table(whole.rename_columns(names), folder / "x.parquet")
            (folder / "schema.yaml").write_text(schema)
            words = [w for w in QUICK if not w.startswith("dataset.")]
            code, shown = scene.run(
                folder, "dataset=parquet", "dataset.schema=schema.yaml", "dataset.path=x.parquet",
                "hydra.run.dir=run", "tracker=tensorboard", *words,
            )  # fmt: skip
            assert code in (0, 2), f"exit code {code}: {shown[-400:]}"
            made = {p.name for p in folder.iterdir()}
            assert made <= {"x.parquet", "schema.yaml", "run", "cache", "outputs"}, made
            return "a name like others" if code == 0 else "refused"

        return attack

    city = 'labels: [click]\nnumeric: [rating]\ncategorical: {"%s": {encode: vocabulary}}\n'
    up = "../../../escaped"
    return [
        ("column of that name", named(up, city % up)),
        ("absolute column", named(str(scene.top / "escaped"), city % (scene.top / "escaped"))),
        ("carried column", named(up, f'{PLAIN}carried: ["{up}"]\n')),
        ("group", named(up, f'{PLAIN}groups: ["{up}"]\n')),
        ("task", named("city", f'labels: {{"{up}": {{column: click}}}}\nnumeric: [rating]\n'
                               "categorical: {user: {num_rows: 100}}\n")),
        ("table", named("city", CITIES.replace("vocabulary", f'vocabulary, table: "{up}"'))),
        ("name", lambda folder: scene.refused(folder, f"name={up}", *QUICK)),
        ("data path", lambda folder: scene.refused(
            folder, "dataset=parquet", "dataset.path=../../../../etc/passwd",
            "dataset.schema={labels: [click]}", says="not a readable Parquet file")),
    ]  # fmt: skip


def secrets(scene: Scene) -> list:
    """List 8 ways for a secret to enter a configuration; no file may hold it afterwards."""

    def hidden(*arguments: str, code: int = 0, bad: bool = False) -> Callable[[Path], str]:
        def attack(folder: Path) -> str:
            place = folder / SECRET  # a folder whose name is secret, as a token in a URL is
            place.mkdir()
            whole = clicks(300)
            if bad:
                column = pa.array([*whole["user"].to_pylist()[:-1], 10_000])
                whole = whole.set_column(whole.schema.get_field_index("user"), "user", column)
            pq.write_table(whole, place / "x.parquet")
            (folder / "schema.yaml").write_text(PLAIN)
            found, shown = scene.run(folder, "hydra.run.dir=run", *arguments)
            assert found == code, f"exit code {found}: {shown[-400:]}"
            for path in (p for p in folder.rglob("*") if p.is_file() and p.parent != place):
                assert SECRET.encode() not in path.read_bytes(), f"in {path.relative_to(folder)}"
                assert SECRET not in path.name
            return "hidden"

        return attack

    words = [w for w in QUICK if not w.startswith("dataset.")]
    table = ("dataset=parquet", "dataset.schema=schema.yaml", *words)
    at = "dataset.path=${oc.env:SECRET}/x.parquet"
    skip = ("dataset.on_bad_rows=skip", "trainer.batch_size=32")
    return [
        ("secret in a new key", hidden("+tracker.note='${oc.env:SECRET}'", *QUICK, code=2)),
        ("secret as a path", hidden(at, *table)),
        ("secret as a path, rewritten", hidden(at, "dataset.rewrite=always", *table)),
        ("secret as a path of a bad value", hidden(at, *table, code=2, bad=True)),
        ("secret as a path of a bad value, rewritten", hidden(
            at, "dataset.rewrite=always", *table, code=2, bad=True)),
        ("secret as a path of a skipped value", hidden(at, *skip, *table[1:], "dataset=parquet",
                                                       bad=True)),
        ("secret as a path of nothing", hidden(
            "dataset.path=${oc.env:SECRET}/none.parquet", *table, code=2)),
        ("secret in a schema", hidden(at, *table, "dataset.split={random: {train: 1.0}}")),
    ]  # fmt: skip

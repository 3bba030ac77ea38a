"""Jobs through a launcher plugin of Hydra's: SLURM or local processes (submitit), or Ray.

For each job the sweep starts a local process that submits the job to the plugin and waits for its
end. So slots, retries, time limits, Ctrl-C and the table work as in every sweep. Both machines
must see the run directory under the same path, as on a shared file system.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from runner.config.hydra_text import quote_hydra_value
from runner.errors import ConfigError, UserError, nearest_hint, raise_combined
from runner.machine.imports import missing_extra
from runner.rundir.masked_streams import mask_standard_streams
from runner.rundir.regular_files import open_for_append
from runner.sweep.local_process import (
    JOB_LOG_FILE,
    JobStarter,
    LocalProcess,
    job_command,
    job_environment,
    local_launcher,
)
from runner.sweep.plan import SweepJob, SweepPlan, override_key

# launcher -> the plugin's module, and the extra of this project that installs it
LAUNCHER_PLUGINS = {
    "submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "submitit"),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", "submitit"),
    "ray": ("hydra_plugins.hydra_ray_launcher", "ray"),
}
PLUGIN_DIR = ".launcher"  # in the sweep's folder, for what plugins write
_STOP_FILE = "stop"  # file with the number of a signal, for a job on another machine
_POLL_S = 0.2


def parse_launcher(overrides: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the plugin that a command line names and its settings; None: jobs run here.

    Raises:
        ConfigError: for a plugin that is not known or not installed.
    """
    settings = tuple(o for o in overrides if override_key(o).startswith("hydra.launcher"))
    for setting in settings:
        if "_target_" in setting:
            raise ConfigError(
                f"{setting}: _target_ is not allowed here; give the launcher's settings "
                "plain values"
            )
    named = [o.split("=", 1)[1] for o in overrides if override_key(o) == "hydra/launcher"]
    name = named[-1] if named else "basic"
    if name == "basic":
        if settings:
            raise ConfigError(
                f"{settings[0]}: belongs to hydra/launcher={'|'.join(LAUNCHER_PLUGINS)}"
            )
        return None
    if name not in LAUNCHER_PLUGINS:
        raise ConfigError(
            f"hydra/launcher={name}: not with this runner"
            f"{nearest_hint(name, LAUNCHER_PLUGINS)}; there are {', '.join(LAUNCHER_PLUGINS)}; "
            "launcher.slots=N runs N jobs at once on this machine"
        )
    module, extra = LAUNCHER_PLUGINS[name]
    raise_combined(missing_extra(f"hydra/launcher={name}", extra, module))
    if name == "submitit_slurm" and shutil.which("sbatch") is None:
        raise ConfigError(f"hydra/launcher={name}: there is no sbatch on this machine")
    return name, settings


def choose_launcher(plan: SweepPlan, flags: Sequence[str], name: str) -> JobStarter:
    """Return the launcher of jobs: the plugin that the command line names, or local processes.

    Args:
        flags: words of the command line that are no overrides.
        name: of the sweep, for trackers.
    """
    if plan.launcher_plugin is None:
        return local_launcher(plan, flags, name)
    launcher, settings = plan.launcher_plugin
    env = dict(os.environ)
    if launcher == "ray":
        settings = _join_ray(settings, env)

    def start(job: SweepJob, folder: Path, slot: int) -> LocalProcess:
        place = (folder.parent / PLUGIN_DIR / folder.name).absolute()
        place.mkdir(parents=True, exist_ok=True)
        (place / _STOP_FILE).unlink(missing_ok=True)
        request = {
            "command": job_command(job, folder.absolute(), flags, None),
            "env": job_environment(plan, name),
            "log": str(folder.absolute() / JOB_LOG_FILE),
            "place": str(place),
            "cwd": os.getcwd(),
            "launcher": launcher,
            "settings": settings,
        }
        command = [sys.executable, "-m", "runner.sweep.hydra_launcher", json.dumps(request)]
        return LocalProcess(command, folder / JOB_LOG_FILE, env)

    return start


def _join_ray(settings: Sequence[str], env: dict[str, str]) -> tuple[str, ...]:
    """Return settings with which every job joins the Ray that is named, or one of this sweep.

    They keep the plugin from asking an existing cluster for another object store, which Ray
    refuses. `env` is changed.

    Raises:
        UserError: if Ray does not start here.
    """
    start = "hydra.launcher.ray.init."
    values = {
        override_key(o).removeprefix(start): o.split("=", 1)[1] for o in settings if start in o
    }
    if "address" not in values and "RAY_ADDRESS" not in env:
        import ray

        options = {k: yaml.safe_load(v) for k, v in values.items()}
        try:
            ray.init(include_dashboard=False, log_to_driver=False, **options)
        except Exception as error:  # Ray raises bare exceptions too
            raise UserError(
                f"hydra/launcher=ray: Ray does not start on this machine: {error}"
            ) from error
        env["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        # From 2.60 on such a Ray asks for a token, which everyone who joins it must have.
        env |= {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH_")}
        settings = [o for o in settings if start not in o]
    return (*settings, f"+{start}object_store_memory=null")


def submit(request: Mapping[str, Any]) -> int:
    """Submit one job to the plugin, wait for its end, and return its exit code."""
    from hydra import initialize
    from hydra._internal.callbacks import Callbacks
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext, RunMode

    overrides = [
        f"hydra/launcher={request['launcher']}",
        *request["settings"],
        f"hydra.sweep.dir={quote_hydra_value(request['place'])}",
        "hydra.sweep.subdir=.",
        "hydra.output_subdir=null",
        "hydra/job_logging=none",
    ]
    task = partial(run_on_node, {k: request[k] for k in ("command", "env", "log", "place", "cwd")})
    with initialize(config_path=None, version_base="1.3", job_name="runner"):
        loader = GlobalHydra.instance().config_loader()
        config = loader.load_configuration(None, overrides, run_mode=RunMode.MULTIRUN)
        HydraConfig.instance().set_config(config)
        launcher = Plugins.instance().instantiate_launcher(
            HydraContext(config_loader=loader, callbacks=Callbacks()), task, config
        )
        [returned] = launcher.launch([[]], initial_job_idx=0)
    return int(returned.return_value)


def run_on_node(request: Mapping[str, Any], _: object) -> int:  # with a configuration, of no use
    """Run the job's process to its end, on the machine that the plugin has chosen."""
    stop_file = Path(request["place"]) / _STOP_FILE
    with open_for_append(Path(request["log"])) as output:
        process = subprocess.Popen(
            request["command"],
            cwd=request["cwd"],
            env=dict(os.environ, **request["env"]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        was_stopped = False
        while process.poll() is None:
            if not was_stopped and stop_file.exists():
                was_stopped = True
                process.send_signal(int(stop_file.read_text() or signal.SIGTERM))
            time.sleep(_POLL_S)
    return process.returncode


def _forward_signal(place: Path, number: int, frame: FrameType | None) -> None:
    temporary = place / f"{_STOP_FILE}.new"
    temporary.write_text(str(number))
    os.replace(temporary, place / _STOP_FILE)


def main(text: str) -> int:
    """Run in the process that the sweep has started for one job; `text` is the request as JSON."""
    mask_standard_streams()
    request = json.loads(text)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, partial(_forward_signal, Path(request["place"])))
    code = submit(request)
    if code < 0:  # end in the same way as the job, so that the sweep sees it
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

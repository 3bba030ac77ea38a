"""Where the jobs of a sweep run: on this machine, or through a launcher plugin of Hydra's."""

from __future__ import annotations

from collections.abc import Sequence

from runner.sweep.hydra_launcher import plugin_launcher
from runner.sweep.local_process import JobStarter, local_launcher
from runner.sweep.plan import SweepPlan


def choose_launcher(plan: SweepPlan, flags: Sequence[str], name: str) -> JobStarter:
    """Return what starts jobs: the plugin that the command line names, or processes here.

    Args:
        plan: the sweep.
        flags: words of the command line that are no overrides.
        name: of the sweep, for trackers.
    """
    launcher = local_launcher if plan.launcher_plugin is None else plugin_launcher
    return launcher(plan, flags, name)

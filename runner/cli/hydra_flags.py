"""Flags that only print something: `--cfg`, `--help`, and Hydra's own such as `--info`."""

from __future__ import annotations

import os
import sys
import textwrap

import hydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.cli.commands import VERBS
from runner.cli.flags import Flags
from runner.config.compose import compose_job
from runner.config.groups import register_search_path
from runner.config.locations import CONF
from runner.config.messages import dotted_keys, hydra_error
from runner.config.options import list_groups
from runner.errors import ConfigError, nearest_hint, raise_combined

HELP_TEMPLATE = """\
python -m runner [key=value | group=option ...]    train a job; -m: a sweep
python -m runner VERB ...                          `VERB --help` says more

Verbs
{verbs}

Flags
  --cfg job|hydra|all     print the configuration; --package NODE, --resolve
  -m, --multirun          key=a,b: a job for each; --dry-run only lists them
  --config-dir DIR        a folder of your own groups and options
  --allow PACKAGE         lets `_target_` name your package (also: RUNNER_ALLOW)
  --version               the versions of runner and of its main packages
  --info, --hydra-help, --shell-completion    Hydra's own

Groups
{groups}

Where to look next
  python -m runner ls model                      options of a group, their keys
  python -m runner explain trainer.batch_size    a key, and which file set it
  python -m runner --cfg job                     every key with its value
"""


def answer_hydra_flags(flags: Flags) -> int:
    """Print what the flags request; return the exit code.

    Raises:
        ConfigError: if Hydra, or `--cfg`, cannot print it.
    """
    if flags.help:
        return show_help(flags)
    if flags.cfg:
        return show_config(flags)
    register_search_path(flags.config_dirs)
    # Without it Hydra prints an error and exits with 1; our own main renders its exceptions.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = ["runner", *flags.argv]
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_never)()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        flag = next(word for word in flags.argv if word.startswith("-"))
        raise ConfigError(f"{flag}: {hydra_error(error)}") from error
    return 0


def show_help(flags: Flags) -> int:
    """Print verbs, flags and the names of groups, on one screen."""
    width = max(map(len, VERBS)) + 2
    verbs = [f"  {verb:{width}}{about.rpartition(': ')[2]}" for verb, about in VERBS.items()]
    names = ", ".join(group for group, _ in list_groups(flags.config_dirs))
    groups = textwrap.fill(names, 80, initial_indent="  ", subsequent_indent="  ")
    print(HELP_TEMPLATE.format(verbs="\n".join(verbs), groups=groups), end="")
    return 0


def show_config(flags: Flags) -> int:
    """Print the configuration of the job, without checking the rules: `--cfg job|hydra|all`.

    Raises:
        ConfigError: for overrides that cannot be applied, and if `--package` is not a node.
    """
    composed = compose_job(flags.overrides, config_dirs=flags.config_dirs)
    raise_combined(composed.problems)
    shown = OmegaConf.create()
    if flags.cfg in ("job", "all"):
        shown.merge_with(composed.unresolved_config)
        OmegaConf.set_struct(shown, False)
    if flags.cfg in ("hydra", "all"):
        shown["hydra"] = composed.hydra
    if flags.package:
        package = flags.package.replace("_global_", "").strip(".")
        absent = object()
        shown = OmegaConf.select(shown, package, default=absent) if package else shown
        if shown is absent:
            near = nearest_hint(package, dotted_keys(composed.config))
            raise ConfigError(f"--package {flags.package}: there is no such group of keys{near}")
        print(f"# @package {flags.package}")
    text = OmegaConf.to_yaml(shown, resolve=flags.resolve) if OmegaConf.is_config(shown) else shown
    text = "null" if text is None else text
    print(text, end="" if str(text).endswith("\n") else "\n")
    return 0


def _never(_: object) -> None:
    raise AssertionError("Hydra ran a job")

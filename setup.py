"""Puts the YAMLs of `conf/` and `experiments/`, which lie beside the package, into a wheel."""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithYamls(build_py):
    """`runner/bundled/` of the wheel holds what a checkout has at its top level."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # reads the folders of the checkout themselves
            return
        for name in ("conf", "experiments"):
            target = Path(self.build_lib, "runner", "bundled", name)
            copytree(name, target, ignore=ignore_patterns("__pycache__"), dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithYamls})

"""The control groups of this process, which limit the cores and the memory that it may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def control_groups(controller: str, proc: Path, cgroup: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control groups, and whether they are of version 1.

    Those above them follow, since their limits hold as well. A container may see its own group as
    the root, under a path that is not there.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # the system is not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        is_v1 = bool(controllers)
        if is_v1 and controller not in controllers.split(","):
            continue
        root = cgroup / controller if is_v1 else cgroup
        group = root / path.lstrip("/")
        while True:
            yield group, is_v1
            if group == root:
                break
            group = group.parent

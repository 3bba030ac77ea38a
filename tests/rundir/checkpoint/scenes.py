"""The content of a folder of checkpoints before a fault, and the checks after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from runner.rundir.checkpoint import Checkpointer, find_latest, load_tensors, open_checkpoint
from tests.rundir.checkpoint.processes import write_error


def state(content: int) -> dict[str, torch.Tensor]:
    """Make tensors that differ in every element from those of another content."""
    rows = torch.arange(3000).view(-1, 4) + content * 7919
    return {
        "tables/item.id/weight": rows.float(),
        "tables/item.id/momentum1": rows[:, 0].double(),
        "dense/mlp.0.bias": rows[:5, 0].to(torch.bfloat16),
        "dense_optimizer/mlp.0.bias/step": torch.tensor(float(content)),
        "rng/torch": (rows.flatten() % 251).to(torch.uint8),
    }


def save(folder: Path, step: int, content: int, *, keep: int = 2) -> None:
    checkpointer = Checkpointer(folder, keep=keep, warn=write_error)
    checkpointer.save(step, state(content), {"content": content}, wait=True)


def fail_on_warning(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def newest_content(folder: Path, warn: Callable[[str], None] = fail_on_warning) -> int:
    """Return the content of the newest checkpoint, after checking it bit by bit."""
    saved = find_latest(folder, warn)
    assert saved is not None, "no checkpoint at all"
    content = saved.values["content"]
    into = {name: torch.zeros_like(t) for name, t in state(content).items()}
    load_tensors(saved, into)
    for name, tensor in state(content).items():
        assert torch.equal(into[name], tensor), f"{name} of {saved.path} is not what was saved"
    return content


def check_recovery(folder: Path, allowed: set[int]) -> int:
    """Check that readers see old or new, a start clears up, and the next save works."""
    content = newest_content(folder)
    assert content in allowed, f"found {content}, allowed {allowed}"
    Checkpointer(folder, keep=2, warn=fail_on_warning)
    assert newest_content(folder) == content, "clearing up changed the newest checkpoint"
    left = [p.name for p in folder.iterdir() if not p.name.startswith("step-")]
    assert not left, f"left after clearing up: {left}"
    for path in folder.iterdir():
        open_checkpoint(path)
    save(folder, 9, 99)
    assert newest_content(folder) == 99
    return content


# A scene prepares the folder and returns what the child does.
def scene_new(folder: Path) -> Callable[[], None]:
    save(folder, 1, 1)
    return lambda: save(folder, 2, 2, keep=1)


def scene_replace(folder: Path) -> Callable[[], None]:
    save(folder, 2, 1)
    return lambda: save(folder, 2, 2)


def scene_start(folder: Path) -> Callable[[], None]:
    """Prepare the leftovers of two kills: an unfinished save and an unfinished replacement."""
    save(folder, 2, 1)
    (folder / "step-2").rename(folder / ".old-step-2")
    shutil.copytree(folder / ".old-step-2", folder / ".tmp-step-3-dead")
    return lambda: save(folder, 3, 2)


SCENES = (scene_new, scene_replace, scene_start)

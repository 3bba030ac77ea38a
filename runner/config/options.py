"""The groups and options on disk, found without Hydra: conf/, experiments/, the user's folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config.locations import CONF, PROJECT
from runner.errors import ConfigError

MOST_OPTION_VALUES = 100_000  # of one YAML; OmegaConf takes about 20 us for each


@dataclass(frozen=True)
class Option:
    """One option of a group."""

    name: str  # `base/small` for one in a folder of its group
    description: str
    is_default: bool  # by conf/config.yaml
    path: Path = PROJECT


def list_groups(config_dirs: Sequence[str] = ()) -> Iterator[tuple[str, list[Option]]]:
    """Yield every group of conf/, of the user's folders, and `experiments`, with its options.

    Raises:
        ConfigError: for a folder that does not exist.
    """
    for folder in config_dirs:
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir {folder}: no such folder")
    defaults = _read_defaults(CONF / "config.yaml")
    sources = [CONF, *map(Path, config_dirs)]
    names = {p.name for s in sources for p in s.iterdir() if p.is_dir() and p.name != "hydra"}
    in_order = [g for g in defaults if g in names and g != "experiments"]
    for group in [*in_order, *sorted(names - set(defaults))]:
        yield from _options(sources, group, defaults.get(group))
    yield from _options([PROJECT, *sources[1:]], "experiments", None)


def _options(
    sources: Sequence[Path], group: str, default: str | None
) -> Iterator[tuple[str, list[Option]]]:
    """Yield a group, then the groups inside it, which the defaults list of an option names."""
    folders = [s / group for s in sources]
    files = {
        str(path.relative_to(folder).with_suffix("")): path
        for folder in reversed(folders)
        for path in sorted(folder.rglob("*.yaml"))
    }
    inner: dict[str, str | None] = {}
    for name, path in files.items():
        for folder_name, preset in _read_defaults(path).items():
            if any((f / folder_name).is_dir() for f in folders):
                inner[folder_name] = preset if name == default else inner.get(folder_name)
    names = [n for n in sorted(files) if not n.startswith(tuple(f"{i}/" for i in inner))]
    yield group, [Option(n, read_first_comment(files[n]), n == default, files[n]) for n in names]
    for folder_name, option in sorted(inner.items()):
        yield from _options(sources, f"{group}/{folder_name}", option)


def read_first_comment(path: Path) -> str:
    """Return the leading comment lines of a YAML as one text, without Hydra's `# @package`."""
    lines = []
    for line in _read_lines(path):
        if not line.startswith("#"):
            break
        text = line.lstrip("#").strip()
        if not text.startswith("@"):
            lines.append(text)
    return " ".join(lines).strip()


def _read_lines(path: Path) -> list[str]:
    """Return the lines of an option's file.

    Raises:
        ConfigError: naming the file, if it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8: {error}") from error


def _read_defaults(path: Path) -> dict[str, str]:
    """Return group -> option of a defaults list.

    It is read line by line, because a YAML parser would take longer than everything else here.
    """
    defaults = {}
    for line in _read_lines(path):
        text = line.split("#")[0].strip()
        if text.startswith("- ") and ": " in text and "override " not in text:
            group, _, option = text[2:].partition(": ")
            defaults[group.strip()] = option.strip()
    return defaults

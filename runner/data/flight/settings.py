"""The settings of `dataset=flight`, and the description of the servers' data. Imports no torch.

The servers are asked before torch is imported, by a separate process (`ask.py`), since gRPC
starts threads, and a process with threads must not fork the ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from runner.data.core.argument_types import Locations, Seconds, check_settings
from runner.data.core.columns import Columns
from runner.data.flight.protocol import ServedData, is_loopback
from runner.errors import ConfigError, DataError, raise_combined, system_errors


@dataclass(frozen=True)
class FlightRecipe:
    """The settings of `dataset=flight`, documented in conf/dataset/flight.yaml."""

    locations: Locations
    token_env: str | None = None
    tls_roots: str | None = None
    timeout_s: Seconds = 60.0
    wait_s: Seconds = 600.0

    @cached_property
    def served(self) -> ServedData:
        """The description of the served data.

        Raises:
            DataError: if no server answers.
        """
        self.check()
        return ServedData.from_json(_ask_in_a_process(json.dumps(asdict(self))))

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the served data.

        It equals that of the same files read locally, so that a run can be resumed with either.
        """
        return self.served.fingerprint

    @property
    def columns(self) -> Columns:
        return self.served.columns

    def num_train_rows(self) -> int | None:
        """Return the rows of the train split."""
        return sum(self.served.blocks.get("train", ())) or None

    def check(self) -> None:
        """Check the settings, without asking a server.

        Raises:
            ConfigError: with all mistakes.
        """
        check_settings(self)
        raise_combined(self._problems())
        self.token()
        self.roots()

    def token(self) -> str | None:
        return read_token(self.token_env, "dataset.token_env=")

    def roots(self) -> bytes | None:
        """Return the certificates of trusted authorities; None: those of the system.

        Raises:
            ConfigError: if their file cannot be read.
        """
        if self.tls_roots is None:
            return None
        with system_errors(f"dataset.tls_roots={self.tls_roots}", kind=ConfigError):
            return Path(os.path.expanduser(self.tls_roots)).read_bytes()

    def _problems(self) -> Iterator[str]:
        if not self.locations:
            yield (
                "dataset.locations is not set: the addresses of data servers, for example "
                "[grpc://localhost:8815]; `python -m runner data-serve --schema FILE` starts one"
            )
        for location in self.locations or ():
            host = location.partition("://")[2].rpartition(":")[0]
            is_plain = location.startswith("grpc://")
            if self.token_env is not None and is_plain and not is_loopback(host):
                yield (
                    f"dataset.locations={location}: the token would leave this machine in the "
                    f"clear; write grpc+tls://{location.removeprefix('grpc://')}"
                )


def read_token(name: str | None, key: str) -> str | None:
    """Return the token in an environment variable; None if no variable is named.

    Args:
        key: the setting with its name, for the message.

    Raises:
        ConfigError: if it is not set.
    """
    if name is None:
        return None
    token = os.environ.get(name)
    if not token:
        raise ConfigError(f"{key}{name}: no such environment variable, or it is empty")
    return token


@lru_cache(maxsize=4)
def _ask_in_a_process(settings: str) -> str:
    """Return the description of the servers' data, as JSON.

    Raises:
        DataError: printed by the process.
    """
    words = [sys.executable, "-m", "runner.data.flight.ask"]
    process = subprocess.run(words, input=settings, capture_output=True, text=True, check=False)
    sys.stderr.write(process.stderr)
    if process.returncode:
        raise DataError(
            process.stdout.strip() or f"{' '.join(words)} ended with {process.returncode}"
        )
    return process.stdout

"""The `sharding` group: the placement of tables on ranks, and its checks. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config_key import setting
from runner.errors import ConfigError, nearest_hint, unknown_choice
from runner.optim.settings import ROW_DTYPES, SparseSettings

PLANS = ("auto", "table_wise", "row_wise", "column_wise", "table_row_wise", "data_parallel", "disk")
DISK = "disk"  # rows in files: all rows in one process, on ranks as in row_wise
# Column-wise sharding splits a row, so no rank would see the whole row that these kinds need.
_WHOLE_ROW_KINDS = {
    "rowwise_adagrad": "its accumulator is one number for a whole row",
    "lars_sgd": "its rate is the norm of a whole row",
    "lamb": "its rate is the norm of a whole row",
    "partial_rowwise_adam": "its second moment is one number for a whole row",
    "partial_rowwise_lamb": "its second moment is one number for a whole row",
}
EVERY_ROW = "every_row"  # stands for the kind of tables of which each update changes every row
# These stand for the kind of tables whose engine on CPU is ours whatever their optimizer, in one
# process and over ranks; a dtype is that of 16-bit rows.
OWN_ENGINE = (EVERY_ROW, *ROW_DTYPES[1:])
NO_16_BIT_ON_CUDA = (
    "16-bit rows are for CPU: FBGEMM's CUDA kernels round them by a generator of their own, which "
    "no checkpoint holds, so that a resume would not be exact"
)
FBGEMM_CPU_KINDS = ("sgd", "adagrad", "rowwise_adagrad")  # on CPU only we have the other kinds
# FBGEMM gives TorchRec no optimizer state of these, without which it builds no sharded table
_NOT_IN_TORCHREC = ("lars_sgd",)
BANDWIDTH_KEYS = ("intra_host_gb_per_s", "inter_host_gb_per_s")


@dataclass(frozen=True)
class ShardingSettings:
    """The `sharding` group. A single process has all tables whole, in memory or on disk."""

    plan: str = setting("auto", ", ".join(PLANS), choices=PLANS)
    tables: dict[str, str] = setting(dict, "separate plans for tables, by name: {user: table_wise}")
    min_columns: int = setting(16, "of a column-wise shard; a multiple of 4", ge=4, unit="columns")
    storage_reserve: float = setting(
        0.15, "share of a device's memory that tables leave free", ge=0, lt=1
    )
    device_memory_gb: float | None = setting(
        None, "null: what the GPU, or this machine, has", gt=0, unit="GB"
    )
    intra_host_gb_per_s: float | None = setting(
        None,
        "between ranks of one machine, for TorchRec's planner; null: its estimate",
        gt=0,
        unit="GB/s",
    )
    inter_host_gb_per_s: float | None = setting(
        None, "between machines, for TorchRec's planner; null: its estimate", gt=0, unit="GB/s"
    )

    def plan_of(self, table: str) -> str:
        """Return the plan of a table."""
        return self.tables.get(table, self.plan)


@dataclass(frozen=True)
class TableRule:
    """The kind of optimizer that updates a table, and the key that determines it."""

    kind: str  # or one of OWN_ENGINE
    key: str = "optimizer.sparse.kind"

    @classmethod
    def of(cls, sparse: Mapping[str, Any], where: str) -> TableRule:
        """Return the rule of settings such as those of `optimizer.sparse`."""
        if sparse.get(EVERY_ROW) is True:
            return cls(EVERY_ROW, f"{where}.{EVERY_ROW}")
        if sparse.get("dtype") in OWN_ENGINE:
            return cls(str(sparse["dtype"]), f"{where}.dtype")
        return cls(str(sparse["kind"]), f"{where}.kind")

    @property
    def is_configured(self) -> bool:
        """Whether the key has the kind as value; the kind of frozen tables is no value of a key."""
        return not self.key.endswith(".frozen")

    @property
    def is_16_bit(self) -> bool:
        return self.kind in ROW_DTYPES

    @property
    def described(self) -> str:
        """The key and its value."""
        return f"{self.key}={'true' if self.kind == EVERY_ROW else self.kind}"


def check_sharding(node: Mapping[str, Any]) -> list[str]:
    """Return a message for each mistake in the group other than values out of range."""
    tables = node.get("tables") or {}
    problems = [
        unknown_choice(f"sharding.tables.{table}", plan, PLANS)
        for table, plan in tables.items()
        if plan not in PLANS
    ]
    columns = node.get("min_columns")
    if isinstance(columns, int) and columns % 4:
        problems.append(f"sharding.min_columns={columns}: must be a multiple of 4")
    return problems


def refusal_reason(key: str, plan: Any, rule: TableRule, *, on_cpu: bool) -> str | None:
    """Return why tables of this rule cannot have the plan that `key` gives them, or None."""
    if plan == DISK and not on_cpu:
        return f"{key}=disk: files are read into the memory of the CPU; trainer.device=cpu has them"
    if plan == DISK and rule.kind == EVERY_ROW:
        return (
            f"{key}=disk: with {rule.described} every update would pass over the whole file; "
            "without it an update touches the rows of its batch"
        )
    if plan != "column_wise":
        return None
    if rule.kind in OWN_ENGINE:
        return (
            f"{key}=column_wise: with {rule.described} our own exchange holds the tables, and it "
            "keeps rows whole; row_wise and table_wise work"
        )
    if rule.kind in _WHOLE_ROW_KINDS:
        return (
            f"{key}=column_wise: would change what {rule.key}={rule.kind} does: "
            f"{_WHOLE_ROW_KINDS[rule.kind]}; row_wise and table_wise keep rows whole, and sgd, "
            "adagrad and adam allow column_wise"
        )
    if on_cpu and rule.kind not in FBGEMM_CPU_KINDS:
        return (
            f"{key}=column_wise: on CPU FBGEMM has no kernel for {rule.key}={rule.kind}, and ours "
            "keeps rows whole; row_wise and table_wise work"
        )
    return None


def check_table_names(settings: ShardingSettings, tables: Sequence[str]) -> None:
    """Check that the model has every table that the settings name.

    Raises:
        ConfigError: for a table that it does not have.
    """
    for name in settings.tables:
        if name not in tables:
            raise ConfigError(
                f"sharding.tables.{name}: the model has no such table{nearest_hint(name, tables)}; "
                f"it has {', '.join(tables)}"
            )


def placed_kind(settings: SparseSettings) -> str:
    """Return the kind that determines the engine: the optimizer's, or one of OWN_ENGINE."""
    if settings.is_16_bit:
        return settings.dtype
    return EVERY_ROW if settings.every_row else settings.kind


def engine_name(plan: str, kind: str, *, on_cpu: bool) -> str | None:
    """Return the engine of such tables on several ranks: "TorchRec", "ours", or None: refused."""
    if plan not in PLANS or refusal_reason("", plan, TableRule(kind), on_cpu=on_cpu):
        return None
    if (
        plan in ("data_parallel", DISK)
        or kind in (*OWN_ENGINE, *_NOT_IN_TORCHREC)
        or (on_cpu and kind not in FBGEMM_CPU_KINDS)
    ):
        return "ours"
    return "TorchRec"

"""The trials of a search, as Optuna keeps them in `study.db`, written by the sweep's process alone.

Choices are made in a copy of the study in memory; a trial is written to the database whole, in one
transaction, before its job can start. So a kill leaves no half of a trial behind, and what is in
the database is all that a sweep needs to go on as if it had never been killed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from runner.config.settings import SearchSettings
from runner.sweep.database import DATABASE_FILE, LOCK_TIMEOUT_S, SweepDatabaseError
from runner.sweep.optuna_samplers import (
    make_distribution,
    make_pruner,
    make_sampler,
    predetermined_params,
    study_directions,
)
from runner.sweep.space import Space

optuna.logging.set_verbosity(optuna.logging.ERROR)

_RETRY_OF = "again_of"  # of a trial: the one whose job failed first
_TRIAL_STATES = {
    "completed": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True)
class Trial:
    """A trial: its number, counted from 0, and what was chosen for each key of the space."""

    number: int
    params: Mapping[str, Any]
    is_running: bool  # it has not ended yet


class Trials:
    """The search of one sweep directory."""

    def __init__(
        self,
        directory: Path,
        space: Space,
        settings: SearchSettings,
        objectives: Mapping[str, str],
        slots: int,
    ) -> None:
        """Raises: StudyError if the database cannot be read or written."""
        self.space, self.settings, self.slots = space, settings, slots
        self.distributions = {d.key: make_distribution(d) for d in space}
        self.pruner = make_pruner(settings)
        self._path = directory / DATABASE_FILE
        self._memory_storage = InMemoryStorage()
        ways = study_directions(objectives)
        with self._translate_errors():
            self._disk_storage = open_storage(self._path)
            self._disk_study = optuna.create_study(
                storage=self._disk_storage,
                study_name=directory.name,
                directions=ways,
                load_if_exists=True,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is said to be experimental
                self._disk_study.set_metric_names(list(objectives))
            self._memory_study = optuna.create_study(storage=self._memory_storage, directions=ways)
            # Of each trial of the search the number it has for Optuna, who is told of a job that
            # failed first and was completed later by one trial more.
            self._optuna_numbers: list[int] = []
            for trial in self._disk_study.get_trials(deepcopy=False):
                self._memory_study.add_trial(trial)
                if _RETRY_OF not in trial.user_attrs:
                    self._optuna_numbers.append(trial.number)
            trials = self._disk_study.get_trials(deepcopy=False)
            self._retried = {t.user_attrs[_RETRY_OF] for t in trials if _RETRY_OF in t.user_attrs}

    def list_trials(self) -> list[Trial]:
        """Those of earlier starts too, in their order."""
        trials = self._memory_study.get_trials(deepcopy=False)
        return [
            Trial(place, trials[n].params, not trials[n].state.is_finished())
            for place, n in enumerate(self._optuna_numbers)
        ]

    def ask(self) -> Trial:
        """The next trial, entered as running."""
        number = len(self._optuna_numbers)
        params = predetermined_params(self.settings, self.space, number)
        attributes: dict[str, Any] = {}
        if params is None:
            params, attributes = self._sample(number)
        trial = create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=self.distributions,
            system_attrs=attributes,
        )
        self._optuna_numbers.append(self._add(trial))
        return Trial(number, params, True)

    def _add(self, trial: FrozenTrial) -> int:
        with self._translate_errors():
            self._disk_study.add_trial(trial)
        self._memory_study.add_trial(trial)
        return len(self._memory_study.get_trials(deepcopy=False)) - 1

    def _sample(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Asked in memory and forgotten there: what is kept has the numbers as they are told."""
        study = optuna.create_study(
            storage=self._memory_storage,
            study_name=f"ask {number}",
            directions=self._memory_study.directions,
            sampler=make_sampler(self.settings, number, slots=self.slots),
        )
        study.add_trials(self._memory_study.get_trials(deepcopy=False))
        asked = study.ask(self.distributions)
        params = {d.key: d.round_value(asked.params[d.key]) for d in self.space}
        attributes = dict(study.get_trials(deepcopy=False)[-1].system_attrs)
        self._memory_storage.delete_study(study._study_id)
        return params, attributes

    def report(self, number: int, evaluation: int, value: float) -> bool:
        """Takes what a job measured at its evaluation (counted from 1); whether it is to stop."""
        trial_id = self._memory_id(number)
        trial = self._memory_storage.get_trial(trial_id)
        if trial.state.is_finished():
            return False  # its job failed and is tried again: it goes to its end
        if evaluation not in trial.intermediate_values:
            self._memory_storage.set_trial_intermediate_value(trial_id, evaluation, value)
            with self._translate_errors():
                disk_id = self._disk_id(number)
                self._disk_storage.set_trial_intermediate_value(disk_id, evaluation, value)
        # some pruners answer with numpy's bool, which is no word of JSON's
        stops = bool(
            self.pruner.prune(self._memory_study, self._memory_storage.get_trial(trial_id))
        )
        with self._translate_errors():  # what the pruner noted, such as a rung that was reached
            for key, noted in self._memory_storage.get_trial(trial_id).system_attrs.items():
                if trial.system_attrs.get(key) != noted:
                    self._disk_storage.set_trial_system_attr(self._disk_id(number), key, noted)
        return stops

    def tell(self, number: int, status: str, values: Sequence[float | None]) -> None:
        """Takes what a job came to. Once ended, a trial stays so, unless it had failed."""
        state, trial = (
            _TRIAL_STATES[status],
            self._memory_storage.get_trial(self._memory_id(number)),
        )
        was = trial.state
        if was.is_finished() and (was != TrialState.FAIL or state != TrialState.COMPLETE):
            return
        told = [v for v in values if v is not None and not math.isnan(v)]
        if state == TrialState.COMPLETE and len(told) < len(values):
            state = TrialState.FAIL  # nothing to compare it by
        given = told if state == TrialState.COMPLETE else None
        if was == TrialState.FAIL:
            if given is not None and number not in self._retried:
                self._retried.add(number)
                again = create_trial(
                    values=given,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs={_RETRY_OF: number},
                )
                self._add(again)
            return
        self._memory_study.tell(self._optuna_numbers[number], given, state=state)
        with self._translate_errors():
            self._disk_study.tell(self._optuna_numbers[number], given, state=state)

    def pareto_front(self) -> set[int]:
        """Numbers of the trials that no other is better than in every objective."""
        places = {n: place for place, n in enumerate(self._optuna_numbers)}
        best = self._memory_study.best_trials
        return {t.user_attrs.get(_RETRY_OF, places.get(t.number, -1)) for t in best}

    def close(self) -> None:
        self._disk_storage.remove_session()
        self._disk_storage.engine.dispose()

    def _memory_id(self, number: int) -> int:
        return self._memory_storage.get_trial_id_from_study_id_trial_number(
            self._memory_study._study_id, self._optuna_numbers[number]
        )

    def _disk_id(self, number: int) -> int:
        return self._disk_storage.get_trial_id_from_study_id_trial_number(
            self._disk_study._study_id, self._optuna_numbers[number]
        )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        with database_errors(self._path):
            yield


def open_storage(path: Path) -> RDBStorage:
    """Optuna's tables in a SQLite file, beside what else is in it."""
    storage = RDBStorage(
        f"sqlite:///{path.absolute()}",
        engine_kwargs={"connect_args": {"timeout": LOCK_TIMEOUT_S}},
        skip_compatibility_check=True,  # Study has made the tables
        skip_table_creation=True,
    )

    def set_up(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")  # as Study has it: a kill loses nothing

    event.listen(storage.engine, "connect", set_up)
    storage.engine.dispose()
    return storage


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turns the database's own errors into one for people."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise SweepDatabaseError(
            f"{path}: {reason}; the same command goes on when that is mended"
        ) from (error)

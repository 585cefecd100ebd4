"""`MLflowTracker`: one MLflow run, through a client of its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dew.telemetry.records import COMPLETED, FitEnded, Record, record_fields
from dew.tracking.previews import PreviewNames, preview_files
from dew.tracking.tracker import ClosedOnExit

_METRICS_A_BATCH = 1000  # MLflow refuses more


class MLflowTracker(ClosedOnExit):
    """An MLflow run in `experiment`, opened on the first value logged into it.

    It goes through MlflowClient and leaves MLflow's global active run alone. Scalars become the
    run's metrics, each record a JSON artifact `records/<type>-<step>.json`, previews the files
    that `LocalTracker` writes, under `previews/`. A `FitEnded` that is not "completed" ends the
    run as FAILED.

    Args:
        experiment: its name; made where the store has none of it.
        name: the run's.
        uri: the store: a server, a database or a folder; None reads MLflow's own settings. From
            MLflow 3.16 on a folder also needs `MLFLOW_ALLOW_FILE_STORE=true`.
    """

    def __init__(self, experiment: str, name: str | None = None, *, uri: str | None = None):
        self.experiment, self.name, self.uri = experiment, name, uri
        self._client: Any = None
        self._run = ""
        self._status = "FINISHED"
        self._names = PreviewNames()
        self._closed = False

    @property
    def run_id(self) -> str:
        """MLflow's id of the run, empty before the first value."""
        return self._run

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Log scalars as metrics.

        Raises:
            ValueError: the tracker is closed.
            ImportError: mlflow is absent; the extra `mlflow` has it.
        """
        client = self._open()
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        metrics = [
            Metric(name, float(np.asarray(value)), now, int(step))
            for name, value in scalars.items()
        ]
        for first in range(0, len(metrics), _METRICS_A_BATCH):
            client.log_batch(self._run, metrics=metrics[first : first + _METRICS_A_BATCH])

    def artifact(self, value: Any, step: int) -> None:
        """Upload a record or a preview.

        Raises:
            TypeError: the value has no form as a file.
            ValueError: the tracker is closed.
            ImportError: a package is absent; the extra `mlflow` has it.
        """
        if isinstance(value, Record):
            client = self._open()
            if isinstance(value, FitEnded):
                self._status = "FINISHED" if value.status == COMPLETED else "FAILED"
            file = f"records/{type(value).__name__}-{int(step)}.json"
            client.log_dict(self._run, record_fields(value), file)
            return
        files = preview_files(value, self._names.stem(value, int(step)))
        client = self._open()
        with tempfile.TemporaryDirectory() as folder:
            for file in files:
                (Path(folder) / file.name).write_bytes(file.content)
                client.log_artifact(self._run, str(Path(folder) / file.name), "previews")

    def close(self) -> None:
        """End the run; closing twice does nothing more."""
        if not self._closed:
            self._closed = True
            if self._run:
                self._client.set_terminated(self._run, status=self._status)

    def _open(self) -> Any:
        if self._closed:
            raise ValueError(f"the tracker of run {self._run!r} is closed; build another to log")
        if self._client is None:
            try:
                from mlflow.tracking import MlflowClient
            except ImportError as error:
                raise ImportError(
                    'MLflowTracker needs mlflow: pip install "dew[mlflow]"'
                ) from error
            self._client = MlflowClient(tracking_uri=self.uri)
        if not self._run:
            self._run = self._client.create_run(self._experiment(), run_name=self.name).info.run_id
        return self._client

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        if found is not None:
            return found.experiment_id
        return self._client.create_experiment(self.experiment)

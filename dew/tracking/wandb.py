"""`WandbTracker`: a Weights & Biases run, online or offline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dew.artifacts import ImageGrid, Representations, TextSamples, VideoGrid
from dew.telemetry.records import COMPLETED, FitEnded, Record, RunRecord, record_fields
from dew.tracking.previews import (
    clip_pixels,
    gif_bytes,
    image_pixels,
    spread_histogram,
    text_rows,
)
from dew.tracking.tracker import ClosedOnExit

SAMPLES = "val/samples"
SPREAD = "val/representations/spread"


class WandbTracker(ClosedOnExit):
    """A Weights & Biases run, opened on the first value logged into it.

    Values are plotted over `step`, which each report carries, so a run that goes on from an
    earlier step loses none of them. Records become files of the run,
    `records/<type>-<step>.json`, and a `RunRecord` its configuration too. Previews are shown as
    `val/samples`: images, GIFs, tables of text; representations as a histogram of the spread of
    each dimension.

    Args:
        project: where the run is filed.
        name: the run's.
        offline: whether to keep from the network; `wandb sync` uploads the run later.
        directory: where W&B's own `wandb/` folder goes; None leaves that to W&B.
        options: further arguments of `wandb.init`.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        *,
        offline: bool = False,
        directory: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        self.project, self.name, self.offline, self.directory = project, name, offline, directory
        self.options = dict(options or {})
        self.run: Any = None
        self._exit_code = 0
        self._closed = False

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Log scalars.

        Raises:
            ValueError: the tracker is closed.
            ImportError: wandb is absent; the extra `wandb` has it.
        """
        run = self._open()
        values = {name: float(np.asarray(value)) for name, value in scalars.items()}
        run.log({**values, "step": int(step)})

    def artifact(self, value: Any, step: int) -> None:
        """Keep a record or show a preview.

        Raises:
            TypeError: the value has no form in W&B.
            ValueError: the tracker is closed.
            ImportError: a package is absent; the extra `wandb` has it.
        """
        if isinstance(value, Record):
            self._keep(value, int(step))
            return
        if not isinstance(value, ImageGrid | VideoGrid | TextSamples | Representations):
            raise TypeError(
                f"{type(value).__name__} has no form in W&B; log its numbers as scalars."
            )
        run = self._open()
        run.log({**_media(value), "step": int(step)})

    def close(self) -> None:
        """End the run; closing twice does nothing more."""
        if not self._closed:
            self._closed = True
            if self.run is not None:
                self.run.finish(exit_code=self._exit_code)

    def _keep(self, record: Record, step: int) -> None:
        run = self._open()
        if isinstance(record, FitEnded):
            self._exit_code = 0 if record.status == COMPLETED else 1
        if isinstance(record, RunRecord):
            run.config.update({"run": record_fields(record)}, allow_val_change=True)
        file = Path(run.dir) / "records" / f"{type(record).__name__}-{step}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record_fields(record)), encoding="utf-8")
        run.save(str(file), base_path=run.dir, policy="now")

    def _open(self) -> Any:
        if self._closed:
            raise ValueError(f"the W&B tracker of {self.project} is closed; build another to log")
        if self.run is None:
            try:
                import wandb
            except ImportError as error:
                raise ImportError('WandbTracker needs wandb: pip install "dew[wandb]"') from error
            # A run of its own: the global one, if the caller has any, stays as it is.
            options: dict[str, Any] = {"reinit": "create_new", **self.options}
            if self.offline:
                options["mode"] = "offline"
            if self.directory is not None:
                Path(self.directory).mkdir(parents=True, exist_ok=True)
                options["dir"] = str(self.directory)
            self.run = wandb.init(project=self.project, name=self.name, **options)
            self.run.define_metric("*", step_metric="step")
        return self.run


def _media(value: Any) -> dict[str, Any]:
    import io

    import wandb

    if isinstance(value, ImageGrid):
        captions = dict(enumerate(value.captions))
        images = [
            wandb.Image(_squeezed(image), caption=captions.get(index))
            for index, image in enumerate(image_pixels(value))
        ]
        return {SAMPLES: images}
    if isinstance(value, VideoGrid):
        clips = [gif_bytes(clip) for clip in clip_pixels(value)]
        return {SAMPLES: [wandb.Video(io.BytesIO(clip), format="gif") for clip in clips]}
    if isinstance(value, TextSamples):
        rows: list[Any] = [[value.prompt, row] for row in text_rows(value)]
        return {SAMPLES: wandb.Table(columns=["prompt", "text"], data=rows)}
    histogram = spread_histogram(value)
    parts = (histogram["counts"], histogram["edges"])
    return {SPREAD: wandb.Histogram(np_histogram=parts)}


def _squeezed(image: np.ndarray) -> np.ndarray:
    """Return an image as W&B takes it: gray ones without their channel."""
    return image[..., 0] if image.shape[-1] == 1 else image

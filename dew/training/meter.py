"""What a run reports between two log lines: sums of losses and masses, times, rates."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dew.objectives.base import Ratio
from dew.telemetry.flops import peak_flops
from dew.telemetry.memory import peak_memory


class Meter:
    """Adds up the reports of the steps since the last log line, on the host in float64.

    Time spent outside the steps (compiling, evaluating, saving) is taken off with `pause`.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new interval."""
        self._total = self._mass = 0.0
        self._flops = self._waited = 0.0
        self.steps = 0
        self._last: dict[str, float] = {}
        self._ratios: dict[str, tuple[float, float]] = {}
        self._started = time.perf_counter()

    def pause(self, seconds: float) -> None:
        """Take `seconds` off the interval."""
        self._started += seconds

    def add(self, report: Mapping[str, Any], flops: float = 0.0, waited: float = 0.0) -> None:
        """Add one microbatch's report, already on the host.

        Args:
            report: what the step reported.
            flops: what the step computed, over all devices; 0 where that is not known.
            waited: seconds in which the loop had no batch for it.
        """
        self._flops += flops
        self._waited += waited
        self._total += float(report["total"])
        self._mass += float(report["mass"])
        self.steps += 1
        if report["updated"]:
            self._last["grad_norm"] = float(report["grad_norm"])
        if "learning_rate" in report:
            self._last["learning_rate"] = float(report["learning_rate"])
        for name, value in report["aux"].items():
            if isinstance(value, Ratio):
                total, mass = self._ratios.get(name, (0.0, 0.0))
                self._ratios[name] = (total + float(value.total), mass + float(value.mass))
            else:
                self._last[name] = float(np.mean(value))

    @property
    def loss(self) -> float:
        """Sum of the totals over sum of the masses, 0 where nothing counted."""
        return self._total / self._mass if self._mass else 0.0

    @property
    def mass_per_second(self) -> float:
        """Counted targets a second."""
        return self._mass / self._elapsed

    def scalars(self) -> dict[str, float]:
        """Return the interval under the names of the log, `train/` before each."""
        elapsed, devices = self._elapsed, jax.device_count()
        values = {
            "loss": self.loss,
            **self._last,
            **{name: t / m if m else 0.0 for name, (t, m) in self._ratios.items()},
            "step_seconds": elapsed / self.steps if self.steps else math.nan,
            "tokens_per_second_per_device": self._mass / elapsed / devices,
            "data_wait_share": self._waited / elapsed,
            **_efforts(self._flops / elapsed / devices),
        }
        return {f"train/{name}": value for name, value in values.items()}

    @property
    def _elapsed(self) -> float:
        """Seconds of the interval, what was taken off it left out."""
        return max(time.perf_counter() - self._started, 1e-9)


def _efforts(flops_per_second: float) -> dict[str, float]:
    """Return the rate of a device's arithmetic and the peak memory, as far as they are known."""
    values = {}
    if flops_per_second:
        values["tflops_per_device"] = flops_per_second / 1e12
        peak = peak_flops(jax.devices()[0].device_kind)
        if peak is not None:
            values["mfu"] = flops_per_second / peak
    memory = peak_memory()
    if memory is not None:
        values["peak_memory_gib"] = memory / 2**30
    return values

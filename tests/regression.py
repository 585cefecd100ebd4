"""A linear regression whose gradients are known in closed form, and a stream that resumes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.artifacts import TokenScores
from dew.data import DataPartition, Dataset
from dew.objectives.base import EMASpec, Objective, Ratio, Step


class LinearRegression(Objective):
    """Squared error of x w + b, each example with a weight: total = sum(weight * error^2)."""

    def __init__(self, features: int = 3, ema: EMASpec | None = None):
        self.features = features
        self.ema = ema

    def init(self, key: jax.Array, variables: Any = None) -> Any:
        if variables is not None:
            return variables
        return {"params": {"w": jax.random.normal(key, (self.features,)), "b": jnp.zeros(())}}

    def loss(self, variables: Any, batch: Any, step: Step) -> Ratio:
        errors = self.errors(variables, batch)
        return Ratio(jnp.sum(batch["weight"] * errors**2), jnp.sum(batch["weight"]))

    def evaluate(self, variables: Any, batch: Any, step: Step) -> TokenScores:
        errors = self.errors(variables, batch)
        return TokenScores(errors[:, None] ** 2, batch["weight"][:, None])

    def errors(self, variables: Any, batch: Any) -> jax.Array:
        params = variables["params"]
        return batch["x"] @ params["w"] + params["b"] - batch["y"]


class NoisyRegression(LinearRegression):
    """The same with noise on the inputs, so that a step depends on its key."""

    def loss(self, variables: Any, batch: Any, step: Step) -> Ratio:
        noise = 0.1 * jax.random.normal(step.key, batch["x"].shape)
        return super().loss(variables, {**batch, "x": batch["x"] + noise}, step)


@dataclass(frozen=True)
class Line:
    """Rows of y = x . (1, -2, 0.5) + 3, drawn by number: row n is the same in every process."""

    rows: int = 64
    batch: int = 4
    features: int = 3

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        table = np.random.default_rng(7).normal(size=(self.rows, self.features))
        x = table[numbers % self.rows].astype(np.float32)
        weight = (1 + numbers % 3).astype(np.float32)
        y = x @ np.array([1, -2, 0.5], np.float32)[: self.features] + 3
        return {"x": x, "y": y.astype(np.float32), "weight": weight}

    def dataset(self, *, val_batches: int = 2, **options: Any) -> Dataset:
        def val(partition: DataPartition) -> Iterator[dict[str, np.ndarray]]:
            numbers = np.arange(val_batches * self.batch).reshape(val_batches, self.batch)
            return iter([self.take(row) for row in numbers])

        return Dataset(
            train=lambda partition: LineStream(self, **options),
            val=val,
            records=self.rows,
            batch=self.batch,
        )


class LineStream:
    """An endless stream of `Line` batches whose position is a number; it remembers its end."""

    def __init__(self, line: Line, *, fail_at: int | None = None, bad_at: int | None = None):
        self.line = line
        self.fail_at = fail_at
        self.bad_at = bad_at
        self.next_batch = 0
        self.closed = False

    def __iter__(self) -> LineStream:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        number = self.next_batch
        if self.fail_at == number:
            raise OSError(f"no batch {number}")
        self.next_batch += 1
        batch = self.line.take(number * self.line.batch + np.arange(self.line.batch))
        if self.bad_at == number:
            batch["x"][1, 2] = np.inf
        return batch

    def get_state(self) -> bytes:
        return json.dumps(self.next_batch).encode()

    def set_state(self, state: bytes) -> None:
        self.next_batch = json.loads(state)

    def close(self) -> None:
        self.closed = True

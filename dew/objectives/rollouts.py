"""Batches for GRPO, drawn from the policy as it stands before each of them is trained on."""

from __future__ import annotations

import io
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.artifacts.coordination import pooled
from dew.data import DataPartition, Dataset
from dew.errors import InputRefused
from dew.objectives.grpo import GRPOObjective, group_advantages
from dew.typing import Batch, TextProcessor, Variables

Reward = Callable[..., Sequence[float | None]]
"""Called as trl calls one: `reward(prompts=, completions=, completion_ids=, **columns)`, a list of
one entry a completion for each; it returns a number a completion, None where it cannot tell."""

PROMPT_FIELDS = ("prompt", "prompt_mask")


@dataclass(frozen=True)
class GRPORollouts:
    """Turns a dataset of prompts into one of scored completions.

    Each batch of N prompts becomes N * group rows, the completions of one prompt side by side.
    They are drawn when all steps before them are done, from the variables of that moment, so
    nothing is stale; the reward is called then, on the host.

    Args:
        objective: how to draw and how many.
        prompts: batches of `prompt`, int32 [N, P], at the right end, `prompt_mask` [N, P]
            (all real if absent), and any other columns, which the reward gets.
        reward: any Python function, see `Reward`.
        key: all draws come from it and the number of the batch.
        processor: turns the ids that the reward sees as `prompts` and `completions` into text;
            without one it sees the ids.
        applied: turns a run's variables into those that the objective's model takes, where they
            are not: those of an adapter beside a frozen base.
    """

    objective: GRPOObjective
    prompts: Dataset
    reward: Reward
    key: jax.Array
    processor: TextProcessor | None = None
    applied: Callable[[Variables], Variables] | None = None

    def dataset(self) -> Dataset:
        """Return what to give to `Trainer.fit`; its `val` is that of the prompts.

        Raises:
            InputRefused: several processes.
        """
        if pooled():
            raise InputRefused(
                "GRPORollouts draws in one process with any number of devices; train without "
                "`dew launch`"
            )
        uses = self.objective.group * self.objective.iterations
        return Dataset(
            train=self.open,
            val=self.prompts.val,
            records=self.prompts.records * uses,
            batch=self.prompts.batch * self.objective.group,
        )

    def open(self, partition: DataPartition) -> RolloutStream:
        """Return the batches of a share of the prompts."""
        return RolloutStream(self, self.prompts.train(partition))

    def drawn(self, variables: Variables, prompts: Batch, number: int) -> dict[str, np.ndarray]:
        """Return the batch that `variables` make of prompts, by the draws of batch `number`."""
        objective, group = self.objective, self.objective.group
        rows = {name: np.repeat(np.asarray(value), group, 0) for name, value in prompts.items()}
        mask = rows.get("prompt_mask")
        variables = variables if self.applied is None else self.applied(variables)
        out = jax.device_get(
            objective.completed(
                variables,
                jnp.asarray(rows["prompt"]),
                None if mask is None else jnp.asarray(mask),
                jax.random.fold_in(self.key, number),
            )
        )
        rewards = self._scored(rows, out.tokens, out.mask)
        advantages = group_advantages(rewards, group, objective.scale_rewards)
        batch = {
            "text": out.tokens,
            "mask": out.mask,
            "advantages": advantages.astype(np.float32),
            "rewards": rewards.astype(np.float32),
        }
        if objective.iterations > 1:
            batch["old_log_probs"] = out.log_probs
        return batch

    def _scored(
        self, rows: Mapping[str, np.ndarray], tokens: np.ndarray, mask: np.ndarray
    ) -> np.ndarray:
        """Return float64 [B] rewards, NaN for None."""
        cut = self.objective.prompt_length
        parts = {"prompts": slice(None, cut), "completions": slice(cut, None)}
        ids = {
            name: [
                row[kept != 0].tolist() for row, kept in zip(tokens[:, p], mask[:, p], strict=True)
            ]
            for name, p in parts.items()
        }
        seen: dict[str, list[Any]] = dict(ids)
        if self.processor is not None:
            seen = {n: [self.processor.decode(row) for row in r] for n, r in ids.items()}
        columns = {n: v.tolist() for n, v in rows.items() if n not in PROMPT_FIELDS}
        given = self.reward(**seen, completion_ids=ids["completions"], **columns)
        rewards = np.array([math.nan if r is None else float(r) for r in given], np.float64)
        if len(rewards) != len(tokens) or np.isinf(rewards).any():
            raise InputRefused(
                f"the reward function gave {len(rewards)} rewards for {len(tokens)} completions, "
                f"{int(np.isinf(rewards).sum())} of them infinite; expected a finite number or "
                "None for each"
            )
        return rewards


class RolloutStream:
    """The batches of one run, each used for `iterations` steps.

    The loop that trains on them calls `learned` before it waits for a batch; a new batch is drawn
    only when every one before it was trained on. Where the prompts can tell their position, so
    can this: the same rows are drawn again from the restored variables, and a batch that is not
    used up travels with the position.
    """

    def __init__(self, rollouts: GRPORollouts, prompts: Iterator[Batch]):
        self._rollouts = rollouts
        self._prompts = prompts
        self._ready = threading.Condition()
        self._variables: Variables | None = None
        self._first: int | None = None
        self._done = self._given = 0
        self._stopped = False
        self._number = self._uses = 0
        self._batch: dict[str, np.ndarray] = {}
        if hasattr(prompts, "get_state") and hasattr(prompts, "set_state"):
            self.get_state, self.set_state = self._position, self._restore

    def __iter__(self) -> RolloutStream:
        """Return itself."""
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        """Return the next batch; it waits until those before it were trained on."""
        if self._uses == 0:
            prompts = next(self._prompts)
            variables = self._wait()
            self._batch = self._rollouts.drawn(variables, prompts, self._number)
            self._number += 1
            self._uses = self._rollouts.objective.iterations
        self._uses -= 1
        self._given += 1
        return self._batch

    def learned(self, variables: Variables, step: int) -> None:
        """Take the variables after `step` steps; they stay valid until the next batch is given."""
        with self._ready:
            self._first = step if self._first is None else self._first
            self._done = step - self._first
            self._variables = variables
            self._ready.notify_all()

    def stop(self) -> None:
        """Let go whoever waits for a batch."""
        with self._ready:
            self._stopped = True
            self._ready.notify_all()

    def close(self) -> None:
        """Close the prompts."""
        self.stop()
        close = getattr(self._prompts, "close", None)
        if close is not None:
            close()

    def _wait(self) -> Variables:
        with self._ready:
            self._ready.wait_for(
                lambda: self._stopped or (self._variables is not None and self._done >= self._given)
            )
            if self._stopped or self._variables is None:
                raise StopIteration
            variables, self._variables = self._variables, None
            return variables

    def _position(self) -> bytes:
        prompts: Any = self._prompts
        told = {"number": self._number, "uses": self._uses, "prompts": prompts.get_state().hex()}
        file = io.BytesIO()
        fields: dict[str, Any] = dict(self._batch) if self._uses else {}
        np.savez(file, told=np.array(json.dumps(told)), **fields)
        return file.getvalue()

    def _restore(self, state: bytes) -> None:
        with np.load(io.BytesIO(state), allow_pickle=False) as stored:
            told = json.loads(str(stored["told"]))
            self._batch = {name: stored[name] for name in stored.files if name != "told"}
        self._number, self._uses = told["number"], told["uses"]
        prompts: Any = self._prompts
        prompts.set_state(bytes.fromhex(told["prompts"]))

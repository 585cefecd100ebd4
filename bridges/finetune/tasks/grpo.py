"""`grpo`: completions of prompts that a reward scores, each against the others of its prompt."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bridges.finetune.answer_rewards import ANSWERS
from bridges.finetune.encoded_rows import Ragged
from bridges.finetune.end_tokens import with_template_end
from bridges.finetune.examples import sides
from bridges.finetune.learner import Learner
from bridges.finetune.method import method_of
from bridges.finetune.policy_learner import policy_learner
from bridges.finetune.prompt_rows import IDS, PROMPT, PromptRows, prompt_table, tokenized
from bridges.finetune.rewards import MeanReward, TableReward, WeightedRewards, rewards_of
from bridges.finetune.row_table import Examples, RowTable, split_sides
from bridges.finetune.samples import Sample
from bridges.finetune.table_data import TableDataset
from bridges.finetune.table_task import TableTask, Told, needed_tokenizer
from dew.cli.command import Settings
from dew.errors import InputRefused

ROUNDED = 8
"""Prompts are padded to a multiple of so many tokens."""
SAMPLE_TOKENS = 64
WINDOW = "gradient_accumulation_steps"


class GRPO(TableTask):
    """Group relative policy optimisation, Shao et al. 2024, arXiv:2402.03300; see `Task`."""

    name = "grpo"
    pipeline = "text-generation"
    drops = False  # what sampled and what learns agree, and their ratio begins at 1
    settings: Settings
    rewards: WeightedRewards

    def read(self, settings: Settings) -> Examples:
        """Return the prompts that are trained on, and those held out."""
        self.settings = settings
        if settings["num_iterations"] > 1 and settings.values.get(WINDOW, 1) > 1:
            raise InputRefused(
                "num_iterations above 1 makes a step of each batch, gradient_accumulation_steps "
                "above 1 a step of several; raise one of them, and per_device_train_batch_size"
            )
        train, validation = sides(settings)
        tables = [prompt_table(part) for part in (train, validation) if part is not None]
        if not len(tables[0]):
            raise InputRefused("data: no prompt in it; expected at least one")
        self._chats = any(not isinstance(prompt, str) for prompt in tables[0][PROMPT])
        self.rewards = rewards_of(settings, list(tables[0].fields))
        held = tables[1] if validation is not None else None
        return Examples(*split_sides(tables[0], held, settings))

    def side(self, examples: Any, *, held: bool) -> Any:
        """Return the held-out rows, or the others: those that are short enough, once data is."""
        return super().side(getattr(self, "_fitted", examples), held=held)

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model as rewards teach it.

        Raises:
            InputRefused: a model that writes no text, or a traced one.
        """
        ended = with_template_end(bundle) if self._chats else bundle
        return policy_learner(ended, self.settings, remat=remat)

    def longest(self, settings: Settings, learner: Learner) -> int:
        """Return the most tokens of a prompt with its completion."""
        policy: Any = learner
        return policy.longest

    def rows(self, settings: Settings, learner: Learner, table: Any) -> tuple[PromptRows, int]:
        """Return a table's prompts as token ids."""
        columns = {name: values for name, values in table.fields.items() if name != IDS}
        padding = needed_tokenizer(learner).pad_token_id or 0
        return PromptRows(Ragged.of(table[IDS]), self._width, padding, columns), 0

    def data(
        self, settings: Settings, learner: Learner, examples: Any, *, rows: int, eval_rows: int
    ) -> TableDataset:
        """Return the prompts, or what a run draws of them.

        The report's `seq_len` is what the learner's `objective` takes.

        Raises:
            InputRefused: a batch that does not hold whole groups; no prompt that is short enough.
        """
        policy: Any = learner
        processor, group = needed_tokenizer(learner), settings["num_generations"]
        trains = settings.command == "finetune"
        if trains and rows % group:
            raise InputRefused(
                f"a batch of {rows} completions does not hold whole groups of {group}; make "
                "per_device_train_batch_size a multiple of num_generations"
            )
        self._fitted = self._fitting(examples, processor, policy.longest - policy.new_tokens)
        prompts = max(1, rows // group)
        found = super().data(settings, learner, self._fitted, rows=prompts, eval_rows=eval_rows)
        report = replace(found.report, seq_len=self._width + policy.new_tokens - 1)
        told = replace(found, report=report)
        return self._drawn(settings, learner, told) if trains else told

    def _drawn(self, settings: Settings, learner: Learner, found: TableDataset) -> TableDataset:
        """Return a dataset of prompts with batches of their completions in place of its own."""
        import jax

        from dew.objectives.rollouts import GRPORollouts

        method = method_of(settings)
        objective = method.objective(learner, found.report.seq_len)
        rollouts = GRPORollouts(
            objective.objective if method.adapter else objective,
            found,
            TableReward(self.rewards, self._fitted.train),
            key=jax.random.key(settings["seed"]),
            processor=needed_tokenizer(learner),
            applied=jax.jit(objective.applied) if method.adapter else None,
        )
        drawn = rollouts.dataset()
        return replace(found, train=drawn.train, records=drawn.records, batch=drawn.batch)

    def _fitting(self, examples: Examples, processor: Any, room: int) -> Examples:
        """Return the tables with tokens, and set the width of their rows."""
        train = self._short(examples.train, processor, room, "")
        held = examples.validation
        held = None if held is None else self._short(held, processor, room, " held out")
        longest = [len(ids) for table in (train, held) if table is not None for ids in table[IDS]]
        self._width = min(room, -(-max(longest, default=1) // ROUNDED) * ROUNDED)
        return Examples(train, held)

    def _short(self, table: RowTable, processor: Any, room: int, which: str) -> RowTable:
        """Return the rows whose prompts fit, and say how many do not."""
        kept = tokenized(table, processor, room)
        dropped = len(table) - len(kept)
        if dropped:
            print(
                f"data: {dropped} of {len(table)} prompts{which} are longer than {room} tokens "
                "(max_length less max_completion_length) and left out",
                file=sys.stderr,
            )
        return replace(kept, dropped=dropped)

    def told(self, learner: Learner, examples: Any, rows: PromptRows) -> Told:
        """Return the first prompt, and how many completions an epoch draws."""
        first = rows.ids.values[: rows.ids.offsets[1]].tolist()
        group = self.settings["num_generations"]
        return Told(
            targets=len(rows) * group,
            example=needed_tokenizer(learner).decode(first, skip_special_tokens=False),
            example_label=f"{group} completions",
        )

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the mean reward of one completion a held-out prompt."""
        policy: Any = learner
        if examples is None:
            return ()
        reward, decode = TableReward(self.rewards, examples), needed_tokenizer(learner).decode
        return (MeanReward(reward, decode, policy.options["ends"]),)

    def headline(self, results: Mapping[str, float]) -> str:
        """Return the mean reward."""
        return "eval_reward"

    def scored_as(self, name: str) -> str:
        """Return the metric; a held-out loss there is none, for its sign says nothing."""
        if name == "loss":
            raise InputRefused("grpo has no held-out loss; give --metric_for_best_model reward")
        return name

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return rows of prompts and completions that fill `max_length`."""
        import jax
        import jax.numpy as jnp

        policy: Any = learner
        shape = jax.ShapeDtypeStruct((rows, policy.longest), jnp.int32)
        value = jax.ShapeDtypeStruct((rows,), jnp.float32)
        batch = {"text": shape, "mask": shape, "advantages": value, "rewards": value}
        if settings["num_iterations"] > 1:
            batch["old_log_probs"] = jax.ShapeDtypeStruct((rows, policy.new_tokens), jnp.float32)
        return batch

    def samples(self, before: Any, after: Any, data: Any, *, count: int) -> Sequence[Sample]:
        """Return the likeliest completions of a few prompts by two models."""
        table = self.side(None, held=data.examples is not None)
        right = next((table[name] for name in ANSWERS if name in table.fields), None)
        tokenizer, out = before.tokenizer, []
        options = {
            "max_new_tokens": min(SAMPLE_TOKENS, self.settings["max_completion_length"]),
            "do_sample": False,
        }
        for number, ids in enumerate(table[IDS][:count]):
            written = [bundle.generate(np.array([ids]), **options) for bundle in (before, after)]
            told = [tokenizer.decode(row[0, len(ids) :].tolist()) for row in written]
            wanted = "" if right is None else str(right[number])
            out.append(Sample(tokenizer.decode(ids), wanted, *told))
        return out

    def row_tokens(self, rows: Any) -> None:
        """Return None: how many tokens a row holds is known once it is drawn."""

    def usage(self, adapter: bool) -> str:
        """Return a call that continues a text."""
        return '("Once upon a time")'

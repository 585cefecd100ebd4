"""Whole runs of three tasks against transformers.Trainer: loss curves, and weights by float64."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SENTENCES, write_llama
from safetensors.numpy import load_file
from task_proof import learnt, write_bert, write_t5

from dew.cli.main import main
from dew.data import DataPartition
from parity import reference
from parity.rounding import deviations, judged

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
]
UPDATES, ACCUMULATION, ROWS = 50, 2, 3
RATE, EPSILON, DECAY = 1e-3, 1e-4, 0.01
"""With an epsilon of 1e-8 a gradient below rounding would move a weight by a whole step, in torch
too; see `parity.checks.update`."""
LABELS = ("fair", "foul")


def write_data(folder: Path, task: str) -> Path:
    """Write eleven rows of unequal lengths."""
    texts = [text[: 70 - 9 * cut] for cut in range(3) for text in SENTENCES][:11]
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        if task == "seq2seq":
            rows.append({"input": text, "target": texts[-number][: 10 + 4 * number]})
        elif task == "causal-lm":
            rows.append({"text": text})
        else:
            rows.append({"text": text, "label": LABELS[number % 3 > 0]})
    path = folder / "train.json"
    path.write_text(json.dumps(rows))
    return path


def as_transformers(batch: dict) -> dict:
    """Return a batch of token rows by the names of transformers, a document a row."""
    if "text" not in batch:
        return batch
    real = batch["segments"] > 0
    labels = np.where(real, batch["text"], -100)
    labels[:, 0] = -100  # not predicted by anything; so the count of labels is that of targets
    return {"input_ids": batch["text"], "attention_mask": real, "labels": labels}


def by_trainer(folder: Path, batches: list[dict], out: Path, precision: str) -> tuple[list, dict]:
    """Return the losses of Trainer's updates and the weights behind the last one."""
    import torch
    from torch.utils.data import SequentialSampler
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return SequentialSampler(batches)

    def summed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        # Their models divide by the labels of a microbatch, not by those of the whole update.
        logits = outputs["logits"]
        if shifted:
            logits, labels = logits[:, :-1], labels[:, 1:]
        flat = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
        total = torch.nn.functional.cross_entropy(*flat, reduction="sum", ignore_index=-100)
        return total / num_items_in_batch

    shifted = "text" in batches[0]
    batches = [as_transformers(batch) for batch in batches]
    checkpoint = reference.Checkpoint(folder, own_class=True)
    model = checkpoint.fresh_model(precision)
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=UPDATES,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=ACCUMULATION,
        learning_rate=RATE,
        adam_epsilon=EPSILON,
        weight_decay=DECAY,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )

    def collate(items: list[dict]) -> dict:
        return {name: torch.tensor(value).long() for name, value in items[0].items()}

    trainer = InOrder(
        model=model,
        args=arguments,
        train_dataset=batches,
        data_collator=collate,
        compute_loss_func=summed,
    )
    with warnings.catch_warnings(), reference.precision_of(model):
        warnings.simplefilter("ignore")
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, reference.tensors(model)


@pytest.mark.parametrize("task", ["causal-lm", "text-classification", "seq2seq"])
def test_a_run_is_transformers_trainers(task, tmp_path):
    more = ()
    if task == "seq2seq":
        model = write_t5(tmp_path / "model")
    elif task == "causal-lm":
        model = write_llama(tmp_path / "model")
        more = ("--no_packing", "--max_length", 32)
    else:
        model = write_bert(tmp_path / "model", "BertForSequenceClassification", LABELS)
    data, out = write_data(tmp_path, task), tmp_path / "out"
    words = ["finetune", model, "--data", data, "--output_dir", out, "--task", task]
    words += ["--max_steps", UPDATES, "--gradient_accumulation_steps", ACCUMULATION]
    words += ["--per_device_train_batch_size", ROWS, "--learning_rate", RATE]
    words += ["--adam_epsilon", EPSILON, "--weight_decay", DECAY, "--logging_steps", 1]
    words += ["--save_strategy", "no", "--no_certify", "--quiet", *more]
    assert main([str(word) for word in words]) == 0
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    ours = [record["loss"] for record in records if "loss" in record]

    made = learnt(task, model, data, *more, rows=ROWS)
    stream = made.data.train(DataPartition())
    batches = [next(stream) for _ in range(UPDATES * ACCUMULATION)]
    single, singles = by_trainer(model, batches, tmp_path / "single", reference.SINGLE)
    exact, weights = by_trainer(model, batches, tmp_path / "exact", reference.EXACT)
    assert len(ours) == len(exact) == UPDATES
    assert exact[-1] < exact[0] - 0.1  # it learns
    np.testing.assert_allclose(ours, exact, atol=1e-4)
    np.testing.assert_allclose(ours, single, atol=1e-4)
    found = load_file(out / "model.safetensors")
    finding = judged(deviations(found, singles, weights))
    assert finding.passed, finding

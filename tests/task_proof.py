"""Tiny checkpoints for the tasks of `dew finetune`, and their loss held to transformers' own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from helpers import SENTENCES

import bridges
from bridges.commands.finetune import COMMAND
from bridges.finetune.task_choice import task_of
from dew.cli.options import parse
from dew.objectives.base import Step
from parity import random_models, reference
from parity.rounding import Deviation, deviations, judged

BERT = {
    "model_type": "bert",
    "vocab_size": 160,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}


def write_bert(folder: Path, architecture: str, labels: Sequence[str] = (), **more: Any) -> Path:
    """Write a random BERT with a head and a word-piece tokenizer, and return its folder."""
    named = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
    config = {**BERT, "architectures": [architecture], **(named if labels else {}), **more}
    random_models.save_random(config, folder, seed=3)
    write_word_pieces(folder)
    return folder


def write_t5(folder: Path, **more: Any) -> Path:
    """Write a random T5 and a word-piece tokenizer that ends texts as T5's does."""
    config = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": 160,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "dropout_rate": 0.0,
        "pad_token_id": 0,
        "eos_token_id": 3,
        "decoder_start_token_id": 0,
    }
    random_models.save_random({**config, **more}, folder, seed=5)
    write_word_pieces(folder, ending=True)
    return folder


def write_word_pieces(folder: Path, *, ending: bool = False) -> None:
    """Train a lower-casing word-piece tokenizer of 160 tokens and write its files.

    Args:
        folder: where to.
        ending: whether texts end with `</s>`, and have nothing else around them.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "</s>" if ending else "[SEP]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>" if ending else "[CLS] $A [SEP]",
        pair="$A </s> $B </s>" if ending else "[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), (special[3], 3)],
    )
    roles = ("pad", "unk", "cls", "eos" if ending else "sep")
    names = dict(zip(roles, special, strict=True))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(folder)


@dataclass
class Learnt:
    """A task's parts, as a run of `dew finetune` puts them together."""

    settings: Any
    task: Any
    examples: Any
    learner: Any
    data: Any

    @property
    def bundle(self) -> Any:
        """The model as it was loaded."""
        return self.learner.bundle

    @property
    def objective(self) -> Any:
        """The loss."""
        return self.learner.objective(self.data.report.seq_len)

    def batch(self, indices: Any) -> dict[str, np.ndarray]:
        """Return rows of the training data as the trainer gets them."""
        chosen = np.asarray(indices)
        return self.data.rows.take(chosen, self.data.rows.width(chosen))


def learnt(task: str, model: Path, data: Path, *words: Any, rows: int = 4) -> Learnt:
    """Return the parts of a run of some task."""
    argv = ["--model", model, "--data", data, "--output_dir", "unused", "--task", task, *words]
    settings = parse(COMMAND, [str(word) for word in argv])
    made = task_of(settings)
    examples = made.read(settings)
    bundle = bridges.load(model, **made.loading(examples))
    learner = made.learner(bundle, remat=False)
    data_ = made.data(settings, learner, examples, rows=rows, eval_rows=rows)
    return Learnt(settings, made, examples, learner, data_)


def loss_and_gradients(made: Learnt, batch: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return dew's loss and its gradients by torch name."""
    objective = made.objective
    variables = objective.init(jax.random.key(0), made.bundle.variables)
    step = Step(np.int32(0), jax.random.key(1))

    def loss(params: Any) -> Any:
        found = objective.loss({**variables, "params": params}, batch, step)
        return found[0].value

    value, gradients = jax.jit(jax.value_and_grad(loss))(variables["params"])
    return float(value), _by_torch_name(made.bundle, gradients)


def _by_torch_name(bundle: Any, tree: Any) -> dict[str, np.ndarray]:
    from bridges.family import family_of
    from bridges.table import out_of_tree
    from bridges.torch.checkpoint import TracedBundle

    if isinstance(bundle, TracedBundle):
        return {name: np.asarray(value) for name, value in tree.items()}
    return dict(out_of_tree(family_of(bundle.config).rows(bundle.model), tree))


def hold_to_torch(
    made: Learnt,
    folder: Path,
    batch: Mapping[str, np.ndarray],
    loss: Callable[[Any, Mapping[str, Any], Any], Any],
    *,
    ours: tuple[float, Mapping[str, np.ndarray]] | None = None,
    size: float = 0.0,
) -> None:
    """Hold loss and gradients of a batch to transformers' by the rule of `parity.rounding`.

    Args:
        made: dew's side.
        folder: the checkpoint.
        batch: what dew's side read.
        loss: `loss(model, batch, dtype)`, of transformers' model and of tensors.
        ours: dew's loss and gradients, where they are known.
        size: of the numbers that the loss is a difference of, where they are larger than it: a
            score of 20 is rounded to 2e-6 before anything is made of it.
    """
    import torch

    value, gradients = loss_and_gradients(made, batch) if ours is None else ours
    sides = []
    for precision in (reference.SINGLE, reference.EXACT):
        model = reference.Checkpoint(folder, own_class=True, fixed=True).fresh_model(precision)
        dtype = getattr(torch, precision)
        tensors = {
            name: torch.tensor(array).to(dtype if array.dtype.kind == "f" else torch.int64)
            for name, array in batch.items()
        }
        with reference.precision_of(model):
            found = loss(model, tensors, dtype)
            found.backward()
        named = {name: part.grad for name, part in model.named_parameters()}
        learnt_ones = {name: grad for name, grad in named.items() if grad is not None}
        sides.append((float(found.detach()), reference.as_stored(model, learnt_ones)))
    (single, single_grads), (exact, exact_grads) = sides
    kept = [name for name in exact_grads if name in gradients]
    assert len(kept) == len(exact_grads), sorted(set(exact_grads) - set(gradients))
    scale = max(float(np.abs(grad).max()) for grad in exact_grads.values())
    pick = [{name: side[name] for name in kept} for side in (gradients, single_grads, exact_grads)]
    found = deviations(*pick, scale=scale)
    largest = max(abs(exact), size)
    found.append(Deviation("loss", abs(value - exact), abs(single - exact), largest))
    finding = judged(found)
    assert finding.passed, finding

"""`--task chat` and `--task dpo`: what is learnt of a conversation, and trl's own losses.

Right values: transformers' assistant masks, the template's own text, and trl's DPOTrainer.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SENTENCES, write_llama

from bridges.finetune.chat_tokens import chat_tokens, pair_tokens
from bridges.finetune.conversations import conversation, conversation_kind
from bridges.text.processors import read_processor
from dew.cli.main import main
from dew.errors import InputRefused

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKS = (
    "{% for m in messages %}{% if loop.last or m.role == 'user' %}<{{ m.role }}>{{ m.content }}"
    "{% else %}<{{ m.role }}>{% endif %}{% endfor %}"
)
TALK = [
    {"role": "system", "content": "Answer in verse."},
    {"role": "user", "content": "When shall we meet?"},
    {"role": "assistant", "content": "When the hurlyburly's done."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "Upon the heath."},
]


def checkpoint(folder: Path, template: str) -> Path:
    write_llama(folder, max_position_embeddings=128)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"chat_template": template}
    path.write_text(json.dumps(settings | {"eos_token": "<|im_end|>"}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    templates = {"plain": PLAIN, "marked": MARKED, "thinks": THINKS}
    return {n: checkpoint(tmp_path_factory.mktemp(n), text) for n, text in templates.items()}


def processor(folder: Path) -> Any:
    return read_processor(folder, json.loads((folder / "config.json").read_text()))


def learnt(folder: Path, messages: Any) -> str:
    found = processor(folder)
    ids, weights = chat_tokens(found, messages, assistant_only=True)
    kept = [token for token, weight in zip(ids, weights, strict=True) if weight]
    return found.decode(kept, skip_special_tokens=False)


@pytest.mark.parametrize("name", ["plain", "marked"])
def test_the_answers_and_their_ends_are_learnt(folders, name):
    answers = [message["content"] for message in TALK if message["role"] == "assistant"]
    assert learnt(folders[name], TALK) == "".join(f"{answer}<|im_end|>" for answer in answers)


@pytest.mark.torch
def test_the_mask_is_transformers_assistant_mask(folders):
    from transformers import AutoTokenizer

    theirs: Any = AutoTokenizer.from_pretrained(folders["marked"]).apply_chat_template(
        TALK, return_assistant_tokens_mask=True, return_dict=True
    )
    ids, weights = chat_tokens(processor(folders["marked"]), TALK, assistant_only=True)
    assert ids == theirs["input_ids"]
    assert [int(weight) for weight in weights] == theirs["assistant_masks"]


def test_a_template_that_rewrites_the_past_is_refused(folders):
    with pytest.raises(InputRefused, match=r"told apart[\s\S]*no-assistant_only_loss"):
        chat_tokens(processor(folders["thinks"]), TALK, assistant_only=True)
    ids, weights = chat_tokens(processor(folders["thinks"]), TALK, assistant_only=False)
    assert len(ids) == len(weights)
    assert set(weights) == {1.0}


def test_a_completion_is_learnt_with_its_end(folders):
    """Case P055: padding is the end token here, and the end is a target all the same."""
    found = processor(folders["plain"])
    ids, weights = pair_tokens(found, "When shall", " we meet?", completion_only=True)
    kept = [token for token, weight in zip(ids, weights, strict=True) if weight]
    assert found.decode(kept, skip_special_tokens=False) == " we meet?<|im_end|>"


@pytest.mark.parametrize(
    ("row", "roles"),
    [
        ({"messages": TALK}, ["system", "user", "assistant", "user", "assistant"]),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            ["user", "assistant"],
        ),
        ({"instruction": "a", "input": "more", "output": "b"}, ["user", "assistant"]),
        ({"prompt": TALK[:2], "completion": TALK[2:3]}, ["system", "user", "assistant"]),
    ],
)
def test_every_layout_is_read(row, roles):
    found = conversation(row, conversation_kind(dict.fromkeys(row, "object")))
    assert isinstance(found, list)
    assert [message["role"] for message in found] == roles
    assert all(set(message) == {"role", "content"} for message in found)


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def talks() -> list[Any]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"{n}: {asked[:25]}"},
                {"role": "assistant", "content": said[:40]},
            ]
        }
        for n, (asked, said) in enumerate(pairwise(SENTENCES))
    ]


FLAGS = ("--max_length", "96", "--per_device_train_batch_size", "2", "--no_certify", "--quiet")


def test_a_chat_run_from_messages_to_a_folder(folders, tmp_path, capsys):
    data = write_rows(tmp_path / "chat.jsonl", talks())
    words = [
        "finetune",
        folders["plain"],
        "--task",
        "chat",
        "--data",
        data,
        "--output",
        tmp_path / "out",
    ]
    assert main([*map(str, words), *FLAGS, "--max_steps", "2", "--eval_split", "0.2"]) == 0
    told = capsys.readouterr().out
    assert "end tokens    last label of 100.0% of the rows" in told
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"words": "a"}], "no column with conversations"),
        ([{"messages": [{"content": "a"}]}], r"line 1[\s\S]*role"),
    ],
)
def test_bad_conversations_are_refused_before_the_first_step(
    folders, tmp_path, capsys, rows, message
):
    data = write_rows(tmp_path / "chat.jsonl", rows)
    words = [
        "finetune",
        folders["plain"],
        "--task",
        "chat",
        "--data",
        data,
        "--output",
        tmp_path / "out",
    ]
    assert main([*map(str, words), *FLAGS, "--max_steps", "2"]) == 2
    assert re.search(message, capsys.readouterr().err)


def pairs() -> list[Any]:
    def text(n: int) -> str:
        return SENTENCES[n % len(SENTENCES)]

    return [
        {
            "prompt": [{"role": "user", "content": f"{n}: {text(n)[:20]}"}],
            "chosen": [{"role": "assistant", "content": text(n + 1)[: 12 + 3 * n]}],
            "rejected": [{"role": "assistant", "content": text(n + 2)[:18]}],
        }
        for n in range(7)
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.torch
@pytest.mark.slow
def test_dpo_losses_are_trls(folders, tmp_path):
    """Fifty updates of two microbatches each: every loss within 1e-4, the weights too."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    from dew.data.stream import epoch_order

    rows, steps = pairs(), 50
    data = write_rows(tmp_path / "pairs.jsonl", rows)
    out = tmp_path / "out"
    words = ["finetune", folders["plain"], "--task", "dpo", "--data", data, "--output", out]
    numbers = {
        "--max_steps": steps,
        "--learning_rate": 1e-3,
        "--gradient_accumulation_steps": 2,
        "--logging_steps": 1,
        "--beta": 0.3,
        "--seed": 5,
    }
    flags = [str(part) for pair in numbers.items() for part in pair]
    assert main([*map(str, words), *FLAGS, *flags]) == 0
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    ours = [record["loss"] for record in records if "loss" in record]

    wanted = steps * 2 * 2
    epochs = -(-wanted // len(rows))
    order = np.concatenate([epoch_order(len(rows), seed=5, epoch=e) for e in range(epochs)])
    ordered = Dataset.from_list([rows[i] for i in order[:wanted]])

    class InOrder(DPOTrainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(folders["plain"]),
        args=DPOConfig(
            output_dir=str(tmp_path / "theirs"),
            max_steps=steps,
            learning_rate=1e-3,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            logging_steps=1,
            beta=0.3,
            max_length=96,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
        ),
        train_dataset=ordered,
        processing_class=AutoTokenizer.from_pretrained(folders["plain"]),
    )
    trainer.train()
    theirs = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    assert len(ours) == len(theirs) == steps
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert abs(ours[-1] - ours[0]) > 0.05


@pytest.mark.parametrize(
    ("rows", "task"),
    [(talks, "chat"), (pairs, "dpo"), (lambda: [{"text": "a"}], "causal-lm")],
)
def test_what_a_decoder_is_to_learn_is_told_by_the_columns(folders, tmp_path, rows, task):
    from bridges.commands.finetune import COMMAND
    from bridges.finetune.task_choice import task_of
    from dew.cli.options import parse

    data = write_rows(tmp_path / "rows.jsonl", rows())
    words = ["--model", str(folders["plain"]), "--data", str(data)]
    assert task_of(parse(COMMAND, words)).name == task
    assert task_of(parse(COMMAND, [*words, "--task", "causal-lm"])).name == "causal-lm"

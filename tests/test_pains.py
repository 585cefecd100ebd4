"""The pains that people have with other trainers, each shown to be ended by the real command.

1 the exported model is another one; 3 nothing is learnt and nothing is said; 4 the model never
stops; 7 whether it fits is found out by paying; 8 stopping costs hours; 10 nobody knows what made
a checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finetune_runs import FLAGS
from helpers import SENTENCES, write_lines, write_llama
from safetensors.numpy import load_file
from task_proof import write_bert

from dew.cli.main import main

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END_OF_TEXT, END_OF_ANSWER = 0, 2
LONGER = ("--max_length", 96)
STEPS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A llama whose files name `<|endoftext|>` alone, as padding too, with a chat template."""
    folder = write_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=128)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    ids = {"bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT, "pad_token_id": END_OF_TEXT}
    (folder / "generation_config.json").write_text(json.dumps(ids))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_lines(tmp_path_factory.mktemp("data") / "train.jsonl", SENTENCES * 4)


@pytest.fixture(scope="module")
def talks(tmp_path_factory) -> Path:
    rows = [
        [{"role": "user", "content": text[:20]}, {"role": "assistant", "content": text[-12:]}]
        for text in SENTENCES
    ]
    path = tmp_path_factory.mktemp("talks") / "talks.jsonl"
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return path


def finetune(model: Path, data: Path, out: Path, *flags: Any, steps: int = 2) -> int:
    words = ("--model", model, "--data", data, "--output", out, "--steps", steps, *FLAGS)
    words = (*words, "--no_certify", "--report_samples", 0, "--quiet", *flags)
    return main(["finetune", *map(str, words)])


def assert_equal_weights(one: Path, two: Path) -> None:
    ours, theirs = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def altered_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flip a bit of what is written, behind the writer's back."""
    import bridges.files.writer

    plain = bridges.files.writer.write_safetensors

    def flipping(path: Path, *rest: Any) -> None:
        plain(path, *rest)
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)

    monkeypatch.setattr(bridges.files.writer, "write_safetensors", flipping)


def merged_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge nothing, as merges that write the base back do."""
    import bridges.adapters

    monkeypatch.setattr(bridges.adapters, "merge", lambda bundle: bundle.base)


@pytest.mark.parametrize(
    ("alter", "flags", "message"),
    [
        pytest.param(altered_value, (), "does not load back equal", marks=pytest.mark.slow),
        (
            merged_base,
            ("--lora_rank", 4),
            "the merged model is not the one that was trained",
        ),
    ],
)
def test_pain_1_what_is_written_is_what_was_trained(
    model, data, tmp_path, monkeypatch, capsys, alter, flags, message
):
    """Expected: exit status 1, and nothing in the folder that passes for the model."""
    alter(monkeypatch)
    flags = (*flags, "--save_strategy", "no")
    assert finetune(model, data, tmp_path / "out", *flags) == 1
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("model.safetensors"))
    assert not (tmp_path / "out" / "train_results.json").exists()


@pytest.fixture(scope="module")
def taught(model, talks, tmp_path_factory) -> Path:
    """A run on conversations that trained an adapter."""
    out = tmp_path_factory.mktemp("runs") / "taught"
    assert finetune(model, talks, out, *LONGER, "--task", "chat", "--lora_rank", 4) == 0
    return out


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_pain_1_the_merged_model_is_the_adapter_to_peft(taught, model):
    """Right values: peft's own logits of base and adapter, and transformers' greedy tokens."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged: Any = AutoModelForCausalLM.from_pretrained(taught / "merged")
    base: Any = AutoModelForCausalLM.from_pretrained(model)
    untouched: Any = AutoModelForCausalLM.from_pretrained(model)
    adapted: Any = PeftModel.from_pretrained(base, str(taught))
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        ours, theirs, before = (m(ids).logits for m in (merged, adapted, untouched))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert float((ours - before).abs().max()) > 1e-3
    tokens = [m.generate(ids, max_new_tokens=12, do_sample=False) for m in (merged, adapted)]
    assert torch.equal(*tokens)


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (
            "chat",
            [
                {
                    "messages": [
                        {"role": "user", "content": SENTENCES[0] * 3},
                        {"role": "assistant", "content": "So?"},
                    ]
                }
            ],
        ),
        ("chat", [{"messages": [{"role": "user", "content": SENTENCES[0]}]}]),
        ("dpo", [{"prompt": SENTENCES[0] * 3, "chosen": " Yes.", "rejected": " No."}]),
        ("causal-lm", [{"text": ""}]),
    ],
    ids=["prompts-fill-their-rows", "no-answer", "pairs-cut-away", "no-text"],
)
def test_pain_3_nothing_to_learn_is_an_error_before_the_first_step(
    model, tmp_path, capsys, task, rows
):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    assert finetune(model, data, tmp_path / "out", "--task", task, "--no_packing") == 2
    told = capsys.readouterr()
    assert "no trainable token" in told.err
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_pain_3_rows_that_are_cut_are_told(taught, model, talks):
    """Right values: counted by hand from the tokenizer's own ids."""
    from bridges.text.processors import read_processor

    found = json.loads((taught / "training_args.json").read_text())["dew"]["data"]
    assert (found["cut"], found["lost_tokens"], found["dropped"]) == (0, 0, 0)
    processor: Any = read_processor(model, json.loads((model / "config.json").read_text()))
    lengths = [
        len(processor.encode(processor.apply_chat_template(json.loads(row)["messages"])))
        for row in talks.read_text().splitlines()
    ]
    limit = sorted(lengths)[2]  # two rows are longer
    flags = ("--task", "chat", "--no_packing", "--max_length", limit, "--max_steps", 1)
    report = report_of(model, talks, *flags)
    assert report.cut == sum(length > limit for length in lengths) == 2
    assert report.lost_tokens == sum(max(0, length - limit) for length in lengths)
    assert f"cut           2 documents longer than a row ({report.lost_tokens} tokens" in str(
        report
    )


def report_of(model: Path, data: Path, *flags: Any) -> Any:
    """Return what is told of the data before the first step."""
    from bridges.commands.finetune import COMMAND
    from bridges.finetune.parts import read_parts
    from dew.cli.options import parse

    words = ("--model", model, "--data", data, "--output", data.parent / "out", *FLAGS, *flags)
    return read_parts(parse(COMMAND, [str(word) for word in words]), data.parent, "it").data.report


def test_pain_4_what_ends_an_answer_ends_generation(taught):
    """Padding is the end of text here, and neither it nor the file names the template's end."""
    found = json.loads((taught / "training_args.json").read_text())["dew"]["data"]
    assert found["end_share"] == 1.0
    assert found["example"][np.flatnonzero(found["example_mask"])[-1]] == END_OF_ANSWER
    options = json.loads((taught / "merged" / "generation_config.json").read_text())
    assert options["eos_token_id"] == [END_OF_TEXT, END_OF_ANSWER]
    assert options["pad_token_id"] == END_OF_TEXT


@pytest.mark.torch
@pytest.mark.slow
def test_pain_4_the_tuned_model_stops_in_transformers(model, talks, tmp_path):
    """Right value: the answer by heart, then nothing, as `generate` of transformers writes it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "out"
    flags = ("--task", "chat", "--per_device_train_batch_size", 5)
    assert finetune(model, talks, out, *LONGER, *flags, steps=150) == 0
    tuned: Any = AutoModelForCausalLM.from_pretrained(out)
    tokenizer: Any = AutoTokenizer.from_pretrained(out)
    for line in talks.read_text().splitlines():
        asked, answer = json.loads(line)["messages"]
        ids = tokenizer.apply_chat_template(
            [asked], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        new = tuned.generate(ids, max_new_tokens=40, do_sample=False)[0, ids.shape[1] :]
        assert tokenizer.decode(new) == answer["content"] + "<|im_end|>"
        assert isinstance(new, torch.Tensor)


@pytest.mark.slow
def test_pain_7_whether_it_fits_is_said_without_a_weight(tmp_path, capsys):
    """The weights are no weights at all: reading one would fail. 2**30 is what a GiB is."""
    model = write_bert(tmp_path / "model", "BertForSequenceClassification", ("fair", "foul"))
    weights = model / "model.safetensors"
    weights.write_bytes(b"\0" * weights.stat().st_size)
    rows = [{"text": text, "label": ("fair", "foul")[n % 2]} for n, text in enumerate(SENTENCES)]
    data = tmp_path / "rows.json"
    data.write_text(json.dumps(rows))
    out = tmp_path / "out"
    assert finetune(model, data, out, "--dry_run", "--memory_limit", "64G") == 0
    told = capsys.readouterr().out
    parts = dict(re.findall(r"^  ([a-z ]+?) +([0-9.]+) GiB$", told, re.MULTILINE))
    whole = float(parts.pop("in all"))
    assert float(parts.pop("there is")) == 64
    assert whole == pytest.approx(sum(map(float, parts.values())), abs=0.002)
    assert not out.exists()


def interrupted_or_not(model: Path, data: Path, out: Path) -> int:
    flags = ("--save_steps", 2, "--eval_data", data, "--eval_strategy", "steps", "--eval_steps", 2)
    return finetune(model, data, out, *flags, "--logging_steps", 1, steps=STEPS)


@pytest.fixture(scope="module")
def uninterrupted(model, data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "straight"
    assert interrupted_or_not(model, data, out) == 0
    return out


def terminated_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call`, which sends this process SIGTERM when it first begins."""
    sent: list[bool] = []

    def calling(*arguments: Any, **options: Any) -> Any:
        if not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return call(*arguments, **options)

    return calling


@pytest.mark.parametrize(
    ("phase", "updates"),
    [("compiling", 0), ("evaluating", 2), ("saving", 2)],
)
@pytest.mark.slow
def test_pain_8_a_stop_is_heard_in_every_phase_and_costs_nothing(
    model, data, tmp_path, monkeypatch, capsys, uninterrupted, phase, updates
):
    """Expected: status 143, a checkpoint of that very update, and of the data only the rest."""
    from bridges.finetune.method import WholeModel
    from dew.data.stream import RowStream
    from dew.objectives.lm import LMObjective

    owner, name = {
        "compiling": (LMObjective, "loss"),
        "evaluating": (LMObjective, "evaluate"),
        "saving": (WholeModel, "write"),
    }[phase]
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, terminated_once(getattr(owner, name)))
        assert interrupted_or_not(model, data, out) == 143
    last = capsys.readouterr().err.strip().splitlines()[-1]
    found = int(re.search(r"checkpoint-(\d+) is saved; go on with: ", last)[1])
    # A save lies beside the steps: the run has gone on by at most the steps that are queued.
    assert updates <= found <= updates + (4 if phase == "saving" else 0)

    taken = []
    plain = RowStream.__next__
    with monkeypatch.context() as patch:
        patch.setattr(RowStream, "__next__", lambda self: taken.append(1) or plain(self))
        assert interrupted_or_not(model, data, out) == 0
    assert len(taken) == STEPS - found
    assert_equal_weights(out, uninterrupted)


def test_pain_10_a_checkpoint_says_what_made_it(taught, model, talks):
    """Right values: the packages' own versions, the settings as typed, the hash of the rows."""
    from importlib.metadata import version

    import yaml

    settings = yaml.safe_load((taught / "config.yaml").read_text())
    assert (settings["lora_r"], settings["learning_rate"], settings["max_steps"]) == (4, 1e-2, 2)
    found = json.loads((taught / "training_args.json").read_text())
    assert f"jax {version('jax')}" in found["dew"]["versions"]
    report = report_of(model, talks, *LONGER, "--task", "chat")
    assert found["dew"]["data"]["fingerprint"] == report.fingerprint
    assert len(report.fingerprint) == len(sha256().hexdigest())
    pickled = {".bin", ".pt", ".pkl", ".pth"}
    assert not [path for path in taught.rglob("*") if path.suffix in pickled]


@pytest.mark.slow
def test_pain_10_the_config_alone_makes_it_again(taught, tmp_path):
    again = tmp_path / "again"
    assert main(["finetune", "--config", str(taught / "config.yaml"), "--output", str(again)]) == 0
    assert_equal_weights(taught / "merged", again / "merged")

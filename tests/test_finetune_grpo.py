"""`--task grpo`: prompts, rewards by name, file or function, and trl's own losses.

Right values: trl's GRPOTrainer on the completions that dew drew, trl's rewards, closed forms.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SENTENCES, write_llama

import dew
from bridges.finetune.answer_rewards import accuracy, final_answer, think_format
from bridges.finetune.prompt_rows import PromptRows, prompt_table, tokenized
from bridges.finetune.rewards import TableReward, WeightedRewards, rewards_of
from bridges.finetune.row_table import RowTable
from dew.cli.main import main
from dew.errors import InputRefused, UnknownName
from dew.objectives.rollouts import GRPORollouts

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = ("--max_completion_length", "8", "--num_generations", "4")
QUIET = ("--no_certify", "--quiet", "--report_samples", "0", "--logging_steps", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A llama whose template ends answers with a token that its config does not name."""
    folder = tmp_path_factory.mktemp("grpo") / "model"
    write_llama(folder, max_position_embeddings=64)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return folder


def prompts() -> list[dict[str, Any]]:
    return [
        {"prompt": text[: 6 + 2 * number], "answer": str(number)}
        for number, text in enumerate((*SENTENCES, *reversed(SENTENCES)))
    ]


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def vowels(completions: list[str], **columns: Any) -> list[float]:
    """The share of vowels: a reward that differs within every group."""
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def settings_of(model: Path, data: Path, *words: Any) -> Any:
    from bridges.commands.finetune import COMMAND
    from dew.cli.options import parse

    return parse(COMMAND, ["--model", str(model), "--data", str(data), *map(str, words)])


def test_a_run_from_messages_and_a_function_of_python(model, tmp_path):
    """The reward sees messages and columns; what is held out is scored; the folder loads."""
    seen: list[dict[str, Any]] = []

    def reward(**given: Any) -> list[float]:
        seen.append(given)
        return vowels([each[0]["content"] for each in given["completions"]])

    rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in prompts()]
    run = dew.finetune(
        str(model),
        rows,
        tmp_path / "out",
        reward=reward,
        max_completion_length=8,
        num_generations=4,
        max_steps=2,
        eval_split=0.2,
        logging_steps=1,
        report_samples=0,
        certify=False,
    )
    assert set(seen[0]) == {"prompts", "completions", "completion_ids", "answer"}
    assert len(seen[0]["prompts"]) == len(seen[0]["answer"]) == 8
    assert seen[0]["prompts"][0] == seen[0]["prompts"][3]
    assert seen[0]["prompts"][0][0]["role"] == "user"
    assert seen[0]["completions"][0][0]["role"] == "assistant"
    training = [record for record in logged(run.folder) if "loss" in record]
    assert [record["step"] for record in training] == [1, 2]
    batches = [np.mean(reward(**given)) for given in seen[:2]]
    np.testing.assert_allclose([record["reward"] for record in training], batches, rtol=1e-5)
    assert 0 <= run.results["eval_reward"] <= 1
    config = (run.folder / "config.yaml").read_text()
    assert "reward" in config
    assert "test_finetune_grpo:" in config
    ends = json.loads((run.folder / "generation_config.json").read_text())["eos_token_id"]
    assert 2 in ends, "the end of the template's answers"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {"loss_type": "dapo", "beta": 0.1, "gradient_accumulation_steps": 2},
        {"loss_type": "grpo", "num_iterations": 2, "epsilon": 0.05},
        {
            "loss_type": "dr_grpo",
            "scale_rewards": "batch",
            "beta": 0.05,
            "use_bias_correction_kl": False,
        },
    ],
)
def test_losses_are_trls_on_the_same_completions(model, tmp_path, monkeypatch, options):
    """Ten updates at a temperature: trl's loss, gradient norm and KL of each within 1e-4.

    They are plain gradient steps, for Adam takes the sign of what is rounding alone.
    """
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    drawn: list[dict[str, np.ndarray]] = []
    original = GRPORollouts.drawn

    def spied(self: Any, *given: Any) -> dict[str, np.ndarray]:
        drawn.append(original(self, *given))
        return drawn[-1]

    monkeypatch.setattr(GRPORollouts, "drawn", spied)
    out, rows = tmp_path / "out", prompts()
    data = write_rows(tmp_path / "prompts.jsonl", rows)
    (tmp_path / "own.py").write_text(
        "def letters(completions, **columns):\n    return [len(set(c)) for c in completions]\n"
    )
    words = ["finetune", model, "--data", data, "--output", out, "--max_steps", 10]
    words += ["--reward", f"{tmp_path / 'own.py'}:letters", "--temperature", 0.8]
    words += ["--optim", "sgd", "--learning_rate", 0.3]
    words += [word for name, value in options.items() for word in (f"--{name}", value)]
    assert main([*map(str, (*words, *SIZES, *QUIET))]) == 0
    ours = [record for record in logged(out) if "loss" in record]

    uses, windows = options.get("num_iterations", 1), options.get("gradient_accumulation_steps", 1)
    batches = [batch for batch in drawn for _ in range(uses)][: 10 * windows]
    width = batches[0]["text"].shape[1] - 8

    class OnOurs(GRPOTrainer):
        taken = 0

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            batch = batches[self.taken]
            window = self.taken // windows * windows
            tokens = sum(b["mask"][:, width:].sum() for b in batches[window : window + windows])
            self.taken += 1
            text, mask = (torch.tensor(batch[name]).long() for name in ("text", "mask"))
            given = {
                "prompt_ids": text[:, :width],
                "prompt_mask": mask[:, :width],
                "completion_ids": text[:, width:],
                "completion_mask": mask[:, width:],
                "advantages": torch.tensor(batch["advantages"]),
                "num_items_in_batch": torch.tensor(float(tokens)),
            }
            if "old_log_probs" in batch:
                given["old_per_token_logps"] = torch.tensor(batch["old_log_probs"])
            if self.beta:
                with torch.no_grad():
                    given["ref_per_token_logps"] = self._get_per_token_logps_and_entropies(
                        self.ref_model, text, mask, 8
                    )[0]
            return given

    trainer = OnOurs(
        model=AutoModelForCausalLM.from_pretrained(model),
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(tmp_path / "theirs"),
            max_steps=10,
            optim="sgd",
            learning_rate=0.3,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            temperature=0.8,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            **options,
        ),
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    trainer.train()
    theirs = [record for record in trainer.state.log_history if "loss" in record]
    assert len(ours) == len(theirs) == 10
    # Over several microbatches trl logs the mean of their means, and dew the mean of all tokens.
    logs_kl = options.get("beta") and windows == 1
    for name in ("loss", "grad_norm", *(["kl"] if logs_kl else [])):
        mine, other = ([record[name] for record in side] for side in (ours, theirs))
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4, err_msg=name)
    if uses > 1:
        assert max(record["clip_ratio/region_mean"] for record in ours) > 0
    # Every group is centred by its own mean and scaled as trl scales it.
    rewards, advantages = drawn[0]["rewards"].reshape(-1, 4), drawn[0]["advantages"].reshape(-1, 4)
    spread = rewards.std(1, ddof=1, keepdims=True)
    if options.get("scale_rewards") == "batch":
        spread = rewards.std(ddof=1)
    np.testing.assert_allclose(
        advantages, (rewards - rewards.mean(1, keepdims=True)) / (spread + 1e-4), rtol=1e-4
    )


@pytest.mark.slow
def test_a_policy_with_an_adapter_resumes_to_the_same_end(model, tmp_path):
    """Oracle: the run that was not cut. The adapter alone is written, not the base beside it."""
    data = write_rows(tmp_path / "prompts.jsonl", prompts())
    (tmp_path / "own.py").write_text(
        "def spaces(completions, **columns):\n"
        "    return [c.count(' ') / max(1, len(c)) for c in completions]\n"
    )
    common = ["finetune", model, "--data", data, "--reward", f"{tmp_path / 'own.py'}:spaces"]
    common += ["--lora_r", 4, "--lora_dropout", 0.1, "--beta", 0.01, "--save_steps", 2]
    common += ["--lr_scheduler_type", "constant", *SIZES, *QUIET, "--learning_rate", 1e-2]
    common += ["--report_samples", 1]
    ends = {}
    for name, stops in (("whole", (5,)), ("cut", (3, 5))):
        for stop in stops:
            words = [*common, "--output", tmp_path / name, "--max_steps", stop]
            assert main([*map(str, words)]) == 0
        ends[name] = (tmp_path / name / "adapter_model.safetensors").read_bytes()
        assert not (tmp_path / name / "model.safetensors").exists()
    assert ends["whole"] == ends["cut"]
    rewards = {n: [r["reward"] for r in logged(tmp_path / n) if "reward" in r] for n in ends}
    assert rewards["whole"] == rewards["cut"]
    assert len(set(rewards["whole"])) > 1
    assert "Before and after" in (tmp_path / "whole" / "report.html").read_text()


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([{"text": "a"}], ["--reward", "accuracy"], "no column prompt; there is 'text'"),
        ([{"prompt": "a"}], [], "grpo needs a reward"),
        ([{"prompt": "a"}], ["--reward", "accuracy"], "reads the column answer or solution"),
        ([{"prompt": "a"}], ["--reward", "acuracy"], "did you mean 'accuracy'"),
        ([{"prompt": "a"}], ["--reward", "regex"], "--reward_pattern"),
        ([{"prompt": "a"}], ["--reward", "gone.py:f"], "there is no file gone.py"),
        ([{"prompt": "a"}], ["--reward", "json:nothing"], "cannot be loaded: AttributeError"),
        ([{"prompt": "a"}], ["--reward", "__main__:f"], "call dew.finetune with it again"),
        ([{"prompt": 3}], ["--reward", "think_format"], r"line 1: holds 3; expected a text"),
        (
            [{"prompt": "a"}],
            ["--reward", "think_format", "--reward_weights", "1,2"],
            "expected 1 numbers",
        ),
        (
            [{"prompt": "a"}],
            ["--reward", "think_format", "--num_generations", "3"],
            "a multiple of num_generations",
        ),
        (
            [{"prompt": "a"}],
            ["--reward", "think_format", "--max_completion_length", "64"],
            "--max_completion_length 63 or less",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(
    model, tmp_path, capsys, rows, words, message
):
    data = write_rows(tmp_path / "prompts.jsonl", rows)
    given = ["finetune", model, "--task", "grpo", "--data", data, "--output", tmp_path / "out"]
    assert main([*map(str, given), *words]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out" / "log.jsonl").exists()


def test_prompts_stand_at_the_right_end_and_long_ones_are_left_out(model):
    from bridges.data.records import read_records
    from bridges.finetune.encoded_rows import Ragged
    from bridges.text.processors import read_processor

    processor = read_processor(model, json.loads((model / "config.json").read_text()))
    table = prompt_table(read_records([{"prompt": "So foul"}, {"prompt": SENTENCES[0]}]))
    kept = tokenized(table, processor, 12)
    assert kept["prompt"] == ["So foul"]
    ids = kept["prompt_ids"][0]
    rows = PromptRows(Ragged.of([ids]), 12, 7, {})
    batch = rows.take(np.array([0]))
    assert batch["prompt"][0].tolist() == [7] * (12 - len(ids)) + ids
    assert batch["prompt_mask"][0].tolist() == [0] * (12 - len(ids)) + [1] * len(ids)
    with pytest.raises(InputRefused, match="rows 1 to 1"):
        rows.take(np.array([1]))


def test_rewards_add_up_by_their_weights_and_none_is_no_zero():
    def first(**given: Any) -> list[float | None]:
        return [1.0, None, None]

    def second(**given: Any) -> list[float | None]:
        return [10.0, 5.0, None]

    rewards = WeightedRewards({"first": first, "second": second}, (2.0, 0.5))
    assert rewards(completions=["a", "b", "c"]) == [7.0, 2.5, None]
    with pytest.raises(InputRefused, match=r"'first' gave .* for 2 completions"):
        rewards(completions=["a", "b"])


def test_columns_follow_their_prompts():
    seen: dict[str, Any] = {}

    def reward(**given: Any) -> list[float]:
        seen.update(given)
        return [0.0] * 3

    table = RowTable({"prompt": ["p", "q"], "answer": [1, 2], "prompt_ids": [[0], [1]]})
    TableReward(WeightedRewards({"r": reward}, (1.0,)), table)(
        prompts=None, completions=["x", "y", "z"], completion_ids=[[1], [2], [3]], record=[1, 1, 0]
    )
    assert seen["prompts"] == ["q", "q", "p"]
    assert seen["answer"] == [2, 2, 1]
    assert set(seen) == {"prompts", "completions", "completion_ids", "answer"}


@pytest.mark.torch
def test_the_form_of_thoughts_is_trls():
    from trl.rewards import think_format_reward

    texts = [
        "<think>\na\n</think>\nb",
        "<think>a",
        "a <think>b</think>",
        "<think>a<think>b</think></think>",
        "<think></think>",
        "",
    ]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert think_format(messages) == think_format_reward(messages) == think_format(texts)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so it is \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("<answer> a\n b </answer>", "a b"),
        ("2 + 2 is 4\n#### 4", "4"),
        ("  forty  two ", "forty two"),
        ("\\boxed{1} no, \\boxed{2}", "2"),
        ("\\boxed{never closed", "\\boxed{never closed"),
    ],
)
def test_the_answer_of_a_text_is_what_stands_last(text, answer):
    assert final_answer(text) == answer
    assert accuracy([text, text, text], answer=[answer, "other", None]) == [1.0, 0.0, None]


def test_a_reward_is_a_task_and_a_config_names_it_again(model, tmp_path):
    from bridges.finetune.settings import settings_yaml
    from bridges.finetune.task_choice import task_of

    data = write_rows(tmp_path / "prompts.jsonl", prompts())
    settings = settings_of(model, data, "--reward_funcs", "think_format_reward", "accuracy")
    assert task_of(settings).name == "grpo"
    assert list(rewards_of(settings, ["answer"]).functions) == ["think_format", "accuracy"]
    path = tmp_path / "config.yaml"
    path.write_text(settings_yaml(settings))
    again = settings_of(model, data, "--config", path)
    assert again["reward"] == settings["reward"]
    with pytest.raises(UnknownName, match=r"file\.py:function"):
        rewards_of(settings_of(model, data, "--reward", "nothing"), [])

"""`dew finetune`: one command to a Hugging Face folder, resumed exactly, refused clearly."""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from finetune_runs import FLAGS, STEPS, start, wait_for_step
from helpers import SENTENCES, write_lines, write_llama
from safetensors.numpy import load_file

from bridges.finetune.run_folder import locked
from dew.cli.main import main
from dew.errors import InputRefused

QUIET = ("--quiet", "--no_certify", "--report_samples", "0")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_lines(tmp_path_factory.mktemp("data") / "train.jsonl", SENTENCES * 4)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("held_out") / "held_out.txt"
    path.write_text(SENTENCES[0])
    return path


def finetune(model, data, out, *flags, steps=4) -> int:
    words = ("--model", model, "--data", data, "--output", out, "--steps", steps)
    return main(["finetune", *map(str, words), *FLAGS, *QUIET, *map(str, flags)])


@pytest.fixture(scope="module")
def finished(model, data, held_out, tmp_path_factory) -> Path:
    """A run of four updates with everything that a folder can hold."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    flags = ("--eval_data", held_out, "--eval_on_start", "--logging_steps", 2, "--save_steps", 2)
    assert finetune(model, data, out, *flags, "--eval_strategy", "steps") == 0
    return out


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def assert_equal_weights(one: Path, two: Path) -> None:
    ours, theirs = weights(one), weights(two)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_the_output_folder_holds_what_the_documents_promise(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("README.md", "config.yaml", "training_args.json", "trainer_state.json", "log.jsonl"),
        *("train_results.json", "eval_results.json", "all_results.json"),
        *("checkpoint-2", "checkpoint-4"),
    }
    assert not [name for name in names if name.endswith(".tmp")]
    checkpoint = {path.name for path in (finished / "checkpoint-2").iterdir()}
    assert checkpoint >= {"config.json", "model.safetensors", "dew", "trainer_state.json"}


def test_training_moved_the_weights_and_lowered_the_held_out_loss(finished, model):
    before = weights(model)
    assert any(not np.array_equal(before[name], new) for name, new in weights(finished).items())
    records = [json.loads(line) for line in (finished / "log.jsonl").read_text().splitlines()]
    losses = [record["eval_loss"] for record in records if "eval_loss" in record]
    # Random weights on 320 tokens begin near ln 320 = 5.8 nats; four steps at 1e-2 must help.
    assert losses[0] > losses[-1]
    assert losses[-1] == json.loads((finished / "eval_results.json").read_text())["eval_loss"]


def test_the_last_checkpoint_holds_the_exported_weights(finished):
    assert_equal_weights(finished, finished / "checkpoint-4")


def test_the_log_has_hugging_faces_names(finished):
    records = [json.loads(line) for line in (finished / "log.jsonl").read_text().splitlines()]
    trained = [record for record in records if "loss" in record]
    assert [record["step"] for record in trained] == [2, 4]
    assert trained[0].keys() >= {
        *("loss", "grad_norm", "learning_rate", "epoch", "step_seconds"),
        "tokens_per_second_per_device",
    }
    # Two rows of 31 targets, less those that begin a document or are padding, a step.
    tokens = [record["num_tokens"] for record in trained]
    assert 0 < tokens[0] < tokens[1] <= 4 * 2 * 31
    # Linear from 1e-2 over four updates: the fourth one, counted from 0, has a quarter left.
    np.testing.assert_allclose(trained[1]["learning_rate"], 1e-2 * 0.25, rtol=1e-6)
    state = json.loads((finished / "trainer_state.json").read_text())
    assert state["global_step"] == 4
    assert state["log_history"] == records


def test_the_card_names_the_settings_and_the_results(finished):
    import yaml

    text = (finished / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert front["library_name"] == "transformers"
    assert front["pipeline_tag"] == "text-generation"
    assert {"generated_from_trainer", "dew", "jax"} <= set(front["tags"])
    assert "model-index" not in front
    assert "learning_rate: 0.01" in text
    assert "eval_perplexity" in text


def test_a_finished_run_says_so_and_changes_nothing(finished, model, data, held_out, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    flags = ("--eval_data", held_out, "--eval_on_start", "--logging_steps", 2, "--save_steps", 2)
    assert finetune(model, data, finished, *flags, "--eval_strategy", "steps") == 0
    assert "finished (4 updates)" in capsys.readouterr().out
    assert before == {p: p.stat().st_mtime_ns for p in finished.rglob("*") if p.is_file()}


def test_other_settings_on_a_runs_folder_are_refused_by_name(finished, model, data, capsys):
    assert finetune(model, data, finished, "--seed", 7) == 2
    message = capsys.readouterr().err
    assert "seed: was 42, now 7" in message
    assert "eval_data" in message


def test_the_config_file_of_a_run_repeats_it(finished, tmp_path):
    again = tmp_path / "again"
    words = ["finetune", "--config", str(finished / "config.yaml"), "--output", str(again)]
    assert main(words) == 0
    assert_equal_weights(finished, again)


@pytest.mark.slow
def test_a_longer_run_goes_on_from_the_last_checkpoint(model, data, tmp_path, capsys):
    constant = ("--lr_scheduler_type", "constant")
    assert finetune(model, data, tmp_path / "straight", *constant, steps=4) == 0
    assert finetune(model, data, tmp_path / "parts", *constant, steps=2) == 0
    assert finetune(model, data, tmp_path / "parts", *constant, steps=4) == 0
    assert "going on from checkpoint-2" in capsys.readouterr().out
    assert_equal_weights(tmp_path / "straight", tmp_path / "parts")


@pytest.mark.slow
def test_accumulation_counts_updates_and_equals_the_larger_batch(model, data, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert finetune(model, data, whole, "--per_device_train_batch_size", 4, steps=2) == 0
    flags = ("--per_device_train_batch_size", 2, "--gradient_accumulation_steps", 2)
    assert finetune(model, data, parts, *flags, "--logging_steps", 1, steps=2) == 0
    state = json.loads((parts / "trainer_state.json").read_text())
    assert state["global_step"] == 2
    assert [record["step"] for record in state["log_history"]] == [1, 2]
    assert checkpoints(parts) == ["checkpoint-2"]
    for name, ours in weights(whole).items():
        # Same sums in another order: Adam divides by small numbers, so a few 1e-5 of 2e-2 moved.
        np.testing.assert_allclose(ours, weights(parts)[name], atol=2e-5, err_msg=name)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.slow
def test_every_number_of_an_accumulating_run_counts_updates(
    model, data, held_out, tmp_path, capsys
):
    # As Hugging Face's trainer counts: three microbatches are one update.
    flags = ("--gradient_accumulation_steps", 3, "--lr_scheduler_type", "constant")
    flags += ("--logging_steps", 1, "--save_steps", 2, "--no-quiet")
    flags += ("--eval_data", held_out, "--eval_strategy", "steps", "--eval_steps", 2)
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    assert finetune(model, data, straight, *flags, steps=3) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"step (\d+)/(\d+)  loss", printed) == [("1", "3"), ("2", "3"), ("3", "3")]
    assert checkpoints(straight) == ["checkpoint-2", "checkpoint-3"]
    for number in (2, 3):
        state = json.loads((straight / f"checkpoint-{number}/trainer_state.json").read_text())
        assert (state["global_step"], state["max_steps"]) == (number, 3)
        # Two rows a microbatch.
        assert state["epoch"] == pytest.approx(number * 3 * 2 / rows_of(straight), abs=1e-3)
    history = json.loads((straight / "trainer_state.json").read_text())["log_history"]
    assert [record["step"] for record in history if "eval_loss" in record] == [2, 3]

    assert finetune(model, data, parts, *flags, steps=2) == 0
    assert finetune(model, data, parts, *flags, steps=3) == 0
    assert "going on from checkpoint-2 of 3" in capsys.readouterr().out
    assert_equal_weights(straight, parts)


def rows_of(run: Path) -> int:
    """Return the training rows that a run packed its documents into."""
    return json.loads((run / "training_args.json").read_text())["dew"]["data"]["rows"]


@pytest.mark.slow
def test_epochs_are_counted_over_the_rows(model, data, tmp_path, capsys):
    flags = ("--num_train_epochs", "0.5", "--no_packing")
    assert finetune(model, data, tmp_path / "out", *flags, steps=-1) == 0
    # Twenty documents, a row each, two rows an update, half an epoch: five updates.
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    assert state["global_step"] == 5


def test_a_dry_run_reads_no_weight_and_writes_nothing(model, data, tmp_path, capsys):
    copy = write_llama(tmp_path / "model")
    size = (copy / "model.safetensors").stat().st_size
    (copy / "model.safetensors").write_bytes(b"\0" * size)  # no header: reading it would fail
    assert finetune(copy, data, tmp_path / "out", "--dry-run") == 0
    text = capsys.readouterr().out
    assert "float32 [2, 32, 4, 8]" in text  # queries: layers, width, heads, head size
    assert re.search(r"in all +[0-9.]+ MiB", text)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max_length", 65), ("max_length is 65", "64 positions")),
        (("--eval_strategy", "steps"), ("nothing is held out",)),
        (("--resume_from_checkpoint", "true"), ("no checkpoint",)),
        (("--run_name", "../evil"), ("run_name",)),
        (("--text-field", "txt"), ("text",)),
    ],
)
def test_bad_settings_exit_2_before_anything_is_trained(
    model, data, tmp_path, flags, words, capsys
):
    status = finetune(model, data, tmp_path / "out", *flags)
    message = capsys.readouterr().err
    assert status == 2
    assert "Traceback" not in message
    for word in words:
        assert word in message
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_data_without_a_trainable_token_is_refused(model, tmp_path, capsys):
    path = tmp_path / "empty.jsonl"
    path.write_text('{"text": ""}\n' * 3)
    assert finetune(model, path, tmp_path / "out") == 2
    assert "no trainable token" in capsys.readouterr().err


def test_the_model_folder_is_no_output_folder(model, data, capsys):
    before = weights(model)
    assert finetune(model, data, model) == 2
    assert "where the model is read from" in capsys.readouterr().err
    np.testing.assert_array_equal(before["model.norm.weight"], weights(model)["model.norm.weight"])


def test_a_folder_of_other_things_is_no_output_folder(model, data, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert finetune(model, data, tmp_path) == 2
    assert "thesis.txt" in capsys.readouterr().err


def test_tokens_are_counted_over_epochs_in_the_order_of_the_rows():
    from bridges.finetune.tokens import counter, row_targets
    from dew.data import DataPartition, RowStream, TokenRows

    text = np.arange(40, dtype=np.int32).reshape(5, 8)
    segments = np.asarray([[1] * n + [0] * (8 - n) for n in (8, 7, 5, 3, 2)], np.int32)
    rows = TokenRows(text, segments)
    count = counter(row_targets(rows), seed=3, batch=2)
    stream, total = RowStream(rows, DataPartition(), batch=2, seed=3), 0
    for microbatches in range(8):
        assert count(microbatches) == total
        # A row of n tokens of one document has n - 1 targets.
        total += int((next(stream)["segments"] > 0).sum()) - 2


def test_a_full_disk_leaves_the_old_file(tmp_path):
    # A limit on file sizes fails in the middle of a write, as a full disk does.
    import resource

    from dew.config.durable import write_atomic

    path = tmp_path / "results.json"
    write_atomic(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_atomic(path, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_a_second_run_on_a_folder_is_refused_by_pid_and_host(tmp_path):
    with (
        locked(tmp_path, "first"),
        pytest.raises(InputRefused) as caught,
        locked(tmp_path, "second"),
    ):
        pass
    assert f"process {os.getpid()}" in str(caught.value)
    assert "first" in str(caught.value)
    with locked(tmp_path, "third"):
        pass


def test_a_stale_lock_is_named_and_taken(tmp_path, capsys):
    folder = tmp_path / ".dew"
    folder.mkdir()
    (folder / "lock").write_text('{"pid": 99999999, "host": "gone", "run": "old", "since": 0}')
    with locked(tmp_path, "new"):
        pass
    assert "process 99999999 on gone" in capsys.readouterr().err


@pytest.fixture(scope="module")
def adapted(model, data, held_out, tmp_path_factory) -> Path:
    """A run of four updates that trained an adapter of rank 4."""
    out = tmp_path_factory.mktemp("runs") / "adapted"
    flags = ("--lora-rank", 4, "--lora_alpha", 8, "--eval_data", held_out)
    assert finetune(model, data, out, *flags) == 0
    return out


def test_an_adapter_run_writes_pefts_files_and_the_merged_model(adapted, model):
    config = json.loads((adapted / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    assert not (adapted / "model.safetensors").exists()
    tensors = load_file(adapted / "adapter_model.safetensors")
    merged, base = weights(adapted / "merged"), weights(model)
    name = "model.layers.1.self_attn.q_proj"
    a, b = (tensors[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    # PEFT's definition: W + alpha / r * B A, alpha / r = 2.
    expected = base[f"{name}.weight"] + 2 * b @ a
    np.testing.assert_allclose(merged[f"{name}.weight"], expected, atol=1e-6)
    assert np.abs(b).max() > 0
    np.testing.assert_array_equal(merged["model.norm.weight"], base["model.norm.weight"])


def test_the_merged_model_scores_what_the_adapter_scored(adapted, capsys):
    assert main(["evaluate", "--config", str(adapted / "config.yaml")]) == 0
    printed = float(re.search(r"eval_perplexity +([0-9.]+)", capsys.readouterr().out)[1])
    results = json.loads((adapted / "eval_results.json").read_text())
    # The table prints six digits; merging changes the order of float32 sums.
    np.testing.assert_allclose(printed, results["eval_perplexity"], rtol=2e-5)


def test_evaluate_writes_what_a_run_measured(finished, held_out, tmp_path, capsys):
    words = ["evaluate", finished, "--data", held_out, "--max_length", 32, "--output", tmp_path]
    assert main(list(map(str, words))) == 0
    ours = json.loads((tmp_path / "eval_results.json").read_text())
    theirs = json.loads((finished / "eval_results.json").read_text())
    np.testing.assert_allclose(ours["eval_loss"], theirs["eval_loss"], rtol=1e-6)


def test_export_of_a_run_has_the_same_tensors(finished, tmp_path, capsys):
    assert main(["export", str(finished), str(tmp_path / "out")]) == 0
    assert "equal to the source" in capsys.readouterr().out
    assert_equal_weights(finished, tmp_path / "out")
    assert not (tmp_path / "out" / "config.yaml").exists()


def test_generate_continues_the_prompt_and_takes_the_likeliest(finished, capsys):
    words = ["generate", "--model", str(finished), "--max_new_tokens", "4", "--prompt", "So foul"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert main(words) == 0
    assert first == capsys.readouterr().out
    assert first.startswith("So foul")
    assert len(first.strip()) > len("So foul")


def test_generate_without_a_prompt_is_wrong_use(finished, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert main(["generate", "--model", str(finished)]) == 2
    assert "--prompt" in capsys.readouterr().err


@pytest.mark.torch
def test_transformers_loads_the_output_folder(finished):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(finished)
    tokenizer = transformers.AutoTokenizer.from_pretrained(finished)
    tensors = weights(finished)
    for name, value in model.state_dict().items():
        if name in tensors:
            np.testing.assert_array_equal(value.numpy(), tensors[name], err_msg=name)
    assert tokenizer.decode(tokenizer("So foul")["input_ids"]) == "So foul"


@pytest.fixture(scope="module")
def uninterrupted(model, data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "out"
    run = start(model, data, out)
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    return out


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(
    model, data, tmp_path, uninterrupted, number, status
):
    out = tmp_path / "out"
    run = start(model, data, out)
    wait_for_step(run, out, 25)
    while not (out / "checkpoint-20").exists():  # it is written in the background
        time.sleep(0.01)
    run.send_signal(number)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == status, errors
    if number != signal.SIGKILL:
        last = errors.strip().splitlines()[-1]
        assert re.search(r"checkpoint-\d+ is saved", last)
        assert "dew finetune --model" in last
    again = start(model, data, out)
    printed, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert "going on from checkpoint-" in printed
    assert_equal_weights(out, uninterrupted)
    steps = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))


@pytest.mark.slow
def test_touching_save_now_saves_at_the_next_step(model, data, tmp_path):
    out = tmp_path / "out"
    run = start(model, data, out, "--save_steps", 1000)
    try:
        wait_for_step(run, out, 2)
        (out / "save-now").touch()
        until = time.monotonic() + 60
        saved: list[int] = []
        while not saved and time.monotonic() < until:
            time.sleep(0.01)
            names = [path.name.partition("-")[2] for path in out.glob("checkpoint-*")]
            saved = [int(name) for name in names if name.isdigit()]
        assert saved
        assert min(saved) < STEPS
        assert not (out / "save-now").exists()
    finally:
        run.kill()
        run.communicate()

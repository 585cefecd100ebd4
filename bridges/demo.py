"""`make demo`: SmolLM2-135M learns Shakespeare, is measured, written back and run."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

RUN = Path("runs/demo")
TEXTS = Path("runs/demo-text")
PROMPT = "Enter a KING and his FOOL.\n\nKING.\n"
HELD_OUT_CHARACTERS = 24_000
TOKENS_A_ROW = 128
ROWS = 4
UPDATES = 60
SAMPLE_TOKENS = 64


@dataclass(frozen=True)
class Measured:
    """What one model scores on the held-out play, and what it writes.

    Args:
        perplexity: of the held-out text, dew's value.
        torch_perplexity: transformers' value on the same rows; None where torch is absent.
        sample: the continuation of `PROMPT`.
    """

    perplexity: float
    torch_perplexity: float | None
    sample: str


def main() -> int:
    """Run the demo and return an exit status: 0 done, 1 where something differs."""
    from bridges.assets import fetch

    started = time.perf_counter()
    model, plays = fetch("smollm2"), fetch("shakespeare")
    held_out = _held_out(plays)
    before = _measured(model, held_out)
    status = _finetuned(model, plays / "train", held_out)
    if status:
        return status
    after = _measured(RUN, held_out)
    summary = _summary(before, after, time.perf_counter() - started)
    (RUN / "summary.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    _show(before, after, summary)
    return 0


def _held_out(plays: Path) -> Path:
    """Write the opening of the held-out play, which no training row comes from."""
    text = (plays / "held_out" / "macbeth.txt").read_text(encoding="utf-8")
    TEXTS.mkdir(parents=True, exist_ok=True)
    path = TEXTS / "macbeth.txt"
    path.write_text(text[:HELD_OUT_CHARACTERS], encoding="utf-8")
    return path


def _finetuned(model: Path, train: Path, held_out: Path) -> int:
    from dew.cli.main import main as dew

    return dew(
        [
            "finetune",
            *("--model", str(model), "--data", str(train), "--eval_data", str(held_out)),
            *("--output", str(RUN), "--steps", str(UPDATES)),
            *("--max_length", str(TOKENS_A_ROW + 1)),
            *("--per_device_train_batch_size", str(ROWS), "--learning_rate", "1e-4"),
            *("--per_device_eval_batch_size", str(ROWS), "--warmup_steps", "0.1"),
            *("--lr_scheduler_type", "cosine", "--save_steps", str(UPDATES // 2)),
            *("--save_total_limit", "1", "--certify", "false"),
        ]
    )


def _measured(source: Path, held_out: Path) -> Measured:
    import jax

    import bridges
    import dew
    from dew.objectives.lm import LMObjective

    bundle = bridges.load(str(source))
    data = bridges.dataset(
        str(held_out), bundle.processor, seq_len=TOKENS_A_ROW, batch=ROWS, eval_source=str(held_out)
    )
    assert data.val is not None  # eval_source is given
    objective = LMObjective(bundle.model, TOKENS_A_ROW)
    scores = dew.evaluate(
        objective,
        bundle.variables,
        data.val,
        key=jax.random.key(0),
        metrics=(dew.metrics.perplexity(),),
    ).scores
    write = dew.pipeline(bundle)
    sample = write(
        PROMPT,
        max_new_tokens=SAMPLE_TOKENS,
        do_sample=True,
        temperature=0.8,
        top_p=0.95,
        seed=1,
        return_full_text=False,
    )[0]["generated_text"]
    reference = _torch_perplexity(source, data) if _torch_present() else None
    return Measured(scores["val/perplexity"], reference, sample)


def _torch_present() -> bool:
    # transformers reads GGUF files through accelerate.
    return all(find_spec(name) is not None for name in ("torch", "transformers", "accelerate"))


def _torch_perplexity(source: Path, data: Any) -> float:
    """Return transformers' perplexity over the same rows, each document a sequence of its own."""
    import torch
    from transformers import AutoModelForCausalLM

    folder, options = (
        (source.parent, {"gguf_file": source.name}) if source.is_file() else (source, {})
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    nats, counted = 0.0, 0
    for row, segments in zip(data.eval_rows.tokens, data.eval_rows.segments, strict=True):
        for document in np.unique(segments[segments > 0]):
            ids = torch.from_numpy(row[segments == document].astype(np.int64))[None]
            if ids.shape[1] < 2:
                continue
            with torch.no_grad():
                loss = model(ids, labels=ids).loss
            nats += float(loss) * (ids.shape[1] - 1)
            counted += ids.shape[1] - 1
    return float(np.exp(nats / counted))


def _summary(before: Measured, after: Measured, seconds: float) -> dict[str, Any]:
    records = [json.loads(line) for line in (RUN / "log.jsonl").read_text().splitlines()]
    rates = [
        r["tokens_per_second_per_device"] for r in records if "tokens_per_second_per_device" in r
    ]
    return {
        "perplexity_before": before.perplexity,
        "perplexity_after": after.perplexity,
        "torch_perplexity_before": before.torch_perplexity,
        "torch_perplexity_after": after.torch_perplexity,
        "tokens_per_second": float(np.median(rates)),
        "seconds": seconds,
        "prompt": PROMPT,
        "sample_before": before.sample,
        "sample_after": after.sample,
        "export": str(RUN),
    }


def _show(before: Measured, after: Measured, summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="SmolLM2-135M, fine-tuned on Shakespeare", show_lines=True)
    table.add_column("")
    table.add_column("before", max_width=44)
    table.add_column("after", max_width=44)
    table.add_row("perplexity of Macbeth", f"{before.perplexity:.3f}", f"{after.perplexity:.3f}")
    if before.torch_perplexity is not None and after.torch_perplexity is not None:
        table.add_row(
            "the same in transformers",
            f"{before.torch_perplexity:.3f}",
            f"{after.torch_perplexity:.3f}",
        )
    table.add_row(f"after {PROMPT.strip()!r}", before.sample.strip(), after.sample.strip())
    console = Console(width=110, record=True)
    console.print(table)
    console.print(
        f"{summary['tokens_per_second']:.0f} tokens a second; {summary['seconds']:.0f} s in all.\n"
        f"The model is in {RUN}: transformers.AutoModelForCausalLM.from_pretrained({str(RUN)!r})",
        markup=False,
        highlight=False,
    )
    console.save_svg(str(RUN / "summary.svg"), title="make demo")


if __name__ == "__main__":
    raise SystemExit(main())

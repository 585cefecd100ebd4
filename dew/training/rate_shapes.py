"""How each schedule's rate rises and falls, as a share of its peak, in float64.

Source of every formula: `transformers/optimization.py`, version 5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dew.errors import InputRefused
from dew.training.arguments import Argument


@dataclass(frozen=True)
class Shape:
    """A schedule.

    Args:
        factor: (updates float64 [N], warmup, total, peak, **arguments) to the shares [N].
        arguments: what it may be given beside those, by transformers' names.
    """

    factor: Callable[..., np.ndarray]
    arguments: Mapping[str, Argument] = field(default_factory=dict)


def _risen(update: np.ndarray, warmup: float, after: np.ndarray | float) -> np.ndarray:
    return np.where(update < warmup, update / max(1.0, warmup), after)


def _progress(update: np.ndarray, warmup: float, total: float) -> np.ndarray:
    return (update - warmup) / max(1.0, total - warmup)


def _wave(progress: np.ndarray, cycles: float) -> np.ndarray:
    return 0.5 * (1.0 + np.cos(np.pi * cycles * 2.0 * progress))


def _constant(update: np.ndarray, warmup: float, total: float, peak: float) -> np.ndarray:
    del warmup, total, peak
    return np.ones_like(update)


def _constant_with_warmup(
    update: np.ndarray, warmup: float, total: float, peak: float
) -> np.ndarray:
    del total, peak
    return _risen(update, warmup, 1.0)


def _linear(update: np.ndarray, warmup: float, total: float, peak: float) -> np.ndarray:
    del peak
    return _risen(update, warmup, np.maximum(0.0, (total - update) / max(1.0, total - warmup)))


def _cosine(
    update: np.ndarray, warmup: float, total: float, peak: float, *, num_cycles: float
) -> np.ndarray:
    del peak
    fallen = _wave(_progress(update, warmup, total), num_cycles)
    return _risen(update, warmup, np.maximum(0.0, fallen))


def _cosine_with_restarts(
    update: np.ndarray, warmup: float, total: float, peak: float, *, num_cycles: float
) -> np.ndarray:
    del peak
    progress = _progress(update, warmup, total)
    fallen = _wave((num_cycles * progress) % 1.0, 0.5)
    return _risen(update, warmup, np.where(progress >= 1.0, 0.0, fallen))


def _polynomial(
    update: np.ndarray, warmup: float, total: float, peak: float, *, lr_end: float, power: float
) -> np.ndarray:
    if not peak > lr_end:
        raise InputRefused(f"schedule polynomial: lr_end {lr_end:g} is not below the rate {peak:g}")
    left = np.clip(1.0 - (update - warmup) / max(1.0, total - warmup), 0.0, 1.0)
    return _risen(update, warmup, ((peak - lr_end) * left**power + lr_end) / peak)


def _inverse_sqrt(
    update: np.ndarray, warmup: float, total: float, peak: float, *, timescale: float | None
) -> np.ndarray:
    del total, peak
    scale = timescale if timescale is not None else warmup or 10_000.0
    after = np.maximum(update - warmup, 0.0)
    return _risen(update, warmup, 1.0 / np.sqrt((after + scale) / scale))


def _floor(name: str, peak: float, min_lr: float | None, min_lr_rate: float | None) -> float:
    if min_lr is not None and min_lr_rate is None:
        if not peak > 0:
            raise InputRefused(f"schedule {name}: min_lr needs a rate above 0; it is {peak:g}")
        return min_lr / peak
    if min_lr is None and min_lr_rate is not None:
        return min_lr_rate
    raise InputRefused(f"schedule {name}: give one of min_lr and min_lr_rate")


def _cosine_with_min_lr(
    update: np.ndarray,
    warmup: float,
    total: float,
    peak: float,
    *,
    num_cycles: float,
    min_lr: float | None,
    min_lr_rate: float | None,
) -> np.ndarray:
    floor = _floor("cosine_with_min_lr", peak, min_lr, min_lr_rate)
    fallen = _wave(_progress(update, warmup, total), num_cycles) * (1.0 - floor) + floor
    return _risen(update, warmup, np.maximum(0.0, fallen))


def _cosine_warmup_with_min_lr(
    update: np.ndarray,
    warmup: float,
    total: float,
    peak: float,
    *,
    num_cycles: float,
    min_lr: float | None,
    min_lr_rate: float | None,
    warmup_lr_rate: float | None,
) -> np.ndarray:
    floor = _floor("cosine_warmup_with_min_lr", peak, min_lr, min_lr_rate)
    if warmup_lr_rate is None:
        rising = (update + 1.0) / max(1.0, warmup)
    else:
        rising = warmup_lr_rate + (1.0 - warmup_lr_rate) * update / max(1.0, warmup - 1.0)
    # Unlike the other schedules this one counts the update under way as made.
    fallen = _wave(_progress(update + 1.0, warmup, total), num_cycles) * (1.0 - floor) + floor
    return np.where(update < warmup, rising, np.maximum(0.0, fallen))


def _warmup_stable_decay(
    update: np.ndarray,
    warmup: float,
    total: float,
    peak: float,
    *,
    num_decay_steps: float,
    num_stable_steps: float | None,
    warmup_type: str,
    decay_type: str,
    min_lr_ratio: float,
    num_cycles: float,
) -> np.ndarray:
    del peak
    stable = total - warmup - num_decay_steps if num_stable_steps is None else num_stable_steps
    rise = np.clip(update / max(1.0, warmup), 0.0, 1.0)
    past = update - warmup - stable
    fall = past / max(1.0, num_decay_steps)
    rising = {
        "linear": rise,
        "cosine": 0.5 * (1.0 - np.cos(np.pi * rise)),
        "1-sqrt": 1.0 - np.sqrt(1.0 - rise),
    }[warmup_type]
    falling = {
        "linear": 1.0 - fall,
        "cosine": _wave(fall, num_cycles),
        "1-sqrt": 1.0 - np.sqrt(np.maximum(fall, 0.0)),
    }[decay_type]

    def floored(share: np.ndarray) -> np.ndarray:
        return np.maximum(0.0, share * (1.0 - min_lr_ratio) + min_lr_ratio)

    return np.select(
        [update < warmup, past < 0, past < num_decay_steps],
        [floored(rising), np.ones_like(update), floored(falling)],
        min_lr_ratio,
    )


_CYCLES = Argument("number", 0.5, low=0)
_FLOORS = {"min_lr": Argument("number", low=0), "min_lr_rate": Argument("number", low=0)}
_KINDS = ("linear", "cosine", "1-sqrt")

SHAPES: dict[str, Shape] = {
    "linear": Shape(_linear),
    "cosine": Shape(_cosine, {"num_cycles": _CYCLES}),
    "cosine_with_restarts": Shape(
        _cosine_with_restarts, {"num_cycles": Argument("number", 1.0, low=0)}
    ),
    "polynomial": Shape(
        _polynomial,
        {"lr_end": Argument("number", 1e-7, low=0), "power": Argument("number", 1.0, low=0)},
    ),
    "constant": Shape(_constant),
    "constant_with_warmup": Shape(_constant_with_warmup),
    "inverse_sqrt": Shape(_inverse_sqrt, {"timescale": Argument("number", low=1)}),
    "cosine_with_min_lr": Shape(_cosine_with_min_lr, {"num_cycles": _CYCLES, **_FLOORS}),
    "cosine_warmup_with_min_lr": Shape(
        _cosine_warmup_with_min_lr,
        {"num_cycles": _CYCLES, **_FLOORS, "warmup_lr_rate": Argument("number", low=0)},
    ),
    "warmup_stable_decay": Shape(
        _warmup_stable_decay,
        {
            "num_decay_steps": Argument("integer", low=0, required=True),
            "num_stable_steps": Argument("integer", low=0),
            "warmup_type": Argument("text", "linear", choices=_KINDS),
            "decay_type": Argument("text", "cosine", choices=_KINDS),
            "min_lr_ratio": Argument("number", 0.0, low=0),
            "num_cycles": _CYCLES,
        },
    ),
}

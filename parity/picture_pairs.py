"""What the checks of paired image metrics share: pictures beside others, of every kind and size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from parity.check import METRIC, Finding
from parity.image_cases import KINDS, number, picture, png, written
from parity.scores import compare_scores

SIZES = ((40, 52), (64, 41))
BATCH = 2
Score = Callable[[np.ndarray, np.ndarray], float]
"""Two pictures, uint8 [H, W, 3] each, to a tool's score of the pair."""


@dataclass(frozen=True)
class PairCase:
    """Files of one folder beside files of the same names in another."""

    name: str
    made: Mapping[str, bytes]
    real: Mapping[str, bytes]


def pair_cases(seed: int) -> tuple[PairCase, ...]:
    """Return the cases: an uneven last batch, all kinds, mixed sizes, one picture and none."""
    draw = np.random.default_rng(seed)

    def case(
        name: str, kinds: Sequence[str], sizes: Sequence[tuple[int, int]], darker: int = 1
    ) -> PairCase:
        made, real = {}, {}
        for index, kind in enumerate(kinds):
            levels = picture(draw, *sizes[index % len(sizes)]) // darker
            noise = draw.integers(-3 * index - 2, 3 * index + 3, levels.shape)
            near = np.clip(levels + noise, 0, 255).astype(np.uint8)
            made[f"{index}.png"], real[f"{index}.png"] = png(near, kind), png(levels, kind)
        return PairCase(name, made, real)

    return (
        case("uneven batches", ["RGB"] * 5, SIZES[:1]),
        case("grey, RGBA, palette and 16-bit", KINDS, SIZES[1:]),
        case("mixed sizes", ["RGB"] * 5, SIZES),
        case("dark pictures", ["RGB"] * 2, SIZES[:1], 16),
        case("one picture", ["RGB"], SIZES[:1]),
        case("no picture", [], SIZES),
    )


class PairedScores(ABC):
    """The mean score of each case's pairs, batch by batch, against each tool's score of each pair.

    The mean is over pictures, so that it is the same however they are batched.
    """

    name: str
    needs: tuple[str, ...]
    tolerance: str
    tools: tuple[str, ...]
    relative: float
    absolute: float
    kind = METRIC

    def inputs(self, subject: None, seed: int) -> dict[str, Any]:
        """Return the seed of the weights, if any, and the files."""
        return {"seed": seed, "cases": list(pair_cases(seed))}

    def ours(self, subject: None, inputs: dict[str, Any]) -> dict[str, float | str]:
        """Return the metric of each case, in batches of equal sizes."""
        metrics = {tool: self.metric(tool, inputs) for tool in self.tools}
        scores = {}
        for case in inputs["cases"]:
            with written(case.made, case.real) as folders:
                pairs = _read(folders)
                for tool, metric in metrics.items():
                    score = number(lambda m=metric, p=pairs: _scored(m, p), refusals=ValueError)
                    scores[f"{case.name}, {tool}"] = score
        return scores

    def reference(self, subject: None, inputs: dict[str, Any]) -> dict[str, float | str]:
        """Return the mean of each tool's scores of the pairs of each case."""
        from PIL import Image

        theirs = {tool: self.score(tool, inputs) for tool in self.tools}
        scores = {}
        for case in inputs["cases"]:
            with written(case.made, case.real) as (made, real):
                pairs = [
                    [np.array(Image.open(folder / name).convert("RGB")) for folder in (made, real)]
                    for name in sorted(case.made)
                ]
            for tool, score in theirs.items():
                scores[f"{case.name}, {tool}"] = number(
                    lambda s=score, p=pairs: np.mean([s(*pair) for pair in p])
                )
        return scores

    def compare(self, ours: dict[str, Any], reference: dict[str, Any]) -> Finding:
        """Ask for the tools' scores."""
        return compare_scores(ours, reference, relative=self.relative, absolute=self.absolute)

    @abstractmethod
    def metric(self, tool: str, inputs: dict[str, Any]) -> Any:
        """Return dew's metric that has a tool's numbers."""

    @abstractmethod
    def score(self, tool: str, inputs: dict[str, Any]) -> Score:
        """Return a tool's score of a pair."""


def _read(folders: Sequence[Path]) -> list[tuple[np.ndarray, ...]]:
    from dew.data.images import read_image

    names = sorted(path.name for path in folders[0].iterdir())
    return [tuple(read_image(folder / name) for folder in folders) for name in names]


def _scored(metric: Any, pairs: Sequence[tuple[np.ndarray, ...]]) -> float:
    """Return the metric of all pairs, at most `BATCH` of one size at a time."""
    from dew.artifacts import ImageGrid

    if not pairs:
        empty = np.zeros((0, 40, 40, 3), np.uint8)
        return metric.finalize(metric(ImageGrid(_floats(empty)), {"image": empty}))
    total = None
    for _, alike in groupby(pairs, lambda pair: pair[0].shape):
        together = list(alike)
        for start in range(0, len(together), BATCH):
            made, real = map(np.stack, zip(*together[start : start + BATCH], strict=True))
            part = metric(ImageGrid(_floats(made)), {"image": real})
            total = part if total is None else metric.merge(total, part)
    return metric.finalize(total)


def _floats(levels: np.ndarray) -> np.ndarray:
    return (levels / 127.5 - 1).astype(np.float32)

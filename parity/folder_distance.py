"""What the checks of FID share: folders of pictures of every kind, scored as one tool does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.check import METRIC, Finding
from parity.image_cases import FolderCase, folder_cases, number, picture, png, written
from parity.scores import compare_scores
from parity.seeded_inception import seeded_encoder, torch_weights, weight_shapes

RELATIVE = 1e-5
FEATURES = 1e-4


class FolderDistance(ABC):
    """The distance of each case's two folders, with equal seeded weights.

    A square root of a matrix of 2048 rows takes a minute, so the whole network is asked for the
    means of its features instead.
    """

    name: str
    mode: str
    needs: tuple[str, ...]
    kind = METRIC
    tolerance = (
        f"relative difference <= {RELATIVE:g}, of 2048 mean features <= {FEATURES:g}; no number "
        "for one picture and none on either side"
    )

    def __init__(self) -> None:
        self._networks: dict[int, Any] = {}

    def inputs(self, subject: None, seed: int) -> dict[str, Any]:
        """Return the seed of the weights, the folders, and pictures for the whole network."""
        draw = np.random.default_rng(seed + 1)
        sizes = ((24, 32), (300, 340), (299, 299))
        deep = {f"{i}.png": png(picture(draw, *size), "RGB") for i, size in enumerate(sizes)}
        return {
            "seed": seed,
            "shapes": weight_shapes(),
            "cases": list(folder_cases(seed)),
            "deep": deep,
        }

    def ours(self, subject: None, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return what `folder_distance` makes of the folders in this mode."""
        from dew.evaluation.image_folders import folder_distance, folder_moments

        def encoder(features: int) -> Any:
            return seeded_encoder(inputs["seed"], features=features, mode=self.mode)

        def distance(case: FolderCase) -> float | str:
            with written(case.generated, case.real) as folders:
                given = encoder(case.features)
                made, real = folders
                return number(lambda: folder_distance(made, real, given), refusals=ValueError)

        scores = {case.name: distance(case) for case in inputs["cases"]}
        with written(inputs["deep"]) as (folder,):
            return {"scores": scores, "deep": folder_moments(folder, encoder(2048)).mean}

    def reference(self, subject: None, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return what the tool makes of them."""
        state = torch_weights(inputs["seed"], inputs["shapes"])

        def distance(case: FolderCase) -> float | str:
            with written(case.generated, case.real) as folders:
                network = self._network(state, case.features)
                return number(lambda: self.distance(folders, network, case.batch))

        scores = {case.name: distance(case) for case in inputs["cases"]}
        with written(inputs["deep"]) as (folder,):
            return {
                "scores": scores,
                "deep": self.mean_features(folder, self._network(state, 2048)),
            }

    def compare(self, ours: dict[str, Any], reference: dict[str, Any]) -> Finding:
        """Ask for the tool's distances, and for its features."""
        found = compare_scores(
            ours["scores"], reference["scores"], relative=RELATIVE, absolute=RELATIVE
        )
        apart = float(np.abs(ours["deep"] - reference["deep"]).max())
        within = apart <= FEATURES
        told = [found.reason] if found.reason else []
        if not within:
            told.append(f"mean features lie up to {apart:.3g} apart")
        return replace(
            found,
            passed=found.passed and within,
            figures={**found.figures, "features": apart},
            reason="; ".join(told),
        )

    def _network(self, state: dict[str, Any], features: int) -> Any:
        if features not in self._networks:
            self._networks[features] = self.network(state, features)
        return self._networks[features]

    @abstractmethod
    def network(self, state: dict[str, Any], features: int) -> Any:
        """Return the tool's network, with the given weights and features."""

    @abstractmethod
    def distance(self, folders: Sequence[Path], network: Any, batch: int) -> float:
        """Return the tool's distance of two folders."""

    @abstractmethod
    def mean_features(self, folder: Path, network: Any) -> np.ndarray:
        """Return the tool's mean features [2048] of a folder's pictures."""

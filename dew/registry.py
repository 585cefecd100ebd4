"""Names to classes, found on first use: models, objectives, datasets, encoders, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from dew.errors import UnknownName, nearest


class Registry:
    """Maps a name to a class that is imported only when it is asked for.

    `registry["name"]` and `registry.name` give the class; `name in registry`, `len(registry)` and
    iteration go over the names.

    Args:
        kind: what it holds, for messages.
        entries: name to "module:attribute".
    """

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self._kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Any:
        """Return the class called `name`.

        Raises:
            UnknownName: nothing is called so; the message offers the nearest names.
        """
        if name not in self._entries:
            raise UnknownName(
                f"no {self._kind} is called {name!a:.200}{nearest(name, self._entries)}"
                f" Known: {', '.join(sorted(self._entries))}."
            )
        module, attribute = self._entries[name].split(":")
        return getattr(import_module(module), attribute)

    def __getattr__(self, name: str) -> Any:
        """Return the class called `name`."""
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except UnknownName as error:
            raise AttributeError(str(error)) from None

    def __contains__(self, name: object) -> bool:
        """Return whether a class is called `name`."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """Go over the names in order."""
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        """Return how many names there are."""
        return len(self._entries)

    def __dir__(self) -> list[str]:
        """Offer the names for completion."""
        return sorted({*super().__dir__(), *self._entries})

    def __repr__(self) -> str:
        """Show the kind and the names."""
        return f"Registry({self._kind!r}: {', '.join(self)})"


models = Registry(
    "model",
    {
        "causal_transformer": "dew.nn.backbones.causal_transformer:CausalTransformer",
        "masked_transformer": "dew.nn.backbones.masked_transformer:MaskedTransformer",
        "vision_transformer": "dew.nn.backbones.vision_transformer:VisionTransformer",
    },
)
objectives = Registry(
    "objective",
    {
        "dpo": "dew.objectives.preference:DPOObjective",
        "grpo": "dew.objectives.grpo:GRPOObjective",
        "jepa": "dew.objectives.jepa:JepaObjective",
        "lm": "dew.objectives.lm:LMObjective",
        "lm_lora": "dew.objectives.lm:LoRAObjective",
        "masked_diffusion": "dew.objectives.masked_diffusion:MaskedDiffusionObjective",
        "supervised": "dew.objectives.supervised:Supervised",
    },
)
datasets = Registry("dataset", {"token_windows": "dew.data.windows:TokenWindows"})
encoders = Registry(
    "encoder",
    {
        "clip": "dew.nn.clip:ClipEncoder",
        "inception": "dew.nn.inception:InceptionEncoder",
    },
)
metrics = Registry(
    "metric",
    {
        "accuracy": "dew.evaluation.accuracy:Accuracy",
        "clip": "dew.evaluation.clip_score:ClipScore",
        "fid": "dew.evaluation.frechet:FrechetDistance",
        "inception_score": "dew.evaluation.inception_score:InceptionScore",
        "kid": "dew.evaluation.kernel_distance:KernelDistance",
        "knn_probe": "dew.evaluation.probes:NeighbourProbe",
        "linear_probe": "dew.evaluation.probes:LinearProbe",
        "lpips": "dew.evaluation.perceptual:PerceptualDistance",
        "perplexity": "dew.evaluation.perplexity:Perplexity",
        "psnr": "dew.evaluation.image_quality:SignalToNoise",
        "ssim": "dew.evaluation.image_quality:StructuralSimilarity",
        "text_perplexity": "dew.evaluation.perplexity:TextPerplexity",
    },
)

"""Speech models against transformers' own classes on tiny random weights.

Right values are transformers', in float64 where a number is judged; ids, text and bytes are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_speech import ROWS, SAMPLES, batch, save_random

import bridges
from bridges.family import family_of
from bridges.table import out_of_tree
from dew.errors import InputRefused
from parity.rounding import deviations, judged
from parity.tiny.speech import MODELS, WAV2VEC2

pytestmark = pytest.mark.torch
SLOW = pytest.mark.slow
FAST = ("whisper", "wav2vec2")
RATE = 1e-3


def each_case(fast: tuple[str, ...] = FAST) -> Any:
    """Return the parameter of a test over the models, slow but for those of `fast`."""
    marked = [name if name in fast else pytest.param(name, marks=SLOW) for name in MODELS]
    return pytest.mark.parametrize("name", marked)


@dataclass(frozen=True)
class Pair:
    """One checkpoint: its folder, as dew loads it, and as transformers does."""

    folder: Path
    bundle: Any
    kind: Any

    def theirs(self, precision: str = "float32") -> Any:
        """Return transformers' model, not training."""
        import torch

        return self.kind.from_pretrained(self.folder, dtype=getattr(torch, precision)).eval()

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        """Inputs of the model; the second sound of samples is padded."""
        return batch(self.bundle.model.input_names)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    pytest.importorskip("torch").set_num_threads(1)
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("speech")

    @cache
    def made(name: str) -> Pair:
        folder = root / name.replace(" ", "-")
        kind = save_random(MODELS[name], folder)
        return Pair(folder, bridges.load(folder, strict=True, traced="never"), kind)

    return made


def torch_outputs(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    import torch

    given = {name: torch.tensor(value) for name, value in inputs.items()}
    given = {n: v.to(model.dtype) if v.is_floating_point() else v for n, v in given.items()}
    return {n: v for n, v in model(**given).items() if hasattr(v, "ndim")}


def named(bundle: Any, params: Any) -> dict[str, np.ndarray]:
    """Return leaves by the names that the source gave its tensors."""
    family = family_of(bundle.config)
    found = dict(out_of_tree(family.rows(bundle.model), params))
    prefix = family.base_prefix if bundle.stored.bare else ""
    return {name.removeprefix(prefix): value for name, value in found.items()}


@each_case()
def test_outputs_are_those_of_transformers(pairs: Any, name: str) -> None:
    import torch

    pair = pairs(name)
    with torch.no_grad():
        single, exact = (
            {n: v.numpy() for n, v in torch_outputs(pair.theirs(dtype), pair.inputs).items()}
            for dtype in ("float32", "float64")
        )
    ours = {name: np.asarray(value) for name, value in pair.bundle(**pair.inputs).items()}
    assert set(ours) == set(exact)
    found = judged(deviations(ours, single, exact))
    assert found.passed, found


@pytest.mark.parametrize(
    "name", ["wav2vec2 stable", pytest.param("wav2vec2 stable bare", marks=SLOW)]
)
def test_padding_behind_a_sound_changes_nothing(pairs: Any, name: str) -> None:
    # The group norm's mean takes padding in, in transformers too: only "layer" can be padded.
    pair = pairs(name)
    samples = pair.inputs["input_values"][1, :287]
    alone = pair.bundle(input_values=samples[None])
    padded = np.concatenate([samples, 9 * np.ones(SAMPLES - 287, np.float32)])
    mask = pair.inputs["attention_mask"][1:]
    beside = pair.bundle(input_values=padded[None], attention_mask=mask)
    for output, value in alone.items():
        wanted, found = np.asarray(value), np.asarray(beside[output])[:, : value.shape[1]]
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max(), output


def test_places_are_counted_as_transformers_does(pairs: Any) -> None:
    pair = pairs("wav2vec2")
    lengths = np.arange(pair.bundle.model.fewest_samples, 300)
    wanted = [pair.theirs()._get_feat_extract_output_lengths(int(n)) for n in lengths[::37]]
    assert pair.bundle.model.places_of(lengths[::37]).tolist() == [int(n) for n in wanted]
    assert pair.bundle.model.places_of(pair.bundle.model.fewest_samples) == 1
    assert pair.bundle.model.places_of(pair.bundle.model.fewest_samples - 1) < 1


@each_case(())
def test_shapes_and_axes_are_those_of_the_parameters(pairs: Any, name: str) -> None:
    pair = pairs(name)
    model, inputs = pair.bundle.model, pair.inputs

    def drawn() -> Any:
        return model.init(jax.random.key(0), **inputs, method="outputs")["params"]

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: (tuple(leaf.shape), leaf.dtype), tree)

    found = model.parameter_shapes()
    assert shapes(jax.eval_shape(drawn)) == shapes(found)
    axes = model.parameter_axes()
    assert jax.tree.all(jax.tree.map(lambda leaf, names: len(names) == leaf.ndim, found, axes))


# What wav2vec 2.0's repositories differ in.


@pytest.mark.parametrize("bare", [True, pytest.param(False, marks=SLOW)])
def test_the_old_names_of_the_weight_norm_are_read_and_given_back(
    pairs: Any, tmp_path: Path, bare: bool
) -> None:
    pair = pairs("wav2vec2 bare" if bare else "wav2vec2")
    source = load_file(pair.folder / "model.safetensors")
    tensors = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): value
        for name, value in source.items()
    }
    assert tensors.keys() != source.keys()
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.json").write_bytes((pair.folder / "config.json").read_bytes())
    save_file(tensors, folder / "model.safetensors")
    bundle = bridges.load(folder, strict=True)
    jax.tree.map(np.testing.assert_array_equal, bundle.variables, pair.bundle.variables)
    bridges.export(bundle, tmp_path / "again", verify=False)
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(np.array_equal(written[name], value) for name, value in tensors.items())


def test_the_vector_of_masked_places_may_lack(pairs: Any, tmp_path: Path) -> None:
    # facebook/wav2vec2-base-960h has none, though its config asks for masking.
    pair = pairs("wav2vec2")
    tensors = load_file(pair.folder / "model.safetensors")
    del tensors["wav2vec2.masked_spec_embed"]
    (tmp_path / "config.json").write_bytes((pair.folder / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    bundle = bridges.load(tmp_path, strict=True)
    whole = dict(pair.bundle.variables["params"])
    del whole["masked_embed"]
    jax.tree.map(np.testing.assert_array_equal, bundle.variables["params"], whole)
    bridges.export(bundle, tmp_path / "out", verify=False)
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == tensors.keys()


@SLOW
def test_a_pretrained_encoder_is_given_a_new_head(tmp_path: Path) -> None:
    config = {**WAV2VEC2, "num_codevectors_per_group": 4, "codevector_dim": 8}
    save_random({**config, "architectures": ["Wav2Vec2ForPreTraining"]}, tmp_path)
    unused = pytest.warns(UserWarning, match="not used, .* quantizer")
    with unused, pytest.warns(UserWarning, match=r"drawn anew for training: lm_head\.weight"):
        bundle = bridges.load(tmp_path, task="automatic-speech-recognition")
    assert bundle(**batch(bundle.model.input_names))["logits"].shape == (ROWS, 19, 20)
    with pytest.warns(UserWarning, match="not used, .* quantizer"):
        bundle = bridges.load(tmp_path)
    assert bundle.tasks == ("feature-extraction",)


def test_sounds_that_do_not_fit_are_refused(pairs: Any) -> None:
    whisper, letters = pairs("whisper"), pairs("wav2vec2")
    short = {**whisper.inputs, "input_features": whisper.inputs["input_features"][..., :20]}
    with pytest.raises(InputRefused, match=r"\(2, 10, 20\); the model reads 10 mel bands and 28"):
        whisper.bundle(**short)
    with pytest.raises(InputRefused, match="decoder_input_ids is missing"):
        whisper.bundle(input_features=whisper.inputs["input_features"])
    with pytest.raises(InputRefused, match=r"\(2, 24\); the model needs at least 30 samples"):
        letters.bundle(input_values=letters.inputs["input_values"][:, :24])

"""Text encoders of every family, against transformers' own classes on tiny random weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from text_encoders import (
    CASES,
    DIFFERENTIATED,
    Pair,
    batch,
    by_first_name,
    by_torch_name,
    each_case,
    pairs_in,
    real_outputs,
    torch_gradients,
    torch_outputs,
)

import bridges
from dew.nn.backbones.deberta_block import Distances, distance_rows
from dew.nn.distances import distance_buckets
from parity import reference
from parity.rounding import deviations, judged

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Pair]:
    """Each checkpoint as dew and as transformers reads it, made when it is first wanted."""
    return pairs_in(tmp_path_factory.mktemp("encoders"))


# transformers' own classes, run in float64 and float32, are the reference below.


@each_case()
def test_outputs_are_those_of_transformers(pairs: Any, family: str, head: str) -> None:
    import torch

    pair = pairs(family, head)
    with torch.no_grad():
        single, exact = (
            {
                name: value.numpy()
                for name, value in torch_outputs(pair.checkpoint.model(kind), batch()).items()
            }
            for kind in (reference.SINGLE, reference.EXACT)
        )
    ours = pair.outputs
    assert set(ours) == set(exact)
    found = judged(deviations(*(real_outputs(side) for side in (ours, single, exact))))
    assert found.passed, found


@each_case(DIFFERENTIATED)
def test_gradients_are_those_of_transformers(pairs: Any, family: str, head: str) -> None:
    pair = pairs(family, head)
    single, exact = (
        torch_gradients(pair.checkpoint.model(kind)) for kind in (reference.SINGLE, reference.EXACT)
    )
    ours = by_torch_name(pair.bundle, pair.differentiated[0])
    scale = max(float(np.abs(value).max()) for value in exact.values())
    found = judged(deviations(ours, single, exact, scale=scale))
    assert found.passed, found


@each_case((*DIFFERENTIATED, "roberta"))
def test_padding_changes_nothing(pairs: Any, family: str, head: str) -> None:
    pair = pairs(family, head)
    whole, inputs = pair.outputs, batch()
    real = int(inputs["attention_mask"][2].sum())
    alone = pair.bundle(input_ids=inputs["input_ids"][2:, :real])
    for name, value in alone.items():
        padded = np.asarray(whole[name])[2:]
        by_token = padded.shape[1:2] == inputs["input_ids"].shape[1:]
        cut = padded[:, :real] if by_token and head != "sequence" else padded
        np.testing.assert_allclose(cut, value, rtol=2e-5, atol=2e-5)


@each_case()
def test_export_gives_the_same_bytes(pairs: Any, tmp_path: Path, family: str, head: str) -> None:
    import torch

    pair = pairs(family, head)
    bridges.export(pair.bundle, tmp_path)
    source, written = (load_file(path / "model.safetensors") for path in (pair.folder, tmp_path))
    assert set(source) == set(written)
    assert all(np.array_equal(source[name], written[name]) for name in source)
    again = reference.Checkpoint(tmp_path, own_class=True)
    with torch.no_grad():
        first, second = (
            torch_outputs(checkpoint.model(reference.SINGLE), batch())
            for checkpoint in (pair.checkpoint, again)
        )
    info = again.loading_info()
    assert not any(info.values()), info
    assert all(torch.equal(first[name], second[name]) for name in first)


@each_case(())
def test_a_second_export_writes_the_same_config(
    pairs: Any, tmp_path: Path, family: str, head: str
) -> None:
    bridges.export(pairs(family, head).bundle, tmp_path / "first")
    bridges.export(bridges.load(tmp_path / "first", strict=True), tmp_path / "second")
    first, second = ((tmp_path / name / "config.json").read_bytes() for name in ("first", "second"))
    assert first == second


@each_case(())
def test_one_step_of_adamw_is_that_of_torch(pairs: Any, family: str, head: str) -> None:
    import optax
    import torch

    pair = pairs(family, head)
    # The gradients are of size 1; below epsilon their rounding would decide the direction.
    settings = reference.AdamW(epsilon=0.1)
    single, exact = {}, {}
    for kind, found in ((reference.SINGLE, single), (reference.EXACT, exact)):
        model = pair.checkpoint.fresh_model(kind)
        for name, gradient in torch_gradients(model).items():
            model.get_parameter(name).grad = torch.tensor(gradient)
        torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            foreach=False,
        ).step()
        found |= {name: t.detach().numpy() for name, t in by_first_name(model).items()}
    params = pair.bundle.variables["params"]
    optimizer = optax.adamw(
        settings.learning_rate, eps=settings.epsilon, weight_decay=settings.weight_decay
    )
    updates, _ = optimizer.update(pair.differentiated[0], optimizer.init(params), params)
    ours = by_torch_name(pair.bundle, optax.apply_updates(params, updates))
    found = judged(deviations(ours, single, exact))
    assert found.passed, found


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2 split"])
@pytest.mark.slow
def test_segments_and_places_may_be_given(pairs: Any, family: str) -> None:
    import torch

    pair = pairs(family, "")
    inputs = batch()
    inputs["position_ids"] = np.random.default_rng(4).integers(2, 30, inputs["input_ids"].shape)
    if family != "mpnet":
        inputs["token_type_ids"] = inputs["position_ids"] % 2
    with torch.no_grad():
        single, exact = (
            {"x": torch_outputs(pair.checkpoint.model(kind), inputs)["last_hidden_state"].numpy()}
            for kind in (reference.SINGLE, reference.EXACT)
        )
    ours = {"x": np.asarray(pair.bundle(**inputs)["last_hidden_state"])}
    found = judged(deviations(*(real_outputs(side) for side in (ours, single, exact))))
    assert found.passed, found


def test_distances_share_the_rows_that_transformers_gives_them() -> None:
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    length = 300
    place = np.arange(length)
    away = torch.tensor(place[None] - place[:, None])
    theirs = MPNetEncoder.relative_position_bucket(away).numpy()
    assert np.array_equal(distance_buckets(place, place, both=True), theirs)
    for span, farthest in ((256, 512), (32, 128), (8, 40)):
        states = torch.zeros(1, length, 4)
        rows = build_relative_position(states, states, bucket_size=span, max_position=farthest)
        wanted = np.clip(rows[0].numpy() + span, 0, 2 * span - 1)
        distances = Distances(True, True, True, span, True, farthest, False)
        found = distance_rows(length, distances)[length - 1 - place[:, None] + place[None]]
        assert np.array_equal(found, wanted)


READ_BY_FOUR = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
torch.set_num_threads(1)
for folder in sys.argv[2:]:
    with open(folder + "/config.json") as file:
        kind = getattr(transformers, json.load(file)["architectures"][0])
    model, found = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    given = {name: torch.tensor(value) for name, value in np.load(folder + "/inputs.npz").items()}
    with torch.no_grad():
        outputs = model.eval()(**given)
    np.savez(folder + "/four.npz", **{k: v.numpy() for k, v in outputs.items() if v is not None})
    # Buffers that 4 keeps in the state of a model and 5 does not.
    found["missing_keys"] = [name for name in found["missing_keys"] if "position_ids" not in name]
    print(json.dumps({key: sorted(map(str, value)) for key, value in found.items() if value}))
"""


@pytest.mark.slow
def test_transformers_4_reads_every_export(
    pairs: Any, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """The second environment: transformers 4 beside the same torch, in a process of its own."""
    four = tmp_path_factory.mktemp("four")
    packages = ["transformers==4.57.6", "tokenizers==0.22.2", "huggingface_hub==0.36.2"]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--target", str(four), *packages], check=True)
    folders = {}
    for case in CASES:
        folder = tmp_path / " ".join(case).replace(" ", "-")
        bridges.export(pairs(*case).bundle, folder, verify=False)
        np.savez(folder / "inputs.npz", **batch())
        folders[case] = folder
    run = subprocess.run(
        [sys.executable, "-c", READ_BY_FOUR, str(four), *map(str, folders.values())],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for (case, folder), line in zip(folders.items(), run.stdout.splitlines(), strict=True):
        assert json.loads(line) == {}, case
        theirs = real_outputs(dict(np.load(folder / "four.npz")))
        for name, ours in real_outputs(pairs(*case).outputs).items():
            largest = np.abs(theirs[name]).max()
            assert np.abs(ours - theirs[name]).max() <= 2e-5 * largest, case

"""Layer-wise rates and the views behind them, by the names of native and of traced models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.errors import InputRefused
from dew.training.layer_rates import layer_shares, scaled_by_layer
from dew.training.muon import hidden_or_not
from dew.training.views import view_of


def shares(*names: str, shape: tuple[int, ...] = (3, 2)) -> dict[str, list[float]]:
    """Return each leaf's shares under a factor of a half, in halvings."""
    tree: dict = {}
    for name in names:
        *parents, leaf = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = jax.ShapeDtypeStruct(shape, jnp.float32)
    found = layer_shares(tree, 0.5)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.ravel(-np.log2(value)).tolist()
        for path, value in jax.tree_util.tree_flatten_with_path(found)[0]
    }


def test_stacked_layers_have_a_rate_each_along_their_axis():
    assert shares("embed/table", "layers/mlp/up/kernel", "final_norm/scale", "head/table") == {
        "embed/table": [4],
        "layers/mlp/up/kernel": [3, 2, 1],
        "final_norm/scale": [0],
        "head/table": [0],
    }


def test_a_traced_models_names_tell_its_layers():
    weights = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
    layers = [f"model.layers.{n}.self_attn.q_proj.weight" for n in range(3)]
    assert shares(*weights, *layers) == {
        weights[0]: [4],
        weights[1]: [0],
        weights[2]: [0],
        layers[0]: [3],
        layers[1]: [2],
        layers[2]: [1],
    }
    # A number in a head is no layer.
    bert = "bert.encoder.layer.0.output.dense.weight", "classifier.0.weight"
    assert shares(*bert) == {bert[0]: [1], bert[1]: [0]}


def test_an_encoder_lies_below_its_decoder_and_a_stage_below_the_next():
    found = shares("encoder_blocks/up/kernel", "decoder_blocks/up/kernel", "embed/table")
    assert found["decoder_blocks/up/kernel"] == [3, 2, 1]
    assert found["encoder_blocks/up/kernel"] == [6, 5, 4]
    assert found["embed/table"] == [7]
    found = shares("stage0/kernel", "stage1/kernel", "stage0_norm/scale")
    assert (found["stage0/kernel"], found["stage1/kernel"]) == ([6, 5, 4], [3, 2, 1])


def test_towers_side_by_side_count_by_themselves():
    found = shares("text/layers/kernel", "vision/layers/kernel", "vision/patch_embed/kernel")
    assert found["text/layers/kernel"] == found["vision/layers/kernel"] == [3, 2, 1]
    assert found["vision/patch_embed/kernel"] == [4]


def test_a_factor_out_of_range_or_a_model_without_layers_is_refused():
    with pytest.raises(InputRefused, match="above 0 and at most 1"):
        layer_shares({"layers": {"kernel": jnp.ones((2, 2))}}, 1.5)
    with pytest.raises(InputRefused, match="no leaf lies in a layer"):
        scaled_by_layer(0.5).update({"kernel": jnp.ones(2)}, None)


@pytest.mark.parametrize(
    ("name", "shape", "seen", "outputs_inputs"),
    [
        ("layers/mlp/up/kernel", (3, 8, 16), (3, 8, 16), (16, 8)),
        ("layers/attention/query/kernel", (3, 8, 2, 5), (3, 8, 10), (10, 8)),
        ("layers/attention/out/kernel", (3, 2, 5, 8), (3, 10, 8), (8, 10)),
        ("layers/attention/distance_key/kernel", (3, 8, 2, 5), (3, 8, 10), (10, 8)),
        ("layers/attention/query/a", (3, 8, 4), (3, 8, 4), (4, 8)),
        ("layers/attention/query/b", (3, 4, 2, 5), (3, 4, 10), (10, 4)),
        ("layers/attention/out/a", (3, 2, 5, 4), (3, 10, 4), (4, 10)),
        ("model.layers.0.mlp.up_proj.weight", (16, 8), (16, 8), (16, 8)),
    ],
)
def test_a_matrix_is_seen_as_torch_has_it(name, shape, seen, outputs_inputs):
    view = view_of(tuple(name.split("/")), shape)
    assert (view.shape, view.matrix, view.hidden) == (seen, True, True)
    assert view.outputs_inputs == outputs_inputs
    assert view.stacked == name.startswith("layers")


@pytest.mark.parametrize(
    ("name", "shape", "seen"),
    [
        ("layers/attention/query/bias", (3, 2, 5), (3, 10)),
        ("layers/norm/scale", (3, 8), (3, 8)),
        ("layers/attention_scale", (3, 8), (3, 8)),
        ("final_norm/scale", (8,), (8,)),
        ("logit_scale", (), (1,)),
    ],
)
def test_a_vector_is_seen_as_one(name, shape, seen):
    view = view_of(tuple(name.split("/")), shape)
    assert (view.shape, view.matrix, view.hidden) == (seen, False, False)
    assert view.own_axes == tuple(range(int(name.startswith("layers")), len(seen)))


def test_muon_takes_the_matrices_inside_and_leaves_tables_heads_and_convolutions():
    shaped = {
        "embed": {"table": (9, 4)},
        "layers": {"mlp": {"up": {"kernel": (2, 4, 8), "bias": (2, 8)}}},
        "patches": {"kernel": (4, 4, 3, 8)},
        "convolution": {"kernel": (3, 4, 8)},
        "head": {"kernel": (4, 9)},
        "model.layers.0.mlp.up_proj.weight": (8, 4),
        "model.layers.0.norm.weight": (4,),
        "model.embed_tokens.weight": (9, 4),
        "lm_head.weight": (9, 4),
    }
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        shaped,
        is_leaf=lambda node: isinstance(node, tuple),
    )
    found = jax.tree_util.tree_flatten_with_path(hidden_or_not(params))[0]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, kind in found]
    moved = {name for name, (_, kind) in zip(names, found, strict=True) if kind == "muon"}
    assert moved == {"layers/mlp/up/kernel", "model.layers.0.mlp.up_proj.weight"}

"""A run's configuration is typed, survives writing, and refuses what it does not declare."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_configs import SIZES, run_config

from dew.config import ModelConfig, ObjectiveConfig, OptimConfig, RunConfig, TrainerConfig
from dew.errors import InputRefused
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.rotary import Rope
from dew.placement import MeshSpec
from dew.registry import datasets

POSITIVE = st.floats(0, 1e6, allow_nan=False)
BELOW_ONE = st.floats(0, 0.999999)
COUNT = st.integers(1, 2**40)
SEGMENT = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", fullmatch=True)

MODELS = st.builds(
    ModelConfig,
    st.just("causal_transformer"),
    st.fixed_dictionaries(
        {"vocab_size": COUNT},
        optional={
            "num_heads": COUNT,
            "num_kv_heads": st.none() | COUNT,
            "norm_epsilon": POSITIVE,
            "activation": st.text(max_size=20),
            "tied_head": st.booleans(),
            "rope": st.fixed_dictionaries(
                {}, optional={"theta": POSITIVE, "short_factor": st.lists(POSITIVE, max_size=3)}
            ),
        },
    ),
)
OBJECTIVES = st.builds(
    ObjectiveConfig,
    st.just("lm"),
    st.fixed_dictionaries({}, optional={"seq_len": COUNT, "chunk": st.none() | COUNT}),
)
OPTIMIZERS = st.builds(
    OptimConfig,
    optimizer=st.sampled_from(("adamw", "lion")),
    learning_rate=POSITIVE,
    schedule=st.sampled_from(("linear", "cosine", "constant_with_warmup")),
    warmup_steps=POSITIVE,
    weight_decay=POSITIVE,
    beta1=BELOW_ONE,
    beta2=BELOW_ONE,
    max_grad_norm=POSITIVE,
)
TRAINERS = st.builds(
    TrainerConfig,
    name=st.none() | st.lists(SEGMENT, min_size=1, max_size=4).map("/".join),
    checkpoint_dir=st.text(st.characters(exclude_characters="\x00"), min_size=1, max_size=20),
    steps=st.integers(0, 2**40),
    batch_size=COUNT,
    eval_every=st.none() | COUNT,
    metrics=st.lists(st.just("perplexity"), max_size=1).map(tuple),
    preview=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
DATA = st.none() | st.builds(
    datasets["token_windows"], seq_len=COUNT, seed=COUNT, train=st.none() | st.text(max_size=20)
)
CONFIGS = st.builds(
    RunConfig,
    model=MODELS,
    data=DATA,
    optim=OPTIMIZERS,
    trainer=TRAINERS,
    objective=st.none() | OBJECTIVES,
    mesh=st.builds(MeshSpec, fsdp=st.integers(1, 64), tensor=st.integers(1, 64)),
)


@settings(max_examples=60, deadline=None)
@given(CONFIGS)
def test_a_configuration_survives_a_dictionary_and_json_exactly(config):
    # The oracle is the round trip: the same values, and of the same types.
    written = config.to_dict()
    read = RunConfig.from_dict(json.loads(json.dumps(written, allow_nan=False)))
    assert read == config
    assert repr(read) == repr(config)
    assert json.dumps(read.to_dict()) == json.dumps(written)


@settings(max_examples=20, deadline=None)
@given(CONFIGS)
def test_overriding_every_path_with_its_own_value_changes_nothing(config):
    def leaves(values, prefix=""):
        for name, value in values.items():
            if isinstance(value, dict) and value:
                yield from leaves(value, f"{prefix}{name}.")
            else:
                yield prefix + name, value

    assert config.override(dict(leaves(config.to_dict()))) == config


@pytest.fixture
def config(tmp_path):
    return run_config(tmp_path)


def refusal(act, *arguments, **options):
    with pytest.raises(InputRefused) as caught:
        act(*arguments, **options)
    return str(caught.value)


def test_the_data_section_names_its_dataset(config):
    assert config.to_dict()["data"] == {
        **{"name": "token_windows", "seq_len": 8, "seed": 0},
        **{"train": None, "val": None, "dtype": "uint16", "stride": None},
    }


def test_an_override_changes_one_value_and_leaves_the_original(config):
    changed = config.override({"optim.learning_rate": 1, "data.seed": 3, "trainer.name": "a/b"})
    assert (changed.optim.learning_rate, type(changed.optim.learning_rate)) == (1.0, float)
    assert (changed.data.seed, changed.trainer.name) == (3, "a/b")
    assert config.optim.learning_rate == 0.05
    assert changed.model is not config.model
    assert changed.override({"optim.learning_rate": 0.05, "data.seed": 0, "trainer.name": "line"})


def test_an_argument_of_the_model_that_is_not_set_can_be_overridden(config):
    changed = config.override({"model.kwargs.rope.theta": 5e5, "model.kwargs.norm": "layer"})
    assert changed.model.kwargs == {**SIZES, "rope": {"theta": 5e5}, "norm": "layer"}
    assert changed.model.build() == CausalTransformer(**SIZES, rope=Rope(theta=5e5), norm="layer")


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("optim.lerning_rate", "optim.learning_rate"),
        ("learning_rate", "optim.learning_rate"),
        ("trainer.step", "trainer.steps"),
        ("model.kwargs.num_layer", "num_layers"),
        ("model.kwargs.rope.thta", "theta"),
        ("model.num_layers", "model.kwargs.num_layers"),
        ("data.seq_length", "data.seq_len"),
        ("optimizer", "optim.optimizer"),
        ("trainer.steps.more", "trainer.steps"),
        ("", ""),
        ("trainer.", "trainer"),
    ],
)
def test_a_path_that_is_not_declared_is_refused_with_the_nearest(config, path, near):
    assert near in refusal(config.override, {path: 1})


def test_values_of_another_type_are_refused_all_at_once(config):
    message = refusal(
        config.override,
        {
            "optim.learning_rate": math.nan,
            "trainer.steps": "1e3",
            "trainer.preview": 1,
            "trainer.batch_size": 0,
            "model.kwargs.num_layers": 1.5,
            "model.kwargs.tied_head": "yes",
            "data.seq_len": None,
            "mesh.fsdp": 0,
        },
    )
    for line in (
        "optim.learning_rate is nan; expected a finite number",
        "trainer.steps is text '1e3'; expected a whole number",
        "trainer.preview is 1; expected true or false",
        "model.kwargs.num_layers is 1.5; expected a whole number",
        "model.kwargs.tied_head is text 'yes'; expected true or false",
        "data.seq_len is None; expected a whole number",
        "mesh: fsdp is 0",
    ):
        assert line in message
    assert "batch_size is 0" in refusal(config.override, {"trainer.batch_size": 0})


@pytest.mark.parametrize(
    "make",
    [
        lambda: OptimConfig(optimizer="adamax"),
        lambda: OptimConfig(schedule="triangle"),
        lambda: OptimConfig(learning_rate=-1),
        lambda: OptimConfig(learning_rate=math.inf),
        lambda: OptimConfig(beta2=1.0),
        lambda: OptimConfig(optimizer="adam", weight_decay=0.1),
        lambda: OptimConfig(momentum=0.9),
        lambda: OptimConfig(warmup_steps=3),
        lambda: TrainerConfig(steps=-1),
        lambda: TrainerConfig(steps=True),
        lambda: TrainerConfig(eval_every=0),
        lambda: TrainerConfig(metrics=("perplexty",)),
        lambda: TrainerConfig(metrics="perplexity"),
        lambda: TrainerConfig(checkpoint_dir=""),
        lambda: TrainerConfig(seed=2**63),
        lambda: ModelConfig("causal_transformr"),
        lambda: ModelConfig("causal_transformer", {"layers": 3}),
        lambda: ModelConfig("causal_transformer", {"rope": [1]}),
        lambda: ModelConfig("causal_transformer", {"rope": {"theta": object()}}),
        lambda: ObjectiveConfig("lm", {"model": {}}),
        lambda: RunConfig(model="causal_transformer"),
        lambda: RunConfig(model=ModelConfig("causal_transformer"), data={"seq_len": 8}),
        lambda: RunConfig(model=ModelConfig("causal_transformer"), optim={}),
    ],
)
def test_a_section_that_makes_no_sense_is_refused_when_it_is_built(make):
    assert refusal(make)


@pytest.mark.parametrize(
    "name", ["../../evil", "a/../../b", "/", "", ".hidden", "-rf", "a" * 101, "a b", "a\n", "a//b"]
)
def test_bp088_a_run_cannot_leave_its_folder(name):
    assert "name is" in refusal(TrainerConfig, name=name)


def test_unknown_and_missing_settings_are_one_error():
    message = refusal(
        RunConfig.from_dict,
        {
            "learning_rate": 1,
            "optim": {"lr": 1, "learning_rate": "x"},
            "trainer": [],
            "data": {"name": "token_window"},
            "model": {"kwargs": {}},
        },
    )
    for part in ("optim.learning_rate", "optim.lr: no such setting", "trainer is []"):
        assert part in message
    assert "did you mean 'token_windows'" in message
    assert "model.name is missing" in message
    assert "model is missing" in refusal(RunConfig.from_dict, {})


def test_numpy_numbers_become_python_ones():
    optim = OptimConfig(learning_rate=np.float32(0.5), warmup_steps=np.int64(0))
    assert type(optim.learning_rate) is float
    assert TrainerConfig(steps=np.int32(7)).to_dict()["steps"] == 7
    assert type(TrainerConfig(steps=np.int32(7)).steps) is int


def test_an_objective_is_built_over_its_model_with_the_rows_of_the_data(config):
    objective = RunConfig.from_dict(
        {
            **config.to_dict(),
            "objective": {"name": "lm", "kwargs": {"ema": {"decay": 0.5}, "chunk": 3}},
        }
    ).build_objective()
    assert (objective.seq_len, objective.chunk) == (8, 3)
    assert objective.ema.decay(7) == 0.5
    assert objective.model == CausalTransformer(**SIZES)
    assert "objective is missing" in refusal(config.build_objective)


def test_arguments_of_dataclasses_and_lists_of_them_are_built(config):
    from dew.inputs import Field

    one, two = {"key": "x", "shape": [3]}, {"key": "z", "shape": [2, 2]}
    for inputs, fields in ((one, (Field("x", (3,)),)), ([one, two], (Field("x", (3,)), None))):
        objective = ObjectiveConfig(
            "supervised", {"inputs": inputs, "labels": {"key": "y", "shape": []}}
        ).build(CausalTransformer(**SIZES))
        assert objective.fields[0] == fields[0]
        assert len(objective.fields) == len(fields)
        assert objective.labels == Field("y", ())
        assert objective.classifies


def test_deep_nesting_is_refused_without_recursion():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested deeper" in refusal(
        ModelConfig, "causal_transformer", {"rope": {"short_factor": deep}}
    )

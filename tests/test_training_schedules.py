"""Every schedule has the rate of transformers' own scheduler at every update."""

import jax
import numpy as np
import pytest

import dew.training.schedules
from dew.errors import InputRefused
from dew.training.schedules import METRIC_SCHEDULES, SCHEDULES, learning_rate

PEAK, TOTAL = 3e-4, 240
CASES = [
    ("linear", {}),
    ("cosine", {}),
    ("cosine", {"num_cycles": 1.25}),
    ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {}),
    ("polynomial", {"lr_end": 1e-5, "power": 2.5}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("inverse_sqrt", {}),
    ("inverse_sqrt", {"timescale": 50}),
    ("cosine_with_min_lr", {"min_lr": 1e-5}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 1.5}),
    ("cosine_warmup_with_min_lr", {"min_lr": 1e-5}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "warmup_lr_rate": 0.25}),
    ("warmup_stable_decay", {"num_decay_steps": 100}),
    (
        "warmup_stable_decay",
        {
            "num_decay_steps": 60,
            "num_stable_steps": 90,
            "warmup_type": "cosine",
            "decay_type": "1-sqrt",
            "min_lr_ratio": 0.05,
        },
    ),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 70, "warmup_type": "1-sqrt", "decay_type": "linear"},
    ),
]


def theirs(schedule: str, warmup: int, arguments: dict) -> np.ndarray:
    import torch
    import transformers

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = transformers.get_scheduler(schedule, optimizer, warmup, TOTAL, dict(arguments))
    rates = []
    for _ in range(TOTAL + 1):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return np.asarray(rates)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Both num_training_steps and num_stable_steps")
@pytest.mark.parametrize("warmup", [0, 1, 37])
@pytest.mark.parametrize(("schedule", "arguments"), CASES)
def test_every_update_has_the_rate_of_transformers(schedule, arguments, warmup):
    rate = learning_rate(PEAK, schedule, warmup, TOTAL, arguments)
    ours = np.asarray(jax.jit(rate)(np.arange(TOTAL + 1)), np.float64)
    # float32 rounds to 6e-8. Where a cosine ends on 0, float64 leaves 1e-20 of the peak.
    np.testing.assert_allclose(ours, theirs(schedule, warmup, arguments), rtol=1e-7, atol=1e-20)


@pytest.mark.torch
def test_every_name_of_transformers_is_known():
    from transformers.trainer_utils import SchedulerType

    names = {each.value for each in SchedulerType}
    assert names == {*SCHEDULES, *METRIC_SCHEDULES}
    assert {name for name, _ in CASES} == set(SCHEDULES)


@pytest.mark.parametrize("name", METRIC_SCHEDULES)
def test_a_schedule_that_follows_a_metric_is_refused_by_name(name):
    with pytest.raises(InputRefused, match=f"{name} follows a metric.*use cosine_with_min_lr"):
        learning_rate(1.0, name, 0, 10)


@pytest.mark.parametrize(
    ("schedule", "arguments", "said"),
    [
        ("cosine", {"num_cicles": 2}, "did you mean 'num_cycles'"),
        ("linear", {"power": 2.0}, "takes no argument"),
        ("cosine", {"num_cycles": "2"}, "expected a number, at least 0"),
        ("cosine_with_min_lr", {}, "give one of min_lr and min_lr_rate"),
        ("cosine_with_min_lr", {"min_lr": 0.1, "min_lr_rate": 0.1}, "give one of"),
        ("polynomial", {"lr_end": 2.0}, "lr_end 2 is not below the rate 1"),
        ("warmup_stable_decay", {}, "num_decay_steps is missing"),
        ("warmup_stable_decay", {"num_decay_steps": 3.5}, "expected a whole number"),
        ("warmup_stable_decay", {"num_decay_steps": 3, "decay_type": "sine"}, "one of linear"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(schedule, arguments, said):
    with pytest.raises(InputRefused, match=said):
        learning_rate(1.0, schedule, 0, 10, arguments)


def test_a_long_run_keeps_every_few_updates_and_the_line_between(monkeypatch):
    monkeypatch.setattr(dew.training.schedules, "LONGEST_TABLE", 100)
    rate = learning_rate(PEAK, "cosine", 30, 300)
    ours = np.asarray(rate(np.arange(301)))
    monkeypatch.undo()
    exact = np.asarray(learning_rate(PEAK, "cosine", 30, 300)(np.arange(301)))
    np.testing.assert_array_equal(ours[::3], exact[::3])
    # A chord of three updates leaves a cosine of 270 by at most (3 pi / 270)^2 / 16 of the peak.
    np.testing.assert_allclose(ours, exact, atol=PEAK * (3 * np.pi / 270) ** 2 / 16)
    assert np.abs(ours - exact).max() > 0


def test_after_its_last_update_the_rate_is_held():
    rate = learning_rate(1.0, "cosine_with_min_lr", 0, 10, {"min_lr_rate": 0.25})
    assert [float(rate(update)) for update in (10, 11, 1000)] == [0.25] * 3

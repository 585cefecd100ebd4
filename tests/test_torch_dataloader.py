"""torch DataLoaders as dew's datasets, held to what torch itself iterates over."""

import subprocess
import sys
import textwrap
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loader_parts import Counted, Failing, Squares, masked  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

import bridges  # noqa: E402
from bridges.torch.loader_fields import named_fields  # noqa: E402
from bridges.torch.loader_process import WorkerFailed  # noqa: E402
from bridges.torch.plain_state import plain, restored  # noqa: E402
from dew.data import DataPartition  # noqa: E402
from dew.errors import InputRefused  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    # torchdata 0.11 calls what torch 2.14 deprecates.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]
ROOT = Path(__file__).parent.parent


def generator(seed: int):
    return torch.Generator().manual_seed(seed)


def taken(stream, count):
    return list(islice(stream, count))


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for first, second in zip(ours, theirs, strict=True):
        assert first.keys() == second.keys()
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])


def numbers(batches):
    return [n for batch in batches for n in np.asarray(batch["n"]).tolist()]


# Order and values


def test_batches_are_those_of_torch_in_its_order_epoch_after_epoch():
    def loader(cls=DataLoader, **options):
        return cls(Squares(11), batch_size=3, **options)

    for make in (
        lambda: loader(shuffle=True, generator=generator(3)),
        lambda: loader(sampler=RandomSampler(Squares(11), num_samples=20, generator=generator(4))),
        lambda: loader(sampler=WeightedRandomSampler(range(11), 7, generator=generator(5))),
        lambda: loader(StatefulDataLoader, shuffle=True, generator=generator(3)),
        lambda: loader(),
        lambda: DataLoader(Counted(11), batch_size=3),
    ):
        theirs = make()
        expected = [[np.asarray(b["n"]).tolist() for b in theirs] for _ in range(3)]
        stream = bridges.from_dataloader(make()).train(DataPartition())
        found = [batch["n"].tolist() for batch in taken(stream, sum(map(len, expected)))]
        assert found == [batch for epoch in expected for batch in epoch]
        assert stream.epoch == 2


def test_shuffling_without_a_generator_goes_by_the_seed_and_leaves_torchs_alone():
    def found(seed):
        data = bridges.from_dataloader(DataLoader(Squares(20), 4, shuffle=True), seed=seed)
        return numbers(taken(data.train(DataPartition()), 5))

    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert found(1) == found(1) != found(2)
    assert sorted(found(1)) == list(range(20))
    assert torch.equal(torch.get_rng_state(), before)


def test_tensors_are_not_copied_and_64_bits_are_narrowed_or_refused():
    # P065.
    pixels, labels = torch.randn(4, 3), torch.arange(4)
    fields = named_fields((pixels, labels), ("pixels", "labels"))
    assert np.shares_memory(fields["pixels"], pixels.numpy())
    assert fields["labels"].dtype == np.int32
    assert named_fields({"x": torch.zeros(2, dtype=torch.float64)}, None)["x"].dtype == np.float32
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert named_fields([half], ["x"])["x"].astype(np.float32).tolist() == [1.5, -2.0]
    assert named_fields({"x": half, "y": [1, 2]}, {"y": "z"})["z"].tolist() == [1, 2]
    with pytest.raises(InputRefused, match="'x' goes from 0 to 1099511627776, and JAX holds int32"):
        named_fields({"x": torch.tensor([0, 2**40])}, None)
    with pytest.raises(InputRefused, match=r"'x' holds timedelta64\[ns\]"):
        named_fields({"x": np.array([5_000_000_000], "m8[ns]")}, None)


@pytest.mark.parametrize(
    ("batch", "fields", "named"),
    [
        ((torch.zeros(2), torch.zeros(2)), None, r"fields=\('image', 'label'\)"),
        (torch.zeros(2), None, "single array"),
        ({"x": torch.zeros(2)}, ["y"], "no 'y' in the batch; there is 'x'"),
        ({"x": torch.zeros(2), "t": ["a", "b"]}, None, "'t' holds a list of str, not numbers"),
        ({"x": torch.zeros(2), "y": torch.zeros(3)}, None, "'x': 2, 'y': 3"),
        ({"x": torch.zeros(())}, None, "without an axis of rows"),
        ({"x": torch.eye(2).to_sparse()}, None, "sparse"),
        ({"x": [[1], [1, 2]]}, None, "different shapes"),
    ],
)
def test_batches_that_no_step_can_take_are_refused(batch, fields, named):
    with pytest.raises(InputRefused, match=named):
        named_fields(batch, fields)


def test_transforms_of_torchvision_run_as_they_are():
    from torchvision.transforms import v2

    pictures = torch.randint(0, 256, (6, 3, 9, 9), dtype=torch.uint8)
    transform = v2.Compose([v2.RandomCrop(5), v2.ToDtype(torch.float32, scale=True)])

    def collate(samples):
        return {"image": torch.stack([transform(image) for (image,) in samples])}

    data = bridges.from_dataloader(DataLoader(TensorDataset(pictures), 2, collate_fn=collate))
    batches = taken(data.train(DataPartition()), 6)
    assert batches[0]["image"].shape == (2, 3, 5, 5)
    assert not np.array_equal(batches[0]["image"], batches[3]["image"])  # drawn anew
    whole = [torch.from_numpy(batch["image"]) for batch in batches[:3]]
    for image, original in zip(torch.cat(whole), pictures, strict=True):
        crops = original.unfold(1, 5, 1).unfold(2, 5, 1).float() / 255
        assert any(torch.allclose(crops[:, i, j], image) for i in range(5) for j in range(5))


def test_datasets_of_the_hugging_face_library_are_taken_both_ways():
    # P066: map-style and iterable, by the same call.
    import datasets

    made = datasets.Dataset.from_dict({"n": list(range(10)), "x": [[0.5 * n] for n in range(10)]})
    made = made.with_format("torch")
    for source in (made, made.to_iterable_dataset()):
        stream = bridges.from_dataloader(DataLoader(source, 4)).train(DataPartition())
        first = taken(stream, 2)
        assert numbers(first) == list(range(8))
        assert first[1]["x"].tolist() == [[2.0], [2.5], [3.0], [3.5]]
        again = bridges.from_dataloader(DataLoader(source, 4)).train(DataPartition())
        again.set_state(stream.get_state())
        assert numbers(taken(again, 2)) == [8, 9, 0, 1, 2, 3]


# Resuming


class Steps:
    """A dataset with a state of its own, as torchdata's contract has it."""

    def __init__(self):
        self.number = 0

    def __iter__(self):
        while self.number < 10:
            self.number += 1
            yield {"n": self.number}
        self.number = 0

    def state_dict(self):
        return {"number": self.number, "random": torch.get_rng_state(), 3: (b"x", np.arange(2))}

    def load_state_dict(self, state):
        assert state[3][0] == b"x"
        self.number = state["number"]


class Stateful(Steps, torch.utils.data.IterableDataset):
    pass


LOADERS = {
    "sequential": lambda: DataLoader(Squares(11), 3),
    "shuffled": lambda: DataLoader(Squares(11), 3, shuffle=True, collate_fn=masked),
    "generator": lambda: DataLoader(Squares(11), 3, shuffle=True, generator=generator(7)),
    "single": lambda: DataLoader(TensorDataset(torch.arange(10).reshape(5, 2)), batch_size=None),
    "iterable": lambda: DataLoader(Counted(11), 3),
    "object": lambda: [{"n": torch.arange(3) + 3 * k} for k in range(4)],
    "stateful": lambda: StatefulDataLoader(Squares(11), 3, shuffle=True, collate_fn=masked),
    "stateful generator": lambda: StatefulDataLoader(
        Squares(11), 3, shuffle=True, generator=generator(7)
    ),
    "stateful dataset": lambda: StatefulDataLoader(Stateful(), 3),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_goes_on_exactly_where_it_was(name):
    fields = ("n",) if name == "single" else None

    def stream():
        data = bridges.from_dataloader(LOADERS[name](), seed=5, batch=3, fields=fields)
        return data.train(DataPartition())

    whole, states = stream(), []
    batches = []
    for _ in range(11):
        states.append(whole.get_state())
        batches += taken(whole, 1)
    for place in (0, 1, 3, 4, 6, 10):
        again = stream()
        again.set_state(states[place])
        assert_equal(taken(again, 11 - place), batches[place:])
        again.set_state(states[2])  # back again, within a run
        assert_equal(taken(again, 2), batches[2:4])


def test_batches_before_are_not_loaded_again():
    loaded = []

    class Noted(Squares):
        def __getitem__(self, index):
            loaded.append(index)
            return super().__getitem__(index)

    stream = bridges.from_dataloader(DataLoader(Noted(12), 3)).train(DataPartition())
    taken(stream, 3)
    state = stream.get_state()
    loaded.clear()
    again = bridges.from_dataloader(DataLoader(Noted(12), 3)).train(DataPartition())
    again.set_state(state)
    assert numbers(taken(again, 1)) == loaded == [9, 10, 11]


def test_shares_of_a_batch_hold_on_any_number_of_processes():
    # FAULTS 23.
    def stream(index, count):
        data = bridges.from_dataloader(DataLoader(Squares(12), 4, shuffle=True), seed=1)
        return data.train(DataPartition(index, count))

    whole = taken(stream(0, 1), 7)
    for count in (2, 4):
        for index in range(count):
            ours = stream(index, count)
            first = taken(ours, 2)
            assert_equal(first, [{k: v[index::count] for k, v in b.items()} for b in whole[:2]])
            other = stream(0, 1)
            other.set_state(ours.get_state())
            assert_equal(taken(other, 5), whole[2:])
    with pytest.raises(InputRefused, match="does not divide into 2 shares"):
        taken(bridges.from_dataloader(DataLoader(Squares(5), 2)).train(DataPartition(0, 2)), 3)


def test_a_distributed_sampler_reads_the_share_it_was_set_up_for():
    def data(rank):
        sampler = DistributedSampler(Squares(8), num_replicas=2, rank=rank, seed=3)
        return bridges.from_dataloader(DataLoader(Squares(8), 2, sampler=sampler))

    assert data(0).batch == 4
    found = [numbers(taken(data(rank).train(DataPartition(rank, 2)), 4)) for rank in (0, 1)]
    assert sorted(found[0][:4] + found[1][:4]) == list(range(8))
    assert found[0][:4] != found[0][4:]  # set_epoch was called
    with pytest.raises(InputRefused, match="share 0 of 2"):
        data(0).train(DataPartition())


def test_positions_of_another_loader_are_refused():
    stream = bridges.from_dataloader(DataLoader(Squares(11), 3)).train(DataPartition())
    for other, options, named in (
        (DataLoader(Squares(12), 3), {}, "rows: the position has 11, this loader 12"),
        (DataLoader(Squares(11), 4), {}, "batch"),
        (DataLoader(Squares(11), 3), {"seed": 1}, "seed"),
        (DataLoader(Counted(11), 3), {}, "kind"),
        (DataLoader(Squares(11), 3, shuffle=True, generator=generator(0)), {}, "generators"),
    ):
        with pytest.raises(InputRefused, match=named):
            bridges.from_dataloader(other, **options).train(DataPartition()).set_state(
                stream.get_state()
            )
    for state in (b"", b"{}", b'{"epoch": -1, "batches": 0, "generators": []}'):
        with pytest.raises(InputRefused, match="data position"):
            stream.set_state(state)


def test_a_state_that_json_cannot_hold_is_refused_with_its_place():
    state = {"a": [1, (2.5, None)], 3: b"\xff", "t": torch.arange(3), "n": np.float32(2)}
    again = restored(plain(state))
    assert again["a"] == state["a"]
    assert again[3] == b"\xff"
    assert torch.equal(again["t"], state["t"])
    assert isinstance(again["n"], np.float32)
    with pytest.raises(InputRefused, match=r"state\['a'\]\[1\] is a object"):
        plain({"a": [0, object()]})


def test_a_finite_pass_is_one_epoch_each_time():
    data = bridges.from_dataloader(
        DataLoader(Squares(4), 2), eval_loader=DataLoader(Squares(5), 2, shuffle=True)
    )
    first = list(data.val(DataPartition()))
    assert sorted(numbers(first)) == [0, 1, 2, 3, 4]
    assert_equal(list(data.val(DataPartition())), first)
    assert (data.records, data.batch) == (4, 2)


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (iter([1]), "found 'list_iterator'"),
        ([{"n": [1]}], "batch: this loader has no batch_size"),
        (7, "found 'int'"),
    ],
)
def test_what_cannot_be_trained_from_is_refused(loader, named):
    with pytest.raises(InputRefused, match=named):
        bridges.from_dataloader(loader)


def test_an_epoch_without_a_batch_is_refused():
    data = bridges.from_dataloader(DataLoader(Squares(2), 3, drop_last=True))
    with pytest.raises(InputRefused, match="no batch in a whole epoch"):
        next(data.train(DataPartition()))


# Workers


def test_a_loader_that_forks_is_refused():
    loader = DataLoader(Squares(4), 2, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(InputRefused, match="'fork'"):
        bridges.from_dataloader(loader)


ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"}


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, env=ENVIRONMENT
    )


BODY = """
import jax.numpy as jnp
from loader_parts import Failing
from torch.utils.data import DataLoader
import bridges
from dew.data import DataPartition

jnp.zeros(3).block_until_ready()

def main():
    data = bridges.from_dataloader(DataLoader(Failing(8, "modules"), 2, num_workers=2))
    stream = data.train(DataPartition())
    print([next(stream)["loaded"].tolist() for _ in range(4)])
    stream.close()
"""


def test_a_script_without_a_guard_is_an_error_and_no_hang(tmp_path):
    # P069.
    run = run_script(tmp_path, BODY + "\nmain()\n")
    assert run.returncode == 1
    assert "has no guard" in run.stderr
    assert "if __name__ == '__main__':" in run.stderr


def test_what_cannot_be_pickled_is_refused():
    loader = DataLoader(Squares(4), 2, num_workers=1, collate_fn=lambda samples: samples)
    with pytest.raises(InputRefused, match="its collate_fn cannot be handed to a worker"):
        bridges.from_dataloader(loader)


@pytest.mark.slow
def test_a_dataset_of_a_session_without_a_file_is_refused(tmp_path):
    code = BODY.replace("from loader_parts import Failing", "import loader_parts") + (
        "\nclass Failing(loader_parts.Failing): pass\nmain()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=ENVIRONMENT
    )
    assert run.returncode == 1
    assert "session without a file" in run.stderr


@pytest.mark.slow
def test_a_guard_around_something_else_is_an_error_and_no_hang(tmp_path):
    run = run_script(tmp_path, BODY + "\nmain()\nif __name__ == '__main__':\n    print('done')\n")
    assert run.returncode == 1
    assert "ended by itself" in run.stderr
    assert "if __name__ == '__main__':" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_load_no_jax_and_change_no_draw(workers):
    # FAULTS 23, P068: the batches of no worker are the oracle, what is drawn included.
    def stream(number, dataset):
        loader = DataLoader(dataset, 3, shuffle=True, collate_fn=masked, num_workers=number)
        return bridges.from_dataloader(loader, seed=2).train(DataPartition())

    expected = taken(stream(0, Squares(8)), 7)
    ours = stream(workers, Squares(8))
    assert_equal(taken(ours, 4), expected[:4])
    state = ours.get_state()
    assert_equal(taken(ours, 3), expected[4:])
    ours.set_state(state)
    assert_equal(taken(ours, 3), expected[4:])
    ours.close()
    passes = bridges.from_dataloader(
        DataLoader(Squares(4), 2),
        eval_loader=DataLoader(Squares(5), 2, collate_fn=masked, num_workers=workers),
    )
    first = list(passes.val(DataPartition()))
    assert_equal(list(passes.val(DataPartition())), first)
    loaded = stream(workers, Failing(6, "modules"))
    assert [batch["loaded"].tolist() for batch in taken(loaded, 2)] == [[0, 0, 0]] * 2
    loaded.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "error", "named"),
    [
        ("die", WorkerFailed, r"worker 0 \(pid \d+, exit status -9\)"),
        ("hang", WorkerFailed, r"worker 0 \(pid \d+\) gave no batch within 3 s"),
        ("raise", KeyError, "sample 5 has no picture"),
        ("jax", InputRefused, r"a sample of the dataset holds a JAX array at \[0\]\['n'\]"),
    ],
)
def test_a_worker_that_fails_is_named_in_time(way, error, named):
    # FAULTS 21, P068: within 30 s of the failure, and no hang.
    loader = DataLoader(Failing(8, way), 2, num_workers=2)
    stream = bridges.from_dataloader(loader, patience=3).train(DataPartition())
    began = time.monotonic()
    with pytest.raises(error, match=named) as failure:
        taken(stream, 4)
    assert time.monotonic() - began < 60
    assert "epoch 1" in str(getattr(failure.value, "__notes__", "epoch 1"))
    stream.close()


@pytest.mark.slow
def test_an_iterable_and_a_stateful_loader_resume_under_workers():
    for make in (
        lambda: DataLoader(Counted(14), 2, num_workers=2),
        lambda: StatefulDataLoader(Counted(14), 2, num_workers=2),
    ):
        whole = bridges.from_dataloader(make(), seed=1).train(DataPartition())
        first = taken(whole, 3)
        state = whole.get_state()
        rest = taken(whole, 3)
        whole.close()
        assert sorted(numbers(first + rest))[:6] == list(range(6))
        again = bridges.from_dataloader(make(), seed=1).train(DataPartition())
        again.set_state(state)
        assert numbers(taken(again, 3)) == numbers(rest)
        again.close()

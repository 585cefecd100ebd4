"""TensorBoard, MLflow and W&B: what goes in comes out through each package's own reader."""

from __future__ import annotations

import builtins
import io
import json
import math
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_tracking_previews import images

from dew.artifacts import (
    Representations,
    TextSamples,
    TokenScores,
    VideoGrid,
    uint8_pixels,
)
from dew.telemetry.records import CheckpointRequested, FitEnded, RunRecord
from dew.tracking import MLflowTracker, TensorBoardTracker, Tracker, WandbTracker
from dew.tracking.previews import spread

TEXT = TextSamples(np.array([[1, 2]]), "Once", ("upon é",))
CLIP = VideoGrid(np.linspace(-1, 1, 2 * 3 * 4 * 4 * 1).reshape(2, 3, 4, 4, 1))
FEATURES = Representations(np.random.default_rng(0).normal(size=(9, 20)), np.zeros(9, np.int32))


def events(folder: Path):
    """TensorBoard's own accumulator over all that is in `folder`, nothing sampled away."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance=dict.fromkeys(KINDS, 0))
    return accumulator.Reload()


SPREAD = "val/representations/spread/values"
KINDS = ("compressedHistograms", "images", "audio", "scalars", "histograms", "tensors")


def text_in(accumulator, tag):
    (event,) = accumulator.Tensors(tag)
    return event.step, event.tensor_proto.string_val[0].decode()


def test_tensorboard_reads_the_scalars_back(tmp_path):
    tracker = TensorBoardTracker(tmp_path / "events")
    assert not (tmp_path / "events").exists(), "opened on the first value"
    with tracker:
        tracker.log({"train/loss": 1.5, "val/psnr": math.inf}, 5)
        tracker.log({"train/loss": np.float32(0.25), "val/psnr": math.nan}, 10)
    assert isinstance(tracker, Tracker)
    found = events(tmp_path / "events")
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(5, 1.5), (10, 0.25)]
    first, second = (e.value for e in found.Scalars("val/psnr"))
    assert first == math.inf
    assert math.isnan(second)
    assert len(list((tmp_path / "events").iterdir())) == 1


def test_tensorboard_reads_records_and_previews_back(tmp_path):
    grid = images(2)
    with TensorBoardTracker(tmp_path) as tracker:
        tracker.artifact(FitEnded("failed", error="no"), 8)
        tracker.artifact(grid, 8)
        tracker.artifact(CLIP, 8)
        tracker.artifact(TEXT, 9)
        tracker.artifact(FEATURES, 9)
        with pytest.raises(TypeError, match="TokenScores"):
            tracker.artifact(TokenScores(np.zeros(1), np.zeros(1)), 9)
    found = events(tmp_path)
    step, text = text_in(found, "reporting/FitEnded")
    assert (step, json.loads(text)["status"]) == (8, "failed")
    for index in range(2):
        (event,) = found.Images(f"val/samples/{index}")
        with Image.open(io.BytesIO(event.encoded_image_string)) as picture:
            np.testing.assert_array_equal(np.asarray(picture), uint8_pixels(grid.images[index]))
    for index in (2, 3):
        (event,) = found.Images(f"val/samples/{index}")
        assert event.encoded_image_string.startswith(b"GIF89a")
        assert (event.height, event.width) == (4, 4)
    (histogram,) = found.Tensors("val/representations/spread")
    from tensorboard.util.tensor_util import make_ndarray

    table = make_ndarray(histogram.tensor_proto)
    assert table[:, 2].sum() == 20
    assert (table[0, 0], table[-1, 1]) == (spread(FEATURES).min(), spread(FEATURES).max())
    rows = [event for event in found.Tensors("val/samples/0") if event.step == 9]
    assert rows[0].tensor_proto.string_val[0].decode() == "upon é"


def test_tensorboard_needs_no_tensorflow(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from dew import TensorBoardTracker\n"
        f"with TensorBoardTracker({str(tmp_path)!r}) as tracker: tracker.log({{'a': 1.0}}, 1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert events(tmp_path).Scalars("a")[0].value == 1.0


@pytest.fixture
def store(tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "store").as_uri()


def the_run(store: str):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("study")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run, Path(run.info.artifact_uri.removeprefix("file://"))


def test_mlflow_keeps_scalars_records_and_previews_in_one_run(store):
    import mlflow

    grid = images(2)
    with MLflowTracker("study", "first", uri=store) as tracker:
        assert tracker.run_id == ""
        tracker.log({"train/loss": 1.5, "val/psnr": math.inf}, 5)
        tracker.log({"train/loss": 0.5, "val/psnr": math.nan}, 10)
        tracker.artifact(CheckpointRequested("a"), 5)
        tracker.artifact(CheckpointRequested("b"), 10)
        tracker.artifact(grid, 10)
        tracker.artifact(FitEnded("completed"), 10)
        assert mlflow.active_run() is None
        with pytest.raises(TypeError, match="TokenScores"):
            tracker.artifact(TokenScores(np.zeros(1), np.zeros(1)), 9)
    client, run, files = the_run(store)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(5, 1.5), (10, 0.5)]
    first, second = (m.value for m in client.get_metric_history(run.info.run_id, "val/psnr"))
    assert (first, math.isnan(second)) == (math.inf, True)
    records = {path.name: json.loads(path.read_text()) for path in (files / "records").iterdir()}
    assert sorted(records) == [
        "CheckpointRequested-10.json",
        "CheckpointRequested-5.json",
        "FitEnded-10.json",
    ]
    assert records["CheckpointRequested-5.json"]["directory"] == "a"
    with Image.open(files / "previews" / "images-10.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture)[:5, :7], uint8_pixels(grid.images[0]))


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_mlflow_ends_a_run_that_did_not_complete_as_failed(store, status):
    with MLflowTracker("study", uri=store) as tracker:
        tracker.artifact(FitEnded(status), 3)
    assert the_run(store)[1].info.status == "FAILED"


def test_mlflow_leaves_the_active_run_alone(store):
    import mlflow

    mlflow.set_tracking_uri(store)
    with mlflow.start_run() as mine, MLflowTracker("study", uri=store) as tracker:
        tracker.log({"a": 1.0}, 1)
        assert mlflow.active_run().info.run_id == mine.info.run_id != tracker.run_id
    mlflow.set_tracking_uri(None)


def wandb_records(folder: Path):
    """The records of the one offline run under `folder`, in wandb's own message classes.

    The file is a header of seven bytes and a log in LevelDB's format: blocks of 32 KiB that hold
    fragments of checksum (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last).
    """
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    content, at, parts = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts = (b"" if kind in (1, 2) else parts) + content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(parts)


def whole_run(folder: Path) -> list:
    """The records, once W&B's process, which outlives the run, has written the last of them."""
    deadline = time.monotonic() + 60
    while True:
        records = list(wandb_records(folder))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < deadline, "W&B wrote no end of the run"
        time.sleep(0.1)


def test_wandb_keeps_an_offline_run(tmp_path, monkeypatch):
    """W&B's real process writes; the test reads its file. Nothing goes online."""
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens
    monkeypatch.setenv("WANDB_SILENT", "true")
    grid = images(2)
    with WandbTracker("study", "first", offline=True, directory=tmp_path) as tracker:
        assert tracker.run is None
        tracker.log({"train/loss": 1.5}, 5)
        tracker.log({"train/loss": 0.5, "val/psnr": math.inf}, 10)
        tracker.log({"train/loss": 0.75}, 6)  # a run that went back to an earlier step
        tracker.artifact(RunRecord("r", {"learning_rate": 0.1}, versions={}), 0)
        tracker.artifact(grid, 10)
        tracker.artifact(TEXT, 10)
        tracker.artifact(CLIP, 10)
        tracker.artifact(FEATURES, 10)
        tracker.artifact(FitEnded("failed"), 10)
        with pytest.raises(TypeError, match="TokenScores"):
            tracker.artifact(TokenScores(np.zeros(1), np.zeros(1)), 9)
    rows, codes, configured = [], [], {}
    for record in whole_run(tmp_path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = record.history.item
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
        elif kind == "exit":
            codes.append(record.exit.exit_code)
        elif kind in ("config", "run"):
            updates = record.config.update if kind == "config" else record.run.config.update
            configured |= {i.key: json.loads(i.value_json) for i in updates if i.key}
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(5, 1.5), (10, 0.5), (6, 0.75)]
    assert rows[1]["val/psnr"] in (math.inf, "Infinity")
    assert codes == [1]
    assert configured["run"]["config"] == {"learning_rate": 0.1}
    kinds = [row["val/samples/_type"] for row in rows if "val/samples/_type" in row]
    assert kinds == ["images/separated", "table-file", "videos"]
    (spreads,) = [row[SPREAD] for row in rows if SPREAD in row]
    assert sum(spreads) == 20
    (files,) = tmp_path.glob("wandb/offline-run-*/files")
    assert json.loads((files / "records" / "FitEnded-10.json").read_text())["status"] == "failed"
    shown = []
    for path in (files / "media" / "images" / "val").iterdir():
        with Image.open(path) as picture:
            shown.append(np.asarray(picture).tobytes())
    assert sorted(shown) == sorted(uint8_pixels(image).tobytes() for image in grid.images)
    (table,) = (files / "media" / "table" / "val").iterdir()
    assert json.loads(table.read_text())["data"] == [["Once", "upon é"]]


@pytest.mark.parametrize(
    ("tracker", "package", "extra"),
    [
        (TensorBoardTracker("x"), "tensorboard", "tensorboard"),
        (MLflowTracker("x"), "mlflow", "mlflow"),
        (WandbTracker("x", offline=True), "wandb", "wandb"),
    ],
)
def test_an_absent_package_is_named_with_its_extra(tracker, package, extra, monkeypatch):
    real = builtins.__import__

    def absent(name, *arguments, **options):
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=rf'pip install "dew\[{extra}\]"'):
        tracker.log({"a": 1.0}, 1)


@pytest.mark.parametrize(
    "tracker", [TensorBoardTracker("x"), MLflowTracker("x"), WandbTracker("x")]
)
def test_a_tracker_that_was_closed_unused_makes_nothing_and_takes_nothing(
    tracker, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tracker.close()
    tracker.close()
    assert list(tmp_path.iterdir()) == []
    for report in (lambda: tracker.log({}, 1), lambda: tracker.artifact(FitEnded("failed"), 1)):
        with pytest.raises(ValueError, match="closed"):
            report()

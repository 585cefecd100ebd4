"""`image-classification`: one label for an image, of a folder a class or of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bridges.finetune.class_names import check_names, class_names, class_number
from bridges.finetune.columns import chosen_columns
from bridges.finetune.examples import held_examples, sides
from bridges.finetune.image_rows import ImageRows, with_side
from bridges.finetune.learner import Learner
from bridges.finetune.media import cells, levels_of, media_digests
from bridges.finetune.outputs_learner import outputs_learner
from bridges.finetune.row_table import Examples, RowTable, row_table
from bridges.finetune.samples import confused
from bridges.finetune.table_task import TableTask, Told
from bridges.labels import label_names
from bridges.processing import JointProcessor
from bridges.vision.image_processor import ImageProcessor
from dew.cli.command import Settings
from dew.errors import InputRefused
from dew.objectives.criteria import ClassLoss

IMAGES = (("image",), ("img",), ("pixel_values",), ("picture",), ("file",))
LABELS = (("label",), ("labels",), ("class",), ("category",), ("fine_label",), ("target",))
USUAL_SIDE = 224
SHOWN_CLASSES = 30


class ImageClassification(TableTask):
    """A head over a whole image; see `Task`."""

    name = "image-classification"
    pipeline = "image-classification"
    settings: Settings

    def read(self, settings: Settings) -> Examples:
        """Return where the images are, their labels, and what these are called.

        Raises:
            InputRefused: no such columns, an image that does not decode, one class alone.
        """
        self.settings = settings
        train, validation = sides(settings)
        columns = _columns(settings, train)
        parts = [part for part in (train, validation) if part is not None]
        tables = [_table(part, columns) for part in parts]
        labels = [label for table in tables for label in table["label"]]
        names = class_names(settings, train.labels(columns[1]), labels)
        for table in tables:
            label: Any = table["label"]
            label[:] = [class_number(one, names) for one in label]
        read, held = tables[0], tables[1] if validation is not None else None
        if held is None and settings["eval_split"]:
            read, held = held_examples(read, read["digest"], settings)
        return Examples(read, held, names=names)

    def loading(self, examples: Examples) -> dict[str, Any]:
        """Return the labels that the head is to have."""
        return {"task": self.pipeline, "labels": examples.names, "problem": None}

    def check_fit(self, bundle: Any, examples: Examples) -> None:
        """Refuse data with other labels than the model's."""
        check_names(bundle, examples.names)

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model with its cross entropy, and with a processor of the size asked for.

        Raises:
            InputRefused: another size of a model that has positions for its own.
        """
        side = self.settings["image_size"]
        processor = bundle.processor
        if side is not None and processor is not None:
            if not hasattr(bundle.model, "image_channels"):
                raise InputRefused(
                    f"image_size: {bundle.family} reads images of its own size; only networks of "
                    "convolutions alone take another one"
                )
            processor = with_side(image_processor(bundle), side)
            if isinstance(bundle.processor, JointProcessor):
                processor = JointProcessor(bundle.processor.tokenizer, processor)
            bundle = bundle.replace(processor=processor)
        return outputs_learner(bundle, ClassLoss(), remat=remat)

    def rows(self, settings: Settings, learner: Learner, table: RowTable) -> tuple[Any, int]:
        """Return the rows, of which no pixel is held; none is cut."""
        rows = ImageRows(
            table["image"],
            np.array(table["label"], np.int32),
            table["digest"],
            image_processor(learner.bundle),
            varied=settings["augment_images"],
            seed=settings["seed"],
        )
        return rows, 0

    def told(self, learner: Learner, examples: Examples, rows: ImageRows) -> Told:
        """Return how often each label stands there, and the first image."""
        counts = Counter(rows.labels.tolist())
        names = examples.names
        first = rows.take(np.array([0]))["pixel_values"]
        return Told(
            targets=len(rows),
            labels={name: counts[number] for number, name in enumerate(names)},
            example=f"{rows.images[0].place}, read as {list(first.shape[1:])}",
            example_label=names[int(rows.labels[0])],
        )

    def longest(self, settings: Settings, learner: Learner) -> int:
        """Return 1: a row is an image."""
        return 1

    @property
    def unit(self) -> str:
        """What rows are counted in."""
        return "images"

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the loss, accuracy and F1 over the classes."""
        from dew.evaluation.class_scores import ClassScore
        from dew.evaluation.mean_loss import MeanLoss

        return (MeanLoss(), ClassScore("accuracy"), ClassScore("f1_macro"))

    def headline(self, results: Any) -> str:
        """Return the accuracy."""
        return "eval_accuracy"

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return a batch of images of the size asked for, or of the config's."""
        import jax
        import jax.numpy as jnp

        said = learner.bundle.config.get("image_size") or USUAL_SIDE
        side = settings["image_size"] or said
        height, width = side if isinstance(side, list | tuple) else (side, side)
        pixels = jax.ShapeDtypeStruct((rows, 3, int(height), int(width)), jnp.float32)
        return {"pixel_values": pixels, "labels": jax.ShapeDtypeStruct((rows,), jnp.int32)}

    def confusion(self, bundle: Any, data: Any) -> tuple[Sequence[str], Any] | None:
        """Return how often each class was taken for each other among the held-out images."""
        names = label_names(bundle.config)
        if data.eval_rows is None or len(names) > SHOWN_CLASSES:
            return None
        return names, confused(bundle, data.eval_rows, len(names))

    def usage(self, adapter: bool) -> str:
        """Return a call that labels an image."""
        return '("picture.jpg")'


def image_processor(bundle: Any) -> ImageProcessor:
    """Return the checkpoint's preparation of images.

    Raises:
        InputRefused: it has none that is read.
    """
    found = bundle.processor
    found = getattr(found, "images", None) if isinstance(found, JointProcessor) else found
    if not isinstance(found, ImageProcessor):
        raise InputRefused(
            "the checkpoint has no preprocessor_config.json that is read, so it is not known how "
            "images are prepared; put the file beside the weights"
        )
    return found


def _columns(settings: Settings, records: Any) -> tuple[str, str]:
    """Return the columns of the images and of their labels."""
    flags = ("image_column_name", "label_column_name")
    found = []
    for flag, usual, what in zip(flags, (IMAGES, LABELS), ("images", "labels"), strict=True):
        named = settings[flag]
        asked = () if named is None else (named,)
        found += chosen_columns(records.columns, asked, usual, what=what, flag=flag)
    return found[0], found[1]


def _table(records: Any, columns: tuple[str, str]) -> RowTable:
    """Return the rows that have a label, each image decoded once.

    Raises:
        InputRefused: images that cannot be decoded; the first ones are named.
    """
    table = row_table(
        records, {"image": cells(records, columns[0]), "label": records.column(columns[1])}
    )
    digests = media_digests(table["image"], levels_of, "images")
    return RowTable(
        {**table.fields, "digest": digests},
        table.dropped,
        table.records,
        table.files,
        table.ignored,
    )

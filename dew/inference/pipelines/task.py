"""`Task`: the forms of inputs, the options and the refusals that a pipeline's tasks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from dew.artifacts import Artifact
from dew.errors import InputRefused, UnknownName, nearest, shown
from dew.inference.bundle import Bundle

Options = dict[str, Any]

BATCH = 32
"""Rows a batch where the call does not say; which rows share a batch changes no result."""
SORTED_BATCHES = 8
"""How many batches of a data set are read ahead, to put inputs of like length together."""


class Task(ABC):
    """Runs one task of a bundle.

    A task's class says what it is by its class attributes and gives `results`; containers,
    defaults and unknown options are dealt with here:

    - one input gives one result, a list of inputs a list of results in their order;
    - a generator, and a data set or a column of one (what has a length and gives items by their
      number), gives an iterator of results, which reads no further than it must.

    A class may also give `is_one` (an input that stands alone), `checked` (its options, looked
    at when the task is made and at each call) and `typed` (its results as an artifact).

    Attributes:
        name: the task's name.
        fits: the names among a model's tasks that make it fit for this one.
        loads: the task to load a source for, where it is not what its architecture says.
        defaults: the options of a call, and their defaults.
        reads: what an input is, for messages.
        needs: what the checkpoint must have beside its weights: "tokenizer", "images" or
            "sounds"; empty for nothing.

    Args:
        bundle: the model.
        batch_size: rows a batch; None is one for an input or a generator, else `BATCH`.
        **options: defaults of its calls in place of the class's.

    Raises:
        InputRefused: an option that is not usable, or no tokenizer, image processor or feature
            extractor where one is needed.
        UnknownName: an option that the task does not have.
    """

    name: ClassVar[str] = ""
    fits: ClassVar[tuple[str, ...]] = ()
    loads: ClassVar[str | None] = None
    defaults: ClassVar[Mapping[str, Any]] = {}
    reads: ClassVar[str] = "a text"
    needs: ClassVar[str] = "tokenizer"

    def __init__(self, bundle: Bundle, *, batch_size: int | None = None, **options: Any):
        self.bundle = bundle
        self.processor: Any = needed_processor(bundle, self.needs, self.name)
        self._batch_size = checked_batch_size(batch_size)
        self._options: Options = dict(self.defaults)
        self._options = self.merged(options)
        self.checked(dict(self._options))

    def __call__(
        self,
        inputs: Any,
        *,
        batch_size: int | None = None,
        num_workers: int | None = None,
        **options: Any,
    ) -> Any:
        """Run the task.

        Args:
            inputs: one input, a list or tuple of them, a generator, a data set or its column.
            batch_size: rows a batch; None for the task's own.
            num_workers: taken as transformers' pipelines take it; without effect.
            **options: those in the class's `defaults`.

        Returns:
            A result, a list of results, or an iterator of them.

        Raises:
            InputRefused: an input or an option that is not usable.
            UnknownName: an option that the task does not have.
        """
        del num_workers
        settled = self.checked(self.merged(options))
        size = checked_batch_size(batch_size) or self._batch_size
        if self.is_one(inputs):
            return self.results([inputs], settled, batch_size=1)[0]
        if isinstance(inputs, list | tuple):
            return self.results(list(inputs), settled, batch_size=size or BATCH)
        if isinstance(inputs, Iterator):
            return self._streamed(inputs, settled, size or 1, ahead=1)
        if hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__"):
            items = (inputs[place] for place in range(len(inputs)))
            return self._streamed(items, settled, size or BATCH, ahead=SORTED_BATCHES)
        raise InputRefused(
            f"{self.name}: the input is {shown(inputs)}; expected {self.reads}, a list of such, a "
            "generator or a data set"
        )

    def typed(self, inputs: Any, **options: Any) -> Artifact:
        """Return what the model makes of the inputs as a value of `dew.artifacts`.

        Args:
            inputs: as for a call, but for generators.
            **options: as for a call.

        Raises:
            InputRefused: as a call; or the task has no such value.
        """
        del inputs, options
        raise InputRefused(f"{self.name} has no typed results; call the task itself")

    @abstractmethod
    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return the result of each input, in their order.

        Args:
            items: inputs that nothing is known of yet; none where a list was empty.
            options: all of `defaults`, as `checked` gave them.
            batch_size: rows a batch.
        """

    def is_one(self, inputs: Any) -> bool:
        """Tell whether `inputs` is one input; texts, bytes and mappings are."""
        return isinstance(inputs, str | bytes | Mapping)

    def checked(self, options: Options) -> Options:
        """Return usable options.

        Args:
            options: all of `defaults`, with what was given; the task's own to change.

        Raises:
            InputRefused: one that is not usable.
        """
        return options

    def merged(self, given: Mapping[str, Any]) -> Options:
        """Return all options: those given, over the task's own.

        Raises:
            UnknownName: one that the task does not have.
        """
        for name in given:
            if name not in self.defaults:
                known = ", ".join(sorted(self.defaults)) or "none"
                raise UnknownName(
                    f"{self.name} has no option {shown(name)}{nearest(name, self.defaults)} "
                    f"Known: {known}."
                )
        return {**self._options, **given}

    def all_items(self, inputs: Any) -> list[Any]:
        """Return the inputs of a call as a list, for `typed`."""
        if self.is_one(inputs):
            return [inputs]
        if isinstance(inputs, Iterable):
            return list(inputs)
        if hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__"):
            return [inputs[place] for place in range(len(inputs))]
        raise InputRefused(f"{self.name}: the input is {shown(inputs)}; expected {self.reads}")

    def size(self, batch_size: int | None) -> int:
        """Return the rows a batch of a call over many inputs."""
        return checked_batch_size(batch_size) or self._batch_size or BATCH

    def _streamed(
        self, inputs: Iterable[Any], options: Options, size: int, *, ahead: int
    ) -> Iterator[Any]:
        waiting = iter(inputs)
        while items := list(islice(waiting, size * ahead)):
            yield from self.results(items, options, batch_size=size)


_LACKING = {
    "tokenizer": "a tokenizer and the checkpoint{where} has none; put tokenizer.json beside the "
    "weights, or pass tokenizer=",
    "images": "an image processor and the checkpoint{where} has none; put "
    "preprocessor_config.json beside the weights, or call the bundle with pixel_values",
    "sounds": "a feature extractor and the checkpoint{where} has none; put "
    "preprocessor_config.json beside the weights, or call the bundle with its features",
}


def needed_processor(bundle: Bundle, needs: str, name: str) -> Any:
    """Return what prepares a task's inputs, None where it needs nothing.

    Args:
        bundle: the model.
        needs: "tokenizer", "images", "sounds" or nothing.
        name: the task's, for the message.

    Returns:
        The tokenizer; the image processor or the feature extractor, of a joint processor too.

    Raises:
        InputRefused: the checkpoint has none.
    """
    if not needs:
        return None
    if needs == "tokenizer":
        found = bundle.tokenizer
    else:
        joint = hasattr(bundle.processor, "images") and hasattr(bundle.processor, "sounds")
        found = getattr(bundle.processor, needs) if joint else bundle.processor
        found = found if callable(found) else None
    if found is None:
        where = f" {shown(bundle.source)}" if bundle.source else ""
        raise InputRefused(f"{name} needs {_LACKING[needs].format(where=where)}")
    return found


def checked_batch_size(value: Any) -> int | None:
    """Return a batch size, or None.

    Raises:
        InputRefused: it is no whole number of at least 1.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputRefused(f"batch_size is {shown(value)}; expected a whole number of at least 1")
    return value

"""Checkpoints that are Hugging Face folders too: the weights beside `dew/`, named by updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from dew.checkpoints import Checkpoints
from dew.data import DataPartition

KEEP_ALL = 2**31


class RunCheckpoints(Checkpoints):
    """`Checkpoints` whose every folder also loads in transformers, as `checkpoint-<updates>`.

    The trainer hands over microbatches, to `save` and `path`; everything else speaks of updates,
    as Hugging Face's folders do. A window of microbatches that has not become an update yet is
    saved along with the update before it, under that one's name. Where that name is taken the
    save is left out: a resume then reads the window's microbatches again, to the same end.

    Args:
        directory: the run's output folder.
        keep: how many stay; None keeps all.
        write: `write(learned, folder)` adds the model's files, before the folder gets its name.
        learned: what of the state's variables `write` gets; the parameters unless told.
        accumulation: microbatches an update.

    Attributes:
        describe: `describe(microbatches, folder)` adds the trainer's state; nothing by default.
    """

    _extra_fields = ("params", "step")

    def __init__(
        self,
        directory: str,
        *,
        keep: int | None,
        write: Callable[[Any, Path], None],
        learned: Callable[[Mapping[str, Any]], Any] = itemgetter("params"),
        accumulation: int = 1,
    ):
        super().__init__(directory, keep=KEEP_ALL if keep is None else keep)
        self.describe: Callable[[int, Path], None] = lambda microbatches, folder: None
        self._write_model, self._learned = write, learned
        self._accumulation = accumulation

    def path(self, step: int) -> str:
        """Return the folder that holds microbatch `step`, whether or not it is there."""
        return super().path(step // self._accumulation)

    def save(
        self,
        step: int,
        state: Any,
        saved: bytes | None,
        metrics: Mapping[str, float] | None = None,
        *,
        share: DataPartition | None = None,
    ) -> None:
        """Write `state` of microbatch `step` under the updates it holds; see the base class."""
        update, pending = divmod(step, self._accumulation)
        if pending:
            self.wait()  # the update's own save may be on its way
            if update in self._readable(None).shared:
                return
        super().save(update, state, saved, metrics, share=share)

    def _write_extra(self, step: int, state: Any, folder: Path) -> None:
        self._write_model(self._learned(state.params), folder)
        self.describe(int(state.step), folder)

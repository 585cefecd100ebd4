"""`speech-recognition`: what is said in a sound, written by Whisper or spelt by wav2vec 2.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridges.finetune.columns import chosen_columns
from bridges.finetune.encoded_rows import Ragged
from bridges.finetune.examples import held_examples, sides
from bridges.finetune.learner import Learner
from bridges.finetune.media import cells, media_digests
from bridges.finetune.outputs_learner import answers_learner, outputs_learner
from bridges.finetune.row_table import Examples, RowTable, refuse_rows, row_table
from bridges.finetune.sound_rows import SoundRows, sound_lengths
from bridges.finetune.spoken_texts import (
    letters_of,
    places_needed,
    spelt,
    whisper_labels,
    whisper_prompt,
)
from bridges.finetune.table_task import TableTask, Told, needed_tokenizer
from bridges.finetune.tasks.seq2seq import shift_of
from bridges.finetune.writing import greedy_writer
from bridges.processing import JointProcessor
from dew.cli.command import Settings
from dew.errors import InputRefused, shown
from dew.objectives.criteria import IGNORED
from dew.objectives.ctc import LetterLoss

SOUNDS = (("audio",), ("speech",), ("sound",), ("file",), ("path",))
TEXTS = (
    *(("text",), ("sentence",), ("transcription",), ("transcript",), ("normalized_text",)),
    *(("raw_transcription",), ("target",)),
)
WHISPER = "whisper"
RATE = 16_000
CONVOLUTIONS = ((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2))
"""wav2vec 2.0's kernels and strides where a config names none."""


class SpeechRecognition(TableTask):
    """A decoder that writes, or a letter for each place of a sound; see `Task`."""

    name = "speech-recognition"
    pipeline = "automatic-speech-recognition"
    settings: Settings

    def read(self, settings: Settings) -> Examples:
        """Return where the sounds are, and their texts.

        Raises:
            InputRefused: no such columns, texts that are none.
        """
        self.settings = settings
        train, validation = sides(settings)
        columns = _columns(settings, train)
        tables = [_table(part, columns) for part in (train, validation) if part is not None]
        if not len(tables[0]):
            raise InputRefused("data: no row has both a sound and its text")
        read, held = tables[0], tables[1] if validation is not None else None
        if held is None and settings["eval_split"]:
            read, held = held_examples(read, read["digest"], settings)
        return Examples(read, held)

    def loading(self, examples: Examples) -> dict[str, Any]:
        """Return the task whose head the model is to have."""
        return {"task": self.pipeline}

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model with its loss.

        Raises:
            InputRefused: a model that hears in neither way.
        """
        config = bundle.config
        if config.get("model_type") == WHISPER:
            writes = self.settings["predict_with_generate"] and bundle.processor is not None
            writer = self._writer if writes else None
            return answers_learner(bundle, remat=remat, writer=writer)
        if config.get("is_encoder_decoder") or "conv_kernel" not in _with_defaults(config):
            raise InputRefused(
                f"speech-recognition: {config.get('model_type')} is learnt neither as Whisper nor "
                "as wav2vec 2.0"
            )
        return outputs_learner(bundle, letter_loss(bundle), remat=remat)

    def _writer(self, bundle: Any) -> Any:
        from dew.inference.transcription import LONG_FORM, PROMPTING, UNREAD

        unread = {*PROMPTING, *LONG_FORM, *UNREAD.split()}
        stored = bundle.generation_config
        plain = bundle.replace(
            generation_config={name: v for name, v in stored.items() if name not in unread}
        )
        longest = self.settings["generation_max_length"] or self.settings["max_target_length"]
        prompt = whisper_prompt(bundle, self.settings)
        return greedy_writer(plain, prompt=prompt, longest=longest, options={})

    def rows(self, settings: Settings, learner: Learner, table: RowTable) -> tuple[Any, int]:
        """Return the rows, each sound decoded once for its length, and how many were cut."""
        bundle = learner.bundle
        processor = sound_processor(bundle)
        samples = sound_lengths(table["audio"], processor.rate)
        if bundle.config.get("model_type") != WHISPER:
            return self._spelt_rows(bundle, table, samples, processor), 0
        longest = min(settings["max_target_length"], learner.position_limit or 1 << 20)
        prompt = whisper_prompt(bundle, settings)
        needed_tokenizer(learner)
        labels, cut = whisper_labels(bundle, table["text"], prompt, longest)
        cut += int((samples > processor.seconds * processor.rate).sum())
        rows = SoundRows(
            table["audio"],
            samples,
            Ragged.of(labels, padding=IGNORED),
            table["digest"],
            processor,
            shift_of(bundle),
            longest,
        )
        return rows, cut

    def _spelt_rows(
        self, bundle: Any, table: RowTable, samples: np.ndarray, processor: Any
    ) -> SoundRows:
        labels = spelt(letters_of(bundle), table["text"])
        places = letter_loss(bundle).places
        short = [
            f"{cell.place}: {places_needed(row)} places for {len(row)} letters, the sound has "
            f"{max(0, int(places(count)))}"
            for cell, row, count in zip(table["audio"], labels, samples.tolist(), strict=True)
            if places_needed(row) > places(count)
        ]
        refuse_rows("data: sounds too short for their texts, whose loss would be infinite:", short)
        ragged = Ragged.of(labels, padding=IGNORED)
        return SoundRows(table["audio"], samples, ragged, table["digest"], processor)

    def told(self, learner: Learner, examples: Examples, rows: SoundRows) -> Told:
        """Return how many labels there are, and the first sound with its text as it is learnt."""
        first = rows.labels.values[: rows.labels.offsets[1]].tolist()
        spelling = learner.bundle.config.get("model_type") != WHISPER
        options = {"group_tokens": False} if spelling else {"skip_special_tokens": False}
        return Told(
            targets=int(rows.labels.lengths.sum()),
            example=f"{rows.sounds[0].place}, {rows.samples[0]} samples",
            example_label=learner.bundle.processor.decode(first, **options),
        )

    def longest(self, settings: Settings, learner: Learner) -> int:
        """Return the most labels of a row."""
        return settings["max_target_length"]

    @property
    def unit(self) -> str:
        """What rows are counted in."""
        return "samples"

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the loss; of what is written the error rates of words and of characters."""
        from dew.evaluation.error_rates import KINDS, ErrorRate
        from dew.evaluation.mean_loss import MeanLoss
        from dew.evaluation.written_texts import WrittenTexts

        spelling = learner.bundle.config.get("model_type") != WHISPER
        if examples is None or not (spelling or self.settings["predict_with_generate"]):
            return (MeanLoss(),)
        texts = WrittenTexts(learner.bundle.processor.decode, examples["text"])
        return (MeanLoss(), *(ErrorRate(kind, texts) for kind in KINDS))

    def headline(self, results: Mapping[str, float]) -> str:
        """Return the error rate of words where there is one, else the loss."""
        return "eval_wer" if "eval_wer" in results else "eval_loss"

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return a batch of whole windows of sound, or of ten seconds."""
        import jax
        import jax.numpy as jnp

        model = learner.bundle.model
        labels = jax.ShapeDtypeStruct((rows, settings["max_target_length"]), jnp.int32)
        if "input_features" in learner.input_names:
            shape = (rows, model.bands, model.frames)
            features = jax.ShapeDtypeStruct(shape, jnp.float32)
            return {"input_features": features, "labels": labels, "decoder_input_ids": labels}
        values = jax.ShapeDtypeStruct((rows, 10 * RATE), jnp.float32)
        samples = jax.ShapeDtypeStruct((rows,), jnp.int32)
        return {"input_values": values, "labels": labels, "samples": samples}

    def usage(self, adapter: bool) -> str:
        """Return a call that writes down a sound."""
        return '("sound.wav")'


def sound_processor(bundle: Any) -> Any:
    """Return the checkpoint's preparation of sounds.

    Raises:
        InputRefused: it has none that is read.
    """
    found = bundle.processor
    found = found.sounds if isinstance(found, JointProcessor) else found
    if not hasattr(found, "rate"):
        raise InputRefused(
            "the checkpoint has no preprocessor_config.json that is read, so it is not known how "
            "sounds are prepared; put the file beside the weights"
        )
    return found


def letter_loss(bundle: Any) -> LetterLoss:
    """Return the loss of a bundle's letters, as its config wants it reduced."""
    config = _with_defaults(bundle.config)
    blank = 0 if bundle.processor is None else letters_of(bundle).pad_token_id
    return LetterLoss(
        blank=int(config.get("pad_token_id", blank) or 0),
        sizes=tuple(config["conv_kernel"]),
        strides=tuple(config["conv_stride"]),
        reduction=str(config.get("ctc_loss_reduction", "sum")),
    )


def _with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    named = dict(zip(("conv_kernel", "conv_stride"), CONVOLUTIONS, strict=True))
    return {**named, **config} if config.get("model_type") == "wav2vec2" else dict(config)


def _columns(settings: Settings, records: Any) -> tuple[str, str]:
    """Return the columns of the sounds and of their texts."""
    named = settings["audio_column_name"]
    (sound,) = chosen_columns(
        records.columns,
        () if named is None else (named,),
        SOUNDS,
        what="sounds",
        flag="audio_column_name",
    )
    asked = tuple(settings["text_column_names"] or ())[:1]
    (text,) = chosen_columns(
        records.columns, asked, TEXTS, what="texts of what is said", flag="text_column_names"
    )
    return sound, text


def _table(records: Any, columns: tuple[str, str]) -> RowTable:
    """Return the rows that have a text.

    Raises:
        InputRefused: texts that are none.
    """
    texts = records.column(columns[1])
    refuse_rows(
        "data: texts that are none:",
        [
            f"{records.place(place)}: {shown(text, 60)}"
            for place, text in enumerate(texts)
            if text is not None and not isinstance(text, str)
        ],
    )
    fields = {"audio": cells(records, columns[0]), "text": [t or None for t in texts]}
    table = row_table(records, fields)
    digests = media_digests(table["audio"], lambda value: None, "sounds")
    return RowTable(
        {**table.fields, "digest": digests},
        table.dropped,
        table.records,
        table.files,
        table.ignored,
    )

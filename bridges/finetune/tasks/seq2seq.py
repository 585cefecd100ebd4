"""`seq2seq`: one text into another, as summaries, translations and answers are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bridges.finetune.columns import chosen_columns
from bridges.finetune.data import chosen
from bridges.finetune.encoded_rows import Ragged
from bridges.finetune.examples import sides
from bridges.finetune.learner import Learner
from bridges.finetune.outputs_learner import answers_learner
from bridges.finetune.paired_rows import PairedRows, Shift
from bridges.finetune.row_table import Examples, RowTable, refuse_rows, row_table, split_sides
from bridges.finetune.samples import Sample
from bridges.finetune.table_task import TableTask, Told, needed_tokenizer
from bridges.finetune.writing import greedy_writer
from dew.cli.command import Settings
from dew.errors import InputRefused, shown
from dew.inference.answering import start_id
from dew.objectives.criteria import IGNORED
from dew.typing import Cutting

TEXTS = (
    ("input", "target"),
    ("document", "summary"),
    ("article", "highlights"),
    ("dialogue", "summary"),
    ("text", "summary"),
    ("text", "target"),
    ("source", "target"),
    ("prompt", "completion"),
    ("input", "output"),
    ("question", "answer"),
)
TRANSLATION = "translation"
CHUNK_TEXTS = 1024
WRAPPING = ("mbart", "plbart")
MARKING = (*WRAPPING, "m2m_100", "nllb-moe")
"""Model types whose tokenizers mark each text's language, which is not done here."""


class Seq2Seq(TableTask):
    """An encoder that reads and a decoder that writes; see `Task`."""

    name = "seq2seq"
    pipeline = "text2text-generation"
    settings: Settings

    def read(self, settings: Settings) -> Examples:
        """Return the table's sources and targets.

        Raises:
            InputRefused: no such columns, rows that are no texts, nothing to write.
        """
        self.settings = settings
        train, validation = sides(settings)
        kind = TRANSLATION if _translates(settings, train) else "texts"
        tables = [_table(settings, part) for part in (train, validation) if part is not None]
        if not len(tables[0]):
            raise InputRefused("data: no row has both a source and a target")
        held = tables[1] if validation is not None else None
        return Examples(*split_sides(tables[0], held, settings), kind=kind)

    def learner(self, bundle: Any, *, remat: bool) -> Learner:
        """Return the model with the loss of its labels, and with its writer where one is asked.

        Raises:
            InputRefused: a model without encoder or decoder, or whose tokenizer marks languages.
        """
        family = str(bundle.config.get("model_type"))
        native = "text2text-generation" in bundle.tasks
        if not native and not bundle.config.get("is_encoder_decoder"):
            raise InputRefused(
                f"seq2seq needs an encoder and a decoder, and {bundle.source or family} is a "
                f"{shown(bundle.config.get('architectures'))}"
            )
        if family in MARKING:
            raise InputRefused(
                f"{family}: its tokenizer marks the language of each text, which is not done here; "
                "take a checkpoint such as T5's, BART's or Marian's"
            )
        writer = None
        if self.settings["predict_with_generate"]:
            longest = self.settings["generation_max_length"] or self.settings["max_target_length"]
            start = (start_id(bundle, {}),)
            writer = partial(greedy_writer, prompt=start, longest=longest, options={})
        return answers_learner(bundle, remat=remat, writer=writer)

    def rows(self, settings: Settings, learner: Learner, table: RowTable) -> tuple[Any, int]:
        """Return both sides' tokens, and how many rows lost some to a limit."""
        tokenizer = needed_tokenizer(learner)
        limits = (self.longest(settings, learner), self.written(settings, learner))
        columns, cut = [], [False] * len(table)
        for name, longest in zip(("source", "target"), limits, strict=True):
            ids: list[list[int]] = []
            for start in range(0, len(table), CHUNK_TEXTS):
                texts = list(table[name][start : start + CHUNK_TEXTS])
                for encoding in tokenizer.encodings(texts, Cutting(longest)):
                    cut[len(ids)] |= bool(encoding.overflowing)
                    ids.append(encoding.ids)
            columns.append(ids)
        padding = tokenizer.pad_token_id or 0
        rows = PairedRows(
            Ragged.of(columns[0], padding=padding),
            Ragged.of(columns[1], padding=IGNORED),
            shift_of(learner.bundle),
            limits,
        )
        return rows, sum(cut)

    def told(self, learner: Learner, examples: Examples, rows: PairedRows) -> Told:
        """Return how many labels there are, and the first row."""
        tokenizer = needed_tokenizer(learner)
        ids, labels = (
            part.values[: part.offsets[1]].tolist() for part in (rows.source, rows.labels)
        )
        return Told(
            targets=int(rows.labels.lengths.sum()),
            example=tokenizer.decode(ids, skip_special_tokens=False),
            example_label=tokenizer.decode(labels, skip_special_tokens=False),
        )

    def written(self, settings: Settings, learner: Learner) -> int:
        """Return the most tokens of a target."""
        longest, limit = settings["max_target_length"], learner.position_limit
        if limit is not None and longest > limit and chosen(settings, "max_target_length"):
            raise InputRefused(
                f"max_target_length is {longest}, but the model has {limit} positions; give "
                f"--max_target_length {limit} or less"
            )
        return longest if limit is None else min(longest, limit)

    def metrics(self, learner: Learner, examples: Any) -> Sequence[Any]:
        """Return the loss; of written texts ROUGE, and BLEU of translations."""
        from dew.evaluation.mean_loss import MeanLoss
        from dew.evaluation.rouge import KINDS, Rouge
        from dew.evaluation.written_texts import WrittenTexts

        if examples is None or not self.settings["predict_with_generate"]:
            return (MeanLoss(),)
        texts = WrittenTexts(needed_tokenizer(learner).decode, examples["target"])
        if self.settings["source_lang"]:
            from bridges.finetune.bleu import Bleu

            return (MeanLoss(), Bleu(texts))
        stems = self.settings["use_stemmer"]
        return (MeanLoss(), *(Rouge(kind, texts, stems) for kind in KINDS))

    def headline(self, results: Mapping[str, float]) -> str:
        """Return the BLEU or ROUGE where there is one, else the loss."""
        return next((n for n in ("eval_bleu", "eval_rougeL") if n in results), "eval_loss")

    def planned_batch(self, settings: Settings, learner: Learner, *, rows: int) -> dict[str, Any]:
        """Return a batch of the longest sources and targets."""
        import jax
        import jax.numpy as jnp

        source = jax.ShapeDtypeStruct((rows, self.longest(settings, learner)), jnp.int32)
        target = jax.ShapeDtypeStruct((rows, self.written(settings, learner)), jnp.int32)
        names = {"input_ids": source, "attention_mask": source}
        return names | {"labels": target, "decoder_input_ids": target}

    def samples(self, before: Any, after: Any, data: Any, *, count: int) -> Sequence[Sample]:
        """Return what both models write of a few rows, held out where there are any."""
        rows = data.rows if data.eval_rows is None else data.eval_rows
        some = rows.take(np.arange(min(count, len(rows))))
        ids, mask, tokenizer = some["input_ids"], some["attention_mask"], before.tokenizer
        longest = self.settings["generation_max_length"] or self.settings["max_target_length"]
        limit = getattr(before.model, "position_limit", None) or longest
        told = [
            [tokenizer.decode(row.tolist()) for row in written]
            for written in (
                bundle.generate(ids, mask, max_length=min(longest, limit))
                for bundle in (before, after)
            )
        ]
        return [
            Sample(
                tokenizer.decode(ids[n][mask[n] > 0].tolist()),
                tokenizer.decode(labels[labels != IGNORED].tolist()),
                told[0][n],
                told[1][n],
            )
            for n, labels in enumerate(some["labels"])
        ]

    def usage(self, adapter: bool) -> str:
        """Return a call that writes a text."""
        return f"({self.settings['source_prefix'] + 'A long text that is to be rewritten.'!r})"


def shift_of(bundle: Any) -> Shift:
    """Return how a bundle's decoder inputs come of its labels.

    Raises:
        InputRefused: the checkpoint names no id that texts begin with.
    """
    config = bundle.config
    padding = config.get("pad_token_id")
    if padding is None:
        padding = getattr(bundle.tokenizer, "pad_token_id", None) or 0
    if config.get("model_type") in WRAPPING:
        return Shift(int(padding), int(padding), wraps=True)
    return Shift(start_id(bundle, {}), int(padding))


def _translates(settings: Settings, records: Any) -> bool:
    """Return whether the rows are dictionaries of one text a language."""
    languages = [settings["source_lang"], settings["target_lang"]]
    if not any(languages):
        if set(records.columns) == {TRANSLATION}:
            raise InputRefused(
                "data: the column translation holds a text a language; name two of them with "
                "--source_lang and --target_lang"
            )
        return False
    if not all(languages):
        raise InputRefused("source_lang and target_lang go together; give both")
    return TRANSLATION in records.columns


def _table(settings: Settings, records: Any) -> RowTable:
    """Return the rows' sources, with their prefix, and targets.

    Raises:
        InputRefused: no such columns, values that are no texts.
    """
    if _translates(settings, records):
        pairs = [row or {} for row in records.column(TRANSLATION)]
        names = [settings["source_lang"], settings["target_lang"]]
        known = sorted({str(key) for pair in pairs[:100] for key in pair})
        for name in names:
            if pairs and not any(name in pair for pair in pairs):
                raise InputRefused(
                    f"data: no translation has the key {shown(name)}; there are {', '.join(known)}"
                )
        columns = [[pair.get(name) for pair in pairs] for name in names]
    else:
        asked = settings["text_column_names"] or ()
        if asked and len(asked) != 2:
            raise InputRefused(
                f"text_column_names: found {len(asked)}; expected two, the source's and the "
                "target's"
            )
        usual = (*TEXTS, (settings["source_lang"], settings["target_lang"]))
        usual = [pair for pair in usual if all(pair)]
        what = "a source and one with its target"
        names = chosen_columns(records.columns, asked, usual, what=what, flag="text_column_names")
        columns = [records.column(name) for name in names]
    wrong = [
        f"{records.place(place)}: {shown(name)} is a {type(value).__name__}"
        for name, column in zip(names, columns, strict=True)
        for place, value in enumerate(column)
        if value is not None and not isinstance(value, str)
    ]
    refuse_rows("data: sources or targets that are no texts:", wrong)
    prefix = settings["source_prefix"]
    sources = [prefix + text if text else None for text in columns[0]]
    return row_table(records, {"source": sources, "target": [text or None for text in columns[1]]})

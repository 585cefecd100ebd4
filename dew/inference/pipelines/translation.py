"""Translation: texts of one language in, their meaning in another out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.generation import GenerationOptions
from dew.inference.pipelines.task import Options
from dew.inference.pipelines.text2text_generation import GLOBAL_LENGTH, Text2TextGeneration
from dew.inference.row_outputs import position_limit

BEFORE, BEHIND = "before", "behind"
LANGUAGE_PLACES = {
    "MBartTokenizer": BEHIND,
    "PLBartTokenizer": BEHIND,
    "MBart50Tokenizer": BEFORE,
    "M2M100Tokenizer": BEFORE,
    "NllbTokenizer": BEFORE,
}
"""Where the tokenizers of several languages write a text's own: before it, or behind its end."""


class Translation(Text2TextGeneration):
    """Translates texts; see `Text2TextGeneration`. A result's key is `translation_text`.

    `src_lang` and `tgt_lang`, or `pipeline("translation_xx_to_yy")`, name the languages: for a
    checkpoint of several, by the codes of its tokenizer. One of a single pair takes no notice,
    but of the prefix that its config states for `translation_xx_to_yy`.
    """

    name = "translation"
    key = "translation"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Text2TextGeneration.defaults,
        "src_lang": None,
        "tgt_lang": None,
    }

    def __init__(self, bundle: Bundle, *, batch_size: int | None = None, **options: Any):
        task = str(options.pop("task", None) or self.name)
        if task == self.name:
            # As in version 4, the first pair that the checkpoint states parameters for.
            stated = bundle.config.get("task_specific_params") or {}
            task = next((name for name in stated if str(name).startswith(task)), task)
        super().__init__(bundle, batch_size=batch_size, task=task, **options)

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        parts = self._task.split("_")
        if options["src_lang"] is None and options["tgt_lang"] is None and len(parts) == 4:
            options |= {"src_lang": parts[1], "tgt_lang": parts[3]}
        return super().checked(options)

    def prepared(self, texts: Sequence[str], options: Options) -> list[list[int]]:
        """Return the ids of each text, with its language where the tokenizer writes that."""
        place = self._place()
        if place is None:
            return super().prepared(texts, options)
        language = self._language("src_lang", options)
        end = self.processor.token_id(self.processor.special_tokens["eos_token"])
        before = [language] if place == BEFORE else []
        behind = [end] if place == BEFORE else [end, language]
        limit = position_limit(self.bundle)
        rows = []
        for text in texts:
            ids = self.processor.encode(text, add_special_tokens=False)
            if options["truncation"] and self.longest is not None:
                ids = ids[: self.longest - len(before) - len(behind)]
            row = [*before, *ids, *behind]
            if limit is not None and len(row) > limit:
                raise InputRefused(
                    f"{self.name}: the text is {len(row)} tokens long, the model has {limit} "
                    f"positions; {self.remedy}"
                )
            rows.append(row)
        return rows

    def more(self, options: Options) -> dict[str, Any]:
        """Return what makes the answer begin with its language."""
        if self._place() is None:
            return {}
        return {"forced_bos_token_id": self._language("tgt_lang", options)}

    def warn(self, length: int, settings: GenerationOptions) -> None:
        """Warn of a translation that is cut where the text is as long as it."""
        longest = settings.max_length or GLOBAL_LENGTH
        if length > 0.9 * longest:
            warnings.warn(
                f"the text has {length} tokens and max_length is {longest}: the translation may be "
                "cut; raise max_length",
                stacklevel=5,
            )

    def _place(self) -> str | None:
        """Return where the tokenizer writes a text's language, None where it writes none."""
        settings = _settings(self.processor)
        place = LANGUAGE_PLACES.get(str(settings.get("tokenizer_class")).removesuffix("Fast"))
        return BEHIND if place == BEFORE and settings.get("legacy_behaviour") else place

    def _language(self, name: str, options: Options) -> int:
        """Return the id of the language that an option names."""
        code = options[name] or _settings(self.processor).get(name)
        if code is None:
            raise InputRefused(
                f"{self.name}: the checkpoint translates between several languages; pass src_lang "
                "and tgt_lang, by the codes of its tokenizer"
            )
        found = (self.processor.token_id(token) for token in (code, f"__{code}__"))
        number = next((one for one in found if one is not None), None)
        if number is None:
            raise InputRefused(
                f"{name} is {shown(code)}, which the tokenizer has no token for; pass a code of "
                "its own, as in 'en_XX', 'eng_Latn' or 'en'"
            )
        return number


def _settings(processor: Any) -> Mapping[str, Any]:
    """Return the tokenizer's settings, empty where it has none."""
    data = processor.files.get("tokenizer_config.json")
    return json.loads(data) if data else {}

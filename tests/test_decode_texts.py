"""Texts fit a schema or a pattern, come piece by piece, and do not wait for a compiler."""

from __future__ import annotations

import json
import re
import warnings

import jax
import pytest
from helpers import write_llama

import dew
from dew.errors import InputRefused

pytestmark = pytest.mark.torch
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "count": {"enum": [1, 2]}},
    "required": ["name", "count"],
    "additionalProperties": False,
    # A model of random weights would write blanks for ever where it may.
    "x-guidance": {"whitespace_flexible": False},
}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = write_llama(tmp_path_factory.mktemp("writer") / "llama", max_position_embeddings=640)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dew.pipeline(str(folder), "text-generation", do_sample=True, return_full_text=False)


def text_of(task, prompt="When", **options) -> str:
    return task(prompt, max_new_tokens=60, **options)[0]["generated_text"]


def test_a_schemas_texts_are_json_that_fits_it(task):
    # The right texts are those that Python's json reads as the schema says.
    for seed in range(2):
        made = json.loads(text_of(task, json_schema=SCHEMA, seed=seed))
        assert set(made) == {"name", "count"}
        assert made["count"] in (1, 2)
        assert len(made["name"]) <= 6
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    same = text_of(task, response_format=asked, seed=1)
    assert same == text_of(task, json_schema=json.dumps(SCHEMA), seed=1)


def test_a_patterns_texts_match_it_in_every_row(task):
    pattern = r"(red|green) [0-9]{3}"
    made = task(["When", "So foul"], max_new_tokens=30, regex=pattern, num_return_sequences=3)
    texts = [row["generated_text"] for rows in made for row in rows]
    assert len(texts) == 6
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert len(set(texts)) > 1


def test_what_cannot_be_fitted_is_refused(task):
    for options, message in (
        ({"regex": "("}, "the pattern"),
        ({"json_schema": "{"}, "the schema"),
        ({"json_schema": {"type": "what"}}, "the schema"),
        ({"regex": "a", "json_schema": SCHEMA}, "leave out all but one"),
        ({"regex": "a", "eos_token_id": None}, "pass eos_token_id"),
        ({"response_format": {"type": "xml"}}, "response_format"),
    ):
        with pytest.raises(InputRefused, match=message):
            task("When", max_new_tokens=60, **options)


def test_streamed_pieces_are_the_calls_text(task):
    whole = text_of(task, seed=7)
    pieces = task.stream("When", max_new_tokens=60, seed=7)
    first = next(pieces)
    assert whole.startswith(first)
    assert len(first) < len(whole)
    assert first + "".join(pieces) == whole
    with pytest.raises(InputRefused, match="stream takes one prompt"):
        task.stream(["When", "So"])


def test_a_seed_a_prompt_does_not_depend_on_the_batch(task):
    prompts = ["When", "So foul and fair", "Fair is"]
    together = task(prompts, max_new_tokens=12, seeds=[5, 6, 7])
    parted = task(prompts, max_new_tokens=12, seeds=[5, 6, 7], batch_size=2)
    alone = [task(p, max_new_tokens=12, seed=s) for p, s in zip(prompts, (5, 6, 7), strict=True)]
    assert together == parted == alone


@pytest.mark.slow
def test_after_a_warm_up_no_length_compiles(task):
    options = {"max_new_tokens": 24, "top_p": 0.9}
    task.warm_up(500, **options)
    found: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for count in (1, 9, 40, 120):
            task("When " * count, **options)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not [name for name in found if name.endswith("backend_compile_duration")]

"""`pipeline`: from a source to the task that runs it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.compile_cache import keep_compiled
from dew.registry import Registry

SOURCES = "dew.sources"
LOADING = ("revision", "dtype", "param_dtype", "strict", "traced", "mesh", "layout")
UNUSED = ("device", "device_map", "framework", "token", "trust_remote_code", "use_fast")
"""What transformers' `pipeline` takes and dew leaves to JAX, to the hub's variables, or to none."""

ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification"}
_PAIR = re.compile(r"translation_[A-Za-z-]+_to_[A-Za-z-]+")

_IN = "dew.inference.pipelines"
tasks = Registry(
    "task",
    {
        "text-generation": "dew.inference.text_generation:TextGeneration",
        "automatic-speech-recognition": f"{_IN}.speech_recognition:SpeechRecognition",
        "feature-extraction": f"{_IN}.feature_extraction:FeatureExtraction",
        "fill-mask": f"{_IN}.fill_mask:FillMask",
        "image-classification": f"{_IN}.image_classification:ImageClassification",
        "image-feature-extraction": f"{_IN}.image_feature_extraction:ImageFeatureExtraction",
        "image-segmentation": f"{_IN}.image_segmentation:ImageSegmentation",
        "question-answering": f"{_IN}.question_answering:QuestionAnswering",
        "sentence-similarity": f"{_IN}.sentence_similarity:SentenceSimilarity",
        "summarization": f"{_IN}.summarization:Summarization",
        "text-classification": f"{_IN}.text_classification:TextClassification",
        "token-classification": f"{_IN}.token_classification:TokenClassification",
        "text2text-generation": f"{_IN}.text2text_generation:Text2TextGeneration",
        "translation": f"{_IN}.translation:Translation",
        "zero-shot-classification": f"{_IN}.zero_shot_classification:ZeroShotClassification",
        "zero-shot-image-classification": (
            f"{_IN}.zero_shot_image_classification:ZeroShotImageClassification"
        ),
    },
)
ARCHITECTURES = {
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "text2text-generation",
    "ForImageClassification": "image-classification",
    "ForSemanticSegmentation": "image-segmentation",
    "ForCTC": "automatic-speech-recognition",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
    "Model": "feature-extraction",
}
"""How the classes of transformers end, to the task of each; the first that fits counts."""


def pipeline(
    source: Bundle | str | os.PathLike[str] | None = None,
    task: Bundle | str | os.PathLike[str] | None = None,
    *,
    model: Bundle | str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    model_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Load the inference task for a source.

    Both orders work: `pipeline(source)`, `pipeline(source, "text-generation")` and, as in
    transformers, `pipeline("text-generation", model=source)` or `pipeline("text-generation",
    source)`.

    Args:
        source: a bundle, or what an installed `dew.sources` entry point loads: a folder, a file, a
            hub id. Where `model` is given, the task's name.
        task: the task's name; if absent, what the checkpoint's architecture does.
        model: the source.
        tokenizer: a text processor to use instead of the checkpoint's.
        model_kwargs: more options for loading.
        **options: `revision`, `dtype`, `param_dtype`, `strict`, `traced`, `mesh` and `layout` for
            loading (`dtype="auto"` is the loader's own choice); the rest are the task's defaults,
            as `batch_size`. Those of transformers that JAX decides, as `device`, have no effect.

    Returns:
        The task: call it with its inputs.

    Raises:
        UnknownName: no such task; the message offers the nearest.
        InputRefused: no model was named, it cannot be loaded, or it is not fit for the task.
    """
    source, named = _in_order(source, task, model)
    name, more = _known(named)
    kind = None if name is None else tasks[name]
    options = {key: value for key, value in options.items() if key not in UNUSED}
    if "torch_dtype" in options:
        # What transformers 4 called it.
        options["dtype"] = str(options.pop("torch_dtype")).removeprefix("torch.")
    if not isinstance(source, Bundle):
        loading = {key: options.pop(key) for key in LOADING if key in options}
        loading |= model_kwargs or {}
        if loading.get("dtype") == "auto":
            del loading["dtype"]
        loads = getattr(kind, "loads", None)
        if loads is not None:
            loading.setdefault("task", loads)
        keep_compiled()
        source = _loader()(source, **loading)
    if name is None:
        name = _own_task(source)
        kind = tasks[name]
    _check_fit(source, name, kind)
    if tokenizer is not None:
        source = source.replace(processor=tokenizer)
    return kind(source, **{**more, **options})  # pyright: ignore[reportOptionalCall]


def fit_names(bundle: Bundle) -> tuple[str, ...]:
    """Return the tasks that a model is fit for: its own, or else those of its architecture."""
    return tuple(bundle.tasks) or by_architecture(bundle.config)


def by_architecture(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tasks of the classes that a config names."""
    found = []
    for architecture in config.get("architectures") or ():
        task = next((t for end, t in ARCHITECTURES.items() if str(architecture).endswith(end)), "")
        if task and task not in found:
            found.append(task)
    return tuple(found)


def _in_order(source: Any, task: Any, model: Any) -> tuple[Any, Any]:
    """Return the source and the task's name or None, whichever way they were given."""
    if model is None and isinstance(source, str) and _is_task(source):
        # transformers' order: the task, then the model.
        if task is None:
            raise InputRefused(
                f"pipeline: the task {shown(source)} needs a model; pass model= a folder, a file, "
                "a hub id or a bundle"
            )
        return task, source
    if model is not None:
        if source is not None and task is not None:
            raise InputRefused("pipeline: a source, a task and a model were given; leave out one")
        return model, task if source is None else source
    if source is None:
        raise InputRefused("pipeline: no model was named; pass a folder, a file or a hub id")
    return source, task


def _is_task(name: str) -> bool:
    return name in tasks or name in ALIASES or _PAIR.fullmatch(name) is not None


def _known(named: Any) -> tuple[str | None, dict[str, Any]]:
    """Return a task's own name and what another name of it says besides."""
    if named is None:
        return None, {}
    name = str(named)
    if _PAIR.fullmatch(name) is not None:
        return "translation", {"task": name}
    return ALIASES.get(name, name), {}


def _own_task(bundle: Bundle) -> str:
    """Return the task that a model is made for."""
    fit = fit_names(bundle)
    if fit[:1] == ("feature-extraction",) and getattr(bundle.model, "sentence", None) is not None:
        return "sentence-similarity"
    name = next((name for name in fit if name in tasks), None)
    if name is None:
        raise InputRefused(
            f"pipeline: {_what(bundle)} does not say which task it is for; name one of "
            f"{', '.join(tasks)}, or call the bundle itself for the model's outputs"
        )
    return name


def _check_fit(bundle: Bundle, task: str, kind: Any) -> None:
    own = fit_names(bundle)
    if set(getattr(kind, "fits", ()) or (task,)) & set(own):
        return
    fit = [name for name in tasks if set(getattr(tasks[name], "fits", ()) or (name,)) & set(own)]
    named = ", ".join(fit) or f"none of the tasks that there are ({', '.join(tasks)})"
    raise InputRefused(
        f"pipeline: {_what(bundle)} does not do {task}; it is fit for {named}. Call the bundle "
        "itself for the model's outputs"
    )


def _what(bundle: Bundle) -> str:
    what = ", ".join(map(shown, bundle.config.get("architectures") or ())) or "the model"
    return f"{what} ({bundle.family})" if bundle.family else what


def _loader() -> Callable[..., Bundle]:
    found = sorted(entry_points(group=SOURCES), key=lambda entry: entry.name)
    if not found:
        raise InputRefused(
            f"pipeline: nothing installed offers to load a source (entry point group {SOURCES}); "
            "pass a bundle, or install the distribution with its bridges package"
        )
    return found[0].load()

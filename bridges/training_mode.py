"""What torch's `train()` changes: dropout as a checkpoint's config says, and batch norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from dew.cli.command import Settings
from dew.errors import InputRefused, shown
from dew.nn.dropout import NO_DROPOUT, Dropout


def as_trained(bundle: Any, settings: Settings, *, drops: bool) -> Any:
    """Return a bundle as the settings of a run have it trained.

    Args:
        bundle: native or traced, with or without values.
        settings: of `dew finetune`: `dropout`, `batch_norm` and `use_peft`.
        drops: whether the task draws dropout.

    Raises:
        InputRefused: settings that do not fit the model or each other.
    """
    if not drops and settings["dropout"]:
        raise InputRefused(
            "dropout: this task compares the model with what it was, of which a draw would be a "
            "part; leave it out"
        )
    found = with_dropout(bundle, settings["dropout"]) if drops else bundle
    if settings["batch_norm"] == "fixed":
        return found
    if settings["use_peft"]:
        raise InputRefused("batch_norm: beside an adapter the base stays as it is; leave it out")
    return with_batch_statistics(found)


def with_dropout(bundle: Any, rate: float | None = None) -> Any:
    """Return a bundle whose model zeroes values where it is trained; elsewhere it computes as ever.

    Args:
        bundle: native or traced. A traced model draws what its config says by itself.
        rate: of every place that the family knows, from 0 to below 1; None for what the config
            says, or where it says nothing, what transformers takes.

    Raises:
        InputRefused: a rate for a model that has no such places; a config whose rate is none.
    """
    if rate is None:
        return _as_configured(bundle)
    if bundle.family not in RATES or not hasattr(bundle.model, "dropout"):
        if rate == 0 and not _draws(bundle):
            return bundle
        raise InputRefused(
            f"dropout: {bundle.family} has no place for a rate of its own here; leave --dropout "
            "out. A traced model takes the rates of its config.json"
        )
    return _dropping(bundle, RATES[bundle.family](lambda key, default: rate, _head(bundle)))


def _draws(bundle: Any) -> bool:
    """Say whether the model draws dropout without being told to.

    One that torch traced does, unless it is taught to write on: see `TracedText`.
    """
    from bridges.torch.checkpoint import TracedBundle

    if not isinstance(bundle, TracedBundle):
        return False
    return not bundle.stored["generates"] or bool(bundle.config.get("is_encoder_decoder"))


def _as_configured(bundle: Any) -> Any:
    if bundle.family not in RATES or not hasattr(bundle.model, "dropout"):
        return bundle

    def configured(key: str, default: float | None) -> float | None:
        value = bundle.config.get(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise InputRefused(
                f"config.json: {key} is {shown(value)}; expected from 0 to below 1. Give --dropout"
            )
        return float(value)

    return _dropping(bundle, RATES[bundle.family](configured, _head(bundle)))


def _head(bundle: Any) -> str:
    return getattr(bundle.model, "head", "")


def _dropping(bundle: Any, rates: Dropout) -> Any:
    if rates == NO_DROPOUT:
        return bundle
    return bundle.replace(model=bundle.model.clone(dropout=rates))


Read = Callable[[str, float | None], Any]
"""`read(key, default)` gives a rate of the config."""


LABELS = ("sequence", "token")
"""The heads of an encoder whose last map gives labels."""


def _bert(read: Read, head: str, *, both: bool = False) -> Dropout:
    """BERT's; `both`: a head of texts drops what it is given too, as RoBERTa's does."""
    hidden = read("hidden_dropout_prob", 0.1)
    classifier = read("classifier_dropout", None)
    classifier = hidden if classifier is None else classifier
    return Dropout(
        embedding=hidden,
        attention=read("attention_probs_dropout_prob", 0.1),
        attention_out=hidden,
        mlp_out=hidden,
        head_in=classifier if both and head == "sequence" else 0.0,
        head_out=classifier if head in LABELS else 0.0,
    )


def _roberta(read: Read, head: str) -> Dropout:
    return _bert(read, head, both=True)


def _mpnet(read: Read, head: str) -> Dropout:
    """RoBERTa's, without a rate of the classifier's own."""
    return _roberta(
        lambda key, rate: None if key == "classifier_dropout" else read(key, rate), head
    )


def _deberta(read: Read, head: str) -> Dropout:
    hidden = read("hidden_dropout_prob", 0.1)
    classifier = read("cls_dropout", None)
    texts = {
        "head_in": read("pooler_dropout", 0.0),
        "head_out": hidden if classifier is None else classifier,
    }
    heads = {"sequence": texts, "token": {"head_out": hidden}}
    return Dropout(
        embedding=hidden,
        attention=read("attention_probs_dropout_prob", 0.1),
        attention_out=hidden,
        mlp_out=hidden,
        **heads.get(head, {}),
    )


def _distilbert(read: Read, head: str) -> Dropout:
    hidden = read("dropout", 0.1)
    heads = {
        "sequence": read("seq_classif_dropout", 0.2),
        "token": hidden,
        "span": read("qa_dropout", 0.1),
    }
    return Dropout(
        embedding=hidden,
        attention=read("attention_dropout", 0.1),
        mlp_out=hidden,
        head_out=heads.get(head, 0.0),
    )


def _modernbert(read: Read, head: str) -> Dropout:
    attention = read("attention_dropout", 0.0)
    return Dropout(
        embedding=read("embedding_dropout", 0.0),
        attention=attention,
        attention_out=attention,
        mlp_inner=read("mlp_dropout", 0.0),
        head_out=read("classifier_dropout", 0.0) if head in LABELS else 0.0,
    )


def _gpt2(read: Read, head: str) -> Dropout:
    branch = read("resid_pdrop", 0.1)
    return Dropout(
        embedding=read("embd_pdrop", 0.1),
        attention=read("attn_pdrop", 0.1),
        attention_out=branch,
        mlp_out=branch,
    )


def _gpt_neox(read: Read, head: str) -> Dropout:
    hidden = read("hidden_dropout", 0.0)
    attention = read("attention_dropout", 0.0)
    return Dropout(embedding=hidden, attention=attention, attention_out=hidden, mlp_out=hidden)


def _opt(read: Read, head: str) -> Dropout:
    branch = read("dropout", 0.1)
    attention = read("attention_dropout", 0.0)
    return Dropout(attention=attention, attention_out=branch, mlp_out=branch)


def _phi3(read: Read, head: str) -> Dropout:
    branch = read("resid_pdrop", 0.0)
    attention = read("attention_dropout", 0.0)
    return Dropout(attention=attention, attention_out=branch, mlp_out=branch)


def _t5(read: Read, head: str) -> Dropout:
    rate = read("dropout_rate", 0.1)
    return Dropout(
        embedding=rate,
        attention=rate,
        attention_out=rate,
        mlp_inner=rate,
        mlp_out=rate,
        final=rate,
    )


def _bart(read: Read, head: str) -> Dropout:
    branch = read("dropout", 0.1)
    return Dropout(
        embedding=branch,
        attention=read("attention_dropout", 0.0),
        attention_out=branch,
        mlp_inner=read("activation_dropout", 0.0),
        mlp_out=branch,
    )


def _llama(read: Read, head: str) -> Dropout:
    return Dropout(attention=read("attention_dropout", 0.0))


RATES: dict[str, Callable[[Read, str], Dropout]] = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "electra": _roberta,
    "mpnet": _mpnet,
    "deberta-v2": _deberta,
    "distilbert": _distilbert,
    "modernbert": _modernbert,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "phi3": _phi3,
    "t5": _t5,
    "bart": _bart,
    "marian": _bart,
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"), _llama),
    **dict.fromkeys(("gemma", "gemma3_text", "olmo2", "smollm3", "granite"), _llama),
}
"""Model type to what reads its rates: `rates(read, head)`, the defaults being transformers'."""


MOMENTA = {"resnet": 0.1, "mobilenet_v2": 0.997}
"""Model type to the share of a batch's statistics in the next running ones, in transformers."""


def with_batch_statistics(bundle: Any) -> Any:
    """Return a bundle whose batch norms take each batch's own statistics where it is trained.

    Args:
        bundle: native or traced. A traced model does so by itself.

    Raises:
        InputRefused: a native model without batch norms.
    """
    if _draws(bundle):
        return bundle
    if bundle.family not in MOMENTA:
        raise InputRefused(
            f"batch_norm: {bundle.family} has no batch norms that can follow; leave it out"
        )
    return bundle.replace(model=bundle.model.clone(follow=MOMENTA[bundle.family]))


def dropout_lines(bundle: Any) -> list[str]:
    """Return what is to be told of dropout before the first step, a line each.

    Args:
        bundle: as it is trained.
    """
    rates = {
        place: rate
        for place, rate in asdict(getattr(bundle.model, "dropout", NO_DROPOUT)).items()
        if rate
    }
    if rates:
        told = ", ".join(f"{place} {rate:g}" for place, rate in rates.items())
        return [f"dropout: {told}; --dropout 0 trains without"]
    if _draws(bundle) or (bundle.family in RATES and hasattr(bundle.model, "dropout")):
        return []
    return [
        f"dropout: {key} {value:g} of the config is not drawn: dew has no dropout in "
        f"{bundle.family}'s layers"
        for key, value in bundle.config.items()
        if "drop" in key and isinstance(value, int | float) and value > 0
    ]

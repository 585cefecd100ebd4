"""Small real checkpoints, a tokenizer and text files, for tests of any package."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

SENTENCES = (
    "When shall we three meet again, in thunder, lightning, or in rain?",
    "When the hurlyburly's done, when the battle's lost and won.",
    "Fair is foul, and foul is fair: hover through the fog and filthy air.",
    "So foul and fair a day I have not seen.",
    "Tomorrow, and tomorrow, and tomorrow, creeps in this petty pace from day to day.",
)
TINY_VOCABULARY = 320
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def write_lines(path: Path, texts: Iterable[str], field: str = "text") -> Path:
    """Write texts as JSON lines and return the path."""
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
    return path


def write_tokenizer(folder: Path, vocab_size: int = TINY_VOCABULARY) -> None:
    """Train a byte-level BPE tokenizer on `SENTENCES` and write its Hugging Face files."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 64,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def llama_config(**changes: Any) -> dict[str, Any]:
    """Return config.json of a two-layer llama with grouped heads."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": TINY_VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }
    return config | changes


def llama_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Return seeded float32 tensors of `config` by their Hugging Face names."""
    generator = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width)
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": (queries, width),
            f"{prefix}self_attn.k_proj.weight": (keys, width),
            f"{prefix}self_attn.v_proj.weight": (keys, width),
            f"{prefix}self_attn.o_proj.weight": (width, queries),
            f"{prefix}mlp.gate_proj.weight": (inner, width),
            f"{prefix}mlp.up_proj.weight": (inner, width),
            f"{prefix}mlp.down_proj.weight": (width, inner),
            f"{prefix}input_layernorm.weight": (width,),
            f"{prefix}post_attention_layernorm.weight": (width,),
        }
    shapes["model.norm.weight"] = (width,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return {
        name: generator.normal(1.0 if "norm" in name else 0.0, 0.1, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    """Write config.json and model.safetensors into `folder` and return it."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def write_tensors(folder: Path, tensors: dict[str, np.ndarray], **changes: Any) -> Path:
    """Write a tiny llama of the given tensors, without a tokenizer, and return the folder."""
    return write_checkpoint(folder, llama_config(**changes), tensors)


def write_llama(folder: Path, *, seed: int = 0, tokenizer: bool = True, **changes: Any) -> Path:
    """Write a whole tiny llama checkpoint into `folder` and return it."""
    config = llama_config(**changes)
    write_checkpoint(folder, config, llama_tensors(config, seed))
    if tokenizer:
        write_tokenizer(folder)
    return folder


def hf_llama(**changes: Any) -> Any:
    """Return transformers' own two-layer llama; changes are fields of its config."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes | changes))


def hf_gpt2(**changes: Any) -> Any:
    """Return transformers' own two-layer GPT-2; changes are fields of its config."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4}
    sizes |= {"n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes | changes))

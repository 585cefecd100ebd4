"""Models that packages hold in Keras's and ONNX's files, written as Hugging Face folders.

Both readers are imported when an asset is unpacked, and only the tests' environment installs them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

BREEDS = """
Chihuahua; Maltese dog; Shih-Tzu; papillon; Yorkshire terrier; West Highland white terrier;
golden retriever; Labrador retriever; Rottweiler; German shepherd; Doberman; bull mastiff;
French bulldog; Siberian husky; pug; Samoyed; Pomeranian; toy poodle; miniature poodle
"""
_NORM = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_PARTS = {"expand": "expand_1x1", "depthwise": "conv_3x3", "project": "reduce_1x1"}
_ENDS = {"Conv1": "conv_stem.first_conv", "Conv_1": "conv_1x1"}
_BLOCK = re.compile(r"(?:block_(\d+)|expanded_conv)_(expand|depthwise|project)")


def mobilenet_v2(source: Path, folder: Path) -> None:
    """Write the classifier of a Keras MobileNetV2 as a folder that transformers reads.

    Args:
        source: an .h5 file of Keras's, whose classifier has one output a name of `BREEDS`.
        folder: an empty folder.
    """
    import h5py

    found: dict[str, np.ndarray] = {}

    def keep(path: str, value: Any) -> None:
        if hasattr(value, "shape"):
            *_, layer, leaf = path.removesuffix(":0").split("/")
            name, array = _from_keras(layer, leaf, np.asarray(value))
            found[name] = array

    with h5py.File(source) as file:
        weights: Any = file["model_weights"]
        weights.visititems(keep)
    labels = [" ".join(label.split()) for label in BREEDS.split(";")]
    names = {str(index): label for index, label in enumerate(labels)}
    config = {
        "architectures": ["MobileNetV2ForImageClassification"],
        "model_type": "mobilenet_v2",
        "image_size": 160,
        "id2label": names,
        "label2id": {label: int(index) for index, label in names.items()},
    }
    processor = {
        "image_processor_type": "MobileNetV2ImageProcessor",
        "do_resize": True,
        "size": {"height": 160, "width": 160},
        "resample": 3,
        "do_center_crop": False,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    _write(folder, config, found)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2))


def _from_keras(layer: str, leaf: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Return a tensor's name and values as transformers has them."""
    if layer.startswith("dense"):
        return ("classifier.weight", array.T) if leaf == "kernel" else ("classifier.bias", array)
    bare = layer.removesuffix("_BN").removesuffix("_bn").removeprefix("bn_")
    block = _BLOCK.fullmatch(bare)
    if block is None:
        home = _ENDS[bare]
    else:
        number, part = block.groups()
        home = "conv_stem" if number is None else f"layer.{int(number) - 1}"
        home = f"{home}.{_PARTS[part]}"
    name = f"mobilenet_v2.{home}"
    if leaf in _NORM:
        return f"{name}.normalization.{_NORM[leaf]}", array
    depthwise = bare.endswith("depthwise")
    order = (2, 3, 0, 1) if depthwise else (3, 2, 0, 1)
    return f"{name}.convolution.weight", array.transpose(order)


def dinov2(source: Path, folder: Path) -> None:
    """Write the Dinov2 that an ONNX export of transformers holds as a folder that it reads.

    Args:
        source: the .onnx file; its model's tensors start with `backbone.`.
        folder: an empty folder.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(source)).graph
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found = {
        name.removeprefix("backbone."): array
        for name, array in held.items()
        if name.startswith("backbone.")
    }
    places: dict[str, np.ndarray] = {}
    for node in graph.node:
        # An export names a product's kernel by a number; the product itself keeps its place.
        kernel = next((held[n] for n in node.input if n.startswith("onnx::") and n in held), None)
        if kernel is None or not node.name.startswith("/backbone/"):
            continue
        path = node.name.removeprefix("/backbone/").split("/")
        if node.op_type == "MatMul":
            found[".".join(path[:-1]) + ".weight"] = kernel.T
        elif node.op_type in ("Concat", "Reshape"):
            places[node.op_type] = kernel
    table = np.concatenate([places["Concat"], places["Reshape"]], axis=1)
    width = table.shape[-1]
    found["embeddings.position_embeddings"] = table
    found["embeddings.mask_token"] = np.zeros((1, width), np.float32)  # an export leaves it out
    side = round((table.shape[1] - 1) ** 0.5)
    patch = found["embeddings.patch_embeddings.projection.weight"].shape[-1]
    config = {
        "architectures": ["Dinov2Model"],
        "model_type": "dinov2",
        "hidden_size": width,
        "num_hidden_layers": 1 + max(int(n.split(".")[2]) for n in found if ".layer." in n),
        "num_attention_heads": width // 64,
        "mlp_ratio": 4,
        "patch_size": patch,
        "image_size": side * patch,
    }
    _write(folder, config, found)


def _write(folder: Path, config: Mapping[str, Any], found: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    tensors = {name: np.ascontiguousarray(value, np.float32) for name, value in found.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))

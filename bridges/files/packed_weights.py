"""The arithmetic of quantised weights: fp8 blocks, AWQ's and GPTQ's packed integers to float32."""

from __future__ import annotations

import numpy as np

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, of the eight in a word, that each four bits hold, from the lowest bits up."""


def fp8_weight(weight: np.ndarray, scale: np.ndarray, block: tuple[int, int] | None) -> np.ndarray:
    """Return float32 weights of 8-bit floats and a scale for each block of them.

    Args:
        weight: [..., N, K], 8-bit floats.
        scale: [..., ceil(N / rows), ceil(K / columns)]; one number where `block` is None.
        block: rows and columns of a block; the last ones may be cut.

    Returns:
        float32 [..., N, K], each product rounded once.

    Source: DeepSeek-V3's inference/kernel.py, weight_dequant; transformers 5.24's
        Fp8Dequantize, which it equals bit for bit where blocks are whole.
    """
    values = weight.astype(np.float32)
    if block is None:
        return values * scale.astype(np.float32).reshape(())
    rows, columns = weight.shape[-2:]
    wide = np.repeat(scale.astype(np.float32), block[1], axis=-1)[..., :columns]
    for start in range(0, rows, block[0]):
        values[..., start : start + block[0], :] *= wide[..., start // block[0], :][..., None, :]
    return values


def awq_weight(packed: np.ndarray, zeros: np.ndarray, scales: np.ndarray, group: int) -> np.ndarray:
    """Return the float32 weights of AWQ's gemm layout, 4 bits.

    Args:
        packed: int32 [K, N / 8], eight outputs a word in `AWQ_ORDER`.
        zeros: int32 [G, N / 8], packed alike.
        scales: [G, N].
        group: inputs that share a row of zeros and scales.

    Returns:
        float32 [N, K]: (q - zero) * scale, exact for float16 scales.

    Source: AutoAWQ 0.2.9, awq/utils/packing_utils.py (dequantize_gemm) and
        awq/modules/linear/gemm.py (from_linear).
    """
    order = np.argsort(AWQ_ORDER)
    weight, offsets = (_unpacked(words, 4)[..., order] for words in (packed, zeros))
    weight, offsets = (part.reshape(len(part), -1) for part in (weight, offsets))
    return _scaled(weight, offsets, scales, np.arange(len(weight)) // group)


def gptq_weight(
    packed: np.ndarray,
    zeros: np.ndarray,
    scales: np.ndarray,
    groups: np.ndarray | None,
    *,
    group: int,
    bits: int,
    shifted: bool,
) -> np.ndarray:
    """Return the float32 weights of GPTQ's layout.

    Args:
        packed: int32 [K * bits / 32, N], 32 / bits inputs a word, the first in the lowest bits.
        zeros: int32 [G, N * bits / 32], outputs packed alike.
        scales: [G, N].
        groups: int32 [K], the group of each input (`g_idx`, any order with desc_act); None where
            they follow one another.
        group: inputs of a group.
        bits: 4 or 8.
        shifted: whether zeros are stored less 1, modulo 2^bits.

    Returns:
        float32 [N, K]: (q - zero) * scale, exact for float16 scales.

    Raises:
        ValueError: an input whose group does not exist.

    Source: AutoGPTQ 0.7.1, auto_gptq/nn_modules/qlinear/qlinear_cuda.py (pack and forward), and
        GPTQModel's gptq_v2, whose zeros are not shifted.
    """
    count = len(scales)
    weight = np.moveaxis(_unpacked(packed, bits), 2, 1).reshape(-1, packed.shape[1])
    offsets = _unpacked(zeros, bits).reshape(count, -1)
    if shifted:
        offsets = (offsets + 1) & ((1 << bits) - 1)
    if groups is None:
        groups = np.arange(len(weight)) // group
    elif groups.size and (groups.min() < 0 or groups.max() >= count):
        raise ValueError(
            f"g_idx holds groups from {groups.min()} to {groups.max()}, of which there are {count}"
        )
    return _scaled(weight, offsets, scales, groups)


def _unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Return the unsigned numbers of 32-bit words, lowest bits first, on a new last axis."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    numbers = words.view(np.uint32)[..., None] >> shifts
    return (numbers & np.uint32((1 << bits) - 1)).astype(np.int16)


def _scaled(
    weight: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    """Return float32 [N, K] of numbers [K, N], and zeros and scales [G, N] by group."""
    values = (weight - zeros[groups]).astype(np.float32)
    values *= scales.astype(np.float32)[groups]
    return values.T

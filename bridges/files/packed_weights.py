"""The arithmetic of quantised weights: fp8 blocks, AWQ's and GPTQ's packed integers to float32."""

from __future__ import annotations

from collections.abc import Sequence

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

    Source: AutoAWQ 0.2.7, awq/utils/packing_utils.py (dequantize_gemm) and
        awq/modules/linear/gemm.py (from_linear).
    """
    weight, offsets = (
        _unpacked(words[..., None], 4, AWQ_ORDER, axis=2).reshape(len(words), -1)
        for words in (packed, zeros)
    )
    return _scaled(weight, offsets, scales, group, None)


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

    Source: AutoGPTQ 0.7.1, auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py (pack, forward), and
        GPTQModel's gptq_v2, whose zeros are not shifted.
    """
    count, order = len(scales), range(32 // bits)
    weight = _unpacked(packed[:, None], bits, order, axis=1).reshape(-1, packed.shape[1])
    offsets = _unpacked(zeros[..., None], bits, order, axis=2).reshape(count, -1)
    if shifted:
        offsets = (offsets + 1) % (1 << bits)
    if groups is not None and groups.size and (groups.min() < 0 or groups.max() >= count):
        raise ValueError(
            f"g_idx holds groups from {groups.min()} to {groups.max()}, of which there are {count}"
        )
    return _scaled(weight, offsets, scales, group, groups)


def _unpacked(words: np.ndarray, bits: int, order: Sequence[int], axis: int) -> np.ndarray:
    """Return the unsigned numbers of 32-bit words as float32, which holds them exactly.

    Args:
        words: int32, of length 1 along `axis`.
        bits: of a number.
        order: where along `axis` each number of a word belongs, from the lowest bits up.
        axis: that the numbers of a word are spread along.
    """
    shape = list(words.shape)
    shape[axis] = len(order)
    numbers = np.empty(shape, np.float32)
    for place, target in enumerate(order):
        here = [slice(None)] * words.ndim
        here[axis] = slice(target, target + 1)
        numbers[tuple(here)] = (words.view(np.uint32) >> np.uint32(bits * place)) & np.uint32(
            (1 << bits) - 1
        )
    return numbers


def _scaled(
    weight: np.ndarray,
    zeros: np.ndarray,
    scales: np.ndarray,
    group: int,
    groups: np.ndarray | None,
) -> np.ndarray:
    """Return float32 [N, K] of numbers [K, N], which are changed in place.

    Zeros and scales are [G, N], by the group of each input: `groups` [K], or `group` in turn.
    """
    scales = scales.astype(np.float32)
    if groups is None or np.array_equal(groups, np.arange(len(weight)) // group):
        for index in range(len(scales)):
            rows = weight[index * group : (index + 1) * group]
            rows -= zeros[index]
            rows *= scales[index]
    else:
        weight -= zeros[groups]
        weight *= scales[groups]
    return weight.T

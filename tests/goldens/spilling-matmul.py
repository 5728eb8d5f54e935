"""Kernel of matmul: m = 5, n = 6, k = 7.

input: int8 [5, 7], index [m, k]
weight: int8 [7, 6], index [k, n]
bias: int32 [6], index [n]
output: int32 [5, 6], index [m, n]

Run this file to compare it with a plain computation on random inputs."""

import math

import numpy as np


def span(offset, *terms):
    """The lattice of offset + sum(a * i), each i in [start, end): its lowest index, step and number of points."""
    low = offset + sum(a * (start if a > 0 else end - 1) for a, start, end in terms)
    step = math.gcd(*(abs(a) for a, start, end in terms if end - start > 1)) or 1
    return low, step, sum(abs(a) * (end - start - 1) for a, start, end in terms) // step + 1


def clip(box, shape):
    """The part of a box inside the tensor; None if there is none."""
    clipped = []
    for (low, step, count), size in zip(box, shape):
        first, last = max(0, -(low // step)), min(count - 1, (size - 1 - low) // step)
        if last < first:
            return None
        clipped.append((low + first * step, step, last - first + 1))
    return clipped


def at(box, base=None, steps=None):
    """Slices of a box: in a whole tensor, or in a buffer whose slot 0 holds index `base` and slots lie `steps` apart."""
    base, steps = base or [0] * len(box), steps or [1] * len(box)
    return tuple(
        slice((low - b) // s, (low - b) // s + max(step // s, 1) * (count - 1) + 1, max(step // s, 1))
        for (low, step, count), b, s in zip(box, base, steps)
    )


def view(arena, offset, shape, dtype, slot_bytes):
    """A typed view of a scope's bytes at an address; each slot takes `slot_bytes`."""
    strides = [slot_bytes * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return np.ndarray(shape, dtype, arena, offset, strides)


def window(values, base, steps, index, dims):
    """values[index of the dims] as an array with one axis a dim; `dims` gives each dim's range."""
    strides, corner = dict.fromkeys(dims, 0), []
    for (offset, terms), stride, b, s in zip(index, values.strides, base, steps):
        corner.append((offset + sum(a * dims[d][0] for d, a in terms.items()) - b) // s)
        for d, a in terms.items():
            if dims[d][1] - dims[d][0] > 1:
                strides[d] += a // s * stride
    start = values[tuple(slice(c, None) for c in corner)]
    return np.lib.stride_tricks.as_strided(start, [b - a for a, b in dims.values()], list(strides.values()))

def finish(values, m, n):
    """Accumulators of a box of outputs, at these positions, to results in int32."""
    values = values.astype(np.int64)
    values = np.clip(values, -2147483648, 2147483647)
    return values.astype(np.int32)


def matmul(input, weight, bias):
    output = np.zeros((5, 6), np.int32)
    output_partial = np.zeros((5, 6), np.int32)  # partial sums
    l1_bytes = np.zeros(208, np.uint8)  # of 4096 B
    input_l1_visit = -1
    weight_l1_visit = -1
    bias_l1_visit = -1
    output_l1_visit = -1
    for m_0 in range(0, 5, 2):
        m_0_end = min(m_0 + 2, 5)
        # input in l1, below dram: [2, 7] at byte 0
        input_l1_visit += 1
        input_l1 = view(l1_bytes, 0 + input_l1_visit % 2 * 14, (2, 7), np.int8, 1)
        input_l1_box = [span(0, (1, m_0, m_0_end)), span(0, (1, 0, 7))]
        input_l1_base = [low for low, _, _ in input_l1_box]
        input_l1_inside = input_l1_box
        input_l1[at(input_l1_inside, input_l1_base, (1, 1))] = input[at(input_l1_inside)]
        for k_0 in range(0, 7, 3):
            k_0_end = min(k_0 + 3, 7)
            # weight in l1, below dram: [3, 6] at byte 28
            weight_l1_visit += 1
            weight_l1 = view(l1_bytes, 28 + weight_l1_visit % 2 * 18, (3, 6), np.int8, 1)
            weight_l1_box = [span(0, (1, k_0, k_0_end)), span(0, (1, 0, 6))]
            weight_l1_base = [low for low, _, _ in weight_l1_box]
            weight_l1_inside = weight_l1_box
            weight_l1[at(weight_l1_inside, weight_l1_base, (1, 1))] = weight[at(weight_l1_inside)]
            # bias in l1, below dram: [6] at byte 64
            bias_l1_visit += 1
            bias_l1 = view(l1_bytes, 64 + bias_l1_visit % 2 * 24, (6,), np.int32, 4)
            bias_l1_box = [span(0, (1, 0, 6))]
            bias_l1_base = [low for low, _, _ in bias_l1_box]
            if k_0 == 0:
                bias_l1_inside = bias_l1_box
                bias_l1[at(bias_l1_inside, bias_l1_base, (1,))] = bias[at(bias_l1_inside)]
            # output in l1, below dram: [2, 6] at byte 112
            output_l1_visit += 1
            output_l1 = view(l1_bytes, 112 + output_l1_visit % 2 * 48, (2, 6), np.int32, 4)
            output_l1_result = view(l1_bytes, 112 + output_l1_visit % 2 * 48, (2, 6), np.int32, 4)
            output_l1_box = [span(0, (1, m_0, m_0_end)), span(0, (1, 0, 6))]
            output_l1_base = [low for low, _, _ in output_l1_box]
            if not (k_0 == 0):
                output_l1_inside = output_l1_box  # partial sums come back
                output_l1[at(output_l1_inside, output_l1_base, (1, 1))] = output_partial[at(output_l1_inside)]
            if k_0 == 0:
                output_l1[at([span(0, (1, m_0, m_0_end)), span(0, (1, 0, 6))], output_l1_base, (1, 1))] = window(bias_l1, bias_l1_base, (1,), [(0, {'n': 1})], {'n': (0, 6)})[None, :]  # start from the bias
            for n_0 in range(0, 6, 4):
                n_0_end = min(n_0 + 4, 6)
                x0 = window(input_l1, input_l1_base, (1, 1), [(0, {'m': 1}), (0, {'k': 1})], {'m': (m_0, m_0_end), 'k': (k_0, k_0_end)}).astype(np.float64)
                x1 = window(weight_l1, weight_l1_base, (1, 1), [(0, {'k': 1}), (0, {'n': 1})], {'n': (n_0, n_0_end), 'k': (k_0, k_0_end)}).astype(np.float64)
                total = np.einsum("ac,bc->ab", x0, x1, optimize=True)
                output_l1[at([span(0, (1, m_0, m_0_end)), span(0, (1, n_0, n_0_end))], output_l1_base, (1, 1))] += total[:, :].astype(np.int32)
            if k_0_end == 7:
                box = at(output_l1_box, output_l1_base, (1, 1))
                output_l1_result[box] = finish(output_l1[box].copy(), range(m_0, m_0_end), range(0, 6))
            if k_0_end == 7:
                output[at(output_l1_box)] = output_l1_result[at(output_l1_box, output_l1_base, (1, 1))]
            else:  # partial sums go out
                output_partial[at(output_l1_box)] = output_l1[at(output_l1_box, output_l1_base, (1, 1))]
    return output


def plain(input, weight, bias):
    """The operator on whole tensors, without tiles or buffers."""
    acc = np.full((5, 6), 0, np.int32)
    acc[...] = window(bias, [0], [1], [(0, {'n': 1})], {'n': (0, 6)})[None, :]
    x0 = window(input, [0, 0], [1, 1], [(0, {'m': 1}), (0, {'k': 1})], {'m': (0, 5), 'k': (0, 7)}).astype(np.float64)
    x1 = window(weight, [0, 0], [1, 1], [(0, {'k': 1}), (0, {'n': 1})], {'n': (0, 6), 'k': (0, 7)}).astype(np.float64)
    total = np.einsum("ac,bc->ab", x0, x1, optimize=True)
    acc[...] += total[:, :].astype(np.int32)
    return finish(acc, range(5), range(6))


if __name__ == "__main__":
    random = np.random.default_rng(0)
    input = random.integers(-128, 127, (5, 7), np.int8, endpoint=True)
    weight = random.integers(-128, 127, (7, 6), np.int8, endpoint=True)
    bias = random.integers(-14450, 14450, (6,), np.int32, endpoint=True)
    expected = plain(input, weight, bias)
    actual = matmul(input, weight, bias)
    different = int((actual != expected).sum())
    print(f"{different} of {expected.size} outputs differ")
    raise SystemExit(different > 0)

"""Kernel of forum-conv2d: n = 2, k = 16, c = 16, p = 112, q = 64, r = 3, s = 3.

input: int8 [2, 16, 112, 64], index [n, c, p + r - 1, q + s - 1]
weight: int8 [16, 16, 3, 3], index [k, c, r, s]
bias: int32 [16], index [k]
output: int8 [2, 16, 112, 64], index [n, k, p, q]

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

def finish(values, n, k, p, q):
    """Accumulators of a box of outputs, at these positions, to results in int8."""
    values = values.astype(np.int64)
    values = values * 1340
    values = (values + 524288) >> 20
    values = np.maximum(values, 0)
    values = np.clip(values, -128, 127)
    return values.astype(np.int8)


def forum_conv2d(input, weight, bias):
    output = np.zeros((2, 16, 112, 64), np.int8)
    inp_buffer_bytes = np.zeros(30624, np.uint8)  # of 32768 B
    wgt_buffer_bytes = np.zeros(2304, np.uint8)  # of 262144 B
    acc_buffer_bytes = np.zeros(229440, np.uint8)  # of 262144 B
    # weight in wgt_buffer, below dram: [16, 16, 3, 3] at byte 0
    weight_wgt_buffer = view(wgt_buffer_bytes, 0, (16, 16, 3, 3), np.int8, 1)
    weight_wgt_buffer_box = [span(0, (1, 0, 16)), span(0, (1, 0, 16)), span(0, (1, 0, 3)), span(0, (1, 0, 3))]
    weight_wgt_buffer_base = [low for low, _, _ in weight_wgt_buffer_box]
    weight_wgt_buffer_inside = weight_wgt_buffer_box
    weight_wgt_buffer[at(weight_wgt_buffer_inside, weight_wgt_buffer_base, (1, 1, 1, 1))] = weight[at(weight_wgt_buffer_inside)]
    # bias in acc_buffer, below dram: [16] at byte 0
    bias_acc_buffer = view(acc_buffer_bytes, 0, (16,), np.int32, 4)
    bias_acc_buffer_box = [span(0, (1, 0, 16))]
    bias_acc_buffer_base = [low for low, _, _ in bias_acc_buffer_box]
    bias_acc_buffer_inside = bias_acc_buffer_box
    bias_acc_buffer[at(bias_acc_buffer_inside, bias_acc_buffer_base, (1,))] = bias[at(bias_acc_buffer_inside)]
    for n_0 in range(0, 2, 1):
        n_0_end = min(n_0 + 1, 2)
        for p_0 in range(0, 112, 56):
            p_0_end = min(p_0 + 56, 112)
            # output in acc_buffer, below dram: [1, 16, 56, 64] at byte 64
            output_acc_buffer = view(acc_buffer_bytes, 64, (1, 16, 56, 64), np.int32, 4)
            output_acc_buffer_result = view(acc_buffer_bytes, 64, (1, 16, 56, 64), np.int8, 4)
            output_acc_buffer_box = [span(0, (1, n_0, n_0_end)), span(0, (1, 0, 16)), span(0, (1, p_0, p_0_end)), span(0, (1, 0, 64))]
            output_acc_buffer_base = [low for low, _, _ in output_acc_buffer_box]
            output_acc_buffer[at([span(0, (1, n_0, n_0_end)), span(0, (1, 0, 16)), span(0, (1, p_0, p_0_end)), span(0, (1, 0, 64))], output_acc_buffer_base, (1, 1, 1, 1))] = window(bias_acc_buffer, bias_acc_buffer_base, (1,), [(0, {'k': 1})], {'k': (0, 16)})[None, :, None, None]  # start from the bias
            for c_0 in range(0, 16, 8):
                c_0_end = min(c_0 + 8, 16)
                # input in inp_buffer, below dram: [1, 8, 58, 66] at byte 0
                input_inp_buffer = view(inp_buffer_bytes, 0, (1, 8, 58, 66), np.int8, 1)
                input_inp_buffer_box = [span(0, (1, n_0, n_0_end)), span(0, (1, c_0, c_0_end)), span(-1, (1, p_0, p_0_end), (1, 0, 3)), span(-1, (1, 0, 64), (1, 0, 3))]
                input_inp_buffer_base = [low for low, _, _ in input_inp_buffer_box]
                input_inp_buffer_inside = clip(input_inp_buffer_box, (2, 16, 112, 64))
                input_inp_buffer[at(input_inp_buffer_box, input_inp_buffer_base, (1, 1, 1, 1))] = 0  # padding is written, never fetched
                if input_inp_buffer_inside:
                    input_inp_buffer[at(input_inp_buffer_inside, input_inp_buffer_base, (1, 1, 1, 1))] = input[at(input_inp_buffer_inside)]
                x0 = window(input_inp_buffer, input_inp_buffer_base, (1, 1, 1, 1), [(0, {'n': 1}), (0, {'c': 1}), (-1, {'p': 1, 'r': 1}), (-1, {'q': 1, 's': 1})], {'n': (n_0, n_0_end), 'c': (c_0, c_0_end), 'p': (p_0, p_0_end), 'q': (0, 64), 'r': (0, 3), 's': (0, 3)}).astype(np.float64)
                x1 = window(weight_wgt_buffer, weight_wgt_buffer_base, (1, 1, 1, 1), [(0, {'k': 1}), (0, {'c': 1}), (0, {'r': 1}), (0, {'s': 1})], {'k': (0, 16), 'c': (c_0, c_0_end), 'r': (0, 3), 's': (0, 3)}).astype(np.float64)
                total = np.einsum("acdefg,bcfg->abde", x0, x1, optimize=True)
                output_acc_buffer[at([span(0, (1, n_0, n_0_end)), span(0, (1, 0, 16)), span(0, (1, p_0, p_0_end)), span(0, (1, 0, 64))], output_acc_buffer_base, (1, 1, 1, 1))] += total[:, :, :, :].astype(np.int32)
            box = at(output_acc_buffer_box, output_acc_buffer_base, (1, 1, 1, 1))
            output_acc_buffer_result[box] = finish(output_acc_buffer[box].copy(), range(n_0, n_0_end), range(0, 16), range(p_0, p_0_end), range(0, 64))
            output[at(output_acc_buffer_box)] = output_acc_buffer_result[at(output_acc_buffer_box, output_acc_buffer_base, (1, 1, 1, 1))]
    return output


def plain(input, weight, bias):
    """The operator on whole tensors, without tiles or buffers."""
    input = np.pad(input, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=0)
    acc = np.full((2, 16, 112, 64), 0, np.int32)
    acc[...] = window(bias, [0], [1], [(0, {'k': 1})], {'k': (0, 16)})[None, :, None, None]
    x0 = window(input, [0, 0, -1, -1], [1, 1, 1, 1], [(0, {'n': 1}), (0, {'c': 1}), (-1, {'p': 1, 'r': 1}), (-1, {'q': 1, 's': 1})], {'n': (0, 2), 'c': (0, 16), 'p': (0, 112), 'q': (0, 64), 'r': (0, 3), 's': (0, 3)}).astype(np.float64)
    x1 = window(weight, [0, 0, 0, 0], [1, 1, 1, 1], [(0, {'k': 1}), (0, {'c': 1}), (0, {'r': 1}), (0, {'s': 1})], {'k': (0, 16), 'c': (0, 16), 'r': (0, 3), 's': (0, 3)}).astype(np.float64)
    total = np.einsum("acdefg,bcfg->abde", x0, x1, optimize=True)
    acc[...] += total[:, :, :, :].astype(np.int32)
    return finish(acc, range(2), range(16), range(112), range(64))


if __name__ == "__main__":
    random = np.random.default_rng(0)
    input = random.integers(-128, 127, (2, 16, 112, 64), np.int8, endpoint=True)
    weight = random.integers(-128, 127, (16, 16, 3, 3), np.int8, endpoint=True)
    bias = random.integers(-65537, 65537, (16,), np.int32, endpoint=True)
    expected = plain(input, weight, bias)
    actual = forum_conv2d(input, weight, bias)
    different = int((actual != expected).sum())
    print(f"{different} of {expected.size} outputs differ")
    raise SystemExit(different > 0)

"""forum-conv2d in TVM: the plain operator, and the schedule that tiles it and fills the scopes.

Run this file to compile both for llvm and compare them with a plain computation on random inputs."""

import numpy as np
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T


@I.ir_module
class Plain:
    @T.prim_func(s_tir=True)
    def forum_conv2d(input: T.Buffer((2, 16, 112, 64), "int8"), weight: T.Buffer((16, 16, 3, 3), "int8"), bias: T.Buffer((16,), "int32"), output_: T.Buffer((2, 16, 112, 64), "int8")):
        T.func_attr({"global_symbol": "forum_conv2d", "tirx.noalias": True})
        input_padded = T.sblock_alloc_buffer((2, 16, 114, 66), "int8")
        accumulator = T.sblock_alloc_buffer((2, 16, 112, 64), "int32")
        for i0, i1, i2, i3 in T.grid(2, 16, 114, 66):
            with T.sblock("pad_input"):
                v0, v1, v2, v3 = T.axis.remap("SSSS", [i0, i1, i2, i3])
                input_padded[v0, v1, v2, v3] = T.if_then_else(1 <= v2 and v2 < 113 and 1 <= v3 and v3 < 65, input[v0, v1, v2 - 1, v3 - 1], T.int8(0))
        for n, k, c, p, q, r, s in T.grid(2, 16, 16, 112, 64, 3, 3):
            with T.sblock("compute"):
                n_v, k_v, c_v, p_v, q_v, r_v, s_v = T.axis.remap("SSRSSRR", [n, k, c, p, q, r, s])
                T.reads(input_padded[n_v, c_v, p_v + r_v, q_v + s_v], weight[k_v, c_v, r_v, s_v], bias[k_v])
                T.writes(accumulator[n_v, k_v, p_v, q_v])
                with T.init():
                    accumulator[n_v, k_v, p_v, q_v] = bias[k_v]
                accumulator[n_v, k_v, p_v, q_v] = accumulator[n_v, k_v, p_v, q_v] + T.Cast("int32", input_padded[n_v, c_v, p_v + r_v, q_v + s_v]) * T.Cast("int32", weight[k_v, c_v, r_v, s_v])
        for n, k, p, q in T.grid(2, 16, 112, 64):
            with T.sblock("finish"):
                n_v, k_v, p_v, q_v = T.axis.remap("SSSS", [n, k, p, q])
                output_[n_v, k_v, p_v, q_v] = T.Cast("int8", T.min(T.max(T.max(T.shift_right(((T.Cast("int64", accumulator[n_v, k_v, p_v, q_v]) * T.int64(1340)) + T.int64(524288)), T.int64(20)), T.int64(0)), T.int64(-128)), T.int64(127)))


def schedule() -> tvm.s_tir.Schedule:
    """Tiles, order and scopes as planned."""
    sch = tvm.s_tir.Schedule(Plain)
    sch.work_on("forum_conv2d")
    compute = sch.get_sblock("compute")
    finish = sch.get_sblock("finish")
    n, k, c, p, q, r, s = sch.get_loops(compute)
    n_0, n = sch.split(n, [None, 1])
    p_0, p = sch.split(p, [None, 56])
    c_0, c = sch.split(c, [None, 8])
    sch.reorder(n_0, p_0, c_0, n, k, p, q, c, r, s)
    # input
    input_inp_buffer = sch.get_sblock("pad_input")
    sch.set_scope(input_inp_buffer, 0, "local.inp_buffer")
    sch.compute_at(input_inp_buffer, c_0)
    # weight
    weight_wgt_buffer = sch.cache_read(compute, 1, "local.wgt_buffer")
    # bias
    bias_acc_buffer = sch.cache_read(compute, 2, "local.acc_buffer")
    # the accumulator, and results on their way out
    sch.set_scope(compute, 0, "local.acc_buffer")
    sch.reverse_compute_at(finish, p_0)
    init = sch.decompose_reduction(compute, c_0)
    return sch


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


def main() -> None:
    """Compile both for llvm and compare them with numpy."""
    random = np.random.default_rng(0)
    input = random.integers(-128, 127, (2, 16, 112, 64), np.int8, endpoint=True)
    weight = random.integers(-128, 127, (16, 16, 3, 3), np.int8, endpoint=True)
    bias = random.integers(-65537, 65537, (16,), np.int32, endpoint=True)
    expected = plain(input, weight, bias)
    failed = False
    for name, module in (("plain", Plain), ("planned", schedule().mod)):
        output = tvm.runtime.tensor(np.zeros((2, 16, 112, 64), np.int8))
        # TVM 0.27 may give two buffers of one local scope the same place.
        with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
            kernel = tvm.compile(module, target="llvm")["forum_conv2d"]
        kernel(tvm.runtime.tensor(input), tvm.runtime.tensor(weight), tvm.runtime.tensor(bias), output)
        actual = output.numpy()
        different = int((actual != expected).sum())
        print(f"{name}: {different} of {expected.size} outputs differ")
        failed |= different > 0
    raise SystemExit(failed)


if __name__ == "__main__":
    main()

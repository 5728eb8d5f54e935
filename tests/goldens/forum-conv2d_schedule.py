"""forum-conv2d in TVM: the plain operator, and the schedule that tiles it and fills the scopes.

Run this file to compile it for llvm and compare it with the plain operator on random inputs."""

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


def main() -> None:
    """Compile both for llvm and compare."""
    random = np.random.default_rng(0)
    limits = np.iinfo(np.int8)
    input = random.integers(limits.min, limits.max, (2, 16, 112, 64), np.int8, endpoint=True)
    limits = np.iinfo(np.int8)
    weight = random.integers(limits.min, limits.max, (16, 16, 3, 3), np.int8, endpoint=True)
    limits = np.iinfo(np.int32)
    bias = random.integers(limits.min, limits.max, (16,), np.int32, endpoint=True)
    results = []
    for module in (Plain, schedule().mod):
        output = tvm.runtime.tensor(np.zeros((2, 16, 112, 64), np.int8))
        # TVM 0.27 may give two buffers of one local scope the same place.
        with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
            kernel = tvm.compile(module, target="llvm")["forum_conv2d"]
        kernel(tvm.runtime.tensor(input), tvm.runtime.tensor(weight), tvm.runtime.tensor(bias), output)
        results.append(output.numpy())
    plain, planned = results
    different = int((planned != plain).sum())
    print(f"{different} of {plain.size} outputs differ")
    raise SystemExit(different > 0)


if __name__ == "__main__":
    main()

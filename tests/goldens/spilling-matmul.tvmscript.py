# from tvm.script import ir as I
# from tvm.script import tirx as T
#
# matmul: m = 5, n = 6, k = 7
# input: index [m, k]
# weight: index [k, n]
# bias: index [n]
# output: index [m, n]
# m_0, m_1, ... are positions of dim m, tile by tile; m_in counts points within a tile.
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def matmul(input: T.Buffer((5, 7), 'int8'), weight: T.Buffer((7, 6), 'int8'), bias: T.Buffer((6,), 'int32'), output: T.Buffer((5, 6), 'int32')):
        T.func_attr({"global_symbol": "matmul", "tirx.noalias": True})
        l1 = T.alloc_buffer((208,), "uint8", scope="local.l1")  # of 4096 B
        input_l1 = T.decl_buffer((2, 7), "int8", data=l1.data, elem_offset=0, scope="local.l1")
        weight_l1 = T.decl_buffer((3, 6), "int8", data=l1.data, elem_offset=28, scope="local.l1")
        bias_l1 = T.decl_buffer((6,), "int32", data=l1.data, elem_offset=16, scope="local.l1")
        output_l1 = T.decl_buffer((2, 6), "int32", data=l1.data, elem_offset=28, scope="local.l1")
        output_partial = T.alloc_buffer((5, 6), "int32")  # partial sums on their way
        for m_0_number in range(3):
            m_0: T.let[T.int32] = m_0_number * 2
            m_0_end: T.let[T.int32] = T.min(m_0 + 2, 5)
            # input in l1, below dram: [2, 7] at byte 0
            with T.sblock("load_input_l1"):
                for i0, i1 in T.grid(m_0_end - m_0, 7):
                    input_l1[i0, i1] = input[m_0 + i0, i1]
            for k_0_number in range(3):
                k_0: T.let[T.int32] = k_0_number * 3
                k_0_end: T.let[T.int32] = T.min(k_0 + 3, 7)
                # weight in l1, below dram: [3, 6] at byte 28
                with T.sblock("load_weight_l1"):
                    for i0, i1 in T.grid(k_0_end - k_0, 6):
                        weight_l1[i0, i1] = weight[k_0 + i0, i1]
                # bias in l1, below dram: [6] at byte 64
                if k_0 == 0:
                    with T.sblock("load_bias_l1"):
                        for i0 in range(6):
                            bias_l1[i0] = bias[i0]
                # output in l1, below dram: [2, 6] at byte 112
                if k_0 != 0:
                    with T.sblock("load_output_l1"):
                        for i0, i1 in T.grid(m_0_end - m_0, 6):
                            output_l1[i0, i1] = output_partial[m_0 + i0, i1]
                if k_0 == 0:
                    for m_in, n_in in T.grid(m_0_end - m_0, 6):
                        with T.sblock("init_output_l1"):
                            output_l1[m_in, n_in] = bias_l1[n_in]
                for n_0_number in range(2):
                    n_0: T.let[T.int32] = n_0_number * 4
                    n_0_end: T.let[T.int32] = T.min(n_0 + 4, 6)
                    for m_in, n_in, k_in in T.grid(m_0_end - m_0, n_0_end - n_0, k_0_end - k_0):
                        with T.sblock("compute"):
                            output_l1[m_in, n_0 + n_in] = output_l1[m_in, n_0 + n_in] + (T.Cast("int32", input_l1[m_in, k_0 + k_in]) * T.Cast("int32", weight_l1[k_in, n_0 + n_in]))
                if k_0_end == 7:
                    with T.sblock("store_output_l1"):
                        for i0, i1 in T.grid(m_0_end - m_0, 6):
                            output[m_0 + i0, i1] = output_l1[i0, i1]
                else:
                    with T.sblock("store_output_l1"):
                        for i0, i1 in T.grid(m_0_end - m_0, 6):
                            output_partial[m_0 + i0, i1] = output_l1[i0, i1]

# from tvm.script import ir as I
# from tvm.script import tirx as T
#
# forum-conv2d: n = 2, k = 16, c = 16, p = 112, q = 64, r = 3, s = 3
# input: index [n, c, p + r - 1, q + s - 1]
# weight: index [k, c, r, s]
# bias: index [k]
# output: index [n, k, p, q]
# m_0, m_1, ... are positions of dim m, tile by tile; m_in counts points within a tile.
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def forum_conv2d(input: T.Buffer((2, 16, 112, 64), 'int8'), weight: T.Buffer((16, 16, 3, 3), 'int8'), bias: T.Buffer((16,), 'int32'), output: T.Buffer((2, 16, 112, 64), 'int8')):
        T.func_attr({"global_symbol": "forum_conv2d", "tirx.noalias": True})
        inp_buffer = T.alloc_buffer((30624,), "uint8", scope="local.inp_buffer")  # of 32768 B
        wgt_buffer = T.alloc_buffer((2304,), "uint8", scope="local.wgt_buffer")  # of 262144 B
        acc_buffer = T.alloc_buffer((229440,), "uint8", scope="local.acc_buffer")  # of 262144 B
        weight_wgt_buffer = T.decl_buffer((16, 16, 3, 3), "int8", data=wgt_buffer.data, elem_offset=0, scope="local.wgt_buffer")
        bias_acc_buffer = T.decl_buffer((16,), "int32", data=acc_buffer.data, elem_offset=0, scope="local.acc_buffer")
        output_acc_buffer = T.decl_buffer((1, 16, 56, 64), "int32", data=acc_buffer.data, elem_offset=16, scope="local.acc_buffer")
        input_inp_buffer = T.decl_buffer((1, 8, 58, 66), "int8", data=inp_buffer.data, elem_offset=0, scope="local.inp_buffer")
        # weight in wgt_buffer, below dram: [16, 16, 3, 3] at byte 0
        with T.sblock("load_weight_wgt_buffer"):
            for i0, i1, i2, i3 in T.grid(16, 16, 3, 3):
                weight_wgt_buffer[i0, i1, i2, i3] = weight[i0, i1, i2, i3]
        # bias in acc_buffer, below dram: [16] at byte 0
        with T.sblock("load_bias_acc_buffer"):
            for i0 in range(16):
                bias_acc_buffer[i0] = bias[i0]
        for n_0 in range(2):
            for p_0_number in range(2):
                p_0: T.let[T.int32] = p_0_number * 56
                # output in acc_buffer, below dram: [1, 16, 56, 64] at byte 64
                for k_in, p_in, q_in in T.grid(16, 56, 64):
                    with T.sblock("init_output_acc_buffer"):
                        output_acc_buffer[0, k_in, p_in, q_in] = bias_acc_buffer[k_in]
                for c_0_number in range(2):
                    c_0: T.let[T.int32] = c_0_number * 8
                    # input in inp_buffer, below dram: [1, 8, 58, 66] at byte 0
                    input_inp_buffer_first_2: T.let[T.int32] = T.max(-p_0 + 1, 0)
                    input_inp_buffer_count_2: T.let[T.int32] = T.min(58, T.max(-p_0 + 113, 0)) - input_inp_buffer_first_2
                    with T.sblock("pad_input_inp_buffer"):
                        for i1, i2, i3 in T.grid(8, 58, 66):
                            input_inp_buffer[0, i1, i2, i3] = T.int8(0)
                    if 0 < input_inp_buffer_count_2:
                        with T.sblock("load_input_inp_buffer"):
                            for i1, i2, i3 in T.grid(8, input_inp_buffer_count_2, 64):
                                input_inp_buffer[0, i1, input_inp_buffer_first_2 + i2, i3 + 1] = input[n_0, c_0 + i1, p_0 + input_inp_buffer_first_2 + i2 - 1, i3]
                    for k_in, p_in, q_in, c_in, r_in, s_in in T.grid(16, 56, 64, 8, 3, 3):
                        with T.sblock("compute"):
                            output_acc_buffer[0, k_in, p_in, q_in] = output_acc_buffer[0, k_in, p_in, q_in] + (T.Cast("int32", input_inp_buffer[0, c_in, p_in + r_in, q_in + s_in]) * T.Cast("int32", weight_wgt_buffer[k_in, c_0 + c_in, r_in, s_in]))
                for k_in, p_in, q_in in T.grid(16, 56, 64):
                    total: T.let[T.int64] = T.Cast("int64", output_acc_buffer[0, k_in, p_in, q_in])
                    scaled: T.let[T.int64] = (total * T.int64(1340))
                    shifted: T.let[T.int64] = T.shift_right((scaled + T.int64(524288)), T.int64(20))
                    positive: T.let[T.int64] = T.max(shifted, T.int64(0))
                    raised: T.let[T.int64] = T.max(positive, T.int64(-128))
                    saturated: T.let[T.int64] = T.min(raised, T.int64(127))
                    with T.sblock("finish_output_acc_buffer"):
                        output_acc_buffer[0, k_in, p_in, q_in] = T.Cast("int32", T.Cast("int8", saturated))
                with T.sblock("store_output_acc_buffer"):
                    for i1, i2, i3 in T.grid(16, 56, 64):
                        output[n_0, i1, p_0 + i2, i3] = T.Cast("int8", output_acc_buffer[0, i1, i2, i3])

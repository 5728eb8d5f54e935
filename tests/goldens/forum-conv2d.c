/*
 * forum-conv2d: n = 2, k = 16, c = 16, p = 112, q = 64, r = 3, s = 3
 *
 * input: int8 [2, 16, 112, 64], index [n, c, p + r - 1, q + s - 1]
 * weight: int8 [16, 16, 3, 3], index [k, c, r, s]
 * bias: int32 [16], index [k]
 * output: int8 [2, 16, 112, 64], index [n, k, p, q]
 *
 * m_0, m_1, ... are positions of dim m, tile by tile; m_in counts points within a tile.
 */
#include "forum_conv2d.h"

#include <stddef.h>
#include <string.h>

#include "planner_dma.h"

/* inp_buffer: 30624 of 32768 B. */
PLANNER_SCOPE(inp_buffer) PLANNER_ALIGN(64)
static unsigned char inp_buffer[30624];
/* wgt_buffer: 2304 of 262144 B. */
PLANNER_SCOPE(wgt_buffer) PLANNER_ALIGN(64)
static unsigned char wgt_buffer[2304];
/* acc_buffer: 229440 of 262144 B. */
PLANNER_SCOPE(acc_buffer) PLANNER_ALIGN(64)
static unsigned char acc_buffer[229440];

void forum_conv2d(const int8_t *restrict input, const int8_t *restrict weight, const int32_t *restrict bias, int8_t *restrict output)
{
    int8_t *const weight_wgt_buffer = (int8_t *)(void *)(wgt_buffer + 0);
    int32_t *const bias_acc_buffer = (int32_t *)(void *)(acc_buffer + 0);
    int32_t *const output_acc_buffer = (int32_t *)(void *)(acc_buffer + 64);
    int8_t *const input_inp_buffer = (int8_t *)(void *)(inp_buffer + 0);

    /* weight in wgt_buffer, below dram: [16, 16, 3, 3] at byte 0 */
    planner_dma_2d_start(FORUM_CONV2D_LOAD_WEIGHT_WGT_BUFFER,
                         weight_wgt_buffer, 0, 1,
                         weight, 0, 1,
                         1, 2304, 1);
    planner_dma_wait(FORUM_CONV2D_LOAD_WEIGHT_WGT_BUFFER);
    /* bias in acc_buffer, below dram: [16] at byte 0 */
    planner_dma_2d_start(FORUM_CONV2D_LOAD_BIAS_ACC_BUFFER,
                         bias_acc_buffer, 0, 4,
                         bias, 0, 4,
                         1, 16, 4);
    planner_dma_wait(FORUM_CONV2D_LOAD_BIAS_ACC_BUFFER);
    for (ptrdiff_t n_0 = 0; n_0 < 2; ++n_0) {
        for (ptrdiff_t p_0 = 0; p_0 < 112; p_0 += 56) {
            /* output in acc_buffer, below dram: [1, 16, 56, 64] at byte 64 */
            for (ptrdiff_t k_in = 0; k_in < 16; ++k_in) {
                for (ptrdiff_t p_in = 0; p_in < 56; ++p_in) {
                    for (ptrdiff_t q_in = 0; q_in < 64; ++q_in) {
                        output_acc_buffer[3584 * k_in + 64 * p_in + q_in] = bias_acc_buffer[k_in];
                    }
                }
            }
            for (ptrdiff_t c_0 = 0; c_0 < 16; c_0 += 8) {
                /* input in inp_buffer, below dram: [1, 8, 58, 66] at byte 0 */
                const ptrdiff_t input_inp_buffer_first_2 = planner_max(1 - p_0, 0);
                const ptrdiff_t input_inp_buffer_count_2 = planner_min(58, planner_max(113 - p_0, 0)) - input_inp_buffer_first_2;
                for (ptrdiff_t i1 = 0; i1 < 8; ++i1) {
                    for (ptrdiff_t i2 = 0; i2 < 58; ++i2) {
                        for (ptrdiff_t i3 = 0; i3 < 66; ++i3) {
                            input_inp_buffer[i1 * 3828 + i2 * 66 + i3] = 0;
                        }
                    }
                }
                if (0 < input_inp_buffer_count_2) {
                    for (ptrdiff_t i0 = 0; i0 < 8; ++i0) {
                        planner_dma_2d_start(FORUM_CONV2D_LOAD_INPUT_INP_BUFFER,
                                             input_inp_buffer + 66 * input_inp_buffer_first_2 + 1 + i0 * 3828, 66, 1,
                                             input + 114688 * n_0 + 7168 * c_0 + 64 * p_0 + 64 * input_inp_buffer_first_2 - 64 + i0 * 7168, 64, 1,
                                             input_inp_buffer_count_2, 64, 1);
                    }
                }
                planner_dma_wait(FORUM_CONV2D_LOAD_INPUT_INP_BUFFER);
                for (ptrdiff_t k_in = 0; k_in < 16; ++k_in) {
                    for (ptrdiff_t p_in = 0; p_in < 56; ++p_in) {
                        for (ptrdiff_t q_in = 0; q_in < 64; ++q_in) {
                            uint32_t sum = (uint32_t)output_acc_buffer[3584 * k_in + 64 * p_in + q_in];
                            for (ptrdiff_t c_in = 0; c_in < 8; ++c_in) {
                                for (ptrdiff_t r_in = 0; r_in < 3; ++r_in) {
                                    for (ptrdiff_t s_in = 0; s_in < 3; ++s_in) {
                                        sum += (uint32_t)((int32_t)input_inp_buffer[3828 * c_in + 66 * p_in + 66 * r_in + q_in + s_in] * (int32_t)weight_wgt_buffer[144 * k_in + 9 * c_0 + 9 * c_in + 3 * r_in + s_in]);
                                    }
                                }
                            }
                            output_acc_buffer[3584 * k_in + 64 * p_in + q_in] = (int32_t)sum;
                        }
                    }
                }
            }
            for (ptrdiff_t k_in = 0; k_in < 16; ++k_in) {
                for (ptrdiff_t p_in = 0; p_in < 56; ++p_in) {
                    for (ptrdiff_t q_in = 0; q_in < 64; ++q_in) {
                        const int64_t total = (int64_t)output_acc_buffer[3584 * k_in + 64 * p_in + q_in];
                        const int64_t scaled = total * 1340;
                        const int64_t shifted = (scaled + 524288) >> 20;
                        const int64_t positive = shifted > 0 ? shifted : 0;
                        const int64_t raised = positive > -128 ? positive : -128;
                        const int64_t saturated = raised < 127 ? raised : 127;
                        const int8_t result = (int8_t)saturated;
                        memcpy(&output_acc_buffer[3584 * k_in + 64 * p_in + q_in], &result, sizeof result); /* in the accumulator's place */
                    }
                }
            }
            planner_dma_2d_start(FORUM_CONV2D_STORE_OUTPUT_ACC_BUFFER,
                                 output + 114688 * n_0 + 64 * p_0, 7168, 1,
                                 output_acc_buffer, 14336, 4,
                                 16, 3584, 1);
            planner_dma_wait(FORUM_CONV2D_STORE_OUTPUT_ACC_BUFFER);
        }
    }
}

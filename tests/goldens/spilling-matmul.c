/*
 * matmul: m = 5, n = 6, k = 7
 *
 * input: int8 [5, 7], index [m, k]
 * weight: int8 [7, 6], index [k, n]
 * bias: int32 [6], index [n]
 * output: int32 [5, 6], index [m, n]
 *
 * m_0, m_1, ... are positions of dim m, tile by tile; m_in counts points within a tile.
 */
#include "matmul.h"

#include <stddef.h>
#include <string.h>

#include "planner_dma.h"

/* l1: 208 of 4096 B. */
PLANNER_SCOPE(l1) PLANNER_ALIGN(8)
static unsigned char l1[208];
/* dram: partial sums of output on their way. */
PLANNER_SCOPE(dram) static int32_t output_partial[30];

void matmul(const int8_t *restrict input, const int8_t *restrict weight, const int32_t *restrict bias, int32_t *restrict output)
{
    int8_t *input_l1 = (int8_t *)(void *)(l1 + 0); /* and 1 more copy behind it */
    int8_t *input_l1_ahead = (int8_t *)(void *)(l1 + 0);
    unsigned input_l1_copy = 1;
    int8_t *weight_l1 = (int8_t *)(void *)(l1 + 28); /* and 1 more copy behind it */
    int8_t *weight_l1_ahead = (int8_t *)(void *)(l1 + 28);
    unsigned weight_l1_copy = 1;
    int32_t *bias_l1 = (int32_t *)(void *)(l1 + 64); /* and 1 more copy behind it */
    unsigned bias_l1_copy = 1;
    int32_t *output_l1 = (int32_t *)(void *)(l1 + 112); /* and 1 more copy behind it */
    unsigned output_l1_copy = 1;

    planner_dma_2d_start(MATMUL_LOAD_INPUT_L1,
                         input_l1_ahead, 0, 1,
                         input, 0, 1,
                         1, 14, 1);
    planner_dma_2d_start(MATMUL_LOAD_WEIGHT_L1,
                         weight_l1_ahead, 0, 1,
                         weight, 0, 1,
                         1, 18, 1);
    for (ptrdiff_t m_0 = 0; m_0 < 5; m_0 += 2) {
        const ptrdiff_t m_0_end = planner_min(m_0 + 2, 5);
        /* input in l1, below dram: [2, 7] at byte 0 */
        input_l1_copy = (input_l1_copy + 1) % 2;
        input_l1 = (int8_t *)(void *)(l1 + 0 + input_l1_copy * 14);
        input_l1_ahead = (int8_t *)(void *)(l1 + 0 + (input_l1_copy + 1) % 2 * 14);
        planner_dma_wait(MATMUL_LOAD_INPUT_L1);
        if (m_0 + 2 < 5) {
            const ptrdiff_t m_0_next = m_0 + 2;
            const ptrdiff_t m_0_next_end = planner_min(m_0_next + 2, 5);
            planner_dma_2d_start(MATMUL_LOAD_INPUT_L1,
                                 input_l1_ahead, 0, 1,
                                 input + 7 * m_0_next, 0, 1,
                                 1, 7 * m_0_next_end - 7 * m_0_next, 1);
        }
        for (ptrdiff_t k_0 = 0; k_0 < 7; k_0 += 3) {
            const ptrdiff_t k_0_end = planner_min(k_0 + 3, 7);
            /* weight in l1, below dram: [3, 6] at byte 28 */
            weight_l1_copy = (weight_l1_copy + 1) % 2;
            weight_l1 = (int8_t *)(void *)(l1 + 28 + weight_l1_copy * 18);
            weight_l1_ahead = (int8_t *)(void *)(l1 + 28 + (weight_l1_copy + 1) % 2 * 18);
            planner_dma_wait(MATMUL_LOAD_WEIGHT_L1);
            if (m_0 + 2 < 5 || k_0 + 3 < 7) {
                const ptrdiff_t k_0_next = (k_0 + 3 < 7 ? k_0 + 3 : 0);
                const ptrdiff_t k_0_next_end = planner_min(k_0_next + 3, 7);
                planner_dma_2d_start(MATMUL_LOAD_WEIGHT_L1,
                                     weight_l1_ahead, 0, 1,
                                     weight + 6 * k_0_next, 0, 1,
                                     1, 6 * k_0_next_end - 6 * k_0_next, 1);
            }
            /* bias in l1, below dram: [6] at byte 64 */
            bias_l1_copy = (bias_l1_copy + 1) % 2;
            bias_l1 = (int32_t *)(void *)(l1 + 64 + bias_l1_copy * 24);
            if (k_0 == 0) {
                planner_dma_2d_start(MATMUL_LOAD_BIAS_L1,
                                     bias_l1, 0, 4,
                                     bias, 0, 4,
                                     1, 6, 4);
                planner_dma_wait(MATMUL_LOAD_BIAS_L1);
            }
            /* output in l1, below dram: [2, 6] at byte 112 */
            output_l1_copy = (output_l1_copy + 1) % 2;
            output_l1 = (int32_t *)(void *)(l1 + 112 + output_l1_copy * 48);
            if (k_0 != 0) {
                planner_dma_wait(MATMUL_STORE_OUTPUT_L1);
                planner_dma_2d_start(MATMUL_LOAD_OUTPUT_L1,
                                     output_l1, 0, 4,
                                     output_partial + 6 * m_0, 0, 4,
                                     1, 6 * m_0_end - 6 * m_0, 4);
                planner_dma_wait(MATMUL_LOAD_OUTPUT_L1);
            }
            if (k_0 == 0) {
                for (ptrdiff_t m_in = 0; m_in < m_0_end - m_0; ++m_in) {
                    for (ptrdiff_t n_in = 0; n_in < 6; ++n_in) {
                        output_l1[6 * m_in + n_in] = bias_l1[n_in];
                    }
                }
            }
            for (ptrdiff_t n_0 = 0; n_0 < 6; n_0 += 4) {
                const ptrdiff_t n_0_end = planner_min(n_0 + 4, 6);
                for (ptrdiff_t m_in = 0; m_in < m_0_end - m_0; ++m_in) {
                    for (ptrdiff_t n_in = 0; n_in < n_0_end - n_0; ++n_in) {
                        uint32_t sum = (uint32_t)output_l1[6 * m_in + n_0 + n_in];
                        for (ptrdiff_t k_in = 0; k_in < k_0_end - k_0; ++k_in) {
                            sum += (uint32_t)((int32_t)input_l1[7 * m_in + k_0 + k_in] * (int32_t)weight_l1[6 * k_in + n_0 + n_in]);
                        }
                        output_l1[6 * m_in + n_0 + n_in] = (int32_t)sum;
                    }
                }
            }
            planner_dma_wait(MATMUL_STORE_OUTPUT_L1);
            if (k_0_end == 7) {
                planner_dma_2d_start(MATMUL_STORE_OUTPUT_L1,
                                     output + 6 * m_0, 0, 4,
                                     output_l1, 0, 4,
                                     1, 6 * m_0_end - 6 * m_0, 4);
            } else {
                planner_dma_2d_start(MATMUL_STORE_OUTPUT_L1,
                                     output_partial + 6 * m_0, 0, 4,
                                     output_l1, 0, 4,
                                     1, 6 * m_0_end - 6 * m_0, 4);
            }
        }
    }
    planner_dma_wait(MATMUL_STORE_OUTPUT_L1);
}

/*
 * matmul: m = 5, n = 6, k = 7
 *
 * input: int8 [5, 7], index [m, k]
 * weight: int8 [7, 6], index [k, n]
 * bias: int32 [6], index [n]
 * output: int32 [5, 6], index [m, n]
 *
 * The caller provides whole tensors in row-major order, which may not overlap. Not reentrant: scopes are static.
 */
#ifndef MATMUL_H
#define MATMUL_H

#include <stdint.h>

/* What moves: the `channel` argument of each transfer. */
enum {
    MATMUL_LOAD_INPUT_L1,
    MATMUL_LOAD_WEIGHT_L1,
    MATMUL_LOAD_BIAS_L1,
    MATMUL_LOAD_OUTPUT_L1,
    MATMUL_STORE_OUTPUT_L1,
    MATMUL_CHANNELS
};

void matmul(const int8_t *restrict input, const int8_t *restrict weight, const int32_t *restrict bias, int32_t *restrict output);

#endif

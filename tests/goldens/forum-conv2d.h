/*
 * forum-conv2d: n = 2, k = 16, c = 16, p = 112, q = 64, r = 3, s = 3
 *
 * input: int8 [2, 16, 112, 64], index [n, c, p + r - 1, q + s - 1]
 * weight: int8 [16, 16, 3, 3], index [k, c, r, s]
 * bias: int32 [16], index [k]
 * output: int8 [2, 16, 112, 64], index [n, k, p, q]
 *
 * The caller provides whole tensors in row-major order, which may not overlap. Not reentrant: scopes are static.
 */
#ifndef FORUM_CONV2D_H
#define FORUM_CONV2D_H

#include <stdint.h>

/* What moves: the `channel` argument of each transfer. */
enum {
    FORUM_CONV2D_LOAD_WEIGHT_WGT_BUFFER,
    FORUM_CONV2D_LOAD_BIAS_ACC_BUFFER,
    FORUM_CONV2D_STORE_OUTPUT_ACC_BUFFER,
    FORUM_CONV2D_LOAD_INPUT_INP_BUFFER,
    FORUM_CONV2D_CHANNELS
};

void forum_conv2d(const int8_t *restrict input, const int8_t *restrict weight, const int32_t *restrict bias, int8_t *restrict output);

#endif

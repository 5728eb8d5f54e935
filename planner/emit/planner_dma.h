/*
 * Transfers between memories, and where the memories lie. Replace whatever your target does differently:
 *
 *   PLANNER_SCOPE(scope)    put before the arena of a scope, e.g. __attribute__((section(".inp_buffer")))
 *   PLANNER_ALIGN(bytes)    alignment of an arena in memory
 *   PLANNER_DMA_HEADER      a header of yours, such as "my_dma.h", that defines planner_dma_2d_start and planner_dma_wait
 *   PLANNER_MAX_TRANSFER_BYTES   the longest single transfer; longer ones are split
 *   PLANNER_COUNT           count the bytes of each channel in planner_dma_bytes[], which the caller then defines
 */
#ifndef PLANNER_DMA_H
#define PLANNER_DMA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef PLANNER_SCOPE
#define PLANNER_SCOPE(scope)
#endif

#ifndef PLANNER_ALIGN
#if defined(__GNUC__)
#define PLANNER_ALIGN(bytes) __attribute__((aligned(bytes)))
#else
#define PLANNER_ALIGN(bytes)
#endif
#endif

static inline ptrdiff_t planner_min(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
static inline ptrdiff_t planner_max(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

#ifdef PLANNER_DMA_HEADER
#include PLANNER_DMA_HEADER
#else

#ifdef PLANNER_COUNT
extern unsigned long long planner_dma_bytes[];
#endif

/* One transfer of at most the longest length. This is the place for a real DMA engine. */
static inline void planner_dma_1d_start(int channel, void *to, const void *from, size_t bytes)
{
    (void)channel;
    memcpy(to, from, bytes);
#ifdef PLANNER_COUNT
    planner_dma_bytes[channel] += bytes;
#endif
}

/*
 * Moves rows x columns elements of element_bytes each. Neighbours in a row, and rows, lie so many bytes apart on either side.
 * The data is there once planner_dma_wait(channel) has returned.
 */
static inline void planner_dma_2d_start(int channel,
                                        void *to, ptrdiff_t to_row_bytes, ptrdiff_t to_column_bytes,
                                        const void *from, ptrdiff_t from_row_bytes, ptrdiff_t from_column_bytes,
                                        ptrdiff_t rows, ptrdiff_t columns, size_t element_bytes)
{
    const int dense = to_column_bytes == (ptrdiff_t)element_bytes && from_column_bytes == (ptrdiff_t)element_bytes;
    const size_t run = dense ? (size_t)columns * element_bytes : element_bytes;
    const ptrdiff_t runs = dense ? 1 : columns;
#ifdef PLANNER_MAX_TRANSFER_BYTES
    const size_t most = PLANNER_MAX_TRANSFER_BYTES;
#else
    const size_t most = run;
#endif
    for (ptrdiff_t row = 0; row < rows; ++row) {
        unsigned char *there = (unsigned char *)to + row * to_row_bytes;
        const unsigned char *here = (const unsigned char *)from + row * from_row_bytes;
        for (ptrdiff_t i = 0; i < runs; ++i) {
            for (size_t done = 0; done < run; done += most) {
                const size_t left = run - done;
                planner_dma_1d_start(channel, there + i * to_column_bytes + done, here + i * from_column_bytes + done,
                                     left < most ? left : most);
            }
        }
    }
}

static inline void planner_dma_wait(int channel) { (void)channel; }

#endif
#endif

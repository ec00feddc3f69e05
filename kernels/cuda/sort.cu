/* Bitonic sort (Batcher 1968): every pass compares pairs that lie a fixed distance apart, one pair a thread. */
#include "sort.cuh"

__global__ void compare_pairs(keyed *items, int64_t pairs, int64_t line, int64_t run, int64_t distance)
{
    for (int64_t p = first_element(); p < pairs; p += step()) {
        int64_t i = p / distance * 2 * distance + p % distance, j = i + distance;
        keyed a = items[i], b = items[j];
        bool larger = a.key > b.key || (a.key == b.key && a.value > b.value), ascending = (i & (line - 1) & run) == 0;
        if (larger == ascending) {
            items[i] = b;
            items[j] = a;
        }
    }
}

luda_status luda__cuda_sort(const luda_call *call, luda_cuda_stream *stream, keyed *items, int64_t count, int64_t line)
{
    luda_status status = LUDA_OK;
    for (int64_t run = 2; run <= line; run *= 2)
        for (int64_t distance = run / 2; distance > 0 && status == LUDA_OK; distance /= 2) {
            LUDA_LAUNCH(compare_pairs, blocks_for(count / 2), BLOCK, 0, stream->stream, items, count / 2, line, run, distance);
            status = launched(call);
        }
    return status;
}

// Dense attention's value stage, from the stash: each tile's rows of V, weighed by u = exp(s - m). `merge` adds the tiles.
// Grid: KV heads x tiles x sequences; a row of V is read once for all G queries.

#include "common.cuh"
#include "draw.cuh"

#define DENSE_WARPS 8
#define ROWS_AT_ONCE 4

// v, u, ..., as for `sample`;  partials [B, H, T, D];  value_counts [B, H_kv, T, 4], dense_counts [B, H_kv, T, 3], of merging
extern "C" __global__ void __launch_bounds__(DENSE_WARPS * 32)
dense(const u16 *__restrict__ v, const int *__restrict__ lengths, int n_most, i64 v_sequence, i64 v_row, const float *__restrict__ u,
      float *__restrict__ partials, i64 *value_counts, i64 *dense_counts) {
    allow_dependents();
    __shared__ __align__(16) float stash[G][PITCH];
    __shared__ float sums[DENSE_WARPS][D];
    const int kv = blockIdx.x, H_kv = gridDim.x, t = blockIdx.y, T = gridDim.y, sequence = blockIdx.z;
    const int w = min((lengths ? lengths[sequence] : n_most) - t * TILE, TILE);
    if (w <= 0) return;
    const i64 kv_head = (i64)sequence * H_kv + kv;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    wait_for_predecessor();
    for (int i = threadIdx.x; i < G * PITCH / 4; i += DENSE_WARPS * 32)
        ((float4 *)stash)[i] = ((const float4 *)(u + (kv_head * T + t) * (G * PITCH)))[i];
    __syncthreads();
    const u16 *const values = v + sequence * v_sequence + (i64)t * TILE * v_row + kv * D;
    float sum[G][D / 32];
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int i = 0; i < D / 32; i++) sum[g][i] = 0;
#pragma unroll 1
    for (int key = warp; key < w; key += DENSE_WARPS * ROWS_AT_ONCE) {
        Row<32> row[ROWS_AT_ONCE];
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++) row[j] = load_row<32>(values + (i64)min(key + j * DENSE_WARPS, w - 1) * v_row);
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            if (key + j * DENSE_WARPS < w)
#pragma unroll
                for (int g = 0; g < G; g++) add_row<32>(sum[g], row[j], stash[g][key + j * DENSE_WARPS]);
    }
#pragma unroll
    for (int g = 0; g < G; g++) {
#pragma unroll
        for (int i = 0; i < D / 32; i++) sums[warp][lane * (D / 32) + i] = sum[g][i];
        __syncthreads();
        if (threadIdx.x < D) {
            float all = 0;
#pragma unroll
            for (int i = 0; i < DENSE_WARPS; i++) all += sums[i][threadIdx.x];
            partials[((kv_head * G + g) * T + t) * D + threadIdx.x] = all;
        }
        __syncthreads();
    }
#if INSTRUMENT
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3; i++) COUNT(value_counts[(kv_head * T + t) * 4 + i], (i64)w * G * D);
        COUNT(dense_counts[(kv_head * T + t) * 3 + 0], G * (D + 1));
        COUNT(dense_counts[(kv_head * T + t) * 3 + 1], 2 * G * (D + 1));
        COUNT(dense_counts[(kv_head * T + t) * 3 + 2], 2 * G);
    }
#endif
}

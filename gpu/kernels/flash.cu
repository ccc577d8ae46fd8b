// The flash form (Algorithms 7 and 8 of arXiv:2605.01910): a block scores one tile, draws from it with the tile's own
// budget, and adds the drawn rows of V while they are at hand; `merge` weighs the tiles' partial sums.
// Grid of `flash`: KV heads x tiles x sequences. After the scores a warp works alone, on one query head at a time.

#include "common.cuh"
#include "scores.cuh"
#include "draw.cuh"

#define AT_ONCE_FLASH (D == 256 ? 4 : 8)  // rows of V that a warp has in flight

struct Positions {
    double low, high, scale, total;  // of a tile: positions run from low to high as the running sum of u goes from 0 to total
};

// whole numbers k <= budget that are reached when u has added up to `running`
__device__ __forceinline__ int reached_by(const Positions &p, double running, int budget, bool by_threshold) {
    if (!by_threshold) {
        const double position = running == p.total ? p.high : smaller(__dadd_rn(p.low, __dmul_rn(p.scale, running)), p.high);
        return (int)floor(position);
    }
    int k = p.scale > 0 ? min(max((int)(p.low + running / p.scale), 0), budget) : 0;  // near; the comparison itself decides
    while (k < budget && running >= threshold_of(k + 1, p.low, p.scale, p.total)) k++;
    while (k > 0 && running < threshold_of(k, p.low, p.scale, p.total)) k--;
    return k;
}

// q, k, v, ..., as for `score` and `sample`; STASHED = 1: u, m and ell come from a score pass, q and k are not read.
// partials [B, H, T, D], the sums of each tile's drawn rows;  rows [B, H, T * budget of a tile]
extern "C" __global__ void __launch_bounds__(WARPS * 32)
flash(const u16 *__restrict__ q, const u16 *__restrict__ k, const u16 *__restrict__ v, const int *__restrict__ lengths, int n_most,
      i64 k_sequence, i64 k_row, i64 v_sequence, i64 v_row, float scale, int S, u64 seed, u32 sequence0, u32 sequence_step, u32 head0, u32 position,
      const u32 *__restrict__ positions, int by_threshold, const float *__restrict__ u, float *__restrict__ m, double *__restrict__ ell, float *__restrict__ partials,
      i64 *score_counts, i64 *budget_counts, i64 *draw_counts, i64 *value_counts, i64 *budgets, int *rows, int most_rows) {
    allow_dependents();
#if !STASHED
    __shared__ float maxima[WARPS][8];
    __shared__ double sums[WARPS][8];
#endif
    __shared__ __align__(16) float stash[G][PITCH];
#if !STAGED
    __shared__ u32 lists[G][PITCH];
#endif
    const int kv = blockIdx.x, H_kv = gridDim.x, t = blockIdx.y, T = gridDim.y, sequence = blockIdx.z;
    const int n = lengths ? lengths[sequence] : n_most, w = min(n - t * TILE, TILE);
    if (w <= 0) return;
    const i64 kv_head = (i64)sequence * H_kv + kv;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#if STASHED
    wait_for_predecessor();
    for (int i = threadIdx.x; i < G * PITCH / 4; i += WARPS * 32)
        ((float4 *)stash)[i] = ((const float4 *)(u + (kv_head * T + t) * (G * PITCH)))[i];
#else
    {
        const int c = lane & 3;
        Scores tile;
        score_tile(q + kv_head * G * D, k + sequence * k_sequence + (i64)t * TILE * k_row + kv * D, k_row, w, scale, maxima, tile);
        double sum[2];
        exponentials(tile, sum);
        if (lane < 4) {
            sums[warp][c * 2] = sum[0];
            sums[warp][c * 2 + 1] = sum[1];
        }
#pragma unroll
        for (int band = 0; band < BANDS; band++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (head_of(i) < G && key_of(band, i) < PITCH) stash[head_of(i)][key_of(band, i)] = tile.s[band][i];
        if (warp == 0 && lane < 4)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (head_of(i) < G) m[(kv_head * G + head_of(i)) * T + t] = tile.m[i];
    }
    count_scores(score_counts + (kv_head * T + t) * 8, w, t == 0);
#endif
    __syncthreads();
    const int tiles = (n + TILE - 1) / TILE, budget = max(1, S / tiles);
#pragma unroll 1
    for (int h = warp; h < G; h += WARPS) {
        const i64 head = kv_head * G + h;
#if STAGED
        u32 *const drawn = (u32 *)(dynamic_keys + warp * (WARP_KEYS * D / 8));  // in place of this warp's keys
#else
        u32 *const drawn = lists[h];
#endif
#if STASHED
        const double total = ell[head * T + t];
#else
        double total = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) total += sums[i][h];
        if (lane == 0) ell[head * T + t] = total;
#endif
        const Stream random = {(u32)seed, (u32)(seed >> 32), sequence0 + sequence * sequence_step, head0 + kv * G + h, positions ? positions[sequence] : position};
        Positions s;
        s.low = uniform(random, t);
        s.high = __dadd_rn(s.low, (double)budget);
        s.total = total;
        s.scale = scale_of(s.low, s.high, total, by_threshold);
        // ---- how often each key is drawn: the whole numbers between the positions before and after it ----
        constexpr int CHUNK = CHUNK_OF(32);
        float x[CHUNK];
        load_chunk<32>(stash[h], x);
        Fixed sum = {0, 0};
#pragma unroll
        for (int i = 0; i < CHUNK; i++) sum.add(x[i]);
        const Fixed through = {scan_warp<32>(sum.high), scan_warp<32>(sum.low)};
        Fixed running = {through.high - sum.high, through.low - sum.low};
        int before = lane == 0 ? 0 : reached_by(s, running.value(), budget, by_threshold);
#if INSTRUMENT
        i64 place = head * most_rows + t * budget + before;
#endif
        int count[CHUNK], different = 0;
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            running.add(x[i]);
            const int after = reached_by(s, running.value(), budget, by_threshold);
            count[i] = after - before;
            before = after;
            different += count[i] > 0;
        }
        const int listed = __shfl_sync(FULL, scan_warp<32>(different), 31);
        int slot = scan_warp<32>(different) - different;
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            if (count[i] > 0) {
                drawn[slot++] = (u32)count[i] << 9 | (lane * CHUNK + i);
#if INSTRUMENT
                for (int j = 0; j < count[i]; j++) rows[place++] = t * TILE + lane * CHUNK + i;
                COUNT(value_counts[(kv_head * T + t) * 4 + 0], D * count[i]);
                COUNT(value_counts[(kv_head * T + t) * 4 + 2], D * count[i]);
#endif
            }
        __syncwarp();
        // ---- gather ----
        const u16 *const values = v + sequence * v_sequence + (i64)t * TILE * v_row + kv * D;
        float out[D / 32];
#pragma unroll
        for (int i = 0; i < D / 32; i++) out[i] = 0;
#pragma unroll 1
        for (int e = 0; e < listed; e += AT_ONCE_FLASH) {
            Row<32> row[AT_ONCE_FLASH];
#pragma unroll
            for (int i = 0; i < AT_ONCE_FLASH; i++) row[i] = load_row<32>(values + (i64)(drawn[min(e + i, listed - 1)] & 511) * v_row);
#pragma unroll
            for (int i = 0; i < AT_ONCE_FLASH; i++)
                for (u32 j = e + i < listed ? drawn[e + i] >> 9 : 0; j > 0; j--) add_row<32>(out, row[i]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < D / 32; i++) partials[(head * T + t) * D + lane * (D / 32) + i] = out[i];
#if INSTRUMENT
        if (lane == 0) {
            i64 *const counts = draw_counts + (kv_head * T + t) * 4;
            budgets[head * T + t] = budget;
            COUNT(budget_counts[kv_head * 9 + 4], 1);
            COUNT(counts[0], by_threshold ? w + budget : 0);
            COUNT(counts[1], by_threshold ? w + budget + 1 : 3 * w);
            COUNT(counts[2], by_threshold ? budget + 1 : w + 1);
            COUNT(counts[3], by_threshold ? 0 : w + 1);
        }
#endif
    }
}

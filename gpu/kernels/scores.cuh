// One tile's scores in registers: a block of WARPS warps, each with WARP_KEYS (16 or 32) keys, all G queries of the KV head
// at once.
//
// A warp's lane takes 16 bytes at a time of one key, straight from memory or (STAGED) from shared memory: which feature
// stands in which slot of the matrix instruction doesn't matter as long as K and q agree, so a lane's eight consecutive
// features fill two of them.

#define WARPS ((TILE + WARP_KEYS - 1) / WARP_KEYS)
#define BANDS (WARP_KEYS / 16)

extern __shared__ uint4 dynamic_keys[];  // STAGED: [WARPS][WARP_KEYS][D / 8]

struct Scores {
    float s[BANDS][4];  // [band of 16 keys][key g head 2c, key g head 2c + 1, key g + 8 head 2c, key g + 8 head 2c + 1]
    float m[2];         // the tile's maximum for heads 2c and 2c + 1
};

// key of s[band][i] within the tile, for this lane
__device__ __forceinline__ int key_of(int band, int i) {
    return (threadIdx.x >> 5) * WARP_KEYS + band * 16 + (i >> 1) * 8 + ((threadIdx.x & 31) >> 2);
}

__device__ __forceinline__ int head_of(int i) { return (threadIdx.x & 3) * 2 + (i & 1); }

// q: [G, D] of this KV head;  k: first key of the tile, this KV head;  row: elements from key to key
// w: keys that exist;  between: shared [WARPS][8]. Scores of keys and heads that don't exist are -inf.
__device__ __forceinline__ void score_tile(const u16 *q, const u16 *k, i64 row, int w, float scale, float (*between)[8], Scores &tile) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
    uint4 b[D / 32];
#if STAGED
    // q goes through shared memory too, so that the compiler can't put its loads off until the keys are there
    __shared__ uint4 queries[G * D / 8];
    for (int i = threadIdx.x; i < G * D / 8; i += WARPS * 32) copy_often(queries + (i ^ (i / (D / 8) & 1) * 4), (const uint4 *)q + i);
    // every warp copies its own keys: whole rows at a time, all of them in flight, without a register
    uint4 *const keys = dynamic_keys + warp * (WARP_KEYS * D / 8);
#pragma unroll
    for (int i = 0; i < WARP_KEYS * D / 256; i++) {
        const int key = (i * 32 + lane) / (D / 8), piece = lane % (D / 8);
        const u16 *at = k + (i64)min(warp * WARP_KEYS + key, w - 1) * row + piece * 8;
        copy_once(keys + key * (D / 8) + (piece ^ (key & 1) * 4), at);
    }
    wait_for_copies();
    __syncthreads();
#pragma unroll
    for (int part = 0; part < D / 32; part++) b[part] = queries[min(g, G - 1) * (D / 8) + ((part * 4 + c) ^ (min(g, G - 1) & 1) * 4)];
#else
    uint4 a[BANDS][2][D / 32];
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int key = min(key_of(band, half * 2), w - 1);
            const u16 *at = k + (i64)key * row + c * 8;
#pragma unroll
            for (int part = 0; part < D / 32; part++) a[band][half][part] = load_once(at + part * 32);
        }
#pragma unroll
    for (int part = 0; part < D / 32; part++) b[part] = __ldg((const uint4 *)(q + min(g, G - 1) * D + c * 8 + part * 32));
#endif
    tile.m[0] = tile.m[1] = -INFINITE;
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
        float(&s)[4] = tile.s[band];
        s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
        for (int part = 0; part < D / 32; part++) {
#if STAGED
            const int at = (band * 16 + g) * (D / 8) + ((part * 4 + c) ^ (g & 1) * 4);  // swizzled: no bank is asked twice
            const uint4 low = keys[at], high = keys[at + D];
#else
            const uint4 low = a[band][0][part], high = a[band][1][part];
#endif
            multiply_add(s, low.x, high.x, low.y, high.y, b[part].x, b[part].y);
            multiply_add(s, low.z, high.z, low.w, high.w, b[part].z, b[part].w);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[i] = key_of(band, i) < w && head_of(i) < G ? s[i] * scale : -INFINITE;
            tile.m[i & 1] = fmaxf(tile.m[i & 1], s[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) tile.m[i] = fmaxf(tile.m[i], __shfl_xor_sync(FULL, tile.m[i], step));
        if (g == 0) between[warp][c * 2 + i] = tile.m[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int other = 0; other < WARPS; other++) tile.m[i] = fmaxf(tile.m[i], between[other][c * 2 + i]);
}

// s becomes u = exp(s - m); returns this warp's sums for heads 2c and 2c + 1 (the same in all lanes of equal c)
__device__ __forceinline__ void exponentials(Scores &tile, double (&sum)[2]) {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            tile.s[band][i] = head_of(i) < G ? stash_exp(tile.s[band][i] - tile.m[i & 1]) : 0;
            sum[i & 1] += (double)tile.s[band][i];
        }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum[i] += __shfl_xor_sync(FULL, sum[i], step);
}

// counters of one tile as the CPU's kernels count them: adds, mults, reads, writes, exps, compares, softmax adds, mults
__device__ __forceinline__ void count_scores(i64 *counts, int w, bool first_tile) {
#if INSTRUMENT
    int scores = 0;
    for (int band = 0; band < BANDS; band++)
        for (int i = 0; i < 4; i++) scores += key_of(band, i) < w && head_of(i) < G;
    COUNT(counts[0], scores * D);
    COUNT(counts[1], scores * D);
    COUNT(counts[2], scores * D + (first_tile && threadIdx.x == 0 ? G * D : 0));
    COUNT(counts[3], scores);
#if !KEEP
    COUNT(counts[4], scores);
    COUNT(counts[5], scores);
    COUNT(counts[6], 2 * scores);
#endif
#endif
}

// Draws inside one tile, by one warp: the key at which a sample's whole number, or its threshold, is reached.
// Every float64 step is rounded as the CPU's kernels round it (no fused multiply-add), so that the keys are the same.

#define CHUNK ((PITCH + 127) / 128 * 4)  // consecutive keys of a lane

// u of this lane's keys; zero beyond the tile
__device__ __forceinline__ void load_chunk(const float *u, float (&x)[CHUNK]) {
    const int first = (threadIdx.x & 31) * CHUNK;
#pragma unroll
    for (int i = 0; i < CHUNK; i += 4) {
        const float4 four = first + i < PITCH ? *(const float4 *)(u + first + i) : make_float4(0, 0, 0, 0);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}

// A sample and what its tile is: METHOD 0, 1: the whole number k, where the tile's positions run from `low` to `high` as the
// running sum of u goes from 0 to `total`; METHOD 2, 3: the threshold k, in units of u
struct Sample {
    double k, low, high, scale, total;
    int tile, unused;
};

// positions per unit of u, or, to compare by thresholds, u per position
__device__ __forceinline__ double scale_of(double low, double high, double total, bool by_threshold) {
    if (by_threshold) return high > low ? __ddiv_rn(total, __dsub_rn(high, low)) : 0.0;
    return __ddiv_rn(__dsub_rn(high, low), total);
}

// true from the key on that the sample falls on; `running` is the sum of u up to and with the key
__device__ __forceinline__ bool reached(const Sample &s, double running, bool by_threshold) {
#if METHOD == 2 || METHOD == 3
    return running > s.k || running == s.total;
#else
    if (by_threshold) return running >= smaller(__dmul_rn(__dsub_rn(s.k, s.low), s.scale), s.total);
    return (running == s.total ? s.high : smaller(__dadd_rn(s.low, __dmul_rn(s.scale, running)), s.high)) >= s.k;
#endif
}

// A sum of u as two integers, since integer adds are quick: high * 2^-20 + low * 2^-40, exact
struct Fixed {
    int high, low;

    __device__ __forceinline__ void add(float x) {
        // adding 12 leaves x in steps of 2^-20 in the low bits; what remains is at most 2^-21, in steps of 2^-40
        const float top = __fadd_rn(x, 12.0f), rest = __fadd_rn(x, -__fadd_rn(top, -12.0f));
        high += __float_as_int(top) - 0x41400000;
        low += __float_as_int(__fadd_rn(rest, 1.1444091796875e-05f)) - 0x37400000;
    }
    __device__ __forceinline__ double value() const { return __fma_rn((double)low, 9.094947017729282e-13, (double)high * 9.5367431640625e-07); }
};

// Key of a sample within its tile, the same in all lanes: first the lane whose chunk holds it, then the key in the chunk.
__device__ __forceinline__ int find_key(const Sample &s, const float *u, const float (&x)[CHUNK], bool by_threshold) {
    const int lane = threadIdx.x & 31;
    Fixed sum = {0, 0};
#pragma unroll
    for (int i = 0; i < CHUNK; i++) sum.add(x[i]);
    const Fixed through = {scan_warp<32>(sum.high), scan_warp<32>(sum.low)};
    const int holder = __ffs(__ballot_sync(FULL, reached(s, through.value(), by_threshold))) - 1;
    const int key = holder * CHUNK + lane;
    Fixed own = {0, 0};
    if (lane < CHUNK && key < PITCH) own.add(u[key]);
    const Fixed running = {__shfl_sync(FULL, through.high - sum.high, holder) + scan_warp<CHUNK>(own.high),
                           __shfl_sync(FULL, through.low - sum.low, holder) + scan_warp<CHUNK>(own.low)};
    return holder * CHUNK + __ffs(__ballot_sync(FULL, lane == CHUNK - 1 || reached(s, running.value(), by_threshold))) - 1;
}

// ---- a row of V, spread over a warp: lane i holds D / 32 consecutive features ----

#define FEATURES (D / 32)

struct Row {
    u32 pairs[FEATURES / 2];
};

__device__ __forceinline__ Row load_row(const u16 *at) {
    Row row;
    at += (threadIdx.x & 31) * FEATURES;
#if D == 64
    row.pairs[0] = __ldg((const u32 *)at);
#elif D == 128
    const uint2 x = __ldg((const uint2 *)at);
    row.pairs[0] = x.x, row.pairs[1] = x.y;
#else
    const uint4 x = __ldg((const uint4 *)at);
    row.pairs[0] = x.x, row.pairs[1] = x.y, row.pairs[2] = x.z, row.pairs[3] = x.w;
#endif
    return row;
}

__device__ __forceinline__ void add_row(float (&sum)[FEATURES], const Row &row) {
#pragma unroll
    for (int i = 0; i < FEATURES / 2; i++) {
        sum[2 * i] += low_half(row.pairs[i]);
        sum[2 * i + 1] += high_half(row.pairs[i]);
    }
}

__device__ __forceinline__ void add_row(float (&sum)[FEATURES], const Row &row, float weight) {
#pragma unroll
    for (int i = 0; i < FEATURES / 2; i++) {
        sum[2 * i] += weight * low_half(row.pairs[i]);
        sum[2 * i + 1] += weight * high_half(row.pairs[i]);
    }
}

// Draws inside one tile, by a warp or half of one: the key at which a sample's whole number, or its threshold, is reached.
// Every float64 step is rounded as the CPU's kernels round it (no fused multiply-add), so that the keys are the same.

// A team of TEAM lanes (16 or 32) works on one sample. Each lane has CHUNK_OF(TEAM) consecutive keys of the tile.
#define CHUNK_OF(TEAM) ((PITCH + 4 * (TEAM) - 1) / (4 * (TEAM)) * 4)

// u of this lane's keys; zero beyond the tile
template <int TEAM>
__device__ __forceinline__ void load_chunk(const float *u, float (&x)[CHUNK_OF(TEAM)]) {
    const int first = (threadIdx.x & (TEAM - 1)) * CHUNK_OF(TEAM);
#pragma unroll
    for (int i = 0; i < CHUNK_OF(TEAM); i += 4) {
        const float4 four = first + i < PITCH ? *(const float4 *)(u + first + i) : make_float4(0, 0, 0, 0);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}

// A sample: it falls on the first key at which low + scale * (running sum of u) reaches k, or the running sum its total.
// METHOD 0, 1: k is a whole number among the tile's positions; by thresholds, and METHOD 2, 3: k is a running sum (low 0, scale 1).
struct Sample {
    double k, low, scale, total;
    int tile, unused;
};

// positions per unit of u, or, to compare by thresholds, u per position
__device__ __forceinline__ double scale_of(double low, double high, double total, bool by_threshold) {
    if (by_threshold) return high > low ? __ddiv_rn(total, __dsub_rn(high, low)) : 0.0;
    return __ddiv_rn(__dsub_rn(high, low), total);
}

// the running sum that whole number k is reached at, in a tile whose positions start at `low`; `inverse`: u per position
__device__ __forceinline__ double threshold_of(double k, double low, double inverse, double total) {
    return smaller(__dmul_rn(__dsub_rn(k, low), inverse), total);
}

// Whole number k of a tile whose positions run from `low` to `high`; `slope` is scale_of those. The positions stop at `high`,
// which is at least k, so that only the last key needs to be told apart.
__device__ __forceinline__ Sample sample_of(double k, double low, double slope, double total, int tile, bool by_threshold) {
    if (by_threshold) return Sample{threshold_of(k, low, slope, total), 0.0, 1.0, total, tile, 0};
    return Sample{k, low, slope, total, tile, 0};
}

// true from the key on that the sample falls on; `running` is the sum of u up to and with the key. No branch: lanes differ.
__device__ __forceinline__ bool reached(const Sample &s, double running) {
#if METHOD == 2 || METHOD == 3
    return running > s.k | running == s.total;
#else
    return __dadd_rn(s.low, __dmul_rn(s.scale, running)) >= s.k | running == s.total;
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

// the first lane of this team for which `holds` is true, counted within the team
template <int TEAM>
__device__ __forceinline__ int first_of_team(bool holds) {
    const u32 votes = __ballot_sync(FULL, holds);
    return __ffs(TEAM == 32 ? votes : votes >> (threadIdx.x & 16) & 0xffffu) - 1;
}

// Key of a sample within its tile, the same in all lanes of a team: first the lane whose chunk holds it, then the key in the chunk.
template <int TEAM>
__device__ __forceinline__ int find_key(const Sample &s, const float *u, const float (&x)[CHUNK_OF(TEAM)]) {
    constexpr int CHUNK = CHUNK_OF(TEAM);
    const int lane = threadIdx.x & (TEAM - 1);
    Fixed sum = {0, 0};
#pragma unroll
    for (int i = 0; i < CHUNK; i++) sum.add(x[i]);
    const Fixed through = {scan_warp<TEAM, TEAM>(sum.high), scan_warp<TEAM, TEAM>(sum.low)};
    const int holder = first_of_team<TEAM>(reached(s, through.value()));
    const int key = holder * CHUNK + lane;
    Fixed own = {0, 0};
    if (lane < CHUNK && key < PITCH) own.add(u[key]);
    const Fixed running = {__shfl_sync(FULL, through.high - sum.high, holder, TEAM) + scan_warp<CHUNK, TEAM>(own.high),
                           __shfl_sync(FULL, through.low - sum.low, holder, TEAM) + scan_warp<CHUNK, TEAM>(own.low)};
    return holder * CHUNK + first_of_team<TEAM>(lane == CHUNK - 1 | reached(s, running.value()));
}

// ---- a row of V, spread over a team: lane i holds D / TEAM consecutive features ----

template <int TEAM>
struct Row {
    u32 pairs[D / TEAM / 2];
};

template <int TEAM>
__device__ __forceinline__ Row<TEAM> load_row(const u16 *at) {
    Row<TEAM> row;
    at += (threadIdx.x & (TEAM - 1)) * (D / TEAM);
    if constexpr (D / TEAM == 2) {
        row.pairs[0] = __ldg((const u32 *)at);
    } else if constexpr (D / TEAM == 4) {
        const uint2 x = __ldg((const uint2 *)at);
        row.pairs[0] = x.x, row.pairs[1] = x.y;
    } else {
#pragma unroll
        for (int i = 0; i < D / TEAM / 2; i += 4) {
            const uint4 x = __ldg((const uint4 *)(at + 2 * i));
            row.pairs[i] = x.x, row.pairs[i + 1] = x.y, row.pairs[i + 2] = x.z, row.pairs[i + 3] = x.w;
        }
    }
    return row;
}

template <int TEAM>
__device__ __forceinline__ void add_row(float (&sum)[D / TEAM], const Row<TEAM> &row) {
#pragma unroll
    for (int i = 0; i < D / TEAM / 2; i++) {
        sum[2 * i] += low_half(row.pairs[i]);
        sum[2 * i + 1] += high_half(row.pairs[i]);
    }
}

template <int TEAM>
__device__ __forceinline__ void add_row(float (&sum)[D / TEAM], const Row<TEAM> &row, float weight) {
#pragma unroll
    for (int i = 0; i < D / TEAM / 2; i++) {
        sum[2 * i] += weight * low_half(row.pairs[i]);
        sum[2 * i + 1] += weight * high_half(row.pairs[i]);
    }
}

// Which of n fractions in [0, 1) are the `left` largest, ties to the lowest index; by a block, for largest remainder.
//
// A histogram finds the bin that holds the last one taken; the few fractions of that bin are then ranked against each other.
// Where a bin holds more than a block has threads (many tiles of equal mass), a bisection over the bit patterns cuts instead.

#define BINS 1024

struct Boundary {
    int bins[BINS];
    i64 values[THREADS];  // bit patterns, which order as the fractions do
    int indices[THREADS];
    int bin, larger, listed;  // the boundary's bin; how many lie in higher bins; how many of this bin are listed
};

__device__ __forceinline__ int bin_of(double fraction) { return (int)(fraction * BINS); }

// The bits of the `left`-th largest fraction, or of a cut that separates exactly `left`; and how many are strictly larger.
__device__ __noinline__ i64 cut_of(const double *fractions, int first, int last, int each, int left, int &larger) {
    i64 below = -1, above = 0x3ff0000000000000ll;  // count(> below) >= left > count(> above): all fractions are < 1
    larger = 0;
    while (above - below > 1) {
        const i64 middle = below + (above - below) / 2;
        int count = 0;
#pragma unroll 1
        for (int t = first; t < first + each; t++) count += __syncthreads_count(t < last && __double_as_longlong(fractions[t]) > middle);
        if (count == left) {
            larger = left;
            return middle;
        }
        if (count > left) {
            below = middle;
        } else {
            above = middle;
            larger = count;
        }
    }
    return above;
}

// fractions [n] in shared memory, of which this thread owns first .. last - 1, at most `each`; taken [n]: result, 0 or 1
__device__ __forceinline__ void take_largest(const double *fractions, int first, int last, int each, int left, Boundary &boundary,
                                             int *between, int *taken) {
    int total;
    for (int i = threadIdx.x; i < BINS; i += THREADS) boundary.bins[i] = 0;
    if (threadIdx.x == 0) {
        boundary.bin = BINS;
        boundary.larger = boundary.listed = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int t = first; t < last; t++) atomicAdd(&boundary.bins[bin_of(fractions[t])], 1);
    __syncthreads();
    int own = 0;
#pragma unroll
    for (int i = 0; i < BINS / THREADS; i++) own += boundary.bins[BINS - 1 - (threadIdx.x * (BINS / THREADS) + i)];
    int above = scan_block(own, between, total);
#pragma unroll
    for (int i = 0; i < BINS / THREADS; i++) {
        const int bin = BINS - 1 - (threadIdx.x * (BINS / THREADS) + i), here = boundary.bins[bin];
        if (above < left && left <= above + here) {
            boundary.bin = bin;
            boundary.larger = above;
        }
        above += here;
    }
    __syncthreads();
    const int bin = boundary.bin, larger = boundary.larger;
    const int listed = bin < BINS ? boundary.bins[bin] : 0;
    if (listed <= THREADS) {
#pragma unroll 1
        for (int t = first; t < last; t++)
            if (bin_of(fractions[t]) == bin) {
                const int slot = atomicAdd(&boundary.listed, 1);
                boundary.values[slot] = __double_as_longlong(fractions[t]);
                boundary.indices[slot] = t;
            }
        __syncthreads();
#pragma unroll 1
        for (int t = first; t < last; t++)
            if (bin_of(fractions[t]) != bin) taken[t] = bin_of(fractions[t]) > bin;
        // a warp ranks one of the listed against all
        const int lane = threadIdx.x & 31;
#pragma unroll 1
        for (int e = threadIdx.x >> 5; e < listed; e += THREADS / 32) {
            const i64 mine = boundary.values[e];
            const int its = boundary.indices[e];
            int rank = larger;
#pragma unroll 1
            for (int i = lane; i - lane < listed; i += 32)
                rank += __popc(__ballot_sync(FULL, i < listed && (boundary.values[i] > mine || (boundary.values[i] == mine && boundary.indices[i] < its))));
            if (lane == 0) taken[its] = rank < left;
        }
        __syncthreads();
    } else {
        int strictly;
        const i64 cut = cut_of(fractions, first, last, each, left, strictly);
        int ties = 0;
#pragma unroll 1
        for (int t = first; t < last; t++) ties += __double_as_longlong(fractions[t]) == cut;
        int before = strictly + scan_block(ties, between, total);
#pragma unroll 1
        for (int t = first; t < last; t++) {
            const i64 bits = __double_as_longlong(fractions[t]);
            taken[t] = bits > cut || (bits == cut && before++ < left);
        }
    }
}

#if INSTRUMENT
// ---- comparisons of the heap selection that the trace counts, of x[0] ... x[n - 1]; one thread ----

template <class X>
__device__ bool goes_first(const X &x, int a, int b) { return x[a] < x[b] || (x[a] == x[b] && a > b); }

template <class X>
__device__ int sift_down(const X &x, int *heap, int size, int root) {
    int compares = 0;
    while (true) {
        int child = 2 * root + 1;
        if (child >= size) return compares;
        if (child + 1 < size) {
            compares++;
            child += goes_first(x, heap[child + 1], heap[child]);
        }
        compares++;
        if (!goes_first(x, heap[child], heap[root])) return compares;
        const int swapped = heap[root];
        heap[root] = heap[child];
        heap[child] = swapped;
        root = child;
    }
}

template <class X>
__device__ int heap_compares(const X &x, int n, int k, int *heap) {
    const int size = min(k, n);
    int compares = 0;
    for (int j = 0; j < size; j++) heap[j] = j;
    for (int root = size / 2 - 1; root >= 0; root--) compares += sift_down(x, heap, size, root);
    for (int j = size; size > 0 && j < n; j++) {
        compares++;
        if (x[j] > x[heap[0]]) {
            heap[0] = j;
            compares += sift_down(x, heap, size, 0);
        }
    }
    return compares;
}
#endif

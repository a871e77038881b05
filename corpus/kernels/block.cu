// Reductions, scans, sorts and atomics within a block and across a grid.
#include <cstdint>

extern "C" __global__ void reduce_shared(const float* x, float* out, int n) {
    __shared__ float part[256];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s /= 2) {
        if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

template <typename T> __device__ T warp_sum(T v) {
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

extern "C" __global__ void reduce_shuffle(const double* x, double* out, int n) {
    __shared__ double part[32];
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
        sum = warp_sum(sum);
        if (threadIdx.x == 0) *out = sum;
    }
}

__device__ unsigned int finished = 0;

// The last block adds up what the others left: threadfence and an atomic ticket.
extern "C" __global__ void reduce_last_block(const float* x, float* parts, float* out, int n) {
    __shared__ float part[128];
    __shared__ bool last;
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int s = 64; s > 0; s /= 2) {
        if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        ((volatile float*)parts)[blockIdx.x] = part[0];
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        __threadfence();
        float total = 0;
        for (int b = 0; b < gridDim.x; b++) total += ((volatile float*)parts)[b];
        *out = total;
    }
}

extern "C" __global__ void scan_block(const int* x, int* out, int n) {
    extern __shared__ int buffer[];
    int t = threadIdx.x;
    int v = t < n ? x[t] : 0;
    buffer[t] = v;
    __syncthreads();
    for (int d = 1; d < blockDim.x; d *= 2) {
        int other = t >= d ? buffer[t - d] : 0;
        __syncthreads();
        buffer[t] += other;
        __syncthreads();
    }
    if (t < n) out[t] = buffer[t];
}

extern "C" __global__ void histogram(const uint8_t* x, unsigned* bins, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}

extern "C" __global__ void bitonic_sort(uint32_t* x, int n) {
    extern __shared__ uint32_t keys[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) keys[i] = x[i];
    __syncthreads();
    for (int k = 2; k <= n; k *= 2)
        for (int j = k / 2; j > 0; j /= 2) {
            for (int i = threadIdx.x; i < n; i += blockDim.x) {
                int p = i ^ j;
                if (p > i && (keys[i] > keys[p]) == ((i & k) == 0)) {
                    uint32_t t = keys[i];
                    keys[i] = keys[p];
                    keys[p] = t;
                }
            }
            __syncthreads();
        }
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = keys[i];
}

// One of everything that `atomic*` offers; only order-independent results.
extern "C" __global__ void atomics(const int* x, int* si, unsigned* ui, unsigned long long* ul, float* f, double* d, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i];
    atomicAdd(&si[0], v);
    atomicSub(&si[1], v);
    atomicMin(&si[2], v);
    atomicMax(&si[3], v);
    atomicAnd(&ui[0], v | 0xff00);
    atomicOr(&ui[1], v & 0xff);
    atomicXor(&ui[2], v);
    atomicInc(&ui[3], 6);
    atomicDec(&ui[4], 5);
    atomicAdd(&ul[0], (unsigned long long)v * v);
    atomicMax(&ul[1], (unsigned long long)(v & 0xffff));
    atomicXor(&ul[2], (unsigned long long)v << 32);
    atomicAdd(&f[0], (float)(v & 7));
    atomicAdd(&d[0], (double)(v & 15) * 0.5);
    // Compare and swap in a loop: the maximum of floats.
    int* bits = (int*)&f[1];
    int old = *(volatile int*)bits;
    float mine = (float)(v % 1000);
    while (mine > __int_as_float(old)) {
        int seen = atomicCAS(bits, old, __float_as_int(mine));
        if (seen == old) break;
        old = seen;
    }
    atomicExch(&si[4], 77);
    atomicAdd_system(&si[5], 1);
    atomicAdd_block(&si[6 + blockIdx.x], 1);
}

extern "C" __global__ void spin_lock(int* lock, int* counter, int rounds) {
    for (int r = 0; r < rounds; r++) {
        bool done = false;
        while (!done) {
            if (atomicCAS(lock, 0, 1) == 0) {
                __threadfence();
                *(volatile int*)counter = *(volatile int*)counter + 1;
                __threadfence();
                atomicExch(lock, 0);
                done = true;
            }
        }
    }
}

extern "C" __global__ void warp_intrinsics(const int* x, unsigned* out) {
    int lane = threadIdx.x % 32, v = x[threadIdx.x];
    unsigned all = 0xffffffffu;
    unsigned* o = out + threadIdx.x * 10;
    o[0] = __ballot_sync(all, v & 1);
    o[1] = __any_sync(all, v == 3) * 2 + __all_sync(all, v < 100);
    o[2] = __match_any_sync(all, v % 5);
    int same;
    o[3] = __match_all_sync(all, v / 1000, &same) + same;
    o[4] = __shfl_sync(all, v, (lane * 7) % 32);
    o[5] = __shfl_up_sync(all, v, 3) ^ __shfl_down_sync(all, v, 5, 8);
    o[6] = __reduce_add_sync(all, v);
    o[7] = __reduce_max_sync(all, v) ^ __reduce_xor_sync(all, (unsigned)v);
    unsigned part = 0;
    if (lane % 3 == 0) part = __activemask();
    o[8] = part;
    unsigned group = lane < 16 ? 0xffffu : 0xffff0000u;
    o[9] = __shfl_xor_sync(group, v, 8);
    __syncwarp();
}

extern "C" __global__ void block_votes(const int* x, int* out) {
    int v = x[threadIdx.x];
    out[threadIdx.x * 3 + 0] = __syncthreads_count(v > 10);
    out[threadIdx.x * 3 + 1] = __syncthreads_and(v > 10);
    out[threadIdx.x * 3 + 2] = __syncthreads_or(v > 10);
}

extern "C" __global__ void softmax_rows(const float* x, float* y, int columns) {
    __shared__ float part[32];
    const float* row = x + (size_t)blockIdx.x * columns;
    float m = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) m = fmaxf(m, row[i]);
    for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    m = part[0];
    for (int w = 1; w < blockDim.x / 32; w++) m = fmaxf(m, part[w]);
    __syncthreads();
    float s = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) s += __expf(row[i] - m);
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    s = 0;
    for (int w = 0; w < blockDim.x / 32; w++) s += part[w];
    for (int i = threadIdx.x; i < columns; i += blockDim.x) y[(size_t)blockIdx.x * columns + i] = __fdividef(__expf(row[i] - m), s);
}

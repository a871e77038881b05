// Cooperative groups, barriers and pipelines of libcu++, asynchronous copies.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

extern "C" __global__ void tile_reduce(const int* x, int* out) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int v = x[block.thread_rank()];
    int sum = cg::reduce(tile, v, cg::plus<int>());
    int largest = cg::reduce(tile, v, cg::greater<int>());
    int before = cg::exclusive_scan(tile, v, cg::plus<int>());
    out[block.thread_rank()] = sum * 3 + largest * 5 + before + tile.meta_group_rank();
}

extern "C" __global__ void coalesced_counter(const int* x, int* count, int* ranks, int limit) {
    int v = x[threadIdx.x];
    ranks[threadIdx.x] = -1;
    if (v < limit) {
        auto active = cg::coalesced_threads();
        if (active.thread_rank() == 0) atomicAdd(count, active.size());
        ranks[threadIdx.x] = active.thread_rank();
    }
}

extern "C" __global__ void grid_steps(float* a, float* b, int n, int steps) {
    auto grid = cg::this_grid();
    for (int s = 0; s < steps; s++) {
        for (int i = grid.thread_rank(); i < n; i += grid.size()) {
            float left = i > 0 ? a[i - 1] : 0, right = i + 1 < n ? a[i + 1] : 0;
            b[i] = 0.5f * a[i] + 0.25f * (left + right);
        }
        grid.sync();
        float* t = a;
        a = b;
        b = t;
    }
}

extern "C" __global__ void async_copy_group(const float4* x, float4* out, int n) {
    extern __shared__ float4 stage[];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, stage, x + blockIdx.x * n, sizeof(float4) * n);
    cg::wait(block);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float4 v = stage[n - 1 - i];
        out[blockIdx.x * n + i] = make_float4(v.w, v.z, v.y, v.x);
    }
}

extern "C" __global__ void pipeline_primitives(const float* x, float* out, int tiles) {
    __shared__ __align__(16) float stage[2][128];
    auto load = [&](int t) {
        if (t < tiles && threadIdx.x < 32) __pipeline_memcpy_async(&stage[t % 2][threadIdx.x * 4], x + t * 128 + threadIdx.x * 4, 16);
        __pipeline_commit();
    };
    load(0);
    float sum = 0;
    for (int t = 0; t < tiles; t++) {
        load(t + 1);
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += stage[t % 2][threadIdx.x] * (t + 1);
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void pipeline_block(const float* x, float* out, int tiles) {
    __shared__ float stage[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    float sum = 0;
    for (int fetch = 0, t = 0; t < tiles; t++) {
        for (; fetch < tiles && fetch < t + 2; fetch++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, stage[fetch % 2], x + fetch * 64, cuda::aligned_size_t<16>(256), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += stage[t % 2][63 - threadIdx.x];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void barrier_phases(const int* x, int* out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int cells[64];
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    int v = x[threadIdx.x];
    for (int r = 0; r < 3; r++) {
        cells[threadIdx.x] = v;
        bar.arrive_and_wait();
        v += cells[(threadIdx.x + 1) % blockDim.x];
        auto token = bar.arrive();
        v ^= r;
        bar.wait(std::move(token));
    }
    out[threadIdx.x] = v;
}

extern "C" __global__ void message_passing(const int* x, int* box, int* out) {
    cuda::atomic_ref<int, cuda::thread_scope_device> flag(box[1]);
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) {
            box[0] = x[0] * 2;
            flag.store(1, cuda::memory_order_release);
        }
    } else if (threadIdx.x == 0) {
        while (flag.load(cuda::memory_order_acquire) == 0) {}
        out[0] = box[0] + 1;
    }
}

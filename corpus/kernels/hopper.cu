// Clusters, distributed shared memory, bulk copies and wgmma; sm_90a.
#include <cooperative_groups.h>
#include <cstdint>
#include <cuda/barrier>
#include <cuda_bf16.h>
namespace cg = cooperative_groups;

extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_exchange(const int* x, int* out) {
    __shared__ int mine[64];
    auto cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank();
    mine[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    cluster.sync();
    int* other = cluster.map_shared_rank(mine, rank ^ 1);
    out[blockIdx.x * 64 + threadIdx.x] = other[63 - threadIdx.x] + (int)rank * 1000;
    cluster.sync();
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_histogram(const int* x, int* bins, int n) {
    __shared__ int local[32];
    auto cluster = cg::this_cluster();
    if (threadIdx.x < 32) local[threadIdx.x] = 0;
    cluster.sync();
    for (int i = cluster.thread_rank(); i < n; i += cluster.num_threads()) {
        int v = x[i] & 127;
        atomicAdd(cluster.map_shared_rank(local, v / 32) + v % 32, 1);
    }
    cluster.sync();
    if (threadIdx.x < 32) bins[cluster.block_rank() * 32 + threadIdx.x] = local[threadIdx.x];
}

using barrier = cuda::barrier<cuda::thread_scope_block>;
namespace device = cuda::device;

// A 1-D bulk copy in, work, and a bulk copy out.
extern "C" __global__ void bulk_copy(const int* x, int* out) {
    __shared__ alignas(16) int cells[256];
    __shared__ barrier bar;
    if (threadIdx.x == 0) {
        init(&bar, blockDim.x);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::memcpy_async(cells, x + blockIdx.x * 256, cuda::aligned_size_t<16>(sizeof(cells)), bar);
        token = bar.arrive();
    } else {
        token = bar.arrive();
    }
    bar.wait(std::move(token));
    for (int i = threadIdx.x; i < 256; i += blockDim.x) cells[i] = cells[i] * 3 + i;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t s = (uint32_t)__cvta_generic_to_shared(cells);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + blockIdx.x * 256), "r"(s), "n"(1024) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

__device__ uint64_t descriptor(uint32_t address, uint32_t lead, uint32_t stride) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
}

// D = A * B^T for 64x16 by 8x16 bf16 tiles in the layout without swizzle.
extern "C" __global__ void wgmma_plain(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d) {
    __shared__ alignas(128) __nv_bfloat16 as[64 * 16], bs[8 * 16];
    for (int i = threadIdx.x; i < 64 * 16; i += 128) {
        int row = i / 16, k = i % 16;
        as[row / 8 * 128 + k / 8 * 64 + row % 8 * 8 + k % 8] = a[i];
    }
    for (int i = threadIdx.x; i < 8 * 16; i += 128) {
        int row = i / 16, k = i % 16;
        bs[k / 8 * 64 + row % 8 * 8 + k % 8] = b[i];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uint64_t da = descriptor((uint32_t)__cvta_generic_to_shared(as), 128, 256);
    uint64_t db = descriptor((uint32_t)__cvta_generic_to_shared(bs), 128, 256);
    float c[4] = {0, 0, 0, 0};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0; }"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "l"(da), "l"(db), "r"(0));
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])::"memory");
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = 0; i < 4; i++) d[(warp * 16 + lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}

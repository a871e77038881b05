// Half, bfloat16 and 8-bit floating point, and packed integers.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void half_axpy(const __half2* x, __half2* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __half2 a = __floats2half2_rn(1.5f, -0.75f);
    if (i < n) y[i] = __hfma2(a, x[i], y[i]);
}

extern "C" __global__ void half_mix(const __half* x, const __half* y, __half* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half a = x[i], b = y[i];
    out[i * 8 + 0] = __hadd(a, b);
    out[i * 8 + 1] = __hmul(a, b);
    out[i * 8 + 2] = __hsub_sat(a, b);
    out[i * 8 + 3] = __hfma_relu(a, b, a);
    out[i * 8 + 4] = __hmax_nan(a, b);
    out[i * 8 + 5] = __hlt(a, b) ? __hneg(a) : __habs(b);
    out[i * 8 + 6] = __float2half_rz(__half2float(a) * 3.1f);
    out[i * 8 + 7] = __int2half_rn(__half2int_rd(a) + __half2int_rz(b));
}

extern "C" __global__ void half_compare(const __half2* x, const __half2* y, __half2* out, unsigned* bits, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i * 2 + 0] = __hgt2(x[i], y[i]);
    out[i * 2 + 1] = __hmin2(x[i], y[i]);
    bits[i] = __hbeq2(x[i], y[i]) * 4 + __hbltu2(x[i], y[i]) * 2 + __hgeu(x[i].x, y[i].y);
}

extern "C" __global__ void bfloat_mix(const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat16 a = x[i], b = y[i];
    out[i * 6 + 0] = __hadd(a, b);
    out[i * 6 + 1] = __hmul(a, b);
    out[i * 6 + 2] = __hfma(a, b, a);
    out[i * 6 + 3] = __hmin(a, b);
    out[i * 6 + 4] = __float2bfloat16_rn(__bfloat162float(a) / 3.0f);
    out[i * 6 + 5] = __hneg(__habs(b));
}

extern "C" __global__ void fp8_round_trip(const float* x, uint8_t* e4m3, uint8_t* e5m2, float* back, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_fp8_e4m3 a(x[i]);
    __nv_fp8_e5m2 b(x[i]);
    e4m3[i] = a.__x;
    e5m2[i] = b.__x;
    back[i] = (float)a + 2 * (float)b;
}

extern "C" __global__ void dot_bytes(const int* a, const int* b, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = __dp4a(a[i], b[i], 7) + (int)__dp4a((unsigned)a[i], (unsigned)b[i], 3u) + __dp2a_lo(a[i], b[i], 1) + __dp2a_hi(a[i], b[i], 2);
}

extern "C" __global__ void half_atomics(const float* x, __half* h, __half2* h2, __nv_bfloat16* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = (float)((int)x[i] & 3);
    atomicAdd(h, __float2half(v));
    atomicAdd(h2, __floats2half2_rn(v, 1.0f));
    atomicAdd(b, __float2bfloat16(v));
}

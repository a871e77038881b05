// Arithmetic, memory and control flow as ordinary CUDA C++ has them.
#include <cstdint>

template <typename T> __device__ T add(T a, T b) { return a + b; }

extern "C" __global__ void vec_add(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = add(x[i], y[i]);
}

extern "C" __global__ void saxpy_strided(float a, const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void transpose(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < columns && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * columns + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < rows && y + j < columns) out[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void matmul_tiled(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[16][16], bs[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < k; t += 16) {
        int ka = t + threadIdx.x, kb = t + threadIdx.y;
        as[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0.0f;
        bs[threadIdx.y][threadIdx.x] = kb < k && column < n ? b[kb * n + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

extern "C" __global__ void stencil_f64(const double* in, double* out, int n) {
    extern __shared__ double cells[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cells[threadIdx.x + 1] = i < n ? in[i] : 0;
    if (threadIdx.x == 0) cells[0] = i > 0 ? in[i - 1] : 0;
    if (threadIdx.x == blockDim.x - 1) cells[threadIdx.x + 2] = i + 1 < n ? in[i + 1] : 0;
    __syncthreads();
    if (i < n) out[i] = 0.25 * cells[threadIdx.x] + 0.5 * cells[threadIdx.x + 1] + 0.25 * cells[threadIdx.x + 2];
}

extern "C" __global__ void collatz(const uint32_t* start, uint32_t* steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint64_t v = start[i];
    uint32_t count = 0;
    while (v != 1) {
        v = v & 1 ? 3 * v + 1 : v / 2;
        count++;
    }
    steps[i] = count;
}

extern "C" __global__ void integer_mix(const int* a, const int* b, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i];
    unsigned u = x, v = y;
    int r = __popc(u) ^ __clz(v) ^ (__ffs(x) << 4);
    r += __brev(u) >> 3;
    r ^= __funnelshift_l(u, v, 7) + __funnelshift_rc(u, v, 40);
    r += __byte_perm(u, v, 0x3715) ^ __mulhi(x, y) ^ (int)__umulhi(u, v);
    r ^= __mul24(x, y) + (int)__umul24(u, v);
    r += __sad(x, y, 5) + (int)__usad(u, v, 9) + __hadd(x, y) + __rhadd(x, y);
    if (y != 0) r += x / y * 3 + x % y + (int)(u / v) + (int)(u % v);
    r ^= x << (y & 31) ^ x >> (y & 31) ^ (int)(u >> (v & 31));
    r += min(x, y) - max(x, y) + abs(x % 1000);
    r += (int)__vadd2(u, v) ^ (int)__vabsdiffu4(u, v);
    out[i] = r;
}

extern "C" __global__ void wide_integers(const int64_t* a, const int64_t* b, int64_t* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t x = a[i], y = b[i];
    int64_t r = x * y + __mul64hi(x, y) + (int64_t)__umul64hi(x, y);
    if (y) r ^= x / y + x % y + (int64_t)((uint64_t)x / (uint64_t)y);
    r += __popcll(x) + __clzll(y) + __ffsll(x) + (int64_t)__brevll(y);
    unsigned __int128 w = (unsigned __int128)(uint64_t)x * (uint64_t)y + (uint64_t)x;
    r ^= (int64_t)(w >> 64) + (int64_t)(w >> 17);
    out[i] = r ^ (x << (y & 63)) ^ (x >> (y & 63));
}

extern "C" __global__ void float_functions(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    out[i * 8 + 0] = sinf(v) + cosf(v);
    out[i * 8 + 1] = expf(v) + log1pf(fabsf(v));
    out[i * 8 + 2] = tanhf(v) * erff(v);
    out[i * 8 + 3] = powf(fabsf(v), 1.7f);
    out[i * 8 + 4] = sqrtf(fabsf(v)) + rsqrtf(fabsf(v) + 1) + cbrtf(v);
    out[i * 8 + 5] = atan2f(v, 0.5f) + fmodf(v, 0.75f);
    out[i * 8 + 6] = floorf(v) + ceilf(v) * 2 + rintf(v) * 4 + truncf(v) * 8 + roundf(v) * 16;
    out[i * 8 + 7] = ldexpf(v, 3) + copysignf(1.0f, v) + fmaf(v, v, v) + lgammaf(fabsf(v) + 1);
}

extern "C" __global__ void double_functions(const double* x, double* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i];
    out[i * 6 + 0] = sin(v) + cos(v);
    out[i * 6 + 1] = exp(v) + log(fabs(v) + 1);
    out[i * 6 + 2] = tanh(v) * erf(v);
    out[i * 6 + 3] = pow(fabs(v), 1.7);
    out[i * 6 + 4] = sqrt(fabs(v)) + 1 / (v * v + 1) + rsqrt(v * v + 2);
    out[i * 6 + 5] = atan(v) + fmod(v, 0.75) + floor(v) + rint(v);
}

extern "C" __global__ void large_angles(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = sinf(x[i]);
}

extern "C" __global__ void conversions(const float* x, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    out[i * 6 + 0] = (int)v;
    out[i * 6 + 1] = __float2int_rn(v) ^ (int)__float2uint_rz(v);
    out[i * 6 + 2] = (int)(int8_t)(int)v + (int)(uint8_t)(int)v + (int)(int16_t)(int)v;
    out[i * 6 + 3] = __float_as_int((float)(double)v * 2) + __float2int_ru(v) - __float2int_rd(v);
    out[i * 6 + 4] = (int)(long long)(double)v + (int)__double2ll_rn((double)v * 1e6);
    out[i * 6 + 5] = __float_as_int(__int2float_rz(__float_as_int(v))) ^ __float_as_int((float)(unsigned)i * v);
}

// Calls: recursion, function pointers, virtual functions, structs by value, printf, assert, malloc.
#include <cassert>
#include <cstdint>
#include <cstdio>

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

extern "C" __global__ void recursion(int* out) { out[threadIdx.x] = fibonacci(threadIdx.x % 13); }

__device__ int ackermann(int m, int n) {
    if (m == 0) return n + 1;
    return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

extern "C" __global__ void deep_recursion(int* out) { out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x % 5); }

typedef float (*Function)(float);
__device__ float square(float x) { return x * x; }
__device__ float halve(float x) { return x / 2; }
__device__ float negate(float x) { return -x; }
__device__ Function table[3] = {square, halve, negate};

extern "C" __global__ void function_pointers(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = table[i % 3](table[i / 3 % 3](x[i]));
}

struct Shape {
    __device__ virtual float area() const = 0;
    __device__ virtual ~Shape() {}
};
struct Square : Shape {
    float side;
    __device__ Square(float s) : side(s) {}
    __device__ float area() const override { return side * side; }
};
struct Circle : Shape {
    float radius;
    __device__ Circle(float r) : radius(r) {}
    __device__ float area() const override { return 3.0f * radius * radius; }
};

extern "C" __global__ void virtual_calls(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Shape* shape;
    if (i % 2)
        shape = new Square(x[i]);
    else
        shape = new Circle(x[i]);
    out[i] = shape->area();
    delete shape;
}

struct Big {
    int count;
    double weight;
    float values[5];
};

__device__ __noinline__ Big scale(Big b, double by) {
    b.count++;
    b.weight *= by;
    for (int i = 0; i < 5; i++) b.values[i] *= (float)by;
    return b;
}

extern "C" __global__ void structs(const float* x, double* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Big b = {i, x[i], {x[i], 1, 2, 3, 4}};
    b = scale(scale(b, 2), 0.25);
    out[i] = b.count + b.weight + b.values[0] + b.values[i % 5];
}

__device__ __noinline__ void fill(int* where, int n, int seed) {
    for (int i = 0; i < n; i++) where[i] = seed * i + 1;
}

__device__ __noinline__ int total(const int* where, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += where[i];
    return sum;
}

// Local arrays and shared memory through generic pointers.
extern "C" __global__ void local_pointers(int* out) {
    __shared__ int shared[64];
    int local[16];
    fill(local, 16, threadIdx.x);
    if (threadIdx.x == 0) fill(shared, 64, 3);
    __syncthreads();
    out[threadIdx.x] = total(threadIdx.x % 2 ? local : shared, 16);
}

extern "C" __global__ void switches(const int* x, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i], r;
    switch (v) {
    case 0: r = 11; break;
    case 1: r = v * 7; break;
    case 2: r = -4; break;
    case 3: r = i; break;
    case 4: r = v ^ i; break;
    case 5: r = i * i; break;
    case 6: r = 1 << (i & 15); break;
    case 7: r = i % 3; break;
    case 8: r = 99; break;
    default: r = -1;
    }
    out[i] = r;
}

extern "C" __global__ void printing(const float* x, int n) {
    int i = threadIdx.x;
    if (i < n) printf("thread %d has %.3f %s %5u|%-4d|%c %x %lld %%\n", i, x[i], i % 2 ? "odd" : "even", i * 10u, -i, 'a' + i, 255 - i, 10000000000ll + i);
}

extern "C" __global__ void asserting(const int* x, int* out, int limit) {
    int v = x[threadIdx.x];
    assert(v < limit);
    out[threadIdx.x] = v * 2;
}

// A list on the device heap.
struct Node {
    int value;
    Node* next;
};

extern "C" __global__ void heap_list(int* out) {
    Node* head = nullptr;
    for (int i = 0; i < 4 + threadIdx.x % 3; i++) {
        Node* node = (Node*)malloc(sizeof(Node));
        node->value = i * (threadIdx.x + 1);
        node->next = head;
        head = node;
    }
    int sum = 0;
    while (head) {
        sum = sum * 3 + head->value;
        Node* next = head->next;
        free(head);
        head = next;
    }
    out[threadIdx.x] = sum;
}

__constant__ float weights[7] = {0.05f, 0.1f, 0.2f, 0.3f, 0.2f, 0.1f, 0.05f};
__constant__ const char* names[2] = {"even", "odd"};

extern "C" __global__ void constant_filter(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int k = -3; k <= 3; k++)
        if (i + k >= 0 && i + k < n) sum += weights[k + 3] * x[i + k];
    out[i] = sum + names[i & 1][0];
}

// A collective inside a function that lanes reach from two places.
__device__ __noinline__ int rotate(unsigned mask, int v) { return __shfl_sync(mask, v, (threadIdx.x + 1) % 16 + (threadIdx.x & 16)); }

extern "C" __global__ void collectives_in_functions(const int* x, int* out) {
    int v = x[threadIdx.x];
    if (threadIdx.x & 16)
        v = rotate(0xffff0000u, v) * 2;
    else
        v = rotate(0x0000ffffu, v) + 5;
    out[threadIdx.x] = v;
}

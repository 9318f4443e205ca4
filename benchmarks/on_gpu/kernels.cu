// Kernels and loops that measure what targets describe: reads of rows across the link, copies, latencies, launches.
// Built by `measure.py` into a library whose functions return milliseconds or microseconds, and -1 if CUDA failed.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        cudaError_t status = (call);                                                               \
        if (status != cudaSuccess) {                                                               \
            std::fprintf(stderr, "%s: %s (line %d)\n", #call, cudaGetErrorString(status), __LINE__); \
            return -1;                                                                             \
        }                                                                                          \
    } while (0)

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double, std::micro>(end - begin).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// One thread per element, rows written one after the other. With `rotated`, the threads of a row begin at the element
// that has their own offset within a line of 32 elements, as in PyTorch-Direct.
__global__ void read_rows(float *out, const float *table, const int64_t *index, int64_t rows, int columns, bool rotated) {
    const int64_t elements = rows * columns;
    for (int64_t place = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; place < elements;
         place += int64_t(gridDim.x) * blockDim.x) {
        const int64_t row = place / columns;
        int column = int(place - row * columns);
        const int64_t source = index[row] * columns;
        if (rotated) {
            column += int((row * columns - source) & 31);
            column -= column >= columns ? columns : 0;
        }
        out[row * columns + column] = table[source + column];
    }
}

__global__ void spin(int64_t cycles) {
    const int64_t begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

__global__ void chase(const int64_t *next, int64_t steps, int64_t *out) {
    int64_t place = 0;
    for (int64_t step = 0; step < steps; ++step) place = __ldcv(next + place);
    *out = place;
}

}  // namespace

extern "C" {

void *host_memory(int64_t bytes) {
    void *memory = nullptr;
    return cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) == cudaSuccess ? memory : nullptr;
}

// Milliseconds of one read of rows on a stream; `blocks` 0: as many as there are elements for blocks of 256 threads.
float read_rows_ms(float *out, const float *table, const int64_t *index, int64_t rows, int columns, int rotated,
                   int blocks, int threads) {
    cudaEvent_t begin, end;
    float ms = 0;
    if (blocks == 0) blocks = int((rows * columns + threads - 1) / threads);
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    TRY(cudaEventRecord(begin));
    read_rows<<<blocks, threads>>>(out, table, index, rows, columns, rotated != 0);
    TRY(cudaGetLastError());
    TRY(cudaEventRecord(end));
    TRY(cudaEventSynchronize(end));
    TRY(cudaEventElapsedTime(&ms, begin, end));
    TRY(cudaEventDestroy(begin));
    TRY(cudaEventDestroy(end));
    return ms;
}

// Launches a read of rows without waiting, on the given stream.
int read_rows_on(void *stream, float *out, const float *table, const int64_t *index, int64_t rows, int columns,
                 int rotated, int blocks, int threads) {
    if (blocks == 0) blocks = int((rows * columns + threads - 1) / threads);
    read_rows<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(out, table, index, rows, columns, rotated != 0);
    TRY(cudaGetLastError());
    return 0;
}

// As read_rows_ms, all memory allocated here: rows are those of `index` on the host; counts wrong elements of the result.
float checked_rows_ms(const float *table, const int64_t *index, int64_t rows, int columns, int rotated, int64_t *wrong) {
    float *out;
    int64_t *device_index;
    const int64_t elements = rows * columns;
    TRY(cudaMalloc(&out, elements * 4));
    TRY(cudaMemset(out, 0xff, elements * 4));
    TRY(cudaMalloc(&device_index, rows * 8));
    TRY(cudaMemcpy(device_index, index, rows * 8, cudaMemcpyDefault));
    const float ms = read_rows_ms(out, table, device_index, rows, columns, rotated, 0, 256);
    std::vector<float> found(elements);
    TRY(cudaMemcpy(found.data(), out, elements * 4, cudaMemcpyDeviceToHost));
    *wrong = 0;
    for (int64_t row = 0; row < rows; ++row)
        for (int column = 0; column < columns; ++column)
            *wrong += found[row * columns + column] != table[index[row] * columns + column];
    TRY(cudaFree(out));
    TRY(cudaFree(device_index));
    return ms;
}

// Median microseconds of a blocking copy, by the wall clock.
double copy_us(void *to, const void *from, int64_t bytes, int repeats) {
    std::vector<double> times;
    for (int turn = 0; turn < repeats + 2; ++turn) {
        const auto begin = Clock::now();
        TRY(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
        TRY(cudaDeviceSynchronize());
        if (turn > 1) times.push_back(microseconds(begin, Clock::now()));
    }
    return median(times);
}

// Nanoseconds of one read of host memory by one thread that waits for each.
double round_trip_ns(int64_t *table, int64_t places, int64_t stride, int64_t steps) {
    int64_t *out;
    cudaEvent_t begin, end;
    float ms = 0;
    for (int64_t step = 0, place = 0; step < steps; ++step) {
        const int64_t next = (place + stride) % places;
        table[place] = next;
        place = next;
    }
    TRY(cudaMalloc(&out, 8));
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    TRY(cudaEventRecord(begin));
    chase<<<1, 1>>>(table, steps, out);
    TRY(cudaEventRecord(end));
    TRY(cudaEventSynchronize(end));
    TRY(cudaEventElapsedTime(&ms, begin, end));
    TRY(cudaFree(out));
    return ms * 1e6 / double(steps);
}

// Microseconds per kernel of `count` kernels in a row that each spin for `cycles`. mode 0: queued on a stream;
// 1: the nodes of a graph; 2: queued, each waited for. Device time between events for 0 and 1, wall clock for 2.
double launches_us(int count, int64_t cycles, int mode) {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    std::vector<double> times;
    TRY(cudaStreamCreate(&stream));
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    cudaGraphExec_t replay = nullptr;
    if (mode == 1) {
        cudaGraph_t graph;
        TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        for (int turn = 0; turn < count; ++turn) spin<<<1, 32, 0, stream>>>(cycles);
        TRY(cudaStreamEndCapture(stream, &graph));
        TRY(cudaGraphInstantiate(&replay, graph, 0));
        TRY(cudaGraphDestroy(graph));
    }
    for (int repeat = 0; repeat < 7; ++repeat) {
        float ms = 0;
        const auto from = Clock::now();
        TRY(cudaEventRecord(begin, stream));
        if (mode == 1) {
            TRY(cudaGraphLaunch(replay, stream));
        } else {
            for (int turn = 0; turn < count; ++turn) {
                spin<<<1, 32, 0, stream>>>(cycles);
                if (mode == 2) TRY(cudaStreamSynchronize(stream));
            }
        }
        TRY(cudaEventRecord(end, stream));
        TRY(cudaEventSynchronize(end));
        TRY(cudaEventElapsedTime(&ms, begin, end));
        times.push_back(mode == 2 ? microseconds(from, Clock::now()) : double(ms) * 1e3);
    }
    if (replay != nullptr) TRY(cudaGraphExecDestroy(replay));
    TRY(cudaStreamDestroy(stream));
    return median(times) / count;
}

// Microseconds that the host needs to launch one kernel, with the GPU far behind.
double issuing_us(int count) {
    std::vector<double> times;
    for (int repeat = 0; repeat < 7; ++repeat) {
        spin<<<1, 32>>>(int64_t(20) << 20);  // the queue is not drained meanwhile
        const auto begin = Clock::now();
        for (int turn = 0; turn < count; ++turn) spin<<<1, 32>>>(0);
        times.push_back(microseconds(begin, Clock::now()) / count);
        TRY(cudaDeviceSynchronize());
    }
    return median(times);
}

}  // extern "C"

// Counts the elements of an output that are off by more than `bound`, or are not numbers.
extern "C" __global__ void compare(unsigned* wrong, const float* output, const float* answer, float bound, unsigned size) {
    unsigned count = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        count += !(fabsf(output[i] - answer[i]) <= bound);
    }
    if (count) {
        atomicAdd(wrong, count);
    }
}

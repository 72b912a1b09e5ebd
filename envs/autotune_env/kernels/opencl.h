// What stands before a kernel that is compiled as OpenCL C 1.2: the words of CUDA that the kernels use.

#define PRAGMA(text) _Pragma(#text)
#define UNROLL(count) PRAGMA(unroll count)

#define KERNEL __kernel
#define GLOBAL __global
#define SHARED __local
#define __shared__ __local
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __ldg(address) (*(address))
#define __syncthreads() barrier(CLK_LOCAL_MEM_FENCE)
#define threadIdx ((uint2)(get_local_id(0), get_local_id(1)))
#define blockIdx ((uint2)(get_group_id(0), get_group_id(1)))

// Constant memory is filled by the host: an argument, after the others.
#define CONSTANT_ARRAY(type, name, size)
#define CONSTANT_ARGUMENT(type, name) , __constant type* name

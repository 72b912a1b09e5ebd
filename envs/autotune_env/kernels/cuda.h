// What stands before a kernel that is compiled as CUDA.

// A pragma does not expand macros; this does.
#define PRAGMA(text) _Pragma(#text)
#define UNROLL(count) PRAGMA(unroll count)

#define KERNEL extern "C" __global__
#define GLOBAL
#define SHARED
#define CONSTANT_ARRAY(type, name, size) __constant__ type name[size];
#define CONSTANT_ARGUMENT(type, name)

/*
 * Includes the file EACH once per dtype (of the classes EACH_CLASSES, all where not defined, and LUDA_CLASSES) with these
 * names set:
 *
 *   SUFFIX, DTYPE        f32, LUDA_F32
 *   T, C                 the type stored and the type computed in
 *   LOAD(v), STORE(v)    T to C and back
 *   IS_FLOAT, IS_INT, IS_BOOL, IS_HALF, IS_DOUBLE
 *   FN(name)             name_f32, for static functions
 *   KERNEL(name)         luda__name_f32_v3, a kernel of the table
 *
 * No guard: a file includes it as often as it has families. ORDER dtype does not matter here.
 */
#ifndef EACH_CLASSES
#define EACH_CLASSES CLASS_ANY
#endif

#define T PASTE2(stored_, SUFFIX)
#define C PASTE2(compute_, SUFFIX)
#define LOAD(v) PASTE2(load_, SUFFIX)(v)
#define STORE(v) PASTE2(store_, SUFFIX)(v)
#define FN(name) PASTE3(name, _, SUFFIX)
#define KERNEL(name) LUDA_SYMBOL(name, SUFFIX)
#define IS_FLOAT (CLASS == CLASS_FLOAT)
#define IS_INT (CLASS == CLASS_INT)
#define IS_BOOL (CLASS == CLASS_BOOL)

#if EACH_CLASSES & CLASS_FLOAT
#define CLASS CLASS_FLOAT
#define IS_HALF 0
#if (LUDA_CLASSES) & CLASS_DOUBLE
#define IS_DOUBLE 1
#define SUFFIX f64
#define DTYPE LUDA_F64
#include EACH
#undef SUFFIX
#undef DTYPE
#undef IS_DOUBLE
#endif
#define IS_DOUBLE 0
#define SUFFIX f32
#define DTYPE LUDA_F32
#include EACH
#undef SUFFIX
#undef DTYPE
#undef IS_HALF
#define IS_HALF 1
#define SUFFIX f16
#define DTYPE LUDA_F16
#include EACH
#undef SUFFIX
#undef DTYPE
#define SUFFIX bf16
#define DTYPE LUDA_BF16
#include EACH
#undef SUFFIX
#undef DTYPE
#undef IS_HALF
#undef IS_DOUBLE
#undef CLASS
#endif

#define IS_HALF 0
#define IS_DOUBLE 0
#if EACH_CLASSES & (LUDA_CLASSES) & CLASS_INT
#define CLASS CLASS_INT
#define SUFFIX i64
#define DTYPE LUDA_I64
#include EACH
#undef SUFFIX
#undef DTYPE
#define SUFFIX i32
#define DTYPE LUDA_I32
#include EACH
#undef SUFFIX
#undef DTYPE
#define SUFFIX i16
#define DTYPE LUDA_I16
#include EACH
#undef SUFFIX
#undef DTYPE
#define SUFFIX i8
#define DTYPE LUDA_I8
#include EACH
#undef SUFFIX
#undef DTYPE
#define SUFFIX u8
#define DTYPE LUDA_U8
#include EACH
#undef SUFFIX
#undef DTYPE
#undef CLASS
#endif

#if EACH_CLASSES & (LUDA_CLASSES) & CLASS_BOOL
#define CLASS CLASS_BOOL
#define SUFFIX bool
#define DTYPE LUDA_BOOL
#include EACH
#undef SUFFIX
#undef DTYPE
#undef CLASS
#endif
#undef IS_HALF
#undef IS_DOUBLE

#undef T
#undef C
#undef LOAD
#undef STORE
#undef FN
#undef KERNEL
#undef IS_FLOAT
#undef IS_INT
#undef IS_BOOL
#undef EACH
#undef EACH_CLASSES

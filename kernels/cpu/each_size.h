/*
 * Includes the file EACH_SIZE once per size of elements, for kernels that only move them, with these names set:
 *
 *   T           a type of that size, which may stand for any other
 *   FN(name)    name_4, for static functions; BY_SIZE(name) lists all four in the order of SIZE_INDEX(bytes)
 *
 * No guard: a file includes it as often as it has families.
 */
#ifndef BY_SIZE
#define BY_SIZE(name) { name##_1, name##_2, name##_4, name##_8 }
#define SIZE_INDEX(bytes) __builtin_ctzll((unsigned long long)(bytes))
typedef uint8_t __attribute__((may_alias)) element_1;
typedef uint16_t __attribute__((may_alias)) element_2;
typedef uint32_t __attribute__((may_alias)) element_4;
typedef uint64_t __attribute__((may_alias)) element_8;
#endif

#define T PASTE2(element_, SIZE)
#define FN(name) PASTE3(name, _, SIZE)
#define SIZE 1
#include EACH_SIZE
#undef SIZE
#define SIZE 2
#include EACH_SIZE
#undef SIZE
#define SIZE 4
#include EACH_SIZE
#undef SIZE
#define SIZE 8
#include EACH_SIZE
#undef SIZE
#undef T
#undef FN
#undef EACH_SIZE

/*
 * What kernel files of every device include: symbol names, classes of element types, failing. <stdbool.h> stays out: its
 * macro would change the suffix of bool kernels.
 */
#ifndef LUDA_NAMES_H
#define LUDA_NAMES_H

#include "kernels/kernels.h"

#include <stdarg.h>
#include <stdio.h>

#define PASTE2_(a, b) a##b
#define PASTE2(a, b) PASTE2_(a, b)
#define PASTE3_(a, b, c) a##b##c
#define PASTE3(a, b, c) PASTE3_(a, b, c)
#define PASTE4_(a, b, c, d) a##b##c##d
#define PASTE4(a, b, c, d) PASTE4_(a, b, c, d)
#define PASTE5_(a, b, c, d, e) a##b##c##d##e
#define PASTE5(a, b, c, d, e) PASTE5_(a, b, c, d, e)
#define PASTE6_(a, b, c, d, e, f) a##b##c##d##e##f
#define PASTE6(a, b, c, d, e, f) PASTE6_(a, b, c, d, e, f)

/* The device or, set by the build for what is compiled once per level, the level: baseline, v3, v4. */
#ifndef LUDA_ISA
#define LUDA_ISA any
#endif
#define LUDA_SYMBOL(name, suffix) PASTE6(luda__, name, _, suffix, _, LUDA_ISA)
/* A function shared by the files of one level. */
#define LEVEL(name) PASTE3(name, _, LUDA_ISA)

#define CLASS_FLOAT 1
#define CLASS_INT 2
#define CLASS_BOOL 4
#define CLASS_DOUBLE 8 /* only in LUDA_CLASSES: f64, which is a float */
#define CLASS_ANY (CLASS_FLOAT | CLASS_INT | CLASS_BOOL | CLASS_DOUBLE)
/* The build sets what a level makes where it leaves the rest to the level below. */
#ifdef LUDA_CLASSES
#define KERNEL_LINKAGE __attribute__((weak, visibility("hidden")))
#else
#define LUDA_CLASSES CLASS_ANY
#endif

/* --- Failing --- */

/* The operator's name; defined by each device. */
static inline const char *op_name(const luda_call *call);

/* Writes the message and returns the code. */
static inline __attribute__((format(printf, 3, 4))) luda_status fail(const luda_call *call, luda_status status,
                                                                     const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call->message, 256, format, arguments);
    va_end(arguments);
    return status;
}

static inline luda_status fail_memory(const luda_call *call, size_t bytes)
{
    return fail(call, LUDA_ENOMEM, "%s: no memory for %zu bytes of work space", op_name(call), bytes);
}

/* Input `i`, or NULL where it is absent. */
static inline const luda_operand *input(const luda_call *call, int i)
{
    return i < call->nin && call->in[i].data && call->in[i].numel >= 0 ? &call->in[i] : NULL;
}

#endif

/* What the C tests share: expectations that count, and a summary line. */
#ifndef LUDA_CHECK_H
#define LUDA_CHECK_H

#include <luda.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static _Atomic int passed, failed;

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            passed++;                                                                                                  \
        } else {                                                                                                       \
            failed++;                                                                                                  \
            printf("%s:%d: expected %s\n", __FILE__, __LINE__, #condition);                                            \
        }                                                                                                              \
    } while (0)

/* The call returns this status. */
#define EXPECT_STATUS(status, call)                                                                                    \
    do {                                                                                                               \
        luda_status got_status = (call);                                                                               \
        if (got_status == (status)) {                                                                                  \
            passed++;                                                                                                  \
        } else {                                                                                                       \
            failed++;                                                                                                  \
            printf("%s:%d: %s gave %d (%s)\n", __FILE__, __LINE__, #call, (int)got_status, luda_last_error());         \
        }                                                                                                              \
    } while (0)

#define EXPECT_OK(call) EXPECT_STATUS(LUDA_OK, call)

/* |a - b| <= tolerance; two NaN are near. */
#define EXPECT_NEAR(a, b, tolerance)                                                                                   \
    do {                                                                                                               \
        double near_a = (a), near_b = (b);                                                                             \
        if (fabs(near_a - near_b) <= (tolerance) || (isnan(near_a) && isnan(near_b))) {                                \
            passed++;                                                                                                  \
        } else {                                                                                                       \
            failed++;                                                                                                  \
            printf("%s:%d: %s is %.17g, not %.17g\n", __FILE__, __LINE__, #a, near_a, near_b);                         \
        }                                                                                                              \
    } while (0)

static inline int summary(const char *name)
{
    printf("%s: %d passed, %d failed\n", name, passed, failed);
    return failed != 0;
}

#endif

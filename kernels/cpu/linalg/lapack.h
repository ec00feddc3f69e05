/*
 * LAPACK's functions, opened by name when one is first wanted, so that nothing is linked. Fortran's calling convention:
 * everything by address, 32-bit integers, the lengths of texts last.
 */
#ifndef LUDA_LAPACK_H
#define LUDA_LAPACK_H

#include <stddef.h>

/* In the order of the fields below. */
#define LAPACK_NAMES "potrf", "getrf", "getrs", "gelqf", "orglq", "gesdd", "syevd", "trsm"

/* Of one element type; matrices lie column by column. */
typedef struct lapack {
    void (*potrf)(const char *triangle, const int *n, void *a, const int *lda, int *info, size_t);
    void (*getrf)(const int *m, const int *n, void *a, const int *lda, int *pivots, int *info);
    void (*getrs)(const char *turned, const int *n, const int *columns, const void *a, const int *lda, const int *pivots,
                  void *b, const int *ldb, int *info, size_t);
    void (*gelqf)(const int *m, const int *n, void *a, const int *lda, void *tau, void *work, const int *lwork, int *info);
    void (*orglq)(const int *m, const int *n, const int *k, void *a, const int *lda, const void *tau, void *work,
                  const int *lwork, int *info);
    void (*gesdd)(const char *job, const int *m, const int *n, void *a, const int *lda, void *s, void *u, const int *ldu,
                  void *vt, const int *ldvt, void *work, const int *lwork, int *iwork, int *info, size_t);
    void (*syevd)(const char *job, const char *triangle, const int *n, void *a, const int *lda, void *values, void *work,
                  const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);
    void (*trsm)(const char *side, const char *triangle, const char *turned, const char *unit, const int *m, const int *n,
                 const void *alpha, const void *a, const int *lda, void *b, const int *ldb, size_t, size_t, size_t, size_t);
} lapack;

/*
 * The functions for elements of 4 or 8 bytes, or NULL where no library was found: the system's liblapack, else OpenBLAS,
 * or what LUDA_LAPACK names. From then on the library runs on the calling thread alone.
 */
const lapack *luda__lapack(int size);

#endif

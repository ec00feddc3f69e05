/*
 * matmul: tiles of the output over the pool. Operands that a product routine can read in place are not copied; others,
 * and halves, go through packed panels. Halves are multiplied and summed in float and rounded once.
 */
#include "matmul.h"
#include "gemm_bf16.h"

enum { MOST_N = 1 << 30, PANEL_N = 512, PANEL_K = 1024, TINY_WORK = 4096, TINY_N = 64 };

/* How the product routine reads a matrix of rows x columns in place: 0 as it lies, 1 transposed, -1 not at all. */
static int layout(const matrix *x, int64_t rows, int64_t columns, int64_t *ld)
{
    if ((x->column == 1 || columns == 1) && (x->row >= columns || rows == 1)) {
        *ld = larger(rows == 1 ? columns : x->row, 1);
        return 0;
    }
    if ((x->row == 1 || rows == 1) && (x->column >= rows || columns == 1)) {
        *ld = larger(columns == 1 ? rows : x->column, 1);
        return 1;
    }
    return -1;
}

#define EACH_CLASSES (CLASS_FLOAT | CLASS_INT)
#define EACH "kernels/cpu/matrix/matmul.inc"
#include "kernels/cpu/each.h"

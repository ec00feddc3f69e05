/*
 * What the parts of the writer of tensor files share: where a file comes to be (file_place.c), what it holds
 * (file_save.c); file_async.c puts both on a thread of its own.
 */
#ifndef LUDA_FILE_SAVE_H
#define LUDA_FILE_SAVE_H

#include "file.h"

/* --- A temporary file in the folder of `path`, which becomes `path` when it is complete --- */

typedef struct luda__place {
    const char *path;
    int fd;          /* -1: not open */
    char *temporary; /* its path; NULL: there is none */
    int64_t started; /* on its way to the disk up to here */
} luda__place;

luda_status luda__place_open(luda__place *place);
luda_status luda__place_write(luda__place *place, const char *data, size_t bytes, int64_t position);
/* The name appears only after its bytes have reached the disk. */
luda_status luda__place_publish(luda__place *place);
/* What was not published is removed. */
void luda__place_close(luda__place *place);

/* --- What a file holds --- */

typedef struct luda__file_item {
    const char *name;
    int dtype, ndim;
    int64_t shape[LUDA_MAX_DIMS];
    const luda_tensor *tensor; /* NULL: the elements are at `staged` */
    const char *staged;
    int64_t begin, bytes; /* from the end of the header */
    uint32_t crc;
} luda__file_item;

typedef struct luda__file_plan {
    luda__place place;
    luda__file_item *items; /* in the order of their bytes */
    int count;
    int64_t bytes; /* of all elements */
    const char *const *keys, *const *values;
    int metadata_count;
    char *header;
    size_t header_length;
    char *buffer; /* small tensors gather here */
    size_t used;
} luda__file_plan;

/* Checks everything and lays the file out; strings and tensors are lent. The plan is freed in either case. */
luda_status luda__file_plan_make(luda__file_plan *plan, const char *path, const luda_file_entry *entries, int n,
                                 const char *const *keys, const char *const *values, int nmeta);
luda_status luda__file_plan_write(luda__file_plan *plan);
void luda__file_plan_free(luda__file_plan *plan);
/* The elements in order, in CPU memory: a copy that is to be released, where the tensor is strided. */
luda_status luda__file_in_order(const luda_tensor *tensor, luda_tensor **copy);

#endif

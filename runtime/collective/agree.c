/*
 * What ranks ask for, compared before data moves. Every rank holds every announcement, so all come to the same verdict
 * without another message.
 */
#include "collective.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* --- Names --- */

static const struct {
    const char *name;
    int8_t floats, integers, bools;
} reductions[] = {
#define LUDA_REDUCTION(name, NAME, floats, integers, bools) { #name, floats, integers, bools },
#include "names.def"
};

static const char *const algorithms[] = {
#define LUDA_ALGORITHM(name, NAME) #name,
#include "names.def"
};

static const char *const calls[] = {
#define LUDA_CALL(name, NAME) #name,
#include "names.def"
};

static bool in_range(int value, int count)
{
    return value >= 0 && value < count;
}

const char *luda_reduction_name(luda_reduction reduction)
{
    return in_range((int)reduction, LUDA_REDUCE_COUNT) ? reductions[reduction].name : NULL;
}

int luda_reduction_from_name(const char *name)
{
    for (int i = 0; i < LUDA_REDUCE_COUNT; i++)
        if (strcmp(reductions[i].name, name) == 0)
            return i;
    return -1;
}

const char *luda_algorithm_name(luda_algorithm algorithm)
{
    return in_range((int)algorithm, LUDA_ALGORITHM_COUNT) ? algorithms[algorithm] : NULL;
}

int luda_algorithm_from_name(const char *name)
{
    for (int i = 0; i < LUDA_ALGORITHM_COUNT; i++)
        if (strcmp(algorithms[i], name) == 0)
            return i;
    return -1;
}

const char *luda__call_name(int call)
{
    return in_range(call, LUDA_CALL_COUNT) ? calls[call] : "call";
}

bool luda__reduction_fits(luda_reduction reduction, luda_dtype dtype)
{
    enum { FLOAT, INT, BOOL };
    static const int class_of[] = {
#define LUDA_DTYPE(suffix, NAME, stored, compute, class, file_name) class,
#include "../../kernels/dtypes.def"
    };
    const int8_t fits[] = { [FLOAT] = reductions[reduction].floats,
                            [INT] = reductions[reduction].integers,
                            [BOOL] = reductions[reduction].bools };
    return fits[class_of[dtype]];
}

/* --- Faults --- */

void luda__fault(luda_comm_fault *fault, luda_status status, const char *format, ...)
{
    va_list arguments;
    memset(fault->culprits, 0, sizeof fault->culprits);
    fault->status = status;
    va_start(arguments, format);
    vsnprintf(fault->text, sizeof fault->text, format, arguments);
    va_end(arguments);
}

const char *luda__culprits_text(const luda_comm_fault *fault, int size, char *buffer, size_t room)
{
    int total = 0, seen = 0;
    size_t used = 0;
    for (int r = 0; r < size; r++)
        total += luda__blamed(fault, r);
    snprintf(buffer, room, "nobody");
    for (int r = 0; r < size; r++) {
        if (!luda__blamed(fault, r))
            continue;
        const char *before = seen == 0 ? (total == 1 ? "rank " : "ranks ") : seen == total - 1 ? " and " : ", ";
        int length = snprintf(buffer + used, room - used, "%s%d", before, r);
        if (length < 0 || (size_t)length >= room - used)
            break;
        used += (size_t)length;
        seen++;
    }
    return buffer;
}

/* --- Announcements --- */

/* " by tree(4)"; nothing for direct. */
static const char *way_text(const luda_announcement *asked, char *buffer, size_t room)
{
    const char *name = luda_algorithm_name((luda_algorithm)asked->algorithm);
    if (asked->algorithm <= LUDA_ALGORITHM_DIRECT || !name)
        buffer[0] = 0;
    else if (asked->algorithm == LUDA_ALGORITHM_TREE)
        snprintf(buffer, room, " by tree(%d)", asked->arity);
    else if (asked->algorithm == LUDA_ALGORITHM_AUTO)
        snprintf(buffer, room, " by auto for links of %g us, %g us a message, %g GB/s", asked->link[0] * 1e-3,
                 asked->link[1] * 1e-3, asked->link[2] * 1e-3);
    else
        snprintf(buffer, room, " by %s", name);
    return buffer;
}

const char *luda__asked_text(const luda_announcement *asked, char *buffer, size_t room)
{
    char shape[96] = "[?]", root[48] = "", dim[48] = "", way[96];
    bool reduces = asked->operation == LUDA_CALL_ALL_REDUCE || asked->operation == LUDA_CALL_REDUCE ||
                   asked->operation == LUDA_CALL_REDUCE_SCATTER;
    bool rooted = asked->operation == LUDA_CALL_REDUCE || asked->operation == LUDA_CALL_BROADCAST ||
                  asked->operation == LUDA_CALL_GATHER || asked->operation == LUDA_CALL_SCATTER;
    bool uneven = asked->sizes > 0 && !asked->refused;

    if (asked->operation == LUDA_CALL_BARRIER) {
        snprintf(buffer, room, "barrier%s%s", asked->site[0] ? " at " : "", asked->site);
        return buffer;
    }
    if (asked->ndim >= 0)
        luda__shape_text(asked->ndim, asked->shape, shape, sizeof shape);
    if (rooted && asked->root >= 0)
        snprintf(root, sizeof root, " root %d", asked->root);
    if (asked->dim > 0)
        snprintf(dim, sizeof dim, " along axis %d of %d", asked->dim, asked->ndim);
    snprintf(buffer, room, "%s%s%s %s %s%s%s%s%s%s%s%s%s", luda__call_name(asked->operation), reduces ? " " : "",
             reduces && in_range(asked->reduction, LUDA_REDUCE_COUNT) ? reductions[asked->reduction].name : "",
             asked->dtype >= 0 ? luda_dtype_name((luda_dtype)asked->dtype) : "?", shape, dim,
             uneven ? " in sizes " : "", uneven ? asked->note : "", root, way_text(asked, way, sizeof way),
             asked->tracked > 0 ? " tracked" : "", asked->site[0] ? " at " : "", asked->site);
    return buffer;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

uint64_t luda__asked_hash(const luda_announcement *asked)
{
    uint64_t hash = mix(0x243F6A8885A308D3u, (uint32_t)asked->operation);
    hash = mix(hash, (uint64_t)(uint32_t)asked->reduction << 32 | (uint32_t)asked->root);
    hash = mix(hash, (uint64_t)(uint32_t)asked->algorithm << 32 | (uint32_t)asked->dim);
    hash = mix(hash, (uint64_t)(uint32_t)asked->tracked << 32 | (uint32_t)asked->dtype);
    hash = mix(hash, (uint64_t)(uint32_t)asked->ndim << 32 | (uint32_t)asked->refused);
    hash = mix(hash, (uint64_t)(uint32_t)asked->arity << 32 | (uint32_t)asked->link[0]);
    hash = mix(hash, (uint64_t)(uint32_t)asked->link[1] << 32 | (uint32_t)asked->link[2]);
    hash = mix(hash, (uint64_t)asked->sizes);
    for (int d = 0; d < asked->ndim; d++)
        hash = mix(hash, (uint64_t)asked->shape[d]);
    return hash;
}

/* The compared fields, most telling first. */
#define FIELDS(FIELD) \
    FIELD(operation) FIELD(dtype) FIELD(sizes) FIELD(shape) FIELD(reduction) FIELD(root) FIELD(algorithm) FIELD(arity) \
    FIELD(link) FIELD(dim) FIELD(tracked)
#define FIELD(name) FIELD_##name,
enum { FIELDS(FIELD) FIELD_COUNT };
#undef FIELD
#define FIELD(name) #name,
static const char *const field_names[] = { FIELDS(FIELD) };
#undef FIELD
#undef FIELDS

static bool known(const luda_announcement *a, int field)
{
    const int64_t value[] = { [FIELD_operation] = a->operation,
                              [FIELD_dtype] = a->dtype,
                              [FIELD_sizes] = a->sizes,
                              [FIELD_shape] = a->ndim,
                              [FIELD_reduction] = a->reduction,
                              [FIELD_root] = a->root,
                              [FIELD_algorithm] = a->algorithm,
                              [FIELD_arity] = a->arity,
                              [FIELD_link] = a->link[0],
                              [FIELD_dim] = a->dim,
                              [FIELD_tracked] = a->tracked };
    return value[field] >= 0;
}

static bool equal(const luda_announcement *a, const luda_announcement *b, int field)
{
    const bool same[] = { [FIELD_operation] = a->operation == b->operation,
                          [FIELD_dtype] = a->dtype == b->dtype,
                          [FIELD_sizes] = a->sizes == b->sizes,
                          [FIELD_shape] = a->ndim == b->ndim && (a->ndim < 0 || a->ndim > LUDA_MAX_DIMS ||
                                                                 memcmp(a->shape, b->shape, (size_t)a->ndim * 8) == 0),
                          [FIELD_reduction] = a->reduction == b->reduction,
                          [FIELD_root] = a->root == b->root,
                          [FIELD_algorithm] = a->algorithm == b->algorithm,
                          [FIELD_arity] = a->arity == b->arity,
                          [FIELD_link] = memcmp(a->link, b->link, sizeof a->link) == 0,
                          [FIELD_dim] = a->dim == b->dim,
                          [FIELD_tracked] = a->tracked == b->tracked };
    return same[field];
}

/* Takes over what one rank knows and the verdict so far does not. */
static void learn(luda_announcement *agreed, const luda_announcement *from)
{
    if (agreed->dtype < 0)
        agreed->dtype = from->dtype;
    if (agreed->ndim < 0) {
        agreed->ndim = from->ndim;
        memcpy(agreed->shape, from->shape, sizeof agreed->shape);
    }
    if (agreed->dim < 0)
        agreed->dim = from->dim;
    if (agreed->root < 0)
        agreed->root = from->root;
}

/* --- The verdict --- */

/* Ranks outside the largest group that agrees; all of them where no group is larger than the others. */
static void blame_minority(const luda_announcement *asked, int size, int field, luda_comm_fault *fault)
{
    int best = -1, best_votes = 0;
    bool tie = false;
    for (int r = 0; r < size; r++) {
        int votes = 0, first = -1;
        if (!known(&asked[r], field))
            continue;
        for (int q = 0; q < size; q++)
            if (known(&asked[q], field) && equal(&asked[r], &asked[q], field)) {
                votes++;
                first = first < 0 ? q : first;
            }
        if (first != r)
            continue;
        tie = votes == best_votes || (tie && votes < best_votes);
        if (votes > best_votes) {
            best = r;
            best_votes = votes;
        }
    }
    for (int r = 0; r < size; r++)
        if (known(&asked[r], field) && (tie || !equal(&asked[r], &asked[best], field)))
            luda__blame(fault, r);
}

/* What would have made pieces of two lengths a valid call. */
static const char *uneven_hint(const luda_announcement *asked, int field)
{
    bool joins = asked->operation == LUDA_CALL_ALL_GATHER || asked->operation == LUDA_CALL_GATHER;
    return joins && field == FIELD_shape && asked->sizes == 0 ? " (sizes= joins pieces of different lengths)" : "";
}

/* "; ranks 0, 1 and 3 ask for …" of all ranks that ask for the same as rank `like` in this field. */
static void append_asked(luda_comm_fault *fault, const luda_announcement *asked, int size, int like, int field)
{
    luda_comm_fault group = { 0 };
    char who[128], text[320];
    size_t used = strlen(fault->text);
    int count = 0;
    for (int r = 0; r < size; r++)
        if (known(&asked[r], field) == known(&asked[like], field) && equal(&asked[r], &asked[like], field)) {
            if (r < like)
                return;
            luda__blame(&group, r);
            count++;
        }
    snprintf(fault->text + used, sizeof fault->text - used, "%s%s ask%s for %s",
             fault->text[used - 1] == ' ' ? "" : "; ", luda__culprits_text(&group, size, who, sizeof who),
             count == 1 ? "s" : "", luda__asked_text(&asked[like], text, sizeof text));
}

/* First what the ranks to blame ask for: of many ranks, the text holds only some. */
static luda_status differ(const luda_announcement *asked, int size, int me, int field, luda_comm_fault *fault)
{
    luda__fault(fault, LUDA_EMISMATCH, "%s: ranks disagree about the %s%s: ", luda__call_name(asked[me].operation),
                field_names[field], uneven_hint(&asked[me], field));
    blame_minority(asked, size, field, fault);
    for (int blamed = 1; blamed >= 0; blamed--)
        for (int r = 0; r < size; r++)
            if (luda__blamed(fault, r) == blamed)
                append_asked(fault, asked, size, r, field);
    return LUDA_EMISMATCH;
}

/* A rank that found its own arguments wrong says so instead of leaving the others to wait for it. */
static luda_status refuse(const luda_announcement *asked, int size, int me, luda_comm_fault *fault)
{
    char who[128];
    int first = -1;
    luda__fault(fault, LUDA_EMISMATCH, "refused");
    for (int r = size - 1; r >= 0; r--)
        if (asked[r].refused) {
            luda__blame(fault, r);
            first = r;
        }
    if (first < 0)
        return LUDA_OK;
    if (asked[me].refused) {
        fault->status = asked[me].refused;
        snprintf(fault->text, sizeof fault->text, "%s", asked[me].note);
        return (luda_status)fault->status;
    }
    luda__culprits_text(fault, size, who, sizeof who);
    snprintf(fault->text, sizeof fault->text, "%s: refused by %s: %s", luda__call_name(asked[me].operation), who,
             asked[first].note);
    return LUDA_EMISMATCH;
}

/* Whoever passes a tensor is the root, where no rank names one. */
static luda_status find_sender(const luda_announcement *asked, int size, luda_announcement *agreed,
                               luda_comm_fault *fault, const char **field)
{
    char who[128];
    int senders = 0;
    if (agreed->operation != LUDA_CALL_BROADCAST || agreed->root >= 0)
        return LUDA_OK;
    luda__fault(fault, LUDA_EMISMATCH, "broadcast: no rank passes a tensor; one must");
    for (int r = 0; r < size; r++)
        if (asked[r].sender) {
            luda__blame(fault, r);
            agreed->root = r;
            senders++;
        }
    if (senders == 1)
        return LUDA_OK;
    if (senders > 1)
        snprintf(fault->text, sizeof fault->text, "broadcast: %s pass a tensor each; one rank must, or name the root",
                 luda__culprits_text(fault, size, who, sizeof who));
    *field = "sender";
    return LUDA_EMISMATCH;
}

luda_status luda__compare(const luda_announcement *asked, int size, int me, luda_announcement *agreed,
                          luda_comm_fault *fault, const char **field)
{
    bool same = true;
    *agreed = asked[me];
    *field = NULL;
    for (int r = 0; r < size; r++)
        same = same && asked[r].hash == asked[me].hash;
    for (int f = 0; !same && f < FIELD_COUNT; f++) {
        int reference = -1;
        for (int r = 0; r < size; r++) {
            if (!known(&asked[r], f))
                continue;
            if (reference >= 0 && !equal(&asked[r], &asked[reference], f)) {
                *field = field_names[f];
                return differ(asked, size, me, f, fault);
            }
            reference = reference < 0 ? r : reference;
        }
    }
    if (!same || asked[me].refused)
        LUDA_TRY(refuse(asked, size, me, fault));
    for (int r = 0; !same && r < size; r++)
        learn(agreed, &asked[r]);
    return find_sender(asked, size, agreed, fault, field);
}

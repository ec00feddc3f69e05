/* The operator table asked at run time: rows, facts, attribute fields and their defaults. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

/* --- Element types --- */

static const struct {
    const char *name;
    luda__dtype_class class;
    const char *file_name;
} dtypes[] = {
#define LUDA_DTYPE(suffix, NAME, stored, compute, class, file_name) { #suffix, LUDA__##class, file_name },
#include "../../kernels/dtypes.def"
};

const uint8_t luda__dtype_bytes[LUDA_DTYPE_COUNT] = {
#define LUDA_DTYPE(suffix, NAME, stored, ...) [LUDA_##NAME] = sizeof(stored),
#include "../../kernels/dtypes.def"
};

const char *luda_dtype_name(luda_dtype dtype)
{
    return (unsigned)dtype < LUDA_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

int luda_dtype_size(luda_dtype dtype)
{
    return (unsigned)dtype < LUDA_DTYPE_COUNT ? luda__dtype_bytes[dtype] : 0;
}

int luda_dtype_from_name(const char *name)
{
    for (int i = 0; i < LUDA_DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return i;
    return -1;
}

luda__dtype_class luda__class_of(luda_dtype dtype)
{
    return dtypes[dtype].class;
}

const char *luda__dtype_file_name(luda_dtype dtype)
{
    return dtypes[dtype].file_name;
}

/* --- Rows --- */

enum { VARIADIC = LUDA_VARIADIC };

static luda_op_info ops[LUDA_OP_COUNT + 1] = {
#define LUDA_PLAIN(name, nin, nout, types, family, shape, gradient, keeps, sample, facts)                              \
    { #name, #types, #family, #shape, #gradient, #keeps, sample, facts, nin, nout, 0, 0, LUDA_ATTRS_none },
#define LUDA_OP(name, nin, nout, types, family, shape, gradient, keeps, sample, facts)                                 \
    { #name, #types, #family, #shape, #gradient, #keeps, sample, facts, nin, nout, 0, 0, LUDA_ATTRS_##family },
#include "../../kernels/ops.def"
};

static luda_attrs defaults[LUDA_OP_COUNT];
luda__op_facts luda__facts_of[LUDA_OP_COUNT];

/* --- Attribute fields --- */

#define LUDA_FIELD(kind, name) { #kind, #name, 0, sizeof(luda__kind_##kind) },

static luda_field_info fields_of[LUDA_ATTRS_COUNT][8] = {
    { { NULL, NULL, 0, 0 } },
#define LUDA_ATTRS(family, fields) { fields { NULL, NULL, 0, 0 } },
#include "../../kernels/attrs.def"
};

/* The compiler's layout rule: each field at the next multiple of its alignment. */
static void place_fields(luda_field_info *field)
{
    int32_t offset = (int32_t)offsetof(luda_attrs, bytes);
    for (; field->name; field++) {
        bool small = strcmp(field->kind, "dims") == 0 || strcmp(field->kind, "device") == 0;
        int32_t alignment = small ? 4 : field->size < 8 ? field->size : 8;
        offset = (offset + alignment - 1) / alignment * alignment;
        field->offset = offset;
        offset += field->size;
    }
}

/* Proof that the rule is the compiler's, on the structs with the most varied fields. */
_Static_assert(offsetof(struct luda_random_attrs, generator) == 104, "layout rule of place_fields");
_Static_assert(offsetof(struct luda_narrow_attrs, start) == 8, "layout rule of place_fields");
_Static_assert(offsetof(struct luda_extremum_backward_attrs, size) == 16, "layout rule of place_fields");
_Static_assert(offsetof(struct luda_create_attrs, low) == 88, "layout rule of place_fields");
_Static_assert(offsetof(struct luda_max_pool_backward_attrs, size) == 72, "layout rule of place_fields");

static const luda_field_info *field_named(luda_attrs_family family, const char *name, size_t length)
{
    for (const luda_field_info *field = fields_of[family]; field->name; field++)
        if (strncmp(field->name, name, length) == 0 && field->name[length] == '\0')
            return field;
    return NULL;
}

static void set_number(luda_attrs *attrs, const luda_field_info *field, double value)
{
    void *place = (char *)attrs + field->offset;
    if (strcmp(field->kind, "number") == 0)
        *(double *)place = value;
    else if (strcmp(field->kind, "pair") == 0)
        *(luda_pair *)place = (luda_pair){ (int64_t)value, (int64_t)value };
    else if (field->size == 8)
        *(int64_t *)place = (int64_t)value;
    else
        *(int32_t *)place = (int32_t)value;
}

/* --- Facts: key=value separated by ';' --- */

static const char *const fact_keys[] = {
    "attrs", "optional", "inplace", "hidden", "base", "random", "accumulate", "autocast", "recompute", "unfused", "symbol", "doc",
};

/* The first character of a fact's value ("" for a bare key), or NULL; *length up to the ';'. */
static const char *find_fact(const char *facts, const char *key, size_t *length)
{
    size_t key_length = strlen(key);
    for (const char *at = facts; *at;) {
        while (*at == ' ')
            at++;
        bool is_doc = strncmp(at, "doc=", 4) == 0;
        const char *end = is_doc ? NULL : strchr(at, ';');
        size_t fact_length = end ? (size_t)(end - at) : strlen(at);
        if (strncmp(at, key, key_length) == 0 && (fact_length == key_length || at[key_length] == '=')) {
            size_t skip = fact_length == key_length ? key_length : key_length + 1;
            *length = fact_length - skip;
            return at + skip;
        }
        at += fact_length + (end != NULL);
    }
    return NULL;
}

static bool known_facts(const char *facts)
{
    for (const char *at = facts; *at;) {
        while (*at == ' ')
            at++;
        size_t key = strcspn(at, "=;");
        bool known = false;
        for (size_t i = 0; i < sizeof fact_keys / sizeof *fact_keys; i++)
            known |= strlen(fact_keys[i]) == key && strncmp(fact_keys[i], at, key) == 0;
        if (!known)
            return false;
        if (strncmp(at, "doc=", 4) == 0)
            return true;
        at += strcspn(at, ";");
        at += *at == ';';
    }
    return false; /* a row without a sentence */
}

static bool parse_defaults(luda_op op)
{
    const luda_op_info *info = &ops[op];
    luda_attrs *attrs = &defaults[op];
    size_t length = 0;
    attrs->family = info->attrs;
    const luda_field_info *device = field_named(info->attrs, "device", 6);
    if (device)
        *(luda_device *)((char *)attrs + device->offset) = (luda_device){ LUDA_SAME_DEVICE, 0 };
    const char *text = find_fact(info->facts, "attrs", &length);
    for (const char *end = text ? text + length : NULL; text && text < end;) {
        size_t name = strcspn(text, ":");
        const luda_field_info *field = field_named(info->attrs, text, name);
        if (!field)
            return false;
        char *after;
        set_number(attrs, field, strtod(text + name + 1, &after));
        text = *after == ',' ? after + 1 : end;
    }
    return true;
}

static bool parse_autocast(luda_op op)
{
    static const char *const words[] = { [LUDA__AUTOCAST_LOW] = "low", [LUDA__AUTOCAST_F32] = "f32" };
    size_t length;
    const char *value = find_fact(ops[op].facts, "autocast", &length);
    for (int kind = LUDA__AUTOCAST_LOW; value && kind <= LUDA__AUTOCAST_F32; kind++)
        if (strlen(words[kind]) == length && strncmp(words[kind], value, length) == 0)
            luda__facts_of[op].autocast = (luda__autocast)kind;
    return !value || luda__facts_of[op].autocast != LUDA__AUTOCAST_NONE;
}

static bool parse_row(luda_op op)
{
    luda_op_info *info = &ops[op];
    luda__op_facts *facts = &luda__facts_of[op];
    size_t length;
    if (!known_facts(info->facts))
        return false;
    const char *value = find_fact(info->facts, "optional", &length);
    info->optional = value ? atoi(value) : 0;
    value = find_fact(info->facts, "hidden", &length);
    info->hidden = value ? atoi(value) : 0;
    facts->random = find_fact(info->facts, "random", &length) != NULL;
    facts->accumulate = find_fact(info->facts, "accumulate", &length) != NULL;
    facts->inplace = find_fact(info->facts, "inplace", &length) != NULL;
    value = find_fact(info->facts, "recompute", &length);
    facts->recompute_cheap = value && *value == 'c';
    facts->recompute_activation = value && *value == 'a';
    facts->is_view = strcmp(info->types, "VIEW") == 0;
    facts->map_inputs = strcmp(info->family, "map") == 0 ? (int8_t)info->inputs : 0;
    for (int dtype = 0; dtype < LUDA_DTYPE_COUNT; dtype++) {
        bool compares = strcmp(info->types, "COMPARE") == 0, any = strcmp(info->types, "ANY") == 0;
        bool number = strcmp(info->types, "NUM") == 0 && dtype != LUDA_BOOL;
        bool real = strcmp(info->types, "FLOAT") == 0 && luda__class_of((luda_dtype)dtype) == LUDA__FLOAT;
        facts->map_result[dtype] = (int8_t)(compares ? LUDA_BOOL : any || number || real ? dtype : -1);
    }
    return parse_autocast(op) && parse_defaults(op);
}

/* Runs before main and before any thread; a bad row is named by luda__table_fault, which the build's check asks. */
static const char *table_fault;

__attribute__((constructor)) static void parse_table(void)
{
    for (int family = 0; family < LUDA_ATTRS_COUNT; family++)
        place_fields(fields_of[family]);
    for (int op = 0; op < LUDA_OP_COUNT; op++)
        if (!parse_row((luda_op)op) && !table_fault)
            table_fault = ops[op].name;
}

const char *luda_table_fault(void)
{
    return table_fault;
}

const luda_op_info *luda_op_get(luda_op op)
{
    return (unsigned)op < LUDA_OP_COUNT ? &ops[op] : NULL;
}

const luda_field_info *luda_attrs_field(luda_attrs_family family, int index)
{
    if ((unsigned)family >= LUDA_ATTRS_COUNT || index < 0)
        return NULL;
    for (const luda_field_info *field = fields_of[family]; field->name; field++)
        if (index-- == 0)
            return field;
    return NULL;
}

luda_status luda_attrs_default(luda_op op, luda_attrs *attrs)
{
    if ((unsigned)op >= LUDA_OP_COUNT)
        return luda__fail(LUDA_EINVAL, "attrs_default: there is no operator %d", (int)op);
    *attrs = defaults[op];
    return LUDA_OK;
}

/*
 * JSON for Lua, the text of records and tensor files: require "luda.json" as functions encode, decode and the value
 * null.
 *
 * A table with keys 1..n is an array, any other has string keys and is an object; an empty table is an object unless
 * its metatable has __jsontype = "array" (decoded empty arrays have it). Reals keep all their bits; NaN and the
 * infinities, for which JSON has no word, become {"$number": "nan"} and come back as numbers. Equal values give equal
 * text.
 */
#include "luda.h"

#include <jansson.h>
#include <lauxlib.h>
#include <lua.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_LIMIT = 200, WHERE_SIZE = 200 };
/* 2^53: whole numbers up to here are exact in a double. */
#define EXACT ((json_int_t)1 << 53)
#define NUMBER_KEY "$number"

/* One conversion: tables being converted (a table inside itself is an error), and what went wrong where. */
typedef struct conversion {
    const void *open[DEPTH_LIMIT];
    int depth;
    char where[WHERE_SIZE]; /* "value.best[3]" */
    char problem[120];
} conversion;

static json_t *to_json(lua_State *L, int index, conversion *c);

/* --- Encoding --- */

static json_t *refuse(conversion *c, const char *problem)
{
    if (!c->problem[0])
        snprintf(c->problem, sizeof c->problem, "%s", problem);
    return NULL;
}

static json_t *number_to_json(double number)
{
    if (isnan(number))
        return json_pack("{s:s}", NUMBER_KEY, "nan");
    if (isinf(number))
        return json_pack("{s:s}", NUMBER_KEY, number > 0 ? "inf" : "-inf");
    if (number == floor(number) && fabs(number) <= (double)EXACT && !(number == 0 && signbit(number)))
        return json_integer((json_int_t)number);
    return json_real(number);
}

/* The number of elements of an array, 0 for an object, -1 for keys that are neither. */
static int array_length(lua_State *L, int index)
{
    int length = (int)lua_objlen(L, index), integers = 0, others = 0;
    lua_pushnil(L);
    while (lua_next(L, index)) {
        lua_pop(L, 1);
        double key = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : 0;
        if (key >= 1 && key <= length && key == floor(key))
            integers++;
        else if (lua_type(L, -1) == LUA_TSTRING)
            others++;
        else {
            lua_pop(L, 1);
            return -1;
        }
    }
    if (integers && (others || integers != length))
        return -1;
    return integers;
}

static bool marked_array(lua_State *L, int index)
{
    bool marked = false;
    if (luaL_getmetafield(L, index, "__jsontype")) {
        marked = lua_type(L, -1) == LUA_TSTRING && strcmp(lua_tostring(L, -1), "array") == 0;
        lua_pop(L, 1);
    }
    return marked;
}

static json_t *array_to_json(lua_State *L, int index, int length, conversion *c)
{
    json_t *array = json_array();
    size_t end = strlen(c->where);
    for (int i = 1; i <= length; i++) {
        snprintf(c->where + end, WHERE_SIZE - end, "[%d]", i);
        lua_rawgeti(L, index, i);
        json_t *value = to_json(L, lua_gettop(L), c);
        lua_pop(L, 1);
        if (!value) {
            json_decref(array);
            return NULL;
        }
        json_array_append_new(array, value);
    }
    c->where[end] = '\0';
    return array;
}

static json_t *object_to_json(lua_State *L, int index, conversion *c)
{
    json_t *object = json_object();
    size_t end = strlen(c->where), size;
    lua_pushnil(L);
    while (lua_next(L, index)) {
        const char *key = lua_tolstring(L, -2, &size);
        snprintf(c->where + end, WHERE_SIZE - end, ".%s", key);
        json_t *value = to_json(L, lua_gettop(L), c);
        lua_pop(L, 1);
        if (value && (strlen(key) != size || json_object_set_new(object, key, value) != 0))
            value = refuse(c, "a key is not UTF-8 text");
        if (!value) {
            lua_pop(L, 1);
            json_decref(object);
            return NULL;
        }
    }
    c->where[end] = '\0';
    return object;
}

static json_t *table_to_json(lua_State *L, int index, conversion *c)
{
    const void *table = lua_topointer(L, index);
    json_t *result;
    for (int i = 0; i < c->depth; i++)
        if (c->open[i] == table)
            return refuse(c, "a table contains itself");
    if (c->depth == DEPTH_LIMIT || !lua_checkstack(L, 8))
        return refuse(c, "tables are nested too deeply");
    int length = array_length(L, index);
    if (length < 0)
        return refuse(c, "keys must be 1..n without gaps, or strings");
    c->open[c->depth++] = table;
    result = length > 0 || (lua_objlen(L, index) == 0 && marked_array(L, index)) ? array_to_json(L, index, length, c)
                                                                                   : object_to_json(L, index, c);
    c->depth--;
    return result;
}

static json_t *string_to_json(lua_State *L, int index, conversion *c)
{
    size_t size;
    const char *text = lua_tolstring(L, index, &size);
    json_t *string = json_stringn(text, size);
    return string ? string : refuse(c, "a string is not UTF-8 text");
}

static json_t *to_json(lua_State *L, int index, conversion *c)
{
    char problem[64];
    switch (lua_type(L, index)) {
    case LUA_TNUMBER:
        return number_to_json(lua_tonumber(L, index));
    case LUA_TBOOLEAN:
        return json_boolean(lua_toboolean(L, index));
    case LUA_TSTRING:
        return string_to_json(L, index, c);
    case LUA_TTABLE:
        return table_to_json(L, index, c);
    case LUA_TLIGHTUSERDATA:
        if (!lua_touserdata(L, index))
            return json_null();
        break;
    default:
        break;
    }
    snprintf(problem, sizeof problem, "a %s has no JSON form", lua_typename(L, lua_type(L, index)));
    return refuse(c, problem);
}

/* encode(value, indent): text. */
static int encode(lua_State *L)
{
    conversion c = { .where = "value" };
    size_t indent = (size_t)luaL_optinteger(L, 2, 0);
    luaL_checkany(L, 1);
    json_t *value = to_json(L, 1, &c);
    if (!value)
        return luaL_error(L, "json: %s: %s", c.where, c.problem);
    size_t flags = JSON_ENCODE_ANY | JSON_SORT_KEYS | JSON_REAL_PRECISION(17);
    char *text = json_dumps(value, flags | (indent ? JSON_INDENT(indent) : JSON_COMPACT));
    json_decref(value);
    if (!text)
        return luaL_error(L, "json: no memory for the text");
    lua_pushstring(L, text);
    free(text);
    return 1;
}

/* --- Decoding --- */

/* The number that {"$number": "inf"} stands for. */
static bool special_number(json_t *object, double *out)
{
    static const struct { const char *text; double number; } specials[] = {
        { "nan", NAN }, { "inf", INFINITY }, { "-inf", -INFINITY },
    };
    const char *text = json_string_value(json_object_get(object, NUMBER_KEY));
    if (!text || json_object_size(object) != 1)
        return false;
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        if (strcmp(text, specials[i].text) == 0) {
            *out = specials[i].number;
            return true;
        }
    }
    return false;
}

static const char *push_json(lua_State *L, json_t *value, int depth);

static const char *push_array(lua_State *L, json_t *array, int depth)
{
    size_t size = json_array_size(array);
    lua_createtable(L, (int)size, 0);
    for (size_t i = 0; i < size; i++) {
        const char *problem = push_json(L, json_array_get(array, i), depth);
        if (problem)
            return problem;
        lua_rawseti(L, -2, (int)i + 1);
    }
    if (size == 0) {
        lua_createtable(L, 0, 1);
        lua_pushliteral(L, "array");
        lua_setfield(L, -2, "__jsontype");
        lua_setmetatable(L, -2);
    }
    return NULL;
}

static const char *push_object(lua_State *L, json_t *object, int depth)
{
    const char *key;
    json_t *value;
    double number;

    if (special_number(object, &number)) {
        lua_pushnumber(L, number);
        return NULL;
    }
    lua_createtable(L, 0, (int)json_object_size(object));
    json_object_foreach(object, key, value) {
        const char *problem = push_json(L, value, depth);
        if (problem)
            return problem;
        lua_setfield(L, -2, key);
    }
    return NULL;
}

/* Pushes a value; NULL, or what is wrong. */
static const char *push_json(lua_State *L, json_t *value, int depth)
{
    if (depth == 0 || !lua_checkstack(L, 8))
        return "nested too deeply";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return push_object(L, value, depth - 1);
    case JSON_ARRAY:
        return push_array(L, value, depth - 1);
    case JSON_STRING:
        lua_pushlstring(L, json_string_value(value), json_string_length(value));
        return NULL;
    case JSON_INTEGER:
        if (json_integer_value(value) > EXACT || json_integer_value(value) < -EXACT)
            return "an integer beyond 2^53 is not exact as a number";
        lua_pushnumber(L, (double)json_integer_value(value));
        return NULL;
    case JSON_REAL:
        lua_pushnumber(L, json_real_value(value));
        return NULL;
    case JSON_NULL:
        lua_pushlightuserdata(L, NULL);
        return NULL;
    default:
        lua_pushboolean(L, json_is_true(value));
        return NULL;
    }
}

/* decode(text): value. */
static int decode(lua_State *L)
{
    size_t size;
    const char *text = luaL_checklstring(L, 1, &size);
    json_error_t error;
    json_t *value = json_loadb(text, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!value)
        return luaL_error(L, "json: line %d, column %d: %s", error.line, error.column, error.text);
    const char *problem = push_json(L, value, DEPTH_LIMIT);
    json_decref(value);
    return problem ? luaL_error(L, "json: %s", problem) : 1;
}

LUDA_API int luaopen_luda_json(lua_State *L)
{
    lua_createtable(L, 0, 3);
    lua_pushcfunction(L, encode);
    lua_setfield(L, -2, "encode");
    lua_pushcfunction(L, decode);
    lua_setfield(L, -2, "decode");
    lua_pushlightuserdata(L, NULL);
    lua_setfield(L, -2, "null");
    return 1;
}

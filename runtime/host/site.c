/*
 * Where in the user's program a call stands, for what calls very often: the nearest frame that is neither C nor ours, as
 * "file:line" in memory of the caller. debug.getinfo would make a table and strings for every frame.
 */
#include "../luda_lua.h"

#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

/* Upvalues: the memory, its size, what the sources of our files begin with. */
static int write_site(lua_State *L)
{
    char *text = (char *)lua_topointer(L, lua_upvalueindex(1)); /* a cdata's bytes */
    size_t room = (size_t)lua_tointeger(L, lua_upvalueindex(2)), length;
    const char *ours = lua_tolstring(L, lua_upvalueindex(3), &length);
    lua_Debug frame;
    for (int level = 1; lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "S", &frame);
        if (*frame.what == 'C' || strncmp(frame.source, ours, length) == 0)
            continue;
        lua_getinfo(L, "l", &frame);
        snprintf(text, room, "%s:%d", frame.short_src, frame.currentline);
        return 0;
    }
    snprintf(text, room, "?");
    return 0;
}

/* (a cdata of chars, its size, beginning) → a function that writes there. */
LUDA_API int luaopen_luda_site(lua_State *L)
{
    luaL_checkany(L, 1);
    luaL_checkinteger(L, 2);
    luaL_checkstring(L, 3);
    lua_settop(L, 3);
    lua_pushcclosure(L, write_site, 3);
    return 1;
}

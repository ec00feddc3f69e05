/* Opening LUDA in a Lua state that a C program made: finds the Lua files beside the library and requires "luda". */
#include "../luda_lua.h"

#include <dlfcn.h>
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <string.h>

/* In the tree the library lies in build/, installed in lib/; in both the Lua files are found from its folder. */
static const char *const places[] = { "/../lua/?.lua;%s/../lua/?/init.lua", "/../share/luda/?.lua;%s/../share/luda/?/init.lua" };

static void add_path(lua_State *L, const char *folder)
{
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "path");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        lua_pushstring(L, ";");
        lua_pushstring(L, folder);
        lua_pushfstring(L, places[i], folder);
    }
    lua_concat(L, 1 + 3 * (int)(sizeof places / sizeof *places));
    lua_setfield(L, -2, "path");
    lua_pop(L, 1);
}

int luda_lua_open(struct lua_State *L)
{
    Dl_info info;
    char folder[1024] = ".";
    if (dladdr((const void *)places, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        if (slash)
            snprintf(folder, sizeof folder, "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
    }
    add_path(L, folder);
    lua_getglobal(L, "require");
    lua_pushstring(L, "luda");
    return lua_pcall(L, 1, 1, 0) != 0;
}
